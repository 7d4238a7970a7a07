//! For how long a server asks not to be called.
//!
//! All rounding is upwards: who obeys is never early.

use std::time::{Duration, UNIX_EPOCH};

use http::header::{DATE, HeaderMap, RETRY_AFTER};
use http::{HeaderName, StatusCode};
use sfv::{KeyRef, List, ListEntry, Parameters, Parser};

/// What a 429 without any time is worth.
const UNTOLD: Duration = Duration::from_secs(1);

/// A number of seconds above this is a point in time: as a length it would be 31 years, as a point
/// it is in the year 2001.
const POINTS_BEGIN: u64 = 1_000_000_000;

/// A number above this is a point in milliseconds: in seconds it would be in the year 33658.
const MILLIS_BEGIN: u64 = 1_000_000_000_000;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The fields that hold one number each: what is left, when it resets, and whether that is always
/// a length of time.
const NUMBERS: [(HeaderName, HeaderName, bool); 3] = [
    (
        HeaderName::from_static("ratelimit-remaining"),
        HeaderName::from_static("ratelimit-reset"),
        true,
    ),
    (
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderName::from_static("x-ratelimit-reset-after"),
        true,
    ),
    (
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderName::from_static("x-ratelimit-reset"),
        false,
    ),
];

/// How long the server of an answer is not to be called; none where it does not ask for a pause.
///
/// On 429 and 503 `Retry-After` says it, else the fields of limits do. On any other answer only
/// limits count of which nothing remains. `now` is the time since the Unix epoch by the local
/// clock; points in time are taken relative to the answer's `Date` where it has one, so that a
/// clock that is off does not matter.
///
/// Source: RFC 9110, section 10.2.3; draft-ietf-httpapi-ratelimit-headers-10, section 6.
pub(super) fn pause(status: StatusCode, headers: &HeaderMap, now: Duration) -> Option<Duration> {
    let refused = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let now = date(headers, &DATE).unwrap_or(now);
    let asked = refused.then(|| retry_after(headers, now)).flatten();
    asked
        .or_else(|| spent_quota(headers))
        .or_else(|| spent_numbers(headers, refused, now))
        .or_else(|| (status == StatusCode::TOO_MANY_REQUESTS).then_some(UNTOLD))
        .filter(|pause| !pause.is_zero())
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Duration) -> Option<Duration> {
    seconds(headers, &RETRY_AFTER)
        .or_else(|| Some(date(headers, &RETRY_AFTER)?.saturating_sub(now)))
}

/// The longest time until a limit of which nothing remains has something again.
fn spent_quota(headers: &HeaderMap) -> Option<Duration> {
    let spent = members(headers, &RATE_LIMIT).filter(|(_, fields)| number(fields, "r") == Some(0));
    let waits = spent.filter_map(|(name, fields)| {
        let until = number(&fields, "t").or_else(|| window(headers, &name));
        until.map(Duration::from_secs)
    });
    waits.max()
}

/// The window of a policy: the longest that its quota can take to come back.
fn window(headers: &HeaderMap, name: &str) -> Option<u64> {
    let (_, fields) = members(headers, &RATE_LIMIT_POLICY).find(|(found, _)| found == name)?;
    number(&fields, "w")
}

/// The named members of a list field with their parameters. A line that is no list is left out.
fn members<'a>(
    headers: &'a HeaderMap,
    field: &HeaderName,
) -> impl Iterator<Item = (String, Parameters)> + use<'a> {
    let lines = headers.get_all(field).iter();
    let lists = lines.filter_map(|line| Parser::new(line.as_bytes()).parse::<List>().ok());
    lists.flatten().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some((name(&item.bare_item)?, item.params)),
        ListEntry::InnerList(_) => None,
    })
}

/// A policy's name: a string, or a token in older drafts.
fn name(item: &sfv::BareItem) -> Option<String> {
    let string = item.as_string().map(|text| text.as_str().to_owned());
    string.or_else(|| item.as_token().map(|text| text.as_str().to_owned()))
}

fn number(fields: &Parameters, key: &str) -> Option<u64> {
    let value = fields.get(KeyRef::from_str(key).ok()?)?;
    u64::try_from(i64::from(value.as_integer()?)).ok()
}

/// When the fields with one number each say that something is left again.
fn spent_numbers(headers: &HeaderMap, refused: bool, now: Duration) -> Option<Duration> {
    NUMBERS.iter().find_map(|(remaining, reset, is_length)| {
        // Who refuses has nothing left, whether it says so or not.
        let nothing_left = match seconds(headers, remaining) {
            Some(left) => left.is_zero(),
            None => refused,
        };
        let reset = seconds(headers, reset).filter(|_| nothing_left)?;
        Some(match reset.as_secs() {
            _ if *is_length => reset,
            MILLIS_BEGIN.. => Duration::from_millis(reset.as_secs()).saturating_sub(now),
            POINTS_BEGIN.. => reset.saturating_sub(now),
            _ => reset,
        })
    })
}

/// A field of one whole or decimal number; a fraction is rounded up.
fn seconds(headers: &HeaderMap, field: &HeaderName) -> Option<Duration> {
    let text = headers.get(field)?.to_str().ok()?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    // More digits than a number holds are a time that nobody will see.
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX);
    let up = u64::from(fraction.bytes().any(|digit| digit != b'0'));
    Some(Duration::from_secs(whole.saturating_add(up)))
}

/// A field of one date, as the time since the Unix epoch.
fn date(headers: &HeaderMap, field: &HeaderName) -> Option<Duration> {
    let text = headers.get(field)?.to_str().ok()?;
    let date = httpdate::parse_http_date(text.trim()).ok()?;
    date.duration_since(UNIX_EPOCH).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 1 January 2026, noon.
    const NOW: Duration = Duration::from_secs(1_767_268_800);

    #[track_caller]
    fn asks(status: u16, fields: &[(&str, &str)], expected: Option<u64>) {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        let pause = pause(status, &headers, NOW);
        assert_eq!(pause, expected.map(Duration::from_secs), "{fields:?}");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        asks(429, &[("retry-after", "7")], Some(7));
        asks(503, &[("retry-after", " 120 ")], Some(120));
        asks(429, &[("retry-after", "1.2")], Some(2));
        let noon_and_a_half = "Thu, 01 Jan 2026 12:00:30 GMT";
        asks(429, &[("retry-after", noon_and_a_half)], Some(30));
        asks(
            503,
            &[("retry-after", "Thursday, 01-Jan-26 12:00:30 GMT")],
            Some(30),
        );
        // A date in the past asks for nothing, and what is no time says nothing.
        asks(
            503,
            &[("retry-after", "Thu, 01 Jan 2026 11:00:00 GMT")],
            None,
        );
        for nonsense in ["soon", "-1", "", "1e3", "1.x", "."] {
            asks(503, &[("retry-after", nonsense)], None);
        }
    }

    #[test]
    fn a_date_counts_from_the_server_s_own_clock() {
        let fields = [
            ("date", "Thu, 01 Jan 2026 09:00:00 GMT"),
            ("retry-after", "Thu, 01 Jan 2026 09:00:05 GMT"),
        ];
        asks(429, &fields, Some(5));
        let fields = [
            ("date", "Thu, 01 Jan 2026 09:00:00 GMT"),
            ("x-ratelimit-reset", "1767258009"),
        ];
        asks(429, &fields, Some(9));
    }

    #[test]
    fn retry_after_means_something_on_a_refusal_only() {
        asks(200, &[("retry-after", "7")], None);
        asks(301, &[("retry-after", "7")], None);
    }

    #[test]
    fn a_quota_of_which_nothing_remains_is_waited_for() {
        let spent = "\"per-user\";r=0;t=9, \"stage\";r=0;t=2, \"day\";r=5;t=4000";
        asks(200, &[("ratelimit", spent)], Some(9));
        asks(429, &[("ratelimit", spent)], Some(9));
        asks(200, &[("ratelimit", "\"a\";r=1;t=9")], None);
        asks(
            200,
            &[
                ("ratelimit", "\"a\";r=0;t=3"),
                ("ratelimit", "\"b\";r=0;t=4"),
            ],
            Some(4),
        );
        // Of two lines, one of which is broken, the other counts.
        asks(
            200,
            &[("ratelimit", "r=0;;t="), ("ratelimit", "b;r=0;t=4")],
            Some(4),
        );
        asks(200, &[("ratelimit", "\"a\";r=0;t=-4")], None);
    }

    #[test]
    fn a_quota_that_does_not_say_when_comes_back_within_its_window() {
        let policy = ("ratelimit-policy", "\"b\";q=10;w=7, \"a\";q=100;w=60");
        asks(200, &[("ratelimit", "\"a\";r=0"), policy], Some(60));
        asks(200, &[("ratelimit", "\"c\";r=0"), policy], None);
    }

    #[test]
    fn retry_after_comes_before_the_fields_of_limits() {
        asks(
            429,
            &[("retry-after", "1"), ("ratelimit", "\"a\";r=0;t=9")],
            Some(1),
        );
    }

    #[test]
    fn a_reset_is_a_length_or_a_point_in_time() {
        let left = ("x-ratelimit-remaining", "0");
        asks(200, &[left, ("x-ratelimit-reset", "30")], Some(30));
        asks(200, &[left, ("x-ratelimit-reset", "1767268830")], Some(30));
        asks(
            200,
            &[left, ("x-ratelimit-reset", "1767268830.5")],
            Some(31),
        );
        asks(
            200,
            &[left, ("x-ratelimit-reset", "1767268830000")],
            Some(30),
        );
        asks(200, &[left, ("x-ratelimit-reset", "1767268000")], None);
        asks(200, &[left, ("x-ratelimit-reset-after", "0.25")], Some(1));
        asks(
            200,
            &[("ratelimit-remaining", "0"), ("ratelimit-reset", "8")],
            Some(8),
        );
        asks(
            200,
            &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "30")],
            None,
        );
        asks(200, &[("x-ratelimit-reset", "30")], None);
        asks(429, &[("x-ratelimit-reset", "30")], Some(30));
    }

    #[test]
    fn a_refusal_that_names_no_time_is_worth_a_second_and_an_outage_nothing() {
        asks(429, &[], Some(1));
        asks(503, &[], None);
        asks(500, &[("retry-after", "3")], None);
    }

    proptest! {
        #[test]
        fn no_field_makes_the_reader_panic(
            value in "[ -~]{0,60}|[0-9.]{0,40}|(\"a\"|;|r=0|t=|[0-9]|,| ){0,12}",
            status in prop::sample::select(vec![200_u16, 429, 503]),
        ) {
            let mut headers = HeaderMap::new();
            for name in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-reset", "date"] {
                headers.insert(name, value.parse().unwrap());
            }
            headers.insert("x-ratelimit-remaining", "0".parse().unwrap());
            let _ = pause(StatusCode::from_u16(status).unwrap(), &headers, NOW);
        }
    }
}

//! The `Retry-After`, `RateLimit` and `RateLimit-Policy` response fields, in several dialects.
//!
//! All rounding between the engine's microseconds and whole seconds happens here and nowhere
//! else: a client that obeys a field is never early.

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use smallvec::SmallVec;
use tidegate_core::{Policy, Rate, Timestamp, Wait};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The most policies that an answer names.
const MOST_POLICIES: usize = 4;

/// In which fields an answer tells of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldDialect {
    /// `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-10.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the reset in seconds from now: as in
    /// draft-ietf-httpapi-ratelimit-headers-03.
    Draft03,
    /// The same three, the reset in seconds since the Unix epoch: as GitHub's API has them.
    Github,
    /// None; a refusal still has `Retry-After`.
    None,
}

/// What one limit says of itself in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The limit's name as a quoted structured-field string: see [`quoted_name`].
    pub name: &'a str,
    /// The most that it lets through at once.
    pub quota: u32,
    /// The seconds that the quota is for, if it is for a time.
    pub window: Option<u64>,
    /// How many more calls would pass now.
    pub remaining: u32,
    /// When the limit is full again.
    pub reset_after: Wait,
}

/// Writes a limit's name as structured fields write a string.
///
/// Source: RFC 9651, section 4.1.6; characters that a string cannot hold become `_`.
#[must_use]
pub fn quoted_name(name: &str) -> String {
    let mut quoted = String::with_capacity(name.len() + 2);
    quoted.push('"');
    for letter in name.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            ' '..='~' => quoted.push(letter),
            _ => quoted.push('_'),
        }
    }
    quoted.push('"');
    quoted
}

/// Seconds to wait before the same request could be allowed, for `Retry-After`.
///
/// Rounded up to whole seconds, never 0; none where waiting cannot help.
///
/// Source: RFC 9110, section 10.2.3.
#[must_use]
pub fn retry_after_seconds(wait: Wait) -> Option<u64> {
    wait.as_micros()
        .map(|micros| micros.div_ceil(1_000_000).max(1))
}

/// Sets `Retry-After`, where waiting can help.
pub fn write_retry_after(headers: &mut HeaderMap, wait: Wait) {
    match retry_after_seconds(wait) {
        Some(seconds) => headers.insert(RETRY_AFTER, HeaderValue::from(seconds)),
        None => headers.remove(RETRY_AFTER),
    };
}

/// Adds the fields of a dialect; the standings come nearest first.
///
/// `RateLimit` fields that an upstream set stay beside ours, since both are lists; the three
/// fields of the other dialects hold one number each and are replaced.
pub fn write_standings(
    headers: &mut HeaderMap,
    dialect: FieldDialect,
    standings: &[Standing<'_>],
    now: Timestamp,
) {
    let Some(nearest) = standings.first() else {
        return;
    };
    match dialect {
        FieldDialect::None => {}
        FieldDialect::Ietf => {
            write_ietf(headers, nearest_of(standings), policies);
        }
        FieldDialect::Draft03 | FieldDialect::Github => {
            headers.insert(X_LIMIT, HeaderValue::from(nearest.quota));
            headers.insert(X_REMAINING, HeaderValue::from(nearest.remaining));
            let start = if dialect == FieldDialect::Github {
                now.as_micros()
            } else {
                0
            };
            match nearest.reset_after.as_micros() {
                Some(micros) => {
                    let seconds = start.saturating_add(micros).div_ceil(1_000_000);
                    headers.insert(X_RESET, HeaderValue::from(seconds))
                }
                None => headers.remove(X_RESET),
            };
        }
    }
}

/// As many standings as an answer names.
pub(super) fn nearest_of<'a, 'b>(standings: &'a [Standing<'b>]) -> &'a [Standing<'b>] {
    &standings[..standings.len().min(MOST_POLICIES)]
}

/// Adds `RateLimit-Policy`, as `policies` writes it, and `RateLimit`.
pub(super) fn write_ietf(
    headers: &mut HeaderMap,
    standings: &[Standing<'_>],
    policies: impl FnOnce(&[Standing<'_>]) -> HeaderValue,
) {
    if !standings.is_empty() {
        headers.append(RATE_LIMIT_POLICY, policies(standings));
        headers.append(RATE_LIMIT, remainders(standings));
    }
}

/// The seconds that a policy's quota is for, rounded up: what it takes to refill a bucket, or the
/// length of a window. None where no time brings the quota back, or the policy is for no time.
#[must_use]
pub fn window_seconds(policy: &Policy) -> Option<u64> {
    let refill = |rate: Rate, capacity: u32| {
        // One word is enough for the numbers that people write, and its division is quick.
        if let Some(micros) = u64::from(capacity).checked_mul(rate.period().0) {
            let whole = micros.checked_div(rate.count().into())?;
            return Some(whole.div_ceil(1_000_000));
        }
        let micros = u128::from(capacity) * u128::from(rate.period().0);
        let whole = micros.checked_div(u128::from(rate.count()))?;
        u64::try_from(whole.div_ceil(1_000_000)).ok()
    };
    let seconds = match policy {
        Policy::TokenBucket(bucket) => refill(bucket.rate(), bucket.capacity())?,
        Policy::IntervalBucket(bucket) => refill(bucket.rate(), bucket.capacity())?,
        Policy::LeakyBucket(bucket) => {
            refill(bucket.rate(), bucket.queue().saturating_add(bucket.burst()))?
        }
        Policy::FixedWindow(window) => window.period().0.div_ceil(1_000_000),
        Policy::SlidingLog(log) => log.period().0.div_ceil(1_000_000),
        Policy::StrictWindow(window) => window.period().0.div_ceil(1_000_000),
        Policy::InterpolatedWindow(window) => window.period().0.div_ceil(1_000_000),
        Policy::Lockout(lockout) => lockout.settings().period.0.div_ceil(1_000_000),
        Policy::Concurrency(_) => return None,
    };
    Some(seconds.max(1))
}

/// Rounded up; 0 for a limit that is full; none for one that never will be.
fn reset_seconds(wait: Wait) -> Option<u64> {
    wait.as_micros().map(|micros| micros.div_ceil(1_000_000))
}

/// The text of a field, without a detour over the heap for what most answers say.
type Text = SmallVec<[u8; 128]>;

pub(super) fn policies(standings: &[Standing<'_>]) -> HeaderValue {
    let mut text = Text::new();
    for standing in standings {
        begin(&mut text, standing.name);
        parameter(&mut text, ";q=", standing.quota.into());
        if let Some(window) = standing.window {
            parameter(&mut text, ";w=", window);
        }
    }
    visible(&text)
}

fn remainders(standings: &[Standing<'_>]) -> HeaderValue {
    let mut text = Text::new();
    for standing in standings {
        begin(&mut text, standing.name);
        parameter(&mut text, ";r=", standing.remaining.into());
        if let Some(seconds) = reset_seconds(standing.reset_after) {
            parameter(&mut text, ";t=", seconds);
        }
    }
    visible(&text)
}

fn begin(text: &mut Text, name: &str) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
    text.extend_from_slice(name.as_bytes());
}

fn parameter(text: &mut Text, name: &str, value: u64) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn visible(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("quoted names and numbers are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(name: &str, remaining: u32, reset_after: Wait) -> Standing<'_> {
        Standing {
            name,
            quota: 200,
            window: Some(2),
            remaining,
            reset_after,
        }
    }

    fn written(dialect: FieldDialect, standings: &[Standing<'_>]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let now = Timestamp::from_micros(1_000_500_000).unwrap();
        write_standings(&mut headers, dialect, standings, now);
        headers
    }

    #[test]
    fn retry_after_rounds_up_and_is_at_least_one_second() {
        for (micros, seconds) in [
            (0, 1),
            (1, 1),
            (1_000, 1),
            (999_000, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (1_001_000, 2),
        ] {
            assert_eq!(
                retry_after_seconds(Wait::micros(micros)),
                Some(seconds),
                "{micros}"
            );
        }
        assert_eq!(retry_after_seconds(Wait::NEVER), None);
    }

    #[test]
    fn the_fields_read_as_the_draft_says() {
        let headers = written(
            FieldDialect::Ietf,
            &[standing("\"stage\"", 50, Wait::micros(1_500_000))],
        );
        assert_eq!(headers["ratelimit-policy"], "\"stage\";q=200;w=2");
        assert_eq!(headers["ratelimit"], "\"stage\";r=50;t=2");
    }

    #[test]
    fn what_has_no_window_or_never_resets_leaves_the_parameter_out() {
        let standing = Standing {
            window: None,
            ..standing("\"a\"", 0, Wait::NEVER)
        };
        let headers = written(FieldDialect::Ietf, &[standing]);
        assert_eq!(headers["ratelimit-policy"], "\"a\";q=200");
        assert_eq!(headers["ratelimit"], "\"a\";r=0");
    }

    #[test]
    fn an_answer_names_four_policies_at_most() {
        let five = [standing("\"a\"", 1, Wait::ZERO); 5];
        let headers = written(FieldDialect::Ietf, &five);
        assert_eq!(
            headers["ratelimit"]
                .to_str()
                .unwrap()
                .matches("\"a\"")
                .count(),
            4
        );
    }

    #[test]
    fn the_other_dialects_tell_of_the_nearest_limit() {
        let standings = [
            standing("\"a\"", 7, Wait::micros(600_001)),
            standing("\"b\"", 9, Wait::ZERO),
        ];
        let headers = written(FieldDialect::Draft03, &standings);
        assert_eq!(headers["x-ratelimit-limit"], "200");
        assert_eq!(headers["x-ratelimit-remaining"], "7");
        assert_eq!(headers["x-ratelimit-reset"], "1");
        assert_eq!(
            written(FieldDialect::Github, &standings)["x-ratelimit-reset"],
            "1002"
        );
        assert!(written(FieldDialect::None, &standings).is_empty());
    }

    #[test]
    fn a_name_is_a_structured_field_string_whatever_it_holds() {
        assert_eq!(quoted_name("per-user"), "\"per-user\"");
        assert_eq!(quoted_name("a\"b\\c\nä"), "\"a\\\"b\\\\c__\"");
    }
}

//! Points in time and lengths of time as people and logs write them, in integers only.
//!
//! A point in time is either a length since the Unix epoch (`1500ms`) or an instant of RFC 3339
//! (`1995-08-01T13:30:03Z`). Nothing here asks for the time zone of the machine.

use std::fmt;

use tidegate_core::{Micros, Timestamp};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400;

const UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", DAY * SECOND),
];

/// Reads a length such as `1500ms` or `1h30m`.
///
/// # Errors
/// What is wrong and the remedy, for the place where the text stands.
pub(crate) fn parse_length(text: &str) -> Result<Micros, (&'static str, Option<String>)> {
    let mut rest = text;
    let mut total = 0_u64;
    if rest.is_empty() {
        return Err((
            "a length of time is missing here",
            Some("write it as in 1500ms".into()),
        ));
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err((
                "not a length of time",
                Some("write it as in 1500ms or 1h30m".into()),
            ));
        }
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        if unit.is_empty() {
            return Err((
                "a length of time needs a unit: us, ms, s, m, h or d",
                Some(format!("write {text}ms if milliseconds are meant")),
            ));
        }
        let Some((_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(("the unit is none of us, ms, s, m, h, d", None));
        };
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*size))
            .and_then(|length| length.checked_add(total))
            .ok_or(("this length of time is beyond what can be counted", None))?;
        rest = tail;
    }
    Ok(Micros(total))
}

/// Reads a point in time: a length since the epoch or an instant of RFC 3339.
///
/// # Errors
/// What is wrong and the remedy.
pub fn parse_time(text: &str) -> Result<Timestamp, (&'static str, Option<String>)> {
    let micros = if text.as_bytes().get(4) == Some(&b'-') {
        parse_instant(text.as_bytes()).ok_or((
            "not an instant of RFC 3339",
            Some("write it as in 1995-08-01T13:30:03Z".to_owned()),
        ))?
    } else {
        parse_length(text)?.0
    };
    Timestamp::from_micros(micros).map_err(|_| {
        (
            "this time is after the year 2112, the last that is counted",
            None,
        )
    })
}

/// Microseconds since the epoch of an RFC 3339 instant; none if malformed or before the epoch.
pub(crate) fn parse_instant(text: &[u8]) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    if date[4] != b'-' || date[7] != b'-' || !matches!(rest.first(), Some(b'T' | b't' | b' ')) {
        return None;
    }
    let days = days_since_epoch(
        digits(&date[..4])?.try_into().ok()?,
        digits(&date[5..7])?.try_into().ok()?,
        digits(&date[8..])?.try_into().ok()?,
    )?;
    let (clock, rest) = rest.split_at_checked(9)?;
    if clock[3] != b':' || clock[6] != b':' {
        return None;
    }
    let (hour, minute, second) = (
        digits(&clock[1..3])?,
        digits(&clock[4..6])?,
        digits(&clock[7..])?,
    );
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction, rest) = match rest.split_first() {
        Some((b'.', rest)) => {
            let length = rest.iter().take_while(|c| c.is_ascii_digit()).count();
            if length == 0 {
                return None;
            }
            let kept = length.min(6);
            let scale = 10_u64.pow(6 - u32::try_from(kept).expect("at most 6"));
            (digits(&rest[..kept])? * scale, &rest[length..])
        }
        _ => (0, rest),
    };
    let offset = match rest {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let minutes = digits(&[*h1, *h2])? * 60 + digits(&[*m1, *m2])?;
            let seconds = i64::try_from(minutes * 60).ok()?;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let seconds = days * i64::try_from(DAY).ok()?
        + i64::try_from(hour * 3_600 + minute * 60 + second).ok()?
        - offset;
    Some(u64::try_from(seconds).ok()? * SECOND + fraction)
}

/// The number that ASCII digits write; none where something else stands among them.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(byte - b'0'))?;
    }
    Some(number)
}

/// Days from the epoch to a date of the Gregorian calendar; none if there is no such date.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
pub(crate) fn days_since_epoch(year: u32, month: u32, day: u32) -> Option<i64> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        _ => return None,
    };
    if year == 0 || year > 9_999 || day == 0 || day > length {
        return None;
    }
    // The year begins in March, so that the leap day is its last.
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted / 400;
    let year_of_era = shifted - era * 400;
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(i64::from(era) * 146_097 + i64::from(day_of_era) - 719_468)
}

/// The date that is so many days after the epoch: the inverse of [`days_since_epoch`].
const fn date_of(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (
        year_of_era + era * 400 + if month <= 2 { 1 } else { 0 },
        month,
        day,
    )
}

/// A point in time for a timeline: short times as a length, those of real logs as an instant.
pub(crate) struct Written(pub Timestamp);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        // A written scenario starts at 0; a log starts decades after the epoch.
        let text = if micros < 366 * DAY * SECOND {
            if micros.is_multiple_of(1_000) {
                format!("{}ms", micros / 1_000)
            } else {
                format!("{micros}us")
            }
        } else {
            instant(micros)
        };
        f.pad_integral(true, "", &text)
    }
}

/// An instant of RFC 3339 in UTC, with a fraction only where there is one.
fn instant(micros: u64) -> String {
    let seconds = micros / SECOND;
    let (year, month, day) = date_of(seconds / DAY);
    let clock = seconds % DAY;
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    let fraction = match micros % SECOND {
        0 => String::new(),
        part if part.is_multiple_of(1_000) => format!(".{:03}", part / 1_000),
        part => format!(".{part:06}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_read_as_people_write_them() {
        for (text, micros) in [
            ("0ms", 0),
            ("7us", 7),
            ("1500ms", 1_500_000),
            ("1h30m", 5_400_000_000),
        ] {
            assert_eq!(parse_length(text), Ok(Micros(micros)), "{text}");
        }
        for text in ["", "5", "ms", "1x", "-1s", "1.5s", "99999999999999999999s"] {
            assert!(parse_length(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_instant_counts_from_the_epoch_whatever_its_offset() {
        let at = |text| parse_time(text).unwrap().as_micros();
        assert_eq!(at("1970-01-01T00:00:00Z"), 0);
        assert_eq!(at("1995-08-01T09:30:03-04:00"), at("1995-08-01T13:30:03Z"));
        assert_eq!(at("1995-08-01T13:30:03Z"), 807_283_803_000_000);
        assert_eq!(
            at("2026-05-01T10:00:00.25+02:00"),
            at("2026-05-01T08:00:00.250000Z")
        );
        for text in [
            "2026-02-29T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01",
            "2026-01-01T00:00:00",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_time_reads_back_as_itself(micros in 0_u64..=1 << 52) {
            let at = Timestamp::from_micros(micros).unwrap();
            prop_assert_eq!(parse_time(&Written(at).to_string()), Ok(at));
        }

        #[test]
        fn no_text_makes_the_readers_of_time_panic(text in "\\PC{0,40}") {
            let _ = parse_time(&text);
            let _ = parse_length(&text);
        }
    }
}

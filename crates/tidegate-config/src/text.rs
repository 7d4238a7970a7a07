//! Lengths of time, rates and counts as people write them.
//!
//! Everything becomes whole numbers, exactly: what is no whole number of microseconds, or no whole
//! count, is an error that says what to write instead. Nothing is rounded.

use std::time::Duration;

use tidegate_core::{MAX_COUNT, MAX_PERIOD, Micros, Rate};

/// Why a text is no length of time, rate or count, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TextError {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: String,
}

impl TextError {
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: help.into(),
        }
    }
}

/// Reads a length of time: `500ms`, `2s`, `15m`, `1h 30m`, `1d`, `1y` (365.25 days).
///
/// # Errors
/// No unit, an unknown unit, a fraction of a microsecond, a month (its length varies), or more
/// than 10 years. Zero is a length of time.
pub fn parse_duration(text: &str) -> Result<Micros, TextError> {
    let trimmed = text.trim();
    let examples = "write a number with a unit, such as 500ms, 2s, 15m, 1h 30m or 1d";
    if trimmed.is_empty() {
        return Err(TextError::new("a length of time is empty", examples));
    }
    if trimmed == "0" {
        return Ok(Micros::ZERO);
    }
    if trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TextError::new(
            format!("`{trimmed}` has no unit"),
            format!("write `{trimmed}s` for seconds, `{trimmed}ms` for milliseconds"),
        ));
    }
    if trimmed.starts_with('-') {
        return Err(TextError::new(format!("`{trimmed}` is negative"), examples));
    }
    if units(trimmed).any(|unit| matches!(unit, "M" | "mo" | "mon" | "month" | "months")) {
        return Err(TextError::new(
            format!("`{trimmed}` counts in months, whose length varies"),
            "write days (30d), or use the quota algorithm with `per: month` for calendar months; \
             minutes are a small `m`",
        ));
    }
    let duration = humantime::parse_duration(trimmed)
        .map_err(|_| TextError::new(format!("`{trimmed}` is no length of time"), examples))?;
    exact_micros(trimmed, duration)
}

/// The units of a text of numbers and units: the runs of letters in it.
fn units(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic())
        .filter(|unit| !unit.is_empty())
}

fn exact_micros(text: &str, duration: Duration) -> Result<Micros, TextError> {
    if !duration.subsec_nanos().is_multiple_of(1_000) {
        return Err(TextError::new(
            format!("`{text}` is no whole number of microseconds"),
            "time is counted in microseconds: 1us is the smallest step",
        ));
    }
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if micros > MAX_PERIOD.0 {
        return Err(TextError::new(
            format!("`{text}` is longer than 10 years"),
            "the longest length of time is 10y, which is 3652.5 days",
        ));
    }
    Ok(Micros(micros))
}

/// Reads a length of time above zero.
///
/// # Errors
/// As [`parse_duration`], and zero.
pub fn parse_period(text: &str) -> Result<Micros, TextError> {
    match parse_duration(text)? {
        Micros::ZERO => Err(TextError::new(
            format!("`{}` is a period of zero", text.trim()),
            "the shortest is 1us",
        )),
        period => Ok(period),
    }
}

/// Reads a count from 0 to 2147483647; underscores may part its digits.
///
/// # Errors
/// A fraction, a sign, anything but decimal digits, or a larger number.
pub fn parse_count(text: &str) -> Result<u32, TextError> {
    let trimmed = text.trim();
    let digits: String = trimmed.chars().filter(|c| *c != '_').collect();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TextError::new(
            format!("`{trimmed}` is no count"),
            format!("write a whole number from 0 to {MAX_COUNT}"),
        ));
    }
    digits
        .parse::<u32>()
        .ok()
        .filter(|count| *count <= MAX_COUNT)
        .ok_or_else(|| {
            TextError::new(
                format!("`{trimmed}` is above {MAX_COUNT}"),
                format!("the largest count is {MAX_COUNT}"),
            )
        })
}

/// Reads a rate: a count, a slash and a period, as in `100/s`, `3/10m`, `100001/day`.
///
/// The period's own count may be left out where it is 1.
///
/// # Errors
/// No slash, a count or period that [`parse_count`] or [`parse_period`] refuses. A count with a
/// fraction is refused with the whole numbers to write.
pub fn parse_rate(text: &str) -> Result<Rate, TextError> {
    let trimmed = text.trim();
    let Some((count, period)) = trimmed.split_once('/') else {
        let unit = trimmed.bytes().all(|byte| byte.is_ascii_digit());
        let guess = if unit && !trimmed.is_empty() {
            trimmed
        } else {
            "100"
        };
        return Err(TextError::new(
            format!("`{trimmed}` is no rate"),
            format!("write a count per period, such as {guess}/s or {guess}/10m"),
        ));
    };
    let (count, period) = (count.trim(), period.trim());
    let with_count = if period.starts_with(|c: char| c.is_alphabetic()) {
        format!("1{period}")
    } else {
        period.to_owned()
    };
    if parse_duration(&with_count) == Ok(Micros::ZERO) {
        return Err(TextError::new(
            format!("`{trimmed}` has a period of zero"),
            "to let nothing through, set the count to 0; the shortest period is 1us",
        ));
    }
    let period = parse_period(&with_count).map_err(|error| {
        TextError::new(format!("in `{trimmed}`: {}", error.message), error.help)
    })?;
    let count = parse_count(count).map_err(|error| {
        let help = whole_rate(count, period).unwrap_or(error.help);
        TextError::new(format!("in `{trimmed}`: {}", error.message), help)
    })?;
    Rate::new(count, period.0)
        .map_err(|error| TextError::new(error.to_string(), "counts end at 2147483647"))
}

/// What to write for a count with a fraction: `1.5` per 1s is 3/2s.
fn whole_rate(count: &str, period: Micros) -> Option<String> {
    let (whole, fraction) = count.split_once('.')?;
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let count: u64 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = gcd(count, scale);
    let (count, scale) = (count / divisor, scale / divisor);
    let period = period.0.checked_mul(scale)?;
    let rate = Rate::new(u32::try_from(count).ok()?, period).ok()?;
    Some(format!(
        "counts are whole numbers; `{rate}` is the same rate"
    ))
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(text: &str) -> Rate {
        parse_rate(text).unwrap()
    }

    #[test]
    fn lengths_of_time_read_as_people_write_them() {
        for (text, micros) in [
            ("1us", 1),
            ("500ms", 500_000),
            ("2s", 2_000_000),
            ("15m", 900_000_000),
            ("15min", 900_000_000),
            ("1h", 3_600_000_000),
            ("1h 30m", 5_400_000_000),
            ("1h30m", 5_400_000_000),
            ("1d", 86_400_000_000),
            ("1day", 86_400_000_000),
            ("1w", 7 * 86_400_000_000),
            ("10y", 315_576_000_000_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_exact_length_of_time_is_an_error_with_a_remedy() {
        for (text, message, help) in [
            ("30", "has no unit", "write `30s`"),
            ("", "is empty", "500ms"),
            (
                "1ns",
                "no whole number of microseconds",
                "1us is the smallest",
            ),
            ("1M", "whose length varies", "per: month"),
            ("2 months", "whose length varies", "per: month"),
            ("11y", "longer than 10 years", "10y"),
            ("-5s", "negative", "500ms"),
            ("5 parsecs", "no length of time", "500ms"),
            ("99999999999999999999s", "no length of time", "500ms"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
            assert!(error.help.contains(help), "{text}: {}", error.help);
        }
        assert!(
            parse_period("0s")
                .unwrap_err()
                .message
                .contains("period of zero")
        );
    }

    #[test]
    fn rates_keep_the_numbers_that_were_written() {
        for (text, count, period) in [
            ("100/s", 100, 1_000_000),
            ("3/10m", 3, 600_000_000),
            ("1/2s", 1, 2_000_000),
            ("700/1m", 700, 60_000_000),
            ("100001/day", 100_001, 86_400_000_000),
            ("1/10y", 1, 315_576_000_000_000),
            ("1_000_000_000 / s", 1_000_000_000, 1_000_000),
            ("0/s", 0, 1_000_000),
            ("5/1h 30m", 5, 5_400_000_000),
        ] {
            assert_eq!(rate(text), Rate::new(count, period).unwrap(), "{text}");
        }
    }

    #[test]
    fn a_rate_that_cannot_be_represented_says_what_to_write() {
        for (text, message, help) in [
            ("100", "no rate", "100/s"),
            ("fast", "no rate", "100/s"),
            ("1.5/s", "no count", "`3/2s` is the same rate"),
            ("0.25/m", "no count", "`1/4m` is the same rate"),
            ("5/0s", "period of zero", "count to 0"),
            ("5/20y", "longer than 10 years", "10y"),
            ("2147483648/s", "above 2147483647", "largest count"),
            ("-1/s", "no count", "whole number"),
            ("5/", "empty", "500ms"),
            ("1/month", "whose length varies", "per: month"),
        ] {
            let error = parse_rate(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
            assert!(error.help.contains(help), "{text}: {}", error.help);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in ".{0,40}", digits in "[0-9./a-zA-Z _µ-]{0,24}") {
            for text in [&text, &digits] {
                let _ = parse_duration(text);
                let _ = parse_rate(text);
                let _ = parse_count(text);
            }
        }

        #[test]
        fn what_is_printed_reads_back_the_same(
            count in 0..=MAX_COUNT,
            period in 1..=MAX_PERIOD.0,
            round in prop::sample::select(vec![1_u64, 1_000, 1_000_000, 60_000_000, 86_400_000_000]),
        ) {
            let period = (period / round * round).max(1);
            prop_assert_eq!(parse_duration(&Micros(period).to_string()), Ok(Micros(period)));
            let rate = Rate::new(count, period).unwrap();
            prop_assert_eq!(parse_rate(&rate.to_string()), Ok(rate));
        }
    }
}

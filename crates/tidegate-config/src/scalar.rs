//! The scalar types of the document: what they read from, and their JSON Schema.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use tidegate_core::{MAX_COUNT, Micros};

use crate::decode::HELP;
use crate::text::{self, TextError};

/// A count, cost or capacity: 0 to 2147483647.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u32);

/// A count per period: `100/s`, `3/10m`, `1/10y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub tidegate_core::Rate);

/// A length of time above zero and up to 10 years: `500ms`, `2s`, `1h 30m`, `1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Micros);

/// A length of time that may be zero, up to 10 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length(pub Micros);

/// Reads any scalar as its text, so that `5` and `"5"` are the same.
pub(crate) fn from_text<'de, D, T>(
    deserializer: D,
    expected: &'static str,
    read: fn(&str) -> Result<T, TextError>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(TextVisitor { expected, read })
}

struct TextVisitor<T> {
    expected: &'static str,
    read: fn(&str) -> Result<T, TextError>,
}

impl<T> de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text)
            .map_err(|error| E::custom(format_args!("{}{HELP}{}", error.message, error.help)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! scalar {
    ($type:ident, $expected:literal, $read:expr, $schema:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text(deserializer, $expected, $read).map(Self)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

/// What a length of time looks like, for editors; the reader is the judge.
const LENGTH_PATTERN: &str = r"^\s*([0-9]+\s*[a-zµ]+\s*)+$";

scalar!(
    Count,
    "a whole number",
    text::parse_count,
    json_schema!({
        "description": "A whole number from 0 to 2147483647; underscores may part its digits.",
        "anyOf": [
            { "type": "integer", "minimum": 0, "maximum": MAX_COUNT },
            { "type": "string", "pattern": "^[0-9_]+$" },
        ],
    })
);

scalar!(
    Rate,
    "a rate such as 100/s or 3/10m",
    text::parse_rate,
    json_schema!({
        "description": "A count per period: `100/s`, `3/10m`, `1/10y`.",
        "type": "string",
        "pattern": r"^\s*[0-9_]+\s*/\s*([0-9]+\s*)?[a-zµ]+(\s*[0-9]+\s*[a-zµ]+)*\s*$",
    })
);

scalar!(
    Period,
    "a length of time such as 500ms, 2s or 1h 30m",
    text::parse_period,
    json_schema!({
        "description": "A length of time above zero and up to 10 years: `500ms`, `2s`, `1h 30m`, `1d`.",
        "type": "string",
        "pattern": LENGTH_PATTERN,
    })
);

scalar!(
    Length,
    "a length of time such as 500ms, 2s or 1h 30m",
    text::parse_duration,
    json_schema!({
        "description": "A length of time up to 10 years, which may be zero: `0`, `500ms`, `2s`.",
        "anyOf": [{ "const": 0 }, { "type": "string", "pattern": LENGTH_PATTERN }],
    })
);

/// A share from 0 to 1, in millionths: `0.5` is 500000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

/// All of it.
const WHOLE: u32 = 1_000_000;

impl Share {
    /// One half.
    pub const HALF: Self = Self(WHOLE / 2);

    /// The share of a number, rounded down.
    #[must_use]
    pub fn of(self, number: u32) -> u32 {
        let share = u64::from(number) * u64::from(self.0) / u64::from(WHOLE);
        u32::try_from(share).unwrap_or(number)
    }
}

fn parse_share(text: &str) -> Result<u32, TextError> {
    let wrong = || {
        TextError::new(
            format!("`{}` is no share", text.trim()),
            "write a number from 0 to 1 with at most 6 decimals, such as 0.5",
        )
    };
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 6 || !digits(whole) || !digits(fraction) {
        return Err(wrong());
    }
    let millionths = format!("{whole}{fraction:0<6}");
    millionths
        .parse()
        .ok()
        .filter(|share| *share <= WHOLE)
        .ok_or_else(wrong)
}

scalar!(
    Share,
    "a share from 0 to 1",
    parse_share,
    json_schema!({
        "description": "A share from 0 to 1 with at most 6 decimals: `0.5`.",
        "type": "number",
        "minimum": 0,
        "maximum": 1,
    })
);

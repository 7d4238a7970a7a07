//! Time zones and calendar spans, as the document writes them.

use std::borrow::Cow;
use std::fmt;

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use crate::scalar::from_text;
use crate::suggest;
use crate::text::TextError;

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CalendarSpan {
    /// A local day: 24 hours, but 23 or 25 where the clock changes.
    Day,
    /// Seven local days.
    Week,
    /// A calendar month.
    Month,
    /// A calendar year.
    Year,
}

impl fmt::Display for CalendarSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        })
    }
}

/// A time zone by its IANA name, such as `Asia/Shanghai`. The default is UTC.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    /// The IANA name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn time_zone(&self) -> &TimeZone {
        &self.zone
    }

    /// Looks a zone up by its IANA name, in any case.
    ///
    /// # Errors
    /// A name that is in no zone of the built-in database.
    pub fn new(name: &str) -> Result<Self, TextError> {
        let database = TimeZoneDatabase::bundled();
        match database.get(name.trim()) {
            Ok(zone) => {
                let name = zone.iana_name().unwrap_or("UTC").to_owned();
                Ok(Self { name, zone })
            }
            Err(_) => {
                let names: Vec<String> = database
                    .available()
                    .map(|name| name.as_str().to_owned())
                    .collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let help = match suggest::nearest(name, &names) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "write an IANA name such as UTC, Europe/Berlin or Asia/Shanghai".into(),
                };
                Err(TextError::new(format!("`{name}` is no time zone"), help))
            }
        }
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self {
            name: "UTC".to_owned(),
            zone: TimeZone::UTC,
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "a time zone such as Europe/Berlin", Self::new)
    }
}

impl JsonSchema for Zone {
    fn schema_name() -> Cow<'static, str> {
        "TimeZone".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time zone by its IANA name, such as `Europe/Berlin`.",
            "type": "string",
        })
    }
}

/// Where in its span a window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartsOn {
    /// For a week: its first day.
    Weekday(Weekday),
    /// For a month: its first day, 1 to 28.
    Day(i8),
    /// For a year: the month and day that it begins on; never 29 February.
    MonthDay(i8, i8),
}

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

impl StartsOn {
    /// The default: Monday, the first of the month, the first of January.
    #[must_use]
    pub const fn first(span: CalendarSpan) -> Self {
        match span {
            CalendarSpan::Day | CalendarSpan::Week => Self::Weekday(Weekday::Monday),
            CalendarSpan::Month => Self::Day(1),
            CalendarSpan::Year => Self::MonthDay(1, 1),
        }
    }

    /// Whether a window of this span can be told where to begin like this. A day cannot be told.
    #[must_use]
    pub(crate) fn suits(self, span: CalendarSpan) -> bool {
        match span {
            CalendarSpan::Day => false,
            CalendarSpan::Week => matches!(self, Self::Weekday(_)),
            CalendarSpan::Month => matches!(self, Self::Day(_)),
            CalendarSpan::Year => matches!(self, Self::MonthDay(..)),
        }
    }

    fn read(text: &str) -> Result<Self, TextError> {
        let text = text.trim();
        let lower = text.to_lowercase();
        if let Some((_, weekday)) = WEEKDAYS.iter().find(|(name, _)| *name == lower) {
            return Ok(Self::Weekday(*weekday));
        }
        if let Ok(day) = text.parse::<i8>()
            && (1..=28).contains(&day)
        {
            return Ok(Self::Day(day));
        }
        if let Some((month, day)) = text.split_once('-')
            && let (Ok(month), Ok(day)) = (month.parse(), day.parse())
            // 2023 has no 29 February: what every year has can begin a year.
            && Date::new(2023, month, day).is_ok()
        {
            return Ok(Self::MonthDay(month, day));
        }
        Err(TextError::new(
            format!("`{text}` is no start of a week, month or year"),
            "write a weekday such as `monday`, a day from 1 to 28, or a month and day such as \
             `04-01`",
        ))
    }
}

impl fmt::Display for StartsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weekday(weekday) => {
                let name = WEEKDAYS.iter().find(|(_, day)| day == weekday);
                f.write_str(name.map_or("monday", |(name, _)| name))
            }
            Self::Day(day) => write!(f, "{day}"),
            Self::MonthDay(month, day) => write!(f, "{month:02}-{day:02}"),
        }
    }
}

impl<'de> Deserialize<'de> for StartsOn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(
            deserializer,
            "a weekday, a day, or a month and day",
            Self::read,
        )
    }
}

impl JsonSchema for StartsOn {
    fn schema_name() -> Cow<'static, str> {
        "StartsOn".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A weekday, a day from 1 to 28, or a month and day such as `04-01`.",
            "anyOf": [
                { "enum": WEEKDAYS.map(|(name, _)| name) },
                { "type": "integer", "minimum": 1, "maximum": 28 },
                { "type": "string", "pattern": "^[0-9]{1,2}(-[0-9]{1,2})?$" },
            ],
        })
    }
}

//! Calls as JSON, one object a line.
//!
//! ```json
//! {"at_ms": 0, "limit": "login", "key": "asha"}
//! {"at_us": 1500, "limit": "login", "key": "asha", "cost": 3, "op": "peek"}
//! {"at_ms": 2, "limits": {"per-user": "asha", "stage": "GET /vips"}, "cost": 1}
//! {"at_ms": 3, "op": "acquire", "limit": "jobs", "key": "k", "permit": "p1"}
//! {"at_ms": 5, "method": "GET", "path": "/vips?user_id=7", "client_ip": "192.0.2.1"}
//! {"at_ms": 9, "op": "set_policy", "limit": "login", "algorithm": {"token_bucket": {"rate": "2/s", "capacity": 10}}}
//! ```
//! A request may say how it was served, for limits that ask: `"status": 401`, and
//! `"duration_ms": 12.5` or `"duration_us"` from `at` to the end of the answer; and who made it:
//! `"user": "asha"`.
//!
//! `key` stands for the whole `key` list of the limit; a key of several parts is an array, in
//! which `null` is a part that is missing. A field that is not known is left out of account, and
//! the reader says so: foreign logs carry many, and a slip in a known one must not stay unseen.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tidegate_config::{AlgorithmConfig, algorithm_from_json};
use tidegate_core::Micros;

use super::fields::Fields;
use super::problem::Fault;
use super::time::parse_length;
use crate::{Key, KeyPart};

/// Reads one line. `unknown` is called with the name of each field that is not known.
///
/// # Errors
/// A line that is no JSON object, or a field of the wrong kind.
pub(crate) fn read<'a>(line: &'a [u8], unknown: &mut dyn FnMut(&str)) -> Result<Fields<'a>, Fault> {
    let text = std::str::from_utf8(line)
        .map_err(|error| Fault::new(error.valid_up_to(), 1, "this byte is no UTF-8"))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer
        .deserialize_map(FieldsVisitor { unknown })
        .and_then(|fields| deserializer.end().map(|()| fields));
    read.map_err(|error| {
        let message = error.to_string();
        // The place is told by the caret; there is only one line.
        let message = message.split(" at line ").next().unwrap_or_default();
        Fault::new(error.column().saturating_sub(1), 1, message)
    })
}

/// Text that is borrowed unless it holds escapes; a number counts as its digits.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
        }

        deserializer.deserialize_any(TextVisitor)
    }
}

/// A key: a text, or the parts of one in an array.
struct AnyKey(Key);

impl<'de> Deserialize<'de> for AnyKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = AnyKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key: a text, or an array of texts and nulls")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(AnyKey(Key::new(text.as_bytes())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(AnyKey(Key::new(number.to_string().as_bytes())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(AnyKey(Key::new(number.to_string().as_bytes())))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(AnyKey(Key::from_parts([KeyPart::Missing])))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let mut key = Key::from_parts([]);
                while let Some(part) = parts.next_element::<Option<Text<'_>>>()? {
                    key.push(match &part {
                        None => KeyPart::Missing,
                        Some(part) => KeyPart::Text(part.0.as_bytes()),
                    });
                }
                Ok(AnyKey(key))
            }
        }

        deserializer.deserialize_any(KeyVisitor)
    }
}

/// The entries of an object, in the order of the file.
struct Entries<'a, V>(Vec<(Cow<'a, str>, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<'de, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(std::marker::PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Entries<'de, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((name, value)) = map.next_entry::<Text<'_>, V>()? {
                    entries.push((name.0, value));
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(std::marker::PhantomData))
    }
}

/// A length of time, as in `"1500ms"`.
struct Length(Micros);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        parse_length(&text.0)
            .map(Self)
            .map_err(|(message, _)| de::Error::custom(message))
    }
}

/// An algorithm, as in `{"token_bucket": {"rate": "2/s", "capacity": 10}}`.
struct Algorithm(AlgorithmConfig);

impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        algorithm_from_json(&value)
            .map(Self)
            .map_err(de::Error::custom)
    }
}

/// A length of time in milliseconds, of which logs write fractions.
pub(super) fn micros_of_millis(millis: f64) -> Result<u64, &'static str> {
    const LONGEST: f64 = 1e15;
    if !(0.0..LONGEST).contains(&millis) {
        return Err("this is not how long a request takes");
    }
    // The bounds keep it within what 53 bits hold.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let micros = (millis * 1e3).round() as u64;
    Ok(micros)
}

struct FieldsVisitor<'u> {
    unknown: &'u mut dyn FnMut(&str),
}

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"at_ms\": 0, \"key\": \"asha\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key::<Text<'_>>()? {
            match &*name.0 {
                "at_ms" | "at_us" => {
                    let scale = if name.0 == "at_ms" { 1_000 } else { 1 };
                    let at: u64 = map.next_value()?;
                    let at = at.checked_mul(scale).ok_or_else(|| {
                        de::Error::custom(
                            "this time is after the year 2112, the last that is counted",
                        )
                    })?;
                    if fields.at.replace(at).is_some() {
                        return Err(de::Error::custom("the time is there twice"));
                    }
                }
                "key" => fields.key = Some(map.next_value::<AnyKey>()?.0),
                "limit" => fields.limit = Some(map.next_value::<Text<'_>>()?.0),
                "limits" => {
                    let entries: Entries<'_, AnyKey> = map.next_value()?;
                    fields.limits = entries
                        .0
                        .into_iter()
                        .map(|(name, key)| (name, key.0))
                        .collect();
                    if fields.limits.is_empty() {
                        return Err(de::Error::custom("limits names no limit"));
                    }
                }
                "cost" => fields.cost = Some(map.next_value()?),
                "op" => fields.op = Some(map.next_value::<Text<'_>>()?.0),
                "permit" => fields.permit = Some(map.next_value::<Text<'_>>()?.0),
                "algorithm" => fields.algorithm = Some(map.next_value::<Algorithm>()?.0),
                "mode" => fields.mode = Some(map.next_value::<Text<'_>>()?.0),
                "for" => fields.period = Some(map.next_value::<Length>()?.0),
                "max_wait" => fields.max_wait = Some(map.next_value::<Length>()?.0),
                "reservation" => fields.reservation = Some(map.next_value::<Text<'_>>()?.0),
                "actual" => fields.actual = Some(map.next_value()?),
                "method" => fields.method = Some(map.next_value::<Text<'_>>()?.0),
                "path" => fields.path = Some(map.next_value::<Text<'_>>()?.0),
                "client_ip" => fields.client_ip = Some(map.next_value::<Text<'_>>()?.0),
                "status" => fields.status = map.next_value::<Option<u16>>()?,
                "user" => fields.user = map.next_value::<Option<Text<'_>>>()?.map(|user| user.0),
                "duration_ms" => {
                    let took = map.next_value::<Option<f64>>()?;
                    fields.took = took
                        .map(micros_of_millis)
                        .transpose()
                        .map_err(de::Error::custom)?;
                }
                "duration_us" => fields.took = map.next_value()?,
                "headers" => {
                    let entries: Entries<'_, Text<'_>> = map.next_value()?;
                    fields.headers = entries
                        .0
                        .into_iter()
                        .map(|(name, value)| (name.to_ascii_lowercase(), value.0.into_owned()))
                        .collect();
                }
                other => {
                    (self.unknown)(other);
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(line: &str) -> Fields<'_> {
        read(line.as_bytes(), &mut |name| panic!("{name} is not known")).unwrap()
    }

    #[test]
    fn every_kind_of_key_is_read() {
        let of = |json: &str| {
            read(format!("{{\"key\": {json}}}").as_bytes(), &mut |_| ())
                .unwrap()
                .key
                .unwrap()
        };
        let parts = |text| super::super::keys::parse(text).unwrap();
        assert_eq!(of("\"asha\""), parts("asha"));
        assert_eq!(of("\"a\\u0000\\\"\""), parts("\"a\\x00\\\"\""));
        assert_eq!(of("17"), parts("17"));
        assert_eq!(of("-17"), parts("-17"));
        assert_eq!(of("null"), parts("[-]"));
        assert_eq!(of("[\"a\", null, 3]"), parts("[a,-,3]"));
    }

    #[test]
    fn limits_keep_the_order_of_the_line() {
        let fields =
            fields(r#"{"at_ms": 2, "limits": {"stage": "GET /vips", "per-user": "asha"}}"#);
        let names: Vec<&str> = fields
            .limits
            .iter()
            .map(|(name, _)| name.as_ref())
            .collect();
        assert_eq!(names, ["stage", "per-user"]);
        assert_eq!(fields.at, Some(2_000));
    }

    #[test]
    fn unknown_fields_are_told_and_wrong_ones_are_refused_at_their_place() {
        let mut seen = Vec::new();
        read(
            br#"{"at_ms": 1, "costs": {"a": []}, "key": "k"}"#,
            &mut |name| {
                seen.push(name.to_owned());
            },
        )
        .unwrap();
        assert_eq!(seen, ["costs"]);
        for (line, message) in [
            ("", "EOF"),
            ("[]", "invalid type: sequence, expected an object"),
            (r#"{"at_ms": -1}"#, "invalid value"),
            (r#"{"at_ms": 1.5}"#, "invalid type"),
            (r#"{"at_ms": 18446744073709551615}"#, "2112"),
            (r#"{"at_ms": 1, "at_us": 1}"#, "twice"),
            (r#"{"limits": {}}"#, "no limit"),
            (r#"{"key": true}"#, "expected a key"),
            (r#"{"algorithm": {"tokenbucket": {}}}"#, "token_bucket"),
            (r#"{"for": "5"}"#, "needs a unit"),
            (r#"{"at_ms": 1} x"#, "trailing"),
        ] {
            let fault = read(line.as_bytes(), &mut |_| ()).unwrap_err();
            assert!(fault.message.contains(message), "{line}: {}", fault.message);
            assert!(!fault.message.contains("at line"), "{}", fault.message);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            text in "[\\{\\}\\[\\]\",:0-9a-z\\\\ ]{0,60}",
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        ) {
            let _ = read(&bytes, &mut |_| ());
            let _ = read(text.as_bytes(), &mut |_| ());
            let mut good = br#"{"at_ms": 9, "op": "set_policy", "limit": "login", "algorithm": {"token_bucket": {"rate": "2/s", "capacity": 10}}}"#.to_vec();
            for (index, byte) in edits {
                let at = index.index(good.len());
                good[at] = byte;
            }
            let _ = read(&good, &mut |_| ());
        }
    }
}

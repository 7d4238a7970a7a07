//! Decodes a tree into typed values, and notes every mistake instead of stopping at the first.
//!
//! Unknown keys are noted as they are met, all of them. Under [`Tried`] a mistake is noted, the
//! field that it is in is left out, and the value is tried again, so that every field is looked
//! at; what cannot be made whole is left out, and what stands beside it is still decoded.

mod access;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use self::access::{Attempt, Choice, Entries, Items};
use crate::node::{Content, Entry, Node};
use crate::report::{Problem, Span};
use crate::suggest;

/// What parts a scalar type's message from its remedy inside one serde error.
///
/// Serde hands on nothing but text; this keeps the text readable for any other deserializer.
pub(crate) const HELP: &str = "\nhelp: ";

/// The name under which [`Tried`] asks the decoder to go on after a mistake.
const TRIED: &str = "$tidegate::Tried";

/// How often one value is tried again, at most: a file with more mistakes shows them in two runs.
const MAX_ATTEMPTS: usize = 32;

/// The name of a struct that may also be written as a single value.
pub(crate) const SHORTHAND: &str = "$tidegate::Shorthand";

/// Decodes `node`; every mistake goes into `problems`. None if nothing could be made of it.
pub(crate) fn decode<'n, T: Deserialize<'n>>(
    node: &'n Node,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let sink = Sink::default();
    let decoder = Decoder {
        node,
        key: None,
        sink: &sink,
    };
    let result = Tried::<T>::deserialize(decoder);
    // An outer attempt repeats the inner ones, and meets again what they met.
    let mut seen = HashSet::new();
    for problem in sink.problems.into_inner() {
        let place = problem.span.map(|span| (span.start, span.end));
        if seen.insert((place, problem.message.clone())) {
            problems.push(problem);
        }
    }
    result.ok().and_then(|tried| tried.0)
}

/// What has been noted so far. Entries are told apart by where they are in memory.
#[derive(Default)]
struct Sink {
    problems: RefCell<Vec<Problem>>,
    /// The entries that hold a mistake and are left out of further attempts.
    broken: RefCell<HashSet<*const Entry>>,
    /// The unknown keys, which every attempt meets again.
    unknown: RefCell<HashSet<*const Entry>>,
}

/// A value that may have been impossible to decode, in which case the mistake is noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried<T>(pub Option<T>);

impl<T> Default for Tried<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Tried<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TriedVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for TriedVisitor<T> {
            type Value = Tried<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut attempt: A) -> Result<Tried<T>, A::Error> {
                for _ in 0..MAX_ATTEMPTS {
                    // An error has been noted and the next attempt goes without its field.
                    if let Ok(value) = attempt.next_element() {
                        return Ok(Tried(value));
                    }
                }
                Ok(Tried(None))
            }
        }
        deserializer.deserialize_newtype_struct(TRIED, TriedVisitor(PhantomData))
    }
}

/// A mistake on its way up to the nearest [`Tried`].
#[derive(Debug)]
pub(crate) struct DecodeError {
    problem: Box<Problem>,
    /// The field that is missing inside a node, where that is the error.
    missing: Option<&'static str>,
    /// The innermost entry whose value is at fault.
    entry: Option<*const Entry>,
    /// Whether the error only follows from one that has been noted.
    follows: bool,
}

impl DecodeError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            problem: Box::new(Problem::error(message)),
            missing: None,
            entry: None,
            follows: false,
        }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.problem.help.push(help.into());
        self
    }

    /// The same error at a node, unless it already has a place.
    fn at(mut self, node: &Node, key: Option<Span>) -> Self {
        if self.problem.span.is_none() {
            let inside = if self.missing.is_some() {
                key.or(node.span)
            } else {
                node.span.or(key)
            };
            self.problem.span = inside;
        }
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        match text.split_once(HELP) {
            Some((message, help)) => Self::new(message).help(help),
            None => Self::new(text),
        }
    }

    fn invalid_type(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("expected {expected}, found {}", found(&unexpected)))
    }

    fn invalid_value(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("expected {expected}, found {}", found(&unexpected)))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("unknown choice `{variant}`"))
            .help(suggest::instead(variant, expected.iter().copied()))
    }

    fn missing_field(field: &'static str) -> Self {
        let mut error =
            Self::new(format!("`{field}` is missing")).help(format!("add `{field}:` here"));
        error.missing = Some(field);
        error
    }
}

fn found(unexpected: &de::Unexpected<'_>) -> String {
    match unexpected {
        de::Unexpected::Str(text) => format!("`{text}`"),
        de::Unexpected::Unit | de::Unexpected::Option => "nothing".to_owned(),
        de::Unexpected::Seq => "a list".to_owned(),
        de::Unexpected::Map => "a map".to_owned(),
        other => other.to_string(),
    }
}

/// One node, offered to a type's `Deserialize`.
#[derive(Clone, Copy)]
struct Decoder<'n, 's> {
    node: &'n Node,
    /// Where the key stands whose value the node is.
    key: Option<Span>,
    sink: &'s Sink,
}

impl<'n> Decoder<'n, '_> {
    fn wrong<T>(self, expected: &dyn de::Expected) -> Result<T, DecodeError> {
        let found = match &self.node.content {
            Content::Scalar(text) => format!("`{text}`"),
            _ => self.node.kind().to_owned(),
        };
        Err(DecodeError::new(format!("expected {expected}, found {found}")).at(self.node, self.key))
    }

    fn unknown_key(self, entry: &Entry, fields: &[&str]) {
        if self
            .sink
            .unknown
            .borrow_mut()
            .insert(std::ptr::from_ref(entry))
        {
            self.sink.problems.borrow_mut().push(
                Problem::error(format!("unknown key `{}`", entry.key))
                    .at(entry.key_span.or(self.node.span))
                    .help(suggest::instead(&entry.key, fields.iter().copied())),
            );
        }
    }

    fn located<T>(self, result: Result<T, DecodeError>) -> Result<T, DecodeError> {
        result.map_err(|error| error.at(self.node, self.key))
    }

    fn scalar(self) -> Option<&'n str> {
        match &self.node.content {
            Content::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// Parses the scalar with `FromStr`, for serde's own types.
    fn parsed<T: std::str::FromStr>(self, expected: &dyn de::Expected) -> Result<T, DecodeError> {
        match self.scalar().and_then(|text| text.parse().ok()) {
            Some(value) => Ok(value),
            None => self.wrong(expected),
        }
    }
}

/// `true` and `false` only: `yes` is a text in today's YAML and a boolean in yesterday's.
fn boolean(decoder: Decoder<'_, '_>) -> Result<bool, DecodeError> {
    match decoder.scalar() {
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        _ => decoder
            .wrong(&"true or false")
            .map_err(|error: DecodeError| error.help("write `true` or `false`, without quotes")),
    }
}

macro_rules! parsed_methods {
    ($($method:ident => $visit:ident),*) => {
        $(fn $method<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let value = self.parsed(&visitor)?;
            let result = visitor.$visit(value);
            self.located(result)
        })*
    };
}

impl<'n> Deserializer<'n> for Decoder<'n, '_> {
    type Error = DecodeError;

    parsed_methods!(
        deserialize_i8 => visit_i8, deserialize_i16 => visit_i16, deserialize_i32 => visit_i32,
        deserialize_i64 => visit_i64, deserialize_u8 => visit_u8, deserialize_u16 => visit_u16,
        deserialize_u32 => visit_u32, deserialize_u64 => visit_u64, deserialize_f32 => visit_f32,
        deserialize_f64 => visit_f64, deserialize_char => visit_char
    );

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let value = boolean(self)?;
        self.located(visitor.visit_bool(value))
    }

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.content {
            Content::Null => self.located(visitor.visit_unit()),
            Content::Scalar(_) => self.deserialize_str(visitor),
            Content::List(_) => self.deserialize_seq(visitor),
            Content::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.scalar() {
            Some(text) => self.located(visitor.visit_borrowed_str(text)),
            None => self.wrong(&visitor),
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.content {
            Content::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.content {
            Content::Null => visitor.visit_unit(),
            _ => self.wrong(&visitor),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'n>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let result = if name == TRIED {
            visitor.visit_seq(Attempt { decoder: self })
        } else {
            visitor.visit_newtype_struct(self)
        };
        self.located(result)
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let items = match &self.node.content {
            Content::List(items) => items.as_slice(),
            Content::Scalar(text) => {
                let error = DecodeError::new(format!("expected a list, found `{text}`"))
                    .help(format!("a list stands in brackets: [{text}]"));
                return self.located(Err(error));
            }
            _ => return self.wrong(&visitor),
        };
        self.located(visitor.visit_seq(Items {
            items: items.iter(),
            decoder: self,
        }))
    }

    fn deserialize_tuple<V: Visitor<'n>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'n>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let Content::Map(entries) = &self.node.content else {
            return self.wrong(&visitor);
        };
        self.located(visitor.visit_map(Entries::new(entries.iter().collect(), self)))
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let entries = match &self.node.content {
            Content::Map(entries) => entries.as_slice(),
            // `token_bucket:` with nothing behind it: say what is missing.
            Content::Null => &[],
            Content::Scalar(_) if name == SHORTHAND => return self.deserialize_str(visitor),
            _ => {
                let error =
                    DecodeError::new(format!("expected a map, found {}", self.node.kind())).help(
                        format!("its keys are {}", suggest::list(fields.iter().copied())),
                    );
                return self.located(Err(error));
            }
        };
        let mut known = Vec::with_capacity(entries.len());
        let mut left_out = Vec::new();
        for entry in entries {
            let name = entry.key.as_str();
            if !fields.contains(&name) {
                self.unknown_key(entry, fields);
            } else if self
                .sink
                .broken
                .borrow()
                .contains(&std::ptr::from_ref(entry))
            {
                left_out.push(name);
            } else if !known.iter().any(|known: &&Entry| known.key == name) {
                // A second entry of the same key has been reported with the file.
                known.push(entry);
            }
        }
        let mut result = visitor.visit_map(Entries::new(known, self));
        if let Err(error) = &mut result
            && error.missing.is_some_and(|field| left_out.contains(&field))
        {
            error.follows = true;
        }
        self.located(result)
    }

    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let result = match &self.node.content {
            Content::Scalar(text) => visitor.visit_enum(Choice {
                name: text,
                value: None,
                decoder: self,
            }),
            Content::Map(entries) if entries.len() == 1 => {
                let entry = &entries[0];
                let choice = Choice {
                    name: &entry.key,
                    value: Some(entry),
                    decoder: self,
                };
                visitor.visit_enum(choice).map_err(|mut error| {
                    error.problem.span = error.problem.span.or(entry.key_span);
                    error
                })
            }
            content => {
                let how_many = match content {
                    Content::Map(entries) if !entries.is_empty() => "several at once",
                    _ => self.node.kind(),
                };
                Err(
                    DecodeError::new(format!("expected one choice, found {how_many}")).help(
                        format!("choose one of {}", suggest::list(variants.iter().copied())),
                    ),
                )
            }
        };
        self.located(result)
    }

    fn deserialize_ignored_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }
}

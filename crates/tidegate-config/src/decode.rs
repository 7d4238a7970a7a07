//! Decodes a tree into typed values, and notes every mistake instead of stopping at the first.
//!
//! Unknown keys are noted as they are met, all of them. A value under [`Tried`] that cannot be
//! decoded is noted and left out, and what stands beside it is still decoded.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::{Deserialize, Deserializer};

use crate::node::{Content, Entry, Node};
use crate::report::{Problem, Span};
use crate::suggest;

/// What parts a scalar type's message from its remedy inside one serde error.
///
/// Serde hands on nothing but text; this keeps the text readable for any other deserializer.
pub(crate) const HELP: &str = "\nhelp: ";

/// The name under which [`Tried`] asks the decoder to go on after a mistake.
const TRIED: &str = "$tidegate::Tried";

/// Decodes `node`; every mistake goes into `problems`. None if nothing could be made of it.
pub(crate) fn decode<'n, T: Deserialize<'n>>(
    node: &'n Node,
    key: Option<Span>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let sink = RefCell::new(Vec::new());
    let result = T::deserialize(Decoder {
        node,
        key,
        sink: &sink,
    });
    problems.append(&mut sink.into_inner());
    result
        .map_err(|error| problems.extend(error.into_problem(node, key)))
        .ok()
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
                // The decoder has noted the error.
                Ok(Tried(attempt.next_element().ok().flatten()))
            }
        }
        deserializer.deserialize_newtype_struct(TRIED, TriedVisitor(PhantomData))
    }
}

/// A mistake on its way up to the nearest [`Tried`].
#[derive(Debug)]
pub(crate) struct DecodeError {
    problem: Problem,
    /// Whether the error is about what is missing inside a node rather than about the node.
    missing: bool,
}

impl DecodeError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            problem: Problem::error(message),
            missing: false,
        }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.problem = self.problem.help(help);
        self
    }

    /// The same error at a node, unless it already has a place.
    fn at(mut self, node: &Node, key: Option<Span>) -> Self {
        if self.problem.span.is_none() {
            let inside = if self.missing {
                key.or(node.span)
            } else {
                node.span.or(key)
            };
            self.problem.span = inside;
        }
        self
    }

    fn into_problem(self, node: &Node, key: Option<Span>) -> Option<Problem> {
        Some(self.at(node, key).problem)
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
        Self::new(format!("`{variant}` is none of what can stand here"))
            .help(suggest::instead(variant, expected.iter().copied()))
    }

    fn missing_field(field: &'static str) -> Self {
        let mut error =
            Self::new(format!("`{field}` is missing")).help(format!("add `{field}:` here"));
        error.missing = true;
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
    sink: &'s RefCell<Vec<Problem>>,
}

impl<'n> Decoder<'n, '_> {
    fn wrong<T>(self, expected: &dyn de::Expected) -> Result<T, DecodeError> {
        let found = match &self.node.content {
            Content::Scalar(text) => format!("`{text}`"),
            _ => self.node.kind().to_owned(),
        };
        Err(DecodeError::new(format!("expected {expected}, found {found}")).at(self.node, self.key))
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
        deserialize_bool => visit_bool,
        deserialize_i8 => visit_i8, deserialize_i16 => visit_i16, deserialize_i32 => visit_i32,
        deserialize_i64 => visit_i64, deserialize_u8 => visit_u8, deserialize_u16 => visit_u16,
        deserialize_u32 => visit_u32, deserialize_u64 => visit_u64, deserialize_f32 => visit_f32,
        deserialize_f64 => visit_f64, deserialize_char => visit_char
    );

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
                let error = DecodeError::new(format!(
                    "expected {}, found `{text}`",
                    &visitor as &dyn de::Expected
                ))
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
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let entries = match &self.node.content {
            Content::Map(entries) => entries.as_slice(),
            // `token_bucket:` with nothing behind it: say what is missing.
            Content::Null => &[],
            _ => {
                let error =
                    DecodeError::new(format!("expected a map, found {}", self.node.kind())).help(
                        format!("its keys are {}", suggest::list(fields.iter().copied())),
                    );
                return self.located(Err(error));
            }
        };
        let mut known = Vec::with_capacity(entries.len());
        let mut seen = HashSet::new();
        for entry in entries {
            if !fields.contains(&entry.key.as_str()) {
                self.sink.borrow_mut().push(
                    Problem::error(format!("unknown key `{}`", entry.key))
                        .at(entry.key_span.or(self.node.span))
                        .help(suggest::instead(&entry.key, fields.iter().copied())),
                );
            } else if seen.insert(entry.key.as_str()) {
                // A second entry of the same key has been reported with the file.
                known.push(entry);
            }
        }
        self.located(visitor.visit_map(Entries::new(known, self)))
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
                visitor
                    .visit_enum(choice)
                    .map_err(|error| match entry.key_span {
                        Some(span) if error.problem.span.is_none() => DecodeError {
                            problem: error.problem.at(Some(span)),
                            missing: false,
                        },
                        _ => error,
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

/// One attempt at a value, whose mistake is noted and not handed on.
struct Attempt<'n, 's> {
    decoder: Decoder<'n, 's>,
}

impl<'n> SeqAccess<'n> for Attempt<'n, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Decoder { node, key, sink } = self.decoder;
        match seed.deserialize(self.decoder) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                sink.borrow_mut().extend(error.into_problem(node, key));
                Ok(None)
            }
        }
    }
}

struct Items<'n, 's> {
    items: std::slice::Iter<'n, Node>,
    decoder: Decoder<'n, 's>,
}

impl<'n> SeqAccess<'n> for Items<'n, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some(node) = self.items.next() else {
            return Ok(None);
        };
        seed.deserialize(Decoder {
            node,
            ..self.decoder
        })
        .map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'n, 's> {
    entries: std::vec::IntoIter<&'n Entry>,
    value: Option<&'n Entry>,
    decoder: Decoder<'n, 's>,
}

impl<'n, 's> Entries<'n, 's> {
    fn new(entries: Vec<&'n Entry>, decoder: Decoder<'n, 's>) -> Self {
        Self {
            entries: entries.into_iter(),
            value: None,
            decoder,
        }
    }
}

impl<'n> MapAccess<'n> for Entries<'n, '_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'n>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some(entry);
        let key = de::value::BorrowedStrDeserializer::<DecodeError>::new(&entry.key);
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'n>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError> {
        let Some(entry) = self.value.take() else {
            return Err(DecodeError::new("a value was asked for before its key"));
        };
        seed.deserialize(Decoder {
            node: &entry.value,
            key: entry.key_span,
            ..self.decoder
        })
    }
}

/// One variant of an externally tagged enum: a bare name, or a name with a value.
struct Choice<'n, 's> {
    name: &'n str,
    value: Option<&'n Entry>,
    decoder: Decoder<'n, 's>,
}

impl<'n, 's> EnumAccess<'n> for Choice<'n, 's> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'n>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self), DecodeError> {
        let name: de::value::StrDeserializer<'_, DecodeError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'n, 's> Choice<'n, 's> {
    fn value(&self) -> Result<Decoder<'n, 's>, DecodeError> {
        match self.value {
            Some(entry) => Ok(Decoder {
                node: &entry.value,
                key: entry.key_span,
                ..self.decoder
            }),
            None => Err(
                DecodeError::new(format!("`{}` needs its numbers", self.name))
                    .help(format!("write it as a map: {}: {{ ... }}", self.name)),
            ),
        }
    }
}

impl<'n> VariantAccess<'n> for Choice<'n, '_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        match self.value {
            None => Ok(()),
            Some(entry) if matches!(entry.value.content, Content::Null) => Ok(()),
            Some(_) => Err(DecodeError::new(format!("`{}` stands alone", self.name))
                .help(format!("write just `{}`", self.name))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'n>>(
        self,
        seed: T,
    ) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.value()?)
    }

    fn tuple_variant<V: Visitor<'n>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.value()?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'n>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.value()?.deserialize_struct("", fields, visitor)
    }
}

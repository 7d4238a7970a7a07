//! What a decoder hands to a visitor: attempts, items, entries and choices.

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::{DecodeError, Decoder};
use crate::node::{Content, Entry, Node};

/// One attempt at a value, whose mistake is noted and not handed on.
pub(super) struct Attempt<'n, 's> {
    pub(super) decoder: Decoder<'n, 's>,
}

impl<'n> SeqAccess<'n> for Attempt<'n, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Decoder { node, key, sink } = self.decoder;
        let error = match seed.deserialize(self.decoder) {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error.at(node, key),
        };
        if !error.follows {
            sink.problems.borrow_mut().push((*error.problem).clone());
        }
        match error.entry {
            Some(entry) if sink.broken.borrow_mut().insert(entry) => Err(error),
            _ => Ok(None),
        }
    }
}

pub(super) struct Items<'n, 's> {
    pub(super) items: std::slice::Iter<'n, Node>,
    pub(super) decoder: Decoder<'n, 's>,
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

pub(super) struct Entries<'n, 's> {
    pub(super) entries: std::vec::IntoIter<&'n Entry>,
    pub(super) value: Option<&'n Entry>,
    pub(super) decoder: Decoder<'n, 's>,
}

impl<'n, 's> Entries<'n, 's> {
    pub(super) fn new(entries: Vec<&'n Entry>, decoder: Decoder<'n, 's>) -> Self {
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
        let value = Decoder {
            node: &entry.value,
            key: entry.key_span,
            ..self.decoder
        };
        seed.deserialize(value).map_err(|error| {
            let mut error = error.at(value.node, value.key);
            error.entry.get_or_insert(std::ptr::from_ref(entry));
            // What is missing further in is no missing field of this map.
            error.missing = None;
            error
        })
    }
}

/// One variant of an externally tagged enum: a bare name, or a name with a value.
pub(super) struct Choice<'n, 's> {
    pub(super) name: &'n str,
    pub(super) value: Option<&'n Entry>,
    pub(super) decoder: Decoder<'n, 's>,
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

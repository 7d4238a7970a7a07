//! Keys by number: each distinct key of a limit is stored once and everything else names it by
//! its number, so that memory grows with the keys of a trace and not with its lines.
//!
//! A key has a text form too, for timelines and tables: the bare bytes of its only part
//! (`asha`), in quotes where they could be misread (`"GET /vips"`), and in brackets where there
//! are several parts, one is missing, or none at all (`[198.18.0.2,/login]`, `[-]`, `[]`).

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::{Key, KeyPart};

/// The number of a key within its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyNumber(u32);

impl KeyNumber {
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Position in a table that has one entry per key.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// All keys of one limit.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    numbers: HashTable<u32>,
    keys: Vec<Key>,
    hasher: DefaultHashBuilder,
}

impl KeyTable {
    /// The number of a key, which is new if the key has not been seen.
    pub(crate) fn number(&mut self, key: &Key) -> KeyNumber {
        let Self {
            numbers,
            keys,
            hasher,
        } = self;
        let hash = hasher.hash_one(key.as_bytes());
        if let Some(found) = numbers.find(hash, |at| keys[*at as usize] == *key) {
            return KeyNumber(*found);
        }
        let number = u32::try_from(keys.len()).expect("4 billion keys do not fit into memory");
        keys.push(key.clone());
        numbers.insert_unique(hash, number, |at| {
            hasher.hash_one(keys[*at as usize].as_bytes())
        });
        KeyNumber(number)
    }

    /// The key of a number.
    pub(crate) fn key(&self, number: KeyNumber) -> &Key {
        &self.keys[number.index()]
    }

    /// How many distinct keys have been seen.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

/// A key in its text form.
pub(crate) struct KeyText<'a>(pub &'a Key);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.parts();
        if let (Some(KeyPart::Text(part)), None) = (parts.next(), parts.next()) {
            return f.pad(&word(part));
        }
        let mut text = String::from("[");
        for (position, part) in self.0.parts().enumerate() {
            if position > 0 {
                text.push(',');
            }
            match part {
                KeyPart::Missing => text.push('-'),
                KeyPart::Text(part) => text.push_str(&word(part)),
            }
        }
        text.push(']');
        f.pad(&text)
    }
}

/// One part as text, in quotes unless it can only be read as itself.
fn word(part: &[u8]) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"\\=[],".contains(c);
    match std::str::from_utf8(part) {
        Ok(text) if !text.is_empty() && text != "-" && !text.starts_with('#') => {
            if text.chars().all(plain) {
                text.to_owned()
            } else {
                quoted(part)
            }
        }
        _ => quoted(part),
    }
}

/// Bytes in quotes: `\"`, `\\`, and `\xNN` for what is not printable text.
fn quoted(part: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in part.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => {
                    let mut buffer = [0; 4];
                    for byte in c.encode_utf8(&mut buffer).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.push('"');
    text
}

/// Reads a key's text form.
///
/// # Errors
/// The byte offset in `text` and what is wrong there.
pub(crate) fn parse(text: &str) -> Result<Key, (usize, &'static str)> {
    let mut buffer = Vec::new();
    let Some(inside) = text.strip_prefix('[') else {
        let length = part(text, "", &mut buffer)?;
        if length < text.len() {
            return Err((length, "a quote may only stand around the whole key"));
        }
        return Ok(Key::new(&buffer));
    };
    let Some(inside) = inside.strip_suffix(']') else {
        return Err((text.len(), "a key that begins with [ ends with ]"));
    };
    let mut key = Key::from_parts([]);
    if inside.is_empty() {
        return Ok(key);
    }
    let mut at = 0;
    loop {
        buffer.clear();
        let length = part(&inside[at..], ",", &mut buffer).map_err(|(o, e)| (o + at + 1, e))?;
        let missing = &inside[at..at + length] == "-";
        key.push(if missing {
            KeyPart::Missing
        } else {
            KeyPart::Text(&buffer)
        });
        at += length;
        match inside.as_bytes().get(at) {
            None => return Ok(key),
            Some(b',') => at += 1,
            Some(_) => return Err((at + 1, "a quote may only stand around a whole part")),
        }
    }
}

/// Reads one part, up to a byte of `stops` or the end; returns how many bytes it took.
fn part(text: &str, stops: &str, out: &mut Vec<u8>) -> Result<usize, (usize, &'static str)> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'"') {
        let length = text.find(|c| stops.contains(c)).unwrap_or(text.len());
        if length == 0 {
            return Err((0, "a key is missing here; an empty one is written \"\""));
        }
        if let Some(at) = text[..length].find(['"', '\\']) {
            return Err((
                at,
                "a key with a quote or a backslash needs quotes around it",
            ));
        }
        out.extend_from_slice(&bytes[..length]);
        return Ok(length);
    }
    let mut at = 1;
    loop {
        match bytes.get(at) {
            None => return Err((0, "this quote is never closed")),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => {
                let (byte, length) = match (bytes.get(at + 1), bytes.get(at + 2..at + 4)) {
                    (Some(c @ (b'"' | b'\\')), _) => (*c, 2),
                    (Some(b'n'), _) => (b'\n', 2),
                    (Some(b't'), _) => (b'\t', 2),
                    (Some(b'x'), Some(&[high, low])) => match (hex(high), hex(low)) {
                        (Some(high), Some(low)) => (high << 4 | low, 4),
                        _ => return Err((at, "\\x is followed by two hexadecimal digits")),
                    },
                    _ => return Err((at, "the escapes are \\\", \\\\, \\n, \\t and \\xNN")),
                };
                out.push(byte);
                at += length;
            }
            Some(byte) => {
                out.push(*byte);
                at += 1;
            }
        }
    }
}

/// The value of a hexadecimal digit.
pub(crate) const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_have_one_number_each_and_keep_their_parts_apart() {
        let mut table = KeyTable::default();
        let first = table.number(&parse("[a,bc]").unwrap());
        let second = table.number(&parse("[ab,c]").unwrap());
        assert_ne!(first, second);
        assert_eq!(table.number(&parse("[a,bc]").unwrap()), first);
        assert_ne!(
            table.number(&parse("[-]").unwrap()),
            table.number(&parse("-").unwrap())
        );
        assert_eq!(table.len(), 4);
        assert_eq!(KeyText(table.key(first)).to_string(), "[a,bc]");
    }

    #[test]
    fn faulty_keys_are_refused_at_the_place_of_the_fault() {
        for (text, offset) in [
            ("", 0),
            ("\"a", 0),
            ("\"a\"b", 3),
            ("[a", 2),
            ("[a,]", 3),
            ("a\\b", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().0, offset, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_text_of_a_key_reads_back_as_the_key(
            parts in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..12)), 0..4)
        ) {
            let key = Key::from_parts(
                parts.iter().map(|part| part.as_deref().map_or(KeyPart::Missing, KeyPart::Text)),
            );
            let text = KeyText(&key).to_string();
            prop_assert_eq!(parse(&text), Ok(key), "{}", text);
        }

        #[test]
        fn no_text_makes_the_key_reader_panic(text in "\\PC{0,20}", hostile in "[\\[\\],\"\\\\x0-]{0,12}") {
            let _ = parse(&text);
            let _ = parse(&hostile);
        }
    }
}

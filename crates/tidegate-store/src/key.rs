//! Keys: the parts whose state is counted, joined so that no two lists of parts are one key.

use std::fmt;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

/// Bytes before the text of a part: its tag and its length.
const HEADER: usize = 5;

/// The tag bytes of parts.
const MISSING: u8 = 0;
const PRESENT: u8 = 1;

/// One part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart<'a> {
    /// The request has no such part: all requests without it share a key.
    Missing,
    /// The bytes of the part; an empty part is not a missing one.
    Text(&'a [u8]),
}

/// Whose state is counted.
///
/// Each part is a tag byte, a length and its bytes. Nothing joins the parts, so no text in one
/// part can look like the border to the next.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(SmallVec<[u8; 64]>);

impl Key {
    /// A key of one part.
    #[must_use]
    pub fn new(part: impl AsRef<[u8]>) -> Self {
        Self::from_parts([KeyPart::Text(part.as_ref())])
    }

    /// A key of several parts, in order. Without any it is the one key of a limit for all.
    #[must_use]
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = KeyPart<'a>>) -> Self {
        let mut key = Self(SmallVec::new());
        for part in parts {
            key.push(part);
        }
        key
    }

    /// Appends a part.
    pub fn push(&mut self, part: KeyPart<'_>) {
        match part {
            KeyPart::Missing => self.0.push(MISSING),
            KeyPart::Text(bytes) => {
                self.0.push(PRESENT);
                // A part is a piece of a request, which no door lets grow to 4 GiB.
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                self.0.extend_from_slice(&length.to_be_bytes());
                self.0.extend_from_slice(bytes);
            }
        }
    }

    /// The parts, in order.
    #[must_use]
    pub fn parts(&self) -> Parts<'_> {
        Parts(&self.0)
    }

    /// The encoded parts.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text of a key of one part that is not missing.
    fn only_part(&self) -> Option<&[u8]> {
        let (header, text) = self.0.split_first_chunk::<HEADER>()?;
        let [PRESENT, length @ ..] = header else {
            return None;
        };
        let length = u32::from_be_bytes(*length);
        (usize::try_from(length) == Ok(text.len())).then_some(text)
    }
}

/// The parts of a [`Key`], in order.
#[derive(Clone, Debug)]
pub struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = KeyPart<'a>;

    fn next(&mut self) -> Option<KeyPart<'a>> {
        let (tag, rest) = self.0.split_first()?;
        if *tag == 0 {
            self.0 = rest;
            return Some(KeyPart::Missing);
        }
        let (length, rest) = rest
            .split_first_chunk::<4>()
            .expect("a tag of a present part is followed by its length");
        let (part, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        self.0 = rest;
        Some(KeyPart::Text(part))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

/// What a memory table keeps instead of a key: 64 bits that nobody can foresee without the seed.
///
/// Two keys that share all of them share a state, which can only deny too much. Among a million
/// keys that happens once in 37 million tables; among ten million, once in 370 thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Takes a hash that was made elsewhere; all its bits must be uniform.
    #[must_use]
    pub const fn new(hash: u64) -> Self {
        // 0 marks a free slot.
        Self(if hash == 0 { 1 } else { hash })
    }

    /// The hash; never 0.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Hashes keys under a seed.
///
/// A key of one part, the usual one, is hashed by its text alone and under a seed of its own: so
/// it needs no encoding, and still no other key has its hash but by chance.
#[derive(Clone)]
pub struct KeyHasher {
    one_part: SipHasher13,
    any_parts: SipHasher13,
    seed: (u64, u64),
}

impl KeyHasher {
    /// Takes a seed of its own from the operating system.
    #[must_use]
    pub fn random() -> Self {
        use std::hash::BuildHasher as _;
        // The standard library draws these keys from the operating system, once per thread, and
        // hands them out through this hasher only.
        let draw = |n: u8| std::collections::hash_map::RandomState::new().hash_one(n);
        Self::with_seed((draw(0), draw(1)))
    }

    /// Takes a seed, for repeatable runs.
    #[must_use]
    pub fn with_seed(seed: (u64, u64)) -> Self {
        Self {
            seed,
            one_part: SipHasher13::new_with_keys(seed.0, seed.1),
            any_parts: SipHasher13::new_with_keys(!seed.0, seed.1),
        }
    }

    /// The seed. Who knows it can make keys that share a state: for snapshots only.
    #[must_use]
    pub const fn seed(&self) -> (u64, u64) {
        self.seed
    }

    /// The hash of a key.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &Key) -> KeyHash {
        match key.only_part() {
            Some(part) => self.hash_part(part),
            None => KeyHash::new(self.any_parts.hash(key.as_bytes())),
        }
    }

    /// The hash of a key of one part, without making the key.
    #[inline]
    #[must_use]
    pub fn hash_part(&self, part: &[u8]) -> KeyHash {
        KeyHash::new(self.one_part.hash(part))
    }
}

impl fmt::Debug for KeyHasher {
    /// Writes nothing of the seed: who knows it can make keys collide.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_key_are_those_it_was_made_of() {
        let parts = [
            KeyPart::Text(b"a\x01"),
            KeyPart::Missing,
            KeyPart::Text(b""),
        ];
        let key = Key::from_parts(parts);
        assert!(key.parts().eq(parts));
        assert_eq!(Key::from_parts([]).parts().next(), None);
    }

    #[test]
    fn no_text_in_one_part_can_look_like_two_parts() {
        let joined = Key::from_parts([KeyPart::Text(b"bob_path=/login")]);
        let apart = Key::from_parts([KeyPart::Text(b"bob"), KeyPart::Text(b"/login")]);
        assert_ne!(joined, apart);
        let forged = [b"bob".as_slice(), &[1, 0, 0, 0, 6], b"/login"].concat();
        assert_ne!(Key::new(forged), apart);
    }

    #[test]
    fn a_missing_part_is_not_an_empty_one() {
        assert_ne!(Key::from_parts([KeyPart::Missing]), Key::new(b""));
        assert_ne!(Key::from_parts([]), Key::from_parts([KeyPart::Missing]));
    }

    #[test]
    fn a_part_hashes_like_the_key_of_that_part() {
        let hasher = KeyHasher::random();
        for length in 0..200 {
            let part = vec![b'x'; length];
            assert_eq!(hasher.hash_part(&part), hasher.hash(&Key::new(&part)));
        }
    }

    #[test]
    fn hashes_depend_on_the_seed() {
        let key = Key::new(b"bob");
        assert_ne!(
            KeyHasher::random().hash(&key),
            KeyHasher::random().hash(&key)
        );
        let fixed = KeyHasher::with_seed((1, 2));
        assert_eq!(fixed.hash(&key), fixed.hash(&key));
    }
}

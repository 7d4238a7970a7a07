//! Keys: the parts whose state is counted, joined so that no two lists of parts are one key.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

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
            KeyPart::Missing => self.0.push(0),
            KeyPart::Text(bytes) => {
                self.0.push(1);
                // A part is a piece of a request, which no door lets grow to 4 GiB.
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                self.0.extend_from_slice(&length.to_be_bytes());
                self.0.extend_from_slice(bytes);
            }
        }
    }

    /// The encoded parts.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
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
#[derive(Clone)]
pub struct KeyHasher {
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
        Self {
            seed: (draw(0), draw(1)),
        }
    }

    /// Takes a seed, for repeatable runs.
    #[must_use]
    pub const fn with_seed(seed: (u64, u64)) -> Self {
        Self { seed }
    }

    /// The hash of a key.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &Key) -> KeyHash {
        self.hash_bytes(key.as_bytes())
    }

    /// The hash of a key that is given by its encoded bytes.
    #[inline]
    #[must_use]
    pub fn hash_bytes(&self, bytes: &[u8]) -> KeyHash {
        let mut hasher = SipHasher13::new_with_keys(self.seed.0, self.seed.1);
        hasher.write(bytes);
        KeyHash::new(hasher.finish())
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

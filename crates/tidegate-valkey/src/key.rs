//! What the server's keys are called.
//!
//! `PREFIX:{TAG}:LIMIT:` then a letter for the algorithm and the parts of the key, in bytes:
//!
//! | part | bytes |
//! |---|---|
//! | missing | `00` |
//! | present, up to 64 bytes | `01`, its length in one byte, its bytes |
//! | present, longer | `02`, 16 bytes of its hash |
//!
//! Nothing joins parts, so no text in one can look like the border to the next. The letter keeps
//! another algorithm's states apart, so that a change of the algorithm starts afresh, and that
//! processes which have not seen the change yet do not undo it. It is a small one where the limit
//! is only watched: what is watched never counts against anyone.

use std::hash::Hasher as _;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher13;
use tidegate_core::Policy;
use tidegate_store::{Key, KeyPart};

/// Longer parts are replaced by their hash.
const MAX_PART: usize = 64;

/// How many characters a tag has: 24 bits over 16384 slots.
const TAG: usize = 4;

const TAG_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Names the keys of all limits that share a server. All processes that share limits must have the
/// same.
#[derive(Clone, Debug)]
pub struct KeySpace {
    prefix: Box<[u8]>,
    secret: Secret,
}

/// Hides itself: who knows it can make keys that meet on one node.
#[derive(Clone)]
struct Secret(Arc<[u8]>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Default for KeySpace {
    /// The prefix `tg1` and no secret.
    fn default() -> Self {
        Self::new("tg1", b"")
    }
}

impl KeySpace {
    /// Takes what all keys begin with, and a secret that their hashes are made with.
    ///
    /// The secret keeps strangers from choosing keys that all lie on one node of a cluster; without
    /// one, hashes are the same everywhere. The states of keys are found again only under the same
    /// prefix and secret. In the prefix, braces count as underlines: they would mark the tag.
    #[must_use]
    pub fn new(prefix: &str, secret: &[u8]) -> Self {
        let prefix = prefix.replace(['{', '}'], "_");
        Self {
            prefix: prefix.into_bytes().into(),
            secret: Secret(secret.into()),
        }
    }

    /// What all keys begin with, as a pattern of the server's has it: its special characters are
    /// any character there.
    pub(crate) fn prefix(&self) -> String {
        let special = |c: char| "*?[]\\^ ".contains(c) || c.is_control();
        String::from_utf8_lossy(&self.prefix).replace(special, "?")
    }

    /// The name of a key of a limit on the server.
    ///
    /// `slot` is what decides where in a cluster it lies: limits that are asked together should
    /// have the same. Without one it is the key itself, so that limits which count the same lie
    /// together.
    pub(crate) fn name(
        &self,
        limit: &str,
        algorithm: u8,
        shadow: bool,
        key: &Key,
        slot: Option<&Key>,
    ) -> Vec<u8> {
        let mut name =
            Vec::with_capacity(self.prefix.len() + limit.len() + key.as_bytes().len() + TAG + 6);
        name.extend_from_slice(&self.prefix);
        name.extend_from_slice(b":{");
        name.extend_from_slice(&self.tag(slot.unwrap_or(key)));
        name.extend_from_slice(b"}:");
        push_name(&mut name, limit);
        name.push(b':');
        name.push(if shadow {
            algorithm.to_ascii_lowercase()
        } else {
            algorithm
        });
        for part in key.parts() {
            self.push_part(&mut name, part);
        }
        name
    }

    fn tag(&self, key: &Key) -> [u8; TAG] {
        let mut hasher = SipHasher13::new();
        hasher.write(&self.secret.0);
        hasher.write(key.as_bytes());
        let hash = hasher.finish();
        std::array::from_fn(|place| TAG_ALPHABET[(hash >> (6 * place)) as usize % 64])
    }

    fn push_part(&self, name: &mut Vec<u8>, part: KeyPart<'_>) {
        match part {
            KeyPart::Missing => name.push(0),
            KeyPart::Text(text) => match u8::try_from(text.len()) {
                Ok(length) if text.len() <= MAX_PART => {
                    name.extend_from_slice(&[1, length]);
                    name.extend_from_slice(text);
                }
                _ => {
                    let hash = Sha256::new()
                        .chain_update((self.secret.0.len() as u64).to_be_bytes())
                        .chain_update(&self.secret.0)
                        .chain_update(text)
                        .finalize();
                    name.push(2);
                    name.extend_from_slice(&hash[..16]);
                }
            },
        }
    }
}

/// Appends a limit's name. Control characters could look like the parts that follow, so they are
/// escaped.
fn push_name(out: &mut Vec<u8>, limit: &str) {
    for byte in limit.bytes() {
        if byte < b' ' || byte == b'%' {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
}

/// The letter of a policy's algorithm in the names of its keys.
pub(crate) const fn algorithm_letter(policy: &Policy) -> u8 {
    match policy {
        Policy::TokenBucket(_) => b'B',
        Policy::IntervalBucket(_) => b'I',
        Policy::LeakyBucket(_) => b'Q',
        Policy::FixedWindow(_) => b'F',
        Policy::SlidingLog(_) => b'L',
        Policy::StrictWindow(_) => b'S',
        Policy::InterpolatedWindow(_) => b'W',
        Policy::Concurrency(_) => b'P',
        Policy::Lockout(_) => b'X',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn name(limit: &str, parts: &[KeyPart<'_>]) -> Vec<u8> {
        let key = Key::from_parts(parts.iter().copied());
        KeySpace::default().name(limit, b'B', false, &key, None)
    }

    fn tag(name: &[u8]) -> Vec<u8> {
        let open = name.iter().position(|byte| *byte == b'{').unwrap();
        name[open + 1..open + 1 + TAG].to_vec()
    }

    #[test]
    fn a_name_has_a_tag_the_limit_and_the_parts_with_their_lengths() {
        let name = name("login", &[KeyPart::Text(b"bob"), KeyPart::Missing]);
        let text = name.escape_ascii().to_string();
        assert_eq!(&text[..5], "tg1:{");
        assert_eq!(&text[9..], "}:login:B\\x01\\x03bob\\x00");
    }

    #[test]
    fn no_two_limits_and_keys_share_a_name() {
        let long = [b'a'; 200];
        let lists: [&[KeyPart<'_>]; 10] = [
            &[],
            &[KeyPart::Missing],
            &[KeyPart::Text(b"")],
            &[KeyPart::Text(b"a"), KeyPart::Text(b"b")],
            &[KeyPart::Text(b"ab")],
            &[KeyPart::Text(b"a\x01\x01b")],
            &[KeyPart::Text(&long)],
            &[KeyPart::Text(&long[..199])],
            &[KeyPart::Text(&long[..64])],
            &[KeyPart::Text(b":B\x01\x01a")],
        ];
        let limits = ["a", "a:B", "a:B\u{1}", "a%3AB", "a:B%01", ""];
        let mut names = HashSet::new();
        for limit in limits {
            for list in lists {
                assert!(names.insert(name(limit, list)), "{limit:?} {list:?}");
            }
        }
    }

    #[test]
    fn limits_that_count_the_same_key_lie_together_and_others_are_spread() {
        let parts = [KeyPart::Text(b"bob")];
        assert_eq!(tag(&name("a", &parts)), tag(&name("b", &parts)));
        let tags: HashSet<_> = (0..1000_u32)
            .map(|n| tag(&name("a", &[KeyPart::Text(&n.to_be_bytes())])))
            .collect();
        assert!(tags.len() > 990, "{} tags", tags.len());
    }

    #[test]
    fn a_slot_brings_different_keys_together() {
        let (space, slot) = (KeySpace::default(), Key::new("tenant"));
        let named = |key: &str| space.name("a", b'B', false, &Key::new(key), Some(&slot));
        assert_eq!(tag(&named("bob")), tag(&named("eve")));
        assert_ne!(named("bob"), named("eve"));
    }

    #[test]
    fn a_secret_and_a_prefix_make_other_names() {
        let key = Key::from_parts([KeyPart::Text(&[b'x'; 100])]);
        let named = |space: KeySpace| space.name("a", b'B', false, &key, None);
        let plain = named(KeySpace::default());
        assert_ne!(plain, named(KeySpace::new("tg1", b"secret")));
        assert!(named(KeySpace::new("a{b}", b"")).starts_with(b"a_b_:{"));
        assert!(!format!("{:?}", KeySpace::new("tg1", b"hush")).contains("hush"));
    }
}

//! What the key of a call can be made of.

use std::borrow::Cow;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_store::{Key, KeyHash, KeyHasher, KeyPart};

/// What can say whose state is counted: text, bytes, numbers, addresses, and tuples of them.
///
/// | value | key |
/// |---|---|
/// | text, bytes | one part |
/// | a number, an address | one part, as it is written: `7` and `"7"` are one key |
/// | `Some(value)`, `None` | the value; a part that is missing, which is not an empty one |
/// | a tuple | the parts of its members, in order: `("acme", 7)` is not `"acme7"` |
/// | `()` | no part: the one key of a limit for all |
/// | [`Key`] | itself |
///
/// A key of one part is hashed where it lies, without making a [`Key`].
///
/// For a type of your own, append what it consists of:
///
/// ```
/// use tidegate::{Key, Limiter, Rate, ToKey, TokenBucket};
///
/// struct Caller { tenant: String, user: u64 }
///
/// impl ToKey for Caller {
///     fn push_to(&self, key: &mut Key) {
///         (&self.tenant, self.user).push_to(key);
///     }
/// }
///
/// let limit = Limiter::new(TokenBucket::new(Rate::per_second(10)?, 1)?);
/// let caller = Caller { tenant: "acme".into(), user: 7 };
/// assert!(limit.try_take(&caller, 1).is_allowed());
/// assert!(!limit.try_take(("acme", 7), 1).is_allowed());
/// assert!(limit.try_take("acme7", 1).is_allowed());
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
pub trait ToKey {
    /// Appends the parts of this value to a key.
    fn push_to(&self, key: &mut Key);

    /// This value as a key of its own.
    fn to_key(&self) -> Key {
        let mut key = Key::from_parts([]);
        self.push_to(&mut key);
        key
    }

    /// The hash of [`Self::to_key`]; a value of one part need not make it.
    #[doc(hidden)]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        hasher.hash(&self.to_key())
    }
}

impl ToKey for [u8] {
    fn push_to(&self, key: &mut Key) {
        key.push(KeyPart::Text(self));
    }

    #[inline]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        hasher.hash_part(self)
    }
}

impl ToKey for Key {
    fn push_to(&self, key: &mut Key) {
        for part in self.parts() {
            key.push(part);
        }
    }

    #[inline]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        hasher.hash(self)
    }
}

/// Whatever is a borrowed form of a key in the end.
macro_rules! as_another {
    ($($type:ty => |$value:ident| $other:expr;)+) => {$(
        impl ToKey for $type {
            fn push_to(&self, key: &mut Key) {
                let $value = self;
                $other.push_to(key);
            }

            #[inline]
            fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
                let $value = self;
                $other.hash_with(hasher)
            }
        }
    )+};
}

as_another! {
    str => |text| text.as_bytes();
    String => |text| text.as_bytes();
    Cow<'_, str> => |text| text.as_bytes();
    Box<str> => |text| text.as_bytes();
    Rc<str> => |text| text.as_bytes();
    Arc<str> => |text| text.as_bytes();
    Vec<u8> => |bytes| bytes.as_slice();
    bool => |value| if *value { "true" } else { "false" };
    char => |value| value.encode_utf8(&mut [0; 4]).as_bytes();
    Ipv4Addr => |address| written(address).as_slice();
    Ipv6Addr => |address| written(address).as_slice();
    IpAddr => |address| written(address).as_slice();
}

impl<const N: usize> ToKey for [u8; N] {
    fn push_to(&self, key: &mut Key) {
        self.as_slice().push_to(key);
    }

    #[inline]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        hasher.hash_part(self)
    }
}

/// Integers are their decimal digits.
macro_rules! as_digits {
    ($($type:ty)+) => {$(
        impl ToKey for $type {
            fn push_to(&self, key: &mut Key) {
                written(self).as_slice().push_to(key);
            }

            fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
                hasher.hash_part(&written(self))
            }
        }
    )+};
}

as_digits! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize }

/// A number or address as it is written, on the stack: none is longer.
fn written(value: &impl std::fmt::Display) -> SmallVec<[u8; 64]> {
    let mut text = SmallVec::new();
    write!(text, "{value}").expect("writing to memory does not fail");
    text
}

impl<T: ToKey + ?Sized> ToKey for &T {
    fn push_to(&self, key: &mut Key) {
        (**self).push_to(key);
    }

    #[inline]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        (**self).hash_with(hasher)
    }
}

impl<T: ToKey> ToKey for Option<T> {
    fn push_to(&self, key: &mut Key) {
        match self {
            Some(value) => value.push_to(key),
            None => key.push(KeyPart::Missing),
        }
    }
}

impl ToKey for KeyPart<'_> {
    fn push_to(&self, key: &mut Key) {
        key.push(*self);
    }
}

impl ToKey for () {
    fn push_to(&self, _key: &mut Key) {}
}

/// Tuples are their members' parts in order.
macro_rules! as_parts {
    ($(($($member:ident)+))+) => {$(
        impl<$($member: ToKey),+> ToKey for ($($member,)+) {
            fn push_to(&self, key: &mut Key) {
                #[expect(non_snake_case, reason = "members are named by their types")]
                let ($($member,)+) = self;
                $($member.push_to(key);)+
            }
        }
    )+};
}

as_parts! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_hashes_like_the_key_that_it_makes() {
        fn check(value: impl ToKey) {
            let hasher = KeyHasher::with_seed((1, 2));
            assert_eq!(value.hash_with(&hasher), hasher.hash(&value.to_key()));
        }
        check("user-7");
        check(String::from("user-7"));
        check(b"bytes");
        check([1_u8, 2, 3].as_slice());
        check(u64::MAX);
        check(i128::MIN);
        check(IpAddr::from([203, 0, 113, 7]));
        check('ä');
        check(Some("x"));
        check(None::<&str>);
        check(("acme", 7, None::<u8>));
        check(());
        check(Key::new("user-7"));
    }

    #[test]
    fn numbers_and_addresses_are_the_text_that_people_write() {
        assert_eq!(7_u8.to_key(), "7".to_key());
        assert_eq!(i64::MIN.to_key(), "-9223372036854775808".to_key());
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(address.to_key(), Key::new("2001:db8::1"));
    }

    #[test]
    fn no_member_of_a_tuple_can_run_into_the_next() {
        assert_ne!(("ab", "c").to_key(), ("a", "bc").to_key());
        assert_ne!(("a", None::<&str>).to_key(), ("a", "").to_key());
        assert_ne!(("a",).to_key(), ("a", "").to_key());
        assert_eq!(("a",).to_key(), "a".to_key());
        assert_eq!(("a", ("b", "c")).to_key(), ("a", "b", "c").to_key());
    }
}

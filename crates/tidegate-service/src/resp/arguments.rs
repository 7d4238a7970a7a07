//! Arguments as numbers and names, with errors that say what was meant.

use tidegate::{LeaseId, Wait};

use super::frame::Command;
use super::reply::{Replies, quote};

/// What every command says to too few or too many arguments.
pub(crate) fn wrong_number(name: &str, replies: &mut Replies<'_>) {
    replies.error(&format!(
        "ERR wrong number of arguments for '{name}' command"
    ));
}

/// A number without sign at a place of a command.
#[inline]
pub(crate) fn number(
    command: Command<'_>,
    place: usize,
    name: &str,
    least: u32,
    most: u32,
) -> Result<u32, String> {
    let text = command.get(place).unwrap_or_default();
    match digits(text) {
        Some(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!(
            "ERR {name} must be a whole number from {least} to {most}, not {}",
            quote(text)
        )),
    }
}

/// A number of at most ten digits.
#[inline]
fn digits(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 10 {
        return None;
    }
    let mut value = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    u32::try_from(value).ok()
}

/// A lease's name, as [`lease_text`] writes it.
pub(crate) fn lease(text: &[u8]) -> Result<LeaseId, String> {
    let read = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    read.and_then(|text| u128::from_str_radix(text, 16).ok())
        .map(LeaseId)
        .ok_or_else(|| {
            format!(
                "ERR a lease is named by the 32 hexadecimal digits of its grant, not by {}",
                quote(text)
            )
        })
}

/// The name of a lease for clients.
pub(crate) fn lease_text(lease: LeaseId) -> String {
    format!("{:032x}", lease.0)
}

/// A wait in milliseconds, rounded up; -1 for ever.
#[inline]
pub(crate) fn millis(wait: Wait) -> i64 {
    wait.as_micros().map_or(-1, |micros| {
        i64::try_from(micros.div_ceil(1_000)).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        assert_eq!(digits(b"0"), Some(0));
        assert_eq!(digits(b"4294967295"), Some(u32::MAX));
        for wrong in [
            "",
            "-1",
            "+1",
            " 1",
            "1.0",
            "1e3",
            "4294967296",
            "00000000001",
        ] {
            assert_eq!(digits(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_lease_is_named_as_it_was_granted() {
        let id = LeaseId(0x1f);
        assert_eq!(lease(lease_text(id).as_bytes()), Ok(id));
        for wrong in [
            "",
            "1f",
            "+000000000000000000000000000001f",
            &"g".repeat(32),
        ] {
            assert!(lease(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}

//! The one spelling of a path that routing, keys and the upstream see.
//!
//! Dot segments are resolved, empty segments collapse, percent-encoded unreserved characters are
//! decoded, other escapes are written in upper case, and an encoded slash or NUL is refused. A
//! trailing slash stays, because an upstream may answer it differently; [`segments`] ignores it,
//! so that it never makes another route or another key.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// Why a path has no canonical spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    /// The request target does not begin with a slash.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    /// A percent sign without two hexadecimal digits.
    #[error("the path has a percent sign that is not followed by two hexadecimal digits")]
    BadEscape,
    /// `%2F`: nobody can tell whether the upstream takes it for a separator.
    #[error("the path has an encoded slash")]
    EncodedSlash,
    /// `%00`: ends the path for some upstreams and not for others.
    #[error("the path has an encoded NUL")]
    EncodedNul,
}

/// Returns the canonical spelling of `path`, borrowed where it already is.
///
/// # Errors
/// A path that does not begin with a slash, a broken escape, an encoded slash or NUL.
///
/// Source: RFC 3986, sections 5.2.4 and 6.2.2.
pub fn canonical(path: &str) -> Result<Cow<'_, str>, PathFault> {
    if !path.starts_with('/') {
        return Err(PathFault::NotAbsolute);
    }
    if is_canonical(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let mut kept: Vec<String> = Vec::new();
    let mut trailing_slash = false;
    for raw in path[1..].split('/') {
        let segment = normalise(raw)?;
        trailing_slash = matches!(segment.as_str(), "" | "." | "..");
        match segment.as_str() {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    let mut whole = String::with_capacity(path.len());
    for segment in &kept {
        whole.push('/');
        whole.push_str(segment);
    }
    if whole.is_empty() || trailing_slash {
        whole.push('/');
    }
    Ok(Cow::Owned(whole))
}

/// The segments of a canonical path, still escaped, without the empty one of a trailing slash.
pub fn segments(canonical: &str) -> impl Iterator<Item = &str> {
    without_slashes(canonical)
        .split('/')
        .filter(|segment| !segment.is_empty())
}

/// The part of a canonical path that begins with the segment `skipped`, without a trailing slash.
///
/// Empty where the path has no more segments than that.
#[must_use]
pub fn tail(canonical: &str, skipped: usize) -> &str {
    let mut rest = without_slashes(canonical);
    for _ in 0..skipped {
        rest = rest.split_once('/').map_or("", |(_, rest)| rest);
    }
    rest
}

/// The bytes that a piece of a canonical path stands for, borrowed where nothing is escaped.
#[must_use]
pub fn decoded(piece: &str) -> Cow<'_, [u8]> {
    percent_decode(piece.as_bytes()).into()
}

fn without_slashes(canonical: &str) -> &str {
    let path = canonical.strip_prefix('/').unwrap_or(canonical);
    path.strip_suffix('/').unwrap_or(path)
}

/// Whether nothing would change: the path of nearly every request.
fn is_canonical(path: &[u8]) -> bool {
    let mut previous = 0;
    for &byte in path {
        if !is_plain(byte) || (previous == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        previous = byte;
    }
    true
}

/// One segment with its escapes normalised and what must not stand raw escaped.
fn normalise(raw: &str) -> Result<String, PathFault> {
    let bytes = raw.as_bytes();
    let mut out = String::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if byte != b'%' {
            push(&mut out, byte, is_plain(byte));
            at += 1;
            continue;
        }
        let (Some(high), Some(low)) = (digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) else {
            return Err(PathFault::BadEscape);
        };
        let value = high << 4 | low;
        match value {
            b'/' => return Err(PathFault::EncodedSlash),
            0 => return Err(PathFault::EncodedNul),
            _ => push(&mut out, value, is_unreserved(value)),
        }
        at += 3;
    }
    Ok(out)
}

fn push(out: &mut String, byte: u8, plain: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if plain {
        out.push(char::from(byte));
    } else {
        out.push('%');
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

fn digit(byte: Option<&u8>) -> Option<u8> {
    let value = char::from(*byte?).to_digit(16)?;
    u8::try_from(value).ok()
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a byte may stand in a path as it is: RFC 3986's pchar without `%`, and the slash.
const fn is_plain(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(
            byte,
            b'/' | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_spelling_of_one_path_becomes_the_same_path() {
        for spelling in [
            "/api/login",
            "//api/login",
            "/api//login",
            "/api/./login",
            "/api/%6Cogin",
            "/api/%6cogin",
            "/x/../api/login",
            "/%2e%2E/api/login",
            "/../../api/login",
            "/x/%2e./api/login",
        ] {
            assert_eq!(canonical(spelling).unwrap(), "/api/login", "{spelling}");
        }
    }

    #[test]
    fn letter_case_and_reserved_escapes_stay_different() {
        assert_eq!(canonical("/API/login").unwrap(), "/API/login");
        assert_eq!(canonical("/a%3ab").unwrap(), "/a%3Ab");
        assert_eq!(canonical("/a%252Fb").unwrap(), "/a%252Fb");
    }

    #[test]
    fn a_trailing_slash_stays_and_makes_no_segment() {
        for (spelling, result) in [
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/", "/"),
            ("/..", "/"),
        ] {
            assert_eq!(canonical(spelling).unwrap(), result, "{spelling}");
        }
        assert_eq!(segments("/a/b/").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(segments("/").count(), 0);
        assert_eq!(tail("/a/b/c/", 1), "b/c");
        assert_eq!(tail("/a/b", 2), "");
    }

    #[test]
    fn an_encoded_slash_or_nul_and_a_broken_escape_are_refused() {
        assert_eq!(canonical("/a%2fb"), Err(PathFault::EncodedSlash));
        assert_eq!(canonical("/a%2F"), Err(PathFault::EncodedSlash));
        assert_eq!(canonical("/a%00"), Err(PathFault::EncodedNul));
        for broken in ["/%", "/%4", "/%zz", "/a%+1"] {
            assert_eq!(canonical(broken), Err(PathFault::BadEscape), "{broken}");
        }
        assert_eq!(canonical("*"), Err(PathFault::NotAbsolute));
        assert_eq!(canonical(""), Err(PathFault::NotAbsolute));
    }

    #[test]
    fn what_must_not_stand_raw_is_escaped() {
        assert_eq!(canonical("/a\\b|c\"").unwrap(), "/a%5Cb%7Cc%22");
        assert_eq!(canonical("/ä").unwrap(), "/%C3%A4");
    }

    proptest! {
        #[test]
        fn the_canonical_path_is_its_own_canonical_path(path in "/(([a-z.%/~ü\\\\]|%2[EeFf5]|%[0-9a-f]{2}){0,24})") {
            if let Ok(first) = canonical(&path) {
                prop_assert_eq!(canonical(&first).unwrap(), first.clone());
                prop_assert!(first.starts_with('/'));
                prop_assert!(!first.contains("//"));
                for segment in segments(&first) {
                    prop_assert!(segment != "." && segment != "..");
                }
            }
        }
    }
}

//! The `match` of a route: a method and a path with parameters.
//!
//! Two patterns are the same if they match the same requests, whatever their parameters are
//! called. Literals are compared on what they stand for: `/a:b` and `/a%3Ab` are the same path.

use std::fmt;

use http::Method;

use crate::suggest;
use crate::text::TextError;

/// A method, or any, and a path: `GET /orders/{id}`, `ANY /files/{path+}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePattern {
    text: String,
    method: Option<Method>,
    segments: Vec<Segment>,
}

/// One part of a path between slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Exactly these bytes, percent-decoded.
    Literal(Vec<u8>),
    /// Any one segment.
    One(String),
    /// All segments that are left.
    Rest(String),
}

impl Segment {
    /// The name of the parameter, if it is one.
    #[must_use]
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::One(name) | Self::Rest(name) => Some(name),
        }
    }
}

/// The registered methods that a reverse proxy can route; CONNECT asks for a tunnel.
const METHODS: [&str; 38] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "QUERY",
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "COPY",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "ORDERPATCH",
    "PROPFIND",
    "PROPPATCH",
    "REBIND",
    "REPORT",
    "SEARCH",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

impl RoutePattern {
    /// Reads a method and a path.
    ///
    /// # Errors
    /// An unknown method, a path that no canonical request path can match, and parameters that are
    /// no whole segment, not last, or named twice.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (method, path) = match words[..] {
            [method, path] => (method, path),
            [path] if path.starts_with('/') => {
                return Err(TextError::new(
                    format!("`{path}` has no method"),
                    format!("write `GET {path}`, or `ANY {path}` for every method"),
                ));
            }
            _ => {
                return Err(TextError::new(
                    format!("`{text}` is not a method and a path"),
                    "write a match such as `GET /orders/{id}` or `ANY /files/{path+}`",
                ));
            }
        };
        let method = read_method(method)?;
        let segments = read_path(path)?;
        let method_text = method.as_ref().map_or("ANY", Method::as_str);
        Ok(Self {
            text: format!("{method_text} {path}"),
            method,
            segments,
        })
    }

    /// The pattern with one space between method and path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The method; none for any.
    #[must_use]
    pub const fn method(&self) -> Option<&Method> {
        self.method.as_ref()
    }

    /// The path, segment by segment. A slash at its end makes none.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The names of the parameters, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(Segment::parameter)
    }

    /// What makes two patterns match the same requests: everything but the parameters' names.
    pub(crate) fn identity(&self) -> (Option<&str>, Vec<(u8, &[u8])>) {
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Literal(bytes) => (0, bytes.as_slice()),
            Segment::One(_) => (1, [].as_slice()),
            Segment::Rest(_) => (2, [].as_slice()),
        });
        (self.method.as_ref().map(Method::as_str), segments.collect())
    }
}

impl fmt::Display for RoutePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn read_method(text: &str) -> Result<Option<Method>, TextError> {
    if text == "ANY" {
        return Ok(None);
    }
    if METHODS.contains(&text) {
        let method = Method::from_bytes(text.as_bytes());
        return method.map(Some).map_err(|_| {
            TextError::new(
                format!("`{text}` is no HTTP method"),
                "write GET, POST or ANY",
            )
        });
    }
    let help = if text.eq_ignore_ascii_case("CONNECT") {
        "a reverse proxy opens no tunnels; `ANY` does not match CONNECT either".to_owned()
    } else {
        let upper = text.to_uppercase();
        let known: Vec<&str> = METHODS.iter().copied().chain(["ANY"]).collect();
        let near = known
            .iter()
            .find(|name| **name == upper)
            .copied()
            .or_else(|| suggest::nearest(&upper, &known));
        match near {
            Some(near) => format!("did you mean `{near}`? methods are in capital letters"),
            None => "write a registered method such as GET or POST, or ANY for all".to_owned(),
        }
    };
    Err(TextError::new(format!("`{text}` is no HTTP method"), help))
}

fn read_path(path: &str) -> Result<Vec<Segment>, TextError> {
    let wrong = |message: String, help: &str| Err(TextError::new(message, help));
    let Some(rest) = path.strip_prefix('/') else {
        return wrong(
            format!("the path `{path}` does not begin with a slash"),
            "write `/` first",
        );
    };
    if let Some(at) = path.find(['?', '#']) {
        let query = &path[at..];
        return wrong(
            format!("`{query}` is no part of a path"),
            "routes match on the path alone; a limit can count by `query.NAME`",
        );
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let mut segments = Vec::new();
    for word in rest.split('/').filter(|_| !rest.is_empty()) {
        if let Some(Segment::Rest(name)) = segments.last() {
            return wrong(
                format!("the path goes on after `{{{name}+}}`"),
                "a `+` parameter takes the whole rest of the path and stands last",
            );
        }
        segments.push(read_segment(word)?);
    }
    for (at, segment) in segments.iter().enumerate() {
        if let Some(name) = segment.parameter()
            && segments[..at]
                .iter()
                .any(|earlier| earlier.parameter() == Some(name))
        {
            return wrong(
                format!("two parameters have the name `{name}`"),
                "give each parameter of a path its own name",
            );
        }
    }
    Ok(segments)
}

fn read_segment(word: &str) -> Result<Segment, TextError> {
    let wrong = |message: String, help: &str| Err(TextError::new(message, help));
    if word.contains(['{', '}']) {
        let inner = word
            .strip_prefix('{')
            .and_then(|word| word.strip_suffix('}'));
        let (name, rest) = match inner.and_then(|inner| inner.strip_suffix('+')) {
            Some(name) => (name, true),
            None => (inner.unwrap_or(""), false),
        };
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || !name.chars().all(named) {
            return wrong(
                format!("`{word}` is no parameter"),
                "a parameter is a whole segment, `{name}` or `{name+}`, of letters, digits, `_`, \
                 `-` and `.`",
            );
        }
        let name = name.to_owned();
        return Ok(if rest {
            Segment::Rest(name)
        } else {
            Segment::One(name)
        });
    }
    if let Some(name) = word.strip_prefix(':') {
        return wrong(
            format!("`{word}` would match itself only"),
            &format!("write a parameter as `{{{name}}}`"),
        );
    }
    if word.contains('*') {
        return wrong(
            format!("`{word}` would match itself only"),
            "write the whole rest of a path as `{path+}`, one segment as `{name}`",
        );
    }
    let decoded = decode(word)?;
    match decoded.as_slice() {
        b"" => wrong(
            "the path has an empty segment".to_owned(),
            "write one slash; requests with several are made canonical first",
        ),
        b"." | b".." => wrong(
            format!("no request path contains `{word}` once it is canonical"),
            "write the path that it leads to",
        ),
        bytes if bytes.iter().any(|byte| matches!(byte, 0 | b'/')) => wrong(
            format!("`{word}` encodes a slash or a zero byte, which no request may"),
            "write the path without it",
        ),
        _ => Ok(Segment::Literal(decoded)),
    }
}

/// Decodes percent signs; what must not stand in a path is an error.
fn decode(word: &str) -> Result<Vec<u8>, TextError> {
    let mut decoded = Vec::with_capacity(word.len());
    let mut bytes = word.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match byte {
            b'%' => match (hex(bytes.next()), hex(bytes.next())) {
                (Some(high), Some(low)) => decoded.push(u8::try_from(high * 16 + low).unwrap_or(0)),
                _ => {
                    return Err(TextError::new(
                        format!("`{word}` has a percent sign without two digits"),
                        "write a percent sign itself as `%25`",
                    ));
                }
            },
            // Text in other scripts is matched by its UTF-8, as clients send it.
            0x21..=0x7e | 0x80.. => decoded.push(byte),
            _ => {
                return Err(TextError::new(
                    "the path contains a control character",
                    "write it as a percent sign and two digits",
                ));
            }
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pattern_is_a_method_and_a_path() {
        let pattern = RoutePattern::parse("GET  /orders/{id}/files/{path+}").unwrap();
        assert_eq!(pattern.as_str(), "GET /orders/{id}/files/{path+}");
        assert_eq!(pattern.method(), Some(&Method::GET));
        assert_eq!(pattern.parameters().collect::<Vec<_>>(), ["id", "path"]);
        assert_eq!(pattern.segments().len(), 4);
        assert_eq!(RoutePattern::parse("ANY /").unwrap().segments(), []);
    }

    #[test]
    fn patterns_are_the_same_if_they_match_the_same_requests() {
        let same = |a: &str, b: &str| {
            let (a, b) = (
                RoutePattern::parse(a).unwrap(),
                RoutePattern::parse(b).unwrap(),
            );
            a.identity() == b.identity()
        };
        assert!(same("GET /a/{x}", "GET /a/{y}"));
        assert!(same("GET /a:b", "GET /%61%3Ab"));
        assert!(same("GET /a/", "GET /a"));
        assert!(!same("GET /a/{x}", "GET /a/{x+}"));
        assert!(!same("GET /a", "ANY /a"));
        assert!(!same("GET /a", "GET /A"));
    }

    #[test]
    fn a_pattern_that_cannot_match_says_what_to_write() {
        for (text, message, help) in [
            ("/vips", "has no method", "`ANY /vips`"),
            ("GET", "not a method and a path", "GET /orders/{id}"),
            ("get /vips", "no HTTP method", "`GET`"),
            ("GTE /vips", "no HTTP method", "`GET`"),
            ("CONNECT /vips", "no HTTP method", "tunnels"),
            ("GET vips", "does not begin", "`/` first"),
            ("GET /a?b=1", "no part of a path", "query.NAME"),
            ("GET /a//b", "empty segment", "one slash"),
            ("GET /a/../b", "canonical", "leads to"),
            ("GET /a%2Fb", "encodes a slash", "without it"),
            ("GET /a%2", "percent sign", "%25"),
            ("GET /:id", "match itself only", "`{id}`"),
            ("GET /a/*", "match itself only", "{path+}"),
            ("GET /a{id}", "no parameter", "whole segment"),
            ("GET /{}", "no parameter", "whole segment"),
            ("GET /{a+}/b", "goes on after", "stands last"),
            ("GET /{a}/{a}", "two parameters", "own name"),
        ] {
            let error = RoutePattern::parse(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
            assert!(error.help.contains(help), "{text}: {}", error.help);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,30}", path in "[A-Z]{0,4} [/{}+%a.0-9]{0,20}") {
            let _ = RoutePattern::parse(&text);
            let _ = RoutePattern::parse(&path);
        }
    }
}

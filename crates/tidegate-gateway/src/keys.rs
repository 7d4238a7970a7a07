//! Whose state a limit counts, read from a request.
//!
//! A part that the request does not have is *missing*: all such requests share one key, and the
//! limit counts them. Query names and values are decoded first (`+` is a space): `user%5Fid=a` is
//! `user_id=a`. A query parameter, a header or a cookie that comes more than once with different
//! values is refused: whichever counted here, the upstream might go by the other, and a caller
//! would have a fresh key for every request.

use std::borrow::Cow;

use http::HeaderName;
use http::header::{COOKIE, HeaderMap};
use percent_encoding::percent_decode;
use tidegate_config::model::KeyPart;
use tidegate_config::{RoutePattern, Segment};

use crate::canonical;
use crate::identity::AddressKey;

/// A key part made ready for one route.
#[derive(Clone, Debug)]
pub enum Source {
    /// The client's address.
    ClientIp,
    /// A text that is known beforehand.
    Fixed(Box<str>),
    /// One segment of the path.
    Segment(usize),
    /// The path from a segment on.
    Rest(usize),
    /// A query parameter.
    Query(Box<str>),
    /// A header field.
    Header(HeaderName),
    /// A cookie.
    Cookie(Box<str>),
}

/// What of a request a key can be made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The client's address, cut to its prefix.
    pub client: &'a AddressKey,
    /// The canonical path.
    pub path: &'a str,
    /// The query as it came, without the question mark.
    pub query: Option<&'a str>,
    /// The header fields, without those of one connection.
    pub headers: &'a HeaderMap,
}

impl Source {
    /// Makes a key part ready for a route. None where requests to it never have such a part: the
    /// route's path lacks the parameter, or this version cannot read the part.
    #[must_use]
    pub fn new(part: &KeyPart, route: &RoutePattern) -> Option<Self> {
        Some(match part {
            KeyPart::ClientIp => Self::ClientIp,
            KeyPart::MethodAndRoute => Self::Fixed(route.as_str().into()),
            KeyPart::Path(name) => {
                let is_it = |segment: &Segment| segment.parameter() == Some(name);
                let place = route.segments().iter().position(is_it)?;
                match route.segments()[place] {
                    Segment::Rest(_) => Self::Rest(place),
                    _ => Self::Segment(place),
                }
            }
            KeyPart::Query(name) => Self::Query(name.as_str().into()),
            KeyPart::Header(name) => Self::Header(name.clone()),
            KeyPart::Cookie(name) => Self::Cookie(name.as_str().into()),
            KeyPart::Constant(text) => Self::Fixed(text.as_str().into()),
            KeyPart::Principal | KeyPart::ApiKey | KeyPart::Form(_) | KeyPart::Jwt(_) => {
                return None;
            }
        })
    }

    /// Whether the request has the part more than once, with different values.
    #[must_use]
    pub fn is_ambiguous(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::Query(name) => facts
                .query
                .is_some_and(|query| differ(query_values(query, name))),
            Self::Header(name) => differ(facts.headers.get_all(name).iter()),
            Self::Cookie(name) => differ(cookies(facts.headers, name)),
            Self::ClientIp | Self::Fixed(_) | Self::Segment(_) | Self::Rest(_) => false,
        }
    }

    /// Reads the part; none where the request does not have it.
    #[must_use]
    pub fn read<'a>(&'a self, facts: &Facts<'a>) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::ClientIp => Some(Cow::Borrowed(facts.client.as_bytes())),
            Self::Fixed(text) => Some(Cow::Borrowed(text.as_bytes())),
            Self::Segment(place) => canonical::segments(facts.path)
                .nth(*place)
                .map(canonical::decoded),
            Self::Rest(place) => Some(canonical::decoded(canonical::tail(facts.path, *place))),
            Self::Query(name) => query_values(facts.query?, name).next(),
            Self::Header(name) => facts
                .headers
                .get(name)
                .map(|value| Cow::Borrowed(value.as_bytes())),
            Self::Cookie(name) => cookies(facts.headers, name).next().map(Cow::Borrowed),
        }
    }
}

/// Whether not all values are the same.
fn differ<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    values
        .next()
        .is_some_and(|first| values.any(|other| other != first))
}

/// The values of a query parameter, decoded; empty where there is no `=`.
fn query_values<'a>(query: &'a str, name: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    query.split('&').filter_map(move |pair| {
        let (raw_name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let is_plain = !raw_name.contains(['%', '+']);
        let matches = if is_plain {
            raw_name == name
        } else {
            form_decoded(raw_name) == name.as_bytes()
        };
        matches.then(|| form_decoded(value))
    })
}

/// Source: the `application/x-www-form-urlencoded` parser of the URL standard.
fn form_decoded(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Cow::Owned(percent_decode(spaced.as_bytes()).collect());
    }
    percent_decode(text.as_bytes()).into()
}

/// The cookies of a name.
///
/// Source: RFC 6265, section 5.4.
fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (found, value) = pair.split_at(equals);
        (found.trim_ascii() == name.as_bytes()).then(|| value[1..].trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_config::model::Identity;

    use super::*;
    use crate::identity::address_key;

    fn read(part: &KeyPart, route: &str, target: &str, fields: &[(&str, &str)]) -> Option<String> {
        let route = RoutePattern::parse(route).unwrap();
        let source = Source::new(part, &route)?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let path = canonical::canonical(path).unwrap();
        let client = address_key(&Identity::default(), "192.0.2.1".parse().unwrap());
        let facts = Facts {
            client: &client,
            path: &path,
            query,
            headers: &headers,
        };
        source
            .read(&facts)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    #[track_caller]
    fn query_is(target: &str, expected: Option<&str>) {
        let part = KeyPart::Query("user_id".into());
        assert_eq!(
            read(&part, "GET /a", target, &[]).as_deref(),
            expected,
            "{target}"
        );
    }

    #[test]
    fn the_first_value_of_a_query_parameter_counts() {
        query_is("/a?user_id=bob", Some("bob"));
        query_is("/a?user_id=bob&user_id=eve", Some("bob"));
        query_is("/a?x=1&user_id=bob&user_id", Some("bob"));
        query_is("/a?xuser_id=1&user_idx=2", None);
        query_is("/a", None);
        query_is("/a?", None);
    }

    #[test]
    fn the_spelling_of_a_query_makes_no_difference() {
        query_is("/a?user%5Fid=b%6Fb", Some("bob"));
        query_is("/a?user_id=b+o%2Bb", Some("b o+b"));
        query_is("/a?user_id=%zz", Some("%zz"));
    }

    #[test]
    fn a_parameter_that_is_empty_is_not_missing() {
        query_is("/a?user_id=", Some(""));
        query_is("/a?user_id", Some(""));
    }

    #[test]
    fn path_parameters_are_read_where_the_route_has_them() {
        let id = KeyPart::Path("id".into());
        assert_eq!(read(&id, "GET /a/{id}", "/a/7", &[]).as_deref(), Some("7"));
        assert_eq!(
            read(&id, "GET /a/{id}", "/a/%3A%3a/", &[]).as_deref(),
            Some("::")
        );
        assert_eq!(
            read(&id, "GET /a/{id+}", "/a/b/c/", &[]).as_deref(),
            Some("b/c")
        );
        assert_eq!(read(&id, "GET /a", "/a", &[]), None);
    }

    #[test]
    fn every_spelling_of_a_route_is_one_key() {
        let part = KeyPart::MethodAndRoute;
        for target in [
            "/api/login",
            "//api/login",
            "/api/%6Cogin/",
            "/api/login?x=1",
        ] {
            let key = read(&part, "ANY /api/login", target, &[]);
            assert_eq!(key.as_deref(), Some("ANY /api/login"), "{target}");
        }
    }

    #[test]
    fn the_first_header_and_the_first_cookie_count() {
        let fields = [
            ("x-user", "bob"),
            ("x-user", "eve"),
            ("cookie", "a=1; sid=x=y ;sid=z"),
        ];
        let header = KeyPart::Header(HeaderName::from_static("x-user"));
        assert_eq!(
            read(&header, "GET /a", "/a", &fields).as_deref(),
            Some("bob")
        );
        assert_eq!(read(&header, "GET /a", "/a", &[]), None);
        let cookie = |name: &str| read(&KeyPart::Cookie(name.into()), "GET /a", "/a", &fields);
        assert_eq!(cookie("sid").as_deref(), Some("x=y"));
        assert_eq!(cookie("id"), None);
    }

    proptest! {
        #[test]
        fn no_query_makes_the_reader_panic(query in "[ -~]{0,40}|(user_id|=|&|%|\\+|5F){0,12}") {
            let _ = query_values(&query, "user_id").count();
        }
    }
}

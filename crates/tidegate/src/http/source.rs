//! Whose state a limit counts, read from a request.
//!
//! Query names and values are decoded first (`+` is a space): `user%5Fid=a` is `user_id=a`. A
//! query parameter, a header or a cookie that comes more than once with different values is
//! refused: whichever counted here, what handles the request might go by the other, and a caller
//! would have a fresh key for every request.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;
use http::header::{COOKIE, HeaderMap};
use percent_encoding::percent_decode;
use serde_json::Value;

#[cfg(feature = "axum")]
use super::head::PathParameters;
use super::head::{RequestHead, VerifiedClaims};

/// Where one part of a key comes from.
#[derive(Clone)]
pub struct KeySource(Kind);

#[derive(Clone)]
enum Kind {
    ClientAddress,
    Method,
    Fixed(Box<str>),
    Query(Box<str>),
    Header(HeaderName),
    Cookie(Box<str>),
    Claim(Box<str>),
    #[cfg(feature = "axum")]
    Path(Box<str>),
    #[cfg(feature = "axum")]
    MatchedPath,
    Custom(Box<str>, Arc<Read>),
}

type Read = dyn for<'a> Fn(RequestHead<'a>) -> Option<Cow<'a, [u8]>> + Send + Sync;

/// A part that a request has, and that must not be counted by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartFault {
    /// It is there more than once.
    #[error("{0} is there more than once, with different values")]
    Ambiguous(String),
    /// It is no text where it has to be one.
    #[error("{0} is not UTF-8 under its percent-encoding")]
    NotText(String),
    /// A rule wants it.
    #[error("{0} is missing, and a limit of this route needs it")]
    Missing(String),
}

impl KeySource {
    /// The client's address, cut to its prefix. Missing where the server does not say who its
    /// peer is: see [`Peer`](super::Peer).
    #[must_use]
    pub const fn client_address() -> Self {
        Self(Kind::ClientAddress)
    }

    /// The method.
    #[must_use]
    pub const fn method() -> Self {
        Self(Kind::Method)
    }

    /// The same text for every request.
    #[must_use]
    pub fn fixed(text: impl Into<Box<str>>) -> Self {
        Self(Kind::Fixed(text.into()))
    }

    /// A query parameter, decoded; empty where it has no value.
    #[must_use]
    pub fn query(name: impl Into<Box<str>>) -> Self {
        Self(Kind::Query(name.into()))
    }

    /// A header field.
    #[must_use]
    pub const fn header(name: HeaderName) -> Self {
        Self(Kind::Header(name))
    }

    /// A cookie.
    #[must_use]
    pub fn cookie(name: impl Into<Box<str>>) -> Self {
        Self(Kind::Cookie(name.into()))
    }

    /// A claim of a verified token: a text, a number or a truth value of [`VerifiedClaims`].
    /// Tokens themselves are never read.
    #[must_use]
    pub fn claim(name: impl Into<Box<str>>) -> Self {
        Self(Kind::Claim(name.into()))
    }

    /// A parameter of the route's path, as axum decoded it.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn path(name: impl Into<Box<str>>) -> Self {
        Self(Kind::Path(name.into()))
    }

    /// The pattern of the route that axum matched: every spelling of a route is one key.
    #[cfg(feature = "axum")]
    #[must_use]
    pub const fn matched_path() -> Self {
        Self(Kind::MatchedPath)
    }

    /// What `read` says; `label` is its name in messages. None is a part that the request lacks.
    ///
    /// ```
    /// use tidegate::http::KeySource;
    ///
    /// #[derive(Clone)]
    /// struct Tenant(String);
    ///
    /// let tenant = KeySource::from_fn("tenant", |head| {
    ///     let tenant = head.extensions().get::<Tenant>()?;
    ///     Some(tenant.0.as_bytes().into())
    /// });
    /// # let _ = tenant;
    /// ```
    #[must_use]
    pub fn from_fn(
        label: impl Into<Box<str>>,
        read: impl for<'a> Fn(RequestHead<'a>) -> Option<Cow<'a, [u8]>> + Send + Sync + 'static,
    ) -> Self {
        Self(Kind::Custom(label.into(), Arc::new(read)))
    }

    /// Reads the part; none where the request does not have it.
    ///
    /// # Errors
    /// The request has it in a way that must not be counted by.
    pub fn read<'a>(&'a self, head: RequestHead<'a>) -> Result<Option<Cow<'a, [u8]>>, PartFault> {
        match &self.0 {
            Kind::ClientAddress => Ok(head.client().map(|client| client.as_bytes().into())),
            Kind::Method => Ok(Some(head.method().as_str().as_bytes().into())),
            Kind::Fixed(text) => Ok(Some(text.as_bytes().into())),
            Kind::Query(name) => {
                let query = head.query().unwrap_or_default();
                self.only(query_values(query, name))
            }
            Kind::Header(name) => {
                let values = head.headers().get_all(name).iter();
                self.only(values.map(|value| Cow::Borrowed(value.as_bytes())))
            }
            Kind::Cookie(name) => self.only(cookies(head.headers(), name).map(Cow::Borrowed)),
            Kind::Claim(name) => {
                let claims = head.extensions().get::<VerifiedClaims>();
                Ok(claims.and_then(|claims| text_of(claims.0.get(&**name)?)))
            }
            #[cfg(feature = "axum")]
            Kind::Path(name) => match head.path_parameters() {
                Some(PathParameters::Text(parameters)) => {
                    let found = parameters.iter().find(|(found, _)| *found == &**name);
                    Ok(found.map(|(_, value)| Cow::Borrowed(value.as_bytes())))
                }
                Some(PathParameters::NotText) => Err(PartFault::NotText(self.to_string())),
                None => Ok(None),
            },
            #[cfg(feature = "axum")]
            Kind::MatchedPath => {
                let matched = head.extensions().get::<axum::extract::MatchedPath>();
                Ok(matched.map(|path| Cow::Borrowed(path.as_str().as_bytes())))
            }
            Kind::Custom(_, read) => Ok(read(head)),
        }
    }

    /// Whether the part is one that axum has to take out of the request first.
    #[cfg(feature = "axum")]
    pub(super) const fn is_of_the_path(&self) -> bool {
        matches!(self.0, Kind::Path(_))
    }

    /// The one value that there is, if all are the same.
    fn only<'a>(
        &self,
        mut values: impl Iterator<Item = Cow<'a, [u8]>>,
    ) -> Result<Option<Cow<'a, [u8]>>, PartFault> {
        let Some(first) = values.next() else {
            return Ok(None);
        };
        if values.any(|other| other != first) {
            return Err(PartFault::Ambiguous(self.to_string()));
        }
        Ok(Some(first))
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::ClientAddress => f.write_str("client_ip"),
            Kind::Method => f.write_str("method"),
            Kind::Fixed(text) => f.write_str(text),
            Kind::Query(name) => write!(f, "query.{name}"),
            Kind::Header(name) => write!(f, "header.{name}"),
            Kind::Cookie(name) => write!(f, "cookie.{name}"),
            Kind::Claim(name) => write!(f, "jwt.{name}"),
            #[cfg(feature = "axum")]
            Kind::Path(name) => write!(f, "path.{name}"),
            #[cfg(feature = "axum")]
            Kind::MatchedPath => f.write_str("matched_path"),
            Kind::Custom(label, _) => f.write_str(label),
        }
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySource({self})")
    }
}

/// A claim that is one value. A list or an object would be many keys for one caller, depending on
/// how its members are ordered.
fn text_of(claim: &Value) -> Option<Cow<'_, [u8]>> {
    match claim {
        Value::String(text) => Some(text.as_bytes().into()),
        Value::Number(number) => Some(number.to_string().into_bytes().into()),
        Value::Bool(truth) => Some(truth.to_string().into_bytes().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
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
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn read(source: &KeySource, target: &str, fields: &[(&str, &str)]) -> Option<String> {
        try_read(source, target, fields).unwrap()
    }

    fn try_read(
        source: &KeySource,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Result<Option<String>, PartFault> {
        let mut request = Request::get(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let bytes = source.read(RequestHead::new(&parts))?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    #[track_caller]
    fn query_is(target: &str, expected: Option<&str>) {
        let part = KeySource::query("user_id");
        assert_eq!(read(&part, target, &[]).as_deref(), expected, "{target}");
    }

    #[test]
    fn a_query_parameter_is_found_by_its_whole_name() {
        query_is("/a?user_id=bob", Some("bob"));
        query_is("/a?xuser_id=1&user_idx=2", None);
        query_is("/a", None);
        query_is("/a?", None);
    }

    #[test]
    fn the_spelling_of_a_query_makes_no_difference() {
        query_is("/a?user%5Fid=b%6Fb", Some("bob"));
        query_is("/a?user_id=b+o%2Bb", Some("b o+b"));
        query_is("/a?user_id=%zz", Some("%zz"));
        query_is("/a?user_id=bob&user%5Fid=b%6Fb", Some("bob"));
    }

    #[test]
    fn a_parameter_that_is_empty_is_not_missing() {
        query_is("/a?user_id=", Some(""));
        query_is("/a?user_id", Some(""));
    }

    #[test]
    fn what_is_there_twice_with_different_values_is_no_key() {
        let fields = [
            ("x-user", "bob"),
            ("x-user", "eve"),
            ("cookie", "sid=1; sid=2"),
        ];
        let user = HeaderName::from_static("x-user");
        for (source, name) in [
            (KeySource::query("id"), "query.id"),
            (KeySource::header(user), "header.x-user"),
            (KeySource::cookie("sid"), "cookie.sid"),
        ] {
            let read = try_read(&source, "/a?id=1&x=3&id=2", &fields);
            assert_eq!(read, Err(PartFault::Ambiguous(name.to_owned())));
        }
        let same = [("x-user", "bob"), ("x-user", "bob")];
        let header = KeySource::header(HeaderName::from_static("x-user"));
        assert_eq!(read(&header, "/a", &same).as_deref(), Some("bob"));
    }

    #[test]
    fn cookies_of_several_lines_are_read() {
        let fields = [("cookie", "a=1; sid=x=y ;b"), ("cookie", "c=2")];
        let cookie = |name: &str| read(&KeySource::cookie(name), "/a", &fields);
        assert_eq!(cookie("sid").as_deref(), Some("x=y"));
        assert_eq!(cookie("c").as_deref(), Some("2"));
        assert_eq!(cookie("id"), None);
    }

    #[test]
    fn a_claim_is_what_was_verified_and_never_what_a_token_says() {
        // {"alg":"none"} and {"sub":"eve"}, and a signature that is none.
        let forged = "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ.";
        let request = Request::get("/").header("authorization", forged);
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let sub = KeySource::claim("sub");
        assert_eq!(sub.read(RequestHead::new(&parts)), Ok(None));
        let verified = serde_json::json!({"sub": "bob", "org": 7, "admin": true, "aud": ["x"]});
        let Value::Object(claims) = verified else {
            unreachable!()
        };
        parts.extensions.insert(VerifiedClaims(claims));
        let claim = |name: &str| {
            let source = KeySource::claim(name);
            let read = source.read(RequestHead::new(&parts)).unwrap();
            read.map(|bytes| String::from_utf8(bytes.into_owned()).unwrap())
        };
        assert_eq!(claim("sub").as_deref(), Some("bob"));
        assert_eq!(claim("org").as_deref(), Some("7"));
        assert_eq!(claim("admin").as_deref(), Some("true"));
        assert_eq!(claim("aud"), None);
        assert_eq!(claim("iss"), None);
    }

    proptest! {
        #[test]
        fn no_query_makes_the_reader_panic(query in "[ -~]{0,40}|(user_id|=|&|%|\\+|5F){0,12}") {
            let _ = query_values(&query, "user_id").count();
        }
    }
}

//! A request of a log or trace, and the key that a limit makes of it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderValue};
use tidegate_config::model::{Identity, KeyPart as ConfiguredPart};
use tidegate_config::{RoutePattern, Segment};

use crate::http::ClientAddress;
use crate::{Key, KeyPart};

/// One part of a limit's key, as the configuration's `key` list names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The client's address, masked to its prefix.
    ClientIp {
        /// Bits of an IPv4 address that tell clients apart.
        ipv4_prefix: u8,
        /// Bits of an IPv6 address that tell clients apart.
        ipv6_prefix: u8,
    },
    /// The authenticated user.
    Principal,
    /// Method and path.
    MethodAndRoute,
    /// A parameter of the query.
    Query(Box<str>),
    /// A header field, in lower case.
    Header(Box<str>),
    /// A cookie.
    Cookie(Box<str>),
    /// The same for every request.
    Constant(Box<str>),
    /// A segment of the path of a route, counted from 0.
    Segment(usize),
    /// The path of a route from a segment on.
    Rest(usize),
    /// What no log holds: an API key, a form field, a claim, a part of a route's path.
    Absent(Box<str>),
}

impl KeySource {
    /// The source of a part of a configured key, under the identity that masks addresses.
    #[must_use]
    pub fn new(part: &ConfiguredPart, identity: &Identity) -> Self {
        match part {
            ConfiguredPart::ClientIp => Self::ClientIp {
                ipv4_prefix: identity.ipv4_prefix,
                ipv6_prefix: identity.ipv6_prefix,
            },
            ConfiguredPart::Principal => Self::Principal,
            ConfiguredPart::MethodAndRoute => Self::MethodAndRoute,
            ConfiguredPart::Query(name) => Self::Query(name.as_str().into()),
            ConfiguredPart::Header(name) => Self::Header(name.as_str().into()),
            ConfiguredPart::Cookie(name) => Self::Cookie(name.as_str().into()),
            ConfiguredPart::Constant(text) => Self::Constant(text.as_str().into()),
            ConfiguredPart::ApiKey => Self::Absent("api_key".into()),
            ConfiguredPart::Path(name) => Self::Absent(format!("path.{name}").into()),
            ConfiguredPart::Form(name) => Self::Absent(format!("form.{name}").into()),
            ConfiguredPart::Jwt(name) => Self::Absent(format!("jwt.{name}").into()),
        }
    }

    /// The source of a part of a key on a route, whose parameters are known there.
    #[must_use]
    pub fn on_route(part: &ConfiguredPart, identity: &Identity, route: &RoutePattern) -> Self {
        match part {
            ConfiguredPart::MethodAndRoute => Self::Constant(route.as_str().into()),
            ConfiguredPart::Path(name) => {
                let mut segments = route.segments().iter().zip(0..);
                match segments.find(|(segment, _)| segment.parameter() == Some(name)) {
                    Some((Segment::Rest(_), at)) => Self::Rest(at),
                    Some((_, at)) => Self::Segment(at),
                    None => Self::new(part, identity),
                }
            }
            _ => Self::new(part, identity),
        }
    }

    /// Reads a word of a `key` list, under the default identity.
    ///
    /// # Errors
    /// What is wrong, and the remedy.
    pub(crate) fn parse(text: &str) -> Result<Self, (String, String)> {
        let part = ConfiguredPart::parse(text).map_err(|error| (error.message, error.help))?;
        Ok(Self::new(&part, &Identity::default()))
    }

    /// Adds the part that a request has of this kind.
    fn push(&self, request: &Request<'_>, key: &mut Key) {
        match self {
            Self::ClientIp {
                ipv4_prefix,
                ipv6_prefix,
            } => match request.client {
                None => key.push(KeyPart::Missing),
                Some(client) => {
                    key.push(KeyPart::Text(&masked(client, *ipv4_prefix, *ipv6_prefix)));
                }
            },
            Self::Principal => key.push(part(request.user)),
            Self::MethodAndRoute => match (request.method, request.target) {
                (Some(method), Some(target)) => {
                    let (path, _) = split_target(target);
                    key.push(KeyPart::Text(&[method, path].join(&b' ')));
                }
                _ => key.push(KeyPart::Missing),
            },
            Self::Query(name) => {
                let value = request.target.and_then(|target| query_value(target, name));
                key.push(part(value.as_deref()));
            }
            Self::Header(name) => {
                key.push(part(request.header(name)));
            }
            Self::Cookie(name) => {
                let cookies = request.header("cookie");
                key.push(part(cookies.and_then(|cookies| cookie(cookies, name))));
            }
            Self::Constant(text) => key.push(KeyPart::Text(text.as_bytes())),
            Self::Segment(at) => {
                let segment = request.segments().nth(*at);
                key.push(part(segment.map(decoded_path).as_deref()));
            }
            Self::Rest(at) => {
                let rest: Vec<&str> = request.segments().skip(*at).collect();
                key.push(KeyPart::Text(&decoded_path(&rest.join("/"))));
            }
            Self::Absent(_) => key.push(KeyPart::Missing),
        }
    }
}

/// What a piece of a path stands for.
fn decoded_path(piece: &str) -> Cow<'_, [u8]> {
    percent_encoding::percent_decode(piece.as_bytes()).into()
}

fn part(part: Option<&[u8]>) -> KeyPart<'_> {
    part.map_or(KeyPart::Missing, KeyPart::Text)
}

/// Makes the key of a request.
pub(crate) fn key_of(sources: &[KeySource], request: &Request<'_>) -> Key {
    let mut key = Key::from_parts([]);
    for source in sources {
        source.push(request, &mut key);
    }
    key
}

/// What a line of a log or a trace tells about a request; none where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub client: Option<&'a [u8]>,
    pub user: Option<&'a [u8]>,
    pub method: Option<&'a [u8]>,
    /// Path and query.
    pub target: Option<&'a [u8]>,
    pub referer: Option<&'a [u8]>,
    pub user_agent: Option<&'a [u8]>,
    /// The path as its route sees it; only where routes are known.
    pub path: Option<&'a str>,
    /// The chain of addresses that proxies wrote.
    pub forwarded_for: Option<&'a [u8]>,
    pub host: Option<&'a [u8]>,
    pub cookies: Option<&'a [u8]>,
    /// Further header fields, names in lower case.
    pub headers: &'a [(String, String)],
}

impl<'a> Request<'a> {
    /// The segments of the path as its route sees it.
    fn segments(&self) -> impl Iterator<Item = &'a str> {
        let path = self.path.unwrap_or_default();
        path.split('/').filter(|segment| !segment.is_empty())
    }

    /// The first value of a header field.
    fn header(&self, name: &str) -> Option<&'a [u8]> {
        let known = match name {
            "referer" => self.referer,
            "user-agent" => self.user_agent,
            "x-forwarded-for" => self.forwarded_for,
            "host" => self.host,
            "cookie" => self.cookies,
            _ => None,
        };
        known.or_else(|| {
            let mut headers = self.headers.iter();
            headers
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_bytes())
        })
    }

    /// The client behind the proxies that are trusted, if it is another than the peer.
    pub fn behind_proxies(&self, clients: &ClientAddress) -> Option<String> {
        let peer = std::str::from_utf8(self.client?).ok()?.parse().ok()?;
        let mut headers = HeaderMap::new();
        for name in clients.header_names() {
            let own = self.headers.iter();
            let own = own.filter(|(known, _)| known == name.as_str());
            let own = own.map(|(_, value)| value.as_bytes());
            let logged = self
                .forwarded_for
                .filter(|_| name.as_str() == "x-forwarded-for");
            for value in logged.into_iter().chain(own) {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    headers.append(name, value);
                }
            }
        }
        let client = clients.caller(peer, &headers).client;
        (client != peer).then(|| client.to_string())
    }
}

/// The client as one bucket: the delegated prefix, whatever the spelling.
///
/// What is no address, such as the host name of an old log, stays as it is.
fn masked(client: &[u8], ipv4_prefix: u8, ipv6_prefix: u8) -> Cow<'_, [u8]> {
    if ipv4_prefix >= 32 && client.iter().all(|c| c.is_ascii_digit() || *c == b'.') {
        return Cow::Borrowed(client);
    }
    let bare = client
        .strip_prefix(b"[")
        .and_then(|c| c.strip_suffix(b"]"))
        .unwrap_or(client);
    let Some(address) = std::str::from_utf8(bare)
        .ok()
        .and_then(|c| c.parse::<IpAddr>().ok())
    else {
        return Cow::Borrowed(client);
    };
    Cow::Owned(match address.to_canonical() {
        IpAddr::V4(address) if ipv4_prefix >= 32 => address.to_string().into_bytes(),
        IpAddr::V4(address) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(ipv4_prefix))
                .unwrap_or(0);
            let network = Ipv4Addr::from_bits(address.to_bits() & mask);
            format!("{network}/{ipv4_prefix}").into_bytes()
        }
        IpAddr::V6(address) if ipv6_prefix >= 128 => address.to_string().into_bytes(),
        IpAddr::V6(address) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(ipv6_prefix))
                .unwrap_or(0);
            let network = Ipv6Addr::from_bits(address.to_bits() & mask);
            format!("{network}/{ipv6_prefix}").into_bytes()
        }
    })
}

/// Path and query of a request target; an absolute one loses its scheme and authority.
pub(crate) fn split_target(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    let origin = match target.windows(3).position(|window| window == b"://") {
        Some(at) if target[..at].iter().all(u8::is_ascii_alphabetic) => {
            let rest = &target[at + 3..];
            match rest.iter().position(|c| *c == b'/' || *c == b'?') {
                Some(slash) => &rest[slash..],
                None => b"/".as_slice(),
            }
        }
        _ => target,
    };
    let origin = &origin[..origin
        .iter()
        .position(|c| *c == b'#')
        .unwrap_or(origin.len())];
    match origin.iter().position(|c| *c == b'?') {
        Some(at) => (&origin[..at], Some(&origin[at + 1..])),
        None => (origin, None),
    }
}

/// The first value of a query parameter, decoded; none if the query has no such parameter.
fn query_value<'a>(target: &'a [u8], name: &str) -> Option<Cow<'a, [u8]>> {
    let (_, query) = split_target(target);
    query?.split(|c| *c == b'&').find_map(|pair| {
        let at = pair.iter().position(|c| *c == b'=').unwrap_or(pair.len());
        if *decoded(&pair[..at]) != *name.as_bytes() {
            return None;
        }
        Some(decoded(pair.get(at + 1..).unwrap_or_default()))
    })
}

/// A name or value of a query without its escapes.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return percent_encoding::percent_decode(text).into();
    }
    let spaced: Vec<u8> = text
        .iter()
        .map(|c| if *c == b'+' { b' ' } else { *c })
        .collect();
    Cow::Owned(percent_encoding::percent_decode(&spaced).collect())
}

fn cookie<'a>(cookies: &'a [u8], name: &str) -> Option<&'a [u8]> {
    cookies.split(|c| *c == b';').find_map(|pair| {
        let pair = pair.trim_ascii();
        let at = pair.iter().position(|c| *c == b'=')?;
        if pair[..at] == *name.as_bytes() {
            Some(&pair[at + 1..])
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::keys::parse;
    use proptest::prelude::*;

    fn key(sources: &[&str], request: &Request<'_>) -> Key {
        let sources: Vec<KeySource> = sources
            .iter()
            .map(|text| KeySource::parse(text).unwrap())
            .collect();
        key_of(&sources, request)
    }

    fn client(address: &str) -> Key {
        key(
            &["client_ip"],
            &Request {
                client: Some(address.as_bytes()),
                ..Request::default()
            },
        )
    }

    #[test]
    fn one_subscriber_has_one_key_however_the_address_is_spelled() {
        assert_eq!(client("2001:db8:0:1::1"), client("2001:DB8:0:1:0:0:0:4"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("::ffff:192.0.2.1"), client("::ffff:198.51.100.7"));
        assert_eq!(client("[2001:db8::1]"), client("2001:db8::2"));
        assert_eq!(
            client("piweba3y.example.com"),
            parse("piweba3y.example.com").unwrap()
        );
    }

    #[test]
    fn a_query_parameter_is_found_and_decoded_and_a_missing_one_is_no_empty_one() {
        let of = |target: &str| {
            key(
                &["query.user_id"],
                &Request {
                    target: Some(target.as_bytes()),
                    ..Request::default()
                },
            )
        };
        assert_eq!(of("/vips?user_id=a%20b&x=1"), parse("\"a b\"").unwrap());
        assert_eq!(of("/vips?x=1&user%5Fid=a+b"), parse("\"a b\"").unwrap());
        assert_eq!(of("http://host/vips?user_id=7#part"), parse("7").unwrap());
        assert_eq!(of("/vips?user_id="), parse("\"\"").unwrap());
        assert_eq!(of("/vips?user_id"), parse("\"\"").unwrap());
        assert_eq!(of("/vips"), parse("[-]").unwrap());
    }

    #[test]
    fn parts_stand_in_the_order_of_the_list() {
        let request = Request {
            client: Some(b"192.0.2.1"),
            method: Some(b"GET"),
            target: Some(b"/vips?x=1"),
            user_agent: Some(b"curl/8"),
            headers: &[("cookie".to_owned(), "a=1; session=s7".to_owned())],
            ..Request::default()
        };
        assert_eq!(
            key(
                &[
                    "client_ip",
                    "method_and_route",
                    "header.User-Agent",
                    "cookie.session",
                    "all",
                    "jwt.sub"
                ],
                &request
            ),
            parse("[192.0.2.1,\"GET /vips\",curl/8,s7,all,-]").unwrap()
        );
    }

    proptest! {
        #[test]
        fn no_request_makes_a_key_panic(
            client in prop::collection::vec(any::<u8>(), 0..40),
            target in "\\PC{0,40}",
            prefixes in (0_u8..=32, 0_u8..=128),
        ) {
            let _ = masked(&client, prefixes.0, prefixes.1);
            let _ = split_target(target.as_bytes());
            let _ = query_value(target.as_bytes(), "q");
            let request = Request { target: Some(target.as_bytes()), ..Request::default() };
            key(&["query.q", "method_and_route"], &request);
        }
    }
}

//! The fields of a request and a response as they go from one connection to the next.
//!
//! Fields that belong to one connection end here, those that the `Connection` field names
//! included, and that happens before identity and keys look at a request: what counts is what the
//! upstream sees. Forwarding fields are rebuilt from the verified part of the chain only, so an
//! upstream that believes the left-most entry is not fooled by one that a client wrote.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{
    CONNECTION, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use tidegate::http::{Caller, ClientAddress};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What only a trusted proxy may say of a request, besides `Forwarded`.
const SAID_BY_PROXIES: [&str; 9] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-real-ip",
    "true-client-ip",
];

/// Removes the fields that belong to one connection, and those that `Connection` names.
///
/// Source: RFC 9110, section 7.6.1.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let mut named: Vec<HeaderName> = Vec::new();
        for value in headers.get_all(CONNECTION) {
            for name in value.as_bytes().split(|byte| *byte == b',') {
                let name = name.trim_ascii();
                if name.eq_ignore_ascii_case(b"close") || name.eq_ignore_ascii_case(b"keep-alive") {
                    continue;
                }
                named.extend(HeaderName::from_bytes(name));
            }
        }
        for name in named {
            // Without its host a request would change its meaning.
            if name != HOST {
                headers.remove(name);
            }
        }
        headers.remove(CONNECTION);
    }
    for name in [
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        HTTP2_SETTINGS,
    ] {
        headers.remove(name);
    }
}

/// The connection that a request came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The version of HTTP.
    pub version: Version,
    /// Whether it was TLS.
    pub is_secure: bool,
}

/// Removes what the client may not say, and says who calls: `X-Forwarded-For`, `-Proto`, `-Host`,
/// `Forwarded` and `Via`. The host becomes `upstream`.
///
/// `Expect` goes too: the connection to the client has answered it already.
pub fn forward(
    headers: &mut HeaderMap,
    client_address: &ClientAddress,
    caller: &Caller,
    hop: Hop,
    host: Option<&HeaderValue>,
    upstream: &HeaderValue,
) {
    remove_lookalikes(headers);
    if !caller.peer_is_trusted {
        for name in SAID_BY_PROXIES {
            headers.remove(name);
        }
        for name in client_address.header_names() {
            headers.remove(name);
        }
    }
    let proto = headers.get(FORWARDED_PROTO).cloned();
    let own = if hop.is_secure { "https" } else { "http" };
    let proto = proto.unwrap_or(HeaderValue::from_static(own));
    let said_host = headers.get(FORWARDED_HOST).or(host).cloned();
    headers.insert(FORWARDED_FOR, chain(caller));
    headers.insert(FORWARDED, forwarded(caller, &proto, said_host.as_ref()));
    headers.insert(FORWARDED_PROTO, proto);
    if let Some(host) = said_host {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.append(VIA, via(hop.version));
    headers.remove(EXPECT);
    headers.insert(HOST, upstream.clone());
}

/// Removes fields that many upstreams take for forwarding fields because `_` and `-` are the same
/// to them.
fn remove_lookalikes(headers: &mut HeaderMap) {
    let looks_alike = |name: &HeaderName| {
        name.as_str().contains('_') && {
            let name = name.as_str().replace('_', "-");
            name == "forwarded" || SAID_BY_PROXIES.contains(&name.as_str())
        }
    };
    let found: Vec<HeaderName> = headers
        .keys()
        .filter(|name| looks_alike(name))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

/// The verified hops, client first, peer last.
fn hops(caller: &Caller) -> impl Iterator<Item = IpAddr> {
    let peer = (caller.client != caller.peer || !caller.between.is_empty()).then_some(caller.peer);
    std::iter::once(caller.client)
        .chain(caller.between.iter().copied())
        .chain(peer)
}

fn chain(caller: &Caller) -> HeaderValue {
    let mut text = String::with_capacity(48);
    for hop in hops(caller) {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{hop}");
    }
    HeaderValue::try_from(text).expect("addresses are visible ASCII")
}

/// Source: RFC 7239, section 4.
fn forwarded(caller: &Caller, proto: &HeaderValue, host: Option<&HeaderValue>) -> HeaderValue {
    let mut text = String::with_capacity(80);
    for hop in hops(caller) {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = match hop {
            IpAddr::V4(address) => write!(text, "{separator}for={address}"),
            IpAddr::V6(address) => write!(text, "{separator}for=\"[{address}]\""),
        };
        if separator.is_empty() {
            quoted(&mut text, ";host=", host);
            quoted(&mut text, ";proto=", Some(proto));
        }
    }
    HeaderValue::try_from(text).expect("quoted text is visible ASCII")
}

/// Appends a parameter: a plain token where it can be one, otherwise a quoted string.
fn quoted(text: &mut String, name: &str, value: Option<&HeaderValue>) {
    let Some(value) = value.and_then(|value| value.to_str().ok()) else {
        return;
    };
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    text.push_str(name);
    if !value.is_empty() && value.bytes().all(is_token) {
        text.push_str(value);
        return;
    }
    text.push('"');
    for letter in value.chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_10 => "1.0 tidegate",
        Version::HTTP_2 => "2.0 tidegate",
        _ => "1.1 tidegate",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn fields_of_one_connection_end_there() {
        let mut headers = map(&[
            ("host", "a"),
            ("connection", "close, X-Private"),
            ("connection", "x-other,, keep-alive , host"),
            ("x-private", "1"),
            ("x-other", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(names(&headers), ["accept", "host"]);
    }

    fn forwarded_by(peer: &str, trusted: &[&str], fields: &[(&str, &str)]) -> HeaderMap {
        let proxies = trusted.iter().map(|network| network.parse().unwrap());
        let client_address = ClientAddress::behind(proxies);
        let mut headers = map(fields);
        let caller = client_address.caller(peer.parse().unwrap(), &headers);
        let host = HeaderValue::from_static("shop.example:8080");
        let upstream = HeaderValue::from_static("127.0.0.1:9000");
        forward(
            &mut headers,
            &client_address,
            &caller,
            Hop {
                version: Version::HTTP_11,
                is_secure: false,
            },
            Some(&host),
            &upstream,
        );
        headers
    }

    #[test]
    fn what_an_untrusted_client_says_of_itself_is_dropped() {
        let headers = forwarded_by(
            "203.0.113.9",
            &[],
            &[
                ("x-forwarded-for", "6.6.6.6"),
                ("x_forwarded_for", "6.6.6.6"),
                ("forwarded", "for=6.6.6.6"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "evil.example"),
                ("x-real-ip", "6.6.6.6"),
                ("x-fine_field", "stays"),
                ("expect", "100-continue"),
            ],
        );
        assert_eq!(headers["x-forwarded-for"], "203.0.113.9");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "shop.example:8080");
        assert_eq!(
            headers["forwarded"],
            "for=203.0.113.9;host=\"shop.example:8080\";proto=http"
        );
        assert_eq!(headers["via"], "1.1 tidegate");
        assert_eq!(headers["host"], "127.0.0.1:9000");
        assert_eq!(headers["x-fine_field"], "stays");
        for gone in ["x_forwarded_for", "x-real-ip", "expect"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn a_trusted_proxy_is_believed_as_far_as_the_chain_is_verified() {
        let headers = forwarded_by(
            "127.0.0.1",
            &["127.0.0.1/32"],
            &[
                ("x-forwarded-for", "6.6.6.6, 2001:db8::9"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "shop.example"),
                ("via", "1.1 edge"),
            ],
        );
        assert_eq!(headers["x-forwarded-for"], "2001:db8::9, 127.0.0.1");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(
            headers["forwarded"],
            "for=\"[2001:db8::9]\";host=shop.example;proto=https, for=127.0.0.1"
        );
        let via: Vec<_> = headers.get_all("via").iter().collect();
        assert_eq!(via, ["1.1 edge", "1.1 tidegate"]);
    }

    #[test]
    fn a_quote_in_a_trusted_host_cannot_leave_its_parameter() {
        let headers = forwarded_by(
            "127.0.0.1",
            &["127.0.0.1/32"],
            &[("x-forwarded-host", "a\";for=6.6.6.6")],
        );
        assert_eq!(
            headers["forwarded"],
            "for=127.0.0.1;host=\"a\\\";for=6.6.6.6\";proto=http"
        );
    }
}

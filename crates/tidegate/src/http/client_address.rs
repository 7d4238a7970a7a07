//! Who is calling: the client's address, seen through the proxies that are trusted.
//!
//! The walk starts at the socket's peer and goes through the forwarding field from the right, one
//! step for each hop that is a trusted proxy. What an untrusted peer wrote is never read, and an
//! entry that is no address ends the walk. IPv4-mapped IPv6 addresses are IPv4 addresses, before
//! anything else is decided about them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName, header::FORWARDED};
use ipnet::IpNet;

/// How the client's address is found, and how much of it makes a key.
///
/// By default nobody is believed: the client is the socket's peer. Behind proxies name them, and
/// the field that *they* write:
///
/// ```
/// use tidegate::http::ClientAddress;
///
/// let behind_two = ClientAddress::behind(["10.0.0.0/8".parse()?, "2001:db8:1::/48".parse()?]);
/// let nginx = behind_two.headers([http::HeaderName::from_static("x-real-ip")]);
/// # let _ = nginx;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    trusted_proxies: Vec<IpNet>,
    headers: Vec<HeaderName>,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

impl Default for ClientAddress {
    /// No trusted proxy, `X-Forwarded-For`, single IPv4 addresses and IPv6 networks of 64 bits.
    fn default() -> Self {
        Self::behind([])
    }
}

impl ClientAddress {
    /// Believes the forwarding field of these peers. A list that holds everybody (`0.0.0.0/0`)
    /// lets any client choose its own address.
    #[must_use]
    pub fn behind(trusted_proxies: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            trusted_proxies: trusted_proxies.into_iter().collect(),
            headers: vec![HeaderName::from_static("x-forwarded-for")],
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        }
    }

    /// Which forwarding fields are read, the best first: of those, the first that a request has.
    /// `Forwarded` is read as RFC 7239 says, any other as a list of addresses, which
    /// `X-Forwarded-For` and `X-Real-IP` both are. Default: `X-Forwarded-For`.
    ///
    /// Name only what the proxies write or remove: one that they pass on untouched is the
    /// client's word.
    #[must_use]
    pub fn headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers = names.into_iter().collect();
        self
    }

    /// How many leading bits of an IPv4 address make the key; above 32 is 32. Default: 32.
    #[must_use]
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.ipv4_prefix = bits;
        self
    }

    /// How many leading bits of an IPv6 address make the key; above 128 is 128. Default: 64, the
    /// least that a customer is given.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    /// The forwarding fields that are read.
    #[must_use]
    pub fn header_names(&self) -> &[HeaderName] {
        &self.headers
    }

    /// Finds the caller behind a socket's peer.
    #[must_use]
    pub fn caller(&self, peer: IpAddr, headers: &HeaderMap) -> Caller {
        let peer = peer.to_canonical();
        let peer_is_trusted = self.trusts(peer);
        let mut caller = Caller {
            client: peer,
            between: Vec::new(),
            peer,
            peer_is_trusted,
        };
        if !peer_is_trusted {
            return caller;
        }
        let mut fields = self.headers.iter();
        let Some(name) = fields.find(|name| headers.contains_key(*name)) else {
            return caller;
        };
        let mut hops = Vec::new();
        for value in headers.get_all(name) {
            // A value that is no text ends the walk like an entry that is no address.
            let text = value.to_str().unwrap_or("?");
            if name == FORWARDED {
                forwarded_hops(text, &mut hops);
            } else {
                hops.extend(text.split(',').map(address));
            }
        }
        let mut at_peer = true;
        while self.trusts(caller.client) {
            let Some(Some(hop)) = hops.pop() else { break };
            if !at_peer {
                caller.between.push(caller.client);
            }
            at_peer = false;
            caller.client = hop;
        }
        caller.between.reverse();
        caller
    }

    /// The bytes of an address that make a key: 4 or 16, with the host part zero.
    #[must_use]
    pub fn key(&self, client: IpAddr) -> AddressKey {
        match client.to_canonical() {
            IpAddr::V4(address) => {
                let mask = mask(self.ipv4_prefix, 32);
                let kept = u128::from(u32::from(address)) & (mask >> 96);
                // The mask leaves the low 32 bits only.
                let kept = u32::try_from(kept).expect("an IPv4 address under a 32-bit mask");
                AddressKey::V4(kept.to_be_bytes())
            }
            IpAddr::V6(address) => {
                let kept = u128::from(address) & mask(self.ipv6_prefix, 128);
                AddressKey::V6(kept.to_be_bytes())
            }
        }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        let mut networks = self.trusted_proxies.iter();
        networks.any(|network| network.contains(&address))
    }
}

/// The caller of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The client: the nearest hop that is no trusted proxy.
    pub client: IpAddr,
    /// The trusted proxies between the client and the peer, in the order that they were passed.
    pub between: Vec<IpAddr>,
    /// The other end of the socket.
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub peer_is_trusted: bool,
}

/// The part of an address that a limit counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKey {
    /// An IPv4 network.
    V4([u8; 4]),
    /// An IPv6 network.
    V6([u8; 16]),
}

impl AddressKey {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// `prefix` leading ones, in the upper `width` bits of 128.
fn mask(prefix: u8, width: u8) -> u128 {
    match prefix.min(width) {
        0 => 0,
        prefix => u128::MAX << (128 - u32::from(prefix)),
    }
}

/// Reads an address as forwarding fields write it: with or without a port, IPv6 in brackets.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
        .or_else(|| {
            let inner = text.strip_prefix('[')?.strip_suffix(']')?;
            inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        })?;
    Some(address.to_canonical())
}

/// Appends the hops of one `Forwarded` value; an element without a readable `for` is a `None`.
///
/// Source: RFC 7239, section 4.
fn forwarded_hops(value: &str, hops: &mut Vec<Option<IpAddr>>) {
    for element in split_outside_quotes(value, ',') {
        let hop = split_outside_quotes(element, ';').find_map(|pair| {
            let (name, node) = pair.split_once('=')?;
            name.trim().eq_ignore_ascii_case("for").then(|| {
                let node = node.trim();
                let quoted = node
                    .strip_prefix('"')
                    .and_then(|node| node.strip_suffix('"'));
                address(quoted.unwrap_or(node))
            })
        });
        hops.push(hop.flatten());
    }
}

fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |letter| {
        if escaped {
            escaped = false;
        } else if quoted && letter == '\\' {
            escaped = true;
        } else if letter == '"' {
            quoted = !quoted;
        }
        !quoted && letter == separator
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(trusted: &[&str]) -> ClientAddress {
        ClientAddress::behind(trusted.iter().map(|network| network.parse().unwrap()))
            .headers([FORWARDED, HeaderName::from_static("x-forwarded-for")])
    }

    fn caller(trusted: &[&str], peer: &str, fields: &[(&str, &str)]) -> Caller {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        identity(trusted).caller(peer.parse().unwrap(), &headers)
    }

    #[track_caller]
    fn client_is(trusted: &[&str], peer: &str, fields: &[(&str, &str)], expected: &str) {
        let caller = caller(trusted, peer, fields);
        assert_eq!(
            caller.client,
            expected.parse::<IpAddr>().unwrap(),
            "{caller:?}"
        );
    }

    #[test]
    fn a_field_of_an_untrusted_peer_is_never_read() {
        client_is(
            &[],
            "203.0.113.9",
            &[("x-forwarded-for", "1.2.3.4")],
            "203.0.113.9",
        );
        client_is(
            &["10.0.0.0/8"],
            "203.0.113.9",
            &[("forwarded", "for=1.2.3.4")],
            "203.0.113.9",
        );
    }

    #[test]
    fn the_walk_ends_at_the_first_hop_from_the_right_that_is_not_trusted() {
        let trusted = &["127.0.0.0/8", "10.0.0.0/8"];
        for (value, client) in [
            ("forged, 203.0.113.9", "203.0.113.9"),
            ("6.6.6.6, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
            ("10.9.9.9, 10.0.0.2", "10.9.9.9"),
            ("banana", "127.0.0.1"),
            ("203.0.113.9, banana", "127.0.0.1"),
            ("", "127.0.0.1"),
            ("203.0.113.9:4711", "203.0.113.9"),
            ("[2001:db8::7]:80", "2001:db8::7"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
        ] {
            client_is(trusted, "127.0.0.1", &[("x-forwarded-for", value)], client);
        }
    }

    #[test]
    fn several_lines_of_a_field_are_one_list() {
        client_is(
            &["127.0.0.1/32", "10.0.0.0/8"],
            "127.0.0.1",
            &[
                ("x-forwarded-for", "6.6.6.6, 203.0.113.9"),
                ("x-forwarded-for", "10.0.0.2"),
            ],
            "203.0.113.9",
        );
    }

    #[test]
    fn forwarded_is_read_as_its_grammar_says() {
        for (value, client) in [
            ("for=203.0.113.9;proto=http", "203.0.113.9"),
            ("For=\"[2001:db8::7]:4711\";by=\"a,b\"", "2001:db8::7"),
            ("for=6.6.6.6, proto=https;for=203.0.113.9", "203.0.113.9"),
            ("for=203.0.113.9, for=unknown", "127.0.0.1"),
            ("proto=http", "127.0.0.1"),
            ("for=\"a\\\",b\", for=203.0.113.9", "203.0.113.9"),
        ] {
            client_is(
                &["127.0.0.1/32"],
                "127.0.0.1",
                &[("forwarded", value)],
                client,
            );
        }
    }

    #[test]
    fn the_proxies_that_were_passed_are_kept_in_order() {
        let caller = caller(
            &["127.0.0.1/32", "10.0.0.0/8"],
            "127.0.0.1",
            &[("x-forwarded-for", "forged, 203.0.113.9, 10.0.0.1, 10.0.0.2")],
        );
        assert_eq!(
            caller.between,
            [
                "10.0.0.1".parse::<IpAddr>().unwrap(),
                "10.0.0.2".parse().unwrap()
            ]
        );
    }

    #[test]
    fn an_ipv6_customer_is_one_key_and_its_neighbour_another() {
        let identity = ClientAddress::default();
        let key = |text: &str| identity.key(text.parse().unwrap());
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1::4"));
        assert_eq!(key("2001:DB8:0:1:0:0:0:1"), key("2001:db8:0:1::1"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    }

    #[test]
    fn an_ipv4_mapped_address_is_the_ipv4_address() {
        let identity = ClientAddress::default();
        let key = |text: &str| identity.key(text.parse().unwrap());
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("::ffff:192.0.2.1"), key("::ffff:198.51.100.7"));
    }

    #[test]
    fn a_prefix_of_zero_counts_all_together_and_one_too_long_counts_whole_addresses() {
        let identity = ClientAddress::default().ipv4_prefix(0).ipv6_prefix(200);
        let key = |text: &str| identity.key(text.parse().unwrap());
        assert_eq!(key("1.2.3.4"), key("5.6.7.8"));
        assert_ne!(key("2001:db8::1"), key("2001:db8::2"));
    }

    proptest! {
        #[test]
        fn no_field_makes_the_walk_panic(value in "[ -~]{0,60}", forwarded in "(for|[a-z=\";, \\\\\\[\\]:.0-9]){0,40}") {
            caller(&["127.0.0.1/32"], "127.0.0.1", &[("x-forwarded-for", &value)]);
            caller(&["127.0.0.1/32"], "127.0.0.1", &[("forwarded", &forwarded)]);
        }
    }
}

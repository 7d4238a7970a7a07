//! The host that a request is for.

use std::net::Ipv6Addr;

use http::{HeaderMap, HeaderValue, Uri, Version, header::HOST};

/// Why a request has no usable host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFault {
    /// HTTP/1.1 wants one.
    #[error("the request has no Host")]
    Missing,
    /// Two parties might each take another one.
    #[error("the request has more than one Host")]
    Several,
    /// Not a host with an optional port.
    #[error("the Host of the request is not a host")]
    Invalid,
}

/// Finds the host, in lower case, and refuses what is ambiguous.
///
/// The target's own authority wins over the `Host` field. Only HTTP/1.0 may do without either.
///
/// # Errors
/// No host, several, or one that is none.
///
/// Source: RFC 9112, section 3.2.
pub fn host(
    version: Version,
    target: &Uri,
    headers: &HeaderMap,
) -> Result<Option<HeaderValue>, HostFault> {
    let mut fields = headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return Err(HostFault::Several);
    }
    let field = field
        .map(|value| valid(value.to_str().map_err(|_| HostFault::Invalid)?))
        .transpose()?;
    let authority = target
        .authority()
        .map(|authority| valid(authority.as_str()));
    match (authority.transpose()?, field) {
        (Some(authority), Some(field)) if version == Version::HTTP_2 && authority != field => {
            Err(HostFault::Several)
        }
        (None, None) if version > Version::HTTP_10 => Err(HostFault::Missing),
        (Some(_), None) if version == Version::HTTP_11 => Err(HostFault::Missing),
        (authority, field) => Ok(authority.or(field)),
    }
}

/// A name or an address with an optional port. Names may have what people register, not all that
/// the grammar of URIs allows.
fn valid(text: &str) -> Result<HeaderValue, HostFault> {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((address, port)) => {
            address
                .parse::<Ipv6Addr>()
                .map_err(|_| HostFault::Invalid)?;
            (address, port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let in_name =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    let in_port = |byte: u8| byte.is_ascii_digit();
    let port_is_valid = match port.strip_prefix(':') {
        Some(port) => port.bytes().all(in_port) && (port.is_empty() || port.parse::<u16>().is_ok()),
        None => port.is_empty(),
    };
    if host.is_empty() || !host.bytes().all(in_name) || !port_is_valid {
        return Err(HostFault::Invalid);
    }
    HeaderValue::try_from(text.to_ascii_lowercase()).map_err(|_| HostFault::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: Version, target: &str, hosts: &[&str]) -> Result<Option<String>, HostFault> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        let host = host(version, &target.parse().unwrap(), &headers)?;
        Ok(host.map(|host| host.to_str().unwrap().to_owned()))
    }

    #[test]
    fn one_host_is_taken_in_lower_case() {
        for (target, hosts, expected) in [
            ("/", &["Shop.Example:8080"][..], "shop.example:8080"),
            ("/", &["[2001:DB8::1]"], "[2001:db8::1]"),
            ("http://Other.example/x", &["shop.example"], "other.example"),
        ] {
            assert_eq!(
                found(Version::HTTP_11, target, hosts),
                Ok(Some(expected.to_owned()))
            );
        }
        assert_eq!(found(Version::HTTP_10, "/", &[]), Ok(None));
    }

    #[test]
    fn what_is_missing_or_ambiguous_is_refused() {
        assert_eq!(found(Version::HTTP_11, "/", &[]), Err(HostFault::Missing));
        assert_eq!(found(Version::HTTP_2, "/", &[]), Err(HostFault::Missing));
        assert_eq!(
            found(Version::HTTP_11, "http://a/", &[]),
            Err(HostFault::Missing)
        );
        assert_eq!(
            found(Version::HTTP_11, "/", &["a", "a"]),
            Err(HostFault::Several)
        );
        assert_eq!(
            found(Version::HTTP_2, "http://a/", &["b"]),
            Err(HostFault::Several)
        );
        for bad in [
            "", "a b", "a/b", "u@a", "a:port", "a:99999", "a,b", "[::1", "[a]", "a?b", "a#",
            "a:1:2", "::1",
        ] {
            assert_eq!(
                found(Version::HTTP_11, "/", &[bad]),
                Err(HostFault::Invalid),
                "{bad:?}"
            );
        }
    }
}

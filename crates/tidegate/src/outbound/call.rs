//! What the layer needs to know of calls and answers, whichever client makes them.

use http::header::{HOST, HeaderMap};
use http::uri::Scheme;
use http::{Request, Response, StatusCode, Uri};

use crate::{Key, KeyPart};

/// A call, as the layer sees it. For a client with a request type of its own.
pub trait Call {
    /// The origin that it goes to.
    fn origin(&self) -> Origin<'_>;
}

/// An answer, as the layer sees it. For a client with a response type of its own.
pub trait Answer {
    /// Its status.
    fn status(&self) -> StatusCode;
    /// Its header fields.
    fn headers(&self) -> &HeaderMap;
}

/// A scheme, a host and a port: what has limits of its own.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    scheme: &'a str,
    host: &'a str,
    port: u16,
}

impl<'a> Origin<'a> {
    /// The origin of a URI, or of the `Host` field where the URI has none.
    #[must_use]
    pub fn new(uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        let scheme = uri.scheme().unwrap_or(&Scheme::HTTP);
        let named = headers.get(HOST).and_then(|host| host.to_str().ok());
        let authority = uri.authority().map(http::uri::Authority::as_str);
        let authority = authority.or(named).unwrap_or_default();
        let without_user = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = match without_user.rsplit_once(':') {
            // The last colon of `[::1]` belongs to the address.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
            _ => (without_user, None),
        };
        let default = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        Self {
            scheme: scheme.as_str(),
            host,
            port: port.unwrap_or(default),
        }
    }

    #[cfg(feature = "reqwest")]
    fn of_url(url: &'a reqwest::Url) -> Self {
        Self {
            scheme: url.scheme(),
            host: url.host_str().unwrap_or_default(),
            port: url.port_or_known_default().unwrap_or_default(),
        }
    }

    /// The key of the origin. Host names are the same in any case.
    pub(super) fn key(&self) -> Key {
        let mut key = Key::from_parts([KeyPart::Text(self.scheme.as_bytes())]);
        if self.host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            key.push(KeyPart::Text(self.host.to_ascii_lowercase().as_bytes()));
        } else {
            key.push(KeyPart::Text(self.host.as_bytes()));
        }
        key.push(KeyPart::Text(&self.port.to_be_bytes()));
        key
    }
}

impl std::fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

impl<B> Call for Request<B> {
    fn origin(&self) -> Origin<'_> {
        Origin::new(self.uri(), self.headers())
    }
}

impl<B> Answer for Response<B> {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

#[cfg(feature = "reqwest")]
impl Call for reqwest::Request {
    fn origin(&self) -> Origin<'_> {
        Origin::of_url(self.url())
    }
}

#[cfg(feature = "reqwest")]
impl Answer for reqwest::Response {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port_however_they_are_written() {
        let key = |uri: &str| Request::get(uri).body(()).unwrap().origin().key();
        for same in [
            "http://A.example/x?y",
            "http://a.example:80",
            "http://u:p@a.EXAMPLE/",
        ] {
            assert_eq!(key(same), key("http://a.example/"), "{same}");
        }
        for other in [
            "https://a.example/",
            "http://a.example:8080/",
            "http://b.example/",
        ] {
            assert_ne!(key(other), key("http://a.example/"), "{other}");
        }
        assert_eq!(key("http://[::1]/"), key("http://[::1]:80/"));
        assert_ne!(key("http://[::1]/"), key("http://[::1]:81/"));
    }

    #[test]
    fn a_call_without_an_authority_goes_to_its_host() {
        let call = Request::get("/x")
            .header(HOST, "a.example:81")
            .body(())
            .unwrap();
        let whole = Request::get("http://a.example:81/").body(()).unwrap();
        assert_eq!(call.origin().key(), whole.origin().key());
    }
}

//! Everything that a gateway is told, checked as far as one value can be checked by itself.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use tidegate::{Mode, WhenFull};
use tidegate_core::Policy;

use crate::identity::Identity;
use crate::keys::KeyPart;
use crate::problem::Compat;
use crate::ratelimit_fields::Dialect;
use crate::route::Pattern;

/// The settings of one gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where operators connect, if they do.
    pub admin: Option<SocketAddr>,
    /// How callers are told apart.
    pub identity: Identity,
    /// The limits; routes refer to them by position.
    pub limits: Vec<LimitSettings>,
    /// The routes.
    pub routes: Vec<RouteSettings>,
    /// Which fields tell a client about its limits.
    pub dialect: Dialect,
    /// Whose bodies the gateway's own answers have.
    pub compat: Compat,
    /// How long anything may take.
    pub timeouts: Timeouts,
    /// Connections of clients at one time; more wait in the system's queue.
    pub max_connections: usize,
    /// Whether each request is logged.
    pub access_log: bool,
}

/// How long anything may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client to send the head of a request.
    pub header: Duration,
    /// For a connection without a request.
    pub idle: Duration,
    /// For a body to move, in either direction, and for a client to take bytes.
    pub body: Duration,
    /// To connect to an upstream.
    pub connect: Duration,
    /// For requests in flight to finish, when the gateway stops.
    pub drain: Duration,
}

impl Default for Timeouts {
    /// 10 s for a head, 75 s for an idle connection, 30 s for a body to move, 5 s to connect,
    /// 30 s to drain.
    fn default() -> Self {
        Self {
            header: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            body: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            drain: Duration::from_secs(30),
        }
    }
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitSettings {
    /// Its name in fields, metrics and logs.
    pub name: String,
    /// Its algorithm and numbers.
    pub policy: Policy,
    /// Whose state is counted.
    pub key: Vec<KeyPart>,
    /// Whether it is enforced.
    pub mode: Mode,
    /// The most keys that it holds.
    pub max_keys: usize,
    /// What becomes of new keys then.
    pub when_full: WhenFull,
}

/// One route.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    /// Which requests it serves.
    pub pattern: Pattern,
    /// The positions of its limits.
    pub limits: Vec<usize>,
    /// What it does with a request that passes.
    pub action: Action,
}

/// What a route does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Answers by itself.
    Mock(Mock),
    /// Asks an upstream.
    Proxy(Proxy),
}

/// A ready answer.
#[derive(Clone, Debug)]
pub struct Mock {
    /// Its status.
    pub status: StatusCode,
    /// Its fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Mock {
    /// An answer whose `Content-Type` follows from its body: JSON where the body is JSON.
    #[must_use]
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let mut headers = HeaderMap::new();
        if !body.is_empty() {
            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
            let media = if is_json {
                "application/json"
            } else {
                "text/plain; charset=utf-8"
            };
            headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(media));
        }
        Self {
            status,
            headers,
            body,
        }
    }
}

/// Where a route's requests go.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// The upstream.
    pub upstream: Upstream,
    /// For the upstream to begin its answer, from the last byte that the client sent.
    pub timeout: Duration,
}

/// The default of [`Proxy::timeout`]: API Gateway's.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(29);

/// An upstream server, and the part of the path that comes before the request's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    authority: Authority,
    prefix: String,
    host: HeaderValue,
}

/// Why a URL cannot be an upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// Not a URL with a scheme and a host.
    #[error("{0:?} is not a URL such as \"http://127.0.0.1:9000\"")]
    Shape(String),
    /// `https`, which comes with a later version.
    #[error("{0:?} asks for TLS to the upstream, which this version does not have; use http")]
    Tls(String),
    /// A user, a query or a fragment.
    #[error("{0:?} may have a host, a port and a path, and nothing else")]
    Extra(String),
}

impl Upstream {
    /// Reads a URL: `http://host:port/prefix`.
    ///
    /// # Errors
    /// Another scheme, no host, or more than a host, a port and a path.
    pub fn parse(url: &str) -> Result<Self, UpstreamError> {
        let shape = || UpstreamError::Shape(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| shape())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(UpstreamError::Tls(url.to_owned())),
            _ => return Err(shape()),
        }
        let authority = uri.authority().ok_or_else(shape)?.clone();
        if authority.host().is_empty() {
            return Err(shape());
        }
        if authority.as_str().contains('@') || uri.query().is_some() || url.contains('#') {
            return Err(UpstreamError::Extra(url.to_owned()));
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| shape())?;
        Ok(Self {
            authority,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            host,
        })
    }

    /// The host and port, as written: also the upstream's name in metrics.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The `Host` field of its requests.
    #[must_use]
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// The target of a request with a canonical path. `original` is used as it is where nothing
    /// about it changes.
    #[must_use]
    pub fn target(&self, path: &str, query: Option<&str>, original: &Uri) -> Uri {
        let unchanged = original
            .path_and_query()
            .filter(|_| self.prefix.is_empty() && original.path() == path)
            .cloned();
        let path_and_query = unchanged.unwrap_or_else(|| {
            let mut text = String::with_capacity(
                self.prefix.len() + path.len() + 1 + query.map_or(0, str::len),
            );
            text.push_str(&self.prefix);
            text.push_str(path);
            if let Some(query) = query {
                text.push('?');
                text.push_str(query);
            }
            PathAndQuery::try_from(text).expect("a canonical path and a query that was parsed")
        });
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path_and_query);
        Uri::from_parts(parts).expect("all three parts are there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_a_port_and_a_path() {
        let upstream = Upstream::parse("http://127.0.0.1:9000/base/").unwrap();
        let original = Uri::from_static("/x//y?q=1");
        let target = upstream.target("/x/y", Some("q=1"), &original);
        assert_eq!(target, "http://127.0.0.1:9000/base/x/y?q=1");
        assert_eq!(upstream.host(), "127.0.0.1:9000");
    }

    #[test]
    fn a_canonical_target_goes_on_as_it_came() {
        let upstream = Upstream::parse("http://shop.example").unwrap();
        let original = Uri::from_static("/x?q=%7E");
        assert_eq!(
            upstream.target("/x", Some("q=%7E"), &original),
            "http://shop.example/x?q=%7E"
        );
    }

    #[test]
    fn other_urls_are_refused_with_the_reason() {
        for url in [
            "",
            "127.0.0.1:9000",
            "/x",
            "ftp://a",
            "http://",
            "http:///x",
            "http://a b",
        ] {
            assert!(
                matches!(Upstream::parse(url), Err(UpstreamError::Shape(_))),
                "{url}"
            );
        }
        assert!(matches!(
            Upstream::parse("https://a"),
            Err(UpstreamError::Tls(_))
        ));
        for url in ["http://u:p@a", "http://a/?x=1", "http://a/#x"] {
            assert!(
                matches!(Upstream::parse(url), Err(UpstreamError::Extra(_))),
                "{url}"
            );
        }
    }

    #[test]
    fn a_mock_says_what_its_body_is() {
        let media = |body: &'static str| {
            Mock::new(StatusCode::OK, body)
                .headers
                .get("content-type")
                .cloned()
        };
        assert_eq!(media("{\"a\":1}").unwrap(), "application/json");
        assert_eq!(media("Welcome").unwrap(), "text/plain; charset=utf-8");
        assert_eq!(media(""), None);
    }
}

//! What of a request its limits can go by.

use std::fmt;
use std::net::IpAddr;

use http::request::Parts;
use http::{Extensions, HeaderMap, Method};

use super::client_address::AddressKey;

/// The other end of a request's socket, as an extension of the request.
///
/// A server that knows its peers puts this into each request. Those of `axum` (its `ConnectInfo`)
/// and `tonic` (its `TcpConnectInfo`) are understood as they are, under the features of these
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// The claims of a token whose signature and times *were verified*, as an extension of the
/// request.
///
/// The layer that verifies tokens puts this in. Nothing here ever opens a token: a claim that
/// nobody vouches for is no claim, and a rule that counts by it finds it missing.
#[derive(Clone, PartialEq)]
pub struct VerifiedClaims(pub serde_json::Map<String, serde_json::Value>);

impl fmt::Debug for VerifiedClaims {
    /// Writes the names only: what a token says of a person belongs into no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The head of a request, as limits see it.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    method: &'a Method,
    path: &'a str,
    query: Option<&'a str>,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    client: Option<&'a AddressKey>,
    #[cfg(feature = "axum")]
    path_parameters: Option<&'a PathParameters>,
}

/// The parameters of the path that axum matched.
#[cfg(feature = "axum")]
#[derive(Debug)]
pub(crate) enum PathParameters {
    /// Decoded.
    Text(axum::extract::RawPathParams),
    /// One of them is not UTF-8 under its percent-encoding.
    NotText,
}

impl<'a> RequestHead<'a> {
    /// The head as it came, of a client whose address is not known.
    #[must_use]
    pub fn new(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &parts.headers,
            extensions: &parts.extensions,
            client: None,
            #[cfg(feature = "axum")]
            path_parameters: None,
        }
    }

    /// The same head of a client whose address is known.
    #[must_use]
    pub const fn from_client(mut self, client: &'a AddressKey) -> Self {
        self.client = Some(client);
        self
    }

    /// The same head with its path in another spelling: the one that was routed by.
    #[must_use]
    pub const fn at_path(mut self, path: &'a str) -> Self {
        self.path = path;
        self
    }

    #[cfg(feature = "axum")]
    pub(crate) const fn with_path_parameters(
        mut self,
        parameters: Option<&'a PathParameters>,
    ) -> Self {
        self.path_parameters = parameters;
        self
    }

    /// The method.
    #[must_use]
    pub const fn method(&self) -> &'a Method {
        self.method
    }

    /// The path, still percent-encoded.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        self.path
    }

    /// The query as it came, without the question mark.
    #[must_use]
    pub const fn query(&self) -> Option<&'a str> {
        self.query
    }

    /// The header fields.
    #[must_use]
    pub const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What layers before this one have put into the request.
    #[must_use]
    pub const fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    #[cfg(feature = "axum")]
    pub(super) const fn path_parameters(&self) -> Option<&'a PathParameters> {
        self.path_parameters
    }

    /// The client's address, cut to its prefix; none where the server does not say who its peer
    /// is.
    #[must_use]
    pub const fn client(&self) -> Option<&'a AddressKey> {
        self.client
    }
}

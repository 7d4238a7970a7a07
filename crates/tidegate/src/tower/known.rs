//! What a request's server and router know of it, looked up once for all rules.

use http::request::Parts;

use super::peer::peer;
#[cfg(feature = "axum")]
use crate::http::PathParameters;
use crate::http::{AddressKey, ClientAddress, RequestHead, Rules};

/// What is known of a request beside its head.
pub(super) struct Known {
    client: Option<AddressKey>,
    #[cfg(feature = "axum")]
    path: Option<PathParameters>,
}

impl Known {
    /// The client's address, if the server says who its peer is.
    pub fn client(parts: &Parts, client: &ClientAddress) -> Self {
        let key = peer(&parts.extensions).map(|peer| {
            let caller = client.caller(peer, &parts.headers);
            client.key(caller.client)
        });
        Self {
            client: key,
            #[cfg(feature = "axum")]
            path: None,
        }
    }

    /// That, and what `rules` go by.
    pub fn of(parts: &mut Parts, client: &ClientAddress, rules: &Rules) -> Self {
        let mut known = Self::client(parts, client);
        known.add(parts, rules);
        known
    }

    /// Looks up what `rules` go by.
    #[cfg_attr(not(feature = "axum"), expect(unused_variables, clippy::unused_self))]
    pub fn add(&mut self, parts: &mut Parts, rules: &Rules) {
        #[cfg(feature = "axum")]
        if rules.reads_the_path() {
            self.path = path_parameters(parts);
        }
    }

    /// The head of the request with all that.
    pub fn head<'a>(&'a self, parts: &'a Parts) -> RequestHead<'a> {
        let mut head = RequestHead::new(parts);
        if let Some(client) = &self.client {
            head = head.from_client(client);
        }
        #[cfg(feature = "axum")]
        let head = head.with_path_parameters(self.path.as_ref());
        head
    }
}

/// The parameters of the path that axum matched, if it did.
#[cfg(feature = "axum")]
fn path_parameters(parts: &mut Parts) -> Option<PathParameters> {
    use std::future::Future as _;
    use std::task::{Context, Poll, Waker};

    use axum::extract::rejection::RawPathParamsRejection;
    use axum::extract::{FromRequestParts as _, RawPathParams};

    let mut extraction = std::pin::pin!(RawPathParams::from_request_parts(parts, &()));
    let mut cx = Context::from_waker(Waker::noop());
    match extraction.as_mut().poll(&mut cx) {
        Poll::Ready(Ok(parameters)) => Some(PathParameters::Text(parameters)),
        Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
            Some(PathParameters::NotText)
        }
        // No route was matched. The extraction only looks at extensions and never has to wait.
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

//! The permit of one request, and the body that holds it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::Lease;

/// The permit of a request, as an extension of requests that ask for an upgrade.
///
/// An answer's body ends before an upgraded connection begins, so what serves the connection has
/// to hold the permit: take it from the request's extensions and keep it as long as the
/// connection. When the last clone is gone the permit is given back, once.
#[derive(Clone, Debug)]
pub struct RequestPermit {
    _lease: Arc<Lease>,
}

impl From<Lease> for RequestPermit {
    fn from(lease: Lease) -> Self {
        Self {
            _lease: Arc::new(lease),
        }
    }
}

pin_project! {
    /// A body that holds its request's permit until it has ended, failed, or is dropped.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        #[pin]
        body: B,
        permit: Option<RequestPermit>,
    }
}

impl<B> PermitBody<B> {
    pub(super) const fn new(body: B, permit: Option<RequestPermit>) -> Self {
        Self { body, permit }
    }
}

impl<B: Default> Default for PermitBody<B> {
    /// A body that holds no permit.
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            *this.permit = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

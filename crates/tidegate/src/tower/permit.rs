//! The permit of one request, and the body that holds it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::{LeaseId, Operation};

use crate::{Key, Limiter};

/// The permit of a request, as an extension of requests that ask for an upgrade.
///
/// An answer's body ends before an upgraded connection begins, so what serves the connection has
/// to hold the permit: take it from the request's extensions and keep it as long as the
/// connection. When the last clone is gone the permit is given back, once.
#[derive(Clone, Debug)]
pub struct RequestPermit {
    _guard: Arc<Guard>,
}

/// Gives a lease back when it goes.
#[derive(Debug)]
pub(super) struct Guard {
    limiter: Limiter,
    key: Key,
    lease: LeaseId,
}

impl RequestPermit {
    pub(super) fn new(limiter: Limiter, key: Key, lease: LeaseId) -> Self {
        let guard = Guard {
            limiter,
            key,
            lease,
        };
        Self {
            _guard: Arc::new(guard),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let release = Operation::Release { lease: self.lease };
        // A lease that ran out before is gone already, and so is one whose limit was made another
        // algorithm's since.
        let _ = self.limiter.apply(&self.key, self.limiter.now(), &release);
    }
}

/// An id that no other request of this process has.
pub(super) fn next_lease() -> LeaseId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    LeaseId(NEXT.fetch_add(1, Ordering::Relaxed).into())
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

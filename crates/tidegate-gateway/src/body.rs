//! Bodies on their way through: never buffered, each with a time-out while nothing moves.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client sent nothing for the time-out.
    #[error("the client sent nothing of its body for {0:?}")]
    ClientIdle(Duration),
    /// The client left, or what it sent is no body.
    #[error("the body of the client broke off")]
    Client(#[source] hyper::Error),
    /// The upstream sent nothing for the time-out.
    #[error("the upstream sent nothing of its body for {0:?}")]
    UpstreamIdle(Duration),
    /// The upstream left, or what it sent is no body.
    #[error("the body of the upstream broke off")]
    Upstream(#[source] hyper::Error),
}

/// A body that may not stand still for longer than a time-out.
///
/// Only waiting for the sender counts: while the receiver does not ask, no time passes.
#[derive(Debug)]
struct Paced {
    body: Incoming,
    idle: Duration,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

enum Stop {
    Idle(Duration),
    Broken(hyper::Error),
}

impl Paced {
    fn new(body: Incoming, idle: Duration) -> Self {
        Self {
            body,
            idle,
            since: None,
            timer: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stop>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.since = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Stop::Broken)));
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let deadline = since + self.idle;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            if timer.is_elapsed() || timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= deadline {
                return Poll::Ready(Some(Err(Stop::Idle(self.idle))));
            }
        }
    }
}

/// When a request's body last moved, for the time-out of the answer.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    /// Milliseconds after the start; the highest bit says that the body is complete.
    moved: AtomicU64,
}

const COMPLETE: u64 = 1 << 63;

impl Progress {
    /// Begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            moved: AtomicU64::new(0),
        }
    }

    /// When the body last moved.
    #[must_use]
    pub fn moved_at(&self) -> Instant {
        self.start + Duration::from_millis(self.moved.load(Ordering::Relaxed) & !COMPLETE)
    }

    fn note(&self, complete: bool) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0) & !COMPLETE;
        self.moved.store(
            if complete { millis | COMPLETE } else { millis },
            Ordering::Relaxed,
        );
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// What goes to the upstream.
#[derive(Debug)]
pub struct RequestBody(Option<(Paced, Arc<Progress>)>);

impl RequestBody {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self(None)
    }

    /// The client's body as it comes in; `progress` learns when it moves.
    #[must_use]
    pub fn streaming(body: Incoming, idle: Duration, progress: Arc<Progress>) -> Self {
        Self(Some((Paced::new(body, idle), progress)))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some((body, progress)) = &mut self.0 else {
            return Poll::Ready(None);
        };
        body.poll(cx).map(|frame| {
            progress.note(frame.is_none());
            frame.map(|frame| {
                frame.map_err(|stop| match stop {
                    Stop::Idle(idle) => BodyError::ClientIdle(idle),
                    Stop::Broken(error) => BodyError::Client(error),
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|(body, _)| body.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or(SizeHint::with_exact(0), |(body, _)| body.body.size_hint())
    }
}

/// What goes to the client. `G` lives as long as the answer is on its way.
#[derive(Debug)]
pub struct ResponseBody<G> {
    content: Content,
    _guard: G,
}

#[derive(Debug)]
enum Content {
    Whole(Option<Bytes>),
    Upstream(Paced),
}

impl<G> ResponseBody<G> {
    /// A body that is there already; it may be empty.
    pub fn whole(bytes: Bytes, guard: G) -> Self {
        let content = Content::Whole((!bytes.is_empty()).then_some(bytes));
        Self {
            content,
            _guard: guard,
        }
    }

    /// The upstream's body as it comes in.
    pub fn streaming(body: Incoming, idle: Duration, guard: G) -> Self {
        Self {
            content: Content::Upstream(Paced::new(body, idle)),
            _guard: guard,
        }
    }
}

impl<G: Unpin> Body for ResponseBody<G> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Upstream(body) => body.poll(cx).map(|frame| {
                frame.map(|frame| {
                    frame.map_err(|stop| match stop {
                        Stop::Idle(idle) => BodyError::UpstreamIdle(idle),
                        Stop::Broken(error) => BodyError::Upstream(error),
                    })
                })
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Upstream(body) => body.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Upstream(body) => body.body.size_hint(),
        }
    }
}

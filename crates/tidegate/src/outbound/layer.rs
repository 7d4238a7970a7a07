//! The layer around a client.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tidegate_core::{MAX_PERIOD, Micros};
use tower_layer::Layer;
use tower_service::Service;

use super::advice::pause;
use super::call::{Answer, Call};
use super::waiting::{OutboundError, turn};
use crate::{Key, Limiter, WaitError};

/// Lets calls to a host wait for their turn, in the order that they came in, and heeds what the host says of its limits.
///
/// Each origin (scheme, host and port) is a key of `limiter`. After a 429 or 503 that names a
/// time, and after any answer that says that nothing of a limit remains, that key is blocked for
/// the time. What is understood: `Retry-After` in seconds or as a date, `RateLimit` with
/// `RateLimit-Policy`, and the fields with one number each: `X-RateLimit-Remaining` with
/// `X-RateLimit-Reset` or `-Reset-After`, and `RateLimit-Remaining` with `RateLimit-Reset`. Vendors
/// disagree on what `X-RateLimit-Reset` is: up to a thousand million it is taken for seconds from
/// now, above that for a point in time, in seconds, or from a million million on in milliseconds.
/// A 429 that names no time is worth a second.
///
/// How many hosts are remembered is bounded by the limiter's `max_keys`.
///
/// ```
/// use std::time::Duration;
///
/// use tidegate::outbound::OutboundLayer;
/// use tidegate::{Limiter, Rate, TokenBucket};
///
/// let ten_a_second = Limiter::builder(TokenBucket::new(Rate::per_second(10)?, 10)?);
/// let layer = OutboundLayer::new(ten_a_second.max_keys(1_000).build())
///     .max_wait(Duration::from_secs(5))
///     .max_pause(Duration::from_secs(600));
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutboundLayer(Settings);

/// A client behind an [`OutboundLayer`].
#[derive(Clone, Debug)]
pub struct Outbound<S> {
    inner: S,
    settings: Settings,
}

#[derive(Clone, Debug)]
struct Settings {
    limiter: Limiter,
    max_wait: Duration,
    max_pause: Duration,
}

impl OutboundLayer {
    /// A layer that lets each origin be called as often as `limiter` allows.
    #[must_use]
    pub const fn new(limiter: Limiter) -> Self {
        Self(Settings {
            limiter,
            max_wait: Duration::from_secs(30),
            max_pause: Duration::from_secs(3_600),
        })
    }

    /// How long a call waits for its turn at most, before it fails with
    /// [`OutboundError::NotSent`]; a call that is known to have to wait longer fails at once. Default: 30
    /// seconds.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.0.max_wait = wait;
        self
    }

    /// For how long a host may ask not to be called; a longer time is cut. Default: an hour.
    #[must_use]
    pub const fn max_pause(mut self, pause: Duration) -> Self {
        self.0.max_pause = pause;
        self
    }
}

impl<S> Layer<S> for OutboundLayer {
    type Service = Outbound<S>;

    fn layer(&self, inner: S) -> Outbound<S> {
        Outbound {
            inner,
            settings: self.0.clone(),
        }
    }
}

impl<S> Outbound<S> {
    /// The client behind the layer.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, C> Service<C> for Outbound<S>
where
    C: Call,
    S: Service<C> + Clone,
    S::Response: Answer,
{
    type Response = S::Response;
    type Error = OutboundError<S::Error>;
    type Future = OutboundFuture<S, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(OutboundError::Client)
    }

    fn call(&mut self, call: C) -> Self::Future {
        let key = call.origin().key();
        let settings = self.settings.clone();
        // Every call stands in line, also where nobody waits: so who came first goes first.
        let turn = turn(settings.limiter.clone(), key.clone(), settings.max_wait);
        // It was this very client that said it was ready, so it has to make the call.
        let fresh = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, fresh);
        OutboundFuture {
            state: State::Waiting {
                turn: Box::pin(turn),
                next: Some((ready, call)),
            },
            key,
            settings,
        }
    }
}

impl Settings {
    /// Blocks a host that asks for it.
    fn heed(&self, key: &Key, answer: &impl Answer) {
        let now = self.limiter.now();
        let since_epoch = Micros(now.as_micros()).as_duration();
        let Some(pause) = pause(answer.status(), answer.headers(), since_epoch) else {
            return;
        };
        let pause = pause.min(self.max_pause).min(MAX_PERIOD.as_duration());
        // Of several answers under way at once, the longest pause counts.
        let key = self.limiter.key(key).at(now);
        if key.state().blocked_for.as_duration() < pause {
            key.block(pause).expect("a period within the longest");
        }
    }
}

type Turn = Pin<Box<dyn Future<Output = Result<(), WaitError>> + Send>>;

pin_project! {
    /// The answer of an [`Outbound`] client.
    pub struct OutboundFuture<S, C>
    where
        S: Service<C>,
    {
        #[pin]
        state: State<S, C, S::Future>,
        key: Key,
        settings: Settings,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, C, F> {
        Waiting { turn: Turn, next: Option<(S, C)> },
        Called { #[pin] answer: F },
    }
}

impl<S, C> Future for OutboundFuture<S, C>
where
    C: Call,
    S: Service<C>,
    S::Response: Answer,
{
    type Output = Result<S::Response, OutboundError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let answer = match this.state.as_mut().project() {
                StateProjection::Called { answer } => {
                    let answer = ready!(answer.poll(cx)).map_err(OutboundError::Client)?;
                    this.settings.heed(this.key, &answer);
                    return Poll::Ready(Ok(answer));
                }
                StateProjection::Waiting { turn, next } => {
                    let turn = ready!(turn.as_mut().poll(cx));
                    let (mut client, call) = next
                        .take()
                        .expect("the wait ends once, and the state with it");
                    if let Err(source) = turn {
                        let origin = call.origin().to_string();
                        return Poll::Ready(Err(OutboundError::NotSent { origin, source }));
                    }
                    client.call(call)
                }
            };
            this.state.set(State::Called { answer });
        }
    }
}

impl<S: Service<C>, C> fmt::Debug for OutboundFuture<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundFuture")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

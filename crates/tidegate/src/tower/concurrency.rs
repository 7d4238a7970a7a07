//! The layer that lets so many requests of a key be at work at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::UPGRADE;
use http::request::Parts;
use http::{Method, Request, Response};
use pin_project_lite::pin_project;
use tidegate_core::{Policy, Wait};
use tower_layer::Layer;
use tower_service::Service;

use super::body::ResponseBody;
use super::known::Known;
use super::permit::{PermitBody, RequestPermit};
use crate::http::{
    Answers, ClientAddress, KeySource, Missing, Refusal, RequestHead, Rule, RuleError, Rules,
    Ruling, Undecided,
};
use crate::{Lease, Limiter, Mode, WaitError, WaitOptions};

/// So many requests of a key at once.
///
/// A permit is taken before the service sees a request and given back when the body of the answer
/// has ended or is dropped, or when there is no answer: the service failed or panicked, or the
/// caller left. Each permit is given back exactly once; while it is held it renews itself, up to the
/// limit's `max_hold`. An upgraded connection outlives its
/// answer: it keeps the permit if what serves it holds the [`RequestPermit`] that such a request
/// carries.
///
/// A request beyond the limit is refused at once, and only its answer tells of the limit: with 429, since a client that is too busy can
/// slow down; or with 503 ([`Self::shed`]), where the limit protects the service from everybody. It
/// may also wait for its turn first ([`Self::wait`]), in the order that requests came in.
///
/// ```
/// use tidegate::http::KeySource;
/// use tidegate::tower::ConcurrencyLayer;
/// use tidegate::{Concurrency, Limiter, Micros};
///
/// let in_flight = Concurrency::new(10, Micros::from_secs(60), None)?;
/// let limiter = Limiter::builder(in_flight).name("in-flight").build();
/// let layer = ConcurrencyLayer::new(limiter)?.key([KeySource::client_address()]);
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer {
    limiter: Limiter,
    key: Vec<KeySource>,
    missing: Missing,
    client: ClientAddress,
    answers: Answers,
    sheds: bool,
    wait: Option<WaitOptions>,
}

/// A service behind a [`ConcurrencyLayer`].
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// One.
    limiter: Limiter,
    rules: Rules,
    client: ClientAddress,
    answers: Answers,
    sheds: bool,
    wait: Option<WaitOptions>,
}

/// How long a refused client is told to wait. Nobody knows when a request will end; the engine's
/// own answer, when the first lease runs out, would nearly always be too late.
const RETRY_AFTER: Wait = Wait::micros(1_000_000);

impl ConcurrencyLayer {
    /// A layer that lets so many requests at once pass as `limiter` has permits: all together,
    /// or for each [`Self::key`].
    ///
    /// # Errors
    /// The limiter is no concurrency limit.
    pub fn new(limiter: Limiter) -> Result<Self, RuleError> {
        if !matches!(limiter.policy(), Policy::Concurrency(_)) {
            let limit = limiter.name().to_owned();
            return Err(RuleError::NoPermits { limit });
        }
        Ok(Self {
            limiter,
            key: Vec::new(),
            missing: Missing::default(),
            client: ClientAddress::default(),
            answers: Answers::default(),
            sheds: false,
            wait: None,
        })
    }

    /// Counts requests apart by these parts together. Default: none, one key for all.
    #[must_use]
    pub fn key(mut self, parts: impl IntoIterator<Item = KeySource>) -> Self {
        self.key = parts.into_iter().collect();
        self
    }

    /// What becomes of a request that lacks a part of the key. Default: [`Missing::Share`].
    #[must_use]
    pub const fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// How the client's address is found. Default: nobody's forwarding fields are believed.
    #[must_use]
    pub fn client_address(mut self, client: ClientAddress) -> Self {
        self.client = client;
        self
    }

    /// How answers tell of the limit. Default: [`Answers::default`].
    #[must_use]
    pub fn answers(mut self, answers: Answers) -> Self {
        self.answers = answers;
        self
    }

    /// Lets a request wait for a permit, in the order that they came in, before it is refused. A
    /// request that is given up while it waits makes way for the next one. Default: no wait.
    ///
    /// Bound it by [`WaitOptions::max_wait`]: clients that give up in silence would wait for ever.
    #[must_use]
    pub const fn wait(mut self, options: WaitOptions) -> Self {
        self.wait = Some(options);
        self
    }

    /// Refuses with 503, as a service that protects itself does, and not with 429.
    #[must_use]
    pub const fn shed(mut self) -> Self {
        self.sheds = true;
        self
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = ConcurrencyLimit<S>;

    fn layer(&self, inner: S) -> ConcurrencyLimit<S> {
        let rule = Rule::counting(self.limiter.clone());
        let rule = rule.key(self.key.iter().cloned()).missing(self.missing);
        let shared = Shared {
            limiter: self.limiter.clone(),
            rules: Rules::from_iter([rule]),
            client: self.client.clone(),
            answers: self.answers.clone(),
            sheds: self.sheds,
            wait: self.wait,
        };
        ConcurrencyLimit {
            inner,
            shared: Arc::new(shared),
        }
    }
}

impl<S> ConcurrencyLimit<S> {
    /// The service behind the layer.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for ConcurrencyLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<PermitBody<R>>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let entered = self.shared.enter(&mut parts);
        let mut request = Request::from_parts(parts, body);
        let (state, permit) = match entered {
            Entry::Refuse(response) => {
                let response = Some(*response);
                (State::Refused { response }, None)
            }
            Entry::Pass(permit) => {
                hand_over(permit.as_ref(), &mut request);
                let answer = self.inner.call(request);
                (State::Passed { answer }, permit)
            }
            Entry::Wait(turn) => {
                // It was this very service that said it was ready, so it has to take the request.
                let fresh = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, fresh);
                let next = Some((ready, request));
                (State::Waiting { turn, next }, None)
            }
        };
        ConcurrencyFuture {
            state,
            permit,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// What becomes of a request.
enum Entry {
    /// It passes; without a permit where the limit does not apply to it.
    Pass(Option<RequestPermit>),
    Wait(Turn),
    Refuse(Box<Response<Bytes>>),
}

type Turn = Pin<Box<dyn Future<Output = Result<Lease, WaitError>> + Send>>;

/// Gives a request that asks for an upgrade its permit to keep.
fn hand_over<B>(permit: Option<&RequestPermit>, request: &mut Request<B>) {
    if let Some(permit) = permit
        && (request.method() == Method::CONNECT || request.headers().contains_key(UPGRADE))
    {
        request.extensions_mut().insert(permit.clone());
    }
}

impl Shared {
    /// Takes a permit for a request, or waits for one.
    fn enter(&self, parts: &mut Parts) -> Entry {
        let Some(rule) = self.rules.first() else {
            return Entry::Pass(None);
        };
        let limiter = &self.limiter;
        if limiter.mode() == Mode::Off {
            return Entry::Pass(None);
        }
        let known = Known::of(parts, &self.client, &self.rules);
        let head = known.head(parts);
        let key = match rule.key_of(head) {
            Ok(None) => return Entry::Pass(None),
            Ok(Some(key)) => key,
            Err(fault) => return Entry::Refuse(self.undecided(head, &fault.into())),
        };
        match (limiter.try_acquire(&key, 1), &self.wait) {
            (Ok(lease), _) => Entry::Pass(Some(lease.into())),
            (Err(WaitError::Denied(_)), Some(options)) => {
                Entry::Wait(Box::pin(limiter.acquire_with(key, 1, options)))
            }
            (Err(error), _) => Entry::Refuse(self.refuse(head, &error)),
        }
    }

    /// The answer to a request that gets no permit.
    fn refuse(&self, head: RequestHead<'_>, error: &WaitError) -> Box<Response<Bytes>> {
        if let WaitError::Unsupported(error) = error {
            return self.undecided(head, &Undecided::Operation(*error));
        }
        let mut decision = *error.known().expect("what is refused was decided");
        decision.reset_after = Wait::NEVER;
        if !decision.retry_after.is_never() {
            decision.retry_after = decision.retry_after.min(RETRY_AFTER);
        }
        let mut ruling = Ruling::single(decision, decision.at);
        ruling.set_sheds(self.sheds);
        let refusal = Refusal::Denied(&ruling);
        Box::new(self.answers.refuse(&self.rules, refusal, head))
    }

    fn undecided(&self, head: RequestHead<'_>, undecided: &Undecided) -> Box<Response<Bytes>> {
        let refusal = Refusal::Undecided(undecided);
        Box::new(self.answers.refuse(&self.rules, refusal, head))
    }
}

pin_project! {
    /// The answer of a [`ConcurrencyLimit`] service.
    pub struct ConcurrencyFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        permit: Option<RequestPermit>,
        shared: Arc<Shared>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        Refused { response: Option<Response<Bytes>> },
        Waiting { turn: Turn, next: Option<(S, Request<B>)> },
        Passed { #[pin] answer: F },
    }
}

impl<S, B, R> Future for ConcurrencyFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<PermitBody<R>>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Refused { response } => {
                    let response = response
                        .take()
                        .expect("a future is not polled after its end");
                    return Poll::Ready(Ok(response.map(ResponseBody::whole)));
                }
                StateProjection::Passed { answer } => {
                    let answered = ready!(answer.poll(cx));
                    // Without an answer it goes back at once.
                    let permit = this.permit.take();
                    let response = answered?.map(|body| PermitBody::new(body, permit));
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProjection::Waiting { turn, next } => {
                    let turn = ready!(turn.as_mut().poll(cx));
                    let (mut service, mut request) = next
                        .take()
                        .expect("the wait ends once, and the state with it");
                    match turn {
                        Ok(lease) => {
                            *this.permit = Some(lease.into());
                            hand_over(this.permit.as_ref(), &mut request);
                            State::Passed {
                                answer: service.call(request),
                            }
                        }
                        Err(error) => {
                            let (parts, _) = request.into_parts();
                            let head = RequestHead::new(&parts);
                            State::Refused {
                                response: Some(*this.shared.refuse(head, &error)),
                            }
                        }
                    }
                }
            };
            this.state.set(next);
        }
    }
}

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
use tidegate_core::{Demand, Operation, Policy, Reply, Wait};
use tower_layer::Layer;
use tower_service::Service;

use super::body::ResponseBody;
use super::known::Known;
use super::permit::{PermitBody, RequestPermit, next_lease};
use crate::http::{
    Answers, ClientAddress, KeySource, Missing, Refusal, RequestHead, Rule, RuleError, Rules,
    Ruling, Undecided,
};
use crate::{Limiter, Mode};

/// So many requests of a key at once.
///
/// A permit is taken before the service sees a request and given back when the body of the answer
/// has ended or is dropped, or when there is no answer: the service failed or panicked, or the
/// caller left. Each permit is given back exactly once. An upgraded connection outlives its
/// answer: it keeps the permit if what serves it holds the [`RequestPermit`] that such a request
/// carries.
///
/// Permits are not renewed while a request lasts: one that outlasts the limit's `lease` no longer
/// counts. Choose a lease above the longest request, and above the longest connection where such
/// hold permits; it only bounds for how long a permit could be missing if a holder were forgotten.
///
/// A request beyond the limit is refused at once, and only its answer tells of the limit: with 429, since a client that is too busy can
/// slow down; or with 503 ([`Self::shed`]), where the limit protects the service from everybody.
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
    rules: Rules,
    client: ClientAddress,
    answers: Answers,
    sheds: bool,
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
            rules: Rules::from_iter([rule]),
            client: self.client.clone(),
            answers: self.answers.clone(),
            sheds: self.sheds,
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
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<ResponseBody<PermitBody<R>>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let permit = match self.shared.enter(&mut parts) {
            Ok(permit) => permit,
            Err(refused) => {
                return ConcurrencyFuture {
                    state: State::Refused {
                        response: Some(*refused),
                    },
                    permit: None,
                };
            }
        };
        if let Some(permit) = &permit
            && (parts.method == Method::CONNECT || parts.headers.contains_key(UPGRADE))
        {
            parts.extensions.insert(permit.clone());
        }
        ConcurrencyFuture {
            state: State::Passed {
                answer: self.inner.call(Request::from_parts(parts, body)),
            },
            permit,
        }
    }
}

impl Shared {
    /// Takes a permit for a request; none where the limit does not apply to it, or is only
    /// watched and had none left.
    fn enter(&self, parts: &mut Parts) -> Result<Option<RequestPermit>, Box<Response<Bytes>>> {
        let Some(rule) = self.rules.first() else {
            return Ok(None);
        };
        if rule.limiter().mode() == Mode::Off {
            return Ok(None);
        }
        let known = Known::of(parts, &self.client, &self.rules);
        let head = known.head(parts);
        let refuse = |refusal| Box::new(self.answers.refuse(&self.rules, refusal, head));
        match take_permit(rule, head) {
            Ok(Taken::Permit(permit)) => Ok(permit),
            Ok(Taken::Denied(mut ruling)) => {
                ruling.sheds = self.sheds;
                Err(refuse(Refusal::Denied(&ruling)))
            }
            Err(undecided) => Err(refuse(Refusal::Undecided(&undecided))),
        }
    }
}

/// What came of asking for a permit.
enum Taken {
    Permit(Option<RequestPermit>),
    Denied(Box<Ruling>),
}

fn take_permit(rule: &Rule, head: RequestHead<'_>) -> Result<Taken, Undecided> {
    let Some(key) = rule.key_of(head)? else {
        return Ok(Taken::Permit(None));
    };
    let limiter = rule.limiter();
    let (now, lease) = (limiter.now(), next_lease());
    let acquire = Operation::Take(Demand::Acquire { lease, weight: 1 });
    let Reply::Leased(mut decision, grant) = limiter.apply(&key, now, &acquire)? else {
        return Ok(Taken::Permit(None));
    };
    if decision.is_allowed() {
        let permit = grant.map(|grant| RequestPermit::new(limiter.clone(), key, grant.lease));
        return Ok(Taken::Permit(permit));
    }
    decision.reset_after = Wait::NEVER;
    if !decision.retry_after.is_never() {
        decision.retry_after = decision.retry_after.min(RETRY_AFTER);
    }
    Ok(Taken::Denied(Box::new(Ruling::single(decision, now))))
}

pin_project! {
    /// The answer of a [`ConcurrencyLimit`] service.
    pub struct ConcurrencyFuture<F> {
        #[pin]
        state: State<F>,
        permit: Option<RequestPermit>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Refused { response: Option<Response<Bytes>> },
        Passed { #[pin] answer: F },
    }
}

impl<F, R, E> Future for ConcurrencyFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<PermitBody<R>>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.state.project() {
            StateProjection::Refused { response } => {
                let response = response
                    .take()
                    .expect("a future is not polled after its end");
                Poll::Ready(Ok(response.map(ResponseBody::whole)))
            }
            StateProjection::Passed { answer } => {
                let answered = ready!(answer.poll(cx));
                // Without an answer it goes back at once.
                let permit = this.permit.take();
                let response = answered?.map(|body| PermitBody::new(body, permit));
                Poll::Ready(Ok(response.map(ResponseBody::inner)))
            }
        }
    }
}

//! The layer that decides over requests before a service sees them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_layer::Layer;
use tower_service::Service;

use super::body::ResponseBody;
use super::known::Known;
use crate::http::{
    Answers, Begun, ClientAddress, Pending, Refusal, RequestHead, Rule, Rules, Ruling, Undecided,
};

/// Limits on the requests of a service.
///
/// All rules of a request are one [`all_of`](crate::all_of()): a request that one of them refuses
/// is charged to none. A refused request never reaches the service; an allowed one does, and its
/// answer tells of its limits. Where an allowed request has to wait (a paced queue), it waits here.
/// Limits that other processes share are asked in one step after those in memory; see
/// [`Rules::decide_shared`].
///
/// A charge is settled exactly once (see [`Rule::after`]): when the head of the answer is there,
/// or, for want of an answer, when the service fails, panics, or its future is dropped.
///
/// ```
/// use tidegate::http::{KeySource, Rule};
/// use tidegate::tower::RateLimitLayer;
/// use tidegate::{Limiter, Micros, Rate, SlidingLog, TokenBucket};
///
/// let all = Limiter::builder(TokenBucket::new(Rate::per_second(100)?, 200)?).name("all");
/// let client = Limiter::builder(SlidingLog::new(100, Micros::from_secs(60))?).name("client");
/// let layer = RateLimitLayer::new([
///     Rule::new(all.build())?,
///     Rule::new(client.build())?.key([KeySource::client_address()]),
/// ]);
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer(Arc<Shared>);

/// A service behind a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// What all clones of a layer and its services share.
#[derive(Clone)]
struct Shared {
    choice: Choice,
    answers: Answers,
    client: ClientAddress,
    observer: Option<Arc<Observer>>,
}

/// Which rules a request is under.
#[derive(Clone)]
enum Choice {
    These(Arc<Rules>),
    By(Arc<Choose>),
}

type Choose = dyn Fn(RequestHead<'_>) -> Option<Arc<Rules>> + Send + Sync;
type Observer = dyn Fn(RequestHead<'_>, &Rules, Result<&Ruling, &Undecided>) + Send + Sync;

impl RateLimitLayer {
    /// A layer under these rules. The time of a decision is read from the clock of the first
    /// rule's limiter, once.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::with(Choice::These(Arc::new(rules.into_iter().collect())))
    }

    /// A layer whose rules depend on the request; none lets it pass.
    ///
    /// One layer over all routes can so pick rules by tenant or by plan. Where rules depend on the
    /// route only, axum's `Router::route_layer` with a layer for each says it more plainly.
    #[must_use]
    pub fn select(
        choose: impl Fn(RequestHead<'_>) -> Option<Arc<Rules>> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Choice::By(Arc::new(choose)))
    }

    fn with(choice: Choice) -> Self {
        Self(Arc::new(Shared {
            choice,
            answers: Answers::default(),
            client: ClientAddress::default(),
            observer: None,
        }))
    }

    /// How answers tell of the limits. Default: [`Answers::default`].
    #[must_use]
    pub fn answers(mut self, answers: Answers) -> Self {
        Arc::make_mut(&mut self.0).answers = answers;
        self
    }

    /// How the client's address is found. Default: nobody's forwarding fields are believed.
    #[must_use]
    pub fn client_address(mut self, client: ClientAddress) -> Self {
        Arc::make_mut(&mut self.0).client = client;
        self
    }

    /// Shows every decision to `observer`, for counting and logging. It runs before the request
    /// goes on.
    #[must_use]
    pub fn observe(
        mut self,
        observer: impl Fn(RequestHead<'_>, &Rules, Result<&Ruling, &Undecided>) + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.0).observer = Some(Arc::new(observer));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit {
            inner,
            shared: Arc::clone(&self.0),
        }
    }
}

impl<S> RateLimit<S> {
    /// The service behind the layer.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = RateLimitFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> RateLimitFuture<S, B> {
        let (mut parts, body) = request.into_parts();
        let (state, passage) = match self.shared.decide(&mut parts) {
            Step::Refused(refused) => {
                let response = Some(*refused);
                (State::Refused { response }, None)
            }
            Step::Passed(passage) => {
                let request = Request::from_parts(parts, body);
                let delay = passage.as_ref().and_then(|passage| passage.ruling.delay());
                let state = match delay {
                    None => State::Passed {
                        answer: self.inner.call(request),
                    },
                    Some(delay) => State::Waiting {
                        sleep: sleep(delay),
                        next: Some((self.take_ready(), request)),
                    },
                };
                (state, passage)
            }
            Step::Asking(rules, pending) => {
                let asked = {
                    let rules = Arc::clone(&rules);
                    Box::pin(async move { pending.finish(&rules).await })
                };
                let held = Held {
                    service: self.take_ready(),
                    request: Request::from_parts(parts, body),
                    shared: Arc::clone(&self.shared),
                    rules,
                };
                let held = Some(Box::new(held));
                (State::Asking { asked, held }, None)
            }
        };
        RateLimitFuture { state, passage }
    }
}

impl<S: Clone> RateLimit<S> {
    /// The service that said it was ready, which is the one that has to take the request.
    fn take_ready(&mut self) -> S {
        let fresh = self.inner.clone();
        std::mem::replace(&mut self.inner, fresh)
    }
}

/// How far a request is when it comes in.
enum Step {
    /// No limit applies to it, or all allow it.
    Passed(Option<Passage>),
    Refused(Box<Response<Bytes>>),
    /// The limits in memory allow it, and others are to be asked.
    Asking(Arc<Rules>, Box<Pending>),
}

impl Shared {
    /// Decides over a request, as far as that goes without asking anybody.
    fn decide(self: &Arc<Self>, parts: &mut Parts) -> Step {
        let mut known = Known::client(parts, &self.client);
        let rules = match &self.choice {
            Choice::These(rules) => Arc::clone(rules),
            Choice::By(choose) => match choose(known.head(parts)) {
                Some(rules) => rules,
                None => return Step::Passed(None),
            },
        };
        let Some(now) = rules.moment() else {
            return Step::Passed(None);
        };
        known.add(parts, &rules);
        let head = known.head(parts);
        let decided = match rules.begin(head, now) {
            Ok(Begun::Asking(pending)) => return Step::Asking(rules, pending),
            Ok(Begun::Decided(ruling)) => Ok(ruling),
            Err(undecided) => Err(undecided),
        };
        match self.conclude(head, rules, decided) {
            Ok(passage) => Step::Passed(Some(passage)),
            Err(refused) => Step::Refused(refused),
        }
    }

    /// What becomes of a request over which there is a decision, or none.
    fn conclude(
        self: &Arc<Self>,
        head: RequestHead<'_>,
        rules: Arc<Rules>,
        decided: Result<Ruling, Undecided>,
    ) -> Result<Passage, Box<Response<Bytes>>> {
        if let Some(observer) = &self.observer {
            observer(head, &rules, decided.as_ref());
        }
        let refuse = |refusal| Box::new(self.answers.refuse(&rules, refusal, head));
        match decided {
            Ok(ruling) if ruling.is_allowed() => Ok(Passage {
                shared: Arc::clone(self),
                rules,
                ruling,
            }),
            Ok(ruling) => Err(refuse(Refusal::Denied(&ruling))),
            Err(undecided) => Err(refuse(Refusal::Undecided(&undecided))),
        }
    }
}

/// A request whose shared limits are being asked.
struct Held<S, B> {
    service: S,
    request: Request<B>,
    shared: Arc<Shared>,
    rules: Arc<Rules>,
}

type Asked = Pin<Box<dyn Future<Output = Result<Ruling, Undecided>> + Send>>;

/// A request on its way through the service, whose charge is settled when it comes back, or when
/// it is given up.
struct Passage {
    shared: Arc<Shared>,
    rules: Arc<Rules>,
    ruling: Ruling,
}

impl Passage {
    fn finish(mut self, answer: &mut http::response::Parts) {
        self.rules.settle(&mut self.ruling, Some(answer));
        let answers = &self.shared.answers;
        answers.write_fields(&self.rules, &self.ruling, &mut answer.headers);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.rules.settle(&mut self.ruling, None);
    }
}

pin_project! {
    /// The answer of a [`RateLimit`] service.
    pub struct RateLimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        passage: Option<Passage>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        Refused { response: Option<Response<Bytes>> },
        Asking { asked: Asked, held: Option<Box<Held<S, B>>> },
        Waiting { #[pin] sleep: Sleep, next: Option<(S, Request<B>)> },
        Passed { #[pin] answer: F },
    }
}

impl<S, B, R> Future for RateLimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

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
                StateProjection::Asking { asked, held } => {
                    let decided = ready!(asked.as_mut().poll(cx));
                    let held = held
                        .take()
                        .expect("it is decided once, and the state with it");
                    let Held {
                        service,
                        request,
                        shared,
                        rules,
                    } = *held;
                    let (mut parts, body) = request.into_parts();
                    let known = Known::of(&mut parts, &shared.client, &rules);
                    let concluded = shared.conclude(known.head(&parts), rules, decided);
                    match concluded {
                        Err(refused) => State::Refused {
                            response: Some(*refused),
                        },
                        Ok(passage) => {
                            let delay = passage.ruling.delay().unwrap_or_default();
                            *this.passage = Some(passage);
                            let request = Request::from_parts(parts, body);
                            // Without a delay it is over at once.
                            State::Waiting {
                                sleep: sleep(delay),
                                next: Some((service, request)),
                            }
                        }
                    }
                }
                StateProjection::Passed { answer } => {
                    let answered = ready!(answer.poll(cx));
                    let passage = this.passage.take();
                    let (mut head, body) = answered?.into_parts();
                    if let Some(passage) = passage {
                        passage.finish(&mut head);
                    }
                    let body = ResponseBody::inner(body);
                    return Poll::Ready(Ok(Response::from_parts(head, body)));
                }
                StateProjection::Waiting { sleep, next } => {
                    ready!(sleep.poll(cx));
                    let (mut service, request) = next
                        .take()
                        .expect("the wait ends once, and the state with it");
                    let answer = service.call(request);
                    State::Passed { answer }
                }
            };
            this.state.set(next);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("RateLimitLayer");
        if let Choice::These(rules) = &self.choice {
            shared.field("rules", rules);
        }
        shared
            .field("answers", &self.answers)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

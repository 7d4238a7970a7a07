//! One request, from its head to its answer: the steps of the gateway in their order.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONNECTION};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tidegate::SystemClock;
use tidegate::http::{Problem, Refusal, RequestHead, Undecided};

use crate::body::ResponseBody;
use crate::canonical::canonical;
use crate::generation::{Generation, Mock, RouteAction};
use crate::headers::{Hop, forward, strip_hop_by_hop};
use crate::host::host;
use crate::metrics::{MethodName, Metrics, Name, RequestLabels};
use crate::route::Match;
use crate::stores;
use crate::upstream::{Fault, Upstream};
use crate::wire::Activity;

/// What is counted for a request whose client left before an answer.
const CLIENT_LEFT: u16 = 499;

/// Bytes of a request line that are logged.
const MAX_LOGGED: usize = 2048;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub address: IpAddr,
    /// Whether it speaks TLS.
    pub is_secure: bool,
}

/// The gateway as every connection sees it.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) current: ArcSwap<Generation>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: SystemClock,
    in_flight: AtomicUsize,
    unmatched: Name,
}

impl Gateway {
    pub(crate) fn new(generation: Generation, metrics: Arc<Metrics>, clock: SystemClock) -> Self {
        Self {
            current: ArcSwap::from_pointee(generation),
            metrics,
            clock,
            in_flight: AtomicUsize::new(0),
            unmatched: Name::from("unmatched"),
        }
    }

    /// Requests whose answer is not complete.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// What keeps limits from deciding as configured: a line for each of their stores that gives no
    /// answer now. None where all can.
    pub async fn silent_stores(&self) -> Option<String> {
        let generation = self.current.load_full();
        stores::silent(generation.stores(), generation.limits()).await
    }

    /// Answers one request.
    pub(crate) async fn serve(
        self: Arc<Self>,
        peer: Peer,
        activity: Arc<Activity>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody<Guard>>, Infallible> {
        let generation = self.current.load_full();
        let mut guard = Guard::begin(&self, activity, &generation, peer.address, &request);
        let answer = self.answer(&generation, peer, &mut guard, request).await;
        let (mut head, content) = answer.into_parts();
        head.version = Version::HTTP_11;
        guard.status = head.status.as_u16();
        let body = match content {
            Content::Whole(bytes) => ResponseBody::whole(bytes, guard),
            Content::Upstream(body) => {
                ResponseBody::streaming(body, generation.timeouts.body, guard)
            }
        };
        Ok(Response::from_parts(head, body))
    }

    async fn answer(
        &self,
        generation: &Generation,
        peer: Peer,
        guard: &mut Guard,
        request: Request<Incoming>,
    ) -> Response<Content> {
        let (mut head, body) = request.into_parts();
        let fail = |headers: &HeaderMap, problem: Problem| {
            problem.respond(headers, generation.bodies, Content::Whole)
        };
        // 2: parse and canonicalise.
        let host = match host(head.version, &head.uri, &head.headers) {
            Ok(host) => host,
            Err(fault) => {
                let problem = Problem::new(StatusCode::BAD_REQUEST, fault.to_string());
                return fail(&head.headers, problem);
            }
        };
        let path = match canonical(head.uri.path()) {
            Ok(path) => path,
            Err(fault) => {
                let problem = Problem::new(StatusCode::BAD_REQUEST, fault.to_string());
                return fail(&head.headers, problem);
            }
        };
        strip_hop_by_hop(&mut head.headers);
        // 3: identity.
        let caller = generation
            .client_address
            .caller(peer.address, &head.headers);
        guard.client = caller.client;
        // 4: route.
        let found = if matches!(head.method, Method::CONNECT | Method::TRACE) {
            None
        } else {
            Some(generation.router.find(&head.method, &path))
        };
        let Some(Match::Route(id)) = found else {
            let (problem, allow) = unrouted(found);
            let mut response = fail(&head.headers, problem);
            if let Some(allow) = allow {
                response.headers_mut().insert(ALLOW, allow);
            }
            return response;
        };
        let route = &generation.routes[id];
        guard.route = route.name.clone();
        // 6: limits.
        let client = generation.client_address.key(caller.client);
        let seen = RequestHead::new(&head).at_path(&path).from_client(&client);
        let rules = route.limits.rules();
        let refuse = |refusal| {
            let response = generation.answers.refuse(rules, refusal, seen);
            response.map(Content::Whole)
        };
        let ruling = match route.limits.decide(seen, &self.clock).await {
            Ok(ruling) => ruling,
            Err(undecided) => {
                if let Undecided::Operation(error) = &undecided {
                    let route = route.name.0.as_ref();
                    tracing::error!(route, %error, "the limits gave no decision");
                }
                return refuse(Refusal::Undecided(&undecided));
            }
        };
        guard.is_fallback = ruling.is_fallback();
        if !ruling.is_allowed() {
            return refuse(Refusal::Denied(&ruling));
        }
        if let Some(delay) = ruling.delay() {
            tokio::time::sleep(delay).await;
        }
        // 10: mock or proxy.
        let mut response = match &route.action {
            RouteAction::Mock(mock) => answer_mock(mock),
            RouteAction::Proxy(upstream, seconds) => {
                let target = upstream.target(&path, head.uri.query(), &head.uri);
                forward(
                    &mut head.headers,
                    &generation.client_address,
                    &caller,
                    Hop {
                        version: head.version,
                        is_secure: peer.is_secure,
                    },
                    host.as_ref(),
                    upstream.host(),
                );
                let mut request = Request::new(());
                *request.method_mut() = head.method;
                *request.uri_mut() = target;
                *request.headers_mut() = head.headers;
                let answered = ask_upstream(generation, upstream, request, body).await;
                seconds.observe(guard.started.elapsed());
                answered
            }
        };
        // 11: headers.
        let answers = &generation.answers;
        answers.write_fields(rules, &ruling, response.headers_mut());
        response
    }
}

/// The content of an answer before it is bound to its request's guard.
#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Upstream(Incoming),
}

/// What is wrong with a request that has no route, and which methods its path has. None is for a
/// method that no path has: tunnels and traces.
fn unrouted(found: Option<Match>) -> (Problem, Option<HeaderValue>) {
    match found {
        Some(Match::OtherMethod(methods)) => {
            let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
            let names = names.join(", ");
            let detail = format!("this path has no such method; it has {names}");
            let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
            (
                problem.aws(UNKNOWN_ROUTE),
                HeaderValue::try_from(names).ok(),
            )
        }
        Some(_) => {
            let problem = Problem::new(StatusCode::NOT_FOUND, "no route has this path");
            (problem.aws(UNKNOWN_ROUTE), None)
        }
        None => {
            let detail = "this gateway serves no tunnels and no traces";
            (Problem::new(StatusCode::NOT_IMPLEMENTED, detail), None)
        }
    }
}

/// API Gateway's message for a route that is not there.
const UNKNOWN_ROUTE: &str = "Missing Authentication Token";

fn answer_mock(mock: &Mock) -> Response<Content> {
    let mut response = Response::new(Content::Whole(mock.body.clone()));
    *response.status_mut() = mock.status;
    *response.headers_mut() = mock.headers.clone();
    response
}

async fn ask_upstream(
    generation: &Generation,
    upstream: &Upstream,
    request: Request<()>,
    body: Incoming,
) -> Response<Content> {
    // An upstream's failure is told in the form that this very client accepts.
    let accept = request.headers().get(ACCEPT).cloned();
    let body = (!body.is_end_stream()).then_some(body);
    let sent = upstream
        .client()
        .send(request, body, generation.timeouts.body, upstream.timeout())
        .await;
    match sent {
        Ok(answer) => {
            let (mut head, body) = answer.into_parts();
            strip_hop_by_hop(&mut head.headers);
            let mut response = Response::new(Content::Upstream(body));
            *response.status_mut() = head.status;
            *response.headers_mut() = head.headers;
            response
        }
        Err(fault) => {
            tell(upstream, &fault);
            let accept = accept.map(|accept| (ACCEPT, accept)).into_iter().collect();
            let mut response =
                problem_of(&fault).respond(&accept, generation.bodies, Content::Whole);
            if matches!(fault, Fault::ClientIdle | Fault::ClientBroke) {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// Logs a fault once, with its whole chain.
fn tell(upstream: &Upstream, fault: &Fault) {
    let mut chain = fault.to_string();
    let mut cause = std::error::Error::source(fault);
    while let Some(inner) = cause {
        chain.push_str(": ");
        chain.push_str(&inner.to_string());
        cause = inner.source();
    }
    let upstream = upstream.authority().as_str();
    match fault {
        Fault::ClientIdle | Fault::ClientBroke => tracing::debug!(upstream, error = chain),
        _ => tracing::warn!(upstream, error = chain, "no answer from the upstream"),
    }
}

fn problem_of(fault: &Fault) -> Problem {
    let (status, detail) = match fault {
        Fault::Timeout(_) | Fault::ConnectTimeout(_) => (
            StatusCode::GATEWAY_TIMEOUT,
            "the upstream did not answer in time",
        ),
        Fault::Connect(_) => (StatusCode::BAD_GATEWAY, "the upstream cannot be reached"),
        Fault::Closed(_) | Fault::Broken(_) | Fault::Unexpected(_) => (
            StatusCode::BAD_GATEWAY,
            "the upstream gave no proper answer",
        ),
        Fault::ClientIdle => (
            StatusCode::REQUEST_TIMEOUT,
            "the body of the request did not come in time",
        ),
        Fault::ClientBroke => (StatusCode::BAD_REQUEST, "the body of the request broke off"),
    };
    let aws = match status {
        StatusCode::GATEWAY_TIMEOUT => "Endpoint request timed out",
        StatusCode::BAD_GATEWAY => "Internal server error",
        _ => "Bad request",
    };
    Problem::new(status, detail).aws(aws)
}

/// The method and the target, cut where only an attack is longer.
fn logged(request: &Request<Incoming>) -> Box<str> {
    let mut line = format!("{} {}", request.method(), request.uri());
    if line.len() > MAX_LOGGED {
        let end = (0..=MAX_LOGGED)
            .rev()
            .find(|at| line.is_char_boundary(*at))
            .unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line.into_boxed_str()
}

/// Lives from a request's head to the end of its answer, and counts it then.
#[derive(Debug)]
pub(crate) struct Guard {
    gateway: Arc<Gateway>,
    activity: Arc<Activity>,
    started: Instant,
    method: MethodName,
    route: Name,
    status: u16,
    client: IpAddr,
    /// Whether a limit decided without its store.
    is_fallback: bool,
    /// The method and the target as they came, where requests are logged.
    line: Option<Box<str>>,
}

impl Guard {
    fn begin(
        gateway: &Arc<Gateway>,
        activity: Arc<Activity>,
        generation: &Generation,
        peer: IpAddr,
        request: &Request<Incoming>,
    ) -> Self {
        activity.begin();
        gateway.in_flight.fetch_add(1, Ordering::Relaxed);
        let line = generation.access_log.then(|| logged(request));
        Self {
            gateway: Arc::clone(gateway),
            activity,
            started: Instant::now(),
            method: request.method().into(),
            route: gateway.unmatched.clone(),
            status: CLIENT_LEFT,
            client: peer,
            is_fallback: false,
            line,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        self.activity.end();
        self.gateway.in_flight.fetch_sub(1, Ordering::Relaxed);
        let metrics = &self.gateway.metrics;
        metrics.seconds.observe(took);
        let labels = RequestLabels {
            route: self.route.clone(),
            method: self.method,
            status: self.status,
        };
        metrics.requests.get_or_create(&labels).inc();
        if let Some(line) = &self.line {
            tracing::info!(
                target: "tidegate::access",
                client = %self.client,
                request = line,
                route = &*self.route.0,
                status = self.status,
                source = self.is_fallback.then_some("fallback"),
                micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            );
        }
    }
}

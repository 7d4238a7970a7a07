//! The door for HTTP: JSON in, JSON out, and a document that says what.
//!
//! [`calls`] decides, [`shapes`] are the bodies, [`openapi`] is the document of both.

mod calls;
mod openapi;
mod query;
mod shapes;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use sha2::{Digest as _, Sha256};
use tidegate::Clock;
use tidegate::http::{BodyStyle, Problem};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use self::calls::{Answer, Answered};
use crate::accept::{self, Limits};
use crate::metrics::{Door, Metrics};
use crate::served::Served;

/// The largest body.
const MAX_BODY: usize = 64 * 1024;

/// The largest head of a request.
const MAX_HEAD: usize = 16 * 1024;

/// What a client may take to send a request's head, from the end of the one before; and its body.
const PATIENCE: Duration = Duration::from_secs(75);
const BODY_PATIENCE: Duration = Duration::from_secs(10);

type Body = Full<Bytes>;

/// The door, open.
pub(crate) struct HttpDoor {
    served: ArcSwap<Served>,
    clock: Arc<dyn Clock>,
    secret_sha256: Option<[u8; 32]>,
    connections: Gauge,
}

/// What a path is for.
#[derive(Clone, Copy)]
enum Resource<'p> {
    Document,
    Call(fn(&Served, &[u8], tidegate::Timestamp) -> Answered),
    Lease(&'p str),
}

impl<'p> Resource<'p> {
    fn of(path: &'p str) -> Option<Self> {
        Some(match path {
            "/v1/take" => Self::Call(calls::take),
            "/v1/peek" => Self::Call(calls::peek),
            "/v1/reserve" => Self::Call(calls::reserve),
            "/v1/settle" => Self::Call(calls::settle),
            "/v1/cancel" => Self::Call(calls::cancel),
            "/v1/refund" => Self::Call(calls::refund),
            "/v1/leases" => Self::Call(calls::acquire),
            "/v1/attempts" => Self::Call(calls::attempt),
            "/v1/batch" => Self::Call(calls::batch),
            "/v1/openapi.json" => Self::Document,
            other => {
                let lease = other.strip_prefix("/v1/leases/")?;
                (!lease.is_empty() && !lease.contains('/')).then_some(Self::Lease(lease))?
            }
        })
    }

    fn allows(self) -> &'static str {
        match self {
            Self::Document => "GET, HEAD",
            Self::Call(_) => "POST",
            Self::Lease(_) => "PUT, DELETE",
        }
    }
}

impl HttpDoor {
    pub(crate) fn new(
        served: Served,
        clock: Arc<dyn Clock>,
        secret_sha256: Option<[u8; 32]>,
        metrics: &Metrics,
    ) -> Self {
        Self {
            served: ArcSwap::from_pointee(served),
            clock,
            secret_sha256,
            connections: metrics.connections(Door::Http),
        }
    }

    /// Puts other limits in force, from the next request on.
    pub(crate) fn replace(&self, served: Served) {
        self.served.store(Arc::new(served));
    }

    /// Accepts clients until `stop`; requests that are being answered then are, until its deadline.
    /// Returns how many were cut off.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        limits: Limits,
        stop: watch::Receiver<Option<Instant>>,
    ) -> usize {
        accept::serve(listener, limits, stop, move |stream, stop| {
            Arc::clone(&self).connection(stream, stop)
        })
        .await
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        mut stop: watch::Receiver<Option<Instant>>,
    ) {
        self.connections.inc();
        let _open = Open(&self.connections);
        let service = service_fn(|request| {
            let door = Arc::clone(&self);
            async move { Ok::<_, Infallible>(door.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_HEAD)
            .pipeline_flush(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            _ = accept::deadline(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let answered = self.decide(request).await;
        answered.unwrap_or_else(|problem| refusal(&problem))
    }

    async fn decide(&self, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        let (head, body) = request.into_parts();
        let Some(resource) = Resource::of(head.uri.path()) else {
            let detail = "there is nothing here; GET /v1/openapi.json says what there is";
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        };
        let allowed = match resource {
            Resource::Document => matches!(head.method, Method::GET | Method::HEAD),
            Resource::Call(_) => head.method == Method::POST,
            Resource::Lease(_) => matches!(head.method, Method::PUT | Method::DELETE),
        };
        if !allowed {
            let detail = format!("use {}", resource.allows());
            let mut response = refusal(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail));
            let allow = HeaderValue::from_static(resource.allows());
            response.headers_mut().insert(ALLOW, allow);
            return Ok(response);
        }
        if let Resource::Document = resource {
            let served = self.served.load();
            let document = openapi::document(&served, self.secret_sha256.is_some());
            return Ok(json(StatusCode::OK, document.to_string().into()));
        }
        if !self.admits(&head.headers) {
            let detail = "show the secret: `authorization: Bearer SECRET`";
            let mut response = refusal(&Problem::new(StatusCode::UNAUTHORIZED, detail));
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            return Ok(response);
        }
        let answer = match resource {
            Resource::Lease(lease) if head.method == Method::DELETE => {
                let holder = query::holder(head.uri.query().unwrap_or_default())?;
                calls::release(&self.served.load(), lease, &holder, self.clock.now())?
            }
            Resource::Lease(lease) => {
                let body = self.body(&head.headers, body).await?;
                calls::renew(&self.served.load(), lease, &body, self.clock.now())?
            }
            Resource::Call(call) => {
                let body = self.body(&head.headers, body).await?;
                call(&self.served.load(), &body, self.clock.now())?
            }
            Resource::Document => unreachable!("it is answered above"),
        };
        Ok(respond(answer))
    }

    /// The whole body of a call, which is JSON.
    async fn body(&self, headers: &HeaderMap, body: Incoming) -> Result<Bytes, Problem> {
        let media = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        if !media.is_some_and(is_json) {
            let detail = "send JSON, and say so: `content-type: application/json`";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let collecting = Limited::new(body, MAX_BODY).collect();
        match tokio::time::timeout(BODY_PATIENCE, collecting).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let detail = format!("a body has at most {MAX_BODY} bytes");
                Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail))
            }
            Ok(Err(_)) => Err(Problem::new(StatusCode::BAD_REQUEST, "the body broke off")),
            Err(_) => {
                let detail = "the body did not come in time";
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail))
            }
        }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(hash) = self.secret_sha256 else {
            return true;
        };
        let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let secret = shown.and_then(|shown| {
            let (scheme, secret) = shown.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(secret)
        });
        secret.is_some_and(|secret| <[u8; 32]>::from(Sha256::digest(secret)) == hash)
    }
}

/// Whether a media type is JSON, whatever its parameters.
fn is_json(media: &[u8]) -> bool {
    let end = memchr::memchr(b';', media).unwrap_or(media.len());
    media[..end]
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
}

fn json(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let media = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

fn respond(answer: Answer) -> Response<Body> {
    let mut response = json(answer.status, answer.json.into());
    response.headers_mut().extend(answer.headers);
    response
}

fn refusal(problem: &Problem) -> Response<Body> {
    problem.respond(&HeaderMap::new(), BodyStyle::Problem, Full::new)
}

/// Counts a connection as long as it lives.
struct Open<'a>(&'a Gauge);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

//! What the tests share: limiters that stand still, requests, answers.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use tidegate::http::{Peer, Rule};
use tidegate::{
    Align, Concurrency, FixedWindow, Key, Limiter, LimiterBuilder, ManualClock, Micros, Rate,
    Timestamp, TokenBucket,
};
use tower::{Service, ServiceExt as _};

pub type Body = Empty<Bytes>;

/// A clock that stands still at the start of a minute.
pub fn clock() -> Arc<ManualClock> {
    let minute = Timestamp::from_micros(1_800_000_000_000_000).unwrap();
    Arc::new(ManualClock::new(minute))
}

/// `capacity` at once and then next to nothing.
pub fn at_most(name: &str, capacity: u32) -> LimiterBuilder {
    let bucket = TokenBucket::new(Rate::new(1, Micros::from_secs(3_600).0).unwrap(), capacity);
    Limiter::builder(bucket.unwrap()).name(name).clock(clock())
}

/// So many a minute of the clock.
pub fn per_minute(name: &str, limit: u32, clock: &Arc<ManualClock>) -> Limiter {
    let window = FixedWindow::new(limit, Micros::from_secs(60), Align::Epoch).unwrap();
    Limiter::builder(window)
        .name(name)
        .clock(Arc::clone(clock) as Arc<dyn tidegate::Clock>)
        .build()
}

/// So many at once.
pub fn at_once(name: &str, permits: u32) -> Limiter {
    let permits = Concurrency::new(permits, Micros::from_secs(60), None).unwrap();
    Limiter::builder(permits).name(name).clock(clock()).build()
}

pub fn rule(limiter: LimiterBuilder) -> Rule {
    Rule::new(limiter.build()).unwrap()
}

/// How many units of a limit are in use.
pub fn used(limiter: &Limiter, key: &Key) -> u32 {
    limiter.key(key).state().used
}

/// A service that answers `ok` to everything.
pub fn ok()
-> impl Service<Request<Body>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
+ Clone
+ Send {
    tower::service_fn(|_| async { Ok(Response::new(Full::from("ok"))) })
}

pub fn get(target: &str) -> Request<Body> {
    Request::get(target).body(Body::new()).unwrap()
}

/// A request from an address, with fields.
pub fn from(peer: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut request = get("/");
    let peer: IpAddr = peer.parse().unwrap();
    request.extensions_mut().insert(Peer(peer));
    for (name, value) in fields {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    #[track_caller]
    pub fn field(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
            .to_str()
            .unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Sends one request through a service.
pub async fn send<S, B, R>(service: &S, request: Request<B>) -> Answer
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: std::fmt::Debug,
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    let (head, body) = service.clone().oneshot(request).await.unwrap().into_parts();
    Answer {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// The statuses of requests sent one after the other.
pub async fn statuses<S, B, R>(
    service: &S,
    requests: impl IntoIterator<Item = Request<B>>,
) -> Vec<u16>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: std::fmt::Debug,
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(send(service, request).await.status.as_u16());
    }
    statuses
}

/// Polls a future once.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut cx)
}

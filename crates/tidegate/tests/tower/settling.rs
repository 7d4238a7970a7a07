//! What a request costs, and what becomes of the charge: once, on every way out.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate::http::{After, Rule};
use tidegate::tower::RateLimitLayer;
use tidegate::{Key, LeakyBucket, Limiter, Mode, Rate};
use tower::{Layer as _, Service, ServiceExt as _};

use crate::support::{Body, at_most, get, ok, poll_once, rule, send, statuses, used};

/// The one key of a rule without parts.
fn everybody() -> Key {
    Key::from_parts([])
}

/// A service that answers with the status that the path names.
fn echo() -> impl Service<
    Request<Body>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future: Send + Unpin,
> + Clone {
    tower::service_fn(|request: Request<Body>| {
        let status = request.uri().path()[1..].parse::<u16>().unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        let response = Response::builder().status(status).body(Full::from("ok"));
        std::future::ready(Ok(response.unwrap()))
    })
}

#[tokio::test]
async fn a_cost_may_depend_on_the_request() {
    let limiter = at_most("units", 10).build();
    let rule = Rule::new(limiter.clone()).unwrap().cost_by(|head| {
        let length = head.headers().get("content-length");
        let kilobytes = length.and_then(|length| length.to_str().ok()?.parse::<u32>().ok());
        kilobytes.unwrap_or(0).div_ceil(1024).max(1)
    });
    let service = RateLimitLayer::new([rule]).layer(ok());
    let upload = |length: &str| {
        let mut request = get("/");
        request
            .headers_mut()
            .insert("content-length", length.parse().unwrap());
        request
    };
    assert_eq!(statuses(&service, [upload("4097")]).await, [200]);
    assert_eq!(used(&limiter, &everybody()), 5);
    let answer = send(&service, upload("11000")).await;
    // More than the limit ever holds: no wait helps, and nothing is charged.
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["retry"], "never");
    assert_eq!(
        statuses(&service, [upload("5120"), get("/")]).await,
        [200, 429]
    );
}

#[tokio::test]
async fn the_answer_decides_whether_a_charge_stays_is_given_back_or_grows() {
    for (status, expected) in [(200, 3), (500, 0), (404, 5)] {
        let limiter = at_most("units", 10).build();
        let rule = Rule::new(limiter.clone()).unwrap().cost(3).after(|answer| {
            match answer.status.as_u16() {
                500.. => After::Refund,
                404 => After::Charge(2),
                _ => After::Keep,
            }
        });
        let service = RateLimitLayer::new([rule]).layer(echo());
        send(&service, get(&format!("/{status}"))).await;
        assert_eq!(used(&limiter, &everybody()), expected, "{status}");
    }
}

#[tokio::test]
async fn an_extra_charge_may_go_into_debt() {
    let limiter = at_most("units", 10).build();
    let rule = Rule::new(limiter.clone())
        .unwrap()
        .after(|_| After::Charge(14));
    let service = RateLimitLayer::new([rule]).layer(ok());
    assert_eq!(statuses(&service, [get("/"), get("/")]).await, [200, 429]);
    assert_eq!(used(&limiter, &everybody()), 15);
}

/// A rule that counts how often it is asked, and gives back what is not answered.
fn counted(limiter: &Limiter, asked: &Arc<AtomicU32>) -> Rule {
    let asked = Arc::clone(asked);
    Rule::new(limiter.clone())
        .unwrap()
        .after(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            After::Refund
        })
        .unanswered(After::Charge(1))
}

#[tokio::test]
async fn a_charge_is_settled_once_for_an_answer() {
    let (limiter, asked) = (at_most("units", 10).build(), Arc::default());
    let service = RateLimitLayer::new([counted(&limiter, &asked)]).layer(ok());
    for _ in 0..3 {
        send(&service, get("/")).await;
    }
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    assert_eq!(used(&limiter, &everybody()), 0);
}

#[tokio::test]
async fn a_charge_is_settled_once_where_the_caller_leaves() {
    let (limiter, asked) = (at_most("units", 10).build(), Arc::default());
    let never =
        tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
    let mut service = RateLimitLayer::new([counted(&limiter, &asked)]).layer(never);
    let mut answer = Box::pin(service.call(get("/")));
    assert!(poll_once(&mut answer).is_pending());
    assert_eq!(used(&limiter, &everybody()), 1);
    drop(answer);
    assert_eq!(used(&limiter, &everybody()), 2);
    // A future that was never polled at all.
    drop(service.call(get("/")));
    assert_eq!(used(&limiter, &everybody()), 4);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_charge_is_settled_once_where_the_service_fails_or_panics() {
    let (limiter, asked) = (at_most("units", 10).build(), Arc::default());
    let failing = tower::service_fn(|request: Request<Body>| async move {
        assert_ne!(request.uri().path(), "/panic");
        Err::<Response<Body>, _>("failed")
    });
    let service = RateLimitLayer::new([counted(&limiter, &asked)]).layer(failing);
    assert_eq!(
        service.clone().oneshot(get("/")).await.unwrap_err(),
        "failed"
    );
    assert_eq!(used(&limiter, &everybody()), 2);
    let panicked = tokio::spawn(service.oneshot(get("/panic"))).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(used(&limiter, &everybody()), 4);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_refused_request_is_charged_to_no_rule_and_settled_with_none() {
    let (limiter, asked) = (at_most("units", 10).build(), Arc::default());
    let rules = [counted(&limiter, &asked), rule(at_most("closed", 0))];
    let service = RateLimitLayer::new(rules).layer(ok());
    assert_eq!(statuses(&service, [get("/"), get("/")]).await, [429, 429]);
    assert_eq!(used(&limiter, &everybody()), 0);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_limit_in_shadow_is_given_back_only_what_it_was_charged() {
    let (limiter, asked) = (
        at_most("watched", 1).mode(Mode::Shadow).build(),
        Arc::default(),
    );
    let never =
        tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
    let mut held = RateLimitLayer::new([Rule::new(limiter.clone()).unwrap()]).layer(never);
    let first = held.call(get("/"));
    // The second is beyond the limit, passes, and must not give back what the first has.
    let service = RateLimitLayer::new([counted(&limiter, &asked)]).layer(ok());
    assert_eq!(statuses(&service, [get("/")]).await, [200]);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert_eq!(used(&limiter, &everybody()), 1);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_paced_queue_holds_its_requests_back() {
    let queue = LeakyBucket::new(Rate::per_second(10).unwrap(), 3, 1, None);
    let limiter = Limiter::builder(queue.unwrap())
        .clock(crate::support::clock())
        .build();
    let service = RateLimitLayer::new([Rule::new(limiter).unwrap()]).layer(ok());
    let begun = tokio::time::Instant::now();
    let third = async {
        send(&service, get("/")).await;
        let (second, third) = tokio::join!(send(&service, get("/")), send(&service, get("/")));
        (second.status, third.status)
    };
    assert_eq!(third.await, (StatusCode::OK, StatusCode::OK));
    let took = begun.elapsed();
    assert!((200..210).contains(&took.as_millis()), "{took:?}");
}

/// A service that must be asked whether it is ready before each call.
#[derive(Debug)]
struct Strict {
    ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<Body>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        std::future::ready(Ok(Response::new(Full::from("ok"))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_is_called_only_where_it_was_ready() {
    let queue = LeakyBucket::new(Rate::per_second(10).unwrap(), 3, 1, None);
    let limiter = Limiter::builder(queue.unwrap())
        .clock(crate::support::clock())
        .build();
    let mut service =
        RateLimitLayer::new([Rule::new(limiter).unwrap()]).layer(Strict { ready: false });
    for _ in 0..3 {
        let answer = service.ready().await.unwrap().call(get("/"));
        let answer = tokio::time::timeout(Duration::from_secs(5), answer).await;
        assert_eq!(answer.unwrap().unwrap().status(), StatusCode::OK);
    }
}

//! Permits: one for each request at work, given back exactly once.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::UPGRADE;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use tidegate::http::{KeySource, Missing};
use tidegate::tower::{ConcurrencyLayer, RequestPermit};
use tidegate::{Concurrency, Key, Limiter, Micros, Mode, TokioClock, WaitOptions};
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt as _};

use crate::support::{self, Body, at_once, from, get, ok, poll_once, send, statuses, used};

fn everybody() -> Key {
    Key::from_parts([])
}

fn layer(limiter: &Limiter) -> ConcurrencyLayer {
    ConcurrencyLayer::new(limiter.clone()).unwrap()
}

#[tokio::test]
async fn a_permit_is_held_to_the_end_of_the_body() {
    let limiter = at_once("in-flight", 1);
    let service = layer(&limiter).layer(ok());
    let first = service.clone().oneshot(get("/")).await.unwrap();
    let refused = send(&service, get("/")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.field("retry-after"), "1");
    assert_eq!(refused.field("ratelimit"), "\"in-flight\";r=0");
    assert_eq!(refused.field("ratelimit-policy"), "\"in-flight\";q=1");
    let mut body = first.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert_eq!(used(&limiter, &everybody()), 1);
    assert!(body.frame().await.is_none());
    assert_eq!(used(&limiter, &everybody()), 0);
    // The end of the body gave it back; dropping the body must not do so again.
    let second = service.clone().oneshot(get("/")).await.unwrap();
    drop(body);
    assert_eq!(used(&limiter, &everybody()), 1);
    drop(second);
    assert_eq!(used(&limiter, &everybody()), 0);
}

/// A body that breaks after its first frame.
struct Breaking(bool);

impl http_body::Body for Breaking {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        let frame = if std::mem::replace(&mut self.0, true) {
            Err("broke")
        } else {
            Ok(Frame::data(Bytes::from_static(b"x")))
        };
        Poll::Ready(Some(frame))
    }
}

#[tokio::test]
async fn a_permit_comes_back_when_a_body_breaks() {
    let limiter = at_once("in-flight", 1);
    let breaking = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Breaking(false)))
    });
    let answer = layer(&limiter)
        .layer(breaking)
        .oneshot(get("/"))
        .await
        .unwrap();
    let mut body = answer.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(used(&limiter, &everybody()), 1);
    body.frame().await.unwrap().unwrap_err();
    assert_eq!(used(&limiter, &everybody()), 0);
}

#[tokio::test]
async fn a_permit_comes_back_when_the_service_fails_or_panics_or_the_caller_leaves() {
    let limiter = at_once("in-flight", 1);
    let service = tower::service_fn(|request: Request<Body>| async move {
        match request.uri().path() {
            "/fail" => Err("failed"),
            "/panic" => panic!("as asked"),
            _ => pending::<Result<Response<Body>, _>>().await,
        }
    });
    let service = layer(&limiter).layer(service);
    for _ in 0..3 {
        assert_eq!(
            service.clone().oneshot(get("/fail")).await.unwrap_err(),
            "failed"
        );
        let panicked = tokio::spawn(service.clone().oneshot(get("/panic"))).await;
        assert!(panicked.unwrap_err().is_panic());
        let mut left = Box::pin(service.clone().call(get("/wait")));
        assert!(poll_once(&mut left).is_pending());
        assert_eq!(used(&limiter, &everybody()), 1);
        drop(left);
        drop(service.clone().call(get("/wait")));
        assert_eq!(used(&limiter, &everybody()), 0);
    }
}

#[tokio::test]
async fn two_layers_give_back_their_own_permits() {
    let (all, route) = (at_once("all", 3), at_once("route", 2));
    let on_route = ServiceBuilder::new()
        .layer(layer(&all))
        .layer(layer(&route))
        .service(ok());
    let elsewhere = layer(&all).layer(ok());
    for _ in 0..10 {
        assert_eq!(send(&on_route, get("/route")).await.status, StatusCode::OK);
    }
    let mut held = Vec::new();
    for _ in 0..3 {
        let answer = elsewhere.clone().oneshot(get("/other")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        held.push(answer);
    }
    // The route has permits left, all together have none: the route's own is not kept.
    assert_eq!(statuses(&on_route, [get("/route")]).await, [429]);
    drop(held);
    assert_eq!(
        (used(&all, &everybody()), used(&route, &everybody())),
        (0, 0)
    );
    let held = (
        on_route.clone().oneshot(get("/route")).await.unwrap(),
        on_route.clone().oneshot(get("/route")).await.unwrap(),
    );
    assert_eq!(statuses(&on_route, [get("/route")]).await, [429]);
    assert_eq!(
        (used(&all, &everybody()), used(&route, &everybody())),
        (2, 2)
    );
    drop(held);
    assert_eq!(
        (used(&all, &everybody()), used(&route, &everybody())),
        (0, 0)
    );
}

#[tokio::test]
async fn each_client_has_permits_of_its_own() {
    let limiter = at_once("in-flight", 1);
    let service = layer(&limiter)
        .key([KeySource::client_address()])
        .layer(ok());
    let _held = service
        .clone()
        .oneshot(from("192.0.2.1", &[]))
        .await
        .unwrap();
    let requests = [from("192.0.2.1", &[]), from("192.0.2.2", &[])];
    assert_eq!(statuses(&service, requests).await, [429, 200]);
}

#[tokio::test]
async fn a_request_without_the_part_may_be_none_of_the_limit_s_business() {
    let limiter = at_once("in-flight", 0);
    let by_address = layer(&limiter).key([KeySource::client_address()]);
    let skipping = by_address.clone().missing(Missing::Skip).layer(ok());
    assert_eq!(
        statuses(&skipping, [get("/"), from("192.0.2.1", &[])]).await,
        [200, 429]
    );
    let refusing = by_address.missing(Missing::Refuse).layer(ok());
    assert_eq!(
        statuses(&refusing, [get("/"), from("192.0.2.1", &[])]).await,
        [400, 429]
    );
}

#[tokio::test]
async fn a_service_that_protects_itself_sheds() {
    let limiter = at_once("in-flight", 1);
    let service = layer(&limiter).shed().layer(ok());
    let _held = service.clone().oneshot(get("/")).await.unwrap();
    let answer = send(&service, get("/")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.field("retry-after"), "1");
    assert_eq!(
        answer.json()["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
}

#[tokio::test]
async fn a_limit_that_is_only_watched_lets_pass_and_gives_back_what_it_had() {
    let limiter = at_once("in-flight", 1);
    limiter.set_mode(Mode::Shadow);
    let service = layer(&limiter).layer(ok());
    let first = service.clone().oneshot(get("/")).await.unwrap();
    let second = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(second.status(), StatusCode::OK);
    drop(second);
    assert_eq!(used(&limiter, &everybody()), 1);
    drop(first);
    assert_eq!(used(&limiter, &everybody()), 0);
    limiter.set_mode(Mode::Off);
    let _third = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(used(&limiter, &everybody()), 0);
}

#[tokio::test]
async fn an_upgraded_connection_keeps_its_permit_as_long_as_it_holds_it() {
    let limiter = at_once("sockets", 3);
    let open = Arc::new(Mutex::new(Vec::<RequestPermit>::new()));
    let connections = Arc::clone(&open);
    let service = tower::service_fn(move |request: Request<Body>| {
        let permit = request.extensions().get::<RequestPermit>().cloned();
        let status = match request.uri().path() {
            "/socket" => {
                connections.lock().unwrap().extend(permit);
                StatusCode::SWITCHING_PROTOCOLS
            }
            _ => StatusCode::UPGRADE_REQUIRED,
        };
        let response = Response::builder()
            .status(status)
            .body(Full::new(Bytes::new()));
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    });
    let service = layer(&limiter).layer(service);
    let upgrade = |path: &str| {
        let mut request = get(path);
        request
            .headers_mut()
            .insert(UPGRADE, "websocket".parse().unwrap());
        request
    };
    // What never becomes a socket keeps nothing: plain requests, refused upgrades, and handshakes
    // that are cut off.
    for _ in 0..10 {
        assert_eq!(
            send(&service, get("/plain")).await.status,
            StatusCode::UPGRADE_REQUIRED
        );
        let refused = send(&service, upgrade("/refused")).await;
        assert_eq!(refused.status, StatusCode::UPGRADE_REQUIRED);
    }
    for _ in 0..5 {
        drop(service.clone().call(upgrade("/refused")));
    }
    assert_eq!(used(&limiter, &everybody()), 0);
    let sockets = [
        upgrade("/socket"),
        upgrade("/socket"),
        upgrade("/socket"),
        upgrade("/socket"),
    ];
    assert_eq!(statuses(&service, sockets).await, [101, 101, 101, 429]);
    assert_eq!(used(&limiter, &everybody()), 3);
    open.lock().unwrap().pop();
    assert_eq!(used(&limiter, &everybody()), 2);
    assert_eq!(statuses(&service, [upgrade("/socket")]).await, [101]);
    open.lock().unwrap().clear();
    assert_eq!(used(&limiter, &everybody()), 0);
}

/// The same limiter on the runtime's own time.
fn in_simulated_time(permits: u32, lease: Duration) -> Limiter {
    let lease = Micros::from_duration(lease);
    let permits = Concurrency::new(permits, lease, None).unwrap();
    let clock = Arc::new(TokioClock::new());
    Limiter::builder(permits)
        .name("in-flight")
        .clock(clock)
        .build()
}

#[tokio::test(start_paused = true)]
async fn a_permit_outlasts_its_lease_as_long_as_the_request_does() {
    let limiter = in_simulated_time(1, Duration::from_secs(3));
    let service = layer(&limiter).layer(ok());
    let held = service.clone().oneshot(get("/")).await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(statuses(&service, [get("/")]).await, [429]);
    }
    drop(held);
    assert_eq!(statuses(&service, [get("/")]).await, [200]);
}

#[tokio::test(start_paused = true)]
async fn requests_may_wait_for_a_permit_in_the_order_that_they_came_in() {
    let limiter = in_simulated_time(1, Duration::from_secs(60));
    let served = Arc::new(Mutex::new(Vec::new()));
    let order = Arc::clone(&served);
    let slow = tower::service_fn(move |request: Request<Body>| {
        order.lock().unwrap().push(request.uri().path().to_owned());
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
        }
    });
    let patience = WaitOptions::new().max_wait(Duration::from_millis(2_500));
    let service = layer(&limiter).wait(patience).layer(slow);
    let mut requests = tokio::task::JoinSet::new();
    for path in ["/1", "/2", "/3", "/4"] {
        let service = service.clone();
        requests.spawn(async move { send(&service, get(path)).await });
        tokio::task::yield_now().await;
    }
    let mut answers: Vec<u16> = Vec::new();
    while let Some(answer) = requests.join_next().await {
        answers.push(answer.unwrap().status.as_u16());
    }
    // The fourth would have had to wait for three seconds.
    assert_eq!(answers, [200, 200, 429, 200]);
    assert_eq!(*served.lock().unwrap(), ["/1", "/2", "/3"]);
    assert_eq!(used(&limiter, &everybody()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_while_it_waits_makes_way() {
    let limiter = in_simulated_time(1, Duration::from_secs(60));
    let service = layer(&limiter).wait(WaitOptions::new()).layer(ok());
    let held = service.clone().oneshot(get("/")).await.unwrap();
    let given_up = tokio::time::timeout(Duration::from_secs(1), service.clone().oneshot(get("/")));
    given_up.await.unwrap_err();
    let next = tokio::spawn(service.clone().oneshot(get("/")));
    drop(held);
    assert_eq!(next.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(used(&limiter, &everybody()), 0);
}

#[test]
fn a_limit_that_holds_no_permits_makes_no_layer() {
    let error = ConcurrencyLayer::new(support::at_most("rate", 1).build()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limit `rate` holds no permits; make it of a `Concurrency` policy"
    );
}

//! The layer around real clients, against a real server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::outbound::{OutboundError, OutboundLayer};
use tidegate::{Limiter, Rate, TokenBucket};
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _};

/// A server that refuses its first call and asks for a second's pause.
async fn server() -> SocketAddr {
    let calls = Arc::new(AtomicU32::new(0));
    let answer = get(async move || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Err((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")])),
        _ => Ok("ok"),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", answer)).await });
    address
}

fn layer() -> OutboundLayer {
    let bucket = TokenBucket::new(Rate::per_second(1_000).unwrap(), 1_000).unwrap();
    OutboundLayer::new(Limiter::new(bucket)).max_wait(Duration::from_secs(20))
}

#[tokio::test]
async fn hyper_s_client_waits_as_its_host_asks() {
    let address = server().await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let client = layer().layer(client);
    let call = || {
        let call = Request::get(format!("http://{address}/")).body(Empty::new());
        client.clone().oneshot(call.unwrap())
    };
    assert_eq!(
        call().await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    let refused = Instant::now();
    assert_eq!(call().await.unwrap().status(), StatusCode::OK);
    assert!(refused.elapsed() >= Duration::from_millis(990));
}

#[tokio::test]
async fn reqwest_s_client_waits_as_its_host_asks() {
    let address = server().await;
    let http = reqwest::Client::new();
    let client = layer().layer(http.clone());
    let call = || {
        client
            .clone()
            .oneshot(http.get(format!("http://{address}/")).build().unwrap())
    };
    assert_eq!(
        call().await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    let refused = Instant::now();
    let answer = call().await.unwrap();
    assert!(refused.elapsed() >= Duration::from_millis(990));
    assert_eq!(answer.text().await.unwrap(), "ok");
}

#[tokio::test]
async fn a_client_s_own_failure_is_told_as_such() {
    // Nobody listens on a port that was just given back.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let http = reqwest::Client::new();
    let call = http.get(format!("http://{address}/")).build().unwrap();
    let error = layer().layer(http).oneshot(call).await.unwrap_err();
    let OutboundError::Client(inner) = &error else {
        panic!("{error}")
    };
    assert!(inner.is_connect());
    assert!(std::error::Error::source(&error).is_some());
}

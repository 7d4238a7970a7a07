//! The layers behind real connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate::http::KeySource;
use tidegate::tower::{ConcurrencyLayer, RateLimitLayer};
use tidegate::{Key, Limiter};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::{at_most, at_once, rule, used};

const PATIENCE: Duration = Duration::from_secs(20);

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn client(h2: bool) -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new())
        .http2_only(h2)
        .build_http()
}

fn limited() -> Router {
    let rule = rule(at_most("client", 2)).key([KeySource::client_address()]);
    let layer = RateLimitLayer::new([rule]);
    let upload = post(async |body: Bytes| body.len().to_string());
    Router::new()
        .route("/", get(async || "ok"))
        .route("/upload", upload)
        .layer(layer)
}

#[tokio::test]
async fn limits_hold_over_both_versions_of_http() {
    for h2 in [false, true] {
        let address = serve(limited()).await;
        let client = client(h2);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let target = format!("http://{address}/").parse().unwrap();
            let answer = client.get(target).await.unwrap();
            statuses.push(answer.status().as_u16());
            let limited = answer.status() == StatusCode::TOO_MANY_REQUESTS;
            assert_eq!(answer.headers().contains_key("retry-after"), limited);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.starts_with(b"{\"type\":\"https://iana.org/"), limited);
        }
        assert_eq!(statuses, [200, 200, 429], "h2: {h2}");
    }
}

#[tokio::test]
async fn a_connection_lives_on_after_a_refusal() {
    let address = serve(limited()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(&request.repeat(4)).await.unwrap();
    let last =
        b"POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc";
    stream.write_all(last).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text))
        .await
        .unwrap()
        .unwrap();
    let statuses: Vec<&str> = text
        .match_indices("HTTP/1.1 ")
        .map(|(at, _)| &text[at + 9..][..3])
        .collect();
    assert_eq!(statuses, ["200", "200", "429", "429", "429"]);
}

/// An app whose one permit is held by an answer that goes on as long as frames come.
fn endless(limiter: &Limiter) -> (Router, mpsc::Sender<Bytes>) {
    let (frames, receiver) = mpsc::channel::<Bytes>(1);
    let receiver = std::sync::Arc::new(tokio::sync::Mutex::new(receiver));
    let stream = get(async move || {
        let mut receiver = receiver.lock_owned().await;
        let body = http_body_util::channel::Channel::<Bytes, Infallible>::new(1);
        let (mut sender, body) = body;
        tokio::spawn(async move {
            while let Some(frame) = receiver.recv().await {
                if sender.send_data(frame).await.is_err() {
                    break;
                }
            }
        });
        Body::new(body)
    });
    let layer = ConcurrencyLayer::new(limiter.clone()).unwrap();
    let app = Router::new().route("/", stream).layer(layer);
    (app, frames)
}

/// Waits until a limit has so many units in use.
async fn until_used(limiter: &Limiter, units: u32) {
    let key = Key::from_parts([]);
    tokio::time::timeout(PATIENCE, async {
        while used(limiter, &key) != units {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("the permits in use in time");
}

#[tokio::test]
async fn a_permit_lasts_as_long_as_an_answer_and_comes_back_when_the_client_is_cut_off() {
    let limiter = at_once("streams", 1);
    let (app, frames) = endless(&limiter);
    let address = serve(app).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    frames.send(Bytes::from_static(b"first")).await.unwrap();
    let mut some = [0; 64];
    assert!(stream.read(&mut some).await.unwrap() > 0);
    until_used(&limiter, 1).await;
    let target: http::Uri = format!("http://{address}/").parse().unwrap();
    let refused = client(false).get(target.clone()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(stream);
    // The server finds out when it writes.
    until_gone(&frames, &limiter).await;
}

async fn until_gone(frames: &mpsc::Sender<Bytes>, limiter: &Limiter) {
    let key = Key::from_parts([]);
    tokio::time::timeout(PATIENCE, async {
        while used(limiter, &key) > 0 {
            let _ = frames.try_send(Bytes::from_static(b"more"));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("the permit comes back");
}

#[tokio::test]
async fn an_answer_that_ends_gives_its_permit_back() {
    let limiter = at_once("requests", 1);
    let layer = ConcurrencyLayer::new(limiter.clone()).unwrap();
    let app = Router::new().route("/", get(async || "ok")).layer(layer);
    let address = serve(app).await;
    for h2 in [false, true] {
        let client = client(h2);
        for _ in 0..5 {
            let request = Request::get(format!("http://{address}/"))
                .body(Full::default())
                .unwrap();
            let answer = client.request(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            answer.into_body().collect().await.unwrap();
            until_used(&limiter, 0).await;
        }
    }
}

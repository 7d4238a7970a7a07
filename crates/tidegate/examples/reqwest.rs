//! A reqwest client that calls a host ten times a second at most, and stays away from it for as
//! long as it asks.
//!
//! It starts a server on a free port, calls it, and ends: `cargo run --example reqwest`.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tidegate::outbound::{OutboundError, OutboundLayer};
use tidegate::{Limiter, Rate, TokenBucket};
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _};

/// A server that wants to be left alone for a second after its third answer.
fn server() -> Router {
    let answers = Arc::new(AtomicU32::new(0));
    let answer = async move || match answers.fetch_add(1, Ordering::Relaxed) {
        3 => Err((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")])),
        _ => Ok("hello"),
    };
    Router::new().route("/", get(answer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, server()).await });

    let bucket = TokenBucket::new(Rate::per_second(10)?, 1)?;
    let limiter = Limiter::builder(bucket).name("per-host").max_keys(1_000);
    let layer = OutboundLayer::new(limiter.build()).max_wait(Duration::from_secs(10));
    let http = reqwest::Client::new();
    let client = layer.layer(http.clone());

    let begun = Instant::now();
    let mut refused_at = None;
    for _ in 0..6 {
        let answer = client.clone().oneshot(http.get(&url).build()?).await?;
        println!("{:>4} ms: {}", begun.elapsed().as_millis(), answer.status());
        match (answer.status().as_u16(), refused_at) {
            (429, None) => refused_at = Some(Instant::now()),
            (200, Some(refused_at)) => {
                assert!(refused_at.elapsed() >= Duration::from_millis(990));
            }
            (status, _) => assert_eq!(status, 200),
        }
    }
    assert!(refused_at.is_some());
    // Three intervals of 100 ms, the pause, and one more interval.
    assert!(begun.elapsed() >= Duration::from_millis(1_350));

    // Who cannot wait is told so, and nothing is sent.
    let hasty = layer.max_wait(Duration::ZERO).layer(http.clone());
    let mut last = Ok(());
    for _ in 0..20 {
        last = hasty
            .clone()
            .oneshot(http.get(&url).build()?)
            .await
            .map(drop);
        if last.is_err() {
            break;
        }
    }
    let error = last.expect_err("one call in 100 ms may go out");
    assert!(matches!(error, OutboundError::NotSent { .. }));
    println!("{error}: {}", error.source().ok_or("there is a reason")?);
    Ok(())
}

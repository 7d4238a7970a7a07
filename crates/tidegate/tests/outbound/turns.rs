//! When calls go out, in simulated time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, Request, Response};
use tidegate::outbound::{Outbound, OutboundError, OutboundLayer};
use tidegate::{Limiter, Micros, Rate, TokenBucket, TokioClock, WaitError};
use tokio::time::Instant;
use tower::{Layer as _, Service, ServiceExt as _};

fn limiter(rate: Rate, capacity: u32) -> Limiter {
    Limiter::builder(TokenBucket::new(rate, capacity).unwrap())
        .clock(Arc::new(TokioClock::new()))
        .build()
}

/// So many that nothing but the hosts' own wishes counts.
fn plenty() -> Limiter {
    limiter(Rate::per_second(1_000_000).unwrap(), 1_000_000)
}

/// A client that plays its host: `answers` in turn, then 200 for good. Calls are written down
/// with the millisecond that they went out at.
#[derive(Debug)]
struct Host {
    answers: Arc<Mutex<Vec<Response<()>>>>,
    calls: Arc<Mutex<Vec<(u128, String)>>>,
    start: Instant,
    ready: bool,
}

impl Clone for Host {
    fn clone(&self) -> Self {
        Self {
            answers: Arc::clone(&self.answers),
            calls: Arc::clone(&self.calls),
            start: self.start,
            ready: false,
        }
    }
}

impl Service<Request<()>> for Host {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Request<()>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        let at = self.start.elapsed().as_millis();
        self.calls
            .lock()
            .unwrap()
            .push((at, call.uri().to_string()));
        let answer = self.answers.lock().unwrap().pop().unwrap_or_default();
        Box::pin(async {
            // Calls made at the same time are all under way before one is answered.
            tokio::task::yield_now().await;
            Ok(answer)
        })
    }
}

impl Host {
    fn new(
        answers: impl IntoIterator<Item = (u16, &'static [(&'static str, &'static str)])>,
    ) -> Self {
        let answers = answers.into_iter().map(|(status, fields)| {
            let mut response = Response::builder().status(status);
            for (name, value) in fields {
                response = response.header(HeaderName::from_static(name), *value);
            }
            response.body(()).unwrap()
        });
        let mut answers: Vec<_> = answers.collect();
        answers.reverse();
        Self {
            answers: Arc::new(Mutex::new(answers)),
            calls: Arc::default(),
            start: Instant::now(),
            ready: false,
        }
    }

    /// When calls went out; a timer may be late by a millisecond.
    fn calls(&self) -> Vec<u128> {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .map(|(at, _)| at / 10 * 10)
            .collect()
    }
}

async fn call(
    client: &Outbound<Host>,
    uri: &str,
) -> Result<Response<()>, OutboundError<Infallible>> {
    let call = Request::get(uri).body(()).unwrap();
    client.clone().oneshot(call).await
}

const A: &str = "http://a.example/x";
const B: &str = "http://b.example/x";

#[tokio::test(start_paused = true)]
async fn a_host_that_refuses_is_not_called_before_its_time() {
    let host = Host::new([(429, &[("retry-after", "7")][..])]);
    let client = OutboundLayer::new(plenty()).layer(host.clone());
    // The refusal is the caller's; nothing is sent twice.
    assert_eq!(call(&client, A).await.unwrap().status(), 429);
    let (second, third, elsewhere) = tokio::join!(
        call(&client, A),
        call(&client, "http://A.example:80/y"),
        call(&client, B)
    );
    for answer in [second, third, elsewhere] {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!(host.calls(), [0, 0, 7_000, 7_000]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_which_nothing_remains_is_heeded_too() {
    let host = Host::new([
        (200, &[("ratelimit", "\"user\";r=1;t=9")][..]),
        (200, &[("ratelimit", "\"user\";r=0;t=9")][..]),
    ]);
    let client = OutboundLayer::new(plenty()).layer(host.clone());
    for _ in 0..3 {
        assert_eq!(call(&client, A).await.unwrap().status(), 200);
    }
    assert_eq!(host.calls(), [0, 0, 9_000]);
}

#[tokio::test(start_paused = true)]
async fn calls_go_out_as_often_as_the_local_limit_allows() {
    let host = Host::new([]);
    let client = OutboundLayer::new(limiter(Rate::per_second(10).unwrap(), 2)).layer(host.clone());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let client = client.clone();
        calls.spawn(async move { call(&client, A).await.unwrap().status() });
    }
    calls.join_all().await;
    assert_eq!(host.calls(), [0, 0, 100, 200, 300]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_would_wait_too_long_fails_at_once_and_says_so() {
    let host = Host::new([(503, &[("retry-after", "60")][..])]);
    let client = OutboundLayer::new(plenty())
        .max_wait(Duration::from_secs(30))
        .layer(host.clone());
    assert_eq!(call(&client, A).await.unwrap().status(), 503);
    let error = call(&client, A).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the call to http://a.example:80 was not sent"
    );
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        why.starts_with("the wait would be longer than 30s"),
        "{why}"
    );
    assert_eq!(host.start.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(call(&client, A).await.unwrap().status(), 200);
    assert_eq!(host.calls(), [0, 60_000]);
}

#[tokio::test(start_paused = true)]
async fn a_host_cannot_ask_for_more_than_the_longest_pause() {
    for asked in ["999999999999999999999", "86400"] {
        let fields: &'static [_] = vec![("retry-after", asked)].leak();
        let host = Host::new([(429, fields)]);
        let client = OutboundLayer::new(plenty())
            .max_pause(Duration::from_secs(5))
            .layer(host.clone());
        call(&client, A).await.unwrap();
        call(&client, A).await.unwrap();
        assert_eq!(host.calls(), [0, 5_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_pauses_the_longest_counts() {
    let host = Host::new([
        (429, &[("retry-after", "20")][..]),
        (429, &[("retry-after", "2")][..]),
    ]);
    let client = OutboundLayer::new(plenty()).layer(host.clone());
    let (first, second) = tokio::join!(call(&client, A), call(&client, A));
    assert_eq!(first.unwrap().status(), 429);
    assert_eq!(second.unwrap().status(), 429);
    call(&client, A).await.unwrap();
    assert_eq!(*host.calls().last().unwrap(), 20_000);
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_already_heed_a_pause_and_do_not_go_out_together_after_it() {
    let host = Host::new([
        (200, &[][..]),
        (200, &[][..]),
        (429, &[("retry-after", "5")][..]),
    ]);
    let client = OutboundLayer::new(limiter(Rate::per_second(10).unwrap(), 1)).layer(host.clone());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let client = client.clone();
        calls.spawn(async move { call(&client, A).await.unwrap().status() });
    }
    calls.join_all().await;
    let went_out = host.calls();
    assert_eq!(went_out[..3], [0, 100, 200]);
    assert!(went_out[3] >= 5_200, "{went_out:?}");
    for pair in went_out[3..].windows(2) {
        assert!(pair[1] - pair[0] >= 90, "{went_out:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_lets_nothing_through_says_so() {
    let host = Host::new([]);
    let nothing = limiter(Rate::per_second(1).unwrap(), 0);
    let client = OutboundLayer::new(nothing).layer(host.clone());
    let error = call(&client, "https://a.example/").await.unwrap_err();
    let OutboundError::NotSent { origin, source } = error else {
        panic!("{error}")
    };
    assert_eq!(origin, "https://a.example:443");
    assert!(matches!(source, WaitError::Impossible(_)), "{source}");
    assert!(host.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_while_it_waits_takes_nothing() {
    let host = Host::new([]);
    let client = OutboundLayer::new(limiter(Rate::new(1, Micros::from_secs(10).0).unwrap(), 1))
        .layer(host.clone());
    call(&client, A).await.unwrap();
    for _ in 0..5 {
        let given_up = tokio::time::timeout(Duration::from_millis(100), call(&client, A)).await;
        given_up.unwrap_err();
    }
    call(&client, A).await.unwrap();
    assert_eq!(host.calls(), [0, 10_000]);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_hosts_that_are_remembered_is_bounded() {
    let bucket = TokenBucket::new(Rate::new(1, Micros::from_secs(3_600).0).unwrap(), 1).unwrap();
    let limiter = Limiter::builder(bucket).max_keys(100).build();
    let client = OutboundLayer::new(limiter.clone())
        .max_wait(Duration::ZERO)
        .layer(Host::new([]));
    for host in 0..10_000 {
        // Whether a host beyond the bound may be called depends on those that it shares with.
        let _ = call(&client, &format!("http://host{host}.example/")).await;
    }
    assert!(limiter.len() <= 101, "{}", limiter.len());
}

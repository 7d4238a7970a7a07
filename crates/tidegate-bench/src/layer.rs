//! What a layer adds to a request: beside `tower_governor`, around a service that does nothing.
//!
//! Both count by the peer's address, of a thousand peers, and tell the client what is left.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use tidegate::http::{KeySource, Rule};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Rate, TokenBucket};
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

use crate::measure::{Bench, Contender};
use crate::table::{self, Cell};

/// How many peers call.
const PEERS: u32 = 1_000;

/// Measures requests that pass and requests that are refused, and prints a table.
pub fn run(bench: &mut Bench) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let mut rows = Vec::new();
    // A burst that never ends, and one that has ended long before it is measured.
    for (work, burst, period) in [
        ("a request that passes", i32::MAX as u32, 1),
        ("a request that is refused", 1, 3_600),
    ] {
        let names = ["tidegate", "tower_governor", "no layer"];
        let contenders = [
            Contender::new(names[0], |calls| {
                runtime.block_on(serve(
                    tidegate(burst, period).layer(service_fn(answer)),
                    calls,
                ))
            }),
            Contender::new(names[1], |calls| {
                let mut config = GovernorConfigBuilder::default();
                let config = config
                    .period(Duration::from_secs(period))
                    .burst_size(burst)
                    .key_extractor(PeerIpKeyExtractor)
                    .use_headers()
                    .finish()
                    .expect("neither number is 0");
                let layer = GovernorLayer::new(config);
                runtime.block_on(serve(layer.layer(service_fn(answer)), calls))
            }),
            Contender::new(names[2], |calls| {
                runtime.block_on(serve(service_fn(answer), calls))
            }),
        ];
        let times = bench.medians(work, &contenders)?;
        let bare = times[2];
        let cells = names
            .into_iter()
            .zip(times)
            .take(2)
            .map(|(name, time)| Cell::new(name, (time - bare).max(0.0), None))
            .collect();
        rows.push((work, cells));
    }
    table::print("ns added to a request", &rows, bench.rounds());
    Ok(())
}

fn tidegate(burst: u32, period: u64) -> RateLimitLayer {
    let rate = Rate::new(1, period * 1_000_000).expect("the rate is in range");
    let bucket = TokenBucket::new(rate, burst).expect("the capacity is in range");
    let rule = Rule::new(Limiter::new(bucket)).expect("a bucket counts units");
    RateLimitLayer::new([rule.key([KeySource::client_address()])])
}

fn answer(_request: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

/// The time of so many requests, after every peer has made its first.
async fn serve<S, B>(mut service: S, calls: u64) -> Duration
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: std::fmt::Debug,
{
    let mut refused = 0_u64;
    let mut start = Instant::now();
    for call in 0..u64::from(PEERS) + calls {
        if call == u64::from(PEERS) {
            start = Instant::now();
        }
        let peer = u32::try_from(call % u64::from(PEERS)).unwrap_or(0);
        let address = IpAddr::from((0xC612_0000 | peer).to_be_bytes());
        let mut request = Request::new(Body::empty());
        let info = ConnectInfo(SocketAddr::new(address, 40_000));
        request.extensions_mut().insert(info);
        let response = service.call(request).await.expect("nothing fails here");
        refused += u64::from(response.status() == StatusCode::TOO_MANY_REQUESTS);
        std::hint::black_box(response);
    }
    let took = start.elapsed();
    assert!(refused == 0 || refused == calls, "{refused} of {calls}");
    took
}

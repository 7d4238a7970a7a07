//! Limits on the calls of a tonic server: two for each client, and a client that backs off as it
//! is told.
//!
//! It starts the server on a free port, is its own client, and ends: `cargo run --example tonic`.

use std::time::Instant;

use tidegate::http::{KeySource, Rule};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Rate, TokenBucket};
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two at once, then one in 200 ms.
    let bucket = TokenBucket::new(Rate::per_second(5)?, 2)?;
    let limiter = Limiter::builder(bucket).name("per-client").build();
    let rule = Rule::new(limiter)?.key([KeySource::client_address()]);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(RateLimitLayer::new([rule]))
        .add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let server = Endpoint::from_shared(format!("http://{address}"))?;
    let mut client = HealthClient::new(server.connect().await?);
    let mut refused = 0;
    for _ in 0..5 {
        loop {
            let asked = Instant::now();
            let Err(status) = client.check(HealthCheckRequest::default()).await else {
                break;
            };
            assert_eq!(status.code(), Code::ResourceExhausted);
            let retry = status
                .get_details_retry_info()
                .and_then(|info| info.retry_delay);
            let retry = retry.ok_or("a limited call says when to come back")?;
            println!("{}: {retry:?}", status.message());
            refused += 1;
            tokio::time::sleep_until((asked + retry).into()).await;
        }
    }
    println!("5 calls answered, {refused} refused on the way");
    assert!(refused >= 1);
    Ok(())
}

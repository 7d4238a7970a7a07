//! Limits on the routes of an axum server: 3 requests a minute and client address for all routes,
//! 1 login a minute for each account, and one report at a time.
//!
//! It starts the server on a free port, is its own client, and ends: `cargo run --example axum`.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::{get, post};
use tidegate::http::{ClientAddress, KeySource, Rule};
use tidegate::tower::{ConcurrencyLayer, RateLimitLayer};
use tidegate::{Concurrency, Limiter, Micros, SlidingLog};
use tokio::net::TcpListener;

type Error = Box<dyn std::error::Error>;

/// So many in any minute.
fn per_minute(name: &str, limit: u32) -> Result<Limiter, Error> {
    let log = SlidingLog::new(limit, Micros::from_secs(60))?;
    Ok(Limiter::builder(log).name(name).build())
}

fn app() -> Result<Router, Error> {
    let client = Rule::new(per_minute("per-client", 3)?)?.key([KeySource::client_address()]);
    // The test's client is on this machine and says to be a proxy; believe nobody else.
    let proxies = ClientAddress::behind(["127.0.0.1/32".parse()?]);
    let account = Rule::new(per_minute("per-account", 1)?)?.key([KeySource::path("account")]);
    let one = Concurrency::new(1, Micros::from_secs(60), None)?;
    let one = Limiter::builder(one).name("reports").build();

    // A `route_layer` guards the routes that were added before it.
    let logins = Router::new()
        .route("/login/{account}", post(async || "welcome"))
        .route_layer(RateLimitLayer::new([account]));
    let reports = Router::new()
        .route("/report", get(async || "a long report"))
        .route_layer(ConcurrencyLayer::new(one)?.shed());
    Ok(Router::new()
        .route("/", get(async || "hello"))
        .merge(logins)
        .merge(reports)
        .layer(RateLimitLayer::new([client]).client_address(proxies)))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // Without the connect info no rule would know its client.
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let http = reqwest::Client::new();
    let get = async |path: &str, client: &str| {
        let call = http.get(format!("http://{address}{path}"));
        call.header("x-forwarded-for", client).send().await
    };
    for remaining in ["2", "1", "0"] {
        let answer = get("/", "192.0.2.1").await?;
        assert_eq!(answer.status(), 200);
        println!(
            "192.0.2.1 /: {} {:?}",
            answer.status(),
            answer.headers()["ratelimit"]
        );
        let expected = format!("\"per-client\";r={remaining};t=60");
        assert_eq!(answer.headers()["ratelimit"], expected);
    }
    let refused = get("/", "192.0.2.1").await?;
    assert_eq!(refused.status(), 429);
    println!(
        "192.0.2.1 /: {} {}",
        refused.status(),
        refused.text().await?
    );
    // Another client is not concerned.
    assert_eq!(get("/report", "192.0.2.2").await?.status(), 200);

    let log_in = async |account: &str, client: &str| {
        let call = http.post(format!("http://{address}/login/{account}"));
        call.header("x-forwarded-for", client).send().await
    };
    assert_eq!(log_in("asha", "192.0.2.3").await?.status(), 200);
    // The account counts, however it is spelt and wherever the guess comes from.
    let refused = log_in("%61sha", "192.0.2.4").await?;
    assert_eq!(refused.status(), 429);
    println!(
        "192.0.2.4 /login/asha: {} {}",
        refused.status(),
        refused.text().await?
    );
    assert_eq!(log_in("bo", "192.0.2.4").await?.status(), 200);
    Ok(())
}

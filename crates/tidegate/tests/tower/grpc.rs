//! What a gRPC client reads of a refusal.

use std::time::Duration;

use http::HeaderName;
use tidegate::http::{Answers, GrpcCode, KeySource, Missing};
use tidegate::tower::RateLimitLayer;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::support::{at_most, rule};

/// A client of a gRPC server behind a layer. The server ends with the test's runtime.
async fn client(layer: RateLimitLayer) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    tokio::spawn(
        Server::builder()
            .layer(layer)
            .add_service(health)
            .serve_with_incoming(TcpIncoming::from(listener)),
    );
    let server = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(server.connect().await.unwrap())
}

async fn check(client: &mut HealthClient<Channel>) -> Result<(), Status> {
    let answer = client.check(HealthCheckRequest::default()).await?;
    assert!(answer.metadata().contains_key("ratelimit"));
    Ok(())
}

#[tokio::test]
async fn a_limited_call_is_exhausted_and_says_when_to_come_back() {
    let layer = RateLimitLayer::new([rule(at_most("calls", 1))]);
    let mut client = client(layer).await;
    check(&mut client).await.unwrap();
    let status = check(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.message(),
        "over the limit calls; try again in 3600 seconds"
    );
    let retry = status
        .get_details_retry_info()
        .unwrap()
        .retry_delay
        .unwrap();
    assert_eq!(retry, Duration::from_secs(3_600));
    assert_eq!(
        status.metadata().get("grpc-retry-pushback-ms").unwrap(),
        "3600000"
    );
    let fields = status.metadata().get("ratelimit").unwrap();
    assert_eq!(fields, "\"calls\";r=0;t=3600");
    // The connection lives on.
    assert_eq!(
        check(&mut client).await.unwrap_err().code(),
        Code::ResourceExhausted
    );
}

#[tokio::test]
async fn a_call_that_can_never_pass_is_told_not_to_come_back() {
    let mut client = client(RateLimitLayer::new([rule(at_most("closed", 0))])).await;
    let status = check(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.metadata().get("grpc-retry-pushback-ms").unwrap(),
        "-1"
    );
    assert!(status.get_details_retry_info().is_none());
}

#[tokio::test]
async fn a_server_may_prefer_to_look_unavailable() {
    let answers = Answers::default().grpc_code(GrpcCode::Unavailable);
    let layer = RateLimitLayer::new([rule(at_most("closed", 0))]).answers(answers);
    let status = check(&mut client(layer).await).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_call_without_its_key_is_an_invalid_argument() {
    let tenant = KeySource::header(HeaderName::from_static("x-tenant"));
    let rule = rule(at_most("tenant", 1))
        .key([tenant])
        .missing(Missing::Refuse);
    let mut client = client(RateLimitLayer::new([rule])).await;
    let status = check(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("header.x-tenant is missing"),
        "{status}"
    );
    let mut call = Request::new(HealthCheckRequest::default());
    call.metadata_mut()
        .insert("x-tenant", "blue".parse().unwrap());
    client.check(call).await.unwrap();
}

#[tokio::test]
async fn tonic_s_peer_is_the_client() {
    let rule = rule(at_most("client", 1)).key([KeySource::client_address()]);
    // Without an address the call would be refused as malformed.
    let mut client = client(RateLimitLayer::new([rule.missing(Missing::Refuse)])).await;
    check(&mut client).await.unwrap();
    assert_eq!(
        check(&mut client).await.unwrap_err().code(),
        Code::ResourceExhausted
    );
}

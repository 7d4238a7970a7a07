//! The gateway and the library's layer answer alike: who limits its own service, and who puts the
//! gateway in front of it, get the very same.

mod support;

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use support::{Answer, Client, Setup, limit, mock, start};
use tidegate::http::{KeySource, Rule};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Rate, TokenBucket};
use tower::{Layer as _, ServiceExt as _};

/// Nothing comes back, so no answer depends on the moment that it is given at.
fn layer() -> RateLimitLayer {
    let never = Rate::per_second(0).unwrap();
    let limiter = |name, capacity| {
        let bucket = TokenBucket::new(never, capacity).unwrap();
        Limiter::builder(bucket).name(name).build()
    };
    RateLimitLayer::new([
        Rule::new(limiter("stage", 2)).unwrap(),
        Rule::new(limiter("per-user", 3))
            .unwrap()
            .key([KeySource::query("user_id")]),
    ])
}

async fn by_layer(layer: &RateLimitLayer, request: Request<()>) -> Answer {
    let service = layer.layer(tower::service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
    }));
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    Answer {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// The fields that depend on the server alone.
fn without_the_server_s_own(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in ["date", "content-length"] {
        headers.remove(name);
    }
    headers
}

#[tokio::test]
async fn a_client_cannot_tell_the_gateway_from_the_layer() {
    let gateway = start(Setup {
        limits: vec![
            limit("stage", "token_bucket rate 0/s capacity 2", &[]),
            limit(
                "per-user",
                "token_bucket rate 0/s capacity 3",
                &["query.user_id"],
            ),
        ],
        routes: vec![mock("ANY /x", &[0, 1], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::h2c(gateway.address());
    let layer = layer();
    for (target, fields) in [
        ("/x?user_id=bob", &[][..]),
        ("/x?user_id=bob&user_id=eve", &[][..]),
        ("/x", &[("accept", "text/html")][..]),
        ("/x?user_id=bob", &[][..]),
        ("/x?user_id=bob", &[("accept", "application/json")][..]),
        ("/x?user_id=bob", &[("accept", "text/plain")][..]),
        (
            "/x?user_id=bob",
            &[("content-type", "application/grpc")][..],
        ),
        (
            "/x?user_id=bob&user_id=eve",
            &[("content-type", "application/grpc")][..],
        ),
    ] {
        let request = || {
            let mut request = Request::get(target);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            request
        };
        let gateway = client.send(request()).await;
        let layer = by_layer(&layer, request().body(()).unwrap()).await;
        assert_eq!(gateway.status, layer.status, "{target} {fields:?}");
        assert_eq!(
            without_the_server_s_own(&gateway.headers),
            without_the_server_s_own(&layer.headers),
            "{target} {fields:?}"
        );
        assert_eq!(gateway.body, layer.body, "{target} {fields:?}");
    }
}

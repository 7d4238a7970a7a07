//! Whose state a request counts against, hostile requests included.

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::header::FORWARDED;
use http::{HeaderName, Request, StatusCode};
use tidegate::http::{ClientAddress, KeySource, Missing, VerifiedClaims};
use tidegate::tower::RateLimitLayer;
use tower::Layer as _;

use crate::support::{self, Body, at_most, from, ok, rule, send, statuses};

/// The statuses of requests under one call for each address.
async fn by_address<const N: usize>(
    client: ClientAddress,
    requests: [(&str, &[(&str, &str)]); N],
) -> Vec<u16> {
    let rule = rule(at_most("client", 1)).key([KeySource::client_address()]);
    let service = RateLimitLayer::new([rule])
        .client_address(client)
        .layer(ok());
    statuses(&service, requests.map(|(peer, fields)| from(peer, fields))).await
}

fn behind(proxy: &str) -> ClientAddress {
    ClientAddress::behind([proxy.parse().unwrap()])
}

#[tokio::test]
async fn a_forged_forwarding_field_buys_no_new_bucket() {
    // Nobody is trusted: the field is not read at all.
    let requests: [(&str, &[(&str, &str)]); 3] = [
        ("203.0.113.9", &[("x-forwarded-for", "198.51.100.1")]),
        ("203.0.113.9", &[("x-forwarded-for", "198.51.100.2")]),
        (
            "203.0.113.9",
            &[
                ("forwarded", "for=198.51.100.3"),
                ("x-real-ip", "198.51.100.4"),
            ],
        ),
    ];
    assert_eq!(
        by_address(ClientAddress::default(), requests).await,
        [200, 429, 429]
    );
    // The proxy appends what it saw: what stands before that is the client's invention.
    let requests: [(&str, &[(&str, &str)]); 4] = [
        (
            "127.0.0.1",
            &[("x-forwarded-for", "198.51.100.1, 203.0.113.9")],
        ),
        (
            "127.0.0.1",
            &[("x-forwarded-for", "198.51.100.2, 203.0.113.9")],
        ),
        (
            "127.0.0.1",
            &[
                ("x-forwarded-for", "198.51.100.3"),
                ("x-forwarded-for", "203.0.113.9"),
            ],
        ),
        ("127.0.0.1", &[("x-forwarded-for", "203.0.113.10")]),
    ];
    assert_eq!(
        by_address(behind("127.0.0.1/32"), requests).await,
        [200, 429, 429, 200]
    );
    // What is no address counts as the peer.
    let requests: [(&str, &[(&str, &str)]); 3] = [
        ("127.0.0.1", &[("x-forwarded-for", "banana")]),
        ("127.0.0.1", &[("x-forwarded-for", "198.51.100.1, ")]),
        ("127.0.0.1", &[]),
    ];
    assert_eq!(
        by_address(behind("127.0.0.1/32"), requests).await,
        [200, 429, 429]
    );
}

#[tokio::test]
async fn only_the_field_that_was_named_is_read() {
    let proxy = || behind("127.0.0.1/32");
    let forwarded: [(&str, &[(&str, &str)]); 3] = [
        (
            "127.0.0.1",
            &[
                ("forwarded", "for=\"[2001:db8::7]:4711\""),
                ("x-real-ip", "10.1.1.1"),
            ],
        ),
        (
            "127.0.0.1",
            &[
                ("forwarded", "For=\"[2001:DB8::8]\""),
                ("x-real-ip", "10.1.1.2"),
            ],
        ),
        (
            "127.0.0.1",
            &[("forwarded", "for=192.0.2.1"), ("x-real-ip", "10.1.1.3")],
        ),
    ];
    let client = proxy().headers([FORWARDED]);
    assert_eq!(by_address(client, forwarded).await, [200, 429, 200]);
    let real_ip: [(&str, &[(&str, &str)]); 3] = [
        (
            "127.0.0.1",
            &[("x-real-ip", "192.0.2.1"), ("x-forwarded-for", "10.1.1.1")],
        ),
        (
            "127.0.0.1",
            &[("x-real-ip", "192.0.2.1"), ("x-forwarded-for", "10.1.1.2")],
        ),
        ("127.0.0.1", &[("x-real-ip", "192.0.2.2")]),
    ];
    let client = proxy().headers([HeaderName::from_static("x-real-ip")]);
    assert_eq!(by_address(client, real_ip).await, [200, 429, 200]);
}

#[tokio::test]
async fn an_ipv6_customer_is_one_client_and_an_ipv4_one_is_the_same_in_any_notation() {
    let bare: &[(&str, &str)] = &[];
    let requests = [
        ("2001:db8:0:1::1", bare),
        ("2001:db8:0:1::2", bare),
        ("2001:DB8:0:1:ffff:0:0:3", bare),
        ("2001:db8:0:2::1", bare),
        ("::ffff:192.0.2.1", bare),
        ("192.0.2.1", bare),
        ("::ffff:198.51.100.7", bare),
    ];
    assert_eq!(
        by_address(ClientAddress::default(), requests).await,
        [200, 429, 429, 200, 200, 429, 200]
    );
    let whole = ClientAddress::default().ipv6_prefix(128).ipv4_prefix(24);
    let requests = [
        ("2001:db8:0:1::1", bare),
        ("2001:db8:0:1::2", bare),
        ("192.0.2.1", bare),
        ("192.0.2.200", bare),
    ];
    assert_eq!(by_address(whole, requests).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn clients_that_no_server_names_share_one_bucket() {
    let rule = rule(at_most("client", 1)).key([KeySource::client_address()]);
    let service = RateLimitLayer::new([rule]).layer(ok());
    let nameless = [support::get("/"), support::get("/")];
    assert_eq!(statuses(&service, nameless).await, [200, 429]);
}

fn with_user(user: Option<&str>) -> Request<Body> {
    let mut request = support::get("/");
    if let Some(user) = user {
        request
            .headers_mut()
            .insert("x-user", user.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_missing_part_is_shared_skipped_or_refused_as_the_rule_says() {
    let users = [None, None, Some(""), Some("bob"), Some("bob")];
    for (missing, expected) in [
        (Missing::Share, [200, 429, 200, 200, 429]),
        (Missing::Skip, [200, 200, 200, 200, 429]),
        (Missing::Refuse, [400, 400, 200, 200, 429]),
    ] {
        let user = KeySource::header(HeaderName::from_static("x-user"));
        let rule = rule(at_most("user", 1)).key([user]).missing(missing);
        let service = RateLimitLayer::new([rule]).layer(ok());
        let requests = users.map(with_user);
        assert_eq!(statuses(&service, requests).await, expected, "{missing:?}");
    }
}

#[tokio::test]
async fn what_is_refused_for_its_key_is_charged_to_nobody() {
    let user = || KeySource::header(HeaderName::from_static("x-user"));
    let all = at_most("all", 5).build();
    let rules = [
        tidegate::http::Rule::new(all.clone()).unwrap(),
        rule(at_most("user", 5))
            .key([user()])
            .missing(Missing::Refuse),
    ];
    let service = RateLimitLayer::new(rules).layer(ok());
    let answer = send(&service, with_user(None)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.field("content-type"), "application/problem+json");
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("header.x-user is missing")
    );
    let mut twice = with_user(Some("bob"));
    twice.headers_mut().append("x-user", "eve".parse().unwrap());
    let answer = send(&service, twice).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("more than once")
    );
    assert_eq!(support::used(&all, &tidegate::Key::from_parts([])), 0);
}

#[tokio::test]
async fn several_parts_are_one_key_and_no_text_in_one_looks_like_two() {
    let parts = [KeySource::query("user"), KeySource::query("path")];
    let service = RateLimitLayer::new([rule(at_most("pair", 1)).key(parts)]).layer(ok());
    let requests = [
        "/?user=bob&path=/login",
        "/?user=bob&path=/logout",
        "/?user=bob_path=/login",
        "/?user=bob&path=%2Flogin",
        "/?user=b%6Fb&x=1&path=/login",
    ];
    let answered = statuses(&service, requests.map(support::get)).await;
    assert_eq!(answered, [200, 200, 200, 429, 429]);
}

#[tokio::test]
async fn a_claim_counts_where_it_was_verified() {
    let rule = rule(at_most("subject", 1)).key([KeySource::claim("sub")]);
    let service = RateLimitLayer::new([rule]).layer(ok());
    let verified = |subject: &str| {
        let mut request = support::get("/");
        let claims = serde_json::Map::from_iter([("sub".to_owned(), subject.into())]);
        request.extensions_mut().insert(VerifiedClaims(claims));
        request
    };
    let forged = |signature: &str| {
        let mut request = support::get("/");
        let token = format!("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ.{signature}");
        request
            .headers_mut()
            .insert("authorization", token.parse().unwrap());
        request
    };
    let requests = [
        verified("bob"),
        verified("bob"),
        verified("eve"),
        forged("a"),
        forged("b"),
    ];
    // Tokens that nobody verified are all the same stranger.
    assert_eq!(
        statuses(&service, requests).await,
        [200, 429, 200, 200, 429]
    );
}

fn axum_app() -> Router {
    let user = RateLimitLayer::new([rule(at_most("user", 1)).key([KeySource::path("id")])]);
    let route = RateLimitLayer::new([rule(at_most("route", 2)).key([KeySource::matched_path()])]);
    let users = Router::new()
        .route("/users/{id}", get(async || "user"))
        .route_layer(user)
        .route("/other", get(async || "other"))
        .layer(route);
    Router::new().nest("/v1", users)
}

fn axum_get(target: &str) -> Request<axum::body::Body> {
    Request::get(target)
        .body(axum::body::Body::empty())
        .unwrap()
}

#[tokio::test]
async fn a_parameter_of_axum_s_path_is_read_decoded() {
    let requests = ["/v1/users/a", "/v1/users/%61", "/v1/other"];
    let answered = statuses(&axum_app(), requests.map(axum_get)).await;
    assert_eq!(answered, [200, 429, 200]);
}

#[tokio::test]
async fn every_spelling_of_axum_s_route_is_one_key() {
    // The route lets two through, whoever the users are.
    let requests = ["/v1/users/a", "/v1/users/b?x=1", "/v1/users/c", "/v1/other"];
    let answered = statuses(&axum_app(), requests.map(axum_get)).await;
    assert_eq!(answered, [200, 200, 429, 200]);
}

#[tokio::test]
async fn a_parameter_of_the_path_that_is_no_text_is_refused() {
    let answer = send(&axum_app(), axum_get("/v1/users/%FF")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("path.id is not UTF-8")
    );
}

#[tokio::test]
async fn axum_s_peer_is_the_client() {
    let layer =
        RateLimitLayer::new([rule(at_most("client", 1)).key([KeySource::client_address()])]);
    let app = Router::new().route("/", get(async || "ok")).layer(layer);
    let from = |peer: &str| {
        let mut request = axum_get("/");
        let peer: std::net::SocketAddr = peer.parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    };
    let requests = [
        from("192.0.2.1:1"),
        from("192.0.2.1:2"),
        from("192.0.2.2:1"),
    ];
    assert_eq!(statuses(&app, requests).await, [200, 429, 200]);
}

#[tokio::test]
async fn rules_may_depend_on_the_request() {
    let gold = std::sync::Arc::new(tidegate::http::Rules::from_iter([rule(at_most("gold", 2))]));
    let free = std::sync::Arc::new(tidegate::http::Rules::from_iter([rule(at_most("free", 1))]));
    let service = RateLimitLayer::select(move |head| match head.path() {
        "/gold" => Some(gold.clone()),
        "/free" => Some(free.clone()),
        _ => None,
    })
    .layer(ok());
    let requests = ["/gold", "/free", "/free", "/gold", "/gold", "/", "/", "/"];
    let answered = statuses(&service, requests.map(support::get)).await;
    assert_eq!(answered, [200, 200, 429, 200, 429, 200, 200, 200]);
}

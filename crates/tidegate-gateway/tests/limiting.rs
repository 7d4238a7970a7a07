//! What limited clients see, over real sockets.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use support::{Client, PATIENCE, Setup, at_most, limit, mirror, mock, proxy, start};
use tidegate_config::model::{Compat, GrpcDenial, HeaderDialect, Identity, Mode, WhenFull};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

/// A route for all with a burst of 200, and 100 a minute for each user.
fn two_layers() -> Setup {
    Setup {
        limits: vec![
            limit(
                "stage",
                "token_bucket rate 100/s capacity 200",
                &["method_and_route"],
            ),
            limit("per-user", "sliding_log limit 100/1m", &["query.user_id"]),
        ],
        routes: vec![
            mock(
                "GET /vips",
                &[0, 1],
                "{\"message\":\"Welcome to the club\"}",
            ),
            mock("GET /stage", &[0], "stage"),
        ],
        ..Setup::default()
    }
}

#[tokio::test]
async fn an_allowed_answer_tells_of_its_limits_nearest_first() {
    let gateway = start(two_layers()).await;
    let client = Client::new(gateway.address());
    let answer = client.get("/vips?user_id=bob").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.text(), "{\"message\":\"Welcome to the club\"}");
    assert_eq!(
        answer.field("ratelimit-policy"),
        "\"per-user\";q=100;w=60, \"stage\";q=200;w=2"
    );
    assert_eq!(
        answer.field("ratelimit"),
        "\"per-user\";r=99;t=60, \"stage\";r=199;t=1"
    );
    assert!(!answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_key_that_is_there_twice_with_different_values_is_refused_and_counts_for_nobody() {
    // Whichever value counted, an upstream that goes by the other would not be limited.
    let gateway = start(two_layers()).await;
    let client = Client::new(gateway.address());
    for target in [
        "/vips?user_id=bob&user_id=eve",
        "/vips?user_id=bob&x=1&user%5Fid=b%6Fc",
        "/vips?user_id&user_id=bob",
    ] {
        let answer = client.get(target).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{target}");
        assert!(
            answer
                .text()
                .contains("query.user_id is there more than once")
        );
    }
    // The same value twice is one value.
    let answer = client.get("/vips?user_id=bob&user_id=b%6Fb").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        answer.field("ratelimit"),
        "\"per-user\";r=99;t=60, \"stage\";r=199;t=1"
    );
}

#[tokio::test]
async fn a_refused_client_reads_why_and_for_how_long() {
    let gateway = start(two_layers()).await;
    let client = Client::new(gateway.address());
    for _ in 0..100 {
        assert_eq!(client.get("/vips?user_id=bob").await.status, StatusCode::OK);
    }
    let answer = client.get("/vips?user_id=bob").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = answer.field("retry-after").parse().unwrap();
    assert!((50..=60).contains(&seconds), "{seconds}");
    assert!(answer.field("ratelimit").starts_with("\"per-user\";r=0;t="));
    assert_eq!(answer.field("content-type"), "application/problem+json");
    let problem = answer.json();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["status"], 429);
    assert_eq!(
        problem["violated-policies"],
        serde_json::json!(["per-user"])
    );
    // Another user is not concerned, and the refusal did not count against the stage.
    let other = client.get("/vips?user_id=eve").await;
    assert_eq!(other.status, StatusCode::OK);
}

#[tokio::test]
async fn a_burst_never_gets_more_than_the_capacity_and_the_refill() {
    let gateway = start(two_layers()).await;
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = Client::new(gateway.address());
        tasks.spawn(async move {
            let mut allowed = 0;
            for _ in 0..100 {
                let answer = client.get("/stage").await;
                if answer.status == StatusCode::OK {
                    allowed += 1;
                } else {
                    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
                    assert_eq!(answer.field("retry-after"), "1");
                }
            }
            allowed
        });
    }
    let allowed: u32 = tasks.join_all().await.iter().sum();
    let most = 200 + u32::try_from(begun.elapsed().as_millis() / 10).unwrap();
    assert!(
        (200..=most).contains(&allowed),
        "{allowed} of 5000, at most {most}"
    );
}

#[tokio::test]
async fn waiting_as_told_is_enough() {
    let gateway = start(Setup {
        limits: vec![limit("slow", "token_bucket rate 2/s capacity 1", &[])],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    let refused = client.get("/").await;
    assert_eq!(refused.field("retry-after"), "1");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_waiting_cannot_help_has_no_retry_after() {
    let gateway = start(Setup {
        limits: vec![limit("closed", "token_bucket rate 1/s capacity 0", &[])],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let answer = Client::new(gateway.address()).get("/").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["retry"], "never");
}

#[tokio::test]
async fn the_reset_of_a_window_is_its_end_refused_or_not() {
    let gateway = start(Setup {
        limits: vec![limit(
            "window",
            "fixed_window limit 2/10m align first_use",
            &[],
        )],
        routes: vec![mock("GET /", &[0], "ok")],
        limit_headers: HeaderDialect::Draft03,
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
        let answer = client.get("/").await;
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.field("x-ratelimit-limit"), "2");
        assert_eq!(answer.field("x-ratelimit-remaining"), remaining);
        let reset: u64 = answer.field("x-ratelimit-reset").parse().unwrap();
        assert!((590..=600).contains(&reset), "{reset}");
    }
}

#[tokio::test]
async fn every_spelling_of_a_route_shares_its_bucket() {
    let upstream = mirror().await;
    let gateway = start(Setup {
        limits: vec![at_most("login", 2, &["client_ip"])],
        routes: vec![proxy("ANY /api/login", &[0], upstream)],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    let mut found = Vec::new();
    for target in [
        "/api/login",
        "//api/login",
        "/api/./login",
        "/api/login/",
        "/api/%6Cogin",
        "/x/../api/login",
        "/api/login?x=1",
        "/API/login",
    ] {
        found.push(client.get(target).await.status.as_u16());
    }
    assert_eq!(found, [200, 200, 429, 429, 429, 429, 429, 404]);
}

#[tokio::test]
async fn the_upstream_gets_the_path_that_was_matched() {
    let upstream = mirror().await;
    let gateway = start(Setup {
        routes: vec![proxy("ANY /{path+}", &[], upstream)],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    for (target, arrives) in [
        ("/x/../api//%6Cogin/?a=%7E&b", "GET /api/login/?a=%7E&b"),
        ("/a%3ab", "GET /a%3Ab"),
    ] {
        let answer = client.get(target).await;
        assert_eq!(answer.text().lines().next(), Some(arrives));
    }
}

#[tokio::test]
async fn a_request_without_its_key_part_is_counted_with_its_like() {
    let gateway = start(Setup {
        limits: vec![at_most("per-user", 1, &["query.user_id"])],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    let mut found = Vec::new();
    for target in [
        "/",
        "/?other=1",
        "/?user_id=",
        "/?user_id=bob",
        "/?user_id=bob&user_id=eve",
        "/?user%5Fid=b%6fb",
        "/?user_id=eve",
    ] {
        found.push(client.get(target).await.status.as_u16());
    }
    assert_eq!(found, [200, 429, 200, 200, 400, 429, 200]);
}

async fn by_address(trusted: &[&str], requests: &[&str]) -> Vec<u16> {
    let gateway = start(Setup {
        limits: vec![at_most("per-client", 3, &["client_ip"])],
        routes: vec![mock("GET /", &[0], "ok")],
        identity: Identity {
            trusted_proxies: trusted
                .iter()
                .map(|network| network.parse().unwrap())
                .collect(),
            ..Identity::default()
        },
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    let mut found = Vec::new();
    for forwarded in requests {
        let request = Request::get("/").header("x-forwarded-for", *forwarded);
        found.push(client.send(request).await.status.as_u16());
    }
    found
}

#[tokio::test]
async fn a_forged_forwarding_field_gives_no_new_bucket() {
    let refused_after_three = [200, 200, 200, 429, 429];
    for (trusted, requests) in [
        (
            &[][..],
            ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4", "5.5.5.5"],
        ),
        (
            &["127.0.0.1/32"],
            [
                "1.1.1.1, 203.0.113.9",
                "2.2.2.2, 203.0.113.9",
                "3.3.3.3, 203.0.113.9",
                "4.4.4.4, 203.0.113.9",
                "203.0.113.9",
            ],
        ),
        (
            &["127.0.0.1/32"],
            ["banana", "banane", "", "x, y", "1.2.3.4.5"],
        ),
    ] {
        assert_eq!(
            by_address(trusted, &requests).await,
            refused_after_three,
            "{requests:?}"
        );
    }
}

#[tokio::test]
async fn an_ipv6_customer_cannot_walk_through_its_network() {
    let found = by_address(
        &["127.0.0.1/32"],
        &[
            "2001:db8:0:1::1",
            "2001:DB8:0:1:0:0:0:2",
            "[2001:db8:0:1::3]:443",
            "2001:db8:0:1::4",
            "2001:db8:0:2::1",
        ],
    )
    .await;
    assert_eq!(found, [200, 200, 200, 429, 200]);
}

#[tokio::test]
async fn a_connection_lives_on_after_a_refusal() {
    let gateway = start(Setup {
        limits: vec![at_most("once", 1, &[])],
        routes: vec![mock("ANY /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    for round in 0..3 {
        stream.write_all(post.as_bytes()).await.unwrap();
        let head = support::read_head(&mut stream).await;
        let status = if round == 0 {
            "HTTP/1.1 200"
        } else {
            "HTTP/1.1 429"
        };
        assert!(head.starts_with(status), "round {round}: {head}");
        assert!(!head.contains("connection: close"), "{head}");
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.parse().ok())
            .unwrap();
        let mut body = vec![0; length];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut body)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_refused_upload_is_answered_and_the_answer_arrives() {
    let gateway = start(Setup {
        limits: vec![at_most("closed", 0, &[])],
        routes: vec![mock("ANY /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    for round in 0..20 {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = vec![b'x'; 100_000];
        // The gateway stops reading at some point; what counts is that its answer is not lost.
        for _ in 0..80 {
            if stream.write_all(&chunk).await.is_err() {
                break;
            }
        }
        let answer = support::read_all(&mut stream).await;
        assert_eq!(support::statuses(&answer), [429], "round {round}: {answer}");
    }
}

#[tokio::test]
async fn a_watched_limit_lets_pass_and_says_nothing() {
    let mut watched = at_most("watched", 1, &[]);
    watched.mode = Mode::Shadow;
    let gateway = start(Setup {
        limits: vec![watched],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    for _ in 0..3 {
        let answer = client.get("/").await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(!answer.headers.contains_key("ratelimit"));
    }
    let text = gateway.metrics().text();
    for line in [
        "tidegate_decisions_total{door=\"gateway\",limit=\"watched\",outcome=\"allowed\"} 1",
        "tidegate_decisions_total{door=\"gateway\",limit=\"watched\",outcome=\"shadow_denied\"} 2",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn api_gateway_s_bodies_are_sent_where_they_are_wanted() {
    let gateway = start(Setup {
        limits: vec![at_most("closed", 0, &[])],
        routes: vec![mock("GET /", &[0], "ok")],
        compat: Compat::Aws,
        limit_headers: HeaderDialect::None,
        ..Setup::default()
    })
    .await;
    let answer = Client::new(gateway.address()).get("/").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.text(), "{\"message\":\"Too Many Requests\"}");
    assert!(!answer.headers.contains_key("ratelimit"));
}

#[tokio::test]
async fn a_paced_queue_holds_its_requests_back() {
    let gateway = start(Setup {
        limits: vec![limit("paced", "leaky_bucket rate 10/s queue 3", &[])],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let client = client.clone();
        tasks.spawn(async move { client.get("/").await.status.as_u16() });
    }
    let mut found = tasks.join_all().await;
    found.sort_unstable();
    assert_eq!(found, [200, 200, 200, 200, 429]);
    let took = begun.elapsed();
    assert!(
        (Duration::from_millis(300)..PATIENCE).contains(&took),
        "{took:?}"
    );
}

#[tokio::test]
async fn limits_hold_over_http2_as_well() {
    let gateway = start(Setup {
        limits: vec![at_most("some", 10, &["client_ip"])],
        routes: vec![mock("ANY /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::h2c(gateway.address());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        tasks.spawn(async move {
            client
                .send_body(Request::post("/"), Bytes::from_static(b"hello"))
                .await
                .status
        });
    }
    let allowed = tasks
        .join_all()
        .await
        .iter()
        .filter(|status| **status == 200)
        .count();
    assert_eq!(allowed, 10);
}

#[tokio::test]
async fn a_full_table_that_refuses_new_keys_sheds() {
    let mut narrow = at_most("narrow", 5, &["query.user_id"]);
    narrow.max_keys = 1;
    narrow.when_full = WhenFull::DenyNew;
    let gateway = start(Setup {
        limits: vec![narrow],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    assert_eq!(client.get("/?user_id=bob").await.status, StatusCode::OK);
    let mut shed = 0;
    for user in 0..100 {
        let answer = client.get(&format!("/?user_id={user}")).await;
        if answer.status == StatusCode::SERVICE_UNAVAILABLE {
            assert_eq!(answer.field("retry-after"), "1");
            shed += 1;
        }
    }
    assert!(shed > 90, "{shed}");
    assert_eq!(client.get("/?user_id=bob").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_head_request_counts_like_the_get_that_serves_it() {
    let gateway = start(Setup {
        limits: vec![at_most("some", 2, &["method_and_route"])],
        routes: vec![mock("GET /", &[0], "body")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    assert_eq!(client.get("/").await.text(), "body");
    let answer = client.send(Request::head("/")).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, ""));
    assert_eq!(answer.field("content-length"), "4");
    assert!(answer.field("ratelimit").starts_with("\"some\";r=0;"));
    assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_call_may_cost_more_than_one() {
    let mut dear = at_most("dear", 5, &[]);
    dear.cost = 2;
    let mut impossible = at_most("impossible", 5, &[]);
    impossible.cost = 6;
    let gateway = start(Setup {
        limits: vec![dear, impossible],
        routes: vec![mock("GET /", &[0], "ok"), mock("GET /never", &[1], "ok")],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    for status in [200, 200, 429] {
        assert_eq!(client.get("/").await.status.as_u16(), status);
    }
    let answer = client.get("/never").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_punitive_limit_charges_what_it_refuses() {
    let refused_are_charged = |charge_denied| async move {
        let mut window = limit("window", "sliding_log limit 1/2s", &[]);
        window.charge_denied = charge_denied;
        let gateway = start(Setup {
            limits: vec![window],
            routes: vec![mock("GET /", &[0], "ok")],
            ..Setup::default()
        })
        .await;
        let client = Client::new(gateway.address());
        assert_eq!(client.get("/").await.status, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
        // The allowed call has left the window by then, the refused one has not.
        tokio::time::sleep(Duration::from_millis(1000)).await;
        client.get("/").await.status
    };
    let (spared, charged) = tokio::join!(refused_are_charged(false), refused_are_charged(true));
    assert_eq!(spared, StatusCode::OK);
    assert_eq!(charged, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_limited_grpc_call_ends_with_a_status_and_not_with_an_outage() {
    for (grpc_denial, code) in [
        (GrpcDenial::ResourceExhausted, "8"),
        (GrpcDenial::Unavailable, "14"),
    ] {
        let calls = mirror().await;
        let gateway = start(Setup {
            limits: vec![limit("calls", "fixed_window limit 1/1m", &[])],
            routes: vec![proxy("ANY /svc.Clock/{method}", &[0], calls)],
            grpc_denial,
            ..Setup::default()
        })
        .await;
        let client = Client::h2c(gateway.address());
        let call =
            || Request::post("/svc.Clock/Now").header("content-type", "application/grpc+proto");
        assert_eq!(client.send(call()).await.status, StatusCode::OK);
        let refused = client.send(call()).await;
        // Trailers-only: the status stands in the head of an answer without a body.
        assert_eq!(refused.status, StatusCode::OK);
        assert_eq!(refused.field("content-type"), "application/grpc");
        assert_eq!(refused.field("grpc-status"), code);
        assert!(
            refused
                .field("grpc-message")
                .starts_with("over the limit calls; try again in ")
        );
        assert!(refused.headers.contains_key("grpc-status-details-bin"));
        let millis: u64 = refused.field("grpc-retry-pushback-ms").parse().unwrap();
        assert!((1..=60_000).contains(&millis), "{millis}");
        assert!(refused.field("ratelimit").starts_with("\"calls\";r=0;t="));
        assert!(refused.body.is_empty());
        // Who is no gRPC client gets what it understands.
        let plain = client.send(Request::post("/svc.Clock/Now")).await;
        assert_eq!(plain.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(!plain.headers.contains_key("grpc-status"));
    }
}

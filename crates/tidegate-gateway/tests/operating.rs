//! Reloads, drains and what operators see, over real sockets.

mod support;

use std::time::{Duration, Instant};

use http::StatusCode;
use http_body_util::Full;
use support::{Client, Setup, at_most, limit, mock, proxy, read_head, start, statuses};
use tidegate_config::model::Timeouts;
use tidegate_gateway::{ReloadError, Running};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn reload(gateway: &mut Running, setup: Setup) -> Result<Vec<&'static str>, ReloadError> {
    gateway.reload(&setup.config())
}

fn with_limit(capacity: u32, key: &[&str]) -> Setup {
    Setup {
        limits: vec![at_most("some", capacity, key)],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    }
}

#[tokio::test]
async fn a_reload_keeps_the_counters_of_limits_that_did_not_change() {
    let mut gateway = start(with_limit(3, &[])).await;
    let client = Client::new(gateway.address());
    assert_eq!(
        client.get("/").await.field("ratelimit"),
        "\"some\";r=2;t=3600"
    );
    let mut next = with_limit(3, &[]);
    next.routes.push(mock("GET /new", &[0], "new"));
    assert!(reload(&mut gateway, next).unwrap().is_empty());
    let answer = client.get("/new").await;
    assert_eq!(answer.text(), "new");
    assert!(answer.field("ratelimit").starts_with("\"some\";r=1;"));
}

#[tokio::test]
async fn changed_numbers_keep_what_was_used() {
    let mut gateway = start(with_limit(3, &[])).await;
    let client = Client::new(gateway.address());
    for _ in 0..3 {
        assert_eq!(client.get("/").await.status, StatusCode::OK);
    }
    assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
    reload(&mut gateway, with_limit(5, &[])).unwrap();
    assert!(
        client
            .get("/")
            .await
            .field("ratelimit")
            .starts_with("\"some\";r=1;")
    );
    reload(&mut gateway, with_limit(2, &[])).unwrap();
    assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_limit_that_counts_something_else_begins_afresh_and_a_removed_one_is_gone() {
    let mut gateway = start(with_limit(1, &[])).await;
    let client = Client::new(gateway.address());
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
    reload(&mut gateway, with_limit(1, &["client_ip"])).unwrap();
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
    reload(
        &mut gateway,
        Setup {
            routes: vec![mock("GET /", &[], "ok")],
            ..Setup::default()
        },
    )
    .unwrap();
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    // Back again, it begins afresh.
    reload(&mut gateway, with_limit(1, &["client_ip"])).unwrap();
    assert_eq!(client.get("/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn settings_that_do_not_go_together_leave_the_last_good_ones_in_force() {
    let mut gateway = start(with_limit(1, &[])).await;
    let client = Client::new(gateway.address());
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    let bad = Setup {
        limits: vec![limit("leases", "concurrency limit 3 lease 30s", &[])],
        ..with_limit(9, &[])
    };
    let error = reload(&mut gateway, bad).unwrap_err().to_string();
    assert!(error.contains("`leases` is a concurrency"), "{error}");
    let error = reload(&mut gateway, with_limit(9, &["path.id"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("counts by `path.id`"), "{error}");
    assert_eq!(client.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
    let text = gateway.metrics().text();
    assert!(
        text.contains("tidegate_config_reloads_total{result=\"refused\"} 2"),
        "{text}"
    );
}

#[tokio::test]
async fn a_reload_says_what_only_a_restart_can_change() {
    let mut gateway = start(with_limit(1, &[])).await;
    let mut next = with_limit(1, &[]);
    next.listen = "127.0.0.2:0".parse().unwrap();
    next.max_connections = 5;
    next.admin = Some("127.0.0.1:0".parse().unwrap());
    assert_eq!(
        reload(&mut gateway, next).unwrap(),
        ["gateway.listen", "admin.listen", "gateway.max_connections"]
    );
}

#[tokio::test]
async fn a_reload_under_load_drops_no_connection_and_no_request() {
    let per_second = |count| Setup {
        limits: vec![limit(
            "wide",
            &format!("token_bucket rate {count}/s capacity {count}"),
            &[],
        )],
        routes: vec![mock("GET /", &[0], "ok")],
        ..Setup::default()
    };
    let mut gateway = start(per_second(1_000_000)).await;
    let address = gateway.address();
    let load = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        for _ in 0..2000 {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .await
                .unwrap();
            assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
            let mut body = [0; 2];
            stream.read_exact(&mut body).await.unwrap();
        }
    });
    for round in 0..50 {
        reload(&mut gateway, per_second(1_000_000 + round)).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    load.await.unwrap();
}

/// A gateway before an upstream that takes a while.
async fn slow(answer_after: Duration, drain: Duration) -> tidegate_gateway::Running {
    let upstream = support::upstream(move |_request| async move {
        tokio::time::sleep(answer_after).await;
        http::Response::new(Full::from("done"))
    })
    .await;
    start(Setup {
        routes: vec![
            proxy("GET /{path+}", &[], upstream),
            mock("GET /", &[], "ok"),
        ],
        timeouts: Timeouts {
            drain,
            ..Timeouts::default()
        },
        ..Setup::default()
    })
    .await
}

#[tokio::test]
async fn a_drain_lets_requests_finish_and_takes_no_more() {
    let gateway = slow(Duration::from_millis(700), Duration::from_secs(10)).await;
    let address = gateway.address();
    let clients = [Client::new(address), Client::h2c(address)];
    let requests = clients.map(|client| tokio::spawn(async move { client.get("/x").await }));
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    assert!(read_head(&mut idle).await.starts_with("HTTP/1.1 200"));
    while gateway.in_flight() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = Instant::now();
    let draining = tokio::spawn(gateway.drain());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "new connections are refused"
    );
    assert!(
        support::read_all(&mut idle).await.len() <= 2,
        "idle ones are closed"
    );
    for request in requests {
        assert_eq!(request.await.unwrap().text(), "done");
    }
    assert_eq!(draining.await.unwrap().cancelled, 0);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_drain_that_lasts_too_long_says_what_it_cut_off() {
    let gateway = slow(support::PATIENCE, Duration::from_millis(300)).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    while gateway.in_flight() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = Instant::now();
    assert_eq!(gateway.drain().await.cancelled, 1);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(support::read_all(&mut stream).await, "");
}

#[tokio::test]
async fn the_last_answer_on_a_draining_connection_says_close() {
    let gateway = slow(Duration::from_millis(400), Duration::from_secs(10)).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    while gateway.in_flight() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let draining = tokio::spawn(gateway.drain());
    let answer = support::read_all(&mut stream).await;
    assert_eq!(statuses(&answer), [200]);
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    draining.await.unwrap();
}

#[tokio::test]
async fn operators_see_health_readiness_and_metrics() {
    let mut with_admin = with_limit(2, &["client_ip"]);
    with_admin.admin = Some("127.0.0.1:0".parse().unwrap());
    let gateway = start(with_admin).await;
    let client = Client::new(gateway.address());
    for _ in 0..3 {
        client.get("/").await;
    }
    let odd = http::Request::builder()
        .method("ODDITY")
        .uri("/secret-path?token=secret");
    client.send(odd).await;
    let admin = Client::new(gateway.admin_address().unwrap());
    assert_eq!(admin.get("/healthz").await.status, StatusCode::OK);
    assert_eq!(admin.get("/readyz").await.status, StatusCode::OK);
    let answer = admin.get("/metrics").await;
    let text = answer.text();
    for line in [
        "tidegate_decisions_total{door=\"gateway\",limit=\"some\",outcome=\"allowed\"} 2",
        "tidegate_decisions_total{door=\"gateway\",limit=\"some\",outcome=\"denied\"} 1",
        "tidegate_http_requests_total{route=\"GET /\",method=\"GET\",status=\"200\"} 2",
        "tidegate_http_requests_total{route=\"GET /\",method=\"GET\",status=\"429\"} 1",
        "tidegate_http_requests_total{route=\"unmatched\",method=\"other\",status=\"404\"} 1",
        "tidegate_keys{limit=\"some\"} 1",
        "tidegate_keys_evicted_total{limit=\"some\",reason=\"full\"} 0",
        "tidegate_clock_rebased_total{limit=\"some\"} 0",
        "tidegate_build_info{version=",
        "tidegate_http_seconds_count 4",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("secret") && !text.contains("ODDITY"));
}

#[tokio::test]
async fn a_draining_gateway_is_not_ready() {
    let upstream = support::upstream(async |_request| {
        tokio::time::sleep(Duration::from_millis(800)).await;
        http::Response::new(Full::from("done"))
    })
    .await;
    let gateway = start(Setup {
        admin: Some("127.0.0.1:0".parse().unwrap()),
        routes: vec![proxy("GET /{path+}", &[], upstream)],
        ..Setup::default()
    })
    .await;
    let admin = Client::new(gateway.admin_address().unwrap());
    let client = Client::new(gateway.address());
    let request = tokio::spawn(async move { client.get("/x").await.status });
    while gateway.in_flight() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let draining = tokio::spawn(gateway.drain());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        admin.get("/readyz").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(admin.get("/healthz").await.status, StatusCode::OK);
    assert_eq!(request.await.unwrap(), StatusCode::OK);
    draining.await.unwrap();
}

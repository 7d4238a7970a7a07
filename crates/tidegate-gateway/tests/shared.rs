//! Limits that several gateways share over a real server: counted exactly, and decided as configured
//! when the server is gone.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use http::{Response, StatusCode};
use http_body_util::Full;
use support::{Client, PATIENCE, Setup, limit, mock, proxy, start, upstream};
use tidegate_config::Share;
use tidegate_config::model::{Limit, Mode, OnStoreFailure, Store, StoreUrl};
use tidegate_gateway::Running;
use tidegate_testkit::{Flavor, Server};

/// Patient with a slow machine, where it is not the deadline that is tested.
fn store(server: &Server) -> Store {
    Store {
        deadline: Duration::from_secs(5),
        ..at(&server.url())
    }
}

fn at(url: &str) -> Store {
    Store::at("shared", StoreUrl::parse(url).unwrap())
}

fn shared(name: &str, algorithm: &str, on_store_failure: OnStoreFailure) -> Limit {
    Limit {
        store: Some(0),
        on_store_failure,
        ..limit(name, algorithm, &["query.user"])
    }
}

fn per_user(limit: u32) -> Limit {
    let log = format!("sliding_log limit {limit}/h");
    shared("per-user", &log, OnStoreFailure::Deny)
}

fn one_route(store: Store, limits: Vec<Limit>) -> Setup {
    let all: Vec<usize> = (0..limits.len()).collect();
    Setup {
        admin: Some("127.0.0.1:0".parse().unwrap()),
        routes: vec![mock("GET /", &all, "ok")],
        stores: vec![store],
        limits,
        ..Setup::default()
    }
}

fn admin(gateway: &Running) -> Client {
    Client::new(gateway.admin_address().unwrap())
}

async fn metrics(gateway: &Running) -> String {
    admin(gateway).get("/metrics").await.text().to_owned()
}

/// The value of a line of the metrics.
async fn metric(gateway: &Running, line: &str) -> u64 {
    let text = metrics(gateway).await;
    let found = text.lines().find_map(|found| found.strip_prefix(line));
    found.map_or(0, |value| value.trim().parse().unwrap())
}

async fn ready(gateway: &Running) -> bool {
    admin(gateway).get("/readyz").await.status == StatusCode::OK
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_let_exactly_the_limit_through_counted_at_the_back_end() {
    let server = Server::start(Flavor::Valkey9);
    let reached = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reached);
    let back_end = upstream(move |_| {
        count.fetch_add(1, SeqCst);
        async { Response::new(Full::from("ok")) }
    })
    .await;
    let mut tasks = tokio::task::JoinSet::new();
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let gateway = start(Setup {
            routes: vec![proxy("GET /", &[0, 1], back_end)],
            ..one_route(
                store(&server),
                vec![
                    limit("stage", "sliding_log limit 10000/h", &[]),
                    per_user(40),
                ],
            )
        })
        .await;
        let client = Client::new(gateway.address());
        for _ in 0..100 {
            let client = client.clone();
            tasks.spawn(async move { client.get("/?user=7").await.status });
        }
        gateways.push(gateway);
    }
    let statuses = tasks.join_all().await;
    let passed = statuses.iter().filter(|status| **status == StatusCode::OK);
    assert_eq!(passed.count(), 40);
    assert_eq!(reached.load(SeqCst), 40);
    let mut totals = (0, 0);
    for gateway in &gateways {
        let of = |outcome| {
            format!(
                "tidegate_decisions_total{{door=\"gateway\",limit=\"per-user\",outcome=\"{outcome}\"}}"
            )
        };
        totals.0 += metric(gateway, &of("allowed")).await;
        totals.1 += metric(gateway, &of("denied")).await;
        let text = metrics(gateway).await;
        for name in [
            "tidegate_store_requests_total{store=\"shared\",op=\"take\",result=\"ok\"}",
            "tidegate_store_seconds_count{store=\"shared\",op=\"take\"}",
            "tidegate_store_breaker_state{store=\"shared\"} 0",
            "tidegate_decision_seconds_count{door=\"gateway\",store=\"shared\"} 100",
        ] {
            assert!(text.contains(name), "{name}\n{text}");
        }
        assert!(ready(gateway).await);
    }
    assert_eq!(totals, (40, 160));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_refuses_costs_nothing_in_memory() {
    let server = Server::start(Flavor::Valkey9);
    let stage = limit("stage", "sliding_log limit 5/h", &[]);
    let gateway = start(one_route(store(&server), vec![stage, per_user(2)])).await;
    let client = Client::new(gateway.address());
    for (user, expected) in [
        ("a", 200),
        ("a", 200),
        ("a", 429),
        ("a", 429),
        ("b", 200),
        ("b", 200),
        ("c", 200),
        ("d", 429),
    ] {
        let answer = client.get(&format!("/?user={user}")).await;
        assert_eq!(answer.status, expected, "{user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_and_comes_back_is_decided_around_as_configured() {
    let mut server = Server::start(Flavor::Valkey9);
    let half = OnStoreFailure::LocalShare(Share::HALF);
    let modes = [
        ("open", OnStoreFailure::Allow, 10),
        ("closed", OnStoreFailure::Deny, 0),
        ("half", half, 3),
    ];
    let limits = modes.map(|(name, mode, _)| shared(name, "sliding_log limit 6/h", mode));
    let gateway = start(Setup {
        routes: modes
            .iter()
            .enumerate()
            .map(|(position, (name, ..))| mock(&format!("GET /{name}"), &[position], "ok"))
            .collect(),
        ..one_route(
            Store {
                deadline: Duration::from_millis(250),
                ..at(&server.url())
            },
            limits.to_vec(),
        )
    })
    .await;
    let client = Client::new(gateway.address());
    assert!(ready(&gateway).await);
    server.kill();
    for (name, mode, passing) in modes {
        let mut passed = 0;
        for _ in 0..10 {
            let answer = client.get(&format!("/{name}?user=7")).await;
            if answer.status == StatusCode::OK {
                passed += 1;
                continue;
            }
            let expected = if mode == OnStoreFailure::Deny {
                StatusCode::SERVICE_UNAVAILABLE
            } else {
                StatusCode::TOO_MANY_REQUESTS
            };
            assert_eq!(answer.status, expected, "{name}");
            assert_eq!(answer.field("content-type"), "application/problem+json");
            answer.field("retry-after");
            assert_eq!(answer.json()["violated-policies"][0], name);
        }
        assert_eq!(passed, passing, "{name}");
        let of = |outcome| {
            format!(
                "tidegate_decisions_total{{door=\"gateway\",limit=\"{name}\",outcome=\"{outcome}\"}}"
            )
        };
        assert_eq!(metric(&gateway, &of("fallback_allowed")).await, passing);
        assert_eq!(metric(&gateway, &of("fallback_denied")).await, 10 - passing);
    }
    assert_eq!(
        metric(&gateway, "tidegate_store_breaker_state{store=\"shared\"}").await,
        1
    );
    let answer = admin(&gateway).get("/readyz").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        answer.text().contains("store `shared`"),
        "{}",
        answer.text()
    );
    assert!(
        answer.text().contains("`closed` refuses all"),
        "{}",
        answer.text()
    );
    let ignoring = admin(&gateway).get("/readyz?stores=ignore").await;
    assert_eq!(ignoring.status, StatusCode::OK);

    server.restart();
    // Nobody calls meanwhile: readiness must come back by itself, or no load balancer would try.
    eventually("the gateway is ready again", async || ready(&gateway).await).await;
    eventually("the limit decides again", async || {
        client.get("/closed?user=8").await.status == StatusCode::OK
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_without_its_store_and_finds_it_later() {
    let mut server = Server::start(Flavor::Valkey9);
    let url = server.url();
    server.kill();
    let gateway = start(one_route(at(&url), vec![per_user(3)])).await;
    let client = Client::new(gateway.address());
    assert_eq!(
        client.get("/?user=7").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert!(!ready(&gateway).await);
    server.restart();
    eventually("the limit decides", async || {
        client.get("/?user=7").await.status == StatusCode::OK
    })
    .await;
    assert!(ready(&gateway).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_keeps_counters_and_connections_of_a_store_whose_settings_stay() {
    let server = Server::start(Flavor::Valkey9);
    let mut gateway = start(one_route(store(&server), vec![per_user(3)])).await;
    let client = Client::new(gateway.address());
    // A connection's number tells how many there were before it.
    let connections = || match server.command("CLIENT ID") {
        redis::Value::Int(id) => id,
        other => panic!("{other:?} is no number"),
    };
    for _ in 0..2 {
        assert_eq!(client.get("/?user=7").await.status, StatusCode::OK);
    }
    let before = connections();
    let reload = |gateway: &mut Running, store: Store, limit| {
        gateway
            .reload(&one_route(store, vec![limit]).config())
            .unwrap();
    };
    let off = Limit {
        mode: Mode::Off,
        ..per_user(3)
    };
    reload(&mut gateway, store(&server), off.clone());
    for _ in 0..5 {
        assert_eq!(client.get("/?user=7").await.status, StatusCode::OK, "off");
    }
    reload(&mut gateway, store(&server), per_user(5));
    for expected in [200, 200, 200, 429] {
        assert_eq!(
            client.get("/?user=7").await.status,
            expected,
            "two of five were used"
        );
    }
    assert_eq!(
        connections(),
        before + 1,
        "no new connection but the test's own"
    );
    // Another prefix is another place: nothing was counted there.
    let elsewhere = Store {
        key_prefix: "other".into(),
        ..store(&server)
    };
    reload(&mut gateway, elsewhere, per_user(5));
    assert_eq!(client.get("/?user=7").await.status, StatusCode::OK);
    // What cannot be opened changes nothing.
    let broken = Store {
        password: Some(tidegate_config::model::Secret::Env(
            "TIDEGATE_NO_SUCH_VARIABLE".into(),
        )),
        ..store(&server)
    };
    let refused = gateway.reload(&one_route(broken, vec![per_user(1)]).config());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("TIDEGATE_NO_SUCH_VARIABLE"), "{error}");
    assert_eq!(client.get("/?user=7").await.status, StatusCode::OK);
}

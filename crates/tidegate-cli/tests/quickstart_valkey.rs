//! `examples/quickstart-valkey.yaml` as a reader runs it: several gateways, one server, load, and ends
//! that nobody announced.
//!
//! Calls are counted at the back end. `cargo xtask test` installs the server and `wrk`.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use support::{Running, counting_upstream, wrk};
use tidegate_testkit::{Flavor, Server, ServerOptions, wait_until};

/// Longer than anything here takes, short enough to notice.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections of one load generator, of which each has one call under way.
const CONNECTIONS: u64 = 50;

/// The example, with its fixed addresses replaced, and more patience with a slow machine.
fn quickstart(server: &Server, upstream: SocketAddr) -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/quickstart-valkey.yaml"
    );
    let mut text = std::fs::read_to_string(path).unwrap();
    for (from, to) in [
        ("listen: 127.0.0.1:8080", "listen: 127.0.0.1:0".to_owned()),
        ("listen: 127.0.0.1:9090", "listen: 127.0.0.1:0".to_owned()),
        ("http://127.0.0.1:9000", format!("http://{upstream}")),
        (
            "url: redis://127.0.0.1:6379",
            format!("url: {}", server.url()),
        ),
        ("deadline: 20ms", "deadline: 2s".to_owned()),
        // A burst of the stage must not hide what the users' limit does.
        ("capacity: 200", "capacity: 100000".to_owned()),
    ] {
        assert!(text.contains(from), "the example has no {from:?} any more");
        text = text.replace(from, &to);
    }
    text
}

fn orders(gateway: &Running, user: u32) -> String {
    format!("http://{}/orders/1?user_id={user}", gateway.gateway)
}

#[test]
fn two_gateways_under_load_let_exactly_the_limit_of_a_user_through() {
    let server = Server::start(Flavor::Valkey9);
    let (upstream, reached) = counting_upstream();
    let config = quickstart(&server, upstream);
    let gateways = [Running::start(&config), Running::start(&config)];
    let (allowed, refused) = std::thread::scope(|scope| {
        let loads = gateways.each_ref().map(|gateway| {
            let url = orders(gateway, 7);
            scope.spawn(move || wrk(&url, 2, ""))
        });
        loads.map(|load| load.join().unwrap()).iter().fold(
            (0, 0),
            |(allowed, refused), (passed, others, bare)| {
                assert_eq!(*bare, 0, "refusals without a usable Retry-After");
                (allowed + passed, refused + others)
            },
        )
    });
    assert_eq!(reached.load(SeqCst), 100);
    assert_eq!(allowed, 100);
    assert!(
        refused > 1_000,
        "only {refused} were refused: that was no load"
    );
    // Another user is not concerned.
    assert_eq!(gateways[0].get("/vips?user_id=8").0, 200);
}

#[test]
fn a_gateway_that_is_killed_under_load_takes_at_most_its_calls_under_way_with_it() {
    let server = Server::start(Flavor::Valkey9);
    let (upstream, reached) = counting_upstream();
    let config = quickstart(&server, upstream);
    let (mut first, second) = (Running::start(&config), Running::start(&config));
    let url = orders(&first, 7);
    let load = std::thread::spawn(move || wrk(&url, 2, ""));
    wait_until("some calls have passed", PATIENCE, || {
        reached.load(SeqCst) > 0
    });
    // SIGKILL.
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    load.join().unwrap();
    wrk(&orders(&second, 7), 2, "");
    let reached = reached.load(SeqCst);
    // What was charged and had not reached the back end yet is lost, and nothing is forgiven.
    assert!(
        (100 - CONNECTIONS..=100).contains(&reached),
        "{reached} calls reached the back end"
    );
}

#[test]
fn a_server_that_is_killed_and_restarted_holds_the_limit_as_configured() {
    for (mode, alone) in [("deny", 0), ("{ local_share: 0.5 }", 50)] {
        let mut server = ServerOptions::new(Flavor::Valkey9).persistent().start();
        let (upstream, reached) = counting_upstream();
        let config = quickstart(&server, upstream).replace("{ local_share: 0.5 }", mode);
        let gateways = [Running::start(&config), Running::start(&config)];
        let call =
            |gateway: &Running, user: u32| gateway.get(&format!("/orders/1?user_id={user}")).0;
        for n in 0..60 {
            assert_eq!(call(&gateways[n % 2], 7), 200, "{mode}: {n}");
        }
        server.kill();
        // Each gateway by itself: what it refuses it refuses with 503 where it knows nothing.
        let refusal = if alone == 0 { 503 } else { 429 };
        for gateway in &gateways {
            let statuses: Vec<u16> = (0..60).map(|_| call(gateway, 7)).collect();
            let passed = statuses.iter().filter(|status| **status == 200).count();
            assert_eq!(passed, alone, "{mode}: {statuses:?}");
            let refused = statuses.iter().filter(|status| **status == refusal).count();
            assert_eq!(passed + refused, 60, "{mode}: {statuses:?}");
        }
        let before = reached.load(SeqCst);
        assert_eq!(before, 60 + 2 * alone as u64, "{mode}");
        server.restart();
        // Probes find the server: when a gateway asks it again, a user of the gateway's own appears.
        for (keys, gateway) in (2..).zip(&gateways) {
            let begun = Instant::now();
            while server.command("DBSIZE") != redis::Value::Int(keys) {
                call(gateway, 1_000 + u32::try_from(keys).unwrap());
                let late = begun.elapsed() > PATIENCE;
                assert!(!late, "{mode}: it never asks the server again");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let before = reached.load(SeqCst);
        wrk(&orders(&gateways[0], 7), 1, "");
        assert_eq!(
            reached.load(SeqCst) - before,
            40,
            "{mode}: sixty were used before"
        );
    }
}

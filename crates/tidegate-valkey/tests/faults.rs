//! What real servers and networks do to calls, and that nothing is counted twice or crosses.

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{LONG, count, echo, options, patient, ready, until_counted};
use tidegate_testkit::{Flavor, Relay, Server, ServerOptions};
use tidegate_valkey::{Certainty, Client, Event, StoreError};

/// A second, the promise, and what a busy machine adds.
const SECOND: Duration = Duration::from_secs(3);

/// What is counted at the server, without the client under test.
fn counted(server: &Server, key: &str) -> i64 {
    let found: Option<i64> = redis::cmd("GET")
        .arg(key)
        .query(&mut server.connection())
        .unwrap();
    found.unwrap_or(0)
}

#[tokio::test]
async fn a_store_that_is_down_is_no_reason_not_to_start() {
    let mut server = Server::start(Flavor::Valkey9);
    server.kill();
    let client = Client::connect(options(&server.url())).unwrap();
    let error = client.ready(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    let error = count(&client, "key").await.unwrap_err();
    assert_eq!(error.was_counted(), Certainty::NotCounted, "{error}");
    server.restart();
    assert!(until_counted(&client, "key").await < SECOND);
}

#[tokio::test]
async fn a_hung_server_costs_a_call_its_deadline_and_then_nothing() {
    let server = Server::start(Flavor::Valkey9);
    let client = ready(options(&server.url()).deadline(Duration::from_millis(50))).await;
    until_counted(&client, "key").await;
    server.pause();
    let mut errors = Vec::new();
    for _ in 0..6 {
        let started = Instant::now();
        errors.push((count(&client, "key").await.unwrap_err(), started.elapsed()));
    }
    for (error, took) in &errors[..5] {
        assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
        assert_eq!(error.was_counted(), Certainty::Unknown);
        assert!(*took >= Duration::from_millis(50), "{took:?}");
    }
    let (error, _) = &errors[5];
    assert!(matches!(error, StoreError::BreakerOpen { .. }), "{error}");
    assert_eq!(error.was_counted(), Certainty::NotCounted);
    assert_eq!(client.stats().breakers_open, 1);
    server.resume();
    assert!(until_counted(&client, "key").await < SECOND);
    let stats = client.stats();
    assert_eq!((stats.breakers_open, stats.in_flight), (0, 0));
}

#[tokio::test]
async fn a_late_answer_never_goes_to_another_call() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let options = options(&relay.url())
        .deadline(Duration::from_millis(40))
        .connections(1)
        .failures_until_open(10_000);
    let client = ready(options).await;
    until_counted(&client, "key").await;
    let (mut late, mut answered) = (0, 0);
    for round in 0..60 {
        // Sometimes the answer comes a little after the deadline, sometimes a little before.
        relay.delay(Duration::from_millis([0, 15, 45][round % 3]));
        let calls = (0..20).map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let text = format!("{round}-{n}");
                (echo(&client, "key", &text).await, text)
            })
        });
        for call in calls.collect::<Vec<_>>() {
            match call.await.unwrap() {
                (Ok((_, answer)), text) => {
                    assert_eq!(answer, text);
                    answered += 1;
                }
                (Err(_), _) => late += 1,
            }
        }
    }
    assert!(late > 100 && answered > 100, "{late} late, {answered} not");
    assert_eq!(client.stats().in_flight, 0);
}

#[tokio::test]
async fn a_call_is_counted_at_most_once_while_connections_break() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let client = ready(options(&relay.url()).deadline(Duration::from_secs(1))).await;
    let mut calls = Vec::new();
    for n in 0..400 {
        let client = client.clone();
        calls.push(tokio::spawn(async move { count(&client, "key").await }));
        if n % 50 == 25 {
            relay.cut();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (mut sure, mut unsure) = (0, 0);
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => sure += 1,
            Err(error) if error.was_counted() == Certainty::Unknown => unsure += 1,
            Err(_) => {}
        }
    }
    let counted = counted(&server, "key");
    assert!(sure > 10, "{sure} calls went through");
    assert!(
        (sure..=sure + unsure).contains(&counted),
        "{counted} counted, {sure} sure, {unsure} unsure"
    );
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let client = ready(options(&relay.url()).deadline(Duration::from_millis(30))).await;
    until_counted(&client, "key").await;
    connected(&client, 2).await;
    // Both connections lead nowhere from now on, and nobody is told.
    relay.strand();
    assert!(matches!(
        count(&client, "key").await,
        Err(StoreError::Timeout { .. })
    ));
    assert!(until_counted(&client, "key").await < SECOND);
    connected(&client, 3).await;
}

/// Waits until so many connections have been made, one after the other or at once.
async fn connected(client: &Client, connects: u64) {
    let begun = Instant::now();
    while client.stats().connects < connects {
        assert!(begun.elapsed() < LONG, "{:?}", client.stats());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn one_silent_connection_of_two_is_replaced_and_costs_few_calls() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let options = options(&relay.url()).deadline(Duration::from_millis(100));
    let client = ready(options.failures_until_open(1000)).await;
    until_counted(&client, "key").await;
    relay.strand_one();
    let begun = Instant::now();
    let mut failed = 0;
    while client.stats().connects < 3 {
        failed += u32::from(count(&client, "key").await.is_err());
        assert!(begun.elapsed() < LONG, "nobody noticed");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The other connection is used as soon as one call went unanswered.
    assert!((1..=3).contains(&failed), "{failed} calls failed");
}

#[tokio::test]
async fn a_network_that_comes_back_is_used_again_within_a_second() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let client = ready(options(&relay.url())).await;
    until_counted(&client, "key").await;
    relay.hold();
    wait_until_open(&client).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    relay.release();
    assert!(until_counted(&client, "key").await < SECOND);

    relay.refuse();
    wait_until_open(&client).await;
    relay.accept();
    assert!(until_counted(&client, "key").await < SECOND);
}

async fn wait_until_open(client: &Client) {
    let started = Instant::now();
    while client.stats().breakers_open == 0 {
        let _ = count(client, "key").await;
        assert!(started.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_restarted_server_is_found_with_its_data_or_without() {
    for (options, expected) in [
        (ServerOptions::new(Flavor::Valkey9), 1),
        (ServerOptions::new(Flavor::Valkey9).persistent(), 3),
    ] {
        let mut server = options.start();
        let client = patient(&server.url()).await;
        count(&client, "key").await.unwrap();
        assert_eq!(count(&client, "key").await.unwrap(), 2);
        server.kill();
        server.restart();
        let started = Instant::now();
        let found = loop {
            // A call that meets the connection's end cannot know; the server was gone by then.
            if let Ok(count) = count(&client, "key").await {
                break count;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        assert!(started.elapsed() < SECOND);
        assert_eq!(found, expected);
        // The script was gone with the process.
        assert_eq!(client.stats().script_loads, 2);
    }
}

#[tokio::test]
async fn a_busy_server_is_told_from_one_that_is_gone() {
    let server = ServerOptions::new(Flavor::Valkey9)
        .directive("busy-reply-threshold 10")
        .start();
    let client = ready(options(&server.url()).deadline(Duration::from_millis(200))).await;
    until_counted(&client, "key").await;
    let socket = server.socket();
    let slow = std::thread::spawn(move || {
        let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
        let mut connection = client.get_connection().unwrap();
        // Ended by the test.
        let _: Result<(), _> = redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query(&mut connection);
    });
    let started = Instant::now();
    let error = loop {
        match count(&client, "key").await {
            Err(error @ StoreError::Unavailable { .. }) => break error,
            other => assert!(started.elapsed() < LONG, "{other:?} {:?}", client.stats()),
        }
    };
    assert!(error.to_string().contains("BUSY"), "{error}");
    server.command("SCRIPT KILL");
    slow.join().unwrap();
    assert!(until_counted(&client, "key").await < SECOND);
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_asked_no_more() {
    let other = Server::start(Flavor::Valkey9);
    let server = Server::start(Flavor::Valkey9);
    let client = ready(options(&server.url())).await;
    until_counted(&client, "key").await;
    server.command(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    let started = Instant::now();
    loop {
        let error = count(&client, "key").await.unwrap_err();
        assert_ne!(error.was_counted(), Certainty::Unknown, "{error}");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        if source.is_some_and(|source| source.contains("replica")) {
            break;
        }
        assert!(started.elapsed() < LONG, "still {error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.command("REPLICAOF NO ONE");
    assert!(until_counted(&client, "key").await < SECOND);
}

#[tokio::test]
async fn an_observer_hears_what_happens() {
    let mut server = Server::start(Flavor::Valkey9);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&heard);
    let options = options(&server.url())
        .connections(1)
        .observer(move |event| note.lock().unwrap().push(event.clone()));
    let client = ready(options).await;
    until_counted(&client, "key").await;
    server.kill();
    wait_until_open(&client).await;
    server.restart();
    until_counted(&client, "key").await;
    let heard = heard.lock().unwrap().clone();
    let position = |wanted: fn(&Event) -> bool| {
        let found = heard.iter().position(wanted);
        found.unwrap_or_else(|| panic!("not in {heard:?}"))
    };
    let connected = position(|event| matches!(event, Event::Connected { .. }));
    let loaded = position(|event| {
        matches!(
            event,
            Event::ScriptLoaded {
                script: "count",
                ..
            }
        )
    });
    let gone = position(|event| matches!(event, Event::Disconnected { .. }));
    let failed = position(|event| matches!(event, Event::ConnectFailed { .. }));
    let opened = position(|event| matches!(event, Event::BreakerOpened { .. }));
    let closed = position(|event| matches!(event, Event::BreakerClosed { .. }));
    assert!(
        connected < loaded && loaded < gone && gone < failed,
        "{heard:?}"
    );
    assert!(gone < opened && opened < closed, "{heard:?}");
    drop(client);
    let clients = || match server.command("CLIENT LIST") {
        redis::Value::BulkString(list) => String::from_utf8(list).unwrap().lines().count(),
        other => panic!("no list: {other:?}"),
    };
    let started = Instant::now();
    while clients() > 1 {
        assert!(started.elapsed() < LONG, "connections stay open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

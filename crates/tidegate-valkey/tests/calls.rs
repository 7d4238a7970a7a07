//! Calls on one real server: what is sent, what comes back, what is refused.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use support::{COUNT, LONG, count, echo, options, patient, ready};
use tidegate_testkit::{Certificates, Flavor, Server, ServerOptions};
use tidegate_valkey::{Certainty, Client, Script, StoreError};

#[tokio::test]
async fn a_script_runs_on_every_version() {
    for flavor in [Flavor::Valkey9, Flavor::Redis7, Flavor::Redis6] {
        let server = Server::start(flavor);
        let client = patient(&server.url()).await;
        assert_eq!(count(&client, "key").await.unwrap(), 1);
        assert_eq!(count(&client, "key").await.unwrap(), 2);
        assert_eq!(client.stats().script_loads, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_calls_share_two_connections_and_each_gets_its_own_answer() {
    let server = Server::start(Flavor::Valkey9);
    let client = patient(&server.url()).await;
    let calls: Vec<_> = (0..5000)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let (count, text) = echo(&client, "key", &n.to_string()).await.unwrap();
                assert_eq!(text, n.to_string());
                count
            })
        })
        .collect();
    let mut counts = HashSet::new();
    for call in calls {
        counts.insert(call.await.unwrap());
    }
    assert_eq!(counts, (1..=5000).collect());
    let stats = client.stats();
    assert_eq!((stats.calls, stats.in_flight, stats.connects), (5000, 0, 2));
    // All of them missed the script at first.
    assert_eq!(stats.script_loads, 1);
}

#[tokio::test]
async fn a_server_that_forgot_its_scripts_gets_them_again_once() {
    let server = Server::start(Flavor::Valkey9);
    let client = patient(&server.url()).await;
    count(&client, "key").await.unwrap();
    for round in 1..=3 {
        server.command("SCRIPT FLUSH");
        let calls = (0..200).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { count(&client, "key").await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        assert_eq!(client.stats().script_loads, 1 + round);
    }
    assert_eq!(count(&client, "key").await.unwrap(), 602);
}

#[tokio::test]
async fn a_script_that_fails_says_which_and_why() {
    static BROKEN: Script = Script::new("broken", "return redis.call('LPUSH', KEYS[1], '1')");
    static NONSENSE: Script = Script::new("nonsense", "this is no Lua");
    let server = Server::start(Flavor::Valkey9);
    let client = patient(&server.url()).await;
    count(&client, "key").await.unwrap();
    let error = client.call(&BROKEN, &["key"], &[""]).await.unwrap_err();
    assert!(matches!(
        error,
        StoreError::Server {
            script: "broken",
            ..
        }
    ));
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert_eq!(error.was_counted(), Certainty::Unknown);
    let error = client.call(&NONSENSE, &["key"], &[""]).await.unwrap_err();
    assert!(error.to_string().contains("nonsense"), "{error}");
    // Neither says anything about the server.
    assert_eq!(client.stats().breakers_open, 0);
}

#[tokio::test]
async fn a_full_server_is_told_from_a_broken_one() {
    let server = Server::start(Flavor::Valkey9);
    let client = patient(&server.url()).await;
    count(&client, "key").await.unwrap();
    // Less than the server itself takes.
    server.command("CONFIG SET maxmemory 100kb maxmemory-policy noeviction");
    for _ in 0..20 {
        let error = count(&client, "key").await.unwrap_err();
        assert!(matches!(error, StoreError::OutOfMemory { .. }), "{error}");
        assert_eq!(error.was_counted(), Certainty::NotCounted);
        assert!(error.to_string().contains("maxmemory"), "{error}");
    }
    server.command("CONFIG SET maxmemory 0");
    assert_eq!(count(&client, "key").await.unwrap(), 2);
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_asked_until_it_has() {
    let mut server = ServerOptions::new(Flavor::Valkey9)
        // Slow enough to be met while it loads, and it answers now and then.
        .directive("key-load-delay 2000")
        .directive("loading-process-events-interval-bytes 1024")
        .directive("enable-debug-command local")
        .start();
    let client = ready(options(&server.url()).deadline(Duration::from_secs(10))).await;
    count(&client, "key").await.unwrap();
    server.command("DEBUG POPULATE 500 filling 100");
    server.command("SAVE");
    server.relaunch();
    let mut hurried = options(&server.url()).deadline(Duration::from_millis(100));
    hurried = hurried.failures_until_open(1000);
    let hurried = Client::connect(hurried).unwrap();
    let error = loop {
        match count(&hurried, "other").await {
            Err(StoreError::Unreachable { .. } | StoreError::Timeout { .. }) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(error) => break error,
            Ok(_) => panic!("the server was ready before it was asked"),
        }
    };
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("LOADING"), "{error}");
    assert_eq!(error.was_counted(), Certainty::NotCounted);
    // Whoever has time gets a decision, and the count was kept.
    assert_eq!(count(&client, "key").await.unwrap(), 2);
}

#[tokio::test]
async fn a_wrong_password_is_told_and_never_shown() {
    let server = Server::start(Flavor::Valkey9);
    server.command("ACL SETUSER bob on >correct ~* +@all");
    let url = |password: &str| server.url().replace("//", &format!("//bob:{password}@"));
    let client = Client::connect(options(&url("hunter2"))).unwrap();
    let error = client.ready(LONG).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Authentication { .. }),
        "{error}"
    );
    let error = count(&client, "key").await.unwrap_err();
    assert!(
        matches!(error, StoreError::Authentication { .. }),
        "{error}"
    );
    let shown = format!("{error} {error:?} {client:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let client = patient(&url("correct")).await;
    assert_eq!(count(&client, "key").await.unwrap(), 1);
}

#[tokio::test]
async fn the_smallest_user_can_decide_and_nothing_more() {
    for flavor in [Flavor::Valkey9, Flavor::Redis7, Flavor::Redis6] {
        let server = Server::start(flavor);
        server.command(
            "ACL SETUSER tidegate on >pw resetkeys ~tg1:* resetchannels &tg1:* -@all \
             +ping +evalsha +script|load +incr",
        );
        let url = server.url().replace("//", "//tidegate:pw@");
        let client = patient(&url).await;
        assert_eq!(count(&client, "tg1:key").await.unwrap(), 1);
        // Keys of others are none of its business.
        let error = count(&client, "other").await.unwrap_err();
        assert!(matches!(error, StoreError::NoPermission { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let server = Server::start(Flavor::Valkey9);
    for (missing, named, certainty) in [
        ("-evalsha", "evalsha", Certainty::NotCounted),
        ("-script|load", "script|load", Certainty::NotCounted),
        ("-incr", "script", Certainty::Unknown),
    ] {
        server.command("SCRIPT FLUSH");
        server.command(
            "ACL SETUSER tidegate reset on >pw ~tg1:* -@all +ping +evalsha +script|load +incr",
        );
        server.command(&format!("ACL SETUSER tidegate {missing}"));
        let url = server.url().replace("//", "//tidegate:pw@");
        let client = patient(&url).await;
        let error = count(&client, "tg1:key").await.unwrap_err();
        assert!(matches!(error, StoreError::NoPermission { .. }), "{error}");
        assert!(error.to_string().contains(named), "{missing}: {error}");
        assert_eq!(error.was_counted(), certainty, "{missing}: {error}");
    }
}

#[tokio::test]
async fn databases_and_unix_sockets_are_reached() {
    let server = Server::start(Flavor::Valkey9);
    let first = patient(&server.url()).await;
    let second = patient(&format!("{}/1", server.url())).await;
    let socket = format!("redis+unix://{}?db=1", server.socket().display());
    let third = patient(&socket).await;
    assert_eq!(count(&first, "key").await.unwrap(), 1);
    assert_eq!(count(&second, "key").await.unwrap(), 1);
    assert_eq!(count(&third, "key").await.unwrap(), 2);
}

#[tokio::test]
async fn tls_works_with_the_right_authority_only() {
    let certificates = Certificates::new();
    let server = ServerOptions::new(Flavor::Redis7)
        .tls(&certificates, true)
        .start();
    let deadline = Duration::from_secs(5);
    let right = options(&server.url())
        .deadline(deadline)
        .connect_timeout(deadline)
        .certificate_authorities(certificates.authority.clone())
        .client_certificate(certificates.client.clone(), certificates.client_key.clone());
    let client = ready(right.clone()).await;
    assert_eq!(count(&client, "key").await.unwrap(), 1);
    let other = Certificates::new();
    for (wrong, named) in [
        (
            right
                .clone()
                .certificate_authorities(other.authority.clone()),
            "certificate",
        ),
        (right.client_certificate(other.client, other.client_key), ""),
    ] {
        let client = Client::connect(wrong).unwrap();
        let error = client.ready(Duration::from_millis(300)).await.unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.unwrap_or_default().contains(named), "{error:?}");
    }
    let broken = options(&server.url()).certificate_authorities("-----BEGIN CERTIFICATE-----\n!");
    assert!(Client::connect(broken).is_err());
}

#[tokio::test]
async fn a_server_of_another_kind_is_named() {
    let single = Server::start(Flavor::Valkey9);
    let member = ServerOptions::new(Flavor::Valkey9)
        .directive("cluster-enabled yes")
        .start();
    let replica = ServerOptions::new(Flavor::Valkey9)
        .directive(format!("replicaof 127.0.0.1 {}", single.port()))
        .start();
    let wrong = [
        (single.url().replace("redis:", "redis+cluster:"), "redis://"),
        (
            single.url().replace("redis:", "redis+sentinel:") + "/main",
            "redis://",
        ),
        (member.url(), "redis+cluster://"),
    ];
    for (url, remedy) in wrong {
        let client = Client::connect(options(&url)).unwrap();
        let error = client.ready(LONG).await.unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(remedy), "{url}: {error}");
    }
    let client = Client::connect(options(&replica.url())).unwrap();
    let error = client.ready(Duration::from_millis(100)).await.unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(source.unwrap_or_default().contains("replica"), "{error:?}");
    assert_eq!(COUNT.name, "count");
}

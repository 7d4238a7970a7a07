//! Calls on the primary that real sentinels name, also when they name another.

mod support;

use std::time::{Duration, Instant};

use support::{LONG, count, options, ready, until_counted};
use tidegate_testkit::{Flavor, SentinelSet};
use tidegate_valkey::{Client, StoreError};

#[tokio::test]
async fn a_failover_is_followed_and_the_old_primary_left_alone() {
    let mut set = SentinelSet::start(Flavor::Valkey9);
    let client = ready(options(&set.url())).await;
    until_counted(&client, "key").await;
    assert_eq!(count(&client, "key").await.unwrap(), 2);
    // One sentinel less is no harm.
    set.sentinels()[0].pause();
    let started = Instant::now();
    set.servers_mut()[0].kill();
    while count(&client, "key").await.is_err() {
        assert!(started.elapsed() < LONG, "nobody took over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(set.servers()[1..].iter().any(|server| server.is_primary()));
    // The old one comes back and still believes that it is the primary, until it is told.
    set.servers_mut()[0].restart();
    let before = counts(&set);
    for _ in 0..20 {
        count(&client, "key").await.unwrap();
    }
    assert_eq!(counts(&set), before + 20);
}

/// The count at whichever server took over.
fn counts(set: &SentinelSet) -> i64 {
    set.servers()[1..]
        .iter()
        .filter(|server| server.is_primary())
        .map(|server| {
            let count: i64 = redis::cmd("GET")
                .arg("key")
                .query(&mut server.connection())
                .unwrap();
            count
        })
        .max()
        .unwrap()
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_told() {
    let set = SentinelSet::start(Flavor::Redis7);
    let url = set.url().replace("/main", "/mian");
    let client = Client::connect(options(&url)).unwrap();
    let error = client.ready(LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("mian"), "{error}");
}

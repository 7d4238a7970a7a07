//! What a primary that is lost takes with it: charges that no replica had got.

mod support;

use std::time::{Duration, Instant};

use support::{LONG, options, ready};
use tidegate_core::{Micros, Operation, Reply, SlidingLog};
use tidegate_store::Key;
use tidegate_testkit::{Flavor, Relay, Server, ServerOptions};
use tidegate_valkey::{Certainty, KeySpace, LimitSpec, StoreError, ValkeyStore};

const LIMIT: u32 = 1_000;

fn spec() -> LimitSpec {
    LimitSpec::new(
        "api",
        SlidingLog::new(LIMIT, Micros::from_secs(3600)).unwrap(),
    )
}

async fn store(server: &Server, deadline: Duration) -> ValkeyStore {
    let client = ready(options(&server.url()).deadline(deadline)).await;
    ValkeyStore::new(client, KeySpace::default())
}

async fn take(store: &ValkeyStore) -> Result<bool, StoreError> {
    let take = Operation::take(1);
    let reply = store
        .apply(&spec(), &Key::new("bob"), None, false, &take)
        .await?;
    Ok(reply.decision().unwrap().is_allowed())
}

async fn used(store: &ValkeyStore) -> u32 {
    let (spec, key) = (spec(), Key::new("bob"));
    let state = store.apply(&spec, &key, None, false, &Operation::State);
    match state.await.unwrap() {
        Reply::State(state) => state.used,
        other => panic!("{other:?}"),
    }
}

/// A replica in step, and what its primary reaches it through.
fn replica_of(primary: &Server) -> (Server, Relay) {
    let relay = Relay::to(primary.port());
    let port = relay.url().rsplit_once(':').unwrap().1.to_owned();
    let replica = Server::start(Flavor::Valkey9);
    replica.command(&format!("REPLICAOF 127.0.0.1 {port}"));
    (replica, relay)
}

/// Waits until a replica has all that its primary has.
fn in_step(primary: &Server, replica: &Server) {
    let begun = Instant::now();
    let length = |server: &Server, key: &[u8]| -> usize {
        redis::cmd("STRLEN")
            .arg(key)
            .query(&mut server.connection())
            .unwrap()
    };
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut primary.connection())
        .unwrap();
    assert!(!keys.is_empty());
    while keys
        .iter()
        .any(|key| length(primary, key) != length(replica, key))
    {
        assert!(begun.elapsed() < LONG, "the replica is not in step");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn what_no_replica_had_got_passes_again_after_a_failover_and_no_more() {
    let mut primary = ServerOptions::new(Flavor::Valkey9)
        .directive("repl-diskless-sync-delay 0")
        .start();
    let (replica, relay) = replica_of(&primary);
    let before = store(&primary, LONG).await;
    for _ in 0..30 {
        assert!(take(&before).await.unwrap());
    }
    in_step(&primary, &replica);
    relay.hold();
    for _ in 0..20 {
        assert!(take(&before).await.unwrap());
    }
    primary.kill();
    replica.command("REPLICAOF NO ONE");
    let after = store(&replica, LONG).await;
    assert_eq!(used(&after).await, 30);
    let mut passed = 50;
    while take(&after).await.unwrap() {
        passed += 1;
    }
    assert_eq!(passed, LIMIT + 20);
}

#[tokio::test]
async fn a_primary_that_must_have_a_replica_decides_nothing_once_it_has_lost_it() {
    let primary = ServerOptions::new(Flavor::Valkey9)
        .directive("repl-diskless-sync-delay 0")
        .directive("repl-ping-replica-period 1")
        .directive("min-replicas-to-write 1")
        .directive("min-replicas-max-lag 1")
        .start();
    let relay = Relay::to(primary.port());
    let port = relay.url().rsplit_once(':').unwrap().1.to_owned();
    let replica = Server::start(Flavor::Valkey9);
    replica.command(&format!("REPLICAOF 127.0.0.1 {port}"));
    let store = store(&primary, Duration::from_millis(200)).await;
    let begun = Instant::now();
    while take(&store).await.is_err() {
        assert!(begun.elapsed() < LONG, "the replica is not in step");
    }
    relay.hold();
    let begun = Instant::now();
    let refused = loop {
        match take(&store).await {
            Err(error) if error.to_string().contains("NOREPLICAS") => break error,
            // A call that is denied writes nothing, and needs no replica: this would never end.
            Ok(allowed) => assert!(allowed, "the limit is used up before the replica is missed"),
            // A busy machine may be late with one answer or another.
            Err(_) => {}
        }
        assert!(begun.elapsed() < LONG, "it goes on without its replica");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(
        matches!(refused, StoreError::Unavailable { .. }),
        "{refused}"
    );
    assert_eq!(refused.was_counted(), Certainty::NotCounted);
}

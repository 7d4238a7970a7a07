//! Calls on a real cluster: slots that move, primaries that die.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use support::{LONG, count, options, patient, until_counted};
use tidegate_testkit::{Cluster, Flavor};
use tidegate_valkey::{Certainty, Client, StoreError};

/// What is counted in the cluster, without the client under test.
fn counted(cluster: &Cluster, key: &str) -> i64 {
    let owner = &cluster.nodes()[cluster.owner(key)];
    let found: Option<i64> = redis::cmd("GET")
        .arg(key)
        .query(&mut owner.connection())
        .unwrap();
    found.unwrap_or(0)
}

#[derive(Default)]
struct Tally {
    sure: AtomicU64,
    unsure: AtomicU64,
    refused: AtomicU64,
    over: AtomicBool,
}

/// Counts a key from several tasks until it is told to stop.
fn load(client: &Client, key: &'static str) -> (Arc<Tally>, Vec<tokio::task::JoinHandle<()>>) {
    let tally = Arc::new(Tally::default());
    let tasks = (0..4)
        .map(|_| {
            let (client, tally) = (client.clone(), Arc::clone(&tally));
            tokio::spawn(async move {
                while !tally.over.load(SeqCst) {
                    let counter = match count(&client, key).await {
                        Ok(_) => &tally.sure,
                        Err(error) if error.was_counted() == Certainty::Unknown => &tally.unsure,
                        Err(_) => {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                            &tally.refused
                        }
                    };
                    counter.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    (tally, tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load_and_no_call_is_lost_or_counted_twice() {
    let cluster = Cluster::start(Flavor::Valkey9);
    let client = patient(&cluster.url()).await;
    // All primaries are reached, and only those.
    for n in 0..50 {
        assert_eq!(count(&client, &format!("key-{n}")).await.unwrap(), 1);
    }
    assert_eq!(client.stats().connects, 6);

    let (tally, tasks) = load(&client, "{moving}");
    for _ in 0..4 {
        let from = cluster.owner("{moving}");
        let to = (0..6)
            .find(|index| *index != from && cluster.nodes()[*index].is_primary())
            .unwrap();
        let cluster = &cluster;
        tokio::task::block_in_place(|| cluster.migrate("{moving}", to));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tally.over.store(true, SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let sure = tally.sure.load(SeqCst);
    assert!(sure > 100, "{sure} calls");
    assert_eq!(tally.unsure.load(SeqCst), 0);
    assert_eq!(tally.refused.load(SeqCst), 0);
    assert_eq!(counted(&cluster, "{moving}"), i64::try_from(sure).unwrap());

    // The older way, key by key: the server that still has the slot sends on what it lacks.
    asked_on_the_way(&cluster, &client).await;
}

async fn asked_on_the_way(cluster: &Cluster, client: &Client) {
    let from = &cluster.nodes()[cluster.owner("{asked}")];
    let to = cluster
        .nodes()
        .iter()
        .find(|node| node.is_primary() && node.port() != from.port())
        .unwrap();
    let id = |node: &tidegate_testkit::Server| match node.command("CLUSTER MYID") {
        redis::Value::BulkString(id) => String::from_utf8(id).unwrap(),
        other => panic!("no id: {other:?}"),
    };
    let redis::Value::Int(slot) = from.command("CLUSTER KEYSLOT {asked}") else {
        panic!("no slot");
    };
    to.command(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)));
    from.command(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)));
    // A key that is not there is asked for at the new server; twice, for the script is new there.
    assert_eq!(count(client, "{asked}").await.unwrap(), 1);
    assert_eq!(count(client, "{asked}").await.unwrap(), 2);
    for node in [to, from] {
        node.command(&format!("CLUSTER SETSLOT {slot} NODE {}", id(to)));
    }
    assert_eq!(count(client, "{asked}").await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_followed_by_its_replica_and_troubles_nobody_else() {
    let mut cluster = Cluster::start(Flavor::Redis7);
    let client = Client::connect(options(&cluster.url())).unwrap();
    client.ready(LONG).await.unwrap();
    let victim = cluster.owner("{dying}");
    let other = (0..1000)
        .map(|n| format!("other-{n}"))
        .find(|key| cluster.owner(key) != victim)
        .unwrap();
    until_counted(&client, "{dying}").await;
    until_counted(&client, &other).await;
    cluster.nodes_mut()[victim].kill();
    let mut failed = 0;
    let started = std::time::Instant::now();
    while count(&client, "{dying}").await.is_err() {
        failed += 1;
        assert!(started.elapsed() < LONG, "nobody took over");
        // The other primaries decide as if nothing had happened, now and then late on a busy
        // machine.
        until_counted(&client, &other).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(failed > 0);
    // When the old primary is back it is a replica, and nobody asks it.
    cluster.nodes_mut()[victim].restart();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(count_soon(&client, "{dying}").await > 1);
}

async fn count_soon(client: &Client, key: &str) -> i64 {
    until_counted(client, key).await;
    count(client, key).await.unwrap()
}

#[tokio::test]
async fn keys_of_several_slots_are_refused_by_name() {
    static BOTH: tidegate_valkey::Script =
        tidegate_valkey::Script::new("both", "return redis.call('MGET', KEYS[1], KEYS[2])");
    let server = tidegate_testkit::ServerOptions::new(Flavor::Valkey9)
        .directive("cluster-enabled yes")
        .start();
    server.command("CLUSTER ADDSLOTSRANGE 0 16383");
    let url = server.url().replace("redis:", "redis+cluster:");
    // A server that has just become primary takes no writes for two seconds.
    let client = Client::connect(options(&url).deadline(Duration::from_secs(10))).unwrap();
    assert_eq!(count(&client, "key").await.unwrap(), 1);
    let error = client.call(&BOTH, &["a", "b"], &[""; 0]).await.unwrap_err();
    assert!(matches!(error, StoreError::Server { .. }), "{error}");
    assert!(error.to_string().contains("CROSSSLOT"), "{error}");
}

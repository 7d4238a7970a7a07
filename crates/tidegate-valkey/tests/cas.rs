//! Decisions without scripts, on real servers: each process is a client of its own.

mod support;

use std::time::{Duration, Instant};

use support::{LONG, options, ready};
use tidegate_core::{
    Align, Concurrency, Demand, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    LeaseId, Micros, Operation, Policy, Rate, Reply, SlidingLog, StrictWindow, TokenBucket,
};
use tidegate_store::Key;
use tidegate_testkit::{Cluster, Flavor, Relay, Server};
use tidegate_valkey::{
    Atomicity, Certainty, KeySpace, LimitSpec, SharedMember, StoreError, ValkeyStore, Wake,
};

const LIMIT: u32 = 100;

async fn process(url: &str, atomicity: Atomicity) -> ValkeyStore {
    let client = ready(options(url).deadline(LONG)).await;
    ValkeyStore::with_atomicity(client, KeySpace::default(), atomicity)
}

async fn swapping(url: &str) -> ValkeyStore {
    process(url, Atomicity::CompareAndSwap).await
}

/// Limits of a hundred of which nothing comes back while a test runs.
fn policies() -> Vec<Policy> {
    let hour = Micros::from_secs(3600);
    let decade = Micros::from_secs(3600 * 24 * 3652);
    let seldom = Rate::new(1, hour.0).unwrap();
    vec![
        TokenBucket::new(seldom, LIMIT).unwrap().into(),
        IntervalBucket::new(seldom, LIMIT).unwrap().into(),
        LeakyBucket::new(seldom, LIMIT - 1, 1, None).unwrap().into(),
        FixedWindow::new(LIMIT, decade, Align::Epoch)
            .unwrap()
            .into(),
        FixedWindow::new(LIMIT, hour, Align::FirstUse)
            .unwrap()
            .into(),
        SlidingLog::new(LIMIT, hour).unwrap().into(),
        StrictWindow::new(LIMIT, hour, 60).unwrap().into(),
        InterpolatedWindow::new(LIMIT, decade).unwrap().into(),
        Concurrency::new(LIMIT, hour, None).unwrap().into(),
    ]
}

fn demand(policy: &Policy, call: usize) -> Demand {
    match policy {
        Policy::Concurrency(_) => Demand::Acquire {
            lease: LeaseId(call as u128),
            weight: 1,
        },
        _ => Demand::Take { cost: 1 },
    }
}

async fn take(
    store: &ValkeyStore,
    spec: &LimitSpec,
    key: &Key,
    call: usize,
) -> Result<bool, StoreError> {
    let take = Operation::Take(demand(spec.policy(), call));
    let reply = store.apply(spec, key, None, false, &take).await?;
    Ok(reply.decision().unwrap().is_allowed())
}

/// Has all stores make so many calls each, all at once; how many passed.
async fn race(stores: &[ValkeyStore], spec: &LimitSpec, calls: usize) -> u32 {
    let mut tasks = Vec::new();
    for (index, store) in stores.iter().enumerate() {
        for call in 0..calls {
            let (store, spec) = (store.clone(), spec.clone());
            tasks.push(tokio::spawn(async move {
                take(&store, &spec, &Key::new("bob"), index * calls + call)
                    .await
                    .unwrap()
            }));
        }
    }
    let mut passed = 0;
    for task in tasks {
        passed += u32::from(task.await.unwrap());
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_processes_admit_exactly_the_limit_with_ifeq_and_with_watch() {
    // Valkey 9 knows IFEQ, the others do not.
    for flavor in [Flavor::Valkey9, Flavor::Redis7, Flavor::Redis6] {
        let server = Server::start(flavor);
        let mut stores = Vec::new();
        for _ in 0..3 {
            stores.push(swapping(&server.url()).await);
        }
        for (number, policy) in policies().into_iter().enumerate() {
            let spec = LimitSpec::new(&format!("limit-{number}"), policy);
            assert_eq!(race(&stores, &spec, 80).await, LIMIT, "{flavor:?} {spec:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_scripts_and_without_share_a_limit() {
    let server = Server::start(Flavor::Valkey9);
    let stores = [
        swapping(&server.url()).await,
        process(&server.url(), Atomicity::Scripts).await,
        swapping(&server.url()).await,
    ];
    for (number, policy) in policies().into_iter().enumerate() {
        let spec = LimitSpec::new(&format!("limit-{number}"), policy);
        assert_eq!(race(&stores, &spec, 80).await, LIMIT, "{spec:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_several_limits_charges_all_or_none() {
    let server = Server::start(Flavor::Valkey9);
    let hourly = |n| SlidingLog::new(n, Micros::from_secs(3600)).unwrap();
    let (wide, narrow) = (
        LimitSpec::new("wide", hourly(1_000)),
        LimitSpec::new("narrow", hourly(40)),
    );
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let store = swapping(&server.url()).await;
        for _ in 0..30 {
            let (store, wide, narrow) = (store.clone(), wide.clone(), narrow.clone());
            tasks.push(tokio::spawn(async move {
                let key = Key::new("bob");
                let member = |limit| SharedMember {
                    limit,
                    key: &key,
                    slot: None,
                    demand: Demand::Take { cost: 1 },
                    shadow: false,
                };
                let outcome = store
                    .all_of(&[member(&wide), member(&narrow)])
                    .await
                    .unwrap();
                outcome.unwrap().decision.is_allowed()
            }));
        }
    }
    let mut passed = 0;
    for task in tasks {
        passed += u32::from(task.await.unwrap());
    }
    assert_eq!(passed, 40);
    let store = swapping(&server.url()).await;
    let key = Key::new("bob");
    let state = store.apply(&wide, &key, None, false, &Operation::State);
    let Reply::State(state) = state.await.unwrap() else {
        panic!("another reply");
    };
    assert_eq!(state.used, 40);
}

#[tokio::test]
async fn a_user_who_may_run_no_script_is_enough() {
    for flavor in [Flavor::Valkey9, Flavor::Redis6] {
        let server = Server::start(flavor);
        let space = KeySpace::default();
        let rules = options(&server.url()).acl_rules_without_scripts(&space);
        server.command(&format!("ACL SETUSER gate on >secret {rules}"));
        let as_user = options(&server.url())
            .credentials(Some("gate"), "secret")
            .deadline(LONG);
        let client = ready(as_user).await;
        let scripts = ValkeyStore::new(client.clone(), space.clone());
        let store = ValkeyStore::with_atomicity(client, space, Atomicity::CompareAndSwap);
        for (number, policy) in policies().into_iter().enumerate() {
            let spec = LimitSpec::new(&format!("limit-{number}"), policy);
            let key = Key::new("bob");
            let refused = take(&scripts, &spec, &key, 0).await.unwrap_err();
            assert!(
                matches!(refused, StoreError::NoPermission { .. }),
                "{refused}"
            );
            assert!(take(&store, &spec, &key, 0).await.unwrap());
            let member = SharedMember {
                limit: &spec,
                key: &key,
                slot: None,
                demand: demand(spec.policy(), 1),
                shadow: false,
            };
            let outcome = store.all_of(&[member]).await.unwrap().unwrap();
            assert!(outcome.decision.is_allowed());
            store
                .apply(&spec, &key, None, false, &Operation::Reset)
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn a_released_permit_wakes_whoever_waits_and_a_reset_key_is_gone() {
    let server = Server::start(Flavor::Valkey9);
    let store = swapping(&server.url()).await;
    let spec = LimitSpec::new(
        "jobs",
        Concurrency::new(1, Micros::from_secs(60), None).unwrap(),
    );
    let key = Key::new("bob");
    assert!(take(&store, &spec, &key, 1).await.unwrap());
    assert!(!take(&store, &spec, &key, 2).await.unwrap());
    let mut released = store.released(&spec, &key, None, false);
    assert_eq!(released.wait(LONG).await, Wake::Published);
    let release = Operation::Release { lease: LeaseId(1) };
    let reply = store
        .apply(&spec, &key, None, false, &release)
        .await
        .unwrap();
    assert_eq!(reply, Reply::Released(true));
    assert_eq!(released.wait(LONG).await, Wake::Published);
    assert!(take(&store, &spec, &key, 2).await.unwrap());
    // A log leaves nothing behind where it is reset.
    let log = LimitSpec::new("log", SlidingLog::new(5, Micros::from_secs(60)).unwrap());
    assert!(take(&store, &log, &key, 0).await.unwrap());
    store
        .apply(&log, &key, None, false, &Operation::Reset)
        .await
        .unwrap();
    let begun = Instant::now();
    while server.command("DBSIZE") != redis::Value::Int(1) {
        assert!(begun.elapsed() < LONG, "only the permits' key is left");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_too_late_each_time_is_told_so_and_not_counted() {
    let server = Server::start(Flavor::Redis7);
    // It is far away, and who writes without a pause is near.
    let relay = Relay::to(server.port());
    let client = ready(options(&relay.url()).deadline(Duration::from_millis(300))).await;
    let space = KeySpace::default();
    let store = ValkeyStore::with_atomicity(client, space, Atomicity::CompareAndSwap);
    let spec = LimitSpec::new(
        "api",
        SlidingLog::new(100_000, Micros::from_secs(3600)).unwrap(),
    );
    let key = Key::new("bob");
    assert!(take(&store, &spec, &key, 0).await.unwrap());
    relay.delay(Duration::from_millis(10));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let (mut connection, stop) = (server.connection(), stop.clone());
            std::thread::spawn(move || {
                let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
                    .arg("tg1:*")
                    .query(&mut connection)
                    .unwrap();
                let raw: Vec<u8> = redis::cmd("GET")
                    .arg(&keys[0])
                    .query(&mut connection)
                    .unwrap();
                let mut pipe = redis::pipe();
                for _ in 0..20 {
                    pipe.cmd("SET").arg(&keys[0]).arg(&raw).ignore();
                }
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    pipe.query::<()>(&mut connection).unwrap();
                }
            })
        })
        .collect();
    let mut told = None;
    for call in 0..50 {
        // A busy machine may let a deadline pass before it is seen that it is too late.
        if let Err(error) = take(&store, &spec, &key, call).await
            && !matches!(error, StoreError::Timeout { .. })
        {
            told = Some(error);
            break;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    let error = told.expect("others were quicker each time");
    assert!(matches!(error, StoreError::Contended { .. }), "{error}");
    assert_eq!(error.was_counted(), Certainty::NotCounted);
    assert!(
        error.to_string().contains("take tokens in batches"),
        "{error}"
    );
    assert_eq!(error.kind(), "contended");
}

#[tokio::test]
async fn a_value_that_is_none_of_ours_is_told_apart() {
    let server = Server::start(Flavor::Valkey9);
    let store = swapping(&server.url()).await;
    let spec = LimitSpec::new("api", SlidingLog::new(5, Micros::from_secs(60)).unwrap());
    let key = Key::new("bob");
    take(&store, &spec, &key, 0).await.unwrap();
    let mut connection = server.connection();
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    redis::cmd("SET")
        .arg(&names[0])
        .arg("hello")
        .query::<()>(&mut connection)
        .unwrap();
    let error = take(&store, &spec, &key, 0).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_each_key_is_decided_where_it_lies() {
    let cluster = Cluster::start(Flavor::Valkey9);
    let stores = [
        swapping(&cluster.url()).await,
        swapping(&cluster.url()).await,
    ];
    let spec = LimitSpec::new("api", SlidingLog::new(3, Micros::from_secs(3600)).unwrap());
    for number in 0..30 {
        let key = Key::new(format!("user-{number}"));
        let mut passed = 0;
        for turn in 0..6 {
            passed += u32::from(take(&stores[turn % 2], &spec, &key, 0).await.unwrap());
        }
        assert_eq!(passed, 3);
        let member = SharedMember {
            limit: &spec,
            key: &key,
            slot: None,
            demand: Demand::Take { cost: 1 },
            shadow: false,
        };
        let outcome = stores[0].all_of(&[member]).await.unwrap().unwrap();
        assert!(!outcome.decision.is_allowed());
    }
}

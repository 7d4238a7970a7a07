//! Limits that several processes share over real servers: each process is a client of its own.

mod support;

use std::time::{Duration, Instant};

use support::{LONG, options, ready};
use tidegate_core::{
    Concurrency, Demand, Denial, FixedWindow, LeaseId, Micros, Operation, Policy, Rate, Reply,
    SlidingLog, Source, TokenBucket, Verdict, Wait,
};
use tidegate_store::Key;
use tidegate_testkit::{Cluster, Flavor, Server};
use tidegate_valkey::{
    FailureMode, KeySpace, LimitSpec, SharedCall, SharedLimit, ValkeyStore, Wake, all_of,
};

/// A process's side of a store, with a deadline that a busy machine meets.
async fn process(url: &str) -> ValkeyStore {
    let client = ready(options(url).deadline(LONG)).await;
    ValkeyStore::new(client, KeySpace::default())
}

/// So many an hour, all at once.
fn hourly(limit: u32) -> Policy {
    SlidingLog::new(limit, Micros::from_secs(3600))
        .unwrap()
        .into()
}

fn limit(store: &ValkeyStore, name: &str, policy: impl Into<Policy>) -> SharedLimit {
    SharedLimit::new(store.clone(), LimitSpec::new(name, policy))
}

async fn allowed(limit: &SharedLimit, key: &str) -> bool {
    limit.take(&Key::new(key), 1).await.unwrap().is_allowed()
}

fn take<'a>(limit: &'a SharedLimit, key: &'a Key, cost: u32) -> SharedCall<'a> {
    SharedCall {
        limit,
        key,
        slot: None,
        demand: Demand::Take { cost },
        shadow: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_processes_admit_exactly_the_limit() {
    let server = Server::start(Flavor::Valkey9);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let limit = limit(&process(&server.url()).await, "login", hourly(100));
        for _ in 0..8 {
            let limit = limit.clone();
            tasks.push(tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..20 {
                    passed += u32::from(allowed(&limit, "bob").await);
                }
                passed
            }));
        }
    }
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    assert_eq!(passed, 100);
}

#[tokio::test]
async fn a_denial_is_asked_once_and_ends_when_it_said() {
    let server = Server::start(Flavor::Valkey9);
    let store = process(&server.url()).await;
    let bucket = TokenBucket::new(Rate::new(1, 400_000).unwrap(), 1).unwrap();
    let limit = limit(&store, "api", bucket);
    let key = Key::new("bob");
    assert!(limit.take(&key, 1).await.unwrap().is_allowed());
    let begun = Instant::now();
    let first = limit.take(&key, 1).await.unwrap();
    assert_eq!(first.verdict, Verdict::Deny(Denial::Limited));
    assert_eq!(first.source, Source::State);
    let calls = store.client().stats().calls;
    let mut last = first.retry_after;
    loop {
        let decision = limit.take(&key, 1).await.unwrap();
        if decision.is_allowed() {
            break;
        }
        if decision.source == Source::Remembered {
            assert!(decision.retry_after <= last);
            last = decision.retry_after;
        }
        assert!(begun.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Not a moment too early, and the store was asked only at the very end.
    assert!(begun.elapsed() >= first.retry_after.as_duration().unwrap() - Duration::from_millis(1));
    let asked = store.client().stats().calls - calls;
    assert!(asked <= 10, "asked {asked} times");
    assert!(limit.stats().remembered > 0);
}

#[tokio::test]
async fn what_the_process_itself_does_ends_what_it_remembers() {
    let server = Server::start(Flavor::Valkey9);
    let limit = limit(&process(&server.url()).await, "api", hourly(1));
    let key = Key::new("bob");
    for operation in [
        Operation::Reset,
        Operation::Refund { cost: 1 },
        Operation::Block {
            period: Micros::from_secs(60),
        },
        Operation::Unblock,
    ] {
        limit.take(&key, 1).await.unwrap();
        let denied = limit.take(&key, 1).await.unwrap();
        assert!(!denied.is_allowed());
        let remembered = limit.take(&key, 1).await.unwrap();
        assert_eq!(remembered.source, Source::Remembered);
        limit.apply(&key, &operation).await.unwrap();
        let seen = limit.take(&key, 1).await.unwrap();
        assert_eq!(seen.source, Source::State, "{operation:?}");
        if matches!(operation, Operation::Reset | Operation::Refund { .. }) {
            assert!(seen.is_allowed());
        }
    }
    // Another cost is another question.
    let dear = limit.take(&key, 2).await.unwrap();
    assert_eq!(dear.verdict, Verdict::Deny(Denial::Impossible));
    assert!(dear.retry_after.is_never());
}

#[tokio::test]
async fn another_process_is_heard_within_a_second() {
    let server = Server::start(Flavor::Valkey9);
    let limit_here = limit(&process(&server.url()).await, "api", hourly(1));
    let limit_there = limit(&process(&server.url()).await, "api", hourly(1));
    assert!(allowed(&limit_here, "bob").await);
    assert!(!allowed(&limit_here, "bob").await);
    let key = Key::new("bob");
    limit_there.apply(&key, &Operation::Reset).await.unwrap();
    let begun = Instant::now();
    while !allowed(&limit_here, "bob").await {
        assert!(begun.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A limit of four whose store is gone.
async fn orphan(mode: FailureMode, policy: impl Into<Policy>) -> (SharedLimit, Server) {
    let mut server = Server::start(Flavor::Valkey9);
    let client = ready(options(&server.url())).await;
    server.kill();
    let store = ValkeyStore::new(client, KeySpace::default());
    let spec = LimitSpec::new("api", policy);
    (SharedLimit::with_failure_mode(store, spec, mode), server)
}

#[tokio::test]
async fn without_a_store_the_limit_does_as_it_was_told() {
    let key = Key::new("bob");
    let share = FailureMode::LocalShare {
        millionths: 500_000,
    };
    for (mode, expected) in [
        (FailureMode::Allow, [true; 4]),
        (FailureMode::Deny, [false; 4]),
        (share, [true, true, false, false]),
    ] {
        let (limit, mut server) = orphan(mode, hourly(4)).await;
        for passes in expected {
            let decision = limit.take(&key, 1).await.unwrap();
            assert_eq!(decision.is_allowed(), passes, "{mode:?} {decision:?}");
            assert_eq!(decision.source, Source::Fallback);
        }
        assert_eq!(limit.stats().fallbacks, 4);
        if mode == FailureMode::Deny {
            let decision = limit.take(&key, 1).await.unwrap();
            assert_eq!(decision.verdict, Verdict::Deny(Denial::Fallback));
            assert_eq!(decision.retry_after, Wait::micros(1_000_000));
        }
        // The store decides again as soon as it is back.
        server.restart();
        let begun = Instant::now();
        while limit.take(&key, 1).await.unwrap().source != Source::State {
            assert!(begun.elapsed() < Duration::from_secs(5));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_lease_of_a_local_share_is_released_where_it_was_granted() {
    let permits = Concurrency::new(2, Micros::from_secs(60), None).unwrap();
    let half = FailureMode::HALF;
    let (limit, _server) = orphan(half, permits).await;
    let key = Key::new("bob");
    let acquire = |id| SharedCall {
        demand: Demand::Acquire {
            lease: LeaseId(id),
            weight: 1,
        },
        ..take(&limit, &key, 0)
    };
    let (decision, grant) = acquire(1).decide().await.unwrap();
    assert!(decision.is_allowed() && grant.is_some());
    let (decision, grant) = acquire(2).decide().await.unwrap();
    assert!(!decision.is_allowed() && grant.is_none());
    let lease = LeaseId(1);
    let renewed = limit
        .apply(&key, &Operation::Renew { lease })
        .await
        .unwrap();
    assert!(matches!(renewed, Reply::Renewed(Some(_))));
    let released = limit
        .apply(&key, &Operation::Release { lease })
        .await
        .unwrap();
    assert_eq!(released, Reply::Released(true));
    assert!(acquire(2).decide().await.unwrap().0.is_allowed());
}

#[tokio::test]
async fn a_demand_that_means_nothing_is_an_error_and_no_fallback() {
    let (limit, _server) = orphan(FailureMode::Allow, hourly(4)).await;
    let key = Key::new("bob");
    let call = SharedCall {
        demand: Demand::Attempt { seed: 0 },
        ..take(&limit, &key, 0)
    };
    assert!(call.decide().await.is_err());
    assert!(all_of(&[call]).await.is_err());
    assert!(all_of(&[]).await.unwrap().is_none());
}

#[tokio::test]
async fn all_limits_are_charged_or_none_on_one_server_and_over_a_cluster() {
    let server = Server::start(Flavor::Valkey9);
    let cluster = Cluster::start(Flavor::Valkey9);
    // The cluster's user may do no more than it must.
    let url = cluster.url().replace("//", "//tidegate:pw@");
    let rules = options(&url).acl_rules(&KeySpace::default());
    for node in cluster.nodes() {
        node.command(&format!("ACL SETUSER tidegate reset on >pw {rules}"));
    }
    for url in [server.url(), url] {
        let store = process(&url).await;
        let (wide, narrow) = (
            limit(&store, "wide", hourly(50)),
            limit(&store, "narrow", hourly(10)),
        );
        // Many keys, so that the two limits lie together sometimes and apart mostly.
        for n in 0..20 {
            let (tenant, user) = (Key::new(format!("t{n}")), Key::new(format!("u{n}")));
            let calls = [take(&wide, &tenant, 3), take(&narrow, &user, 4)];
            for expected in [true, true, false, false] {
                let outcome = all_of(&calls).await.unwrap().unwrap();
                assert_eq!(outcome.decision.is_allowed(), expected, "{url} {n}");
                assert_eq!(outcome.members.len(), 2);
                if !expected {
                    assert_eq!(outcome.decision.binding, 1);
                    assert!(outcome.members[0].is_allowed());
                }
            }
            for (limit, key, used) in [(&wide, &tenant, 6), (&narrow, &user, 8)] {
                let state = limit.apply(key, &Operation::State).await.unwrap();
                let Reply::State(state) = state else {
                    panic!("no state: {state:?}");
                };
                assert_eq!(state.used, used, "{url} {n}");
            }
        }
    }
}

#[tokio::test]
async fn limits_together_fall_back_together_and_charge_nothing_for_a_refusal() {
    let key = Key::new("bob");
    let (local, server) = orphan(FailureMode::HALF, hourly(4)).await;
    let store = local.store().clone();
    let other = |mode| {
        let spec = LimitSpec::new("other", hourly(100));
        SharedLimit::with_failure_mode(store.clone(), spec, mode)
    };
    let (refusing, passing) = (other(FailureMode::Deny), other(FailureMode::Allow));
    for _ in 0..5 {
        let calls = [take(&local, &key, 1), take(&refusing, &key, 1)];
        let outcome = all_of(&calls).await.unwrap().unwrap();
        assert_eq!(outcome.decision.verdict, Verdict::Deny(Denial::Fallback));
        assert_eq!(outcome.decision.source, Source::Fallback);
        assert!(outcome.members[0].is_allowed());
    }
    for expected in [true, true, false] {
        let calls = [take(&local, &key, 1), take(&passing, &key, 1)];
        let outcome = all_of(&calls).await.unwrap().unwrap();
        assert_eq!(outcome.decision.is_allowed(), expected);
    }
    drop(server);
}

#[tokio::test]
async fn a_limit_that_is_only_watched_refuses_nobody_with_a_store_or_without() {
    let key = Key::new("bob");
    let (dead, _server) = orphan(FailureMode::Deny, hourly(0)).await;
    let server = Server::start(Flavor::Valkey9);
    let alive = limit(&process(&server.url()).await, "api", hourly(0));
    for limit in [&dead, &alive] {
        let call = SharedCall {
            shadow: true,
            ..take(limit, &key, 1)
        };
        let (decision, _) = call.decide().await.unwrap();
        assert!(decision.is_allowed() && !decision.is_within_limit());
        let outcome = all_of(&[call]).await.unwrap().unwrap();
        assert!(outcome.decision.is_allowed());
    }
}

#[tokio::test]
async fn a_released_permit_wakes_who_waits_in_another_process() {
    let server = Server::start(Flavor::Valkey9);
    let permits = Concurrency::new(1, Micros::from_secs(3600), None).unwrap();
    let here = limit(&process(&server.url()).await, "workers", permits.clone());
    let there = limit(&process(&server.url()).await, "workers", permits);
    let key = Key::new("queue");
    fn acquire<'a>(limit: &'a SharedLimit, key: &'a Key, id: u128) -> SharedCall<'a> {
        SharedCall {
            demand: Demand::Acquire {
                lease: LeaseId(id),
                weight: 1,
            },
            ..take(limit, key, 0)
        }
    }
    assert!(acquire(&here, &key, 1).decide().await.unwrap().1.is_some());
    let mut freed = there.released(&key);
    assert_eq!(freed.wait(LONG).await, Wake::Published);
    assert!(acquire(&there, &key, 2).decide().await.unwrap().1.is_none());
    let release = Operation::Release { lease: LeaseId(1) };
    assert_eq!(
        here.apply(&key, &release).await.unwrap(),
        Reply::Released(true)
    );
    assert_eq!(freed.wait(LONG).await, Wake::Published);
    assert!(acquire(&there, &key, 2).decide().await.unwrap().1.is_some());
}

#[tokio::test]
async fn the_smallest_user_does_every_operation() {
    for flavor in [Flavor::Valkey9, Flavor::Redis7, Flavor::Redis6] {
        let server = Server::start(flavor);
        let url = format!("{}/1", server.url().replace("//", "//tidegate:pw@"));
        let options = options(&url).deadline(LONG);
        let space = KeySpace::default();
        let rules = options.acl_rules(&space);
        server.command(&format!("ACL SETUSER tidegate reset on >pw {rules}"));
        let store = ValkeyStore::new(ready(options).await, space);
        let rate = limit(&store, "rate", hourly(5));
        let window: Policy =
            FixedWindow::new(5, Micros::from_secs(60), tidegate_core::Align::Epoch)
                .unwrap()
                .into();
        let window = limit(&store, "window", window);
        let permits = Concurrency::new(1, Micros::from_secs(60), None).unwrap();
        let permits = limit(&store, "permits", permits);
        let key = Key::new("bob");
        let lease = LeaseId(1);
        let acquire = Demand::Acquire { lease, weight: 1 };
        for (limit, operations) in [
            (
                &rate,
                vec![
                    Operation::take(1),
                    Operation::peek(1),
                    Operation::TakeUpTo { cost: 9 },
                    Operation::Refund { cost: 1 },
                    Operation::Force { cost: 1 },
                    Operation::Block {
                        period: Micros::from_secs(1),
                    },
                    Operation::Unblock,
                    Operation::State,
                    Operation::Reset,
                ],
            ),
            (&window, vec![Operation::take(1), Operation::Reset]),
            (
                &permits,
                vec![
                    Operation::Take(acquire),
                    Operation::Renew { lease },
                    Operation::Release { lease },
                ],
            ),
        ] {
            for operation in operations {
                let reply = limit.apply(&key, &operation).await;
                assert!(reply.is_ok(), "{flavor:?} {operation:?}: {reply:?}");
            }
        }
        let calls = [take(&rate, &key, 1), take(&window, &key, 1)];
        let outcome = all_of(&calls).await.unwrap().unwrap();
        assert_eq!(outcome.decision.source, Source::State);
        let mut freed = permits.released(&key);
        assert_eq!(freed.wait(LONG).await, Wake::Published);
    }
}

//! Limits and leases that several processes share over a real server: each process is a store with
//! a client of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tidegate::shared::{FailureMode, admit_with, all_of, try_admit};
use tidegate::valkey::{Client, ClientOptions, KeySpace, ValkeyStore};
use tidegate::{
    Concurrency, Key, Lease, Limiter, Loss, Micros, Mode, Policy, Rate, SharedLimiter,
    SharedMember, SlidingLog, TokenBucket, Verdict, WaitError, WaitOptions,
};
use tidegate_testkit::{Flavor, Server};

/// Longer than anything that is tested takes.
const LONG: Duration = Duration::from_secs(20);

/// A process's side of a store.
async fn process(server: &Server, deadline: Duration) -> ValkeyStore {
    let options = ClientOptions::from_url(&server.url()).unwrap();
    let client = Client::connect(options.deadline(deadline)).unwrap();
    client.ready(LONG).await.unwrap();
    ValkeyStore::new(client, KeySpace::default())
}

fn hourly(limit: u32) -> Policy {
    SlidingLog::new(limit, Micros::from_secs(3600))
        .unwrap()
        .into()
}

/// So many in a time, of which `capacity` at once.
fn bucket(capacity: u32, per: Duration) -> Policy {
    let period = u64::try_from(per.as_micros()).unwrap();
    TokenBucket::new(Rate::new(1, period).unwrap(), capacity)
        .unwrap()
        .into()
}

fn permits(limit: u32, lease: Duration) -> Policy {
    Concurrency::new(limit, Micros::from_duration(lease), None)
        .unwrap()
        .into()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < LONG, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn used(limiter: &SharedLimiter, key: &str) -> u32 {
    limiter.key(key).state().await.unwrap().used
}

#[tokio::test]
async fn a_shared_limit_decides_as_one_in_memory() {
    let server = Server::start(Flavor::Valkey9);
    let store = process(&server, LONG).await;
    let day = Duration::from_secs(86_400);
    for (name, policy) in [("log", hourly(10)), ("bucket", bucket(10, day))] {
        let local = Limiter::new(policy.clone());
        let shared = SharedLimiter::new(store.clone(), name, policy);
        for cost in [3, 4, 4, 11, 3, 1] {
            let there = shared.try_take(("acme", 7), cost).await.unwrap();
            let here = local.try_take(("acme", 7), cost);
            let said = (there.verdict, there.remaining, there.cost, there.limit);
            let expected = (here.verdict, here.remaining, here.cost, here.limit);
            assert_eq!(said, expected, "{name} {cost}");
        }
        let (there, here) = (shared.key(("acme", 7)), local.key(("acme", 7)));
        assert_eq!(there.refund(2).await.unwrap(), here.refund(2).unwrap());
        let (up_to, expected) = (
            there.take_up_to(5).await.unwrap(),
            here.take_up_to(5).unwrap(),
        );
        assert_eq!(up_to.cost, expected.cost);
        there.block(LONG).await.unwrap();
        assert!(!there.peek(0).await.unwrap().is_allowed());
        there.unblock().await.unwrap();
        there.reset().await.unwrap();
        assert_eq!(there.state().await.unwrap().used, 0);
        let reserved = there.reserve(4, Duration::ZERO).await.unwrap();
        let reservation = reserved.reservation.unwrap();
        assert_eq!(there.settle(reservation, 1).await.unwrap(), 3);
        assert!(shared.key("x").attempt().await.is_err());
    }
}

#[tokio::test]
async fn two_processes_share_one_limit_and_agree_on_who_is_only_watched() {
    let server = Server::start(Flavor::Valkey9);
    let mut processes = Vec::new();
    for _ in 0..2 {
        let store = process(&server, LONG).await;
        let half = SharedLimiter::builder(store.clone(), "half", hourly(0))
            .mode(Mode::Percent(50))
            .build();
        processes.push((SharedLimiter::new(store, "api", hourly(7)), half));
    }
    let mut passed = 0;
    for n in 0..20 {
        let decision = processes[n % 2].0.try_take("bob", 1).await.unwrap();
        passed += u32::from(decision.is_allowed());
    }
    assert_eq!(passed, 7);
    let mut enforced = 0;
    for user in 0..100 {
        let mut sides = Vec::new();
        for (_, half) in &processes {
            sides.push(half.try_take(user, 1).await.unwrap().is_allowed());
        }
        assert_eq!(sides[0], sides[1]);
        enforced += u32::from(!sides[0]);
    }
    assert!((25..=75).contains(&enforced), "{enforced}");
    let (api, half) = &processes[0];
    half.set_mode(Mode::Off);
    assert!(half.try_take(1, 1).await.unwrap().is_allowed());
    let (bob, ann) = (Key::new("bob"), Key::new("ann"));
    let members = [
        SharedMember::take(half, &bob, 1),
        SharedMember::take(api, &ann, 7),
    ];
    for expected in [true, false] {
        let outcome = all_of(&members).await.unwrap().unwrap();
        assert_eq!(outcome.decision.is_allowed(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_leases_than_permits_and_everybody_gets_one() {
    const PERMITS: u32 = 5;
    let server = Server::start(Flavor::Valkey9);
    let mut processes = Vec::new();
    for _ in 0..2 {
        let store = process(&server, LONG).await;
        let policy = permits(PERMITS, Duration::from_secs(60));
        processes.push(SharedLimiter::new(store, "workers", policy));
    }
    let (working, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for n in 0..200 {
        let limiter = processes[n % 2].clone();
        let (working, most) = (Arc::clone(&working), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            let lease = limiter.acquire("reports", 1).await.unwrap();
            most.fetch_max(working.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert!(lease.is_live());
            working.fetch_sub(1, SeqCst);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!((1..=PERMITS).contains(&most.load(SeqCst)), "{most:?}");
    eventually("all leases are given back", async || {
        used(&processes[0], "reports").await == 0
    })
    .await;
}

#[tokio::test]
async fn who_gives_up_leaves_nothing_behind() {
    let server = Server::start(Flavor::Valkey9);
    let store = process(&server, LONG).await;
    let rate = SharedLimiter::new(store.clone(), "rate", bucket(1, Duration::from_secs(60)));
    assert!(rate.until_ready("k", 1).await.unwrap().is_allowed());
    let waiting = tokio::spawn(rate.until_ready("k", 1));
    eventually("the waiter has reserved", async || {
        used(&rate, "k").await == 2
    })
    .await;
    waiting.abort();
    eventually("its units are back", async || used(&rate, "k").await == 1).await;
    let hasty = WaitOptions::new().max_wait(Duration::from_secs(1));
    let refused = rate.until_ready_with("k", 1, &hasty).await;
    assert!(
        matches!(refused, Err(WaitError::TooLong { .. })),
        "{refused:?}"
    );
    let refused = rate.until_ready("k", 2).await;
    assert!(
        matches!(refused, Err(WaitError::Impossible(_))),
        "{refused:?}"
    );
    assert_eq!(used(&rate, "k").await, 1);

    let workers = SharedLimiter::new(store, "workers", permits(1, Duration::from_secs(60)));
    // Dropped at each of its first steps, among them those between the call and its answer.
    for polls in 0..40 {
        let mut acquire = Box::pin(workers.acquire("k", 1));
        for _ in 0..polls {
            let polled = std::future::poll_fn(|context| {
                std::task::Poll::Ready(acquire.as_mut().poll(context).is_ready())
            });
            if polled.await {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquire);
        eventually("no lease is left", async || used(&workers, "k").await == 0).await;
    }
    // A call that was dropped on its way may still be granted, and is undone only then.
    let free = WaitOptions::new().max_wait(Duration::from_secs(20));
    let lease = workers.acquire_with("k", 1, &free).await.unwrap();
    let refused = workers.try_acquire("k", 1).await;
    assert!(matches!(refused, Err(WaitError::Denied(_))), "{refused:?}");
    let short = WaitOptions::new().max_wait(Duration::from_millis(50));
    let refused = workers.acquire_with("k", 1, &short).await;
    assert!(
        matches!(refused, Err(WaitError::Elapsed { .. })),
        "{refused:?}"
    );
    let waiting = tokio::spawn(workers.acquire("k", 1));
    tokio::time::sleep(Duration::from_millis(20)).await;
    waiting.abort();
    drop(lease);
    eventually("the permit is free", async || {
        used(&workers, "k").await == 0
    })
    .await;
}

#[tokio::test]
async fn those_who_wait_are_served_at_their_rate_over_two_processes() {
    let server = Server::start(Flavor::Valkey9);
    let every = Duration::from_millis(30);
    let mut waiting = Vec::new();
    let begun = Instant::now();
    for _ in 0..2 {
        let store = process(&server, LONG).await;
        for (name, policy) in [
            ("bucket", bucket(2, every)),
            (
                "log",
                SlidingLog::new(1, Micros::from_duration(every))
                    .unwrap()
                    .into(),
            ),
        ] {
            let limiter = SharedLimiter::new(store.clone(), name, policy);
            for _ in 0..4 {
                waiting.push(tokio::spawn(limiter.until_ready("k", 1)));
            }
        }
    }
    let mut times = Vec::new();
    for (n, task) in waiting.into_iter().enumerate() {
        let decision = task.await.unwrap().unwrap();
        assert!(decision.is_allowed() && decision.delay.as_micros() == Some(0));
        if n / 4 % 2 == 1 {
            times.push(decision.at.as_micros());
        }
    }
    // Eight of each: two at once from the bucket, one from the log.
    assert!(begun.elapsed() >= every * 6);
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.clone().all(|gap| gap >= 30_000), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_while_it_is_held_and_its_holder_told_when_the_server_is_gone() {
    let mut server = Server::start(Flavor::Valkey9);
    let ttl = Duration::from_millis(1_500);
    let store = process(&server, Duration::from_millis(400)).await;
    let workers = SharedLimiter::new(store.clone(), "workers", permits(1, ttl));
    let open = SharedLimiter::builder(store.clone(), "open", hourly(1))
        .failure_mode(FailureMode::Allow)
        .build();
    let closed = SharedLimiter::builder(store, "closed", hourly(1))
        .failure_mode(FailureMode::Deny)
        .build();
    let lease = workers.acquire("k", 1).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < ttl * 2 {
        assert!(lease.is_live(), "after {:?}", begun.elapsed());
        assert!(workers.try_acquire("k", 1).await.is_err());
        tokio::time::sleep(ttl / 10).await;
    }
    let revoked = workers.acquire("other", 1).await.unwrap();
    workers.key("other").reset().await.unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, revoked.lost()).await.unwrap(),
        Loss::Revoked
    );

    server.kill();
    let killed = Instant::now();
    assert_eq!(lost_within(&lease, LONG).await, Loss::Expired);
    // Its end is by the clock of this process: never later than the server would have had it.
    assert!(!lease.is_live());
    assert!(killed.elapsed() < ttl + Duration::from_secs(5));
    assert!(open.try_take("k", 1).await.unwrap().is_allowed());
    assert!(open.until_ready("k", 1).await.unwrap().is_allowed());
    let denied = closed.try_take("k", 1).await.unwrap();
    assert!(matches!(denied.verdict, Verdict::Deny(_)), "{denied:?}");
    let hasty = WaitOptions::new().max_wait(Duration::from_millis(10));
    assert!(closed.until_ready_with("k", 1, &hasty).await.is_err());
    assert!(workers.try_acquire("k", 1).await.is_err());
    assert!(closed.peek("k", 1).await.is_err());
    assert!(!lease.release(), "it was lost before");
}

async fn lost_within(lease: &Lease, within: Duration) -> Loss {
    let lost = tokio::time::timeout(within, lease.lost());
    lost.await.expect("the holder is told")
}

/// A limit of permits and a rate, as two processes see them.
struct Admitting {
    _server: Server,
    processes: Vec<[SharedLimiter; 3]>,
    keys: [Key; 3],
}

impl Admitting {
    /// Two workers for all, one for each tenant, and a rate.
    async fn start(rate: Policy) -> Self {
        let server = Server::start(Flavor::Valkey9);
        let mut processes = Vec::new();
        for _ in 0..2 {
            let store = process(&server, LONG).await;
            let lease = Duration::from_secs(60);
            processes.push([
                SharedLimiter::new(store.clone(), "all", permits(2, lease)),
                SharedLimiter::new(store.clone(), "tenant", permits(1, lease)),
                SharedLimiter::new(store, "rate", rate.clone()),
            ]);
        }
        Self {
            _server: server,
            processes,
            keys: ["cluster", "acme", "acme"].map(Key::new),
        }
    }

    /// The members as a process names them, in its own order.
    fn members(&self, process: usize) -> Vec<SharedMember<'_>> {
        let [all, tenant, rate] = &self.processes[process % 2];
        let mut members = vec![
            SharedMember::acquire(all, &self.keys[0], 1),
            SharedMember::acquire(tenant, &self.keys[1], 1),
            SharedMember::take(rate, &self.keys[2], 1),
        ];
        members.rotate_left(process % 3);
        members
    }

    async fn held(&self) -> (u32, u32) {
        let [all, tenant, _] = &self.processes[0];
        (used(all, "cluster").await, used(tenant, "acme").await)
    }
}

#[tokio::test]
async fn a_call_is_admitted_by_all_limits_or_costs_nothing() {
    let limits = Admitting::start(hourly(10)).await;
    let admission = try_admit(&limits.members(0)).await.unwrap();
    assert_eq!(limits.held().await, (1, 1));
    assert!(admission.is_live() && admission.lease(0).is_some() && admission.lease(2).is_none());
    let denied = try_admit(&limits.members(1)).await.unwrap_err();
    let known = denied.known().unwrap();
    assert!(matches!(denied, WaitError::Denied(_)) && !known.decision.is_allowed());
    let rate = &limits.processes[0][2];
    assert_eq!((limits.held().await, used(rate, "acme").await), ((1, 1), 1));
    drop(admission);
    eventually("the leases come back", async || {
        limits.held().await == (0, 0)
    })
    .await;
    assert_eq!(used(rate, "acme").await, 1, "it was admitted");
    assert!(matches!(try_admit(&[]).await, Err(WaitError::NoMembers)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_want_several_limits_in_any_order_are_all_served() {
    let limits = Arc::new(Admitting::start(bucket(5, Duration::from_millis(20))).await);
    let (at_once, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let callers: Vec<_> = (0..24)
        .map(|process| {
            let (limits, at_once, most) = (limits.clone(), at_once.clone(), most.clone());
            tokio::spawn(async move {
                let options = WaitOptions::new().max_wait(LONG);
                let members = limits.members(process);
                let admission = admit_with(&members, &options).await.unwrap();
                most.fetch_max(at_once.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                assert!(admission.is_live());
                at_once.fetch_sub(1, SeqCst);
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(most.load(SeqCst), 1, "a tenant has one worker");
    eventually("the leases come back", async || {
        limits.held().await == (0, 0)
    })
    .await;
}

#[tokio::test]
async fn who_would_wait_too_long_for_a_rate_is_told_at_once() {
    let limits = Admitting::start(hourly(1)).await;
    drop(try_admit(&limits.members(0)).await.unwrap());
    let begun = Instant::now();
    let options = WaitOptions::new().max_wait(LONG);
    let refused = admit_with(&limits.members(1), &options).await.unwrap_err();
    assert!(matches!(refused, WaitError::TooLong { .. }), "{refused}");
    assert!(begun.elapsed() < LONG / 2, "it did not wait");
    eventually("nothing is held", async || limits.held().await == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_admission_leaves_nothing_behind_at_whatever_moment() {
    let limits = Arc::new(Admitting::start(bucket(100_000, Duration::from_millis(1))).await);
    for round in 0..60_u64 {
        let options = WaitOptions::new().max_wait(LONG);
        let holder = match round % 2 {
            0 => None,
            _ => Some(admit_with(&limits.members(0), &options).await.unwrap()),
        };
        let waiting = {
            let limits = limits.clone();
            tokio::spawn(async move {
                let members = limits.members(1);
                admit_with(&members, &WaitOptions::new()).await.map(drop)
            })
        };
        tokio::time::sleep(Duration::from_micros(round * 37)).await;
        drop(holder);
        waiting.abort();
        let _ = waiting.await;
    }
    eventually("all leases come back", async || {
        limits.held().await == (0, 0)
    })
    .await;
}

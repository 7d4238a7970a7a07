//! Units taken in batches, on a real server: each process is a client of its own.

mod support;

use std::time::{Duration, Instant};

use support::{LONG, options, ready};
use tidegate_core::{
    Concurrency, Demand, Denial, LeakyBucket, Lockout, LockoutSettings, Micros, Operation, Policy,
    Rate, Reply, SlidingLog, Source, TokenBucket, Verdict,
};
use tidegate_store::Key;
use tidegate_testkit::{Flavor, Relay, Server};
use tidegate_valkey::{
    FailureMode, KeySpace, LeaseTokens, LeaseTokensError, LimitSpec, SharedCall, SharedLimit,
    ValkeyStore, all_of,
};

/// Longer than a test, so that nothing grows old in one.
const AGE: Micros = Micros(60_000_000);

async fn process(url: &str) -> ValkeyStore {
    ValkeyStore::new(
        ready(options(url).deadline(LONG)).await,
        KeySpace::default(),
    )
}

/// So many an hour, all at once.
fn hourly(limit: u32) -> Policy {
    SlidingLog::new(limit, Micros::from_secs(3600))
        .unwrap()
        .into()
}

fn leased(
    store: &ValkeyStore,
    name: &str,
    policy: impl Into<Policy>,
    batch: u32,
    age: Micros,
) -> SharedLimit {
    let leases = LeaseTokens::new(batch, age).unwrap();
    let spec = LimitSpec::new(name, policy);
    SharedLimit::with_leased_tokens(store.clone(), spec, FailureMode::Deny, leases).unwrap()
}

async fn allowed(limit: &SharedLimit, key: &Key, cost: u32) -> bool {
    limit.take(key, cost).await.unwrap().is_allowed()
}

/// What the store counts for a key.
async fn used(limit: &SharedLimit, key: &Key) -> u32 {
    match limit.apply(key, &Operation::State).await.unwrap() {
        Reply::State(state) => state.used,
        other => panic!("{other:?}"),
    }
}

/// Waits for what a task does on its own.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < LONG, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_passes_exactly_the_limit_in_a_fraction_of_the_calls() {
    let server = Server::start(Flavor::Valkey9);
    let key = Key::new("bob");
    let (mut tasks, mut stores) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let store = process(&server.url()).await;
        let limit = leased(&store, "stage", hourly(20_000), 500, AGE);
        stores.push(store);
        for _ in 0..4 {
            let (limit, key) = (limit.clone(), key.clone());
            tasks.push(tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..2_500 {
                    passed += u32::from(allowed(&limit, &key, 1).await);
                }
                (passed, limit)
            }));
        }
    }
    let (mut passed, mut limits) = (0, Vec::new());
    for task in tasks {
        let (own, limit) = task.await.unwrap();
        passed += own;
        limits.push(limit);
    }
    // 30,000 were asked for. Who was denied while others held what they did not need tries again
    // once that is back.
    for limit in &limits {
        limit.return_tokens().await;
    }
    assert_eq!(used(&limits[0], &key).await, passed);
    while allowed(&limits[0], &key, 1).await {
        passed += 1;
    }
    assert_eq!(passed, 20_000);
    let spent: u64 = limits
        .iter()
        .step_by(4)
        .map(|limit| limit.stats().spent)
        .sum();
    assert!(spent > 15_000, "only {spent} were spent without a call");
}

#[tokio::test]
async fn a_key_that_is_asked_seldom_holds_nothing() {
    let server = Server::start(Flavor::Valkey9);
    let limit = leased(
        &process(&server.url()).await,
        "api",
        hourly(100),
        50,
        Micros(2_000),
    );
    let key = Key::new("bob");
    for taken in 1..=5 {
        assert!(allowed(&limit, &key, 1).await);
        assert_eq!(used(&limit, &key).await, taken);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(limit.stats().spent, 0);
}

#[tokio::test]
async fn a_denial_says_when_what_is_missing_will_be_there() {
    let server = Server::start(Flavor::Valkey9);
    let bucket = TokenBucket::new(Rate::new(1, 50_000_000).unwrap(), 10).unwrap();
    let limit = leased(&process(&server.url()).await, "api", bucket, 4, AGE);
    let key = Key::new("bob");
    let mut passed = 0;
    loop {
        let decision = limit.take(&key, 1).await.unwrap();
        if !decision.is_allowed() {
            assert_eq!(decision.verdict, Verdict::Deny(Denial::Limited));
            let wait = decision.retry_after.as_micros().unwrap();
            assert!((40_000_000..=50_000_000).contains(&wait), "{wait}");
            break;
        }
        passed += 1;
    }
    assert_eq!(passed, 10);
    // Three lack three.
    let decision = limit.take(&key, 3).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.cost), (false, 3));
    let wait = decision.retry_after.as_micros().unwrap();
    assert!((140_000_000..=150_000_000).contains(&wait), "{wait}");
    let impossible = limit.take(&key, 11).await.unwrap();
    assert_eq!(impossible.verdict, Verdict::Deny(Denial::Impossible));
}

#[tokio::test]
async fn what_is_at_hand_counts_towards_a_cost_above_a_batch() {
    let server = Server::start(Flavor::Valkey9);
    let limit = leased(&process(&server.url()).await, "api", hourly(30), 8, AGE);
    let key = Key::new("bob");
    // The fourth call takes four.
    for _ in 0..5 {
        assert!(allowed(&limit, &key, 1).await);
    }
    eventually("a batch", async || used(&limit, &key).await > 5).await;
    assert!(
        allowed(&limit, &key, 25).await,
        "30 in all, wherever they are"
    );
    assert_eq!(used(&limit, &key).await, 30);
    assert!(!allowed(&limit, &key, 1).await);
}

#[tokio::test]
async fn what_is_not_spent_goes_back_when_it_is_old_or_at_the_end() {
    let server = Server::start(Flavor::Valkey9);
    let store = process(&server.url()).await;
    let key = Key::new("bob");
    // Old.
    let limit = leased(&store, "old", hourly(1_000), 100, Micros(50_000));
    for _ in 0..20 {
        assert!(allowed(&limit, &key, 1).await);
    }
    eventually("it goes back", async || used(&limit, &key).await == 20).await;
    // At the end, told or not.
    let limit = leased(&store, "end", hourly(1_000), 100, AGE);
    for _ in 0..20 {
        assert!(allowed(&limit, &key, 1).await);
    }
    assert!(used(&limit, &key).await > 20);
    limit.return_tokens().await;
    assert_eq!(used(&limit, &key).await, 20);
    assert!(allowed(&limit, &key, 1).await, "it goes on one by one");
    assert_eq!(used(&limit, &key).await, 21);

    let limit = leased(&store, "dropped", hourly(1_000), 100, AGE);
    for _ in 0..20 {
        assert!(allowed(&limit, &key, 1).await);
    }
    drop(limit);
    let other = SharedLimit::new(store, LimitSpec::new("dropped", hourly(1_000)));
    eventually("it goes back", async || used(&other, &key).await == 20).await;
}

#[tokio::test]
async fn what_is_old_is_not_spent() {
    let server = Server::start(Flavor::Valkey9);
    let limit = leased(
        &process(&server.url()).await,
        "api",
        hourly(1_000),
        100,
        Micros(30_000),
    );
    let key = Key::new("bob");
    for _ in 0..50 {
        assert!(allowed(&limit, &key, 1).await);
    }
    std::thread::sleep(Duration::from_millis(31));
    let call = SharedCall {
        limit: &limit,
        key: &key,
        slot: None,
        demand: Demand::Take { cost: 1 },
        shadow: false,
    };
    assert_eq!(call.spend(), None);
}

#[tokio::test]
async fn a_call_over_several_limits_spends_of_all_or_of_none() {
    let server = Server::start(Flavor::Valkey9);
    let store = process(&server.url()).await;
    let wide = leased(&store, "wide", hourly(1_000), 64, AGE);
    let narrow = SharedLimit::new(store.clone(), LimitSpec::new("narrow", hourly(40)));
    let key = Key::new("bob");
    let call = |limit| SharedCall {
        limit,
        key: &key,
        slot: None,
        demand: Demand::Take { cost: 1 },
        shadow: false,
    };
    let mut passed = 0;
    for _ in 0..100 {
        let outcome = all_of(&[call(&wide), call(&narrow)])
            .await
            .unwrap()
            .unwrap();
        passed += u32::from(outcome.decision.is_allowed());
        tokio::task::yield_now().await;
    }
    assert_eq!(passed, 40);
    assert!(wide.stats().spent > 0, "{:?}", wide.stats());
    wide.return_tokens().await;
    assert_eq!(used(&wide, &key).await, 40, "denials cost nothing");
    // Alone, all of it is at hand after a while, and nobody is asked.
    let wide = leased(&store, "alone", hourly(1_000), 64, AGE);
    let begun = store.client().stats().calls;
    for _ in 0..300 {
        let outcome = all_of(&[call(&wide)]).await.unwrap().unwrap();
        assert!(outcome.decision.is_allowed());
        tokio::task::yield_now().await;
    }
    let calls = store.client().stats().calls - begun;
    assert!(calls < 150, "{calls} calls for 300 decisions");
    wide.return_tokens().await;
    assert_eq!(used(&wide, &key).await, 300);
}

#[tokio::test]
async fn what_is_at_hand_is_spent_also_without_the_store_and_then_the_failure_mode_decides() {
    let server = Server::start(Flavor::Valkey9);
    let relay = Relay::to(server.port());
    let client = ready(options(&relay.url()).deadline(Duration::from_millis(500))).await;
    let store = ValkeyStore::new(client, KeySpace::default());
    let limit = leased(&store, "api", hourly(1_000), 64, AGE);
    let key = Key::new("bob");
    for _ in 0..30 {
        assert!(allowed(&limit, &key, 1).await);
    }
    eventually("a batch", async || used(&limit, &key).await > 40).await;
    let charged = used(&limit, &key).await;
    let peek = Operation::peek(charged - 30);
    eventually("all of it arrives", async || {
        let reply = limit.apply(&key, &peek).await.unwrap();
        reply.decision().unwrap().source == Source::Leased
    })
    .await;
    relay.refuse();
    let mut passed = 30;
    let denied = loop {
        let decision = limit.take(&key, 1).await.unwrap();
        if !decision.is_allowed() {
            break decision;
        }
        assert_eq!(decision.source, Source::Leased);
        passed += 1;
    };
    assert_eq!(denied.source, Source::Fallback);
    assert_eq!(passed, charged);
}

#[tokio::test]
async fn a_state_that_is_set_by_hand_ends_what_is_at_hand() {
    let server = Server::start(Flavor::Valkey9);
    let limit = leased(&process(&server.url()).await, "api", hourly(1_000), 64, AGE);
    let key = Key::new("bob");
    for _ in 0..30 {
        assert!(allowed(&limit, &key, 1).await);
    }
    let period = Micros::from_secs(60);
    limit
        .apply(&key, &Operation::Block { period })
        .await
        .unwrap();
    let denied = limit.take(&key, 1).await.unwrap();
    assert_eq!(denied.verdict, Verdict::Deny(Denial::Blocked));
}

#[tokio::test]
async fn a_watched_limit_keeps_its_batches_apart() {
    let server = Server::start(Flavor::Valkey9);
    let limit = leased(&process(&server.url()).await, "api", hourly(10), 8, AGE);
    let key = Key::new("bob");
    for turn in 0..40 {
        let call = SharedCall {
            limit: &limit,
            key: &key,
            slot: None,
            demand: Demand::Take { cost: 1 },
            shadow: true,
        };
        let (decision, _) = call.decide().await.unwrap();
        assert!(decision.is_allowed() && decision.shadow);
        assert_eq!(decision.is_within_limit(), turn < 10, "{turn}");
    }
    assert_eq!(used(&limit, &key).await, 0);
    assert!(allowed(&limit, &key, 10).await);
}

#[test]
fn what_cannot_be_leased_is_refused_with_a_reason() {
    let second = Micros::from_secs(1);
    let rate = Rate::per_second(1).unwrap();
    let check = |policy: Policy| LeaseTokens::check(&LimitSpec::new("a", policy));
    let lockout = LockoutSettings {
        failures: 3,
        period: second,
        ban: second,
        factor: 1,
        max_ban: second,
        jitter: Micros::ZERO,
        forget_after: second,
        long_cap: None,
    };
    for policy in [
        Policy::from(LeakyBucket::new(rate, 5, 1, None).unwrap()),
        Concurrency::new(5, second, None).unwrap().into(),
        Lockout::new(lockout).unwrap().into(),
    ] {
        let error = check(policy).unwrap_err();
        assert!(
            matches!(error, LeaseTokensError::Unsupported { .. }),
            "{error}"
        );
    }
    assert_eq!(check(hourly(5)), Ok(()));
    let punitive = LimitSpec::new("a", hourly(5)).with_charge_denied(true);
    assert_eq!(
        LeaseTokens::check(&punitive),
        Err(LeaseTokensError::ChargesDenied)
    );
    assert!(LeaseTokens::new(0, second).is_err() && LeaseTokens::new(1, Micros(999)).is_err());
}

#[test]
fn the_bound_is_that_of_a_window_longer_by_max_age_and_is_told_in_a_sentence() {
    let bucket: Policy = TokenBucket::new(Rate::per_second(100).unwrap(), 200)
        .unwrap()
        .into();
    let leases = LeaseTokens::new(50, LeaseTokens::MAX_AGE).unwrap();
    assert_eq!(leases.spent(&bucket, Micros(1)), Some(200 + 100));
    assert_eq!(leases.spent(&bucket, Micros::ZERO), Some(0));
    assert_eq!(leases.held(), 62);
    let sentence = leases.explain(&bucket, Micros::from_secs(60));
    assert_eq!(
        sentence,
        "batches of up to 50 tokens, spent within 1s: all processes together are charged at most 6199 \
         in 1m, and spend at most 6299; a process that is killed leaves at most 62 unused"
    );
}

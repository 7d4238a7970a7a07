//! Real threads on one key and on many: never one more than allowed.
//!
//! With the `shuttle` feature the table runs on shuttle's atomics, which only work inside its
//! scheduler: these tests are then left out.
#![cfg(not(feature = "shuttle"))]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tidegate_core::{
    Align, ChangeMode, Concurrency, Decision, Demand, FixedWindow, InterpolatedWindow,
    IntervalBucket, LeakyBucket, LeaseGrant, LeaseId, Lockout, LockoutSettings, Micros, Operation,
    Policy, Rate, Reply, SlidingLog, StrictWindow, Timestamp, TokenBucket,
};
use tidegate_store::{
    KeyHash, KeyHasher, Member, MemoryLimit, MemoryOptions, WhenFull, all_of, memory_limit,
};

const THREADS: u64 = 8;
const CALLS: u64 = 4_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn hash(key: u64) -> KeyHash {
    KeyHasher::with_seed((1, 2)).hash_part(&key.to_le_bytes())
}

/// A limit, and what the n-th call asks of it.
type Case = (Policy, fn(u64) -> Demand);

/// Every algorithm with a limit of 1000 for one key at one moment, and what asks it.
fn policies() -> Vec<Case> {
    let minute = Micros::from_secs(60);
    let rate = Rate::new(1, 60_000_000).unwrap();
    let lockout = LockoutSettings {
        failures: 1_000,
        period: minute,
        ban: minute,
        factor: 2,
        max_ban: minute,
        jitter: Micros::ZERO,
        forget_after: minute,
        long_cap: None,
    };
    let take: fn(u64) -> Demand = |_| Demand::Take { cost: 1 };
    let acquire: fn(u64) -> Demand = |call| Demand::Acquire {
        lease: LeaseId(u128::from(call)),
        weight: 1,
    };
    let attempt: fn(u64) -> Demand = |_| Demand::Attempt { seed: 0 };
    vec![
        (TokenBucket::new(rate, 1_000).unwrap().into(), take),
        (IntervalBucket::new(rate, 1_000).unwrap().into(), take),
        (LeakyBucket::new(rate, 999, 1, None).unwrap().into(), take),
        (
            FixedWindow::new(1_000, minute, Align::Epoch)
                .unwrap()
                .into(),
            take,
        ),
        (
            FixedWindow::new(1_000, minute, Align::FirstUse)
                .unwrap()
                .into(),
            take,
        ),
        (SlidingLog::new(1_000, minute).unwrap().into(), take),
        (StrictWindow::new(1_000, minute, 60).unwrap().into(), take),
        (InterpolatedWindow::new(1_000, minute).unwrap().into(), take),
        (
            Concurrency::new(1_000, minute, None).unwrap().into(),
            acquire,
        ),
        (Lockout::new(lockout).unwrap().into(), attempt),
    ]
}

/// Takes what is demanded: units on the short way that doors use.
fn ask(
    limit: &dyn MemoryLimit,
    key: KeyHash,
    now: Timestamp,
    demand: Demand,
) -> (Decision, Option<LeaseGrant>) {
    if let Demand::Take { cost } = demand {
        return (limit.take(key, now.into(), cost), None);
    }
    match limit
        .apply(key, now.into(), &Operation::Take(demand))
        .unwrap()
    {
        Reply::Leased(decision, grant) => (decision, grant),
        Reply::Decision(decision) => (decision, None),
        reply => panic!("a demand was answered by {reply:?}"),
    }
}

/// Runs `work` on all threads at once.
fn together(work: impl Fn(u64) + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
}

#[test]
fn threads_on_one_key_get_exactly_the_limit_whatever_the_algorithm() {
    for (policy, demand) in policies() {
        let limit = memory_limit(policy.clone(), MemoryOptions::default());
        let allowed = AtomicU64::new(0);
        together(|thread| {
            for call in 0..CALLS {
                let demand = demand(thread * CALLS + call);
                // Time moves a little, and not for all threads alike, but no unit comes back.
                let now = at(1_000_000_000 + (call + thread) % 500);
                let decision = ask(&*limit, hash(7), now, demand).0;
                allowed.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
            }
        });
        assert_eq!(allowed.into_inner(), 1_000, "{policy:?}");
    }
}

#[test]
fn threads_on_many_keys_get_exactly_the_limit_of_each_while_the_table_grows() {
    const KEYS: u64 = 20_000;
    let rate = Rate::new(1, 60_000_000).unwrap();
    for policy in [
        Policy::from(TokenBucket::new(rate, 3).unwrap()),
        Policy::from(SlidingLog::new(3, Micros::from_secs(60)).unwrap()),
    ] {
        let limit = memory_limit(policy, MemoryOptions::default());
        let allowed: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        together(|thread| {
            for call in 0..KEYS {
                // Each thread meets the keys in another order, so that new keys are met by several.
                let key = (call * (2 * thread + 1) + thread) % KEYS;
                let decision = limit.take(hash(key), at(5_000_000).into(), 1);
                allowed[key as usize]
                    .fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                if call % 64 == 0 {
                    limit.maintain(at(5_000_000), 32);
                }
            }
        });
        for (key, allowed) in allowed.iter().enumerate() {
            let allowed = allowed.load(Ordering::Relaxed);
            assert!(allowed <= 3, "key {key} got {allowed}");
        }
        // Every key was asked for by every odd stride that is coprime to KEYS, so most reached 3.
        assert!(
            allowed
                .iter()
                .filter(|count| count.load(Ordering::Relaxed) == 3)
                .count()
                > 10_000
        );
        assert_eq!(limit.stats().keys, KEYS as usize);
    }
}

#[test]
fn leases_are_never_more_than_the_limit_while_threads_acquire_and_release() {
    let limit = memory_limit(
        Concurrency::new(5, Micros::from_secs(60), None)
            .unwrap()
            .into(),
        MemoryOptions::default(),
    );
    let (held, highest) = (AtomicU64::new(0), AtomicU64::new(0));
    together(|thread| {
        for call in 0..CALLS {
            let lease = LeaseId(u128::from(thread * CALLS + call));
            let acquire = Demand::Acquire { lease, weight: 1 };
            let (decision, grant) = ask(&*limit, hash(1), at(call), acquire);
            assert_eq!(decision.is_allowed(), grant.is_some());
            if grant.is_some() {
                let now_held = held.fetch_add(1, Ordering::SeqCst) + 1;
                highest.fetch_max(now_held, Ordering::SeqCst);
                held.fetch_sub(1, Ordering::SeqCst);
                let released = limit.apply(hash(1), at(call).into(), &Operation::Release { lease });
                assert_eq!(released.unwrap(), Reply::Released(true));
            }
        }
    });
    assert!(highest.into_inner() <= 5);
}

#[test]
fn calls_over_several_keys_are_all_or_nothing_and_never_wait_for_each_other_for_ever() {
    // Units wander between accounts: every call takes one from two of them or from none, so both
    // sides of the books agree only if no call was half charged.
    const ACCOUNTS: u64 = 6;
    let rate = Rate::new(0, 1).unwrap();
    let bucket = memory_limit(
        TokenBucket::new(rate, 2_000).unwrap().into(),
        MemoryOptions::default(),
    );
    let log = memory_limit(
        SlidingLog::new(2_000, Micros::from_secs(60))
            .unwrap()
            .into(),
        MemoryOptions::default(),
    );
    let limits: [&dyn MemoryLimit; 2] = [&*bucket, &*log];
    let charged: Vec<AtomicU64> = (0..2 * ACCOUNTS).map(|_| AtomicU64::new(0)).collect();
    together(|thread| {
        for call in 0..CALLS {
            let first = (call * 7 + thread) % ACCOUNTS;
            let second = (call * 5 + 3 * thread + 1) % ACCOUNTS;
            let member = |limit: u64, key: u64| Member {
                limit: limits[limit as usize],
                key: hash(key),
                demand: Demand::Take { cost: 1 },
                shadow: false,
            };
            // Named in either order: the slots are locked in one order all the same.
            let mut members = [member(0, first), member(1, second), member(0, second)];
            if call % 2 == 0 {
                members.reverse();
            }
            let outcome = all_of(&members, at(1_000)).unwrap().unwrap();
            if outcome.decision.is_allowed() {
                charged[first as usize].fetch_add(1, Ordering::Relaxed);
                charged[second as usize].fetch_add(1, Ordering::Relaxed);
                charged[(ACCOUNTS + second) as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for account in 0..ACCOUNTS {
        for (side, limit) in limits.iter().enumerate() {
            let reply = limit
                .apply(hash(account), at(1_000).into(), &Operation::State)
                .unwrap();
            let Reply::State(state) = reply else {
                panic!("a state was asked for")
            };
            let booked =
                charged[side * ACCOUNTS as usize + account as usize].load(Ordering::Relaxed);
            assert_eq!(u64::from(state.used), booked);
            assert!(booked <= 2_000);
        }
    }
}

#[test]
fn changes_of_the_numbers_neither_lose_nor_invent_units_under_load() {
    // Numbers that differ and mean the same: a lower capacity would forgive what is above it.
    let policy =
        |period| Policy::from(TokenBucket::new(Rate::new(0, period).unwrap(), 10_000).unwrap());
    let limit = memory_limit(policy(1), MemoryOptions::default());
    let (allowed, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // More changes than a head can tell apart, so that the ring of generations goes round.
            for change in 0..200_u32 {
                limit.change(
                    &policy(u64::from(1 + change % 2)),
                    ChangeMode::KeepUsed,
                    at(1_000).into(),
                );
                thread::yield_now();
            }
            limit.change(&policy(1), ChangeMode::KeepUsed, at(1_000).into());
            done.store(true, Ordering::Release);
        });
        for _ in 0..4 {
            scope.spawn(|| {
                let mut calls = 0;
                while calls < 5_000 || !done.load(Ordering::Acquire) {
                    let decision = limit.take(hash(1), at(1_000).into(), 1);
                    allowed.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                    calls += 1;
                }
            });
        }
    });
    let allowed = allowed.into_inner();
    assert_eq!(allowed, 10_000);
}

#[test]
fn a_key_is_found_by_all_threads_while_others_come_and_go() {
    // One key is used all the time while a crowd of short-lived keys makes the table grow, move
    // keys aside and forget: it must never be mistaken for a new one.
    let second = Micros::from_secs(1);
    let limit = memory_limit(
        FixedWindow::new(u32::MAX >> 1, second, Align::FirstUse)
            .unwrap()
            .into(),
        MemoryOptions {
            max_keys: 50_000,
            when_full: WhenFull::Overflow,
            ..MemoryOptions::default()
        },
    );
    let used = AtomicU64::new(0);
    together(|thread| {
        for call in 0..20_000_u64 {
            let now = at(1_000_000 + call / 4);
            if thread == 0 {
                limit.take(hash(0), now.into(), 1);
                used.fetch_add(1, Ordering::Relaxed);
            } else {
                limit.take(hash(1 + thread * 1_000_000 + call), now.into(), 1);
            }
        }
    });
    let reply = limit
        .apply(hash(0), at(1_005_000).into(), &Operation::State)
        .unwrap();
    let Reply::State(state) = reply else {
        panic!("a state was asked for")
    };
    assert_eq!(u64::from(state.used), used.into_inner());
}

#[test]
fn a_hash_map_of_buckets_under_one_lock_agrees_on_every_count() {
    // The plainest concurrent limiter there is, as a witness.
    let limit = memory_limit(
        TokenBucket::new(Rate::new(0, 1).unwrap(), 50)
            .unwrap()
            .into(),
        MemoryOptions::default(),
    );
    let witness = std::sync::Mutex::new(HashMap::<u64, u32>::new());
    together(|thread| {
        for call in 0..CALLS {
            let key = (call ^ (thread * 31)) % 97;
            let mut witness = witness.lock().unwrap();
            let left = witness.entry(key).or_insert(50);
            let cost = 1 + (call % 3) as u32;
            let decision = limit.take(hash(key), at(9).into(), cost);
            assert_eq!(decision.is_allowed(), *left >= cost);
            if decision.is_allowed() {
                *left -= cost;
            }
            assert_eq!(decision.remaining, *left);
        }
    });
}

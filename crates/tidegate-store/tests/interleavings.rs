//! The table under shuttle: thousands of schedules of a few threads, switched at every atomic
//! access. `cargo test -p tidegate-store --features shuttle --test interleavings`.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use tidegate_core::{
    ChangeMode, Demand, Micros, Operation, Policy, Rate, Reply, SlidingLog, Timestamp, TokenBucket,
};
use tidegate_store::{KeyHash, Member, MemoryLimit, MemoryOptions, WhenFull, all_of, memory_limit};

const SCHEDULES: usize = 3_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Keys that are easy to tell apart and spread over groups and segments.
fn hash(key: u64) -> KeyHash {
    KeyHash::new((key + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

fn bucket(capacity: u32) -> Policy {
    TokenBucket::new(Rate::new(0, 1).unwrap(), capacity)
        .unwrap()
        .into()
}

fn log(limit: u32) -> Policy {
    SlidingLog::new(limit, Micros::from_secs(60))
        .unwrap()
        .into()
}

fn table(policy: Policy, max_keys: usize) -> Arc<dyn MemoryLimit> {
    memory_limit(
        policy,
        MemoryOptions {
            max_keys,
            when_full: WhenFull::Overflow,
            ..MemoryOptions::default()
        },
    )
    .into()
}

fn take(limit: &dyn MemoryLimit, key: u64, now: u64) -> bool {
    limit.take(hash(key), at(now).into(), 1).is_allowed()
}

/// Two threads take from one key; exactly the limit is given.
fn one_key(policy: fn(u32) -> Policy) {
    shuttle::check_random(
        move || {
            let limit = table(policy(3), 100);
            let allowed = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (limit, allowed) = (Arc::clone(&limit), Arc::clone(&allowed));
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let taken = u64::from(take(&*limit, 1, 1_000));
                            allowed.fetch_add(taken, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(allowed.load(Ordering::SeqCst), 3);
        },
        SCHEDULES,
    );
}

#[test]
fn one_packed_key_gives_exactly_its_limit() {
    one_key(bucket);
}

#[test]
fn one_boxed_key_gives_exactly_its_limit() {
    one_key(log);
}

#[test]
fn a_key_is_never_given_twice_while_its_segment_grows() {
    shuttle::check_random(
        || {
            let limit = table(bucket(1), 100_000);
            // Just below the point at which the first segment is doubled.
            for key in 100..158 {
                take(&*limit, key, 0);
            }
            let allowed = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..2)
                .map(|thread: u64| {
                    let (limit, allowed) = (Arc::clone(&limit), Arc::clone(&allowed));
                    thread::spawn(move || {
                        for key in 0..8 {
                            let key = if thread == 0 { key } else { 7 - key };
                            let taken = u64::from(take(&*limit, key, 0));
                            allowed.fetch_add(taken, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(allowed.load(Ordering::SeqCst), 8);
            assert_eq!(limit.stats().keys, 66);
        },
        SCHEDULES / 6,
    );
}

#[test]
fn a_refusal_is_never_read_from_half_a_state() {
    shuttle::check_random(
        || {
            let policy = TokenBucket::new(Rate::new(1, 10).unwrap(), 2).unwrap();
            let limit = table(policy.into(), 100);
            take(&*limit, 1, 0);
            take(&*limit, 1, 0);
            let writer = {
                let limit = Arc::clone(&limit);
                thread::spawn(move || {
                    take(&*limit, 1, 10);
                    take(&*limit, 1, 20);
                })
            };
            // Whatever is seen, a token is at most two refills away.
            for _ in 0..2 {
                let reply = limit
                    .apply(hash(1), at(20).into(), &Operation::State)
                    .unwrap();
                let Reply::State(state) = reply else {
                    panic!("a state was asked for")
                };
                assert!(state.used <= 2);
                let decision = limit.take(hash(1), at(20).into(), 2);
                assert!(decision.is_allowed() || decision.retry_after.as_micros() <= Some(20));
            }
            writer.join().unwrap();
        },
        SCHEDULES,
    );
}

#[test]
fn calls_over_two_keys_are_all_or_nothing_in_either_order() {
    shuttle::check_random(
        || {
            let (one, two) = (table(bucket(2), 100), table(log(2), 100));
            let allowed = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = [false, true]
                .map(|reversed| {
                    let (one, two) = (Arc::clone(&one), Arc::clone(&two));
                    let allowed = Arc::clone(&allowed);
                    thread::spawn(move || {
                        let member = |limit| Member {
                            limit,
                            key: hash(1),
                            demand: Demand::Take { cost: 1 },
                            shadow: false,
                        };
                        for _ in 0..2 {
                            let mut members = [member(&*one), member(&*two)];
                            if reversed {
                                members.reverse();
                            }
                            let outcome = all_of(&members, at(0)).unwrap().unwrap();
                            let taken = u64::from(outcome.decision.is_allowed());
                            allowed.fetch_add(taken, Ordering::SeqCst);
                        }
                    })
                })
                .into_iter()
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(allowed.load(Ordering::SeqCst), 2);
        },
        SCHEDULES,
    );
}

#[test]
fn a_change_of_numbers_during_a_take_counts_every_unit_once() {
    shuttle::check_random(
        || {
            let limit = table(bucket(3), 100);
            let taker = {
                let limit = Arc::clone(&limit);
                thread::spawn(move || (0..3).filter(|_| take(&*limit, 1, 5)).count())
            };
            limit.change(&bucket(4), ChangeMode::KeepUsed, at(5).into());
            let more = (0..3).filter(|_| take(&*limit, 1, 5)).count();
            let taken = taker.join().unwrap() + more;
            assert_eq!(taken, 4);
        },
        SCHEDULES,
    );
}

#[test]
fn forgetting_never_loses_a_charge() {
    shuttle::check_random(
        || {
            let policy = TokenBucket::new(Rate::new(1, 10).unwrap(), 1).unwrap();
            let limit = table(policy.into(), 100);
            take(&*limit, 1, 0);
            let sweeper = {
                let limit = Arc::clone(&limit);
                thread::spawn(move || limit.maintain(at(10), 1_000))
            };
            // Full again at 10: the key may be forgotten before this charge, and not after it.
            assert!(take(&*limit, 1, 10));
            sweeper.join().unwrap();
            assert!(!take(&*limit, 1, 10));
        },
        SCHEDULES,
    );
}

#[test]
fn a_take_that_was_interrupted_for_a_whole_round_of_versions_loses_no_charge() {
    // A head has 32 versions: after as many charges at one moment it looks as it did before.
    shuttle::check_pct(
        || {
            let limit = table(bucket(100), 100);
            take(&*limit, 1, 5);
            let other = {
                let limit = Arc::clone(&limit);
                thread::spawn(move || (0..32).for_each(|_| assert!(take(&*limit, 1, 5))))
            };
            assert!(take(&*limit, 1, 5));
            other.join().unwrap();
            let reply = limit
                .apply(hash(1), at(5).into(), &Operation::State)
                .unwrap();
            let Reply::State(state) = reply else {
                panic!("a state was asked for")
            };
            assert_eq!(state.used, 34);
        },
        SCHEDULES,
        3,
    );
}

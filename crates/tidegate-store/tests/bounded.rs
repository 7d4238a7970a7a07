//! What a table does when more keys come than it may hold, and what it forgets.
#![cfg(not(feature = "shuttle"))]

use tidegate_core::{
    Demand, Denial, Micros, Operation, Policy, Rate, Reply, SlidingLog, Timestamp, TokenBucket,
    Verdict,
};
use tidegate_store::{
    KeyHash, KeyHasher, Member, MemoryLimit, MemoryOptions, WhenFull, all_of, memory_limit,
};

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn hash(key: u64) -> KeyHash {
    KeyHasher::with_seed((3, 4)).hash_part(&key.to_le_bytes())
}

fn take(limit: &dyn MemoryLimit, key: u64, now: u64) -> tidegate_core::Decision {
    limit.take(hash(key), at(now).into(), 1)
}

fn bucket(max_keys: usize, when_full: WhenFull) -> Box<dyn MemoryLimit> {
    let policy = TokenBucket::new(Rate::new(1, 1_000_000).unwrap(), 2).unwrap();
    memory_limit(
        policy.into(),
        MemoryOptions {
            max_keys,
            when_full,
            ..MemoryOptions::default()
        },
    )
}

#[test]
fn ten_million_keys_stay_within_the_memory_of_those_that_may_be_held() {
    for policy in [
        Policy::from(TokenBucket::new(Rate::new(1, 1_000_000).unwrap(), 2).unwrap()),
        Policy::from(SlidingLog::new(2, Micros::from_secs(60)).unwrap()),
    ] {
        let options = MemoryOptions {
            max_keys: 100_000,
            when_full: WhenFull::Overflow,
            ..MemoryOptions::default()
        };
        let limit = memory_limit(policy, options);
        for key in 0..10_000_000 {
            take(&*limit, key, 1_000_000);
        }
        let stats = limit.stats();
        assert_eq!(stats.keys, 100_000);
        assert!(stats.overflowed > 0);
        // 24 bytes a slot at no less than half full, and the shared states.
        assert!(
            stats.table_bytes < 100_000 * 48 + 64 * 1_024,
            "{} bytes",
            stats.table_bytes
        );
    }
}

#[test]
fn a_key_of_a_token_bucket_costs_a_few_machine_words() {
    let limit = bucket(2_000_000, WhenFull::Overflow);
    for key in 0..1_000_000 {
        take(&*limit, key, 1_000_000);
    }
    let per_key = limit.stats().table_bytes / limit.stats().keys;
    assert!(per_key <= 40, "{per_key} bytes per key");
}

#[test]
fn a_full_table_first_drops_keys_that_equal_fresh_ones() {
    let limit = bucket(1_000, WhenFull::DenyNew);
    for key in 0..1_000 {
        assert!(take(&*limit, key, 0).is_allowed());
    }
    assert_eq!(
        take(&*limit, 5_000, 1_999_999).verdict,
        Verdict::Deny(Denial::TableFull)
    );
    // A microsecond later all buckets have been full for the second that a clock may be behind. A
    // call looks at a bounded number of other
    // keys for one that may go: the last few are found by the calls of several.
    for key in 5_000..6_000 {
        let tries = (0..20)
            .take_while(|_| !take(&*limit, key, 2_000_000).is_allowed())
            .count();
        assert!(
            tries < if key < 5_500 { 1 } else { 20 },
            "key {key} was denied {tries} times"
        );
    }
    assert_eq!((limit.stats().keys, limit.stats().evicted), (1_000, 0));
}

#[test]
fn overflowing_keys_share_states_and_are_never_allowed_more() {
    let limit = bucket(10, WhenFull::Overflow);
    let mut allowed = std::collections::HashMap::<u64, u32>::new();
    for round in 0..4 {
        for key in 0..5_000 {
            if take(&*limit, key, round).is_allowed() {
                *allowed.entry(key).or_default() += 1;
            }
        }
    }
    assert!(allowed.values().all(|count| *count <= 2));
    assert!(allowed.values().sum::<u32>() <= 2 * (10 + 1_024));
}

#[test]
fn a_key_that_gets_a_place_of_its_own_keeps_what_it_used_in_a_shared_one() {
    let limit = bucket(1, WhenFull::Overflow);
    assert!(take(&*limit, 1, 0).is_allowed());
    // Key 2 shares a state and uses it up, then finds a place: key 1 may be forgotten by then.
    assert!(take(&*limit, 2, 1_900_000).is_allowed());
    assert!(take(&*limit, 2, 1_900_000).is_allowed());
    let late = take(&*limit, 2, 2_000_000);
    assert!(!late.is_allowed(), "the shared state was forgotten");
    assert_eq!(late.retry_after.as_micros(), Some(900_000));
}

#[test]
fn new_keys_are_denied_where_that_was_chosen_and_old_ones_go_on() {
    let limit = bucket(100, WhenFull::DenyNew);
    for key in 0..100 {
        assert!(take(&*limit, key, 0).is_allowed());
    }
    let denied = take(&*limit, 100, 0);
    assert_eq!(denied.verdict, Verdict::Deny(Denial::TableFull));
    assert!(denied.retry_after.as_micros().is_some_and(|wait| wait > 0));
    assert!(take(&*limit, 50, 0).is_allowed());
    assert_eq!(limit.stats().keys, 100);
}

#[test]
fn evicting_forgives_the_quiet_and_is_counted() {
    let limit = bucket(100, WhenFull::Evict);
    for key in 0..1_000 {
        assert!(take(&*limit, key, key).is_allowed());
    }
    let stats = limit.stats();
    assert!(stats.keys <= 100 && stats.evicted >= 900, "{stats:?}");
}

#[test]
fn idle_keys_go_in_small_steps_and_limited_ones_stay() {
    let limit = bucket(1_000_000, WhenFull::Overflow);
    for key in 0..200_000 {
        take(&*limit, key, 1_000_000);
    }
    // A hundred stay in use: a token of theirs is still out when the others may go.
    for key in 0..100 {
        take(&*limit, key, 2_500_000);
    }
    let now = 3_000_000;
    let mut rounds = 0;
    while limit.stats().keys > 100 {
        assert!(limit.maintain(at(now), 1_000) <= 1_000);
        rounds += 1;
        assert!(rounds < 1_000, "{} keys are left", limit.stats().keys);
    }
    for key in 0..100 {
        let Reply::State(state) = limit
            .apply(hash(key), at(now).into(), &Operation::State)
            .unwrap()
        else {
            panic!("a state was asked for")
        };
        assert_eq!(state.used, 1, "key {key} was forgotten");
    }
    limit.maintain(at(now), 1_000_000);
    assert_eq!(limit.stats().keys, 100);
}

#[test]
fn questions_and_denials_create_no_key() {
    let limit = bucket(100, WhenFull::Overflow);
    limit
        .apply(hash(1), at(0).into(), &Operation::peek(1))
        .unwrap();
    limit
        .apply(hash(1), at(0).into(), &Operation::take(0))
        .unwrap();
    limit
        .apply(hash(1), at(0).into(), &Operation::take(3))
        .unwrap();
    limit
        .apply(hash(1), at(0).into(), &Operation::Refund { cost: 1 })
        .unwrap();
    limit
        .apply(hash(1), at(0).into(), &Operation::Reset)
        .unwrap();
    assert_eq!(limit.stats().keys, 0);
}

#[test]
fn a_blocked_key_is_kept_until_the_block_ends() {
    let limit = bucket(100, WhenFull::Overflow);
    limit
        .apply(
            hash(1),
            at(0).into(),
            &Operation::Block {
                period: Micros::from_secs(60),
            },
        )
        .unwrap();
    limit.maintain(at(59_999_999), 10_000);
    let denied = take(&*limit, 1, 59_999_999);
    assert_eq!(denied.verdict, Verdict::Deny(Denial::Blocked));
    assert_eq!(denied.retry_after.as_micros(), Some(1));
    // A call whose clock is behind is still denied, so the key is kept a second longer.
    limit.maintain(at(60_000_000), 10_000);
    assert_eq!(take(&*limit, 1, 59_999_999).verdict, denied.verdict);
    limit.maintain(at(61_000_000), 10_000);
    assert_eq!(limit.stats().keys, 0);
    assert!(take(&*limit, 1, 60_000_000).is_allowed());
}

#[test]
fn a_punishing_limit_charges_denials_down_to_one_capacity_and_says_the_longer_wait() {
    let policy = SlidingLog::new(2, Micros(100)).unwrap();
    let options = MemoryOptions {
        charge_denied: true,
        ..MemoryOptions::default()
    };
    let limit = memory_limit(policy.into(), options);
    let key = hash(1);
    let ask = |now, cost| limit.take(key, at(now).into(), cost);
    assert!(ask(0, 1).is_allowed() && ask(1, 1).is_allowed());
    // Two of two are used; each of these denials is charged, until four are.
    for (now, wait) in [(50, 51), (60, 90), (70, 80)] {
        let denied = ask(now, 1);
        assert_eq!(
            (denied.is_allowed(), denied.retry_after.as_micros()),
            (false, Some(wait))
        );
    }
    // At 150 the first two and the denial at 50 have left: the wait was exact.
    assert!(!ask(149, 1).is_allowed());
    // What can never pass is not charged.
    let before = limit.apply(key, at(149).into(), &Operation::State).unwrap();
    assert_eq!(ask(149, 3).verdict, Verdict::Deny(Denial::Impossible));
    assert_eq!(
        limit.apply(key, at(149).into(), &Operation::State).unwrap(),
        before
    );
}

#[test]
fn a_call_over_more_new_keys_than_a_table_may_hold_is_answered() {
    for when_full in [WhenFull::Overflow, WhenFull::DenyNew, WhenFull::Evict] {
        let limit = bucket(1, when_full);
        let member = |key| Member {
            limit: &*limit,
            key: hash(key),
            demand: Demand::Take { cost: 1 },
            shadow: false,
        };
        let members = [member(1), member(2), member(3)];
        let outcome = all_of(&members, at(0)).unwrap().unwrap();
        // Shared states have room for all; where there are none, nobody is charged.
        let shared = when_full != WhenFull::DenyNew;
        assert_eq!(outcome.decision.is_allowed(), shared, "{when_full:?}");
    }
}

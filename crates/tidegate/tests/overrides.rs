//! Keys with numbers of their own.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    ChangeMode, Concurrency, Demand, FixedWindow, InterpolatedWindow, IntervalBucket, Key,
    LeakyBucket, LeaseId, Limiter, Member, Micros, Mode, Operation, OverrideError, Policy, Rate,
    SlidingLog, StrictWindow, Timestamp, TokenBucket, WhenFull, all_of,
};

const KEEP: ChangeMode = ChangeMode::KeepUsed;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn bucket(count: u32, capacity: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_second(count).unwrap(), capacity).unwrap()
}

/// A policy of the `kind`-th algorithm with one of several sets of numbers.
fn policy(kind: usize, n: u32) -> Policy {
    let (rate, period) = (
        Rate::new(n % 5 + 1, 700_000).unwrap(),
        Micros::from_millis(1_000 + u64::from(n) * 100),
    );
    let align = tidegate::Align::FirstUse;
    match kind {
        0 => TokenBucket::new(rate, n).unwrap().into(),
        1 => IntervalBucket::new(rate, n).unwrap().into(),
        2 => LeakyBucket::new(rate, n, 2, None).unwrap().into(),
        3 => FixedWindow::new(n, period, align).unwrap().into(),
        4 => SlidingLog::new(n, period).unwrap().into(),
        5 => StrictWindow::new(n, period, 10).unwrap().into(),
        6 => InterpolatedWindow::new(n, period).unwrap().into(),
        _ => Concurrency::new(n, period, None).unwrap().into(),
    }
}

fn operation(kind: usize, cost: u32, lease: u8) -> Operation {
    if kind == 7 {
        let lease = LeaseId(lease.into());
        return match cost {
            0 => Operation::Release { lease },
            weight => Operation::Take(Demand::Acquire { lease, weight }),
        };
    }
    match lease {
        0 => Operation::Refund { cost },
        1 => Operation::Force { cost },
        2 => Operation::TakeUpTo { cost },
        _ => Operation::take(cost),
    }
}

fn modes() -> impl Strategy<Value = ChangeMode> {
    prop_oneof![
        Just(ChangeMode::KeepUsed),
        Just(ChangeMode::Proportional),
        Just(ChangeMode::KeepAvailable),
        Just(ChangeMode::Reset),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Call { after: u64, cost: u32, lease: u8 },
    Move { to: u32, mode: ChangeMode },
    Tier { to: u32, mode: ChangeMode },
    Return { mode: ChangeMode },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0_u64..400_000, 0_u32..6, 0_u8..8)
            .prop_map(|(after, cost, lease)| Step::Call { after, cost, lease }),
        1 => (1_u32..20, modes()).prop_map(|(to, mode)| Step::Move { to, mode }),
        1 => (1_u32..20, modes()).prop_map(|(to, mode)| Step::Tier { to, mode }),
        1 => modes().prop_map(|mode| Step::Return { mode }),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The limit of the one key that changes is the other way to say the same.
    #[test]
    fn a_key_that_moves_decides_like_a_limit_that_changes(
        kind in 0_usize..8,
        shadow in any::<bool>(),
        steps in steps(),
    ) {
        let mode = if shadow { Mode::Shadow } else { Mode::Enforce };
        let moved = Limiter::builder(policy(kind, 10)).mode(mode).build();
        let changed = Limiter::builder(policy(kind, 10)).mode(mode).build();
        let mut now = 1_000_000;
        for step in steps {
            let (a, b) = (moved.key("k").at(at(now)), changed.key("k").at(at(now)));
            match step {
                Step::Call { after, cost, lease } => {
                    now += after;
                    let operation = operation(kind, cost, lease);
                    let (a, b) = (a.at(at(now)), b.at(at(now)));
                    prop_assert_eq!(a.apply(&operation), b.apply(&operation));
                    // The key that was moved has been seen, which nothing else tells.
                    let last = a.state().last;
                    prop_assert_eq!(a.state(), tidegate::KeyState { last, ..b.state() });
                }
                Step::Move { to, mode } => {
                    a.set_override(policy(kind, to), mode).unwrap();
                    changed.change(policy(kind, to), mode, at(now));
                }
                Step::Tier { to, mode } => {
                    // A tier that the key is in already moves it as well.
                    let before = a.own_numbers().is_some_and(|own| own.tier.is_some());
                    moved.set_tier_policy("gold", policy(kind, to), mode, at(now)).unwrap();
                    if !before {
                        a.set_tier("gold", mode).unwrap();
                    }
                    changed.change(policy(kind, to), mode, at(now));
                }
                Step::Return { mode } => {
                    if a.clear_override(mode) {
                        changed.change(policy(kind, 10), mode, at(now));
                    }
                }
            }
        }
    }
}

#[test]
fn only_the_key_has_the_numbers() {
    let limit = Limiter::new(bucket(10, 20));
    let gold = limit.key("gold");
    gold.set_override(bucket(100, 200), KEEP).unwrap();
    assert_eq!(limit.try_take("gold", 1).limit, 200);
    assert_eq!(limit.try_take("other", 1).limit, 20);
    assert_eq!(limit.overrides(), 1);
    assert_eq!(gold.own_numbers().unwrap().policy, bucket(100, 200).into());
    assert!(gold.clear_override(KEEP));
    assert!(!gold.clear_override(KEEP));
    assert_eq!(limit.try_take("gold", 1).limit, 20);
    assert_eq!((limit.overrides(), gold.own_numbers()), (0, None));
}

#[test]
fn a_tier_that_changes_takes_its_keys_along_however_often() {
    let limit = Limiter::builder(bucket(0, 10))
        .tier("gold", bucket(0, 100))
        .unwrap()
        .build();
    let key = limit.key("k").at(at(0));
    key.try_take(4);
    key.set_tier("gold", KEEP).unwrap();
    assert_eq!(key.peek(1).remaining, 95);
    for capacity in (101..2_000).rev() {
        limit
            .set_tier_policy("gold", bucket(0, capacity), KEEP, at(0))
            .unwrap();
    }
    assert_eq!(key.peek(1).remaining, 96);
    assert_eq!(key.own_numbers().unwrap().tier.as_deref(), Some("gold"));
    assert_eq!(limit.tiers().len(), 1);
}

#[test]
fn a_change_of_the_limit_does_not_reach_keys_with_numbers_of_their_own() {
    let limit = Limiter::new(bucket(1, 10));
    limit
        .key("gold")
        .set_override(bucket(1, 100), KEEP)
        .unwrap();
    // More changes than a table can tell apart.
    for capacity in 11..60 {
        limit.change(bucket(1, capacity).into(), KEEP, at(0));
    }
    assert_eq!(limit.try_take("gold", 1).limit, 100);
    assert!(limit.key("gold").clear_override(KEEP));
    assert_eq!(limit.try_take("gold", 1).limit, 59);
}

#[test]
fn numbers_of_a_key_hold_in_whatever_mode_the_limit_is_put() {
    let limit = Limiter::new(bucket(1, 10));
    limit
        .key("gold")
        .set_override(bucket(1, 100), KEEP)
        .unwrap();
    for mode in [Mode::Shadow, Mode::Percent(50), Mode::Enforce] {
        limit.set_mode(mode);
        assert_eq!(limit.try_take("gold", 1).limit, 100);
    }
}

#[test]
fn a_key_with_numbers_of_its_own_is_neither_forgotten_nor_evicted_nor_reset_away() {
    let limit = Limiter::builder(bucket(1_000, 10))
        .max_keys(64)
        .when_full(WhenFull::Evict)
        .build();
    let gold = limit.key("gold");
    gold.at(at(0)).set_override(bucket(0, 100), KEEP).unwrap();
    gold.at(at(0)).reset();
    for number in 0..10_000_u64 {
        limit.try_take_at(number, 10, at(number));
    }
    limit.maintain(at(1 << 40), usize::MAX);
    assert_eq!(gold.own_numbers().unwrap().policy, bucket(0, 100).into());
    // Its own slot, and the one in shadow.
    assert_eq!(limit.len(), 2);
}

#[test]
fn an_exception_too_many_is_refused_and_changes_nothing() {
    let limit = Limiter::builder(bucket(1, 10)).max_overrides(2).build();
    let give = |key: u32| limit.key(key).set_override(bucket(1, 20), KEEP);
    assert!(give(1).is_ok() && give(2).is_ok());
    assert_eq!(give(3), Err(OverrideError::TooMany(2)));
    assert!(give(1).is_ok(), "it has its place already");
    assert!(limit.key(2).clear_override(KEEP));
    assert!(give(3).is_ok());
    assert_eq!(limit.overrides(), 2);

    let full = Limiter::builder(bucket(1, 10)).max_keys(1).build();
    full.try_take("first", 1);
    let refused = full.key("second").set_override(bucket(1, 20), KEEP);
    assert_eq!(refused, Err(OverrideError::TableFull));
    assert_eq!(full.overrides(), 0);
}

#[test]
fn wrong_numbers_and_unknown_tiers_are_named() {
    let limit = Limiter::new(bucket(1, 10));
    let log = SlidingLog::new(5, Micros::from_secs(1)).unwrap();
    let other = limit.key("k").set_override(log.clone(), KEEP).unwrap_err();
    assert_eq!(
        other.to_string(),
        "numbers for sliding_log cannot stand on a limit of token_bucket; make another limit for \
         these keys"
    );
    let unknown = limit.key("k").set_tier("gold", KEEP).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "there is no tier \"gold\"; define it first"
    );
    assert!(Limiter::builder(bucket(1, 10)).tier("gold", log).is_err());
    assert_eq!(limit.overrides(), 0);
}

#[test]
fn a_call_over_several_limits_sees_the_numbers_of_the_key() {
    let stage = Limiter::new(bucket(0, 1_000));
    let user = Limiter::new(bucket(0, 1));
    user.key("gold").set_override(bucket(0, 3), KEEP).unwrap();
    let passes = |name: &str| {
        let (all, name) = (Key::new("all"), Key::new(name));
        let member = |limiter, key| Member {
            limiter,
            key,
            demand: Demand::Take { cost: 1 },
        };
        let members = [member(&stage, &all), member(&user, &name)];
        let passed = |_: &u32| {
            let outcome = all_of(&members, at(0)).unwrap().unwrap();
            outcome.decision.is_allowed()
        };
        (0..10).filter(passed).count()
    };
    assert_eq!((passes("gold"), passes("other")), (3, 1));
    assert_eq!(stage.peek("all", 1).remaining, 1_000 - 4 - 1);
}

#[test]
fn nothing_is_forgiven_while_a_key_moves_to_and_fro_under_load() {
    const UNITS: u32 = 20_000;
    let limit = Limiter::builder(bucket(0, UNITS))
        .tier("same", bucket(0, UNITS))
        .unwrap()
        .build();
    let limit = Arc::new(limit);
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let limit = Arc::clone(&limit);
            std::thread::spawn(move || {
                let mut taken = 0;
                while limit.try_take("k", 1).is_allowed() {
                    taken += 1;
                }
                taken
            })
        })
        .collect();
    let key = limit.key("k");
    while key.peek(1).is_allowed() {
        key.set_tier("same", KEEP).unwrap();
        key.clear_override(KEEP);
    }
    let taken: u32 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
    assert_eq!(taken, UNITS);
}

#[test]
fn a_block_survives_a_move() {
    let limit = Limiter::new(bucket(1, 10));
    let key = limit.key("k").at(at(0));
    key.block(Duration::from_secs(60)).unwrap();
    key.set_override(bucket(1, 20), KEEP).unwrap();
    assert!(!key.try_take(1).is_allowed());
    key.clear_override(KEEP);
    assert!(!key.try_take(1).is_allowed());
    assert!(key.at(at(60_000_000)).try_take(1).is_allowed());
}

//! What the random tests have found, as timelines of a few calls: each was answered wrongly once.

use tidegate_conformance::model::{ModelMember, timestamp};
use tidegate_conformance::{Memory, Subject};
use tidegate_core::{
    Align, ChangeMode, Concurrency, Decision, Demand, FixedWindow, KeyState, LeakyBucket,
    LeaseGrant, LeaseId, Micros, Operation, Policy, Rate, Reply, Reservation, SlidingLog,
    TokenBucket, Wait, bounds,
};

const SECOND: i128 = 1_000_000;

fn store(policy: impl Into<Policy>) -> Memory {
    Memory::open(&[policy.into()])
}

fn ask(store: &mut Memory, now: i128, operation: Operation) -> Reply {
    store.apply(0, 1, timestamp(now), &operation).unwrap()
}

fn decide(store: &mut Memory, now: i128, operation: Operation) -> Decision {
    *ask(store, now, operation).decision().unwrap()
}

fn state(store: &mut Memory, now: i128) -> KeyState {
    match ask(store, now, Operation::State) {
        Reply::State(state) => state,
        other => panic!("a state was asked for: {other:?}"),
    }
}

fn acquire(id: u128) -> Operation {
    Operation::Take(Demand::Acquire {
        lease: LeaseId(id),
        weight: 1,
    })
}

fn grant(store: &mut Memory, now: i128, id: u128) -> LeaseGrant {
    match ask(store, now, acquire(id)) {
        Reply::Leased(_, Some(grant)) => grant,
        other => panic!("a lease was asked for: {other:?}"),
    }
}

fn per_second(capacity: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_second(1).unwrap(), capacity).unwrap()
}

#[test]
fn a_call_over_new_keys_of_one_limit_charges_each_of_them_once() {
    let mut store = store(per_second(5));
    for round in 0..200 {
        let members: Vec<ModelMember> = (0..4)
            .map(|key| ModelMember {
                limit: 0,
                key: round * 4 + key,
                demand: Demand::Take { cost: 1 },
                shadow: false,
            })
            .collect();
        let now = timestamp(i128::from(round) * 10 * SECOND);
        let joint = store.all_of(&members, now).unwrap().unwrap();
        let remaining: Vec<u32> = joint.members.iter().map(|one| one.remaining).collect();
        assert_eq!(remaining, [4, 4, 4, 4], "round {round}");
    }
}

#[test]
fn a_denied_call_over_several_limits_makes_no_key() {
    let mut store = store(per_second(5));
    let member = |key, cost| ModelMember {
        limit: 0,
        key,
        demand: Demand::Take { cost },
        shadow: false,
    };
    let members = [member(1, 1), member(2, 1), member(3, 6)];
    let joint = store.all_of(&members, timestamp(SECOND)).unwrap().unwrap();
    assert!(!joint.decision.is_allowed());
    assert_eq!(store.keys(0), 0);
}

#[test]
fn a_window_that_has_just_ended_is_kept_for_a_caller_whose_clock_is_behind() {
    let window = FixedWindow::new(1, Micros::from_secs(60), Align::Epoch).unwrap();
    let mut store = store(window);
    assert!(decide(&mut store, 59 * SECOND, Operation::take(1)).is_allowed());
    store.forget(timestamp(60 * SECOND));
    let late = decide(&mut store, 60 * SECOND - 2, Operation::take(1));
    assert!(!late.is_allowed(), "the same minute let a second one in");
    store.forget(timestamp(61 * SECOND));
    assert_eq!(store.keys(0), 0);
}

#[test]
fn a_state_tells_its_waits_from_the_callers_clock_and_counts_the_block() {
    let mut store = store(per_second(5));
    decide(&mut store, 10 * SECOND, Operation::take(1));
    assert_eq!(
        state(&mut store, 10 * SECOND - 300).reset_after,
        Wait::micros(1_000_300)
    );
    let period = Micros::from_secs(7);
    ask(&mut store, 10 * SECOND, Operation::Block { period });
    let blocked = state(&mut store, 10 * SECOND - 300);
    assert_eq!(blocked.blocked_for, Micros(7_000_300));
    assert_eq!(blocked.reset_after, Wait::micros(7_000_300));
}

#[test]
fn a_refund_of_nothing_does_not_move_a_keys_time() {
    let mut store = store(SlidingLog::new(3, Micros::from_secs(60)).unwrap());
    for now in [10, 11] {
        decide(&mut store, now * SECOND, Operation::take(1));
    }
    let reservation = Reservation {
        cost: 1,
        at: timestamp(5 * SECOND),
    };
    let cancelled = ask(&mut store, 12 * SECOND, Operation::Cancel { reservation });
    assert_eq!(cancelled, Reply::Refunded(0));
    assert_eq!(state(&mut store, 12 * SECOND).last, timestamp(11 * SECOND));
}

#[test]
fn a_window_from_first_use_keeps_its_age_when_the_clock_goes_back_to_the_epoch() {
    let window = FixedWindow::new(3, Micros::from_secs(60), Align::FirstUse).unwrap();
    let mut store = store(window);
    for now in [10, 40, 0] {
        decide(&mut store, now * SECOND, Operation::take(1));
    }
    let denied = decide(&mut store, 0, Operation::take(1));
    assert_eq!(denied.retry_after, Wait::micros(30_000_000));
}

#[test]
fn a_fencing_token_rises_across_a_reset_in_the_same_microsecond() {
    let mut store = store(Concurrency::new(2, Micros::from_secs(60), None).unwrap());
    let before = grant(&mut store, SECOND, 1).fencing_token;
    ask(&mut store, SECOND, Operation::Reset);
    assert!(grant(&mut store, SECOND, 2).fencing_token > before);
}

#[test]
fn under_a_block_a_lease_is_told_to_come_back_when_it_can_be_had() {
    let mut store = store(Concurrency::new(1, Micros::from_secs(10), None).unwrap());
    grant(&mut store, SECOND, 1);
    grant_after_release(&mut store);
    let period = Micros::from_secs(60);
    ask(&mut store, 2 * SECOND, Operation::Block { period });
    let Reply::Leased(denied, None) = ask(&mut store, 2 * SECOND, acquire(2)) else {
        panic!("a blocked key grants nothing")
    };
    assert_eq!(denied.retry_after, Wait::micros(60_000_000));
    // Its lease will have expired by then, and one permit is too few for two.
    let twice = Operation::Take(Demand::Acquire {
        lease: LeaseId(2),
        weight: 2,
    });
    assert_eq!(
        decide(&mut store, 2 * SECOND, twice).retry_after,
        Wait::NEVER
    );
}

fn grant_after_release(store: &mut Memory) {
    let lease = LeaseId(1);
    assert_eq!(
        ask(store, SECOND, Operation::Release { lease }),
        Reply::Released(true)
    );
    grant(store, SECOND, 2);
}

#[test]
fn an_idle_key_gains_from_a_raised_limit_whether_or_not_it_was_forgotten() {
    for forgotten in [false, true] {
        let mut store = store(per_second(5));
        decide(&mut store, SECOND, Operation::take(1));
        if forgotten {
            store.forget(timestamp(60 * SECOND));
            assert_eq!(store.keys(0), 0);
        }
        let raised = per_second(10).into();
        store.change(
            0,
            &raised,
            ChangeMode::KeepAvailable,
            timestamp(60 * SECOND),
        );
        assert_eq!(state(&mut store, 60 * SECOND).remaining, 10);
    }
}

#[test]
fn a_reservation_too_far_ahead_is_told_when_it_is_near_enough() {
    let ten_years = 315_576_000_000_000;
    let bucket = TokenBucket::new(Rate::new(1, ten_years).unwrap(), 100).unwrap();
    let mut store = store(bucket);
    decide(&mut store, SECOND, Operation::take(100));
    let reserve = Operation::Reserve {
        cost: 29,
        max_wait: Micros(ten_years),
    };
    // Paid back in 290 years, which has no number; within ten years of that in 280, which has.
    let denied = decide(&mut store, SECOND, reserve);
    assert_eq!(denied.retry_after, Wait::micros(28 * ten_years));
}

#[test]
fn nobody_is_let_in_for_a_delay_of_never() {
    let once_in_ten_years = Rate::new(1, 315_576_000_000_000).unwrap();
    let bucket = TokenBucket::new(once_in_ten_years, 100).unwrap();
    let queue = LeakyBucket::new(once_in_ten_years, 100, 1, None).unwrap();
    let patient = Operation::Reserve {
        cost: 1,
        max_wait: Micros(u64::MAX),
    };
    for (policy, first, next) in [
        (Policy::from(bucket), Operation::take(100), patient),
        (queue.into(), Operation::take(1), Operation::take(1)),
    ] {
        let mut store = store(policy);
        decide(&mut store, SECOND, first);
        let mut let_in = 0;
        // By a clock that is nearly a second behind, too.
        while let decision = decide(&mut store, 1, next)
            && decision.is_allowed()
        {
            let_in += 1;
            assert!(!decision.delay.is_never(), "after {let_in}");
        }
        assert_eq!(let_in, 28, "once in ten years, 285 years long");
    }
}

#[test]
fn a_wait_that_a_late_clock_makes_too_long_for_a_number_is_never() {
    // 6361 tokens at this rate come back in exactly 2^53 - 1 us.
    let rate = Rate::new(1, 1_416_003_655_831).unwrap();
    let mut store = store(TokenBucket::new(rate, 6_361).unwrap());
    let full = decide(&mut store, SECOND, Operation::take(6_361));
    assert_eq!(full.reset_after, Wait::micros((1 << 53) - 1));
    let behind = state(&mut store, SECOND - 1);
    assert_eq!(behind.reset_after, Wait::NEVER);
}

#[test]
fn what_leaves_a_queue_is_counted_with_departures_on_whole_microseconds() {
    let rate = Rate::per_second(3).unwrap();
    let queue = LeakyBucket::new(rate, 10, 1, None).unwrap();
    let mut store = store(queue.clone());
    let leaves: Vec<u64> = (0..4)
        .filter_map(|_| {
            decide(&mut store, SECOND, Operation::take(1))
                .delay
                .as_micros()
        })
        .collect();
    assert_eq!(leaves, [0, 333_334, 666_667, 1_000_000]);
    // The second and the third are 333 333 us apart, so a window of 333 334 us holds both.
    assert_eq!(bounds::admitted(&queue.into(), Micros(333_334)), Some(2));
}

#[test]
fn a_key_that_sleeps_through_any_number_of_changes_keeps_what_it_used() {
    let numbers = |change: u64| {
        let rate = Rate::new(1, 1_000_000_000 * (change + 1)).unwrap();
        TokenBucket::new(rate, 5).unwrap()
    };
    for (before, after) in (0..20).flat_map(|before| (0..40).map(move |after| (before, after))) {
        let mut store = store(numbers(0));
        for change in 1..=before + after {
            if change == before + 1 {
                decide(&mut store, SECOND, Operation::take(3));
            }
            let new = numbers(change).into();
            assert!(store.change(0, &new, ChangeMode::KeepUsed, timestamp(SECOND)));
        }
        let used = state(&mut store, SECOND).used;
        let expected = if after == 0 { 0 } else { 3 };
        assert_eq!(
            used, expected,
            "{before} changes, a charge, {after} changes"
        );
    }
}

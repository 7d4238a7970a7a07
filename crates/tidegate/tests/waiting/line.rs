//! The promises of a line of callers, one by one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    ChangeMode, Clock as _, Concurrency, Decision, FixedWindow, IntervalBucket, Key, KeyState,
    LeakyBucket, Limiter, ManualClock, Micros, Mode, Operation, Policy, Rate, SlidingLog,
    StrictWindow, TokenBucket, WaitError, WaitOptions, WhenFull,
};

use super::simulation::{Simulation, at};

type Waited = Result<Decision, WaitError>;

const START: u64 = 10_000_000;

fn bucket(per_second: u32, capacity: u32) -> Policy {
    let rate = Rate::per_second(per_second).unwrap();
    TokenBucket::new(rate, capacity).unwrap().into()
}

fn log(limit: u32, period: Micros) -> Policy {
    SlidingLog::new(limit, period).unwrap().into()
}

fn limiter(policy: impl Into<Policy>, clock: &Arc<ManualClock>) -> Limiter {
    Limiter::builder(policy).clock(clock.clone()).build()
}

fn state(limiter: &Limiter, now: u64) -> KeyState {
    limiter.key("key").at(at(now)).state()
}

/// One of each algorithm that counts units.
fn policies() -> Vec<Policy> {
    let rate = Rate::new(3, 10_000).unwrap();
    let period = Micros(10_000);
    vec![
        TokenBucket::new(rate, 4).unwrap().into(),
        TokenBucket::new(rate, 1).unwrap().into(),
        IntervalBucket::new(rate, 4).unwrap().into(),
        LeakyBucket::new(rate, 5, 2, None).unwrap().into(),
        FixedWindow::new(4, period, tidegate::Align::FirstUse)
            .unwrap()
            .into(),
        log(4, period),
        StrictWindow::new(4, period, 5).unwrap().into(),
    ]
}

fn patient(limiter: &Limiter, cost: u32) -> impl Future<Output = Waited> + 'static {
    let limiter = limiter.clone();
    async move { limiter.until_ready("key", cost).await }
}

fn at_most(limiter: &Limiter, cost: u32, wait: u64) -> impl Future<Output = Waited> + 'static {
    with(
        limiter,
        cost,
        WaitOptions::new().max_wait(Duration::from_micros(wait)),
    )
}

fn with(
    limiter: &Limiter,
    cost: u32,
    options: WaitOptions,
) -> impl Future<Output = Waited> + 'static {
    let limiter = limiter.clone();
    async move { limiter.until_ready_with("key", cost, &options).await }
}

fn served_at(simulation: &Simulation<'_, Waited>, task: usize) -> Option<u64> {
    simulation.done(task).map(|(result, when)| {
        assert!(result.is_ok(), "{result:?}");
        when
    })
}

#[test]
fn a_large_cost_is_not_passed_by_small_ones() {
    let mut simulation = Simulation::new(START, 1);
    let limiter = limiter(bucket(1, 5), &simulation.clock);
    simulation.spawn(patient(&limiter, 5));
    let large = simulation.spawn(patient(&limiter, 5));
    let small = simulation.spawn(patient(&limiter, 1));
    simulation.pass_to(START + 4_999_999);
    assert!(simulation.is_waiting(large) && simulation.is_waiting(small));
    simulation.finish();
    assert_eq!(served_at(&simulation, large), Some(START + 5_000_000));
    assert_eq!(served_at(&simulation, small), Some(START + 6_000_000));
}

#[test]
fn each_caller_is_woken_once_and_passes() {
    for policy in policies() {
        let mut simulation = Simulation::new(START, 2);
        let limiter = limiter(policy, &simulation.clock);
        let callers: Vec<usize> = (0..50)
            .map(|_| simulation.spawn(patient(&limiter, 1)))
            .collect();
        simulation.finish();
        for caller in callers {
            assert!(served_at(&simulation, caller).is_some());
            assert!(simulation.polls(caller) <= 2, "{:?}", limiter.policy());
        }
    }
}

#[test]
fn a_future_does_nothing_before_it_is_polled() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let limiter = limiter(bucket(1, 1), &clock);
    drop(patient(&limiter, 1));
    assert_eq!((limiter.waiting(), limiter.len()), (0, 0));
}

#[test]
fn a_caller_that_is_ready_but_not_polled_holds_up_nobody() {
    for policy in policies() {
        let mut simulation = Simulation::new(START, 3);
        let limiter = limiter(policy.clone(), &simulation.clock);
        let mut twin = Simulation::new(START, 3);
        let undisturbed = self::limiter(policy, &twin.clock);
        let mut pairs = Vec::new();
        for _ in 0..12 {
            let caller = simulation.spawn_idle(patient(&limiter, 1));
            pairs.push((caller, twin.spawn(patient(&undisturbed, 1))));
        }
        let asleep = 6;
        assert!(simulation.is_waiting(asleep));
        simulation.pass_to_but(START + 100_000, asleep);
        twin.finish();
        for (caller, expected) in pairs {
            if caller != asleep {
                let (got, expected) = (served_at(&simulation, caller), served_at(&twin, expected));
                assert_eq!(got, expected, "caller {caller} of {:?}", limiter.policy());
            }
        }
        // Its turn came long ago, and still counts.
        simulation.run();
        let (result, _) = simulation.done(asleep).unwrap();
        let (expected, _) = twin.done(asleep).unwrap();
        assert_eq!(result.as_ref().unwrap().at, expected.as_ref().unwrap().at);
    }
}

/// Random callers of which many give up: some while others are first, some while first, some when
/// they were served and do not know it yet. Afterwards the key is as if only those who passed had
/// ever come.
#[test]
fn who_gives_up_leaves_no_trace() {
    let seed = 42;
    for run in 0..400 {
        let mut rng = Rng::with_seed(seed + run);
        let policies = policies();
        let policy = policies[usize::try_from(run).unwrap() % policies.len()].clone();
        let mut simulation = Simulation::new(START, run);
        let limiter = limiter(policy.clone(), &simulation.clock);
        let mut callers: Vec<(usize, u32)> = Vec::new();
        for _ in 0..40 {
            match rng.u32(..6) {
                0..3 => {
                    let cost = rng.u32(1..=limiter.peek("other", 0).limit.min(4));
                    let caller = simulation.spawn(patient(&limiter, cost));
                    callers.push((caller, cost));
                }
                3 if !callers.is_empty() => {
                    simulation.give_up(callers[rng.usize(..callers.len())].0);
                }
                4 if !callers.is_empty() => {
                    // One that wakes and is dropped before it looks.
                    let caller = callers[rng.usize(..callers.len())].0;
                    let until = simulation.now() + rng.u64(..4_000);
                    simulation.pass_to_but(until, caller);
                    simulation.give_up(caller);
                }
                _ => {
                    let until = simulation.now() + rng.u64(..8_000);
                    simulation.pass_to(until);
                }
            }
        }
        for (caller, _) in &callers {
            simulation.give_up(*caller);
        }
        assert_eq!(limiter.waiting(), 0);
        let twin = self::limiter(policy.clone(), &simulation.clock);
        let mut passed: Vec<(u64, u32)> = callers
            .iter()
            .filter_map(|(caller, cost)| Some((served_at(&simulation, *caller)?, *cost)))
            .collect();
        passed.sort_unstable();
        let is_queue = matches!(policy, Policy::LeakyBucket(_));
        for (when, cost) in passed {
            if !is_queue {
                let decision = twin.try_take_at("key", cost, at(when));
                assert!(decision.is_allowed(), "run {run}: {policy:?}");
            }
        }
        if !is_queue {
            let now = simulation.now();
            let (got, expected) = (state(&limiter, now), state(&twin, now));
            assert_eq!(
                (got.used, got.remaining, got.reset_after),
                (expected.used, expected.remaining, expected.reset_after),
                "run {run}: {policy:?}"
            );
        }
    }
}

#[test]
fn a_wait_that_is_too_long_is_refused_at_entry_and_costs_nothing() {
    for policy in policies() {
        let mut simulation = Simulation::new(START, 4);
        let limiter = limiter(policy, &simulation.clock);
        let mut last = START;
        while simulation.now() == START && last == START {
            let caller = simulation.spawn(patient(&limiter, 1));
            if simulation.is_waiting(caller) {
                last = START + 1;
            }
        }
        // One waits. A second one is told its wait; asked for a microsecond less it is refused.
        let probe = simulation.spawn(at_most(&limiter, 1, 0));
        let Err(WaitError::TooLong { known, max_wait }) = simulation.take(probe) else {
            panic!("{:?} lets pass", limiter.policy());
        };
        assert_eq!(max_wait, Micros::ZERO);
        let needed = known.retry_after.as_micros().unwrap();
        let before = (state(&limiter, START), limiter.waiting());
        let refused = simulation.spawn(at_most(&limiter, 1, needed - 1));
        assert!(matches!(
            simulation.done(refused),
            Some((Err(WaitError::TooLong { .. }), START))
        ));
        assert_eq!(before, (state(&limiter, START), limiter.waiting()));
        let accepted = simulation.spawn(at_most(&limiter, 1, needed));
        assert!(simulation.is_waiting(accepted), "{:?}", limiter.policy());
        simulation.finish();
        assert_eq!(served_at(&simulation, accepted), Some(START + needed));
    }
}

#[test]
fn jitter_delays_the_caller_and_not_its_charge_nor_the_next_one() {
    let mut simulation = Simulation::new(START, 5);
    let limiter = limiter(bucket(1, 1), &simulation.clock);
    let options = WaitOptions::new()
        .jitter(Duration::from_millis(700))
        .jitter_seed(9);
    let at_once = simulation.spawn(with(&limiter, 1, options));
    let jittered = simulation.spawn(with(&limiter, 1, options));
    let next = simulation.spawn(patient(&limiter, 1));
    assert_eq!(served_at(&simulation, at_once), Some(START));
    simulation.finish();
    let (result, when) = simulation.done(jittered).unwrap();
    assert_eq!(result.as_ref().unwrap().at, at(START + 1_000_000));
    assert!((START + 1_000_000..=START + 1_700_000).contains(&when));
    assert_eq!(served_at(&simulation, next), Some(START + 2_000_000));
    // It keeps within the longest wait.
    let limited = options.max_wait(Duration::from_secs(1));
    let kept = simulation.spawn(with(&limiter, 1, limited));
    let begun = simulation.now();
    simulation.finish();
    let when = served_at(&simulation, kept).unwrap();
    assert!(when <= begun + 1_000_000, "{when}");
}

#[test]
fn who_gives_up_during_its_jitter_gives_its_units_back() {
    let mut simulation = Simulation::new(START, 6);
    let limiter = limiter(bucket(1, 1), &simulation.clock);
    simulation.spawn(patient(&limiter, 1));
    let options = WaitOptions::new()
        .jitter(Duration::from_secs(100))
        .jitter_seed(1);
    let jittered = simulation.spawn(with(&limiter, 1, options));
    simulation.pass_to(START + 1_000_000);
    assert_eq!(
        (limiter.waiting(), state(&limiter, START + 1_000_000).used),
        (0, 1)
    );
    simulation.give_up(jittered);
    assert_eq!(state(&limiter, START + 1_000_000).used, 0);
}

#[test]
fn so_many_wait_and_no_more() {
    let mut simulation = Simulation::new(START, 7);
    let limiter = limiter(bucket(1, 1), &simulation.clock);
    simulation.spawn(patient(&limiter, 1));
    let options = WaitOptions::new().max_waiters_per_key(2).max_waiters(3);
    let waiting: Vec<usize> = (0..2)
        .map(|_| simulation.spawn(with(&limiter, 1, options)))
        .collect();
    let refused = simulation.spawn(with(&limiter, 1, options));
    let expected = WaitError::QueueFull {
        known: limiter.peek("key", 1),
        waiting: 2,
    };
    assert_eq!(simulation.take(refused).as_ref(), Err(&expected));
    // Another key has a line of its own, up to the bound over all.
    let other = |key: &'static str| {
        let limiter = limiter.clone();
        async move { limiter.until_ready_with(&Key::new(key), 1, &options).await }
    };
    for _ in 0..2 {
        simulation.spawn(other("second"));
    }
    let refused = simulation.spawn(other("third"));
    assert!(
        simulation.take(refused).is_ok(),
        "who need not wait is never too much"
    );
    let refused = simulation.spawn(other("third"));
    assert!(matches!(
        simulation.take(refused),
        Err(WaitError::QueueFull { waiting: 3, .. })
    ));
    simulation.give_up(waiting[0]);
    let accepted = simulation.spawn(with(&limiter, 1, options));
    assert!(simulation.is_waiting(accepted));
    simulation.finish();
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn what_can_never_be_fails_at_once() {
    let mut simulation = Simulation::new(START, 8);
    let limiter = limiter(bucket(1, 3), &simulation.clock);
    let above = simulation.spawn(patient(&limiter, 4));
    assert!(matches!(
        simulation.take(above),
        Err(WaitError::Impossible(_))
    ));
    // Also behind others, and where nothing ever comes back.
    simulation.spawn(patient(&limiter, 3));
    simulation.spawn(patient(&limiter, 1));
    let above = simulation.spawn(patient(&limiter, 4));
    assert!(matches!(
        simulation.take(above),
        Err(WaitError::Impossible(_))
    ));
    let dead = self::limiter(bucket(0, 1), &simulation.clock);
    simulation.spawn(patient(&dead, 1));
    let never = simulation.spawn(patient(&dead, 1));
    assert!(matches!(
        simulation.take(never),
        Err(WaitError::Impossible(_))
    ));
    let leases = Concurrency::new(1, Micros::from_secs(1), None).unwrap();
    let leases = self::limiter(leases, &simulation.clock);
    let unsupported = simulation.spawn(patient(&leases, 1));
    let Err(error @ WaitError::Unsupported(_)) = simulation.take(unsupported) else {
        panic!("a concurrency limit has no units");
    };
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("use acquire"), "{source}");
}

#[test]
fn limits_that_are_not_enforced_let_pass_at_once() {
    let mut simulation = Simulation::new(START, 9);
    for mode in [Mode::Shadow, Mode::Off, Mode::Percent(0)] {
        let limiter = limiter(bucket(1, 1), &simulation.clock);
        limiter.set_mode(mode);
        for _ in 0..3 {
            let caller = simulation.spawn(patient(&limiter, 1));
            let decision = simulation.take(caller).unwrap();
            assert!(decision.shadow, "{mode:?}");
        }
    }
    // Who waits when the limit is switched off passes then.
    let limiter = limiter(bucket(1, 1), &simulation.clock);
    let callers: Vec<usize> = (0..3)
        .map(|_| simulation.spawn(patient(&limiter, 1)))
        .collect();
    limiter.set_mode(Mode::Off);
    simulation.run();
    assert_eq!(served_at(&simulation, callers[2]), Some(START));
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn nobody_takes_the_tokens_that_the_first_in_line_waits_for() {
    let mut simulation = Simulation::new(START, 10);
    let limiter = limiter(bucket(1, 10), &simulation.clock);
    assert!(limiter.try_take("key", 10).is_allowed());
    let waiting = simulation.spawn(patient(&limiter, 10));
    for second in 1..10 {
        simulation.pass_to(START + second * 1_000_000);
        assert!(!limiter.try_take("key", 1).is_allowed());
    }
    simulation.finish();
    assert_eq!(served_at(&simulation, waiting), Some(START + 10_000_000));
}

#[test]
fn who_does_not_wait_can_be_quicker_at_a_window_and_no_wait_is_forgotten_for_it() {
    let mut simulation = Simulation::new(START, 11);
    let limiter = limiter(log(1, Micros::from_secs(1)), &simulation.clock);
    assert!(limiter.try_take("key", 1).is_allowed());
    let first = simulation.spawn_idle(patient(&limiter, 1));
    let second = simulation.spawn_idle(patient(&limiter, 1));
    simulation.clock.set(at(START + 1_000_000));
    assert!(limiter.try_take("key", 1).is_allowed());
    simulation.finish();
    assert_eq!(served_at(&simulation, first), Some(START + 2_000_000));
    assert_eq!(served_at(&simulation, second), Some(START + 3_000_000));
}

#[test]
fn a_wait_goes_on_for_its_rest_when_the_clock_is_set_back() {
    for policy in [bucket(1, 1), log(1, Micros::from_secs(1))] {
        let mut simulation = Simulation::new(START, 12);
        let limiter = limiter(policy, &simulation.clock);
        simulation.spawn(patient(&limiter, 1));
        let first = simulation.spawn(patient(&limiter, 1));
        let second = simulation.spawn(patient(&limiter, 1));
        simulation.pass_to(START + 400_000);
        let back = 3_000_000;
        simulation.clock.set(at(back));
        simulation.run();
        simulation.finish();
        // The key saw time last at the start: its own clock stands there until it goes on.
        let (first, second) = (
            served_at(&simulation, first).unwrap(),
            served_at(&simulation, second).unwrap(),
        );
        assert_eq!(first, back + 1_000_000);
        assert_eq!(second, back + 2_000_000);
    }
}

#[test]
fn another_algorithm_takes_over_those_who_wait() {
    let mut simulation = Simulation::new(START, 13);
    let limiter = limiter(bucket(1, 2), &simulation.clock);
    simulation.spawn(patient(&limiter, 2));
    let callers: Vec<usize> = (0..3)
        .map(|_| simulation.spawn(patient(&limiter, 1)))
        .collect();
    let now = simulation.clock.now();
    limiter.change(log(2, Micros::from_secs(60)), ChangeMode::KeepUsed, now);
    simulation.run();
    assert_eq!(served_at(&simulation, callers[0]), Some(START));
    assert_eq!(served_at(&simulation, callers[1]), Some(START));
    assert!(simulation.is_waiting(callers[2]));
    let leases = Concurrency::new(1, Micros::from_secs(1), None).unwrap();
    limiter.change(leases.into(), ChangeMode::KeepUsed, now);
    simulation.run();
    assert!(matches!(
        simulation.take(callers[2]),
        Err(WaitError::Unsupported(_))
    ));
}

#[test]
fn a_paced_queue_lets_its_callers_go_evenly_and_fills_the_place_of_one_that_leaves() {
    let mut simulation = Simulation::new(START, 14);
    let queue = LeakyBucket::new(Rate::per_second(10).unwrap(), 3, 1, None).unwrap();
    let limiter = limiter(queue, &simulation.clock);
    let callers: Vec<usize> = (0..8)
        .map(|_| simulation.spawn(patient(&limiter, 1)))
        .collect();
    simulation.pass_to(START + 50_000);
    simulation.give_up(callers[1]);
    simulation.give_up(callers[4]);
    simulation.finish();
    let left: Vec<u64> = callers
        .iter()
        .filter_map(|caller| served_at(&simulation, *caller))
        .map(|when| when - START)
        .collect();
    assert_eq!(left, [0, 100_000, 200_000, 300_000, 400_000, 500_000]);
}

#[test]
fn a_place_in_a_queue_that_others_have_booked_behind_is_not_given_away_twice() {
    let mut simulation = Simulation::new(START, 15);
    let queue = LeakyBucket::new(Rate::per_second(10).unwrap(), 9, 1, None).unwrap();
    let limiter = limiter(queue, &simulation.clock);
    simulation.spawn(patient(&limiter, 1));
    let leaves = simulation.spawn(patient(&limiter, 1));
    let booked = limiter.try_take("key", 1);
    assert_eq!(booked.delay.as_micros(), Some(200_000));
    simulation.give_up(leaves);
    let next = simulation.spawn(patient(&limiter, 1));
    simulation.finish();
    assert_eq!(served_at(&simulation, next), Some(START + 300_000));
}

#[test]
fn a_full_table_is_asked_again_until_it_has_a_place() {
    let mut simulation = Simulation::new(START, 16);
    let limiter = Limiter::builder(bucket(1, 1))
        .clock(simulation.clock.clone())
        .max_keys(1)
        .when_full(WhenFull::DenyNew)
        .build();
    assert!(limiter.try_take("other", 1).is_allowed());
    let impatient = simulation.spawn(at_most(&limiter, 1, 500_000));
    assert!(
        simulation
            .done(impatient)
            .is_some_and(|(result, _)| result.is_err())
    );
    let waiting = simulation.spawn(patient(&limiter, 1));
    assert!(simulation.is_waiting(waiting));
    simulation.finish();
    // The other key has been fresh for a second by then.
    assert_eq!(served_at(&simulation, waiting), Some(START + 2_000_000));
}

#[test]
fn a_denied_caller_that_waits_is_not_charged_where_denials_are() {
    let mut simulation = Simulation::new(START, 17);
    let limiter = Limiter::builder(bucket(1, 1))
        .clock(simulation.clock.clone())
        .charge_denied(true)
        .build();
    let callers: Vec<usize> = (0..4)
        .map(|_| simulation.spawn(patient(&limiter, 1)))
        .collect();
    simulation.finish();
    assert_eq!(served_at(&simulation, callers[3]), Some(START + 3_000_000));
}

#[test]
fn units_that_come_back_serve_those_who_wait_at_once() {
    let mut simulation = Simulation::new(START, 18);
    for policy in [bucket(1, 5), log(5, Micros::from_secs(9))] {
        let limiter = limiter(policy, &simulation.clock);
        simulation.spawn(patient(&limiter, 5));
        let callers: Vec<usize> = (0..2)
            .map(|_| simulation.spawn(patient(&limiter, 2)))
            .collect();
        let now = simulation.clock.now();
        let refund = Operation::Refund { cost: 2 };
        limiter.apply(&Key::new("key"), now, &refund).unwrap();
        simulation.run();
        assert_eq!(served_at(&simulation, callers[0]), Some(START));
        assert!(simulation.is_waiting(callers[1]));
    }
}

#[test]
fn an_observer_is_told_once_of_a_wait_and_what_came_of_it() {
    let mut simulation = Simulation::new(START, 19);
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let limiter = Limiter::builder(bucket(1, 1))
        .clock(simulation.clock.clone())
        .observer(move |_: &str, decision: &Decision| {
            seen.lock().unwrap().push(decision.is_within_limit());
        })
        .build();
    for _ in 0..3 {
        simulation.spawn(patient(&limiter, 1));
    }
    simulation.spawn(at_most(&limiter, 1, 2_999_999));
    simulation.finish();
    assert_eq!(*told.lock().unwrap(), [true, false, true, true]);
}

#[test]
fn numbers_of_a_key_reach_whoever_waits_for_it() {
    let mut simulation = Simulation::new(START, 20);
    let limiter = limiter(bucket(1, 1), &simulation.clock);
    let callers: Vec<usize> = (0..4)
        .map(|_| simulation.spawn(patient(&limiter, 1)))
        .collect();
    limiter
        .key("key")
        .set_override(bucket(1, 3), ChangeMode::KeepUsed)
        .unwrap();
    simulation.run();
    // One was used; of three there are two left.
    assert_eq!(served_at(&simulation, callers[2]), Some(START));
    simulation.finish();
    assert_eq!(served_at(&simulation, callers[3]), Some(START + 1_000_000));
    assert!(limiter.key("key").clear_override(ChangeMode::Reset));
}

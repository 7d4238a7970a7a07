//! Several limits at once, with leases as guards, tried and waited for.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    Admission, AdmitError, Concurrency, Key, LeakyBucket, Limiter, ManualClock, Member, Micros,
    Mode, Policy, Rate, SlidingLog, TokenBucket, WaitError, WaitOptions, admit_with, try_admit,
};

use super::simulation::{Simulation, at};

type Waited = Result<Admission, AdmitError>;

const START: u64 = 10_000_000;
const SECOND: u64 = 1_000_000;

fn limiter(policy: impl Into<Policy>, clock: &Arc<ManualClock>) -> Limiter {
    Limiter::builder(policy).clock(clock.clone()).build()
}

fn bucket(per_second: u32, capacity: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_second(per_second).unwrap(), capacity).unwrap()
}

fn leases(limit: u32) -> Concurrency {
    Concurrency::new(limit, Micros::from_secs(30), None).unwrap()
}

fn used(limiter: &Limiter) -> u32 {
    limiter.key("key").state().used
}

/// What a caller wants of a limiter.
#[derive(Clone, Copy)]
enum Want {
    Units(u32),
    Permits(u32),
}

/// Waits until all of them admit it.
async fn wanting(wants: Vec<(Limiter, Want)>, options: WaitOptions) -> Waited {
    let key = Key::new("key");
    let members: Vec<Member<'_>> = wants
        .iter()
        .map(|(limiter, want)| match want {
            Want::Units(cost) => Member::take(limiter, &key, *cost),
            Want::Permits(weight) => Member::acquire(limiter, &key, *weight),
        })
        .collect();
    admit_with(&members, &options).await
}

/// Waits for a unit of a rate and a lease, in one order or the other.
fn both(rate: &Limiter, workers: &Limiter, reversed: bool) -> impl Future<Output = Waited> + use<> {
    both_within(rate, workers, reversed, WaitOptions::new())
}

fn both_within(
    rate: &Limiter,
    workers: &Limiter,
    reversed: bool,
    options: WaitOptions,
) -> impl Future<Output = Waited> + use<> {
    let mut wants = vec![
        (rate.clone(), Want::Units(1)),
        (workers.clone(), Want::Permits(1)),
    ];
    if reversed {
        wants.reverse();
    }
    wanting(wants, options)
}

fn admitted_at(simulation: &Simulation<'_, Waited>, task: usize) -> Option<u64> {
    let (result, when) = simulation.done(task)?;
    assert!(result.is_ok());
    Some(when)
}

#[test]
fn what_is_refused_is_charged_nowhere_and_holds_nothing() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let (rate, workers) = (limiter(bucket(1, 10), &clock), limiter(leases(1), &clock));
    let key = Key::new("key");
    let members = [
        Member::take(&rate, &key, 2),
        Member::acquire(&workers, &key, 1),
    ];
    let admission = try_admit(&members).unwrap();
    assert!(admission.is_live());
    assert_eq!(
        (admission.leases().count(), admission.members().len()),
        (1, 2)
    );
    for _ in 0..5 {
        let Err(WaitError::Denied(outcome)) = try_admit(&members) else {
            panic!("one worker, and it is busy");
        };
        assert_eq!(outcome.decision.binding, 1);
    }
    assert_eq!((used(&rate), used(&workers)), (2, 1));
    drop(admission);
    // The lease is back, the units are spent.
    assert_eq!((used(&rate), used(&workers)), (2, 0));
    // The same members again: a lease of its own.
    let (first, second) = (limiter(leases(2), &clock), try_admit(&members).unwrap());
    let twice = [Member::acquire(&first, &key, 1)];
    let (a, b) = (try_admit(&twice).unwrap(), try_admit(&twice).unwrap());
    assert_ne!(a.lease(0).unwrap().id(), b.lease(0).unwrap().id());
    drop((a, second));
    assert!(b.is_live());
    assert_eq!(used(&first), 1);
}

#[test]
fn no_members_and_what_can_never_be_are_errors() {
    let clock = Arc::new(ManualClock::new(at(START)));
    assert!(matches!(try_admit(&[]), Err(WaitError::NoMembers)));
    let (rate, workers) = (limiter(bucket(1, 1), &clock), limiter(leases(1), &clock));
    let key = Key::new("key");
    let above = [
        Member::take(&rate, &key, 1),
        Member::acquire(&workers, &key, 2),
    ];
    assert!(matches!(try_admit(&above), Err(WaitError::Impossible(_))));
    let wrong = [Member::take(&workers, &key, 1)];
    assert!(matches!(try_admit(&wrong), Err(WaitError::Unsupported(_))));
    assert_eq!(used(&rate), 0);
}

#[test]
fn callers_with_the_same_limits_are_admitted_in_the_order_they_came() {
    for seed in 0..20 {
        let clock = Simulation::<Waited>::new(START, seed);
        let clock = clock.clock;
        let (rate, workers) = (limiter(bucket(2, 1), &clock), limiter(leases(2), &clock));
        let mut simulation = Simulation::new(START, seed);
        simulation.clock = clock;
        let mut rng = Rng::with_seed(seed);
        let mut order = Vec::new();
        let mut waiting: Vec<usize> = (0..20)
            .map(|_| simulation.spawn(both(&rate, &workers, rng.bool())))
            .collect();
        let expected = waiting.clone();
        let mut at_work: Vec<(usize, u64)> = Vec::new();
        for _ in 0..2_000 {
            simulation.run();
            let now = simulation.now();
            let done: Vec<usize> = waiting
                .iter()
                .copied()
                .filter(|task| simulation.done(*task).is_some())
                .collect();
            waiting.retain(|task| !done.contains(task));
            for task in done {
                order.push(task);
                at_work.push((task, now + rng.u64(1..3 * SECOND)));
            }
            assert!(at_work.len() <= 2, "seed {seed}");
            let until = now + 50_000;
            for (task, _) in at_work.extract_if(.., |(_, end)| *end <= until) {
                drop(simulation.take(task).unwrap());
            }
            simulation.pass_to(until);
        }
        assert_eq!(order, expected, "seed {seed}");
        assert_eq!((rate.waiting(), workers.waiting()), (0, 0));
    }
}

#[test]
fn whoever_waits_for_one_limit_holds_nothing_of_the_other() {
    let mut simulation = Simulation::new(START, 1);
    let clock = simulation.clock.clone();
    let (rate, workers) = (limiter(bucket(1, 1), &clock), limiter(leases(1), &clock));
    let worker = workers.try_acquire("key", 1).unwrap();
    let waiting = simulation.spawn(both(&rate, &workers, false));
    assert!(simulation.is_waiting(waiting));
    assert_eq!(used(&rate), 0);
    assert!(rate.try_take("key", 1).is_allowed(), "nobody holds it");
    drop(worker);
    simulation.run();
    // Now it waits for the rate, and holds no worker meanwhile.
    assert!(simulation.is_waiting(waiting));
    assert_eq!(used(&workers), 0);
    simulation.finish();
    assert_eq!(admitted_at(&simulation, waiting), Some(START + SECOND));
}

#[test]
fn a_caller_that_goes_from_line_to_line_keeps_its_place() {
    let mut simulation = Simulation::new(START, 2);
    let clock = simulation.clock.clone();
    let (rate, workers) = (limiter(bucket(1, 1), &clock), limiter(leases(1), &clock));
    assert!(rate.try_take("key", 1).is_allowed());
    let worker = workers.try_acquire("key", 1).unwrap();
    let first = simulation.spawn(both(&rate, &workers, false));
    let second = simulation.spawn(both(&rate, &workers, true));
    simulation.pass_to(START + 5 * SECOND);
    // Both have found out by now that the worker is what they wait for.
    drop(worker);
    simulation.run();
    assert_eq!(admitted_at(&simulation, first), Some(START + 5 * SECOND));
    assert!(simulation.is_waiting(second));
    drop(simulation.take(first));
    simulation.finish();
    assert_eq!(admitted_at(&simulation, second), Some(START + 6 * SECOND));
}

#[test]
fn who_gives_up_leaves_no_trace() {
    let mut simulation = Simulation::new(START, 3);
    let clock = simulation.clock.clone();
    let (rate, workers) = (limiter(bucket(1, 2), &clock), limiter(leases(1), &clock));
    let worker = workers.try_acquire("key", 1).unwrap();
    let gone = simulation.spawn_idle(both(&rate, &workers, false));
    let next = simulation.spawn(both(&rate, &workers, false));
    drop(worker);
    // It was admitted and does not know it.
    assert!(simulation.is_woken(gone));
    assert_eq!((used(&rate), used(&workers)), (1, 1));
    simulation.give_up(gone);
    assert_eq!(admitted_at(&simulation, next), Some(START));
    assert_eq!((used(&rate), used(&workers)), (1, 1));
}

#[test]
fn a_wait_that_is_known_to_be_too_long_is_refused_at_entry() {
    let mut simulation = Simulation::new(START, 4);
    let clock = simulation.clock.clone();
    let log = SlidingLog::new(1, Micros::from_secs(10)).unwrap();
    let (rate, workers) = (limiter(log, &clock), limiter(leases(1), &clock));
    assert!(rate.try_take("key", 1).is_allowed());
    let worker = workers.try_acquire("key", 1).unwrap();
    let options = |wait| WaitOptions::new().max_wait(Duration::from_micros(wait));
    let too_short = options(10 * SECOND - 1);
    let refused = simulation.spawn(both_within(&rate, &workers, false, too_short));
    let Err(WaitError::TooLong { known, .. }) = simulation.take(refused) else {
        panic!("the rate needs ten seconds");
    };
    assert_eq!(known.decision.retry_after.as_micros(), Some(10 * SECOND));
    // A lease may come back at any time.
    let enough = options(10 * SECOND);
    let waiting = simulation.spawn(both_within(&rate, &workers, false, enough));
    assert!(simulation.is_waiting(waiting));
    simulation.pass_to(START + 10 * SECOND);
    assert!(matches!(
        simulation.take(waiting),
        Err(WaitError::Elapsed { .. })
    ));
    assert_eq!((used(&rate), used(&workers)), (0, 1));
    drop(worker);
}

#[test]
fn a_paced_queue_among_the_limits_holds_the_call_until_its_turn() {
    let mut simulation = Simulation::new(START, 5);
    let clock = simulation.clock.clone();
    let queue = LeakyBucket::new(Rate::per_second(1).unwrap(), 9, 1, None).unwrap();
    let (queue, workers) = (limiter(queue, &clock), limiter(leases(9), &clock));
    let times: Vec<usize> = (0..3)
        .map(|_| simulation.spawn(both(&queue, &workers, false)))
        .collect();
    let turn = |options| wanting(vec![(queue.clone(), Want::Units(1))], options);
    let options = WaitOptions::new().max_wait(Duration::from_micros(3 * SECOND - 1));
    let refused = simulation.spawn(turn(options));
    assert!(matches!(
        simulation.take(refused),
        Err(WaitError::TooLong { .. })
    ));
    simulation.finish();
    let times: Vec<u64> = times
        .into_iter()
        .map(|task| admitted_at(&simulation, task).unwrap() - START)
        .collect();
    assert_eq!(times, [0, SECOND, 2 * SECOND]);
    let task = simulation.spawn(turn(WaitOptions::new()));
    simulation.finish();
    assert_eq!(
        simulation.take(task).unwrap().decision().delay.as_micros(),
        Some(0)
    );
}

#[test]
fn a_member_named_twice_is_one_lease_of_both() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let workers = limiter(leases(3), &clock);
    let key = Key::new("key");
    let twice = [
        Member::acquire(&workers, &key, 1),
        Member::acquire(&workers, &key, 2),
    ];
    let admission = try_admit(&twice).unwrap();
    assert_eq!(admission.lease(0).map(tidegate::Lease::weight), Some(3));
    assert!(admission.lease(1).is_none());
    let kept = admission.into_leases();
    assert_eq!(used(&workers), 3);
    drop(kept);
    assert_eq!(used(&workers), 0);
}

#[test]
fn a_lease_that_others_wait_for_is_not_taken_by_who_does_not_wait() {
    let mut simulation = Simulation::new(START, 6);
    let clock = simulation.clock.clone();
    let workers = limiter(leases(2), &clock);
    let worker = workers.try_acquire("key", 1).unwrap();
    let key = Key::new("key");
    let large = vec![(workers.clone(), Want::Permits(2))];
    let task = simulation.spawn(wanting(large, WaitOptions::new()));
    let small = [Member::acquire(&workers, &key, 1)];
    assert!(matches!(try_admit(&small), Err(WaitError::Denied(_))));
    drop(worker);
    simulation.run();
    assert!(simulation.take(task).is_ok());
}

#[test]
fn limits_that_are_off_or_watched_hold_up_nobody() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let (rate, workers) = (limiter(bucket(1, 1), &clock), limiter(leases(1), &clock));
    let key = Key::new("key");
    let members = [
        Member::take(&rate, &key, 1),
        Member::acquire(&workers, &key, 1),
    ];
    rate.set_mode(Mode::Off);
    workers.set_mode(Mode::Shadow);
    let admissions: Vec<Admission> = (0..3).map(|_| try_admit(&members).unwrap()).collect();
    assert_eq!(
        admissions[0].leases().count(),
        1,
        "a watched lease is counted"
    );
    assert_eq!(admissions[1].leases().count(), 0);
    drop(admissions);
    assert_eq!(used(&workers), 0);
    workers.set_mode(Mode::Enforce);
    assert_eq!(used(&workers), 0);
}

//! Faults that users of other limiters have reported, as they would look here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tidegate::{
    Admission, AdmitError, Concurrency, Decision, Key, Lease, Limiter, ManualClock, Member, Micros,
    Operation, Rate, Reservation, SlidingLog, TokenBucket, WaitError, admit_with, try_admit,
};

use super::simulation::{Simulation, at};

const START: u64 = 1_000_000_000;
const SECOND: u64 = 1_000_000;

fn log(limit: u32, seconds: u64, clock: &Arc<ManualClock>) -> Limiter {
    let log = SlidingLog::new(limit, Micros::from_secs(seconds)).unwrap();
    Limiter::builder(log).clock(clock.clone()).build()
}

fn leases(limit: u32, lease: Micros, clock: &Arc<ManualClock>) -> Limiter {
    let concurrency = Concurrency::new(limit, lease, None).unwrap();
    Limiter::builder(concurrency).clock(clock.clone()).build()
}

fn used(limiter: &Limiter) -> u32 {
    limiter.key("key").state().used
}

/// A worker is killed: no destructor runs, nothing is given back. Elsewhere its place was gone
/// for ever; here it comes back when its lease has run out, to the microsecond.
#[test]
fn the_place_of_a_killed_worker_comes_back_when_its_lease_ends() {
    let mut simulation = Simulation::new(START, 1);
    let limiter = leases(1, Micros::from_secs(900), &simulation.clock);
    let dead = Operation::Take(tidegate::Demand::Acquire {
        lease: tidegate::LeaseId(1),
        weight: 1,
    });
    limiter.apply(&Key::new("key"), at(START), &dead).unwrap();
    simulation.clock.set(at(START + 900 * SECOND - 1_000));
    let Err(WaitError::Denied(decision)) = limiter.try_acquire("key", 1) else {
        panic!("a millisecond early");
    };
    assert_eq!(decision.retry_after.as_micros(), Some(1_000));
    let waiting = limiter.clone();
    let waiting = simulation.spawn(async move { waiting.acquire("key", 1).await });
    simulation.pass_to(START + 900 * SECOND);
    let _lease: Lease = simulation.take(waiting).unwrap();
    // The dead one was not dead after all: it finds nothing to give back.
    let late = Operation::Release {
        lease: tidegate::LeaseId(1),
    };
    let released = limiter
        .apply(&Key::new("key"), limiter.now(), &late)
        .unwrap();
    assert_eq!(released, tidegate::Reply::Released(false));
    assert_eq!(used(&limiter), 1);
}

/// A holder that comes too late, or twice, freed the place of somebody else.
#[test]
fn no_release_frees_the_place_of_another() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let limiter = leases(1, Micros::from_millis(100), &clock);
    let late = limiter.try_acquire("key", 1).unwrap();
    clock.set(at(START + 150_000));
    let holder = limiter.try_acquire("key", 1).unwrap();
    clock.set(at(START + 160_000));
    assert!(!late.release());
    clock.set(at(START + 170_000));
    let Err(WaitError::Denied(decision)) = limiter.try_acquire("key", 1) else {
        panic!("the only place is held");
    };
    assert_eq!(decision.retry_after.as_micros(), Some(80_000));
    assert!(holder.is_live());
    // A guard can be given back once: to do it twice does not even compile. By its id:
    let twice = Operation::Release { lease: holder.id() };
    let key = Key::new("key");
    for expected in [true, false] {
        let released = limiter.apply(&key, limiter.now(), &twice).unwrap();
        assert_eq!(released, tidegate::Reply::Released(expected));
    }
    let two = leases(2, Micros::from_secs(1), &clock);
    let (a, _b) = (
        two.try_acquire("key", 1).unwrap(),
        two.try_acquire("key", 1).unwrap(),
    );
    assert!(two.try_acquire("key", 1).is_err());
    assert!(a.release());
    let _c = two.try_acquire("key", 1).unwrap();
    assert!(two.try_acquire("key", 1).is_err());
}

/// With all places taken, the limiter looked as if it had never been there, and was set up anew
/// by the next worker.
#[test]
fn no_place_left_is_not_a_limiter_that_does_not_exist() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let limiter = leases(1, Micros::from_secs(30), &clock);
    let at_once = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10 {
                    // Every job gets hold of the limiter anew.
                    let lease = limiter.clone().acquire_blocking("key", 1).unwrap();
                    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    drop(lease);
                }
            });
        }
    });
}

/// Looked at first and counted afterwards, a flood of callers all saw a free place.
#[test]
fn a_flood_gets_exactly_what_is_there() {
    for _ in 0..5 {
        let clock = Arc::new(ManualClock::new(at(START)));
        let (rate, workers) = (
            log(5, 3_600, &clock),
            leases(5, Micros::from_secs(60), &clock),
        );
        let (taken, held): (usize, Vec<Lease>) = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let taken = (0..250).filter(|_| rate.try_take("key", 1).is_allowed());
                        let held = (0..250).filter_map(|_| workers.try_acquire("key", 1).ok());
                        (taken.count(), held.collect::<Vec<_>>())
                    })
                })
                .collect();
            threads
                .into_iter()
                .fold((0, Vec::new()), |mut all, thread| {
                    let (taken, held) = thread.join().unwrap();
                    all.0 += taken;
                    all.1.extend(held);
                    all
                })
        });
        assert_eq!((taken, held.len()), (5, 5));
    }
}

/// Limits in layers kept their release handles in one place: the inner one was released twice, the
/// outer one never.
#[test]
fn each_layer_gets_back_its_own_lease() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let lease = Micros::from_secs(30);
    let (all, route) = (leases(3, lease, &clock), leases(2, lease, &clock));
    let (everybody, one) = (Key::new("all"), Key::new("GET /reports"));
    let members = [
        Member::acquire(&all, &everybody, 1),
        Member::acquire(&route, &one, 1),
    ];
    for _ in 0..10 {
        let admission = try_admit(&members).unwrap();
        assert_eq!(admission.leases().count(), 2);
    }
    let other = Key::new("GET /other");
    let members = [
        Member::acquire(&all, &everybody, 1),
        Member::acquire(&route, &other, 1),
    ];
    let admissions: Vec<Result<Admission, AdmitError>> =
        (0..3).map(|_| try_admit(&members)).collect();
    assert_eq!(admissions.iter().filter(|one| one.is_ok()).count(), 2);
    drop(admissions);
    let in_flight = |limiter: &Limiter, key| limiter.key(key).state().used;
    assert_eq!(
        (in_flight(&all, &everybody), in_flight(&route, &other)),
        (0, 0)
    );
}

/// A permit that was given back was given back once more when it would have expired.
#[test]
fn what_was_given_back_does_not_expire_a_second_time() {
    let mut simulation = Simulation::new(START, 2);
    let limiter = log(10, 1, &simulation.clock);
    let decision = limiter.try_take("key", 1);
    let reservation = Reservation {
        cost: 1,
        at: decision.at,
    };
    let cancel = Operation::Cancel { reservation };
    limiter.apply(&Key::new("key"), at(START), &cancel).unwrap();
    simulation.pass_to(START + 2 * SECOND);
    assert_eq!(limiter.peek("key", 10).remaining, 0);
    assert!(matches!(
        limiter.peek("key", 11).verdict,
        tidegate::Verdict::Deny(tidegate::Denial::Impossible)
    ));
    // Nor is a charge that a waiting caller had given back.
    let full = limiter.clone();
    simulation.spawn(async move { full.until_ready("key", 10).await });
    let gone = limiter.clone();
    let gone = simulation.spawn(async move { gone.until_ready("key", 10).await });
    simulation.give_up(gone);
    simulation.pass_to(START + 4 * SECOND);
    assert_eq!(limiter.peek("key", 0).remaining, 10);
}

/// The wait was computed from the newest event, so that callers waited for a whole window.
#[test]
fn the_wait_ends_when_the_oldest_event_leaves() {
    let mut simulation = Simulation::new(START, 3);
    let limiter = log(2, 10, &simulation.clock);
    for second in [0, 9] {
        simulation.pass_to(START + second * SECOND);
        assert!(limiter.try_take("key", 1).is_allowed());
    }
    let waiting = limiter.clone();
    let waiting = simulation.spawn(async move { waiting.until_ready("key", 1).await });
    simulation.finish();
    let (served, when): (&Result<Decision, WaitError>, u64) = simulation.done(waiting).unwrap();
    assert!(served.is_ok());
    assert_eq!(when, START + 10 * SECOND);
}

/// A job that met a reached limit was neither waiting nor done: it was gone.
#[test]
fn a_job_that_has_to_wait_is_not_lost() {
    let mut simulation = Simulation::new(START, 4);
    let limiter = log(2, 600, &simulation.clock);
    let queue: Vec<usize> = (0..100)
        .map(|_| {
            let limiter = limiter.clone();
            simulation.spawn(async move { limiter.until_ready("key", 1).await })
        })
        .collect();
    for window in 0..50 {
        simulation.pass_to(START + window * 600 * SECOND);
        let done = queue.iter().filter(|job| simulation.done(**job).is_some());
        let done: Vec<usize> = done.copied().collect();
        assert_eq!(done, queue[..done.len()], "in order");
        assert_eq!(done.len() as u64, 2 * (window + 1));
        assert_eq!(done.len() + limiter.waiting(), 100, "none is lost");
    }
}

/// A call that asks for more than the bucket holds waited for ever.
#[test]
fn a_cost_above_the_bucket_is_an_error_and_not_a_wait() {
    let mut simulation = Simulation::new(START, 5);
    let bucket = TokenBucket::new(Rate::per_second(50).unwrap(), 50).unwrap();
    let limiter = Limiter::builder(bucket)
        .clock(simulation.clock.clone())
        .build();
    let above = limiter.clone();
    let above = simulation.spawn(async move { above.until_ready("key", 51).await });
    let all = limiter.clone();
    let all = simulation.spawn(async move { all.until_ready("key", 50).await });
    assert!(matches!(
        simulation.take(above),
        Err(WaitError::Impossible(_))
    ));
    assert!(simulation.take(all).is_ok());
}

/// Two callers that each held what the other waited for stood still for ever.
#[test]
fn callers_that_want_two_things_in_either_order_never_stand_still() {
    let mut simulation = Simulation::new(START, 6);
    let lease = Micros::from_secs(30);
    let (left, right) = (
        leases(1, lease, &simulation.clock),
        leases(1, lease, &simulation.clock),
    );
    let mut waiting = VecDeque::new();
    for reversed in [false, true, false, true, true, false] {
        let (left, right) = (left.clone(), right.clone());
        waiting.push_back(simulation.spawn(async move {
            let key = Key::new("key");
            let mut members = [
                Member::acquire(&left, &key, 1),
                Member::acquire(&right, &key, 1),
            ];
            if reversed {
                members.reverse();
            }
            admit_with(&members, &tidegate::WaitOptions::new()).await
        }));
    }
    while let Some(next) = waiting.pop_front() {
        simulation.run();
        drop(simulation.take(next).unwrap());
    }
}

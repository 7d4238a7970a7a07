//! Callers that stand still between their reading of the clock and their turn at a key.
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{
    Align, ChangeMode, Concurrency, Decision, Demand, FixedWindow, InterpolatedWindow,
    IntervalBucket, LeaseId, Micros, Operation, Policy, Rate, SlidingLog, StrictWindow, Timestamp,
    TokenBucket, bounds,
};
use tidegate_store::{
    KeyHash, Member, MemoryLimit, MemoryOptions, Moment, ReadClock, all_of, memory_limit,
};

const SECOND: u64 = 1_000_000;
const KEY: KeyHash = KeyHash::new(0x5eed);

/// A clock that stands where it is put.
struct Time {
    micros: Arc<AtomicU64>,
    clock: ReadClock,
}

impl Time {
    fn new() -> Self {
        let micros = Arc::new(AtomicU64::new(1_000 * SECOND));
        let read = Arc::clone(&micros);
        let clock = ReadClock::new(move || at(read.load(Ordering::Relaxed)));
        Self { micros, clock }
    }

    fn pass(&self, micros: u64) {
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// A call whose caller has read the clock so long ago.
    fn read_before(&self, micros: u64) -> Moment<'_> {
        let now = self.micros.load(Ordering::Relaxed);
        self.clock.moment(at(now - micros))
    }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn limit(policy: &Policy) -> Box<dyn MemoryLimit> {
    memory_limit(policy.clone(), MemoryOptions::default())
}

/// Every way to count units, 7 at most in 10 seconds.
fn policies() -> Vec<Policy> {
    let (period, rate) = (Micros::from_secs(10), Rate::new(7, 10 * SECOND).unwrap());
    vec![
        TokenBucket::new(rate, 7).unwrap().into(),
        IntervalBucket::new(rate, 7).unwrap().into(),
        SlidingLog::new(7, period).unwrap().into(),
        StrictWindow::new(7, period, 10).unwrap().into(),
        InterpolatedWindow::new(7, period).unwrap().into(),
        FixedWindow::new(7, period, Align::Epoch).unwrap().into(),
        FixedWindow::new(7, period, Align::FirstUse).unwrap().into(),
    ]
}

/// The three ways on which units are taken.
fn take(limit: &dyn MemoryLimit, way: u64, now: Moment<'_>) -> Decision {
    match way % 3 {
        0 => limit.take(KEY, now, 1),
        1 => *limit
            .apply(KEY, now, &Operation::take(1))
            .unwrap()
            .decision()
            .unwrap(),
        _ => {
            let demand = Demand::Take { cost: 1 };
            let other = memory_limit(policies()[0].clone(), MemoryOptions::default());
            let members = [(limit, KEY), (&*other, KEY)].map(|(limit, key)| Member {
                limit,
                key,
                demand,
                shadow: false,
            });
            all_of(&members, now).unwrap().unwrap().members[0]
        }
    }
}

/// A random walk of calls, forgetting and changes of the numbers to and fro; returns when units
/// were admitted.
fn admitted(policy: &Policy, seed: u64, by_clock: bool) -> (Vec<u64>, u64) {
    let (time, limit) = (Time::new(), limit(policy));
    let mut random = seed;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut admitted = Vec::new();
    for _ in 0..600 {
        time.pass(next(2) * next(4) * SECOND + next(SECOND));
        let stall = next(3) / 2 * next(40 * SECOND);
        let moment = time.read_before(stall);
        let moment = if by_clock {
            moment
        } else {
            moment.now().into()
        };
        match next(20) {
            0 => assert!(limit.maintain(moment.now(), 10_000) <= 1),
            1 => assert!(limit.change(&smaller(policy), ChangeMode::KeepUsed, moment)),
            2 => assert!(limit.change(policy, ChangeMode::KeepUsed, moment)),
            way => {
                let decision = take(&*limit, way, moment);
                if decision.is_allowed() {
                    admitted.push(decision.at.as_micros());
                }
            }
        }
    }
    (admitted, limit.stats().rebased)
}

/// The same way to count, with numbers that admit less.
fn smaller(policy: &Policy) -> Policy {
    let (period, rate) = (Micros::from_secs(10), Rate::new(5, 10 * SECOND).unwrap());
    match policy {
        Policy::TokenBucket(_) => TokenBucket::new(rate, 5).unwrap().into(),
        Policy::IntervalBucket(_) => IntervalBucket::new(rate, 5).unwrap().into(),
        Policy::SlidingLog(_) => SlidingLog::new(5, period).unwrap().into(),
        Policy::StrictWindow(_) => StrictWindow::new(5, period, 10).unwrap().into(),
        Policy::InterpolatedWindow(_) => InterpolatedWindow::new(5, period).unwrap().into(),
        Policy::FixedWindow(fixed) => FixedWindow::new(5, period, fixed.align().clone())
            .unwrap()
            .into(),
        other => panic!("{other:?} counts no units"),
    }
}

/// The most that any window of a length holds.
fn busiest(times: &[u64], window: u64) -> usize {
    (0..times.len())
        .map(|first| times[first..].partition_point(|time| *time < times[first] + window))
        .max()
        .unwrap_or(0)
}

#[test]
fn no_reading_of_the_clock_is_too_old_for_the_bound() {
    for policy in policies() {
        for seed in 0..40 {
            let (times, rebased) = admitted(&policy, seed, true);
            assert!(
                times.is_sorted(),
                "{policy:?} {seed}: a key's time went back"
            );
            assert_eq!(rebased, 0, "{policy:?} {seed}");
            for window in [1, 10 * SECOND, 25 * SECOND] {
                let most = bounds::admitted(&policy, Micros(window)).unwrap();
                let found = busiest(&times, window) as u64;
                assert!(
                    found <= most,
                    "{policy:?} {seed}: {found} in {window} us, not {most}"
                );
            }
        }
    }
}

/// What the test above is about: without the clock at hand, times do go back, and more passes.
#[test]
fn a_time_that_is_given_is_obeyed() {
    for policy in policies() {
        let back = (0..40).filter(|seed| {
            let (times, rebased) = admitted(&policy, *seed, false);
            rebased > 0 && !times.is_sorted()
        });
        assert!(back.count() > 10, "{policy:?}");
    }
}

#[test]
fn a_stalled_caller_does_not_end_the_leases_of_others() {
    let concurrency = Concurrency::new(7, Micros::from_secs(30), Some(Micros::from_secs(100)));
    let (time, limit) = (Time::new(), limit(&concurrency.unwrap().into()));
    let acquire = |id, weight, stall| {
        let lease = LeaseId(id);
        let demand = Operation::Take(Demand::Acquire { lease, weight });
        let reply = limit.apply(KEY, time.read_before(stall), &demand).unwrap();
        reply.decision().unwrap().is_allowed()
    };
    assert!(acquire(1, 7, 0));
    time.pass(10 * SECOND);
    let renew = Operation::Renew { lease: LeaseId(1) };
    limit.apply(KEY, time.read_before(0), &renew).unwrap();
    time.pass(5 * SECOND);
    assert!(!acquire(2, 7, 30 * SECOND));
    time.pass(20 * SECOND);
    assert!(!acquire(3, 1, 0), "the first lease still lives");
}

#[test]
fn a_clock_that_is_really_set_back_takes_the_keys_along() {
    let log = SlidingLog::new(7, Micros::from_secs(10)).unwrap();
    let (time, limit) = (Time::new(), limit(&log.into()));
    for _ in 0..7 {
        assert!(limit.take(KEY, time.read_before(0), 1).is_allowed());
    }
    time.micros.fetch_sub(500 * SECOND, Ordering::Relaxed);
    let denied = limit.take(KEY, time.read_before(0), 1);
    assert_eq!(denied.retry_after.as_micros(), Some(10 * SECOND));
    assert_eq!(limit.stats().rebased, 1);
}

/// Who changes numbers stands still just after reading the clock; others go on under the old ones.
#[test]
fn a_change_that_was_late_forgives_nothing() {
    for policy in policies() {
        let limit: Arc<dyn MemoryLimit> = limit(&policy).into();
        let (begin, others) = (1_000 * SECOND, Arc::clone(&limit));
        let late = ReadClock::new(move || {
            for _ in 0..7 {
                let now = at(begin + 5 * SECOND).into();
                assert!(others.take(KEY, now, 1).is_allowed());
            }
            at(begin)
        });
        let change = |to: &Policy, clock: &ReadClock| {
            assert!(limit.change(to, ChangeMode::KeepUsed, clock.moment(at(begin))));
        };
        change(&smaller(&policy), &late);
        let denied = limit.take(KEY, at(begin + 5 * SECOND).into(), 1);
        assert!(!denied.is_allowed());
        let wait = denied.retry_after.as_micros().unwrap();
        // As if the numbers had changed when the units were taken.
        let on_time = {
            let limit = self::limit(&policy);
            let now = at(begin + 5 * SECOND);
            for _ in 0..7 {
                assert!(limit.take(KEY, now.into(), 1).is_allowed());
            }
            limit.change(&smaller(&policy), ChangeMode::KeepUsed, now.into());
            limit.take(KEY, now.into(), 1).retry_after.as_micros()
        };
        assert_eq!(Some(wait), on_time, "{policy:?}");
        assert_eq!(limit.stats().rebased, 0);
    }
}

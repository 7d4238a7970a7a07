//! Numbers that change under racing calls.
//!
//! What holds then is less than without changes: windows and logs keep their counts, so no period
//! holds more than the largest number in force; a bucket that shrinks forgets debt beyond its new
//! capacity, so it is held to the sum over the stretches between changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    ChangeMode, Clock as _, Limiter, ManualClock, Micros, Policy, SlidingLog, StrictWindow,
    TokenBucket,
};

use super::support::{at, most_within, rate, seeded};

const THREADS: usize = 8;
const STEPS: usize = 300;
const PERIOD: u64 = 20_000;
const MOST: u32 = 9;

/// Calls on one key while its tier, its tier's numbers and the limit's change; what passed, and
/// how many changes there were.
fn race(numbers: &dyn Fn(u32) -> Policy, rng: &mut Rng) -> (Vec<(u64, u64)>, u64) {
    let clock = Arc::new(ManualClock::new(at(1_000_000_000)));
    let limiter = Limiter::builder(numbers(5))
        .tier("other", numbers(3))
        .unwrap()
        .clock(clock.clone())
        .build();
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .iter()
            .map(|&seed| {
                let (limiter, done, calls) = (&limiter, &done, &calls);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    let mut passed = Vec::new();
                    while !done.load(Ordering::SeqCst) {
                        let cost = rng.u32(1..3);
                        let decision = limiter.try_take("key", cost);
                        if decision.is_allowed() {
                            passed.push((decision.at.as_micros(), u64::from(cost)));
                        }
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                    passed
                })
            })
            .collect();
        let mut changes = 0;
        for step in 1..=STEPS {
            while calls.load(Ordering::SeqCst) < step * THREADS * 2 {
                thread::yield_now();
            }
            let (key, now) = (limiter.key("key"), clock.now());
            let chosen = numbers(rng.u32(1..=MOST));
            changes += 1;
            match rng.u32(..16) {
                0 => key.set_tier("other", ChangeMode::KeepUsed).unwrap(),
                1 => key.set_override(chosen, ChangeMode::KeepUsed).unwrap(),
                2 => limiter.change(chosen, ChangeMode::KeepUsed, now),
                3 => limiter
                    .set_tier_policy("other", chosen, ChangeMode::KeepUsed, now)
                    .unwrap(),
                _ => changes -= 1,
            }
            clock.advance(Duration::from_micros(rng.u64(..PERIOD / 8)));
        }
        done.store(true, Ordering::SeqCst);
        let passed = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        (passed.collect(), changes)
    })
}

#[test]
fn no_period_holds_more_than_the_largest_number_in_force() {
    let mut rng = seeded("changes of windows");
    let period = Micros(PERIOD);
    let log = |n| SlidingLog::new(n, period).unwrap().into();
    let strict = |n| StrictWindow::new(n, period, 7).unwrap().into();
    for numbers in [&log as &dyn Fn(u32) -> Policy, &strict] {
        let (passed, changes) = race(numbers, &mut rng);
        assert!(changes > 0 && !passed.is_empty());
        assert!(most_within(&passed, PERIOD) <= u64::from(MOST));
    }
}

#[test]
fn a_bucket_admits_no_more_than_its_worst_case_between_changes() {
    let mut rng = seeded("changes of buckets");
    let (passed, changes) = race(
        &|n| TokenBucket::new(rate(n, PERIOD), n).unwrap().into(),
        &mut rng,
    );
    let most = u64::from(MOST);
    let lasted = passed.iter().map(|call| call.0).max().unwrap() - 1_000_000_000;
    let total: u64 = passed.iter().map(|call| call.1).sum();
    assert!(total <= (changes + 1) * most + lasted * most / PERIOD);
}

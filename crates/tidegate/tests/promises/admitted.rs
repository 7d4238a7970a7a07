//! No window of any length holds more than the documented worst case, however many threads call
//! and however the clock moves.
//!
//! Figures are on a key's own time, which goes on across a correction of the clock. A limit on the
//! grid of the clock (aligned windows, interpolated ones) finds itself elsewhere in its grid after
//! a correction, so there each stretch between two corrections is judged by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    Align, Clock as _, Decision, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    Limiter, ManualClock, Micros, Policy, SlidingLog, StrictWindow, TokenBucket,
};

use super::support::{at, most_within, rate, seeded};

const THREADS: usize = 8;
const STEPS: usize = 300;
const SECOND: u64 = 1_000_000;

/// What a limit is made of, and what may be seen of it.
struct Promise {
    policy: Policy,
    /// The most in a window of that length.
    most: Box<dyn Fn(u64) -> u64 + Sync>,
    period: u64,
    /// Whether its windows lie on the clock's grid.
    on_grid: bool,
    /// Whether departures are counted, and not charges.
    paced: bool,
}

impl Promise {
    fn new(
        policy: impl Into<Policy>,
        period: u64,
        most: impl Fn(u64) -> u64 + Sync + 'static,
    ) -> Self {
        Self {
            policy: policy.into(),
            most: Box::new(most),
            period,
            on_grid: false,
            paced: false,
        }
    }
}

fn promises(rng: &mut Rng) -> Vec<Promise> {
    let n = rng.u32(2..12);
    let p = [7_001, 20_000, 300_000][rng.usize(..3)];
    let capacity = rng.u32(2..12);
    let period = Micros(p);
    let (count, room) = (u64::from(n), u64::from(capacity));
    let continuous = TokenBucket::new(rate(n, p), capacity).unwrap();
    let interval = IntervalBucket::new(rate(n, p), capacity).unwrap();
    let burst = rng.u32(1..4);
    let paced = LeakyBucket::new(rate(n, p), rng.u32(..9), burst, None).unwrap();
    let aligned = FixedWindow::new(n, period, Align::Epoch).unwrap();
    let first_use = FixedWindow::new(n, period, Align::FirstUse).unwrap();
    let log = SlidingLog::new(n, period).unwrap();
    let strict = StrictWindow::new(n, period, rng.u32(1..70)).unwrap();
    let two_cells = InterpolatedWindow::new(n, period).unwrap();
    vec![
        Promise::new(continuous, p, move |w| {
            (room + (w - 1) * count / p).min(room * w)
        }),
        Promise::new(interval, p, move |w| {
            room + count.min(room) * (w - 1).div_ceil(p)
        }),
        Promise {
            paced: true,
            ..Promise::new(paced, p, move |w| {
                u64::from(burst) - 1 + (w * count).div_ceil(p)
            })
        },
        Promise {
            on_grid: true,
            ..Promise::new(aligned, p, move |w| count * ((w - 1).div_ceil(p) + 1))
        },
        Promise::new(first_use, p, move |w| {
            (count * w.div_ceil(p)).max(count - 1 + count * (w - 1).div_ceil(p))
        }),
        Promise::new(log, p, move |w| count * w.div_ceil(p)),
        Promise::new(strict, p, move |w| count * w.div_ceil(p)),
        Promise {
            on_grid: true,
            // One that is longer than the period is covered by several that are not.
            ..Promise::new(two_cells, p, move |w| {
                let whole = count + p.saturating_sub(2) * count / p;
                let rest = w % p;
                let part = count + rest.saturating_sub(2) * count / p;
                w / p * whole + if rest == 0 { 0 } else { part }
            })
        },
    ]
}

/// One call that was let through.
#[derive(Clone, Copy)]
struct Passed {
    key: usize,
    /// Corrections of the clock before it.
    corrections: usize,
    time: u64,
    cost: u64,
}

struct Race<'a> {
    promise: &'a Promise,
    limiter: Limiter,
    clock: Arc<ManualClock>,
    /// The latest charge of each key since the last correction, on the clock.
    latest: Vec<AtomicU64>,
    /// Written only to correct the clock: no call may straddle that, or it could not be said on
    /// which side it was decided.
    corrections: RwLock<usize>,
}

impl Race<'_> {
    fn call(&self, key: usize, cost: u32, corrections: usize) -> Option<Passed> {
        let cost = if self.promise.paced { 1 } else { cost };
        let now = self.clock.now();
        let decision = self.limiter.try_take_at(key as u64, cost, now);
        if !decision.is_allowed() {
            return None;
        }
        self.latest[key].fetch_max(decision.at.as_micros(), Ordering::SeqCst);
        Some(Passed {
            key,
            corrections,
            time: self.moment(&decision, now.as_micros()),
            cost: u64::from(cost),
        })
    }

    fn moment(&self, decision: &Decision, now: u64) -> u64 {
        let charged = decision.at.as_micros();
        assert!(
            charged >= now && charged - now <= SECOND,
            "{decision:?} {now}"
        );
        if self.promise.paced {
            charged.max(now + decision.delay.as_micros().unwrap())
        } else {
            charged
        }
    }
}

/// Lets threads call while another moves the clock; returns what passed, and by how much the own
/// time of each key is ahead of the clock after each number of corrections.
fn race(promise: &Promise, keys: usize, rng: &mut Rng) -> (Vec<Passed>, Vec<Vec<u64>>) {
    let start = 1_000 * SECOND + rng.u64(..SECOND);
    let clock = Arc::new(ManualClock::new(at(start)));
    let race = Race {
        promise,
        limiter: Limiter::builder(promise.policy.clone())
            .clock(clock.clone())
            .build(),
        clock,
        latest: (0..keys).map(|_| AtomicU64::new(0)).collect(),
        corrections: RwLock::new(0),
    };
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut ahead = vec![vec![0_u64]; keys];
    let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
    let passed = thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .iter()
            .map(|&seed| {
                let (race, done, calls) = (&race, &done, &calls);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    let mut passed = Vec::new();
                    while !done.load(Ordering::SeqCst) {
                        let (key, cost) = (rng.usize(..keys), rng.u32(1..4));
                        let corrections = race.corrections.read().unwrap();
                        passed.extend(race.call(key, cost, *corrections));
                        drop(corrections);
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                    passed
                })
            })
            .collect();
        let (mut mine, mut highest, mut now) = (Vec::new(), start, start);
        for step in 1..=STEPS {
            while calls.load(Ordering::SeqCst) < step * THREADS * 2 {
                thread::yield_now();
            }
            match rng.u32(..40) {
                0 => {
                    let mut corrections = race.corrections.write().unwrap();
                    // Each key is used on both sides, so that it is known where it stood.
                    mine.extend((0..keys).filter_map(|key| race.call(key, 1, *corrections)));
                    now = highest - SECOND - 1 - rng.u64(..3 * SECOND);
                    highest = now;
                    race.clock.set(at(now));
                    *corrections += 1;
                    for (key, ahead) in ahead.iter_mut().enumerate() {
                        let latest = race.latest[key].load(Ordering::SeqCst);
                        let moved = latest.saturating_sub(now);
                        let rebased = if moved > SECOND { moved } else { 0 };
                        ahead.push(ahead[ahead.len() - 1] + rebased);
                        race.latest[key].store(latest - rebased, Ordering::SeqCst);
                        mine.extend(race.call(key, 1, *corrections));
                        // One that was not moved stands still at its latest.
                        highest = highest.max(latest - rebased);
                    }
                }
                1..6 => {
                    // A little back: never more than a second below the highest.
                    let most = now - (highest - SECOND).min(now);
                    let up_to = if rng.bool() { most } else { promise.period / 4 };
                    now -= rng.u64(..=up_to).min(most);
                    race.clock.set(at(now));
                }
                6..10 => {
                    now = highest;
                    race.clock.set(at(now));
                }
                _ => {
                    let by = match rng.u32(..8) {
                        0 => rng.u64(..promise.period * 3),
                        1 => 1,
                        _ => rng.u64(..promise.period / 8),
                    };
                    now += by;
                    highest = highest.max(now);
                    race.clock.advance(Duration::from_micros(by));
                }
            }
        }
        done.store(true, Ordering::SeqCst);
        for thread in threads {
            mine.extend(thread.join().unwrap());
        }
        mine
    });
    (passed, ahead)
}

fn judge(promise: &Promise, passed: &[Passed], ahead: &[Vec<u64>]) {
    assert!(passed.len() >= 10, "the race is worth looking at");
    for (key, ahead) in ahead.iter().enumerate() {
        let of_key = || passed.iter().filter(move |call| call.key == key);
        let stretches: Vec<Vec<(u64, u64)>> = if promise.on_grid {
            (0..ahead.len())
                .map(|stretch| {
                    of_key()
                        .filter(|call| call.corrections == stretch)
                        .map(|call| (call.time, call.cost))
                        .collect()
                })
                .collect()
        } else {
            vec![
                of_key()
                    .map(|call| (call.time + ahead[call.corrections], call.cost))
                    .collect(),
            ]
        };
        let p = promise.period;
        for window in [1, 2, p / 3, p - 1, p, p + 1, 2 * p, 3 * p + p / 2] {
            let allowed = (promise.most)(window);
            for calls in &stretches {
                let seen = most_within(calls, window);
                assert!(
                    seen <= allowed,
                    "{seen} in {window} us, at most {allowed} by {:?}",
                    promise.policy
                );
            }
        }
    }
}

#[test]
fn no_window_holds_more_than_promised_on_one_key() {
    let mut rng = seeded("one key");
    for promise in promises(&mut rng) {
        let (passed, ahead) = race(&promise, 1, &mut rng);
        judge(&promise, &passed, &ahead);
    }
}

#[test]
fn no_window_holds_more_than_promised_on_many_keys() {
    let mut rng = seeded("many keys");
    for promise in promises(&mut rng) {
        let (passed, ahead) = race(&promise, 13, &mut rng);
        judge(&promise, &passed, &ahead);
    }
}

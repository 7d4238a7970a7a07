//! A limit that was written down and read again goes on as if nothing had happened.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    Align, ChangeMode, Concurrency, Demand, FixedWindow, InterpolatedWindow, IntervalBucket,
    LeakyBucket, LeaseId, Limiter, Lockout, LockoutSettings, ManualClock, Micros, Operation,
    Policy, SlidingLog, Snapshot, StrictWindow, Timestamp, TokenBucket,
};

use super::support::{at, rate, seeded};

const PERIOD: u64 = 60_000_000;

fn policies(rng: &mut Rng) -> Vec<Policy> {
    let (n, capacity) = (rng.u32(1..9), rng.u32(1..9));
    let (pace, period) = (rate(n, PERIOD), Micros(PERIOD));
    vec![
        TokenBucket::new(pace, capacity).unwrap().into(),
        IntervalBucket::new(pace, capacity).unwrap().into(),
        LeakyBucket::new(pace, n, capacity, None).unwrap().into(),
        FixedWindow::new(n, period, Align::Epoch).unwrap().into(),
        FixedWindow::new(n, period, Align::FirstUse).unwrap().into(),
        SlidingLog::new(n, period).unwrap().into(),
        StrictWindow::new(n, period, 13).unwrap().into(),
        InterpolatedWindow::new(n, period).unwrap().into(),
        Concurrency::new(n, period, Some(Micros(3 * PERIOD)))
            .unwrap()
            .into(),
        Lockout::new(LockoutSettings {
            failures: n,
            period,
            ban: period,
            factor: 2,
            max_ban: Micros(10 * PERIOD),
            jitter: Micros(PERIOD / 10),
            forget_after: Micros(20 * PERIOD),
            long_cap: None,
        })
        .unwrap()
        .into(),
    ]
}

/// An operation, now and then one that the algorithm does not have.
fn operation(rng: &mut Rng, policy: &Policy) -> Operation {
    let cost = rng.u32(..4);
    let lease = LeaseId(u128::from(rng.u8(..6)));
    match (rng.u32(..24), policy) {
        (0, _) => Operation::Reset,
        (1, _) => Operation::Unblock,
        (2, _) => Operation::Block {
            period: Micros(rng.u64(..PERIOD)),
        },
        (3, _) => Operation::Refund { cost },
        (4, _) => Operation::Force { cost },
        (5..8, Policy::Concurrency(_)) => Operation::Release { lease },
        (8..11, Policy::Concurrency(_)) => Operation::Renew { lease },
        (_, Policy::Concurrency(_)) => Operation::Take(Demand::Acquire {
            lease,
            weight: cost,
        }),
        (5..8, Policy::Lockout(_)) => Operation::Success,
        (_, Policy::Lockout(_)) => Operation::Take(Demand::Attempt { seed: rng.u64(..) }),
        (5..8, _) => Operation::TakeUpTo { cost },
        (8..11, _) => Operation::Reserve {
            cost,
            max_wait: Micros(rng.u64(..PERIOD * 2)),
        },
        _ => Operation::Take(Demand::Take { cost }),
    }
}

/// Mostly forwards, now and then back: at most to a second before the latest time.
fn step(rng: &mut Rng, latest: &mut Timestamp, now: Timestamp) -> Timestamp {
    let micros = now.as_micros();
    let earliest = latest.as_micros() - 1_000_000;
    let next = at(match rng.u32(..20) {
        0 => rng.u64(earliest..=micros),
        1 => micros + rng.u64(..PERIOD * 3),
        _ => micros + rng.u64(..PERIOD / 8),
    });
    *latest = next.max(*latest);
    next
}

#[test]
fn a_restored_limit_answers_as_the_one_that_was_written_down() {
    let mut rng = seeded("snapshots");
    for _ in 0..12 {
        for policy in policies(&mut rng) {
            let clock = Arc::new(ManualClock::new(at(1_000 * PERIOD)));
            let builder = || {
                Limiter::builder(policy.clone())
                    .name("limit")
                    .tier("tier", policy.clone())
                    .unwrap()
                    .clock(clock.clone())
            };
            let original = builder().build();
            let mut now = at(1_000 * PERIOD);
            let mut latest = now;
            for _ in 0..rng.u32(..300) {
                let key = original.key(rng.u64(..7)).at(now);
                let _ = key.apply(&operation(&mut rng, &policy));
                now = step(&mut rng, &mut latest, now);
                clock.set(now);
                if rng.u32(..100) == 0 {
                    original
                        .key(rng.u64(..7))
                        .set_tier("tier", ChangeMode::KeepUsed)
                        .unwrap();
                }
            }
            let mut bytes = Vec::new();
            original.snapshot(now).write(&mut bytes).unwrap();
            let snapshot = Snapshot::read(&mut bytes.as_slice()).unwrap();
            assert_eq!(snapshot.taken_at(), now);
            let restored = builder().restore(&snapshot, ChangeMode::KeepUsed).unwrap();
            for call in 0..200 {
                let (key, operation) = (rng.u64(..7), operation(&mut rng, &policy));
                assert_eq!(
                    original.key(key).at(now).apply(&operation),
                    restored.key(key).at(now).apply(&operation),
                    "call {call}, {operation:?} at {now:?} by {policy:?}"
                );
                now = step(&mut rng, &mut latest, now);
                clock.set(now);
            }
            clock.advance(Duration::from_micros(1));
        }
    }
}

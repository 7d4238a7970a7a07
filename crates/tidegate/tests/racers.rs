//! Many callers at the same moment get what there is, and not one more.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate::{
    Align, Concurrency, Demand, FixedWindow, InterpolatedWindow, IntervalBucket, Key, LeakyBucket,
    LeaseId, Limiter, Lockout, LockoutSettings, Member, Micros, Operation, Policy, Rate,
    SlidingLog, StrictWindow, Timestamp, TokenBucket, all_of,
};

const THREADS: u32 = 4;
const CALLS: u32 = 250;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Every algorithm with five of something an hour.
fn five_an_hour() -> Vec<Policy> {
    let hour = Micros::from_secs(3_600);
    let rate = Rate::new(5, hour.0).unwrap();
    vec![
        TokenBucket::new(rate, 5).unwrap().into(),
        IntervalBucket::new(rate, 5).unwrap().into(),
        LeakyBucket::new(rate, 0, 5, None).unwrap().into(),
        FixedWindow::new(5, hour, Align::Epoch).unwrap().into(),
        SlidingLog::new(5, hour).unwrap().into(),
        StrictWindow::new(5, hour, 60).unwrap().into(),
        InterpolatedWindow::new(5, hour).unwrap().into(),
        Concurrency::new(5, hour, None).unwrap().into(),
        Lockout::new(LockoutSettings {
            failures: 5,
            period: hour,
            ban: hour,
            factor: 1,
            max_ban: hour,
            jitter: Micros::ZERO,
            forget_after: hour,
            long_cap: None,
        })
        .unwrap()
        .into(),
    ]
}

fn demand(policy: &Policy, id: u32) -> Demand {
    match policy {
        Policy::Concurrency(_) => Demand::Acquire {
            lease: LeaseId(id.into()),
            weight: 1,
        },
        Policy::Lockout(_) => Demand::Attempt { seed: 0 },
        _ => Demand::Take { cost: 1 },
    }
}

/// How many of a thousand calls from four threads at once pass.
fn passed(call: impl Fn(u32) -> bool + Sync) -> u32 {
    let (start, passed) = (Barrier::new(THREADS as usize), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (start, passed, call) = (&start, &passed, &call);
            scope.spawn(move || {
                start.wait();
                for n in 0..CALLS {
                    if call(thread * CALLS + n) {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    passed.into_inner()
}

#[test]
fn of_a_thousand_calls_at_once_exactly_five_pass_whatever_the_algorithm() {
    for policy in five_an_hour() {
        let limit = Limiter::new(policy.clone());
        let passed = passed(|id| {
            let operation = Operation::Take(demand(&policy, id));
            let reply = limit.key("k").at(at(0)).apply(&operation).unwrap();
            reply.decision().unwrap().is_allowed()
        });
        assert_eq!(passed, 5, "{policy:?}");
    }
}

#[test]
fn a_call_over_all_algorithms_passes_five_times_and_charges_nobody_else() {
    let limits: Vec<(Limiter, Policy)> = five_an_hour()
        .into_iter()
        .map(|policy| (Limiter::new(policy.clone()), policy))
        .collect();
    let wide = Limiter::new(TokenBucket::new(Rate::per_second(0).unwrap(), 1_000).unwrap());
    let key = Key::new("k");
    let passed = passed(|id| {
        let mut members: Vec<Member<'_>> = limits
            .iter()
            .map(|(limiter, policy)| Member {
                limiter,
                key: &key,
                demand: demand(policy, id),
            })
            .collect();
        members.push(Member {
            limiter: &wide,
            key: &key,
            demand: Demand::Take { cost: 1 },
        });
        let outcome = all_of(&members, at(0)).unwrap().unwrap();
        outcome.decision.is_allowed()
    });
    assert_eq!(passed, 5);
    assert_eq!(wide.key("k").at(at(0)).state().used, 5);
}

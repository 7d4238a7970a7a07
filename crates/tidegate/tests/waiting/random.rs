//! Random arrivals, costs, patience, drops and changes, against the reference: everybody is served,
//! or refused, at the very microsecond.

use std::time::Duration;

use fastrand::Rng;
use tidegate::{ChangeMode, Clock as _, Key, Limiter, Micros, Operation, WaitError, WaitOptions};
use tidegate_conformance::model::{
    Border, Cells, Continuous, Fixed, Interval, Log, Paced, Rule, TwoCells,
};

use super::reference::{Disturbance, Fate, Reference};
use super::simulation::Simulation;

const KINDS: usize = 8;

/// Numbers of one kind that make callers wait, and now and then ask for what can never be.
fn rule(rng: &mut Rng, kind: usize) -> Rule {
    let few = |rng: &mut Rng| i128::from(rng.u32(1..8));
    let period = i128::from([700, 1_000, 9_999, 250_000][rng.usize(..4)]);
    let count = few(rng);
    match kind {
        0 => Rule::Continuous(Continuous {
            count,
            period,
            capacity: few(rng),
            initial: None,
        }),
        1 => Rule::Interval(Interval {
            count,
            period,
            capacity: few(rng),
            initial: None,
        }),
        2 => Rule::Paced(Paced {
            count,
            period,
            queue: i128::from(rng.u32(..6)),
            burst: few(rng),
            max_wait: rng.bool().then_some(period * 2),
        }),
        3 => Rule::Fixed(Fixed {
            limit: few(rng),
            period,
            border: if rng.bool() {
                Border::Epoch
            } else {
                Border::FirstUse
            },
        }),
        4 => Rule::Log(Log {
            limit: few(rng),
            period,
        }),
        5 => Rule::Cells(Cells {
            limit: few(rng),
            period,
            cells: i128::from(rng.u32(1..9)),
        }),
        6 => Rule::TwoCells(TwoCells {
            limit: few(rng),
            period,
        }),
        _ => Rule::Continuous(Continuous {
            count: 1,
            period,
            capacity: 1,
            initial: None,
        }),
    }
}

fn fate(result: &Result<tidegate::Decision, WaitError>) -> Fate {
    match result {
        Ok(_) => Fate::Served,
        Err(WaitError::Impossible(_)) => Fate::Impossible,
        Err(WaitError::TooLong { .. }) => Fate::TooLong,
        Err(WaitError::Elapsed { .. }) => Fate::Elapsed,
        Err(other) => panic!("{other}"),
    }
}

fn disturbance(rng: &mut Rng, kind: usize) -> Disturbance {
    let modes = [
        ChangeMode::KeepUsed,
        ChangeMode::Proportional,
        ChangeMode::KeepAvailable,
        ChangeMode::Reset,
    ];
    match rng.u32(..6) {
        0 => Disturbance::Reset,
        1 => Disturbance::Block(rng.u64(1..20_000)),
        2 => Disturbance::Unblock,
        3 => Disturbance::Refund(rng.u32(1..4)),
        _ => Disturbance::Change(rule(rng, kind), modes[rng.usize(..4)]),
    }
}

/// One run of up to `steps` events.
fn run(seed: u64, kind: usize, disturbed: bool, steps: usize) {
    let rng = &mut Rng::with_seed(seed);
    let start = 5_000_000 + rng.u64(..1_000_000);
    let first = rule(rng, kind);
    let mut simulation = Simulation::new(start, seed);
    let limiter = Limiter::builder(first.policy().unwrap())
        .clock(simulation.clock.clone())
        .build();
    let key = Key::new("key");
    let mut reference = Reference::new(first.clone(), start);
    let context = format!("seed {seed}, kind {kind}, {first:?}");
    let mut callers: Vec<usize> = Vec::new();
    for _ in 0..steps {
        match rng.u32(..10) {
            0..5 => {
                let cost = if rng.u32(..8) == 0 {
                    rng.u32(..10)
                } else {
                    rng.u32(1..4)
                };
                let max_wait = (rng.u32(..3) == 0).then(|| rng.u64(..30_000));
                let mut options = WaitOptions::new();
                if let Some(wait) = max_wait {
                    options = options.max_wait(Duration::from_micros(wait));
                }
                let (limiter, key) = (limiter.clone(), key.clone());
                let caller = simulation
                    .spawn(async move { limiter.until_ready_with(&key, cost, &options).await });
                reference.arrive(caller, cost, max_wait);
                callers.push(caller);
            }
            5 | 6 if !callers.is_empty() => {
                let caller = callers[rng.usize(..callers.len())];
                if simulation.is_waiting(caller) {
                    simulation.give_up(caller);
                    reference.give_up(caller);
                }
            }
            7 if disturbed => {
                let disturbance = disturbance(rng, kind);
                let now = simulation.clock.now();
                let apply = |operation| drop(limiter.apply(&key, now, &operation).unwrap());
                match &disturbance {
                    Disturbance::Reset => apply(Operation::Reset),
                    Disturbance::Block(period) => apply(Operation::Block {
                        period: Micros(*period),
                    }),
                    Disturbance::Unblock => apply(Operation::Unblock),
                    Disturbance::Refund(cost) => apply(Operation::Refund { cost: *cost }),
                    Disturbance::Change(rule, mode) => {
                        limiter.change(rule.policy().unwrap(), *mode, now);
                    }
                }
                simulation.run();
                reference.disturb(disturbance);
            }
            _ => {
                let until = simulation.now() + [0, 1, 300, 1_000, 5_000, 60_000][rng.usize(..6)];
                simulation.pass_to(until);
                reference.pass_to(until);
            }
        }
        compare(&simulation, &reference, &callers, &context);
    }
    simulation.finish();
    reference.pass_to(1 << 50);
    compare(&simulation, &reference, &callers, &context);
    assert_eq!(limiter.waiting(), 0, "{context}");
    assert!(
        callers.iter().all(|caller| !simulation.is_waiting(*caller)),
        "{context}"
    );
}

fn compare(
    simulation: &Simulation<'_, Result<tidegate::Decision, WaitError>>,
    reference: &Reference,
    callers: &[usize],
    context: &str,
) {
    for caller in callers {
        let got = simulation
            .done(*caller)
            .map(|(result, when)| (fate(result), when));
        let expected = reference.fates.get(caller).copied();
        assert_eq!(got, expected, "caller {caller}: {context}");
        if let Some((Ok(decision), when)) = simulation.done(*caller) {
            assert_eq!(decision.at.as_micros(), when, "caller {caller}: {context}");
        }
    }
}

/// A seed that differs from run to run.
fn seed_of_this_run() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

fn runs(disturbed: bool, runs: u64) {
    let base: u64 = std::env::var("TIDEGATE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(seed_of_this_run);
    println!("TIDEGATE_SEED={base}");
    for run_number in 0..runs {
        let seed = base.wrapping_add(run_number);
        run(
            seed,
            usize::try_from(run_number).unwrap() % KINDS,
            disturbed,
            60,
        );
    }
}

#[test]
fn everybody_is_served_in_order_and_at_the_very_microsecond() {
    runs(false, 1_600);
}

#[test]
fn changes_blocks_and_resets_reach_whoever_waits_at_once() {
    runs(true, 1_600);
}

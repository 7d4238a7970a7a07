//! A store under random calls, for the property tests.

use tidegate_conformance::generator::{Family, Generator, Options, Step};
use tidegate_conformance::model::{Answer, Int, Rule, Standing, timestamp};
use tidegate_conformance::{Memory, Subject};
use tidegate_core::Operation;

/// Every kind of limit.
pub const FAMILIES: [Family; 14] = [
    Family::Continuous,
    Family::ContinuousInitial,
    Family::Interval,
    Family::IntervalInitial,
    Family::Paced,
    Family::Epoch,
    Family::FirstUse,
    Family::Calendar,
    Family::AnyWindow,
    Family::Log,
    Family::Strict,
    Family::Interpolated,
    Family::Concurrency,
    Family::Lockout,
];

/// Scenarios per family.
const SEEDS: u64 = 200;
/// Steps of one scenario.
pub const STEPS: usize = 400;

/// Runs a property on each family, or on the one seed that the environment names.
pub fn hold(families: &[Family], property: impl Fn(u64, Family) -> Result<(), String>) {
    let alone = std::env::var("TIDEGATE_SEED")
        .ok()
        .map(|seed| seed.parse().expect("TIDEGATE_SEED is a number"));
    let seeds = alone.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    for family in families {
        for seed in seeds.clone() {
            if let Err(fault) = property(seed, *family) {
                panic!("seed {seed}, {family:?}: {fault}");
            }
        }
    }
}

/// A store under random calls.
pub struct Bench {
    pub generator: Generator,
    pub rules: Vec<Rule>,
    pub store: Memory,
}

impl Bench {
    pub fn new(seed: u64, families: &[Family], options: Options) -> Self {
        let generator = Generator::new(seed, families, options);
        let rules = generator.rules().to_vec();
        let policies: Vec<_> = rules.iter().map(|rule| rule.policy().unwrap()).collect();
        Self {
            generator,
            store: Memory::open(&policies),
            rules,
        }
    }

    /// The next operation on the first limit; changes and forgetting happen on the way.
    pub fn next_call(&mut self) -> (Int, u64, Operation) {
        loop {
            let (now, step) = self.generator.step();
            match step {
                Step::Call { key, operation, .. } => return (now, key, operation),
                Step::Change { limit, rule, mode } => {
                    let policy = rule.policy().unwrap();
                    assert!(self.store.change(limit, &policy, mode, timestamp(now)));
                }
                Step::Forget => self.store.forget(timestamp(now)),
                Step::AllOf(_) => unreachable!("no calls over several limits were asked for"),
            }
        }
    }

    pub fn ask(&mut self, now: Int, key: u64, operation: &Operation) -> Answer {
        let reply = self.store.apply(0, key, timestamp(now), operation);
        let answer = Answer::of(&reply);
        self.generator.learn(&answer);
        answer
    }

    pub fn standing(&mut self, now: Int, key: u64) -> Standing {
        match self.ask(now, key, &Operation::State) {
            Answer::Standing(standing) => standing,
            other => unreachable!("a state is answered by one: {other:?}"),
        }
    }
}

//! Lets a store and the model answer the same calls.

use std::collections::VecDeque;
use std::fmt;

use tidegate_core::Policy;

use crate::generator::{ClockKind, Family, Generator, Options, Step};
use crate::model::{Answer, AnyLimit, Grant, Int, JointAnswer, Rule, Ruling, all_of, timestamp};
use crate::subject::{Joint, Subject};

/// How many of the latest steps a difference shows.
const SHOWN: usize = 60;

/// A store that answered otherwise than the model.
#[derive(Clone, Debug)]
pub struct Difference {
    seed: u64,
    number: usize,
    rules: Vec<Rule>,
    steps: Vec<String>,
    expected: String,
    found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} differs at step {}", self.seed, self.number)?;
        for rule in &self.rules {
            writeln!(f, "  limit {rule:?}")?;
        }
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        writeln!(f, "  model {}", self.expected)?;
        write!(f, "  store {}", self.found)
    }
}

/// What a scenario came to, so that a test can see that it tested something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Answers compared.
    pub answers: usize,
    /// Demands that passed.
    pub allowed: usize,
    /// Demands that were refused.
    pub refused: usize,
    /// Changes of limits.
    pub changes: usize,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.allowed += other.allowed;
        self.refused += other.refused;
        self.changes += other.changes;
    }

    fn count(&mut self, step: &Step, ruling: Option<&Ruling>) {
        match step {
            Step::Change { .. } => self.changes += 1,
            Step::Forget => {}
            Step::Call { .. } | Step::AllOf(_) => self.answers += 1,
        }
        match ruling.map(|ruling| ruling.refusal) {
            Some(None) => self.allowed += 1,
            Some(Some(_)) => self.refused += 1,
            None => {}
        }
    }
}

/// An answer of either side.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Answer(Answer),
    Changed(bool),
    Joint(Option<JointAnswer>),
    Nothing,
}

impl Said {
    fn without_last(&mut self) {
        if let Self::Answer(Answer::Standing(standing)) = self {
            standing.last = 0;
        }
    }
}

/// The model and the store beside it.
struct Pair<S> {
    model: Vec<Box<dyn AnyLimit>>,
    store: S,
}

/// Whether a step may have to do with what a later one came to.
fn matters(earlier: &Step, later: &Step) -> bool {
    match (earlier, later) {
        (
            Step::Call { limit, key, .. },
            Step::Call {
                limit: later_limit,
                key: later_key,
                ..
            },
        ) => (limit, key) == (later_limit, later_key),
        _ => true,
    }
}

fn policy(rule: &Rule) -> Policy {
    rule.policy().expect("the generator draws valid rules")
}

fn joint(joint: &Joint) -> JointAnswer {
    JointAnswer {
        ruling: Ruling::of(&joint.decision),
        members: joint.members.iter().map(Ruling::of).collect(),
        grants: joint
            .grants
            .iter()
            .map(|grant| grant.as_ref().map(Grant::of))
            .collect(),
    }
}

impl<S: Subject> Pair<S> {
    /// What the model and the store say to a step.
    fn ask(&mut self, now: Int, step: &Step) -> (Said, Said) {
        let time = timestamp(now);
        match step {
            Step::Call {
                limit,
                key,
                operation,
            } => (
                Said::Answer(self.model[*limit].apply(*key, now, operation)),
                Said::Answer(Answer::of(&self.store.apply(*limit, *key, time, operation))),
            ),
            Step::Change { limit, rule, mode } => (
                Said::Changed(self.model[*limit].change(rule, *mode, now)),
                Said::Changed(self.store.change(*limit, &policy(rule), *mode, time)),
            ),
            Step::AllOf(members) => {
                let found = self.store.all_of(members, time);
                let found = found.expect("every demand is one of its limit");
                (
                    Said::Joint(all_of(&mut self.model, members, now)),
                    Said::Joint(found.as_ref().map(joint)),
                )
            }
            Step::Forget => {
                self.store.forget(time);
                (Said::Nothing, Said::Nothing)
            }
        }
    }
}

/// Runs one scenario.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// If the generator draws numbers that no limit can have.
pub fn scenario<S: Subject>(
    seed: u64,
    families: &[Family],
    options: Options,
    steps: usize,
    open: impl Fn(&[Policy]) -> S,
) -> Result<Tally, Box<Difference>> {
    let mut generator = Generator::new(seed, families, options);
    let rules = generator.rules().to_vec();
    let policies: Vec<Policy> = rules.iter().map(policy).collect();
    let mut pair = Pair {
        model: rules.iter().map(Rule::model).collect(),
        store: open(&policies),
    };
    let mut shown = VecDeque::new();
    let mut tally = Tally::default();
    for number in 0..steps {
        let (now, step) = generator.step();
        let (mut expected, mut found) = pair.ask(now, &step);
        if options.clock != ClockKind::Corrected {
            // A store that has forgotten a key does not know when it was last seen.
            expected.without_last();
            found.without_last();
        }
        if shown.len() == SHOWN {
            shown.pop_front();
        }
        if expected != found {
            let mut steps: Vec<String> = shown
                .iter()
                .filter(|(_, shown, _)| matters(shown, &step))
                .map(|(now, step, said)| format!("{now} {step:?} -> {said:?}"))
                .collect();
            steps.push(format!("{now} {step:?}"));
            return Err(Box::new(Difference {
                seed,
                number,
                rules,
                steps,
                expected: format!("{expected:?}"),
                found: format!("{found:?}"),
            }));
        }
        let ruling = match &expected {
            Said::Answer(answer) => {
                generator.learn(answer);
                answer.ruling()
            }
            Said::Joint(Some(joint)) => {
                generator.learn_ruling(&joint.ruling);
                Some(&joint.ruling)
            }
            _ => None,
        };
        tally.count(&step, ruling);
        shown.push_back((now, step, expected));
    }
    Ok(tally)
}

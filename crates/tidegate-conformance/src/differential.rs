//! Lets a store and the model answer the same calls.

use std::collections::VecDeque;
use std::fmt;

use tidegate_core::{OperationError, Policy, Reply, Timestamp};

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

/// What a store answered to a step.
#[derive(Clone, Debug)]
pub enum Found {
    /// To a call.
    Reply(Result<Reply, OperationError>),
    /// To a change: whether the algorithm stayed the same.
    Changed(bool),
    /// To a call over several limits; none without members.
    Joint(Option<Joint>),
    /// To what has no answer.
    Nothing,
}

impl Found {
    /// What a store answers to a step.
    ///
    /// # Panics
    /// If the store refuses a call over several limits all of whose demands are their limits'.
    pub fn by(store: &mut impl Subject, now: Timestamp, step: &Step) -> Self {
        match step {
            Step::Call {
                limit,
                key,
                operation,
            } => Self::Reply(store.apply(*limit, *key, now, operation)),
            Step::Change { limit, rule, mode } => {
                Self::Changed(store.change(*limit, &policy(rule), *mode, now))
            }
            Step::AllOf(members) => {
                let found = store.all_of(members, now);
                Self::Joint(found.expect("every demand is one of its limit"))
            }
            Step::Forget => {
                store.forget(now);
                Self::Nothing
            }
        }
    }
}

/// One scenario under way: which step comes next, and whether a store answered it rightly.
///
/// Whoever drives it asks the store in between. So a store that is far away can be asked the steps
/// of many scenarios at once.
pub struct Course {
    seed: u64,
    number: usize,
    generator: Generator,
    model: Vec<Box<dyn AnyLimit>>,
    rules: Vec<Rule>,
    /// Whether answers tell when a key was last seen: a store that has forgotten it cannot know.
    tells_last: bool,
    pending: Option<(Int, Step)>,
    shown: VecDeque<(Int, Step, Said)>,
    tally: Tally,
}

impl Course {
    /// Begins a scenario with one limit of each family.
    #[must_use]
    pub fn new(seed: u64, families: &[Family], options: Options) -> Self {
        let generator = Generator::new(seed, families, options);
        let rules = generator.rules().to_vec();
        Self {
            seed,
            number: 0,
            generator,
            model: rules.iter().map(Rule::model).collect(),
            rules,
            tells_last: options.clock == ClockKind::Corrected,
            pending: None,
            shown: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// The numbers that the limits begin with.
    ///
    /// # Panics
    /// If the generator draws numbers that no limit can have.
    #[must_use]
    pub fn policies(&self) -> Vec<Policy> {
        self.rules.iter().map(policy).collect()
    }

    /// What the scenario has come to so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// What to ask the store next, and at which time.
    pub fn step(&mut self) -> (Timestamp, Step) {
        let (now, step) = self.generator.step();
        self.pending = Some((now, step.clone()));
        (timestamp(now), step)
    }

    /// Compares the store's answer to the latest step with the model's.
    ///
    /// # Errors
    /// They differ.
    ///
    /// # Panics
    /// Without a step before.
    pub fn check(&mut self, found: &Found) -> Result<(), Box<Difference>> {
        let (now, step) = self.pending.take().expect("a step comes first");
        let mut expected = self.expected(now, &step);
        let mut found = match found {
            Found::Reply(reply) => Said::Answer(Answer::of(reply)),
            Found::Changed(changed) => Said::Changed(*changed),
            Found::Joint(found) => Said::Joint(found.as_ref().map(joint)),
            Found::Nothing => Said::Nothing,
        };
        if !self.tells_last {
            expected.without_last();
            found.without_last();
        }
        if expected != found {
            return Err(self.difference(now, &step, &expected, &found));
        }
        if self.shown.len() == SHOWN {
            self.shown.pop_front();
        }
        let ruling = match &expected {
            Said::Answer(answer) => {
                self.generator.learn(answer);
                answer.ruling()
            }
            Said::Joint(Some(joint)) => {
                self.generator.learn_ruling(&joint.ruling);
                Some(&joint.ruling)
            }
            _ => None,
        };
        self.tally.count(&step, ruling);
        self.shown.push_back((now, step, expected));
        self.number += 1;
        Ok(())
    }

    /// What the model says to a step.
    fn expected(&mut self, now: Int, step: &Step) -> Said {
        match step {
            Step::Call {
                limit,
                key,
                operation,
            } => Said::Answer(self.model[*limit].apply(*key, now, operation)),
            Step::Change { limit, rule, mode } => {
                Said::Changed(self.model[*limit].change(rule, *mode, now))
            }
            Step::AllOf(members) => Said::Joint(all_of(&mut self.model, members, now)),
            Step::Forget => Said::Nothing,
        }
    }

    fn difference(&self, now: Int, step: &Step, expected: &Said, found: &Said) -> Box<Difference> {
        let mut steps: Vec<String> = self
            .shown
            .iter()
            .filter(|(_, shown, _)| matters(shown, step))
            .map(|(now, step, said)| format!("{now} {step:?} -> {said:?}"))
            .collect();
        steps.push(format!("{now} {step:?}"));
        Box::new(Difference {
            seed: self.seed,
            number: self.number,
            rules: self.rules.clone(),
            steps,
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        })
    }
}

/// Runs one scenario.
///
/// # Errors
/// The first difference.
pub fn scenario<S: Subject>(
    seed: u64,
    families: &[Family],
    options: Options,
    steps: usize,
    open: impl Fn(&[Policy]) -> S,
) -> Result<Tally, Box<Difference>> {
    let mut course = Course::new(seed, families, options);
    let mut store = open(&course.policies());
    for _ in 0..steps {
        let (now, step) = course.step();
        course.check(&Found::by(&mut store, now, &step))?;
    }
    Ok(course.tally())
}

/// What kinds of scenarios a store is put through, by turns: one key under a clock that is
/// corrected at times, and some or many keys that the store may forget.
#[must_use]
pub const fn options(seed: u64) -> Options {
    match seed % 8 {
        0 | 2 | 4 => Options::CORRECTED,
        // More changes than a table tells apart, also between two calls of one key.
        3 => Options {
            changes: 30,
            ..Options::JITTERY
        },
        6 => Options {
            keys: 50,
            changes: 30,
            ..Options::JITTERY
        },
        1 => Options {
            keys: 200,
            ..Options::JITTERY
        },
        _ => Options::JITTERY,
    }
}

/// One family of every algorithm, for calls over several limits.
pub const EVERY_ALGORITHM: [Family; 9] = [
    Family::Continuous,
    Family::Interval,
    Family::Paced,
    Family::Epoch,
    Family::Log,
    Family::Strict,
    Family::Interpolated,
    Family::Concurrency,
    Family::Lockout,
];

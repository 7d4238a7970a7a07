//! A naive, exact model of every algorithm and every operation.
//!
//! It is written from the rules and not from the engine: one entry per event, a map of keys,
//! wide integers, a search instead of a formula for every wait, and a change of a limit reprices
//! all keys at once. It is meant to be obviously right and may be slow; what the engine answers
//! must equal what this answers, to the microsecond.
//!
//! [`Limit`] is what all algorithms share: the key's own time, blocks, and the rule that what is
//! refused writes nothing.

mod all_of;
mod answer;
mod concurrency;
mod fixed;
mod fluid;
mod interpolated;
mod interval;
mod lockout;
mod log;
mod numbers;
mod rule;
mod strict;
mod units;

use std::collections::HashMap;
use std::fmt::Debug;

use tidegate_core::{ChangeMode, Demand, Operation};

pub use all_of::{ModelMember, all_of};
pub use answer::{Answer, Grant, JointAnswer, Refusal, Ruling, Standing};
pub use concurrency::Leases;
pub use fixed::{Border, Fixed, Pattern};
pub use fluid::{Continuous, Paced};
pub use interpolated::TwoCells;
pub use interval::Interval;
pub use lockout::Bans;
pub use log::Log;
pub use numbers::{Int, LONGEST_WAIT, Moment, first};
pub use rule::{Rule, timestamp};
pub use strict::Cells;

/// A clock that steps back further than this has been corrected: one second.
pub const JITTER: Int = 1_000_000;

/// The longest period: 10 years.
const LONGEST_PERIOD: Int = 315_576_000_000_000;

/// What one algorithm does with the state of one key. All times are the key's own: `n` is never
/// before the latest time that the state has seen, and a state is always given as of `n`.
pub trait Algorithm: Clone + Debug + PartialEq + 'static {
    /// What is known of a key.
    type State: Clone + Debug;

    /// The numbers, if the rule is of this algorithm.
    fn of(rule: &Rule) -> Option<Self>;

    /// The most at once.
    fn limit(&self) -> Int;

    /// The state of a key that was never seen.
    fn fresh(&self, n: Int) -> Self::State;

    /// Lets time pass.
    fn age(&self, state: &mut Self::State, from: Int, to: Int);

    /// Moves all stored times back: the clock has been corrected.
    fn rebase(&self, state: &mut Self::State, from: Int, to: Int);

    /// Goes over to new numbers.
    fn change(&self, new: &Self, state: &mut Self::State, n: Int, mode: ChangeMode);

    /// What a demand would do; none if it has no meaning here.
    fn judge(&self, state: &Self::State, n: Int, demand: &Demand)
    -> Option<Judgement<Self::State>>;

    /// What is used, what is left, and when the limit is full again.
    fn standing(&self, state: &Self::State, n: Int) -> (Int, Int, Moment);

    /// What an operation does that only some algorithms have; none if it has no meaning here.
    fn special(
        &self,
        state: &Self::State,
        n: Int,
        operation: &Operation,
    ) -> Option<Special<Self::State>>;

    /// What is left of a state when the key is made fresh, and the latest time that this has
    /// seen; none if the key is forgotten.
    fn reset(&self, _state: &Self::State) -> Option<(Self::State, Int)> {
        None
    }

    /// Whether a key that was never seen would be no different.
    fn is_fresh(&self, state: &Self::State, n: Int) -> bool;

    /// Live leases.
    fn leases(&self, _state: &Self::State) -> Vec<Grant> {
        Vec::new()
    }
}

/// What a demand would do.
#[derive(Clone, Debug)]
pub struct Judgement<S> {
    /// Units asked for.
    pub cost: Int,
    /// None if it passes.
    pub refusal: Option<Refusal>,
    /// What is left: after the charge if it passes.
    pub remaining: Int,
    /// When an allowed caller may go on.
    pub goes: Moment,
    /// When it passes.
    pub passes: Moment,
    /// When the limit is full again: after the charge if it passes.
    pub full: Moment,
    /// The state after the charge; none if nothing is to be written.
    pub after: Option<S>,
    /// The lease that is granted.
    pub grant: Option<Grant>,
}

/// What an operation does that only some algorithms have.
#[derive(Clone, Debug)]
pub enum Special<S> {
    /// Answered like a take.
    Judged(Judgement<S>),
    /// Answered like a take, with a reservation.
    Reserved(Judgement<S>),
    /// A charge that no block stops.
    Forced(Judgement<S>),
    /// Anything else, and the state after it if it is to be written.
    Plain(Answer, Option<S>),
}

/// One key.
#[derive(Clone, Debug)]
struct Key<S> {
    state: S,
    /// The latest time that the key has seen.
    last: Int,
    /// The first moment that is not blocked.
    blocked_until: Int,
}

/// A key as it is at the moment of a call.
struct View<S> {
    key: Key<S>,
    /// The key's own time.
    n: Int,
    /// How far the caller's time is behind it.
    behind: Int,
}

impl<S> View<S> {
    /// A moment as a wait of the caller.
    fn wait(&self, moment: Moment) -> Option<Int> {
        let wait = moment? - self.n;
        if wait == 0 {
            return Some(0);
        }
        Some(wait + self.behind).filter(|wait| *wait <= LONGEST_WAIT)
    }

    fn is_blocked(&self) -> bool {
        self.key.blocked_until > self.n
    }

    /// The later of a moment and the end of the block.
    fn after_block(&self, moment: Moment) -> Moment {
        Some(moment?.max(self.key.blocked_until).max(self.n))
    }
}

/// All keys of one limit.
#[derive(Clone, Debug)]
pub struct Limit<A: Algorithm> {
    rule: A,
    keys: HashMap<u64, Key<A::State>>,
}

/// [`Limit`] of any algorithm.
pub trait AnyLimit {
    /// Answers an operation.
    fn apply(&mut self, key: u64, now: Int, operation: &Operation) -> Answer;

    /// Goes over to new numbers; false if they are those of another algorithm.
    fn change(&mut self, rule: &Rule, mode: ChangeMode, now: Int) -> bool;

    /// Whether the demand has a meaning here.
    fn knows(&self, demand: &Demand) -> bool;

    /// Whether a key could still be answered otherwise than one that was never seen.
    fn could_deny(&self, key: u64, now: Int) -> bool;
}

impl<A: Algorithm> Limit<A> {
    /// No keys yet.
    #[must_use]
    pub fn new(rule: A) -> Self {
        Self {
            rule,
            keys: HashMap::new(),
        }
    }

    /// The key as of now. Of a clock that has been corrected, that is written down.
    fn view(&mut self, key: u64, now: Int) -> View<A::State> {
        let Some(stored) = self.keys.get_mut(&key) else {
            return View {
                key: Key {
                    state: self.rule.fresh(now),
                    last: now,
                    blocked_until: 0,
                },
                n: now,
                behind: 0,
            };
        };
        if stored.last - now > JITTER {
            self.rule.rebase(&mut stored.state, stored.last, now);
            stored.blocked_until -= stored.last - now;
            stored.last = now;
        }
        let mut key = stored.clone();
        let n = now.max(key.last);
        self.rule.age(&mut key.state, key.last, n);
        View {
            key,
            n,
            behind: n - now,
        }
    }

    fn write(&mut self, key: u64, view: &View<A::State>, state: A::State) {
        let written = Key {
            state,
            last: view.n,
            blocked_until: view.key.blocked_until,
        };
        self.keys.insert(key, written);
    }

    /// A judgement in the caller's terms. `judge` says what it would be at a later time.
    fn rule_on(
        &self,
        view: &View<A::State>,
        judged: &Judgement<A::State>,
        judge: impl Fn(&A::State, Int) -> Judgement<A::State>,
    ) -> Ruling {
        let mut ruling = Ruling {
            refusal: judged.refusal,
            limit: self.rule.limit(),
            remaining: judged.remaining,
            cost: judged.cost,
            delay: Some(0),
            retry_after: Some(0),
            reset_after: view.wait(judged.full),
            at: view.n,
            binding: 0,
            shadow: false,
        };
        if view.is_blocked() {
            let (_, _, full) = self.rule.standing(&view.key.state, view.n);
            ruling.remaining = 0;
            ruling.reset_after = view.wait(view.after_block(full));
            if judged.refusal != Some(Refusal::Impossible) {
                let end = view.key.blocked_until;
                let mut then = view.key.state.clone();
                self.rule.age(&mut then, view.n, end);
                ruling.refusal = Some(Refusal::Blocked);
                ruling.retry_after = view.wait(judge(&then, end).passes);
                return ruling;
            }
        }
        if judged.refusal.is_some() {
            ruling.retry_after = view.wait(judged.passes);
        } else {
            ruling.delay = view.wait(judged.goes);
        }
        ruling
    }

    /// Charges, if that is what the ruling says.
    fn settle(
        &mut self,
        key: u64,
        view: &View<A::State>,
        ruling: &Ruling,
        judged: Judgement<A::State>,
    ) -> Option<Grant> {
        if ruling.refusal.is_some() {
            return None;
        }
        if let Some(after) = judged.after {
            self.write(key, view, after);
        }
        judged.grant
    }

    fn special(&mut self, key: u64, view: &View<A::State>, operation: &Operation) -> Answer {
        let again = |state: &A::State, n| match self.rule.special(state, n, operation) {
            Some(Special::Judged(judged) | Special::Reserved(judged)) => judged,
            other => unreachable!("the operation was judged a moment ago, now {other:?}"),
        };
        match self.rule.special(&view.key.state, view.n, operation) {
            None => Answer::Unsupported,
            Some(Special::Judged(judged)) => {
                let ruling = self.rule_on(view, &judged, again);
                self.settle(key, view, &ruling, judged);
                Answer::Ruling(ruling)
            }
            Some(Special::Reserved(judged)) => {
                let ruling = self.rule_on(view, &judged, again);
                self.settle(key, view, &ruling, judged);
                let made = (ruling.cost, view.n);
                let made = ruling.refusal.is_none().then_some(made);
                Answer::Reserved(ruling, made)
            }
            Some(Special::Forced(judged)) => {
                let mut ruling = Ruling {
                    refusal: None,
                    limit: self.rule.limit(),
                    remaining: judged.remaining,
                    cost: judged.cost,
                    delay: Some(0),
                    retry_after: Some(0),
                    reset_after: view.wait(judged.full),
                    at: view.n,
                    binding: 0,
                    shadow: false,
                };
                if view.is_blocked() {
                    ruling.remaining = 0;
                    ruling.reset_after = view.wait(view.after_block(judged.full));
                }
                self.settle(key, view, &ruling, judged);
                Answer::Ruling(ruling)
            }
            Some(Special::Plain(answer, after)) => {
                if let Some(after) = after {
                    self.write(key, view, after);
                }
                answer
            }
        }
    }
}

impl<A: Algorithm> AnyLimit for Limit<A> {
    fn apply(&mut self, key: u64, now: Int, operation: &Operation) -> Answer {
        if let Operation::Block { period } = operation
            && Int::from(period.0) > LONGEST_PERIOD
        {
            return Answer::OutOfRange;
        }
        if !self.supports(operation) {
            return Answer::Unsupported;
        }
        let mut view = self.view(key, now);
        match operation {
            Operation::Take(demand) | Operation::Peek(demand) => {
                let judge = |state: &A::State, n| {
                    let judged = self.rule.judge(state, n, demand);
                    judged.expect("the demand has a meaning here")
                };
                let judged = judge(&view.key.state, view.n);
                let ruling = self.rule_on(&view, &judged, judge);
                let grant = match operation {
                    Operation::Take(_) => self.settle(key, &view, &ruling, judged),
                    _ => None,
                };
                match demand {
                    Demand::Acquire { .. } => Answer::Leased(ruling, grant),
                    _ => Answer::Ruling(ruling),
                }
            }
            Operation::Reset => {
                let stored = self.keys.remove(&key);
                let left = self.rule.reset(&view.key.state);
                if let (Some(stored), Some((state, seen))) = (stored, left) {
                    let rest = Key {
                        state,
                        last: stored.last.min(seen),
                        blocked_until: 0,
                    };
                    self.keys.insert(key, rest);
                }
                Answer::Done
            }
            Operation::Block { period } => {
                if period.0 > 0 {
                    view.key.blocked_until = view.n + Int::from(period.0);
                    let state = view.key.state.clone();
                    self.write(key, &view, state);
                }
                Answer::Done
            }
            Operation::Unblock => {
                if let Some(key) = self.keys.get_mut(&key) {
                    key.blocked_until = 0;
                }
                Answer::Done
            }
            Operation::State => {
                let (used, mut remaining, mut full) = self.rule.standing(&view.key.state, view.n);
                let mut blocked_for = 0;
                if view.is_blocked() {
                    remaining = 0;
                    full = view.after_block(full);
                    blocked_for = view.key.blocked_until - view.n + view.behind;
                }
                Answer::Standing(Standing {
                    limit: self.rule.limit(),
                    used: used.min(units::MOST_COUNTED),
                    remaining,
                    reset_after: view.wait(full),
                    blocked_for,
                    last: view.key.last,
                    leases: self.rule.leases(&view.key.state),
                })
            }
            other => self.special(key, &view, other),
        }
    }

    fn change(&mut self, rule: &Rule, mode: ChangeMode, now: Int) -> bool {
        let Some(new) = A::of(rule) else {
            return false;
        };
        if new == self.rule {
            return true;
        }
        let keys: Vec<u64> = self.keys.keys().copied().collect();
        for key in keys {
            // The change is an event that every key sees.
            let view = self.view(key, now);
            let mut state = view.key.state.clone();
            self.rule.change(&new, &mut state, view.n, mode);
            self.write(key, &view, state);
        }
        self.rule = new;
        true
    }

    fn knows(&self, demand: &Demand) -> bool {
        self.supports(&Operation::Take(*demand))
    }

    fn could_deny(&self, key: u64, now: Int) -> bool {
        let Some(key) = self.keys.get(&key) else {
            return false;
        };
        let n = now.max(key.last);
        let mut state = key.state.clone();
        self.rule.age(&mut state, key.last, n);
        key.blocked_until > n || !self.rule.is_fresh(&state, n)
    }
}

impl<A: Algorithm> Limit<A> {
    /// Whether the operation has a meaning here: asked of a key that was never seen.
    fn supports(&self, operation: &Operation) -> bool {
        let fresh = self.rule.fresh(0);
        match operation {
            Operation::Take(demand) | Operation::Peek(demand) => {
                self.rule.judge(&fresh, 0, demand).is_some()
            }
            Operation::Reset | Operation::Block { .. } | Operation::Unblock | Operation::State => {
                true
            }
            other => self.rule.special(&fresh, 0, other).is_some(),
        }
    }
}

//! What all algorithms have in common that count units.
//!
//! Each of them only says how many parts of a unit are used at a given time if nothing else
//! happens; all verdicts and all waits follow from that.

use std::fmt::Debug;

use tidegate_core::{ChangeMode, Demand, Operation};

use super::answer::{Answer, Refusal};
use super::numbers::{Int, LONGEST_DELAY, Moment, ceil_div, first};
use super::{Algorithm, Judgement, Rule, Special};

/// An algorithm that counts units.
pub trait Units: Clone + Debug + PartialEq + 'static {
    /// What is known of a key.
    type Count: Clone + Debug;

    /// See [`Algorithm::of`].
    fn of(rule: &Rule) -> Option<Self>;

    /// The most units at once.
    fn capacity(&self) -> Int;

    /// How many parts make one unit: all counts of parts are whole numbers.
    fn parts(&self) -> Int {
        1
    }

    /// See [`Algorithm::fresh`].
    fn fresh(&self, n: Int) -> Self::Count;

    /// See [`Algorithm::age`].
    fn age(&self, count: &mut Self::Count, from: Int, to: Int);

    /// See [`Algorithm::rebase`].
    fn rebase(&self, count: &mut Self::Count, from: Int, to: Int);

    /// See [`Algorithm::change`].
    fn change(&self, new: &Self, count: &mut Self::Count, n: Int, mode: ChangeMode);

    /// Parts used at `t >= n` if nothing happens until then.
    fn used(&self, count: &Self::Count, n: Int, t: Int) -> Int;

    /// Whether a key that was never seen would be no different.
    fn is_fresh(&self, count: &Self::Count, n: Int) -> bool {
        self.used(count, n, n) == 0
    }

    /// Charges whole units, whatever is left.
    fn charge(&self, count: &mut Self::Count, n: Int, units: Int);

    /// Takes back up to so many units, of the charge made at a time if that is known. Returns how
    /// many came back.
    fn give_back(&self, count: &mut Self::Count, n: Int, units: Int, at: Option<Int>) -> Int;

    /// Charges up to `units` more, but not beyond twice the capacity.
    fn force(&self, count: &mut Self::Count, n: Int, units: Int) {
        let used = ceil_div(self.used(count, n, n), self.parts());
        let room = (2 * self.capacity() - used).max(0);
        self.charge(count, n, units.min(room));
    }

    /// Under which terms a take passes.
    fn terms(&self) -> Terms {
        let all = self.capacity() * self.parts();
        Terms {
            allowance: all,
            free: all,
            lent: false,
        }
    }

    /// Under which terms a reservation passes, if not those of a take.
    fn lending_terms(&self, _max_wait: Int) -> Terms {
        self.terms()
    }

    /// What a reservation would do.
    fn judge_reservation(
        &self,
        count: &Self::Count,
        n: Int,
        units: Int,
        max_wait: Int,
    ) -> Judgement<Self::Count> {
        judge(self, count, n, units, self.lending_terms(max_wait))
    }
}

/// How many parts may be in use.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Up to this a charge passes.
    pub allowance: Int,
    /// Up to this it passes without a delay.
    pub free: Int,
    /// Whether what is beyond that is lent: then a reservation of nothing asks how long it would
    /// take until nothing is lent.
    pub lent: bool,
}

/// What a charge would do.
pub fn judge<U: Units>(
    rule: &U,
    count: &U::Count,
    n: Int,
    units: Int,
    terms: Terms,
) -> Judgement<U::Count> {
    let asked = units * rule.parts();
    let fits = |t: Int| rule.used(count, n, t) + asked <= terms.allowance;
    if asked > terms.allowance || terms.lent && units > rule.capacity() {
        return refused(rule, count, n, units, Refusal::Impossible, None);
    }
    let passes = first(n, fits);
    if passes != Some(n) {
        return refused(rule, count, n, units, Refusal::Limited, passes);
    }
    let mut after = count.clone();
    if units > 0 {
        rule.charge(&mut after, n, units);
    }
    let goes = if units > 0 || terms.lent {
        first(n, |t| rule.used(&after, n, t) <= terms.free)
    } else {
        Some(n)
    };
    Judgement {
        cost: units,
        refusal: None,
        remaining: left(rule, &after, n, rule.terms()),
        goes,
        passes,
        full: full(rule, &after, n),
        after: (units > 0).then_some(after),
        grant: None,
    }
}

/// A refusal: all is told as things stand.
pub fn refused<U: Units>(
    rule: &U,
    count: &U::Count,
    n: Int,
    units: Int,
    refusal: Refusal,
    passes: Moment,
) -> Judgement<U::Count> {
    Judgement {
        cost: units,
        refusal: Some(refusal),
        remaining: left(rule, count, n, rule.terms()),
        goes: Some(n),
        passes,
        full: full(rule, count, n),
        after: None,
        grant: None,
    }
}

/// Whole units left.
pub fn left<U: Units>(rule: &U, count: &U::Count, n: Int, terms: Terms) -> Int {
    (terms.allowance - rule.used(count, n, n)).max(0) / rule.parts()
}

/// When nothing is used any more.
pub fn full<U: Units>(rule: &U, count: &U::Count, n: Int) -> Moment {
    first(n, |t| rule.used(count, n, t) == 0)
}

/// No window counts further than this.
pub const MOST_COUNTED: Int = u32::MAX as Int;

/// Units in use after a change of the capacity from `old` to `new`, where whole units are counted.
pub fn converted(mode: ChangeMode, used: Int, old: Int, new: Int) -> Int {
    match mode {
        _ if used == 0 => 0,
        ChangeMode::KeepUsed => used,
        ChangeMode::Proportional if old == 0 => used,
        ChangeMode::Proportional => ceil_div(used * new, old).min(MOST_COUNTED),
        ChangeMode::KeepAvailable => new - (old - used).max(0).min(new),
        ChangeMode::Reset => 0,
    }
}

impl<U: Units> Algorithm for U {
    type State = U::Count;

    fn of(rule: &Rule) -> Option<Self> {
        <U as Units>::of(rule)
    }

    fn limit(&self) -> Int {
        self.capacity()
    }

    fn fresh(&self, n: Int) -> U::Count {
        Units::fresh(self, n)
    }

    fn age(&self, state: &mut U::Count, from: Int, to: Int) {
        Units::age(self, state, from, to);
    }

    fn rebase(&self, state: &mut U::Count, from: Int, to: Int) {
        Units::rebase(self, state, from, to);
    }

    fn change(&self, new: &Self, state: &mut U::Count, n: Int, mode: ChangeMode) {
        // What equals a key that was never seen stays so: a store may have forgotten it.
        if mode == ChangeMode::Reset || Units::is_fresh(self, state, n) {
            *state = Units::fresh(new, n);
        } else {
            Units::change(self, new, state, n, mode);
        }
    }

    fn is_fresh(&self, state: &U::Count, n: Int) -> bool {
        Units::is_fresh(self, state, n)
    }

    fn judge(&self, state: &U::Count, n: Int, demand: &Demand) -> Option<Judgement<U::Count>> {
        match demand {
            Demand::Take { cost } => Some(judge(self, state, n, (*cost).into(), self.terms())),
            _ => None,
        }
    }

    fn standing(&self, state: &U::Count, n: Int) -> (Int, Int, Moment) {
        let used = ceil_div(self.used(state, n, n), self.parts());
        let left = left(self, state, n, self.terms());
        (used, left, full(self, state, n))
    }

    fn special(
        &self,
        state: &U::Count,
        n: Int,
        operation: &Operation,
    ) -> Option<Special<U::Count>> {
        Some(match operation {
            Operation::TakeUpTo { cost } => {
                let most = left(self, state, n, self.terms()).max(1);
                let units = Int::from(*cost).min(most);
                Special::Judged(judge(self, state, n, units, self.terms()))
            }
            Operation::Reserve { cost, max_wait } => {
                let longest = Int::from(max_wait.0).min(LONGEST_DELAY);
                Special::Reserved(self.judge_reservation(state, n, (*cost).into(), longest))
            }
            Operation::Force { cost } => Special::Forced(forced(self, state, n, (*cost).into())),
            Operation::Refund { cost } => given_back(self, state, n, (*cost).into(), None),
            Operation::Cancel { reservation } => {
                let at = reservation.at.as_micros().into();
                given_back(self, state, n, reservation.cost.into(), Some(at))
            }
            Operation::Settle {
                reservation,
                actual,
            } => {
                let more = Int::from(*actual) - Int::from(reservation.cost);
                if more > 0 {
                    let after = forced(self, state, n, more).after;
                    Special::Plain(Answer::Refunded(0), after)
                } else {
                    let at = reservation.at.as_micros().into();
                    given_back(self, state, n, -more, Some(at))
                }
            }
            _ => return None,
        })
    }
}

fn forced<U: Units>(rule: &U, count: &U::Count, n: Int, units: Int) -> Judgement<U::Count> {
    let mut after = count.clone();
    if units > 0 {
        rule.force(&mut after, n, units);
    }
    Judgement {
        cost: units,
        refusal: None,
        remaining: left(rule, &after, n, rule.terms()),
        goes: Some(n),
        passes: Some(n),
        full: full(rule, &after, n),
        after: (units > 0).then_some(after),
        grant: None,
    }
}

fn given_back<U: Units>(
    rule: &U,
    count: &U::Count,
    n: Int,
    units: Int,
    at: Option<Int>,
) -> Special<U::Count> {
    let mut after = count.clone();
    let back = if units > 0 {
        rule.give_back(&mut after, n, units, at)
    } else {
        0
    };
    Special::Plain(Answer::Refunded(back), (back > 0).then_some(after))
}

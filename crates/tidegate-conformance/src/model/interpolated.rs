//! Two counters, the older one weighted by what is still in view of its window.

use tidegate_core::ChangeMode;

use super::Rule;
use super::numbers::{Int, ceil_div};
use super::units::{Units, converted};

/// A two-cell weighted counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoCells {
    /// The number per period.
    pub limit: Int,
    /// The length of a cell.
    pub period: Int,
}

/// What was counted in the cell of the key's own time, and in the one before.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    previous: Int,
    current: Int,
}

impl Units for TwoCells {
    type Count = Counts;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::TwoCells(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.limit
    }

    fn parts(&self) -> Int {
        self.period
    }

    fn fresh(&self, _: Int) -> Counts {
        Counts {
            previous: 0,
            current: 0,
        }
    }

    fn age(&self, counts: &mut Counts, from: Int, to: Int) {
        let cells = to.div_euclid(self.period) - from.div_euclid(self.period);
        for _ in 0..cells.min(2) {
            counts.previous = counts.current;
            counts.current = 0;
        }
    }

    /// The counts move into the cells of the corrected time.
    fn rebase(&self, _: &mut Counts, _: Int, _: Int) {}

    fn change(&self, new: &Self, counts: &mut Counts, n: Int, mode: ChangeMode) {
        if mode == ChangeMode::KeepUsed {
            return;
        }
        let used = ceil_div(self.used(counts, n, n), self.period);
        counts.previous = 0;
        counts.current = converted(mode, used, self.limit, new.limit);
    }

    fn used(&self, counts: &Counts, n: Int, t: Int) -> Int {
        let mut then = *counts;
        self.age(&mut then, n, t);
        let elapsed = t.rem_euclid(self.period);
        then.previous * (self.period - elapsed) + then.current * self.period
    }

    fn charge(&self, counts: &mut Counts, _: Int, units: Int) {
        counts.current += units;
    }

    fn give_back(&self, counts: &mut Counts, n: Int, units: Int, at: Option<Int>) -> Int {
        let start = n.div_euclid(self.period) * self.period;
        if at.is_some_and(|at| at < start) {
            return 0;
        }
        let back = units.min(counts.current);
        counts.current -= back;
        back
    }
}

//! The sliding window of counted cells that keeps the promise of the exact one.

use tidegate_core::ChangeMode;

use super::Rule;
use super::log::{Event, scale, take_from_newest, total};
use super::numbers::{Int, ceil_div};
use super::units::{Units, converted};

/// Never more than so many in any window, counted in cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The most in a window.
    pub limit: Int,
    /// The length of a window.
    pub period: Int,
    /// Into how many cells it is cut.
    pub cells: Int,
}

impl Cells {
    fn cell_length(&self) -> Int {
        ceil_div(self.period, self.cells)
    }

    fn cell(&self, t: Int) -> Int {
        t.div_euclid(self.cell_length())
    }

    /// The newest cell that is no longer summed at `t`.
    fn gone(&self, t: Int) -> Int {
        let summed = ceil_div(self.period, self.cell_length()) + 1;
        self.cell(t) - summed
    }
}

impl Units for Cells {
    /// One event per charge; its time is the number of its cell.
    type Count = Vec<Event>;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Cells(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.limit
    }

    fn fresh(&self, _: Int) -> Vec<Event> {
        Vec::new()
    }

    fn age(&self, events: &mut Vec<Event>, _: Int, to: Int) {
        events.retain(|event| event.at > self.gone(to));
    }

    /// By whole cells, rounded towards later.
    fn rebase(&self, events: &mut Vec<Event>, from: Int, to: Int) {
        for event in events {
            event.at -= (from - to).div_euclid(self.cell_length());
        }
    }

    fn change(&self, new: &Self, events: &mut Vec<Event>, n: Int, mode: ChangeMode) {
        let target = converted(mode, total(events), self.limit, new.limit);
        let recut = self.cell_length() != new.cell_length();
        for event in events.iter_mut().filter(|_| recut) {
            let last_moment = (event.at + 1) * self.cell_length() - 1;
            event.at = new.cell(last_moment.min(n));
        }
        scale(events, target, new.cell(n));
    }

    fn used(&self, events: &Vec<Event>, _: Int, t: Int) -> Int {
        let gone = self.gone(t);
        let in_window = events.iter().filter(|event| event.at > gone);
        in_window.map(|event| event.units).sum()
    }

    fn charge(&self, events: &mut Vec<Event>, n: Int, units: Int) {
        events.push(Event {
            at: self.cell(n),
            units,
        });
    }

    fn give_back(&self, events: &mut Vec<Event>, _: Int, units: Int, at: Option<Int>) -> Int {
        let cell = at.map(|at| self.cell(at));
        take_from_newest(events, units, |event| {
            cell.is_none_or(|cell| event.at == cell)
        })
    }
}

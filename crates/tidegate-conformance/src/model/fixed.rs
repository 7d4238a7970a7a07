//! A count per window.

use tidegate_core::ChangeMode;

use super::Rule;
use super::numbers::Int;
use super::units::{Units, converted};

/// Windows of unequal length that repeat from the epoch on: a calendar of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub Vec<Int>);

impl Pattern {
    /// First point in time of the window that contains `t`, and first point after it.
    #[must_use]
    pub fn window(&self, t: Int) -> (Int, Int) {
        let whole: Int = self.0.iter().sum();
        let mut start = t.div_euclid(whole) * whole;
        for length in &self.0 {
            if t < start + length {
                return (start, start + length);
            }
            start += length;
        }
        unreachable!("t is inside of its repetition");
    }
}

/// Where windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Border {
    /// At whole multiples of the period.
    Epoch,
    /// At the first charge.
    FirstUse,
    /// Where a calendar says.
    Calendar(Pattern),
}

/// A count per window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The most per window.
    pub limit: Int,
    /// The length of a window; not used with a calendar.
    pub period: Int,
    /// Where windows begin.
    pub border: Border,
}

/// What was counted in the window of the key's own time.
#[derive(Clone, Copy, Debug)]
pub struct InWindow {
    used: Int,
    /// Where a window from first use began.
    began: Int,
}

impl Fixed {
    /// The window that the key is in at `t`.
    fn window(&self, count: &InWindow, t: Int) -> (Int, Int) {
        match &self.border {
            Border::Epoch => {
                let start = t.div_euclid(self.period) * self.period;
                (start, start + self.period)
            }
            Border::FirstUse => (count.began, count.began + self.period),
            Border::Calendar(pattern) => pattern.window(t),
        }
    }
}

impl Units for Fixed {
    type Count = InWindow;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Fixed(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.limit
    }

    fn fresh(&self, n: Int) -> InWindow {
        InWindow { used: 0, began: n }
    }

    fn age(&self, count: &mut InWindow, from: Int, to: Int) {
        count.used = self.used(count, from, to);
    }

    /// The count moves along; so does the beginning of a window from first use.
    fn rebase(&self, count: &mut InWindow, from: Int, to: Int) {
        count.began -= from - to;
    }

    fn change(&self, new: &Self, count: &mut InWindow, n: Int, mode: ChangeMode) {
        if self.border != Border::FirstUse || count.used == 0 {
            count.began = n;
        }
        count.used = converted(mode, count.used, self.limit, new.limit);
    }

    fn used(&self, count: &InWindow, n: Int, t: Int) -> Int {
        let (_, end) = self.window(count, n);
        if t < end { count.used } else { 0 }
    }

    fn charge(&self, count: &mut InWindow, n: Int, units: Int) {
        if count.used == 0 {
            count.began = n;
        }
        count.used += units;
    }

    fn give_back(&self, count: &mut InWindow, n: Int, units: Int, at: Option<Int>) -> Int {
        let (start, _) = self.window(count, n);
        if at.is_some_and(|at| at < start) {
            return 0;
        }
        let back = units.min(count.used);
        count.used -= back;
        back
    }
}

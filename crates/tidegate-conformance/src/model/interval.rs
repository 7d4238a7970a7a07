//! The token bucket that refills at once every interval.

use tidegate_core::ChangeMode;

use super::Rule;
use super::numbers::{Int, ceil_div};
use super::units::Units;

/// A token bucket with an interval refill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Tokens that come at once.
    pub count: Int,
    /// Every so many microseconds.
    pub period: Int,
    /// Tokens in a full bucket.
    pub capacity: Int,
    /// Tokens of a bucket that nobody touched, and when it had them.
    pub initial: Option<(Int, Int)>,
}

/// Tokens in use, and the grid that refills lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gridded {
    used: Int,
    /// The latest point of the grid that is not in the future; none before the first charge.
    point: Option<Int>,
}

impl Interval {
    /// How many refills bring so many tokens.
    fn refills(&self, tokens: Int) -> Option<Int> {
        match (tokens, self.count) {
            (..=0, _) => Some(0),
            (_, 0) => None,
            (tokens, count) => Some(ceil_div(tokens, count)),
        }
    }

    /// Points of the grid after `point` up to `t`.
    fn passed(&self, point: Int, t: Int) -> Int {
        (t - point).div_euclid(self.period).max(0)
    }
}

impl Units for Interval {
    type Count = Gridded;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Interval(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.capacity
    }

    fn fresh(&self, n: Int) -> Gridded {
        let mut count = Gridded {
            used: 0,
            point: None,
        };
        if let Some((initial, since)) = self.initial
            && initial < self.capacity
        {
            count.used = self.capacity - initial;
            count.point = Some(since.min(n));
            self.age(&mut count, n, n);
        }
        count
    }

    fn is_fresh(&self, count: &Gridded, n: Int) -> bool {
        *count == Units::fresh(self, n)
    }

    fn age(&self, count: &mut Gridded, _: Int, to: Int) {
        let Some(point) = count.point else {
            return;
        };
        let passed = self.passed(point, to);
        // Full for a whole further interval: as good as fresh.
        let fresh = match self.refills(count.used) {
            Some(needed) => passed > needed || (count.used == 0 && self.count == 0),
            None => false,
        };
        if fresh {
            count.used = 0;
            count.point = None;
        } else {
            count.used = (count.used - passed * self.count).max(0);
            count.point = Some(point + passed * self.period);
        }
    }

    fn rebase(&self, count: &mut Gridded, from: Int, to: Int) {
        count.point = count.point.map(|point| point - (from - to));
    }

    fn change(&self, new: &Self, count: &mut Gridded, n: Int, mode: ChangeMode) {
        let (used, old) = (count.used, self.capacity);
        count.used = match mode {
            ChangeMode::KeepUsed => used.min(new.capacity),
            _ if used == 0 => 0,
            ChangeMode::Proportional if old == 0 => 0,
            ChangeMode::Proportional => ceil_div(used * new.capacity, old).min(new.capacity),
            ChangeMode::KeepAvailable => new.capacity - (old - used).max(0).min(new.capacity),
            ChangeMode::Reset => 0,
        };
        if count.used > 0 && count.point.is_none() {
            count.point = Some(n);
        }
        new.age(count, n, n);
    }

    fn used(&self, count: &Gridded, _: Int, t: Int) -> Int {
        match count.point {
            Some(point) => (count.used - self.passed(point, t) * self.count).max(0),
            None => 0,
        }
    }

    fn charge(&self, count: &mut Gridded, n: Int, units: Int) {
        count.used += units;
        count.point = count.point.or(Some(n));
    }

    fn give_back(&self, count: &mut Gridded, _: Int, units: Int, _: Option<Int>) -> Int {
        let back = units.min(count.used);
        count.used -= back;
        back
    }
}

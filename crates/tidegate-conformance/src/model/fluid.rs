//! What flows back evenly: the continuous token bucket and the paced queue.

use tidegate_core::ChangeMode;

use super::numbers::{Int, LONGEST_DELAY, ceil_div, common_divisor, mul_div, mul_div_up};
use super::units::{Terms, Units, judge};
use super::{Judgement, Rule};

/// So many per so many microseconds, without a common divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    count: Int,
    period: Int,
}

impl Flow {
    fn new(count: Int, period: Int) -> Self {
        let divisor = common_divisor(count, period);
        Self {
            count: count / divisor,
            period: period / divisor,
        }
    }
}

/// What is missing to full at the key's own time, in parts of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Missing(Int);

fn drained(missing: Missing, flow: Flow, time: Int) -> Int {
    (missing.0 - flow.count * time).max(0)
}

/// The deficit after a change from `old` parts (of `old_capacity` in all) to new ones.
fn repriced(
    mode: ChangeMode,
    used: Int,
    (old_capacity, old_parts): (Int, Int),
    (new_capacity, new_parts): (Int, Int),
) -> Int {
    let (old_full, new_full) = (old_capacity * old_parts, new_capacity * new_parts);
    match mode {
        ChangeMode::KeepUsed => mul_div_up(used, new_parts, old_parts).min(new_full),
        ChangeMode::Proportional if old_full == 0 => 0,
        ChangeMode::Proportional => mul_div_up(used, new_full, old_full).min(new_full),
        ChangeMode::KeepAvailable => {
            let available = (old_full - used).max(0);
            new_full - mul_div(available, new_parts, old_parts).0.min(new_full)
        }
        ChangeMode::Reset => 0,
    }
}

/// A continuous token bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuous {
    /// Tokens that come back.
    pub count: Int,
    /// Per so many microseconds.
    pub period: Int,
    /// Tokens in a full bucket.
    pub capacity: Int,
    /// Tokens of a bucket that nobody touched, and when it had them.
    pub initial: Option<(Int, Int)>,
}

impl Continuous {
    fn flow(&self) -> Flow {
        Flow::new(self.count, self.period)
    }
}

impl Units for Continuous {
    type Count = Missing;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Continuous(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.capacity
    }

    fn parts(&self) -> Int {
        self.flow().period
    }

    fn fresh(&self, n: Int) -> Missing {
        let Some((initial, since)) = self.initial else {
            return Missing(0);
        };
        let missing = Missing((self.capacity - initial) * self.parts());
        Missing(drained(missing, self.flow(), (n - since).max(0)))
    }

    fn is_fresh(&self, count: &Missing, n: Int) -> bool {
        count.0 == Units::fresh(self, n).0
    }

    fn age(&self, count: &mut Missing, from: Int, to: Int) {
        count.0 = drained(*count, self.flow(), to - from);
    }

    fn rebase(&self, _: &mut Missing, _: Int, _: Int) {}

    fn change(&self, new: &Self, count: &mut Missing, _: Int, mode: ChangeMode) {
        let old = (self.capacity, self.parts());
        count.0 = repriced(mode, count.0, old, (new.capacity, new.parts()));
    }

    fn used(&self, count: &Missing, n: Int, t: Int) -> Int {
        drained(*count, self.flow(), t - n)
    }

    fn charge(&self, count: &mut Missing, _: Int, units: Int) {
        count.0 += units * self.parts();
    }

    fn force(&self, count: &mut Missing, _: Int, units: Int) {
        let most = 2 * self.capacity * self.parts();
        count.0 = count.0.max(most.min(count.0 + units * self.parts()));
    }

    fn give_back(&self, count: &mut Missing, _: Int, units: Int, _: Option<Int>) -> Int {
        let back = units.min(ceil_div(count.0, self.parts()));
        count.0 = (count.0 - units * self.parts()).max(0);
        back
    }

    fn lending_terms(&self, max_wait: Int) -> Terms {
        let flow = self.flow();
        let full = self.capacity * flow.period;
        Terms {
            allowance: (2 * full).min(full + flow.count * max_wait),
            free: full,
            lent: true,
        }
    }
}

/// A paced queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paced {
    /// Callers that leave.
    pub count: Int,
    /// Per so many microseconds.
    pub period: Int,
    /// Callers that may wait.
    pub queue: Int,
    /// Callers that pass at once after a pause.
    pub burst: Int,
    /// The longest wait.
    pub max_wait: Option<Int>,
}

impl Paced {
    fn flow(&self) -> Flow {
        Flow::new(self.count, self.period)
    }

    fn terms_within(&self, max_wait: Option<Int>) -> Terms {
        let flow = self.flow();
        let free = self.burst * flow.period;
        let places = self.capacity() * flow.period;
        let wait = max_wait.unwrap_or(LONGEST_DELAY);
        Terms {
            allowance: places.min(free + flow.count * wait),
            free,
            lent: false,
        }
    }
}

impl Units for Paced {
    type Count = Missing;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Paced(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.burst + self.queue
    }

    fn parts(&self) -> Int {
        self.flow().period
    }

    fn fresh(&self, _: Int) -> Missing {
        Missing(0)
    }

    fn age(&self, count: &mut Missing, from: Int, to: Int) {
        count.0 = drained(*count, self.flow(), to - from);
    }

    fn rebase(&self, _: &mut Missing, _: Int, _: Int) {}

    fn change(&self, new: &Self, count: &mut Missing, _: Int, mode: ChangeMode) {
        let old = (self.capacity(), self.parts());
        count.0 = repriced(mode, count.0, old, (new.capacity(), new.parts()));
    }

    fn used(&self, count: &Missing, n: Int, t: Int) -> Int {
        drained(*count, self.flow(), t - n)
    }

    fn charge(&self, count: &mut Missing, _: Int, units: Int) {
        count.0 += units * self.parts();
    }

    fn force(&self, count: &mut Missing, _: Int, units: Int) {
        let most = 2 * self.capacity() * self.parts();
        count.0 = count.0.max(most.min(count.0 + units * self.parts()));
    }

    fn give_back(&self, count: &mut Missing, _: Int, units: Int, _: Option<Int>) -> Int {
        let back = units.min(ceil_div(count.0, self.parts()));
        count.0 = (count.0 - units * self.parts()).max(0);
        back
    }

    fn terms(&self) -> Terms {
        self.terms_within(self.max_wait)
    }

    /// As a take, with the shorter of both waits.
    fn judge_reservation(
        &self,
        count: &Missing,
        n: Int,
        units: Int,
        max_wait: Int,
    ) -> Judgement<Missing> {
        let patience = self.max_wait.map_or(max_wait, |own| own.min(max_wait));
        let stricter = Self {
            max_wait: Some(patience),
            ..self.clone()
        };
        judge(&stricter, count, n, units, stricter.terms())
    }
}

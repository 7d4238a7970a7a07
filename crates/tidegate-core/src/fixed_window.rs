//! A count per window: windows of the clock, of the calendar, or since a key's first use.
//!
//! Simple, and the worst of all at its borders: twice the number within two microseconds. What
//! calendar quotas are made of.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing, count};
use crate::concurrency::LeaseGrant;
use crate::event_log::signed;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::time::{MAX_PERIOD, Micros, Timestamp, Wait};
use crate::words::{self, Words};

/// One window of a calendar: `start` belongs to it, `end` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first point in time inside.
    pub start: Timestamp,
    /// The first point in time after.
    pub end: Timestamp,
}

/// Where windows of unequal length begin and end: days of a time zone, weeks, months.
///
/// The engine knows no time zones; who makes the policy brings them. Windows must cover all of
/// time without a gap, and `window(at)` must contain `at`.
pub trait Calendar: Debug + Send + Sync {
    /// The window that contains `at`.
    fn window(&self, at: Timestamp) -> Window;
    /// The length of the longest window.
    fn longest(&self) -> Micros;
    /// The length of the shortest window.
    fn shortest(&self) -> Micros;
    /// What tells this calendar from others: two with the same name have the same windows.
    fn name(&self) -> &str;
}

/// Where a fixed window begins.
#[derive(Clone, Debug)]
pub enum Align {
    /// At whole multiples of the period since the Unix epoch.
    Epoch,
    /// At the first charge after the window before it ended.
    FirstUse,
    /// Where a calendar says.
    Calendar(Arc<dyn Calendar>),
}

impl PartialEq for Align {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Epoch, Self::Epoch) | (Self::FirstUse, Self::FirstUse) => true,
            (Self::Calendar(a), Self::Calendar(b)) => a.name() == b.name(),
            _ => false,
        }
    }
}

/// A count per window.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    limit: u32,
    period: Micros,
    align: Align,
}

/// What was counted in the window that contains `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindowState {
    last: u64,
    used: u32,
    /// Time from the start of the window to `last`; only kept for windows from first use.
    age: u64,
}

impl FixedWindow {
    /// Takes a limit from 0 to 2^31 - 1 and the length of the windows.
    ///
    /// # Errors
    /// A limit or a period outside its range.
    pub fn new(limit: u32, period: Micros, align: Align) -> Result<Self, PolicyError> {
        if limit > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(limit));
        }
        if period == Micros::ZERO || period > MAX_PERIOD {
            return Err(PolicyError::PeriodOutOfRange(period));
        }
        Ok(Self {
            limit,
            period,
            align,
        })
    }

    /// Takes a limit and the calendar whose windows it holds for: a quota.
    ///
    /// # Errors
    /// A limit above 2^31 - 1.
    pub fn calendar(limit: u32, calendar: Arc<dyn Calendar>) -> Result<Self, PolicyError> {
        let period = calendar.longest();
        Self::new(limit, period, Align::Calendar(calendar))
    }

    /// The most per window.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.limit
    }

    /// The length of a window; of the longest, for a calendar.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// Where windows begin.
    #[must_use]
    pub const fn align(&self) -> &Align {
        &self.align
    }

    /// The window that contains `n`, as first point and first point after. A window that moved
    /// with the clock may have begun before the epoch.
    fn window(&self, state: &FixedWindowState, n: u64) -> (i64, u64) {
        let period = self.period.0;
        match &self.align {
            Align::Epoch => (signed(n - n % period), n - n % period + period),
            Align::FirstUse => match n.saturating_sub(state.last).saturating_add(state.age) {
                age if age < period && state.used > 0 => {
                    (signed(n) - signed(age), n + period - age)
                }
                _ => (signed(n), n + period),
            },
            Align::Calendar(calendar) => match Timestamp::from_micros(n) {
                Ok(at) => {
                    let window = calendar.window(at);
                    (signed(window.start.as_micros()), window.end.as_micros())
                }
                Err(_) => (signed(n), n + period),
            },
        }
    }

    /// What is used in the window of `n`, and how long that window still lasts.
    fn used(&self, state: &FixedWindowState, n: u64) -> (u32, u64) {
        let (start, end) = self.window(state, n);
        let same = match self.align {
            Align::FirstUse => {
                n.saturating_sub(state.last).saturating_add(state.age) < self.period.0
            }
            _ => signed(state.last) >= start,
        };
        (if same { state.used } else { 0 }, end.saturating_sub(n))
    }

    fn age(&self, state: &FixedWindowState, n: u64) -> u64 {
        match self.align {
            Align::FirstUse => (signed(n) - self.window(state, n).0).max(0).unsigned_abs(),
            _ => 0,
        }
    }

    fn with_used(&self, state: &FixedWindowState, n: u64, used: u32) -> FixedWindowState {
        FixedWindowState {
            last: n,
            used,
            age: self.age(state, n),
        }
    }
}

/// When the window is full again: at its end, or at once if nothing is used.
const fn reset(used: u64, left: u64) -> Wait {
    if used == 0 {
        Wait::ZERO
    } else {
        Wait::micros(left)
    }
}

impl Algorithm for FixedWindow {
    const NAME: &'static str = "fixed_window";
    type State = FixedWindowState;

    fn fresh(&self, n: u64) -> FixedWindowState {
        FixedWindowState {
            last: n,
            used: 0,
            age: 0,
        }
    }

    fn last(state: &FixedWindowState) -> u64 {
        state.last
    }

    /// The count moves into the window of `now`.
    fn rebase(&self, state: &mut FixedWindowState, now: u64) {
        state.last = now;
    }

    fn advance(&self, state: &mut FixedWindowState, n: u64) {
        let (used, _) = self.used(state, n);
        *state = self.with_used(state, n, used);
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn assess(&self, state: &FixedWindowState, n: u64, demand: &Demand) -> Assessment {
        let cost = demand.units();
        let (used, left) = self.used(state, n);
        let remaining = self.limit.saturating_sub(used);
        if cost > self.limit {
            return Assessment::impossible(remaining, reset(u64::from(used), left));
        }
        let charged = u64::from(used) + u64::from(cost);
        if charged > u64::from(self.limit) {
            Assessment::limited(remaining, Wait::micros(left), reset(u64::from(used), left))
        } else {
            Assessment::fits(remaining - cost, reset(charged, left))
        }
    }

    fn commit(&self, state: &mut FixedWindowState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            let (used, _) = self.used(state, n);
            *state = self.with_used(state, n, used.saturating_add(*cost));
        }
        None
    }

    fn standing(&self, state: &FixedWindowState, n: u64) -> Standing {
        let (used, left) = self.used(state, n);
        let remaining = self.limit.saturating_sub(used);
        Standing {
            used,
            remaining,
            reset: reset(u64::from(used), left),
        }
    }

    fn is_fresh(&self, state: &FixedWindowState, n: u64) -> bool {
        self.used(state, n).0 == 0
    }

    fn fresh_after(&self, state: &FixedWindowState, n: u64) -> Wait {
        self.standing(state, n).reset
    }

    fn reprice(&self, old: &Self, state: &mut FixedWindowState, n: u64, mode: ChangeMode) {
        old.advance(state, n);
        state.used = count(mode.used(u64::from(state.used), old.limit, self.limit));
    }

    fn write_state(state: &FixedWindowState, out: &mut Vec<u64>) {
        out.extend([state.last, state.used.into(), state.age]);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<FixedWindowState> {
        Some(FixedWindowState {
            last: words::time(words)?,
            used: words::small(words)?,
            age: words::number(words)?,
        })
    }

    fn pack(&self, state: &FixedWindowState) -> Option<u64> {
        let age = u32::try_from(state.age).ok()?;
        Some(u64::from(age) << 32 | u64::from(state.used))
    }

    fn unpack(&self, last: u64, word: u64) -> FixedWindowState {
        FixedWindowState {
            last,
            used: count(word & 0xFFFF_FFFF),
            age: word >> 32,
        }
    }

    fn force(&self, state: &mut FixedWindowState, n: u64, cost: u32) {
        let (used, _) = self.used(state, n);
        let debt = used.saturating_add(cost).min(2 * self.limit).max(used);
        *state = self.with_used(state, n, debt);
    }

    fn refund(
        &self,
        state: &mut FixedWindowState,
        n: u64,
        cost: u32,
        charged_at: Option<u64>,
    ) -> u32 {
        let (start, _) = self.window(state, n);
        if charged_at.is_some_and(|at| signed(at) < start) {
            return 0;
        }
        let (used, _) = self.used(state, n);
        let back = cost.min(used);
        if back > 0 {
            *state = self.with_used(state, n, used - back);
        }
        back
    }
}

impl From<FixedWindow> for Policy {
    fn from(window: FixedWindow) -> Self {
        Self::FixedWindow(window)
    }
}

//! Two counters, the older one weighted by how much of its window is still in view.
//!
//! What many services run because it needs two numbers per key; it lets through up to `2N - 1` in
//! one period. [`StrictWindow`](crate::StrictWindow) keeps the promise instead.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing, count};
use crate::concurrency::LeaseGrant;
use crate::meter::wait;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::time::{MAX_PERIOD, Micros, Wait};
use crate::words::{self, Words};

/// A two-cell weighted counter.
#[derive(Clone, Debug, PartialEq)]
pub struct InterpolatedWindow {
    limit: u32,
    period: Micros,
}

/// The counts of the window that contains `last` and of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpolatedWindowState {
    last: u64,
    previous: u32,
    current: u32,
}

impl InterpolatedWindow {
    /// Takes a limit from 0 to 2^31 - 1 per period.
    ///
    /// # Errors
    /// A limit or a period outside its range.
    pub fn new(limit: u32, period: Micros) -> Result<Self, PolicyError> {
        if limit > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(limit));
        }
        if period == Micros::ZERO || period > MAX_PERIOD {
            return Err(PolicyError::PeriodOutOfRange(period));
        }
        Ok(Self { limit, period })
    }

    /// The number per period.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.limit
    }

    /// The length of a cell.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    fn at(&self, state: &InterpolatedWindowState, n: u64) -> InterpolatedWindowState {
        let (previous, current) =
            match (n / self.period.0).saturating_sub(state.last / self.period.0) {
                0 => (state.previous, state.current),
                1 => (state.current, 0),
                _ => (0, 0),
            };
        InterpolatedWindowState {
            last: n,
            previous,
            current,
        }
    }

    /// The part of the previous count that is still in view, rounded up.
    fn weighted(&self, previous: u32, elapsed: u64) -> u64 {
        let product = u128::from(previous) * u128::from(self.period.0 - elapsed);
        u64::try_from(product.div_ceil(u128::from(self.period.0))).unwrap_or(u64::MAX)
    }

    fn used(&self, state: &InterpolatedWindowState) -> u64 {
        u64::from(state.current) + self.weighted(state.previous, state.last % self.period.0)
    }

    /// How far into a cell the previous count has faded to at most `room` units.
    fn faded_at(&self, previous: u32, room: u64) -> u64 {
        if previous == 0 {
            return 0;
        }
        let in_view = u128::from(room) * u128::from(self.period.0) / u128::from(previous);
        self.period.0
            - u64::try_from(in_view)
                .unwrap_or(u64::MAX)
                .min(self.period.0)
    }

    /// When `cost` fits, counted from the time of an advanced state.
    fn retry(&self, state: &InterpolatedWindowState, cost: u32) -> Wait {
        let elapsed = state.last % self.period.0;
        let room = u64::from(self.limit - cost);
        if let Some(room) = room.checked_sub(u64::from(state.current)) {
            let at = self.faded_at(state.previous, room);
            // At the end of the cell the current count becomes the previous one, and still fits.
            return Wait::micros(at.saturating_sub(elapsed));
        }
        let next = self.faded_at(state.current, room);
        wait(u128::from(self.period.0 - elapsed) + u128::from(next))
    }

    fn reset(&self, previous: u32, current: u64, elapsed: u64) -> Wait {
        let left = self.period.0 - elapsed;
        match (previous, current) {
            (0, 0) => Wait::ZERO,
            (_, 0) => Wait::micros(left),
            _ => Wait::micros(left + self.period.0),
        }
    }
}

impl Algorithm for InterpolatedWindow {
    const NAME: &'static str = "sliding_window with mode interpolated";
    type State = InterpolatedWindowState;

    fn fresh(&self, n: u64) -> InterpolatedWindowState {
        InterpolatedWindowState {
            last: n,
            previous: 0,
            current: 0,
        }
    }

    fn last(state: &InterpolatedWindowState) -> u64 {
        state.last
    }

    /// The counts move into the window of `now` and the one before.
    fn rebase(&self, state: &mut InterpolatedWindowState, now: u64) {
        state.last = now;
    }

    fn advance(&self, state: &mut InterpolatedWindowState, n: u64) {
        *state = self.at(state, n);
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn assess(&self, state: &InterpolatedWindowState, n: u64, demand: &Demand) -> Assessment {
        let cost = demand.units();
        let state = self.at(state, n);
        let (used, elapsed) = (self.used(&state), n % self.period.0);
        let remaining = u64::from(self.limit).saturating_sub(used);
        let reset = |current| self.reset(state.previous, current, elapsed);
        if cost > self.limit {
            return Assessment::impossible(count(remaining), reset(u64::from(state.current)));
        }
        if used + u64::from(cost) > u64::from(self.limit) {
            let retry = self.retry(&state, cost);
            Assessment::limited(count(remaining), retry, reset(u64::from(state.current)))
        } else {
            let charged = u64::from(state.current) + u64::from(cost);
            Assessment::fits(count(remaining - u64::from(cost)), reset(charged))
        }
    }

    fn commit(
        &self,
        state: &mut InterpolatedWindowState,
        n: u64,
        demand: &Demand,
    ) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            *state = self.at(state, n);
            state.current = state.current.saturating_add(*cost);
        }
        None
    }

    fn standing(&self, state: &InterpolatedWindowState, n: u64) -> Standing {
        let state = self.at(state, n);
        let used = self.used(&state);
        Standing {
            used: count(used),
            remaining: count(u64::from(self.limit).saturating_sub(used)),
            reset: self.reset(state.previous, u64::from(state.current), n % self.period.0),
        }
    }

    fn is_fresh(&self, state: &InterpolatedWindowState, n: u64) -> bool {
        let state = self.at(state, n);
        state.previous == 0 && state.current == 0
    }

    fn fresh_after(&self, state: &InterpolatedWindowState, n: u64) -> Wait {
        self.standing(state, n).reset
    }

    /// Both counts change by the same mode; the sum that is in view follows.
    fn reprice(&self, old: &Self, state: &mut InterpolatedWindowState, n: u64, mode: ChangeMode) {
        let now = old.at(state, n);
        let used = old.used(&now);
        let (previous, current) = match mode {
            ChangeMode::KeepUsed => (now.previous, u64::from(now.current)),
            ChangeMode::Reset => (0, 0),
            // What is in view is written down as one number in the current cell: it fades later
            // than it would have, and never sooner.
            _ => (0, mode.used(used, old.limit, self.limit)),
        };
        *state = InterpolatedWindowState {
            last: n,
            previous,
            current: count(current),
        };
    }

    fn write_state(state: &InterpolatedWindowState, out: &mut Vec<u64>) {
        out.extend([state.last, state.previous.into(), state.current.into()]);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<InterpolatedWindowState> {
        Some(InterpolatedWindowState {
            last: words::time(words)?,
            previous: words::small(words)?,
            current: words::small(words)?,
        })
    }

    fn pack(&self, state: &InterpolatedWindowState) -> Option<u64> {
        Some(u64::from(state.previous) << 32 | u64::from(state.current))
    }

    fn unpack(&self, last: u64, word: u64) -> InterpolatedWindowState {
        let (previous, current) = (count(word >> 32), count(word & 0xFFFF_FFFF));
        InterpolatedWindowState {
            last,
            previous,
            current,
        }
    }

    fn force(&self, state: &mut InterpolatedWindowState, n: u64, cost: u32) {
        *state = self.at(state, n);
        let most = (2 * u64::from(self.limit)).saturating_sub(self.used(state));
        let charge = u64::from(cost).min(most);
        state.current = count(u64::from(state.current) + charge);
    }

    /// Only what the current cell counts can come back.
    fn refund(
        &self,
        state: &mut InterpolatedWindowState,
        n: u64,
        cost: u32,
        charged_at: Option<u64>,
    ) -> u32 {
        if charged_at.is_some_and(|at| at < n - n % self.period.0) {
            return 0;
        }
        let now = self.at(state, n);
        let back = cost.min(now.current);
        if back > 0 {
            *state = InterpolatedWindowState {
                current: now.current - back,
                ..now
            };
        }
        back
    }
}

impl From<InterpolatedWindow> for Policy {
    fn from(window: InterpolatedWindow) -> Self {
        Self::InterpolatedWindow(window)
    }
}

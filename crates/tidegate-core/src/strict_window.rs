//! Never more than N in any window of length P, with a bounded number of counters.
//!
//! Charges are counted in cells of `ceil(P / cells)`; a cell leaves the sum only when all of it is
//! P old, so the promise holds at the price of a window up to two cells longer than P.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing, count};
use crate::concurrency::LeaseGrant;
use crate::event_log::{EventLog, signed};
use crate::meter::wait;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::time::{MAX_PERIOD, Micros, Wait};
use crate::words::{self, Words};

/// The most cells that a window is cut into.
const MAX_CELLS: u32 = 3_600;

/// A sliding window of counted cells.
#[derive(Clone, Debug, PartialEq)]
pub struct StrictWindow {
    limit: u32,
    period: Micros,
    cells: u32,
    /// The length of a cell.
    cell: u64,
    /// How many cells are summed: those that a window of P can touch.
    span: u64,
}

/// Counts per cell; the times in the log are indices of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct StrictWindowState {
    last: u64,
    log: EventLog,
}

impl StrictWindow {
    /// Takes a limit from 0 to 2^31 - 1 per period, and into how many cells to cut the period.
    ///
    /// # Errors
    /// A limit or period outside its range; 0 cells or more than 3600.
    pub fn new(limit: u32, period: Micros, cells: u32) -> Result<Self, PolicyError> {
        if limit > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(limit));
        }
        if period == Micros::ZERO || period > MAX_PERIOD {
            return Err(PolicyError::PeriodOutOfRange(period));
        }
        if cells == 0 || cells > MAX_CELLS {
            return Err(PolicyError::CellsOutOfRange(cells));
        }
        let cell = period.0.div_ceil(u64::from(cells));
        let span = period.0.div_ceil(cell) + 1;
        Ok(Self {
            limit,
            period,
            cells,
            cell,
            span,
        })
    }

    /// The most per period.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.limit
    }

    /// The length of the window that is promised.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// Into how many cells the period was asked to be cut.
    #[must_use]
    pub const fn cells(&self) -> u32 {
        self.cells
    }

    /// The longest window that is effectively looked back over.
    #[must_use]
    pub const fn longest_window(&self) -> Micros {
        Micros(self.cell * self.span)
    }

    fn index(&self, n: u64) -> i64 {
        signed(n / self.cell)
    }

    /// The newest cell that is no longer summed.
    fn cutoff(&self, n: u64) -> i64 {
        self.index(n) - signed(self.span)
    }

    /// How long until a cell is no longer summed.
    fn leaves_in(&self, index: i64, n: u64) -> Wait {
        let end = (i128::from(index) + i128::from(self.span)) * i128::from(self.cell);
        wait((end - i128::from(n)).max(0).unsigned_abs())
    }

    fn used(&self, state: &StrictWindowState, n: u64) -> u64 {
        state.log.sum(self.cutoff(n))
    }

    fn reset(&self, state: &StrictWindowState, n: u64) -> Wait {
        state
            .log
            .newest(self.cutoff(n))
            .map_or(Wait::ZERO, |index| self.leaves_in(index, n))
    }
}

impl Algorithm for StrictWindow {
    const NAME: &'static str = "sliding_window";
    type State = StrictWindowState;

    fn fresh(&self, n: u64) -> StrictWindowState {
        StrictWindowState {
            last: n,
            log: EventLog::default(),
        }
    }

    fn last(state: &StrictWindowState) -> u64 {
        state.last
    }

    /// Cells move by whole cells, rounded towards later: none leaves sooner than it should.
    fn rebase(&self, state: &mut StrictWindowState, now: u64) {
        state
            .log
            .shift_back(signed(state.last.saturating_sub(now) / self.cell));
        state.last = now;
    }

    fn advance(&self, state: &mut StrictWindowState, n: u64) {
        state.log.trim(self.cutoff(n));
        state.last = n;
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn assess(&self, state: &StrictWindowState, n: u64, demand: &Demand) -> Assessment {
        let cost = demand.units();
        let used = self.used(state, n);
        let remaining = count(u64::from(self.limit).saturating_sub(used));
        if cost > self.limit {
            return Assessment::impossible(remaining, self.reset(state, n));
        }
        let above = (used + u64::from(cost)).saturating_sub(u64::from(self.limit));
        if above > 0 {
            let freed = state.log.leaves(self.cutoff(n), above);
            let retry = freed.map_or(Wait::NEVER, |index| self.leaves_in(index, n));
            return Assessment::limited(remaining, retry, self.reset(state, n));
        }
        let reset = self.reset(state, n);
        let own = if cost == 0 {
            Wait::ZERO
        } else {
            self.leaves_in(self.index(n), n)
        };
        Assessment::fits(remaining - cost, reset.max(own))
    }

    fn commit(&self, state: &mut StrictWindowState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            self.advance(state, n);
            state.log.add(self.index(n), *cost);
        }
        None
    }

    fn standing(&self, state: &StrictWindowState, n: u64) -> Standing {
        let used = self.used(state, n);
        Standing {
            used: count(used),
            remaining: count(u64::from(self.limit).saturating_sub(used)),
            reset: self.reset(state, n),
        }
    }

    fn is_fresh(&self, state: &StrictWindowState, n: u64) -> bool {
        state.log.newest(self.cutoff(n)).is_none()
    }

    fn fresh_after(&self, state: &StrictWindowState, n: u64) -> Wait {
        self.reset(state, n)
    }

    /// Where the cells change their length, each count goes into the new cell that holds the
    /// latest moment it may come from.
    fn reprice(&self, old: &Self, state: &mut StrictWindowState, n: u64, mode: ChangeMode) {
        old.advance(state, n);
        if old.cell != self.cell {
            let mut log = EventLog::default();
            for (index, cost) in state.log.live(i64::MIN) {
                let latest = ((i128::from(index) + 1) * i128::from(old.cell) - 1).min(n.into());
                let index = latest.div_euclid(i128::from(self.cell));
                log.add(i64::try_from(index).unwrap_or(i64::MAX), cost);
            }
            state.log = log;
        }
        let used = mode.used(state.log.sum(i64::MIN), old.limit, self.limit);
        state.log.scale(used, self.index(n));
    }

    /// A window with one counted cell, that of `last`, is one word.
    fn write_state(state: &StrictWindowState, out: &mut Vec<u64>) {
        out.push(state.last);
        state.log.write(out);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<StrictWindowState> {
        Some(StrictWindowState {
            last: words::time(words)?,
            log: EventLog::read(words)?,
        })
    }

    fn pack(&self, state: &StrictWindowState) -> Option<u64> {
        if state.log.is_empty() {
            return Some(0);
        }
        let (index, cost) = state.log.single()?;
        (index == self.index(state.last)).then_some(u64::from(cost))
    }

    fn unpack(&self, last: u64, word: u64) -> StrictWindowState {
        let mut log = EventLog::default();
        log.add(self.index(last), count(word));
        StrictWindowState { last, log }
    }

    fn force(&self, state: &mut StrictWindowState, n: u64, cost: u32) {
        self.advance(state, n);
        let most = (2 * u64::from(self.limit)).saturating_sub(state.log.sum(i64::MIN));
        state
            .log
            .add(self.index(n), count(u64::from(cost).min(most)));
    }

    fn refund(
        &self,
        state: &mut StrictWindowState,
        n: u64,
        cost: u32,
        charged_at: Option<u64>,
    ) -> u32 {
        let back = match charged_at {
            Some(at) if self.index(at) <= self.cutoff(n) => 0,
            Some(at) => state.log.take_at(self.index(at), cost),
            // What has left the window is still in the log, behind all that has not.
            None => state
                .log
                .take_newest(count(self.used(state, n).min(cost.into()))),
        };
        if back > 0 {
            self.advance(state, n);
        }
        back
    }
}

impl From<StrictWindow> for Policy {
    fn from(window: StrictWindow) -> Self {
        Self::StrictWindow(window)
    }
}

//! Never more than N in any window of length P: the exact one.
//!
//! It remembers every charge until it is P old. Two charges of the same microsecond are both
//! remembered: a log keyed by its time alone would let thousands through.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing, count};
use crate::concurrency::LeaseGrant;
use crate::event_log::{EventLog, signed};
use crate::operation::Demand;
use crate::policy::{Policy, PolicyError};
use crate::time::{MAX_PERIOD, Micros, Wait};
use crate::words::{self, Words};

/// The longest log that is kept for a key.
pub const MAX_LOG_ENTRIES: u32 = 100_000;

/// An exact sliding window.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    limit: u32,
    period: Micros,
}

/// The charges that may still be in the window.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLogState {
    last: u64,
    log: EventLog,
}

impl SlidingLog {
    /// Takes a limit from 0 to 100 000 per period.
    ///
    /// # Errors
    /// A limit above 100 000, for which a key would need megabytes: use
    /// [`StrictWindow`](crate::StrictWindow). A period outside its range.
    pub fn new(limit: u32, period: Micros) -> Result<Self, PolicyError> {
        if limit > MAX_LOG_ENTRIES {
            return Err(PolicyError::LogTooLong(limit));
        }
        if period == Micros::ZERO || period > MAX_PERIOD {
            return Err(PolicyError::PeriodOutOfRange(period));
        }
        Ok(Self { limit, period })
    }

    /// The most per period.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.limit
    }

    /// The length of the window.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// The newest time that is no longer in the window: an event exactly P old is gone.
    fn cutoff(&self, n: u64) -> i64 {
        signed(n) - signed(self.period.0)
    }

    /// How long until an event at `at` has left.
    fn leaves_in(&self, at: i64, n: u64) -> Wait {
        Wait::micros(
            (at + signed(self.period.0) - signed(n))
                .max(0)
                .unsigned_abs(),
        )
    }

    fn used(&self, state: &SlidingLogState, n: u64) -> u64 {
        state.log.sum(self.cutoff(n))
    }

    fn reset(&self, state: &SlidingLogState, n: u64) -> Wait {
        state
            .log
            .newest(self.cutoff(n))
            .map_or(Wait::ZERO, |at| self.leaves_in(at, n))
    }
}

impl Algorithm for SlidingLog {
    const NAME: &'static str = "sliding_log";
    type State = SlidingLogState;

    fn fresh(&self, n: u64) -> SlidingLogState {
        SlidingLogState {
            last: n,
            log: EventLog::default(),
        }
    }

    fn last(state: &SlidingLogState) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut SlidingLogState, now: u64) {
        state.log.shift_back(signed(state.last.saturating_sub(now)));
        state.last = now;
    }

    fn advance(&self, state: &mut SlidingLogState, n: u64) {
        state.log.trim(self.cutoff(n));
        state.last = n;
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn assess(&self, state: &SlidingLogState, n: u64, demand: &Demand) -> Assessment {
        let cost = demand.units();
        let used = self.used(state, n);
        let remaining = count(u64::from(self.limit).saturating_sub(used));
        if cost > self.limit {
            return Assessment::impossible(remaining, self.reset(state, n));
        }
        let above = (used + u64::from(cost)).saturating_sub(u64::from(self.limit));
        if above > 0 {
            let freed = state.log.leaves(self.cutoff(n), above);
            let retry = freed.map_or(Wait::NEVER, |at| self.leaves_in(at, n));
            return Assessment::limited(remaining, retry, self.reset(state, n));
        }
        let reset = if cost == 0 {
            self.reset(state, n)
        } else {
            Wait::micros(self.period.0)
        };
        Assessment::fits(remaining - cost, reset)
    }

    fn commit(&self, state: &mut SlidingLogState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            self.advance(state, n);
            state.log.add(signed(n), *cost);
        }
        None
    }

    fn standing(&self, state: &SlidingLogState, n: u64) -> Standing {
        let used = self.used(state, n);
        Standing {
            used: count(used),
            remaining: count(u64::from(self.limit).saturating_sub(used)),
            reset: self.reset(state, n),
        }
    }

    fn is_fresh(&self, state: &SlidingLogState, n: u64) -> bool {
        state.log.newest(self.cutoff(n)).is_none()
    }

    fn fresh_after(&self, state: &SlidingLogState, n: u64) -> Wait {
        self.reset(state, n)
    }

    fn reprice(&self, old: &Self, state: &mut SlidingLogState, n: u64, mode: ChangeMode) {
        old.advance(state, n);
        let used = mode.used(state.log.sum(i64::MIN), old.limit, self.limit);
        state.log.scale(used, signed(n));
    }

    /// A log of one charge is one word: most keys of a hostile crowd never get further.
    fn write_state(state: &SlidingLogState, out: &mut Vec<u64>) {
        out.push(state.last);
        state.log.write(out);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<SlidingLogState> {
        Some(SlidingLogState {
            last: words::time(words)?,
            log: EventLog::read(words)?,
        })
    }

    fn pack(&self, state: &SlidingLogState) -> Option<u64> {
        if state.log.is_empty() {
            return Some(0);
        }
        let (at, cost) = state.log.single()?;
        (at == signed(state.last)).then_some(u64::from(cost))
    }

    fn unpack(&self, last: u64, word: u64) -> SlidingLogState {
        let mut log = EventLog::default();
        log.add(signed(last), count(word));
        SlidingLogState { last, log }
    }

    fn force(&self, state: &mut SlidingLogState, n: u64, cost: u32) {
        self.advance(state, n);
        let most = (2 * u64::from(self.limit)).saturating_sub(state.log.sum(i64::MIN));
        state.log.add(signed(n), count(u64::from(cost).min(most)));
    }

    fn refund(
        &self,
        state: &mut SlidingLogState,
        n: u64,
        cost: u32,
        charged_at: Option<u64>,
    ) -> u32 {
        let back = match charged_at {
            Some(at) if signed(at) <= self.cutoff(n) => 0,
            Some(at) => state.log.take_at(signed(at), cost),
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

impl From<SlidingLog> for Policy {
    fn from(log: SlidingLog) -> Self {
        Self::SlidingLog(log)
    }
}

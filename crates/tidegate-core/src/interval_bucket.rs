//! A burst of up to `capacity`, then so many tokens at once every interval.
//!
//! The intervals form a grid that begins at the key's first charge, and the remainder of one is
//! never lost, also not at the moment of becoming full. A bucket that has been full for a whole
//! interval cannot be told from a fresh one: its next charge begins a new grid.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing, count};
use crate::concurrency::LeaseGrant;
use crate::meter::wait;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::rate::Rate;
use crate::time::{Timestamp, Wait};
use crate::words::{self, Words};

/// A token bucket that refills at once every interval.
#[derive(Clone, Debug, PartialEq)]
pub struct IntervalBucket {
    rate: Rate,
    capacity: u32,
    initial_used: u32,
    since: u64,
}

/// Tokens in use, and how far the key is into its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalBucketState {
    last: u64,
    used: u32,
    /// Time from the latest grid point to `last`; none before the first charge.
    into: Option<u64>,
}

/// The packed word of a state without a grid.
const NO_GRID: u64 = u64::MAX;

impl IntervalBucket {
    /// Takes a rate, whose count comes back at once every period, and what a full bucket holds.
    ///
    /// # Errors
    /// A capacity above 2^31 - 1.
    pub fn new(rate: Rate, capacity: u32) -> Result<Self, PolicyError> {
        if capacity > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(capacity));
        }
        Ok(Self {
            rate,
            capacity,
            initial_used: 0,
            since: 0,
        })
    }

    /// Starts all keys with `initial` tokens at `since` instead of full, as
    /// [`TokenBucket::with_initial`](crate::TokenBucket::with_initial) does.
    ///
    /// # Errors
    /// More initial tokens than the bucket holds.
    pub fn with_initial(mut self, initial: u32, since: Timestamp) -> Result<Self, PolicyError> {
        self.initial_used =
            self.capacity
                .checked_sub(initial)
                .ok_or(PolicyError::InitialAboveCapacity {
                    initial,
                    capacity: self.capacity,
                })?;
        self.since = since.as_micros();
        Ok(self)
    }

    /// The rate as written.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The tokens that a full bucket holds.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The tokens that all keys start with, and when that is; none if nothing was said of it.
    #[must_use]
    pub fn initial(&self) -> Option<(u32, Timestamp)> {
        let since = Timestamp::from_micros(self.since).ok()?;
        let tokens = self.capacity - self.initial_used;
        (self.initial_used > 0 || self.since > 0).then_some((tokens, since))
    }

    /// How many intervals bring `tokens` back; none if nothing ever comes.
    fn intervals(&self, tokens: u64) -> Option<u64> {
        if tokens == 0 {
            return Some(0);
        }
        (self.rate.count() > 0).then(|| tokens.div_ceil(u64::from(self.rate.count())))
    }

    /// The state after time has passed up to `n`.
    fn at(&self, state: &IntervalBucketState, n: u64) -> IntervalBucketState {
        let Some(into) = state.into else {
            return IntervalBucketState { last: n, ..*state };
        };
        let elapsed = n.saturating_sub(state.last) + into;
        let passed = elapsed / self.rate.period().0;
        match self.intervals(u64::from(state.used)) {
            // Full for a whole interval, or full with nothing to come: as good as fresh.
            Some(0) if self.rate.count() == 0 => self.without_grid(n),
            Some(needed) if passed > needed => self.without_grid(n),
            _ => {
                let refill = passed.saturating_mul(u64::from(self.rate.count()));
                let used = count(u64::from(state.used).saturating_sub(refill));
                IntervalBucketState {
                    last: n,
                    used,
                    into: Some(elapsed % self.rate.period().0),
                }
            }
        }
    }

    /// A full bucket whose grid begins at its next charge.
    const fn without_grid(&self, n: u64) -> IntervalBucketState {
        IntervalBucketState {
            last: n,
            used: 0,
            into: None,
        }
    }

    /// How long after the time of an advanced state the `intervals`-th refill comes.
    fn refill_in(&self, state: &IntervalBucketState, intervals: Option<u64>) -> Wait {
        match intervals {
            None => Wait::NEVER,
            Some(0) => Wait::ZERO,
            Some(intervals) => {
                let period = u128::from(self.rate.period().0);
                let passed = u128::from(state.into.unwrap_or(0));
                wait((u128::from(intervals) * period).saturating_sub(passed))
            }
        }
    }

    fn remaining(&self, used: u64) -> u32 {
        count(u64::from(self.capacity).saturating_sub(used))
    }
}

impl Algorithm for IntervalBucket {
    const NAME: &'static str = "token_bucket with refill interval";
    type State = IntervalBucketState;

    fn fresh(&self, n: u64) -> IntervalBucketState {
        if self.initial_used == 0 {
            return self.without_grid(n);
        }
        let start = IntervalBucketState {
            last: self.since.min(n),
            used: self.initial_used,
            into: Some(0),
        };
        self.at(&start, n)
    }

    fn last(state: &IntervalBucketState) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut IntervalBucketState, now: u64) {
        state.last = now;
    }

    fn advance(&self, state: &mut IntervalBucketState, n: u64) {
        *state = self.at(state, n);
    }

    fn limit(&self) -> u32 {
        self.capacity
    }

    fn assess(&self, state: &IntervalBucketState, n: u64, demand: &Demand) -> Assessment {
        let (state, cost) = (self.at(state, n), demand.units());
        let used = u64::from(state.used);
        let returned_in = |tokens| self.refill_in(&state, self.intervals(tokens));
        if cost > self.capacity {
            return Assessment::impossible(self.remaining(used), returned_in(used));
        }
        let charged = used + u64::from(cost);
        let missing = charged.saturating_sub(u64::from(self.capacity));
        if missing > 0 {
            let retry = returned_in(missing);
            return Assessment::limited(self.remaining(used), retry, returned_in(used));
        }
        Assessment::fits(self.remaining(charged), returned_in(charged))
    }

    fn commit(
        &self,
        state: &mut IntervalBucketState,
        n: u64,
        demand: &Demand,
    ) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            let now = self.at(state, n);
            let used = now.used.saturating_add(*cost);
            *state = IntervalBucketState {
                used,
                into: now.into.or(Some(0)),
                ..now
            };
        }
        None
    }

    fn standing(&self, state: &IntervalBucketState, n: u64) -> Standing {
        let state = self.at(state, n);
        let used = u64::from(state.used);
        Standing {
            used: state.used,
            remaining: self.remaining(used),
            reset: self.refill_in(&state, self.intervals(used)),
        }
    }

    fn is_fresh(&self, state: &IntervalBucketState, n: u64) -> bool {
        self.at(state, n) == self.fresh(n)
    }

    fn fresh_after(&self, state: &IntervalBucketState, n: u64) -> Wait {
        let state = self.at(state, n);
        if state == self.fresh(n) && self.initial_used == 0 {
            return Wait::ZERO;
        }
        let full_for_one = |state: &IntervalBucketState| {
            self.refill_in(
                state,
                self.intervals(u64::from(state.used))
                    .map(|needed| needed + 1),
            )
        };
        full_for_one(&state).max(full_for_one(&self.fresh(n)))
    }

    fn reprice(&self, old: &Self, state: &mut IntervalBucketState, n: u64, mode: ChangeMode) {
        // What equals a key that was never seen stays so: it may have been forgotten.
        if mode == ChangeMode::Reset || old.is_fresh(state, n) {
            *state = self.fresh(n);
            return;
        }
        let now = old.at(state, n);
        let used = mode.used(u64::from(now.used), old.capacity, self.capacity);
        let used = count(used.min(u64::from(self.capacity)));
        // What was full and is not any more has begun a grid, if it had none.
        let into = if used > 0 {
            now.into.or(Some(0))
        } else {
            now.into
        };
        *state = IntervalBucketState {
            last: n,
            used,
            into,
        };
    }

    fn write_state(state: &IntervalBucketState, out: &mut Vec<u64>) {
        let into = state.into.map_or(0, |into| into + 1);
        out.extend([state.last, state.used.into(), into]);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<IntervalBucketState> {
        Some(IntervalBucketState {
            last: words::time(words)?,
            used: words::small(words)?,
            into: words::number(words)?.checked_sub(1),
        })
    }

    fn pack(&self, state: &IntervalBucketState) -> Option<u64> {
        match state.into {
            None if state.used == 0 => Some(NO_GRID),
            None => None,
            Some(into) => {
                let into = u32::try_from(into).ok().filter(|into| *into < u32::MAX)?;
                Some(u64::from(into) << 32 | u64::from(state.used))
            }
        }
    }

    fn unpack(&self, last: u64, word: u64) -> IntervalBucketState {
        if word == NO_GRID {
            return self.without_grid(last);
        }
        IntervalBucketState {
            last,
            used: count(word & 0xFFFF_FFFF),
            into: Some(word >> 32),
        }
    }

    fn force(&self, state: &mut IntervalBucketState, n: u64, cost: u32) {
        let now = self.at(state, n);
        let debt = now.used.saturating_add(cost).min(2 * self.capacity);
        *state = IntervalBucketState {
            used: now.used.max(debt),
            into: now.into.or(Some(0)),
            ..now
        };
    }

    fn refund(
        &self,
        state: &mut IntervalBucketState,
        n: u64,
        cost: u32,
        _charged_at: Option<u64>,
    ) -> u32 {
        let now = self.at(state, n);
        let back = cost.min(now.used);
        if back > 0 {
            *state = IntervalBucketState {
                used: now.used - back,
                ..now
            };
        }
        back
    }
}

impl From<IntervalBucket> for Policy {
    fn from(bucket: IntervalBucket) -> Self {
        Self::IntervalBucket(bucket)
    }
}

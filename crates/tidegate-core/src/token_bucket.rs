//! A burst of up to `capacity`, then a steady rate: the continuous token bucket.
//!
//! GCRA, the leaky bucket used as a meter, and the rate + burst of API Gateway are this formula
//! under other names.

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing};
use crate::concurrency::LeaseGrant;
use crate::meter::Meter;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::rate::Rate;
use crate::time::{Micros, Timestamp, Wait};

/// A continuous token bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    rate: Rate,
    capacity: u32,
    meter: Meter,
    /// The capacity in the meter's units.
    full: u128,
    /// What a key lacks that is first seen at `since`; 0 unless asked for.
    initial_deficit: u128,
    since: u64,
}

/// What is missing to full, and when that was true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucketState {
    last: u64,
    deficit: u128,
}

impl TokenBucket {
    /// Takes a rate and the tokens that a full bucket holds, from 0 to 2^31 - 1.
    ///
    /// # Errors
    /// A capacity above 2^31 - 1.
    pub fn new(rate: Rate, capacity: u32) -> Result<Self, PolicyError> {
        if capacity > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(capacity));
        }
        let meter = Meter::new(rate);
        let full = meter.units(capacity);
        Ok(Self {
            rate,
            capacity,
            meter,
            full,
            initial_deficit: 0,
            since: 0,
        })
    }

    /// Starts all keys with `initial` tokens at `since` instead of full.
    ///
    /// A key first seen later has refilled since then, as if it had been there all along: so a
    /// refused call still changes nothing, and a key may still be forgotten.
    ///
    /// # Errors
    /// More initial tokens than the bucket holds.
    pub fn with_initial(mut self, initial: u32, since: Timestamp) -> Result<Self, PolicyError> {
        let missing =
            self.capacity
                .checked_sub(initial)
                .ok_or(PolicyError::InitialAboveCapacity {
                    initial,
                    capacity: self.capacity,
                })?;
        self.initial_deficit = self.meter.units(missing);
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

    #[inline(always)]
    fn deficit(&self, state: &TokenBucketState, n: u64) -> u128 {
        self.meter
            .drained(state.deficit, n.saturating_sub(state.last))
    }

    /// What is left of `room` units after a deficit, in whole tokens.
    #[inline(always)]
    fn remaining(&self, deficit: u128) -> u32 {
        self.meter.tokens(self.full.saturating_sub(deficit))
    }

    /// A demand of `cost` against `allowance` units: the capacity, or more for a reservation.
    #[inline(always)]
    fn weigh(&self, state: &TokenBucketState, n: u64, cost: u32, allowance: u128) -> Assessment {
        let deficit = self.deficit(state, n);
        if cost > self.capacity {
            return Assessment::impossible(self.remaining(deficit), self.meter.wait(deficit));
        }
        let charged = deficit + self.meter.units(cost);
        if charged > allowance {
            let retry = self.meter.wait(charged - allowance);
            return Assessment::limited(self.remaining(deficit), retry, self.meter.wait(deficit));
        }
        let delay = self.meter.wait(charged.saturating_sub(self.full));
        Assessment {
            delay,
            ..Assessment::fits(self.remaining(charged), self.meter.wait(charged))
        }
    }
}

impl Algorithm for TokenBucket {
    const NAME: &'static str = "token_bucket";
    type State = TokenBucketState;

    #[inline(always)]
    fn fresh(&self, n: u64) -> TokenBucketState {
        let deficit = self
            .meter
            .drained(self.initial_deficit, n.saturating_sub(self.since));
        TokenBucketState { last: n, deficit }
    }

    #[inline(always)]
    fn last(state: &TokenBucketState) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut TokenBucketState, now: u64) {
        state.last = now;
    }

    fn advance(&self, state: &mut TokenBucketState, n: u64) {
        state.deficit = self.deficit(state, n);
        state.last = n;
    }

    fn limit(&self) -> u32 {
        self.capacity
    }

    #[inline(always)]
    fn assess(&self, state: &TokenBucketState, n: u64, demand: &Demand) -> Assessment {
        self.weigh(state, n, demand.units(), self.full)
    }

    #[inline(always)]
    fn commit(&self, state: &mut TokenBucketState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            state.deficit = self.deficit(state, n) + self.meter.units(*cost);
            state.last = n;
        }
        None
    }

    fn standing(&self, state: &TokenBucketState, n: u64) -> Standing {
        let deficit = self.deficit(state, n);
        Standing {
            used: self.meter.tokens_up(deficit),
            remaining: self.remaining(deficit),
            reset: self.meter.wait(deficit),
        }
    }

    fn is_fresh(&self, state: &TokenBucketState, n: u64) -> bool {
        self.deficit(state, n) == self.fresh(n).deficit
    }

    fn fresh_after(&self, state: &TokenBucketState, n: u64) -> Wait {
        self.meter
            .wait(self.deficit(state, n).max(self.fresh(n).deficit))
    }

    fn reprice(&self, old: &Self, state: &mut TokenBucketState, n: u64, mode: ChangeMode) {
        let deficit = old.deficit(state, n);
        let deficit = match mode {
            // What equals a key that was never seen stays so: it may have been forgotten.
            _ if old.is_fresh(state, n) => self.fresh(n).deficit,
            ChangeMode::KeepUsed => self.meter.convert_up(old.meter, deficit),
            ChangeMode::Proportional => {
                self.meter
                    .proportional_up(old.meter, deficit, old.capacity, self.capacity)
            }
            ChangeMode::KeepAvailable => {
                let available = old.full.saturating_sub(deficit);
                self.full
                    .saturating_sub(self.meter.convert_down(old.meter, available))
            }
            ChangeMode::Reset => self.fresh(n).deficit,
        };
        *state = TokenBucketState {
            last: n,
            deficit: deficit.min(self.full),
        };
    }

    #[inline(always)]
    fn pack(&self, state: &TokenBucketState) -> Option<u64> {
        u64::try_from(state.deficit).ok()
    }

    #[inline(always)]
    fn unpack(&self, last: u64, word: u64) -> TokenBucketState {
        TokenBucketState {
            last,
            deficit: u128::from(word),
        }
    }

    /// Lends what will have come back after `max_wait`, down to one capacity of debt.
    fn assess_reservation(
        &self,
        state: &TokenBucketState,
        n: u64,
        cost: u32,
        max_wait: Micros,
    ) -> Assessment {
        let allowance = (self.full + self.meter.refill(max_wait.0)).min(2 * self.full);
        self.weigh(state, n, cost, allowance)
    }

    fn force(&self, state: &mut TokenBucketState, n: u64, cost: u32) {
        self.advance(state, n);
        let debt = (state.deficit + self.meter.units(cost)).min(2 * self.full);
        state.deficit = state.deficit.max(debt);
    }

    fn refund(
        &self,
        state: &mut TokenBucketState,
        n: u64,
        cost: u32,
        _charged_at: Option<u64>,
    ) -> u32 {
        let deficit = self.deficit(state, n);
        let back = cost.min(self.meter.tokens_up(deficit));
        if back > 0 {
            let deficit = deficit.saturating_sub(self.meter.units(cost));
            *state = TokenBucketState { last: n, deficit };
        }
        back
    }
}

impl From<TokenBucket> for Policy {
    fn from(bucket: TokenBucket) -> Self {
        Self::TokenBucket(bucket)
    }
}

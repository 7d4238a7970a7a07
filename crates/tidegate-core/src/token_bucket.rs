//! A burst of up to `capacity`, then a steady rate: the continuous token bucket.
//!
//! GCRA, the leaky bucket used as a meter, and the rate + burst of API Gateway are this formula
//! under other names.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Packed, Standing};
use crate::concurrency::LeaseGrant;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::rate::Rate;
use crate::tank::{Level, Tank};
use crate::time::{Micros, Timestamp, Wait};
use crate::words::Words;

/// A continuous token bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    rate: Rate,
    tank: Tank,
    /// What a key lacks that is first seen at `since`; 0 unless asked for.
    initial_deficit: u128,
    since: u64,
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
        Ok(Self {
            rate,
            tank: Tank::new(rate, capacity),
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
            self.tank
                .capacity
                .checked_sub(initial)
                .ok_or(PolicyError::InitialAboveCapacity {
                    initial,
                    capacity: self.tank.capacity,
                })?;
        self.initial_deficit = self.tank.meter.units(missing);
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
        self.tank.capacity
    }

    /// The tokens that all keys start with, and when that is; none if nothing was said of it.
    #[must_use]
    pub fn initial(&self) -> Option<(u32, Timestamp)> {
        let missing = self.tank.meter.tokens(self.initial_deficit);
        let since = Timestamp::from_micros(self.since).ok()?;
        (missing > 0 || self.since > 0).then_some((self.tank.capacity - missing, since))
    }

    /// What is left of `room` units after a deficit, in whole tokens.
    #[inline(always)]
    fn remaining(&self, deficit: u128) -> u32 {
        self.tank
            .meter
            .tokens(self.tank.full.saturating_sub(deficit))
    }

    /// A demand of `cost` against `allowance` units: the capacity, or more for a reservation.
    #[inline(always)]
    fn weigh(&self, state: &Level, n: u64, cost: u32, allowance: u128) -> Assessment {
        let deficit = self.tank.deficit(state, n);
        if cost > self.tank.capacity {
            return Assessment::impossible(self.remaining(deficit), self.tank.meter.wait(deficit));
        }
        let charged = deficit + self.tank.meter.units(cost);
        if charged > allowance {
            let retry = self.tank.meter.wait(charged - allowance);
            return Assessment::limited(
                self.remaining(deficit),
                retry,
                self.tank.meter.wait(deficit),
            );
        }
        let delay = self.tank.meter.wait(charged.saturating_sub(self.tank.full));
        Assessment {
            delay,
            ..Assessment::fits(self.remaining(charged), self.tank.meter.wait(charged))
        }
    }
}

impl Algorithm for TokenBucket {
    const NAME: &'static str = "token_bucket";
    type State = Level;

    #[inline(always)]
    fn fresh(&self, n: u64) -> Level {
        let deficit = self
            .tank
            .meter
            .drained(self.initial_deficit, n.saturating_sub(self.since));
        Level { last: n, deficit }
    }

    #[inline(always)]
    fn last(state: &Level) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut Level, now: u64) {
        state.last = now;
    }

    fn advance(&self, state: &mut Level, n: u64) {
        self.tank.advance(state, n);
    }

    fn limit(&self) -> u32 {
        self.tank.capacity
    }

    #[inline(always)]
    fn assess(&self, state: &Level, n: u64, demand: &Demand) -> Assessment {
        self.weigh(state, n, demand.units(), self.tank.full)
    }

    #[inline(always)]
    fn commit(&self, state: &mut Level, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            self.tank.charge(state, n, *cost);
        }
        None
    }

    fn standing(&self, state: &Level, n: u64) -> Standing {
        let deficit = self.tank.deficit(state, n);
        Standing {
            used: self.tank.meter.tokens_up(deficit),
            remaining: self.remaining(deficit),
            reset: self.tank.meter.wait(deficit),
        }
    }

    fn is_fresh(&self, state: &Level, n: u64) -> bool {
        self.tank.deficit(state, n) == self.fresh(n).deficit
    }

    fn fresh_after(&self, state: &Level, n: u64) -> Wait {
        self.tank
            .meter
            .wait(self.tank.deficit(state, n).max(self.fresh(n).deficit))
    }

    fn reprice(&self, old: &Self, state: &mut Level, n: u64, mode: ChangeMode) {
        let (deficit, fresh) = (old.tank.deficit(state, n), self.fresh(n).deficit);
        let deficit = if old.is_fresh(state, n) {
            // What equals a key that was never seen stays so: it may have been forgotten.
            fresh
        } else {
            self.tank.adopt(&old.tank, deficit, mode, fresh)
        };
        *state = Level { last: n, deficit };
    }

    fn write_state(state: &Level, out: &mut Vec<u64>) {
        state.write(out);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<Level> {
        self.tank.read(words)
    }

    #[inline(always)]
    fn pack(&self, state: &Level) -> Option<u64> {
        state.pack()
    }

    #[inline(always)]
    fn unpack(&self, last: u64, word: u64) -> Level {
        Level::unpack(last, word)
    }

    #[inline(always)]
    fn take_word(&self, last: u64, word: u64, n: u64, cost: u32) -> Option<(Assessment, Packed)> {
        self.tank.take_word(Packed { last, word }, n, cost)
    }

    /// Lends what will have come back after `max_wait`, down to one capacity of debt.
    fn assess_reservation(&self, state: &Level, n: u64, cost: u32, max_wait: Micros) -> Assessment {
        let allowance =
            (self.tank.full + self.tank.meter.refill(max_wait.0)).min(2 * self.tank.full);
        self.weigh(state, n, cost, allowance)
    }

    fn force(&self, state: &mut Level, n: u64, cost: u32) {
        self.tank.force(state, n, cost);
    }

    fn refund(&self, state: &mut Level, n: u64, cost: u32, _charged_at: Option<u64>) -> u32 {
        self.tank.refund(state, n, cost)
    }
}

impl From<TokenBucket> for Policy {
    fn from(bucket: TokenBucket) -> Self {
        Self::TokenBucket(bucket)
    }
}

//! A paced queue: callers leave evenly spaced, and who would wait too long is turned away.
//!
//! The deficit of a token bucket is the queue: what exceeds `burst` is how long the caller waits
//! for its turn. nginx calls the part without a wait `nodelay`.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing};
use crate::concurrency::LeaseGrant;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::rate::Rate;
use crate::tank::{Level, Tank};
use crate::time::{MAX_DELAY, Micros, Wait};
use crate::words::Words;

/// A paced queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    rate: Rate,
    queue: u32,
    burst: u32,
    max_wait: Option<Micros>,
    /// Its capacity is `burst + queue`.
    tank: Tank,
    /// What passes without a delay, in the meter's units.
    nodelay: u128,
    /// The deficit up to which a caller is let in.
    allowance: u128,
}

impl LeakyBucket {
    /// Takes the rate at which callers leave, how many may wait, how many pass without a wait
    /// after a pause (at least 1), and the longest wait that is still worth while.
    ///
    /// # Errors
    /// A burst of 0; burst and queue together above 2^31 - 1; a wait above 10 years.
    pub fn new(
        rate: Rate,
        queue: u32,
        burst: u32,
        max_wait: Option<Micros>,
    ) -> Result<Self, PolicyError> {
        if burst == 0 {
            return Err(PolicyError::BurstZero);
        }
        let places = queue.saturating_add(burst);
        if places > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(places));
        }
        if let Some(wait) = max_wait.filter(|wait| *wait > crate::time::MAX_PERIOD) {
            return Err(PolicyError::PeriodOutOfRange(wait));
        }
        let tank = Tank::new(rate, places);
        let nodelay = tank.meter.units(burst);
        let bucket = Self {
            rate,
            queue,
            burst,
            max_wait,
            tank,
            nodelay,
            allowance: nodelay,
        };
        // Who would have to wait for ever never leaves the queue.
        let allowance = bucket.allowance_within(max_wait.unwrap_or(MAX_DELAY));
        Ok(Self {
            allowance,
            ..bucket
        })
    }

    /// The rate at which callers leave.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How many may wait.
    #[must_use]
    pub const fn queue(&self) -> u32 {
        self.queue
    }

    /// How many pass without a wait after a pause.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// The longest wait.
    #[must_use]
    pub const fn max_wait(&self) -> Option<Micros> {
        self.max_wait
    }

    /// The deficit up to which a caller is let in: the queue has a place for it, and its turn
    /// comes within `max_wait`.
    fn allowance_within(&self, max_wait: Micros) -> u128 {
        (self.nodelay + self.tank.meter.refill(max_wait.0)).min(self.tank.full)
    }

    fn weigh(&self, state: &Level, n: u64, cost: u32, allowance: u128) -> Assessment {
        let deficit = self.tank.deficit(state, n);
        let remaining = |deficit| self.tank.meter.tokens(allowance.saturating_sub(deficit));
        let asked = self.tank.meter.units(cost);
        if asked > allowance {
            return Assessment::impossible(remaining(deficit), self.tank.meter.wait(deficit));
        }
        let charged = deficit + asked;
        if charged > allowance {
            let retry = self.tank.meter.wait(charged - allowance);
            return Assessment::limited(remaining(deficit), retry, self.tank.meter.wait(deficit));
        }
        // A question of cost 0 takes no place, so it has no turn to wait for.
        let queued = if cost == 0 {
            0
        } else {
            charged.saturating_sub(self.nodelay)
        };
        let delay = self.tank.meter.wait(queued);
        Assessment {
            delay,
            ..Assessment::fits(remaining(charged), self.tank.meter.wait(charged))
        }
    }
}

impl Algorithm for LeakyBucket {
    const NAME: &'static str = "leaky_bucket";
    type State = Level;

    fn fresh(&self, n: u64) -> Level {
        Level {
            last: n,
            deficit: 0,
        }
    }

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

    fn assess(&self, state: &Level, n: u64, demand: &Demand) -> Assessment {
        self.weigh(state, n, demand.units(), self.allowance)
    }

    fn commit(&self, state: &mut Level, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            self.tank.charge(state, n, *cost);
        }
        None
    }

    fn standing(&self, state: &Level, n: u64) -> Standing {
        let deficit = self.tank.deficit(state, n);
        let room = self.allowance.saturating_sub(deficit);
        Standing {
            used: self.tank.meter.tokens_up(deficit),
            remaining: self.tank.meter.tokens(room),
            reset: self.tank.meter.wait(deficit),
        }
    }

    fn is_fresh(&self, state: &Level, n: u64) -> bool {
        self.tank.deficit(state, n) == 0
    }

    fn fresh_after(&self, state: &Level, n: u64) -> Wait {
        self.tank.meter.wait(self.tank.deficit(state, n))
    }

    fn reprice(&self, old: &Self, state: &mut Level, n: u64, mode: ChangeMode) {
        let deficit = match old.tank.deficit(state, n) {
            // What equals a key that was never seen stays so: it may have been forgotten.
            0 => 0,
            deficit => self.tank.adopt(&old.tank, deficit, mode, 0),
        };
        *state = Level { last: n, deficit };
    }

    fn write_state(state: &Level, out: &mut Vec<u64>) {
        state.write(out);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<Level> {
        self.tank.read(words)
    }

    fn pack(&self, state: &Level) -> Option<u64> {
        state.pack()
    }

    fn unpack(&self, last: u64, word: u64) -> Level {
        Level::unpack(last, word)
    }

    /// A place in the queue is a reservation already; the caller may accept a shorter wait.
    fn assess_reservation(&self, state: &Level, n: u64, cost: u32, max_wait: Micros) -> Assessment {
        let allowance = self.allowance.min(self.allowance_within(max_wait));
        self.weigh(state, n, cost, allowance)
    }

    fn force(&self, state: &mut Level, n: u64, cost: u32) {
        self.tank.force(state, n, cost);
    }

    fn refund(&self, state: &mut Level, n: u64, cost: u32, _charged_at: Option<u64>) -> u32 {
        self.tank.refund(state, n, cost)
    }
}

impl From<LeakyBucket> for Policy {
    fn from(bucket: LeakyBucket) -> Self {
        Self::LeakyBucket(bucket)
    }
}

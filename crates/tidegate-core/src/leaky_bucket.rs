//! A paced queue: callers leave evenly spaced, and who would wait too long is turned away.
//!
//! The deficit of a token bucket is the queue: what exceeds `burst` is how long the caller waits
//! for its turn. nginx calls the part without a wait `nodelay`.

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Standing};
use crate::concurrency::LeaseGrant;
use crate::meter::Meter;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::rate::Rate;
use crate::time::{Micros, Wait};

/// A paced queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    rate: Rate,
    queue: u32,
    burst: u32,
    max_wait: Option<Micros>,
    meter: Meter,
    /// `burst + queue` in the meter's units.
    full: u128,
    /// What passes without a delay, in the meter's units.
    nodelay: u128,
}

/// What is in the queue, and when that was true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucketState {
    last: u64,
    deficit: u128,
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
        let meter = Meter::new(rate);
        let (full, nodelay) = (meter.units(places), meter.units(burst));
        Ok(Self {
            rate,
            queue,
            burst,
            max_wait,
            meter,
            full,
            nodelay,
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

    fn deficit(&self, state: &LeakyBucketState, n: u64) -> u128 {
        self.meter
            .drained(state.deficit, n.saturating_sub(state.last))
    }

    /// The deficit up to which a caller is let in: the queue has a place for it, and its turn
    /// comes within `max_wait`.
    fn allowance(&self, max_wait: Option<Micros>) -> u128 {
        if self.rate.count() == 0 {
            // Nobody would ever leave the queue.
            return self.nodelay;
        }
        max_wait.map_or(self.full, |wait| {
            (self.nodelay + self.meter.refill(wait.0)).min(self.full)
        })
    }

    fn shorter(&self, max_wait: Micros) -> Option<Micros> {
        Some(self.max_wait.map_or(max_wait, |own| own.min(max_wait)))
    }

    fn weigh(&self, state: &LeakyBucketState, n: u64, cost: u32, allowance: u128) -> Assessment {
        let deficit = self.deficit(state, n);
        let remaining = |deficit| self.meter.tokens(allowance.saturating_sub(deficit));
        let asked = self.meter.units(cost);
        if asked > allowance {
            return Assessment::impossible(remaining(deficit), self.meter.wait(deficit));
        }
        let charged = deficit + asked;
        if charged > allowance {
            let retry = self.meter.wait(charged - allowance);
            return Assessment::limited(remaining(deficit), retry, self.meter.wait(deficit));
        }
        // A question of cost 0 takes no place, so it has no turn to wait for.
        let queued = if cost == 0 {
            0
        } else {
            charged.saturating_sub(self.nodelay)
        };
        let delay = self.meter.wait(queued);
        Assessment {
            delay,
            ..Assessment::fits(remaining(charged), self.meter.wait(charged))
        }
    }
}

impl Algorithm for LeakyBucket {
    const NAME: &'static str = "leaky_bucket";
    type State = LeakyBucketState;

    fn fresh(&self, n: u64) -> LeakyBucketState {
        LeakyBucketState {
            last: n,
            deficit: 0,
        }
    }

    fn last(state: &LeakyBucketState) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut LeakyBucketState, now: u64) {
        state.last = now;
    }

    fn advance(&self, state: &mut LeakyBucketState, n: u64) {
        state.deficit = self.deficit(state, n);
        state.last = n;
    }

    fn limit(&self) -> u32 {
        self.burst + self.queue
    }

    fn assess(&self, state: &LeakyBucketState, n: u64, demand: &Demand) -> Assessment {
        self.weigh(state, n, demand.units(), self.allowance(self.max_wait))
    }

    fn commit(&self, state: &mut LeakyBucketState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        if let Demand::Take { cost } = demand {
            state.deficit = self.deficit(state, n) + self.meter.units(*cost);
            state.last = n;
        }
        None
    }

    fn standing(&self, state: &LeakyBucketState, n: u64) -> Standing {
        let deficit = self.deficit(state, n);
        let room = self.allowance(self.max_wait).saturating_sub(deficit);
        Standing {
            used: self.meter.tokens_up(deficit),
            remaining: self.meter.tokens(room),
            reset: self.meter.wait(deficit),
        }
    }

    fn is_fresh(&self, state: &LeakyBucketState, n: u64) -> bool {
        self.deficit(state, n) == 0
    }

    fn fresh_after(&self, state: &LeakyBucketState, n: u64) -> Wait {
        self.meter.wait(self.deficit(state, n))
    }

    fn reprice(&self, old: &Self, state: &mut LeakyBucketState, n: u64, mode: ChangeMode) {
        let deficit = old.deficit(state, n);
        let deficit = match mode {
            // What equals a key that was never seen stays so: it may have been forgotten.
            _ if deficit == 0 => 0,
            ChangeMode::KeepUsed => self.meter.convert_up(old.meter, deficit),
            ChangeMode::Proportional => {
                self.meter
                    .proportional_up(old.meter, deficit, old.limit(), self.limit())
            }
            ChangeMode::KeepAvailable => {
                let available = old.full.saturating_sub(deficit);
                self.full
                    .saturating_sub(self.meter.convert_down(old.meter, available))
            }
            ChangeMode::Reset => 0,
        };
        *state = LeakyBucketState {
            last: n,
            deficit: deficit.min(self.full),
        };
    }

    fn pack(&self, state: &LeakyBucketState) -> Option<u64> {
        u64::try_from(state.deficit).ok()
    }

    fn unpack(&self, last: u64, word: u64) -> LeakyBucketState {
        LeakyBucketState {
            last,
            deficit: u128::from(word),
        }
    }

    /// A place in the queue is a reservation already; the caller may accept a shorter wait.
    fn assess_reservation(
        &self,
        state: &LeakyBucketState,
        n: u64,
        cost: u32,
        max_wait: Micros,
    ) -> Assessment {
        self.weigh(state, n, cost, self.allowance(self.shorter(max_wait)))
    }

    fn force(&self, state: &mut LeakyBucketState, n: u64, cost: u32) {
        self.advance(state, n);
        let debt = (state.deficit + self.meter.units(cost)).min(2 * self.full);
        state.deficit = state.deficit.max(debt);
    }

    fn refund(
        &self,
        state: &mut LeakyBucketState,
        n: u64,
        cost: u32,
        _charged_at: Option<u64>,
    ) -> u32 {
        let deficit = self.deficit(state, n);
        let back = cost.min(self.meter.tokens_up(deficit));
        if back > 0 {
            let deficit = deficit.saturating_sub(self.meter.units(cost));
            *state = LeakyBucketState { last: n, deficit };
        }
        back
    }
}

impl From<LeakyBucket> for Policy {
    fn from(bucket: LeakyBucket) -> Self {
        Self::LeakyBucket(bucket)
    }
}

//! Leases of tokens: a process takes a batch of a key's units in one call and spends it by itself.
//!
//! What was taken is charged, so all processes together never charge more than the limit says. It is
//! spent within `max_age`, counted from before it was asked for: so what is spent in any window of
//! length W was charged in one of length W + `max_age`, and is at most what the limit admits in that.
//!
//! [`Purse`] is what one process holds of one key: arithmetic without a clock. [`Purses`] are those of
//! all keys. Asking the store for more and giving back what is left is `shared/leased.rs`; `back.rs`
//! says how much of it may be given back.

mod back;
mod flight;
mod purse;
mod purses;

#[cfg(test)]
mod tests;

use tidegate_core::{MAX_COUNT, MAX_PERIOD, Micros, Policy, bounds};

use crate::LimitSpec;

pub(crate) use back::returnable;
pub(crate) use flight::{Ended, Flight};
pub(crate) use purse::Lot;
pub(crate) use purses::{Asked, Owner, Purses, Took};

/// How a process takes units of a key in batches, and spends them by itself.
///
/// Worth it for keys that are asked often: a batch grows with the demand of its key, up to `batch`,
/// and a key that is asked seldom is asked one call at a time. A larger batch means fewer calls, and
/// more that others are denied while it is held; a longer `max_age` means that more may be spent at
/// once, see [`Self::spent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTokens {
    batch: u32,
    max_age: Micros,
}

/// Why units cannot be taken in batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseTokensError {
    /// A batch of nothing, or of more than any limit holds.
    #[error("a batch of {0} is outside of 1..=2147483647")]
    BatchOutOfRange(u32),
    /// Tokens that are old before they arrive, or never.
    #[error("a max_age of {0} is outside of 1ms..=10 years")]
    AgeOutOfRange(Micros),
    /// The algorithm counts no units that one call could take for another.
    #[error("{algorithm} cannot lease tokens: {reason}")]
    Unsupported {
        /// Which algorithm.
        algorithm: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// Denied calls are charged, and a batch cannot tell what will be denied.
    #[error("a limit that charges denied calls cannot lease tokens: leave charge_denied away")]
    ChargesDenied,
}

/// A round trip takes longer than anything below.
const SHORTEST: Micros = Micros(1_000);

impl LeaseTokens {
    /// The age that is meant if nothing is said.
    pub const MAX_AGE: Micros = Micros(1_000_000);

    /// Takes the most units of a batch, and how long they may be spent after they were asked for.
    ///
    /// # Errors
    /// A batch outside of 1..=2^31 - 1, or an age outside of 1 ms..=10 years.
    pub fn new(batch: u32, max_age: Micros) -> Result<Self, LeaseTokensError> {
        if batch == 0 || batch > MAX_COUNT {
            return Err(LeaseTokensError::BatchOutOfRange(batch));
        }
        if max_age < SHORTEST || max_age > MAX_PERIOD {
            return Err(LeaseTokensError::AgeOutOfRange(max_age));
        }
        Ok(Self { batch, max_age })
    }

    /// The most units that one call takes in advance.
    #[must_use]
    pub const fn batch(&self) -> u32 {
        self.batch
    }

    /// How long units may be spent after they were asked for.
    #[must_use]
    pub const fn max_age(&self) -> Micros {
        self.max_age
    }

    /// Whether a limit can be asked so.
    ///
    /// Token buckets, windows, logs and quotas can: they count units, and give back what was not
    /// spent. A paced queue cannot, for it tells each caller a time of its own; permits and guesses
    /// are not units.
    ///
    /// # Errors
    /// If it cannot: why.
    pub fn check(limit: &LimitSpec) -> Result<(), LeaseTokensError> {
        let reason = match limit.policy() {
            Policy::LeakyBucket(_) => {
                "it tells each caller when to go on; use a token bucket where that is not needed"
            }
            Policy::Concurrency(_) => "its permits are leases already",
            Policy::Lockout(_) => "each guess is counted by itself",
            _ if limit.charges_denied() => return Err(LeaseTokensError::ChargesDenied),
            _ => return Ok(()),
        };
        Err(LeaseTokensError::Unsupported {
            algorithm: limit.policy().algorithm_name(),
            reason,
        })
    }

    /// The most units of one key that all processes together spend in any window of that length:
    /// what the limit admits in one that is longer by `max_age`. None where the limit bounds nothing.
    #[must_use]
    pub fn spent(&self, policy: &Policy, window: Micros) -> Option<u64> {
        if window == Micros::ZERO {
            return Some(0);
        }
        bounds::admitted(policy, Micros(window.0.saturating_add(self.max_age.0)))
    }

    /// The most units of one key that a process holds at once: a batch, and what is left of the one
    /// before when the next is asked for. That many are charged and not spent if it is killed.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.batch.saturating_add(self.batch / purse::LOW)
    }

    /// What the leases mean for a limit, in a sentence for people.
    #[must_use]
    pub fn explain(&self, policy: &Policy, window: Micros) -> String {
        let charged = bounds::admitted(policy, window).unwrap_or(u64::MAX);
        let spent = self.spent(policy, window).unwrap_or(u64::MAX);
        format!(
            "batches of up to {} tokens, spent within {}: all processes together are charged at most \
             {charged} in {window}, and spend at most {spent}; a process that is killed leaves at most \
             {} unused",
            self.batch,
            self.max_age,
            self.held()
        )
    }
}

//! What can be asked of a key, and what comes back. The same on every algorithm and every store.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Family};
use crate::concurrency::{LeaseGrant, LeaseId};
use crate::decision::Decision;
use crate::time::{MAX_PERIOD, Micros, Timestamp, Wait};

/// What a call wants to have: the part of an operation that `all_of` can combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// So many units of a rate, window or bucket.
    Take {
        /// Units; 0 only asks.
        cost: u32,
    },
    /// A lease of a concurrency limit.
    Acquire {
        /// Chosen by the caller. The same id asked again is the same lease.
        lease: LeaseId,
        /// How many permits the lease holds.
        weight: u32,
    },
    /// A guess at a secret: charges one failure in advance.
    Attempt {
        /// Picks the jitter of a ban that may begin; the host draws it at random.
        seed: u64,
    },
}

impl Demand {
    /// Units asked for; 0 for a demand that is not counted in units.
    #[inline]
    pub(crate) const fn units(&self) -> u32 {
        match self {
            Self::Take { cost } => *cost,
            _ => 0,
        }
    }

    /// This demand and another on the same key as one. Demands of different kinds cannot stand on one
    /// key: its limit refuses one of them.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Take { cost: a }, Self::Take { cost: b }) => Self::Take {
                cost: a.saturating_add(b),
            },
            (Self::Acquire { lease, weight: a }, Self::Acquire { weight: b, .. }) => {
                Self::Acquire {
                    lease,
                    weight: a.saturating_add(b),
                }
            }
            (first, _) => first,
        }
    }

    /// Which limits can meet the demand.
    #[inline]
    const fn family(&self) -> Family {
        match self {
            Self::Take { .. } => Family::Units,
            Self::Acquire { .. } => Family::Leases,
            Self::Attempt { .. } => Family::Attempts,
        }
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Takes what is demanded, or nothing.
    Take(Demand),
    /// Answers as a take would and writes nothing.
    Peek(Demand),
    /// Takes as much as fits, up to `cost`; denied only when nothing fits.
    TakeUpTo {
        /// The most to take.
        cost: u32,
    },
    /// Takes now what may be used after `delay`, if that is at most `max_wait`; continuous buckets
    /// and paced queues only, others give what they have.
    Reserve {
        /// Units.
        cost: u32,
        /// The longest delay that the caller accepts.
        max_wait: Micros,
    },
    /// Replaces a reservation's cost by what was really used.
    Settle {
        /// What was reserved.
        reservation: Reservation,
        /// What was used: less is given back, more is charged even into debt.
        actual: u32,
    },
    /// Gives a whole reservation back.
    Cancel {
        /// What was reserved.
        reservation: Reservation,
    },
    /// Gives units back, never above full.
    Refund {
        /// Units.
        cost: u32,
    },
    /// Charges whatever is left, into debt down to one capacity.
    Force {
        /// Units.
        cost: u32,
    },
    /// Makes the key fresh and lifts a block.
    Reset,
    /// Denies everything for a while.
    Block {
        /// How long, from now. Zero changes nothing.
        period: Micros,
    },
    /// Lifts a block.
    Unblock,
    /// Reads everything that is known of the key.
    State,
    /// Extends a live lease to its full length from now.
    Renew {
        /// Whose.
        lease: LeaseId,
    },
    /// Gives a lease back.
    Release {
        /// Whose.
        lease: LeaseId,
    },
    /// The guess was right: takes the attempt's failure back and forgets the others.
    Success,
}

impl Operation {
    /// Takes `cost` units or nothing.
    #[must_use]
    pub const fn take(cost: u32) -> Self {
        Self::Take(Demand::Take { cost })
    }

    /// Answers as taking `cost` units would and writes nothing.
    #[must_use]
    pub const fn peek(cost: u32) -> Self {
        Self::Peek(Demand::Take { cost })
    }

    /// Whether the operation has a meaning on algorithm `A` and its numbers are in range.
    ///
    /// # Errors
    /// If not: which operation `A` has instead.
    #[inline]
    pub fn check<A: Algorithm>(&self) -> Result<(), OperationError> {
        let family = match self {
            Self::Take(demand) | Self::Peek(demand) => demand.family(),
            Self::TakeUpTo { .. }
            | Self::Reserve { .. }
            | Self::Settle { .. }
            | Self::Cancel { .. }
            | Self::Refund { .. }
            | Self::Force { .. } => Family::Units,
            Self::Renew { .. } | Self::Release { .. } => Family::Leases,
            Self::Success => Family::Attempts,
            Self::Block { period } if *period > MAX_PERIOD => {
                return Err(OperationError::PeriodOutOfRange(*period));
            }
            Self::Reset | Self::Block { .. } | Self::Unblock | Self::State => return Ok(()),
        };
        if family == A::FAMILY {
            return Ok(());
        }
        let hint = match A::FAMILY {
            Family::Units => "use take, peek, take_up_to, reserve, refund or force",
            Family::Leases => "use acquire, renew and release",
            Family::Attempts => "use attempt, and success when it was right",
        };
        Err(OperationError::Unsupported {
            operation: self.name(),
            algorithm: A::NAME,
            hint,
        })
    }

    /// The word for this operation in files and messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Take(Demand::Take { .. }) => "take",
            Self::Take(Demand::Acquire { .. }) => "acquire",
            Self::Take(Demand::Attempt { .. }) => "attempt",
            Self::Peek(_) => "peek",
            Self::TakeUpTo { .. } => "take_up_to",
            Self::Reserve { .. } => "reserve",
            Self::Settle { .. } => "settle",
            Self::Cancel { .. } => "cancel",
            Self::Refund { .. } => "refund",
            Self::Force { .. } => "force",
            Self::Reset => "reset",
            Self::Block { .. } => "block",
            Self::Unblock => "unblock",
            Self::State => "state",
            Self::Renew { .. } => "renew",
            Self::Release { .. } => "release",
            Self::Success => "success",
        }
    }
}

/// Units taken now for work whose real cost is known later.
///
/// A plain value: nothing is stored for it. What a settlement or a cancellation gives back is
/// bounded by what the key still counts of the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Units taken.
    pub cost: u32,
    /// When they were taken, on the key's own time.
    pub at: Timestamp,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// To take, take_up_to, force and attempt, and to a peek at one.
    Decision(Decision),
    /// To reserve; the reservation is there when the decision allows.
    Reserved(Decision, Option<Reservation>),
    /// To acquire, and to a peek at it; the grant is there when something was acquired.
    Leased(Decision, Option<LeaseGrant>),
    /// To settle, cancel and refund: how many units came back.
    Refunded(u32),
    /// To renew: the lease as it now is, or none if it was lost.
    Renewed(Option<LeaseGrant>),
    /// To release: whether the lease was live.
    Released(bool),
    /// To reset, block, unblock and success.
    Done,
    /// To state.
    State(KeyState),
}

impl Reply {
    /// The decision in this answer, where there is one.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Decision(decision) | Self::Reserved(decision, _) | Self::Leased(decision, _) => {
                Some(decision)
            }
            _ => None,
        }
    }
}

/// Everything that is known of a key at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// The most that the limit lets through at once.
    pub limit: u32,
    /// Units in use, rounded up; above `limit` while in debt.
    pub used: u32,
    /// How many calls of cost 1 would pass now.
    pub remaining: u32,
    /// When the limit is full again.
    pub reset_after: Wait,
    /// How much longer the key is blocked.
    pub blocked_for: Micros,
    /// The latest time that the key has seen.
    pub last: Timestamp,
    /// Live leases, for a concurrency limit.
    pub leases: Vec<LeaseGrant>,
}

/// Why an operation gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The operation has no meaning on this algorithm.
    #[error("{algorithm} has no operation {operation}; {hint}")]
    Unsupported {
        /// What was asked.
        operation: &'static str,
        /// Of what.
        algorithm: &'static str,
        /// What to use instead.
        hint: &'static str,
    },
    /// A length of time above 10 years.
    #[error("{0} is longer than 10 years")]
    PeriodOutOfRange(Micros),
}

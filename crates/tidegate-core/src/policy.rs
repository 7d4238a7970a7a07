//! The validated numbers of one limit.

use crate::algorithm::Algorithm;
use crate::concurrency::Concurrency;
use crate::fixed_window::FixedWindow;
use crate::interpolated_window::InterpolatedWindow;
use crate::interval_bucket::IntervalBucket;
use crate::leaky_bucket::LeakyBucket;
use crate::lockout::Lockout;
use crate::sliding_log::SlidingLog;
use crate::strict_window::StrictWindow;
use crate::time::Micros;
use crate::token_bucket::TokenBucket;

/// The largest limit, count or cost: 2^31 - 1.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// One algorithm with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// A burst, then a steady rate; also what GCRA and a leaky meter are.
    TokenBucket(TokenBucket),
    /// A burst, then so many at once every interval.
    IntervalBucket(IntervalBucket),
    /// A queue whose callers leave evenly spaced.
    LeakyBucket(LeakyBucket),
    /// A count per window of the clock, the calendar, or since first use.
    FixedWindow(FixedWindow),
    /// Exact: never more than N in any window.
    SlidingLog(SlidingLog),
    /// Never more than N in any window, at bounded memory.
    StrictWindow(StrictWindow),
    /// Two weighted counters.
    InterpolatedWindow(InterpolatedWindow),
    /// So many at once.
    Concurrency(Concurrency),
    /// Failures, then growing bans.
    Lockout(Lockout),
}

/// Runs `$body` with `$algorithm` bound to the algorithm inside a policy.
#[macro_export]
macro_rules! with_algorithm {
    ($policy:expr, $algorithm:ident => $body:expr) => {
        match $policy {
            $crate::Policy::TokenBucket($algorithm) => $body,
            $crate::Policy::IntervalBucket($algorithm) => $body,
            $crate::Policy::LeakyBucket($algorithm) => $body,
            $crate::Policy::FixedWindow($algorithm) => $body,
            $crate::Policy::SlidingLog($algorithm) => $body,
            $crate::Policy::StrictWindow($algorithm) => $body,
            $crate::Policy::InterpolatedWindow($algorithm) => $body,
            $crate::Policy::Concurrency($algorithm) => $body,
            $crate::Policy::Lockout($algorithm) => $body,
        }
    };
}

impl Policy {
    /// The word for its algorithm in files and messages.
    #[must_use]
    pub fn algorithm_name(&self) -> &'static str {
        fn name<A: Algorithm>(_: &A) -> &'static str {
            A::NAME
        }
        with_algorithm!(self, algorithm => name(algorithm))
    }
}

/// Numbers that no limit can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A count above 2^31 - 1.
    #[error("count {0} is above 2147483647")]
    CountOutOfRange(u32),
    /// A period of 0 or above 10 years.
    #[error("period {0} is outside 1us..=10 years")]
    PeriodOutOfRange(Micros),
    /// More tokens to start with than the bucket holds.
    #[error("initial {initial} is above the capacity {capacity}")]
    InitialAboveCapacity {
        /// The tokens to start with.
        initial: u32,
        /// What the bucket holds.
        capacity: u32,
    },
    /// A sliding log of more entries than are kept.
    #[error("a sliding log of {0} is above 100000 entries; use sliding_window for such a limit")]
    LogTooLong(u32),
    /// A number of cells outside 1..=3600.
    #[error("{0} cells are outside 1..=3600")]
    CellsOutOfRange(u32),
    /// A burst of 0 where the first caller must pass at once.
    #[error("burst 0 would let nobody through; the smallest burst is 1")]
    BurstZero,
    /// A ban factor of 0.
    #[error("factor 0 would end every ban at once; the smallest factor is 1")]
    FactorZero,
    /// A lease longer than the longest hold.
    #[error("a lease of {lease} is longer than max_hold {max_hold}")]
    LeaseAboveHold {
        /// The lease.
        lease: Micros,
        /// The longest hold.
        max_hold: Micros,
    },
}

//! A limit whose numbers come with each call.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Decision, Timestamp, TokenBucket};
use tidegate_store::{KeyHasher, PerCallTable, ReadClock};

use crate::clock::{Clock, SystemClock};
use crate::to_key::ToKey;

/// Token buckets whose numbers come with each call instead of being set once: for callers who
/// know their own limits.
///
/// The numbers are no part of the key: a call with others finds what was used before, and goes by
/// its own. At most so many keys are kept as [`Self::new`] says; while none of them can be
/// forgotten, new ones are denied with [`Denial::TableFull`](crate::Denial::TableFull).
///
/// ```
/// use tidegate::{PerCallLimiter, Rate, TokenBucket};
///
/// let limits = PerCallLimiter::new(1_000_000);
/// let fifteen_more = TokenBucket::new(Rate::new(30, 60_000_000)?, 16)?;
/// assert_eq!(limits.try_take("user123", &fifteen_more, 1).remaining, 15);
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Clone)]
pub struct PerCallLimiter(Arc<Inner>);

struct Inner {
    table: PerCallTable,
    hasher: KeyHasher,
    clock: Arc<dyn Clock>,
    /// Reads the same clock, for the table.
    reading: ReadClock,
}

impl PerCallLimiter {
    /// A limiter of at most `max_keys` keys, rounded up to a multiple of 256.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        Self::with_clock(max_keys, Arc::new(SystemClock::new()))
    }

    /// The same, by another clock.
    #[must_use]
    pub fn with_clock(max_keys: usize, clock: Arc<dyn Clock>) -> Self {
        let read = Arc::clone(&clock);
        Self(Arc::new(Inner {
            table: PerCallTable::new(max_keys),
            hasher: KeyHasher::random(),
            clock,
            reading: ReadClock::new(move || read.now()),
        }))
    }

    /// Takes `cost` tokens of a key's bucket, or nothing. A cost of 0 only asks.
    pub fn try_take(&self, key: impl ToKey, bucket: &TokenBucket, cost: u32) -> Decision {
        self.try_take_as_of(key, bucket, cost, self.0.clock.now())
    }

    /// The same with a reading of the limiter's clock that was made for several calls.
    #[inline]
    pub fn try_take_as_of(
        &self,
        key: impl ToKey,
        bucket: &TokenBucket,
        cost: u32,
        now: Timestamp,
    ) -> Decision {
        let hash = key.hash_with(&self.0.hasher);
        let moment = self.0.reading.moment(now);
        self.0.table.take(hash, bucket, moment, cost)
    }

    /// The same at a given time, which is obeyed.
    #[inline]
    pub fn try_take_at(
        &self,
        key: impl ToKey,
        bucket: &TokenBucket,
        cost: u32,
        now: Timestamp,
    ) -> Decision {
        let hash = key.hash_with(&self.0.hasher);
        self.0.table.take(hash, bucket, now, cost)
    }

    /// Forgets the keys of one part of the table that cannot be told from fresh ones. Each `step`
    /// from 0 to 255 is another part, and further ones begin again. Returns how many went.
    pub fn maintain(&self, step: usize, now: Timestamp) -> usize {
        self.0.table.maintain(step, now)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.table.is_empty()
    }
}

impl fmt::Debug for PerCallLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCallLimiter").finish_non_exhaustive()
    }
}

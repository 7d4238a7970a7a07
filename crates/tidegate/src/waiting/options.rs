//! How long, and among how many, a caller is ready to wait.

use std::time::Duration;

use tidegate_core::{Micros, Timestamp};

/// The most callers that wait for one key, unless options say otherwise.
const PER_KEY: usize = 1_024;

/// The most callers that wait for all keys of a limit, unless options say otherwise.
const IN_TOTAL: usize = 65_536;

/// How a caller waits.
///
/// ```
/// use std::time::Duration;
/// use tidegate::WaitOptions;
///
/// let patient = WaitOptions::new().max_wait(Duration::from_secs(5));
/// let at_most_ten_others = patient.max_waiters_per_key(10);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct WaitOptions {
    pub(crate) max_wait: Option<Micros>,
    pub(crate) jitter: Micros,
    pub(crate) jitter_seed: Option<u64>,
    pub(crate) per_key: usize,
    pub(crate) in_total: usize,
}

impl WaitOptions {
    /// Waits as long as it takes, without jitter, among at most 1024 callers of one key and 65 536
    /// of one limit.
    pub const fn new() -> Self {
        Self {
            max_wait: None,
            jitter: Micros::ZERO,
            jitter_seed: None,
            per_key: PER_KEY,
            in_total: IN_TOTAL,
        }
    }

    /// Waits at most so long, rounded up to whole microseconds. Zero takes what is there now and
    /// never waits.
    ///
    /// Where the wait is known when it begins, as with every rate, a caller that would have to
    /// wait longer is refused at once.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(Micros::from_duration(max_wait));
        self
    }

    /// Lets a caller that had to wait for units go on a little later, by a random time from zero
    /// to `jitter` that keeps within `max_wait`: so that not all who waited for the same window
    /// do their work in the same instant. The units are taken at their exact time all the same.
    ///
    /// It has no effect on leases: those would lie idle meanwhile.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = Micros::from_duration(jitter);
        self
    }

    /// Draws the jitter from `seed` instead of at random, for tests that repeat.
    pub const fn jitter_seed(mut self, seed: u64) -> Self {
        self.jitter_seed = Some(seed);
        self
    }

    /// Refuses to wait where so many wait for the same key already.
    pub const fn max_waiters_per_key(mut self, waiters: usize) -> Self {
        self.per_key = waiters;
        self
    }

    /// Refuses to wait where so many wait for the same limit already, over all keys.
    pub const fn max_waiters(mut self, waiters: usize) -> Self {
        self.in_total = waiters;
        self
    }

    /// The last moment at which a caller that begins to wait now may be served.
    pub(crate) fn deadline(&self, now: Timestamp) -> Option<Timestamp> {
        // A wait beyond the end of time has no end.
        self.max_wait.and_then(|wait| now.checked_add(wait))
    }

    /// Draws the extra time of one wait.
    pub(crate) fn draw_jitter(&self) -> Micros {
        if self.jitter == Micros::ZERO {
            return Micros::ZERO;
        }
        let seed = self.jitter_seed.unwrap_or_else(random);
        let range = u128::from(self.jitter.0) + 1;
        // The high half of the product is uniform over the range, as good as exactly.
        let drawn = (u128::from(mixed(seed)) * range) >> 64;
        Micros(u64::try_from(drawn).unwrap_or(self.jitter.0))
    }
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A seed that differs from call to call; nobody is harmed who foresees it.
fn random() -> u64 {
    use std::hash::BuildHasher as _;
    std::collections::hash_map::RandomState::new().hash_one(0_u8)
}

/// The finisher of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit of the seed counts.
const fn mixed(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_covers_its_range_to_both_ends_and_repeats_with_its_seed() {
        let options = WaitOptions::new().jitter(Duration::from_micros(3));
        let mut seen = [0_u32; 4];
        for seed in 0..4_000 {
            let drawn = options.jitter_seed(seed).draw_jitter();
            assert_eq!(drawn, options.jitter_seed(seed).draw_jitter());
            seen[usize::try_from(drawn.0).unwrap()] += 1;
        }
        assert!(
            seen.iter().all(|times| (800..1_200).contains(times)),
            "{seen:?}"
        );
    }

    #[test]
    fn no_jitter_is_none() {
        assert_eq!(WaitOptions::new().draw_jitter(), Micros::ZERO);
    }
}

//! The limiters that are compared, each used as its documentation says, with its own clock.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use throttlecrab::PeriodicStore;
use tidegate::{Limiter, Rate, TokenBucket};

/// A limiter that decides over numbered keys.
pub trait Subject: Sync {
    /// What it is called in the table.
    fn name(&self) -> &'static str;
    /// Takes one unit for a key; whether it was allowed.
    fn take(&self, key: u64) -> bool;
}

/// So much that nothing is refused, and every decision writes.
const BURST: u32 = i32::MAX as u32;

/// So little that no key is ever full again, which would let a limiter forget it.
const PER_SECOND: u32 = 1;

/// The subjects of a piece of work, tidegate first.
pub fn all(keys: u64) -> Vec<Box<dyn Subject>> {
    let rate = Rate::per_second(PER_SECOND).expect("the rate is in range");
    let bucket = TokenBucket::new(rate, BURST).expect("the capacity is in range");
    let max_keys = usize::try_from(keys).expect("it fits memory").max(1_000);
    let tidegate = Limiter::builder(bucket).max_keys(max_keys).build();
    let count = |number| NonZeroU32::new(number).expect("it is not zero");
    let quota = Quota::per_second(count(PER_SECOND)).allow_burst(count(BURST));
    let mut all: Vec<Box<dyn Subject>> = vec![
        Box::new(Tidegate(tidegate)),
        Box::new(Keyed(RateLimiter::keyed(quota))),
    ];
    if keys == 1 {
        all.push(Box::new(Direct(RateLimiter::direct(quota))));
        let bucket = leaky_bucket::RateLimiter::builder()
            .max(BURST as usize)
            .initial(BURST as usize)
            .refill(PER_SECOND as usize)
            .interval(Duration::from_secs(1))
            .build();
        all.push(Box::new(Leaky(bucket)));
    }
    let store = PeriodicStore::builder().capacity(max_keys).build();
    all.push(Box::new(Crab(Mutex::new(throttlecrab::RateLimiter::new(
        store,
    )))));
    all
}

struct Tidegate(Limiter);

impl Subject for Tidegate {
    fn name(&self) -> &'static str {
        "tidegate"
    }

    fn take(&self, key: u64) -> bool {
        self.0.try_take(key.to_le_bytes(), 1).is_allowed()
    }
}

struct Keyed(DefaultKeyedRateLimiter<u64>);

impl Subject for Keyed {
    fn name(&self) -> &'static str {
        "governor keyed"
    }

    fn take(&self, key: u64) -> bool {
        self.0.check_key(&key).is_ok()
    }
}

struct Direct(DefaultDirectRateLimiter);

impl Subject for Direct {
    fn name(&self) -> &'static str {
        "governor direct"
    }

    fn take(&self, _key: u64) -> bool {
        self.0.check().is_ok()
    }
}

/// One bucket, without keys.
struct Leaky(leaky_bucket::RateLimiter);

impl Subject for Leaky {
    fn name(&self) -> &'static str {
        "leaky-bucket"
    }

    fn take(&self, _key: u64) -> bool {
        self.0.try_acquire(1)
    }
}

/// Its limiter takes `&mut self`: shared between threads it needs a lock, as its server has one.
struct Crab(Mutex<throttlecrab::RateLimiter<PeriodicStore>>);

impl Subject for Crab {
    fn name(&self) -> &'static str {
        "throttlecrab"
    }

    fn take(&self, key: u64) -> bool {
        let mut digits = [0_u8; 16];
        for (place, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(key >> (60 - 4 * place)) as usize % 16];
        }
        let key = std::str::from_utf8(&digits).expect("hexadecimal digits are ASCII");
        let mut limiter = self.0.lock().expect("no thread panics with the lock");
        limiter
            .rate_limit(
                key,
                BURST.into(),
                PER_SECOND.into(),
                1,
                1,
                SystemTime::now(),
            )
            .is_ok_and(|(allowed, _)| allowed)
    }
}

//! The limiters that are compared, each used as its documentation says, with its own clock.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use throttlecrab::PeriodicStore;
use tidegate::{Limiter, Micros, Rate, TokenBucket};

/// A limiter that decides over numbered keys.
pub trait Subject: Sync {
    /// What it is called in the table.
    fn name(&self) -> &'static str;
    /// Takes one unit for a key; whether it was allowed.
    fn take(&self, key: u64) -> bool;
}

/// A burst so large that nothing is refused, so that every decision writes; and the time that one
/// unit takes to come back, longer than the keys take to be made: a key that is full again could be
/// forgotten.
#[derive(Clone, Copy)]
struct Numbers {
    burst: u32,
    period: Duration,
}

impl Numbers {
    /// Many keys take long to make and get few calls each. The product has to fit the peers'
    /// nanoseconds.
    const fn of(keys: u64) -> Self {
        if keys > 1_000_000 {
            Self {
                burst: 1 << 21,
                period: Duration::from_secs(3_600),
            }
        } else {
            Self {
                burst: i32::MAX as u32,
                period: Duration::from_secs(1),
            }
        }
    }
}

/// The subjects of a piece of work, tidegate first.
pub fn all(keys: u64) -> Vec<Box<dyn Subject>> {
    let numbers = Numbers::of(keys);
    let Numbers { burst, period } = numbers;
    let rate = Rate::new(1, Micros::from_duration(period).0).expect("the rate is in range");
    let bucket = TokenBucket::new(rate, burst).expect("the capacity is in range");
    let max_keys = usize::try_from(keys).expect("it fits memory").max(1_000);
    let tidegate = Limiter::builder(bucket).max_keys(max_keys).build();
    let count = |number| NonZeroU32::new(number).expect("it is not zero");
    let quota = Quota::with_period(period).expect("it is not zero");
    let quota = quota.allow_burst(count(burst));
    let mut all: Vec<Box<dyn Subject>> = vec![
        Box::new(Tidegate(tidegate)),
        Box::new(Keyed(RateLimiter::keyed(quota))),
    ];
    if keys == 1 {
        all.push(Box::new(Direct(RateLimiter::direct(quota))));
        let bucket = leaky_bucket::RateLimiter::builder()
            .max(burst as usize)
            .initial(burst as usize)
            .refill(1)
            .interval(period)
            .build();
        all.push(Box::new(Leaky(bucket)));
    }
    let store = PeriodicStore::builder().capacity(max_keys).build();
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
    all.push(Box::new(Crab(limiter, numbers)));
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
struct Crab(Mutex<throttlecrab::RateLimiter<PeriodicStore>>, Numbers);

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
                self.1.burst.into(),
                1,
                self.1.period.as_secs().cast_signed(),
                1,
                SystemTime::now(),
            )
            .is_ok_and(|(allowed, _)| allowed)
    }
}

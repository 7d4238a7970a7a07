//! The longest single call while a million keys come, and while a million old ones go.
//!
//! A call that was interrupted by the system says nothing about a limiter, so a round counts by
//! the least of its kind: the figure is the smallest of the rounds' longest calls.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use throttlecrab::PeriodicStore;
use tidegate::{Clock as _, Limiter, ManualClock, Rate, TokenBucket};

/// How many keys come, and then others.
const KEYS: u64 = 1_000_000;

/// Long enough for every key to be full again.
const LATER: Duration = Duration::from_secs(3_600);

/// The longest call of each phase.
struct Longest {
    subject: &'static str,
    growing: Duration,
    expiring: Duration,
}

/// Measures and prints a table.
pub fn run(rounds: u32) {
    let subjects = [tidegate, governor, throttlecrab];
    let mut least: Vec<Longest> = Vec::new();
    for _ in 0..rounds {
        for (place, subject) in subjects.iter().enumerate() {
            let longest = subject();
            match least.get_mut(place) {
                None => least.push(longest),
                Some(so_far) => {
                    so_far.growing = so_far.growing.min(longest.growing);
                    so_far.expiring = so_far.expiring.min(longest.expiring);
                }
            }
        }
    }
    println!("\nThe longest call of a million, in the best of {rounds} interleaved rounds.\n");
    println!(
        "| subject | while a million keys come | while others take the place of a million old ones |"
    );
    println!("|---|---:|---:|");
    for longest in least {
        println!(
            "| {} | {} us | {} us |",
            longest.subject,
            longest.growing.as_micros(),
            longest.expiring.as_micros()
        );
    }
}

/// The longest of the calls for keys from `first` on.
fn longest(first: u64, mut take: impl FnMut(u64)) -> Duration {
    let mut longest = Duration::ZERO;
    for key in first..first + KEYS {
        let start = Instant::now();
        take(key);
        longest = longest.max(start.elapsed());
    }
    longest
}

fn tidegate() -> Longest {
    let rate = Rate::per_second(1).expect("the rate is in range");
    let bucket = TokenBucket::new(rate, 1).expect("the capacity is in range");
    let start = tidegate::SystemClock::new().now();
    let clock = Arc::new(ManualClock::new(start));
    let limiter = Limiter::builder(bucket)
        .max_keys(KEYS as usize)
        .clock(Arc::<ManualClock>::clone(&clock))
        .build();
    let take = |key: u64| {
        std::hint::black_box(limiter.try_take(key.to_le_bytes(), 1));
    };
    let growing = longest(0, take);
    clock.advance(LATER);
    // Old keys give way to new ones by themselves.
    let expiring = longest(KEYS, take);
    Longest {
        subject: "tidegate",
        growing,
        expiring,
    }
}

fn governor() -> Longest {
    let count = NonZeroU32::new(1).expect("it is not zero");
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::dashmap_with_clock(Quota::per_second(count), clock.clone());
    let take = |key: u64| {
        let _ = std::hint::black_box(limiter.check_key(&key));
    };
    let growing = longest(0, take);
    clock.advance(LATER);
    // Old keys stay until the program asks for all of them to go, in one call.
    let start = Instant::now();
    limiter.retain_recent();
    let retain = start.elapsed();
    Longest {
        subject: "governor",
        growing,
        expiring: retain.max(longest(KEYS, take)),
    }
}

fn throttlecrab() -> Longest {
    let store = PeriodicStore::builder().capacity(KEYS as usize).build();
    let mut limiter = throttlecrab::RateLimiter::new(store);
    let start = SystemTime::now();
    let mut now = start;
    let mut take = |key: u64| {
        let key = format!("{key:016x}");
        let _ = std::hint::black_box(limiter.rate_limit(&key, 1, 1, 1, 1, now));
    };
    let growing = longest(0, &mut take);
    now = start + LATER;
    let mut take = |key: u64| {
        let key = format!("{key:016x}");
        let _ = std::hint::black_box(limiter.rate_limit(&key, 1, 1, 1, 1, now));
    };
    Longest {
        subject: "throttlecrab",
        growing,
        expiring: longest(KEYS, &mut take),
    }
}

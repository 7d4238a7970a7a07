//! Seeds, times, and the naive counting.

use std::hash::{BuildHasher as _, RandomState};

use fastrand::Rng;
use tidegate::{Rate, Timestamp};

pub fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

pub fn rate(count: u32, period: u64) -> Rate {
    Rate::new(count, period).unwrap()
}

/// The generator of a test, from `TIDEGATE_SEED` where it is set; the seed is shown where the test
/// fails.
pub fn seeded(test: &str) -> Rng {
    let seed = std::env::var("TIDEGATE_SEED").map_or_else(
        |_| RandomState::new().hash_one(test),
        |seed| seed.parse().expect("TIDEGATE_SEED is a number"),
    );
    println!("{test}: TIDEGATE_SEED={seed}");
    Rng::with_seed(seed)
}

/// The most that `calls` (time and cost, in any order) put into any half-open window of `window`
/// microseconds.
pub fn most_within(calls: &[(u64, u64)], window: u64) -> u64 {
    let mut calls = calls.to_vec();
    calls.sort_unstable();
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for &(time, cost) in &calls {
        sum += cost;
        while calls[first].0 + window <= time {
            sum -= calls[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[test]
fn the_counting_takes_windows_as_half_open() {
    let calls = [(30, 4), (10, 1), (20, 2)];
    let within = |window| most_within(&calls, window);
    assert_eq!((within(1), within(10), within(11)), (4, 4, 6));
    assert_eq!((within(20), within(21)), (6, 7));
}

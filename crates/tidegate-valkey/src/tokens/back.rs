//! How much of what was not spent may be given back.
//!
//! A bucket drains what was charged while it is held, so giving all of it back would forgive what
//! others have used meanwhile: with batches that overlap, more and more of it. So a bucket is given
//! back only what cannot have drained since. A window counts a charge until it leaves, and gives up
//! that very charge.

use tidegate_core::{Align, Micros, Policy};

/// How many of `units` that were charged at most `age` ago may be given back without any caller
/// having had more than if they had never been charged.
pub(crate) fn returnable(policy: &Policy, units: u32, age: Micros) -> u32 {
    match policy {
        Policy::TokenBucket(bucket) => {
            let rate = bucket.rate();
            let drained = u128::from(age.0) * u128::from(rate.count());
            less(units, drained.div_ceil(rate.period().0.into()))
        }
        Policy::IntervalBucket(bucket) => {
            let rate = bucket.rate();
            // One more may fall within than fit.
            let refills = u128::from(age.0 / rate.period().0) + 1;
            less(units, refills * u128::from(rate.count()))
        }
        // The first charge began the window: without it, two windows could be nearer to each other
        // than their length.
        Policy::FixedWindow(window) if matches!(window.align(), Align::FirstUse) => less(units, 1),
        _ => units,
    }
}

fn less(units: u32, by: u128) -> u32 {
    units.saturating_sub(u32::try_from(by).unwrap_or(u32::MAX))
}

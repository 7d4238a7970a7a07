//! What each algorithm admits at most in a window of a given length, whatever the traffic.
//!
//! The figures are in units of cost, for half-open windows, on the key's own time. They are
//! reached, not only safe, except for the strict window beyond its period, an interpolated one whose
//! numbers do not divide, and where a function says otherwise.

use crate::fixed_window::{Align, FixedWindow};
use crate::lockout::Lockout;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::time::Micros;

/// The most units that a limit admits to one key in any window of length `window`.
///
/// For a paced queue this counts departures of callers of one unit each (the units of one caller
/// leave together), for a lockout attempts. A concurrency limit bounds
/// what is at work at once and not how much passes: none. A window of length 0 holds nothing.
#[must_use]
pub fn admitted(policy: &Policy, window: Micros) -> Option<u64> {
    let length = window.0;
    if length == 0 {
        return Some(0);
    }
    let most = match policy {
        Policy::TokenBucket(bucket) => continuous(bucket.rate(), bucket.capacity(), length),
        Policy::IntervalBucket(bucket) => {
            let (rate, capacity) = (bucket.rate(), u128::from(bucket.capacity()));
            let refill = u128::from(rate.count()).min(capacity);
            capacity + refill * ceil(length - 1, rate.period().0)
        }
        Policy::LeakyBucket(bucket) => departures(bucket.rate(), bucket.burst(), length),
        Policy::FixedWindow(fixed) => fixed_window(fixed, length),
        Policy::SlidingLog(log) => u128::from(log.max()) * ceil(length, log.period().0),
        Policy::StrictWindow(strict) => u128::from(strict.max()) * ceil(length, strict.period().0),
        Policy::InterpolatedWindow(two) => {
            let (limit, period) = (u128::from(two.max()), u128::from(two.period().0));
            limit + u128::from(length.saturating_sub(2)) * limit / period
        }
        Policy::Concurrency(_) => return None,
        Policy::Lockout(lockout) => attempts(lockout, length),
    };
    Some(u64::try_from(most).unwrap_or(u64::MAX))
}

/// [`admitted`] where callers also reserve ahead and use what they got after its delay.
///
/// Only a continuous bucket lets more pass then: a caller whose tokens are there within a microsecond
/// goes at its end, so that what came back in it counts too, and no more than that.
#[must_use]
pub fn admitted_with_reservations(policy: &Policy, window: Micros) -> Option<u64> {
    match policy {
        Policy::TokenBucket(bucket) if window.0 > 0 && bucket.capacity() > 0 => {
            let most = departures(bucket.rate(), bucket.capacity(), window.0);
            Some(u64::try_from(most).unwrap_or(u64::MAX))
        }
        _ => admitted(policy, window),
    }
}

/// The most units that a call over several limits lets through to one key: the least of what its
/// members admit. None if no member bounds it.
#[must_use]
pub fn admitted_by_all<'a>(
    policies: impl IntoIterator<Item = &'a Policy>,
    window: Micros,
) -> Option<u64> {
    policies
        .into_iter()
        .filter_map(|policy| admitted(policy, window))
        .min()
}

/// `ceil(a / b)`.
fn ceil(a: u64, b: u64) -> u128 {
    u128::from(a.div_ceil(b))
}

/// A full bucket, then what comes back until the last moment of the window.
fn continuous(rate: Rate, capacity: u32, length: u64) -> u128 {
    let (r, t) = rate.reduced();
    let capacity = u128::from(capacity);
    let refill = u128::from(length - 1) * u128::from(r) / u128::from(t);
    // However fast it refills, a bucket holds no more than its capacity at any microsecond.
    (capacity + refill).min(capacity * u128::from(length))
}

/// What leaves a queue that is long enough. Callers of one unit leave `T/R` apart, each in the first
/// microsecond that has begun by then, so two may be a little less than that apart.
fn departures(rate: Rate, burst: u32, length: u64) -> u128 {
    let (r, t) = rate.reduced();
    let burst = u128::from(burst);
    if r == 0 {
        return burst;
    }
    burst - 1 + (u128::from(length) * u128::from(r)).div_ceil(u128::from(t))
}

fn fixed_window(fixed: &FixedWindow, length: u64) -> u128 {
    let (limit, period) = (u128::from(fixed.max()), fixed.period().0);
    match fixed.align() {
        Align::Epoch => limit * (ceil(length - 1, period) + 1),
        Align::FirstUse => {
            let whole = limit * ceil(length, period);
            // One unit opens a window, the rest comes at its end.
            whole.max(limit.saturating_sub(1) + limit * ceil(length - 1, period))
        }
        // As if all windows were as short as the shortest: safe, and reached where they are.
        Align::Calendar(calendar) => limit * (ceil(length - 1, calendar.shortest().0.max(1)) + 1),
    }
}

/// All failures at once after every ban, and just too few for a ban all the time: safe, but no
/// one guesser reaches both.
fn attempts(lockout: &Lockout, length: u64) -> u128 {
    let settings = lockout.settings();
    let failures = u128::from(settings.failures);
    let bans = u128::from((length - 1) / settings.ban.0.min(settings.max_ban.0)) + 1;
    let quiet = failures.saturating_sub(1) * ceil(length, settings.period.0);
    let most = failures * bans + quiet;
    settings.long_cap.map_or(most, |(cap, period)| {
        most.min(u128::from(cap) * ceil(length, period.0))
    })
}

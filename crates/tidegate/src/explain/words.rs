//! The sentences of an explanation.

use tidegate_config::AlgorithmConfig;
use tidegate_config::model::KeyPart;
use tidegate_core::{Align, FixedWindow, Lockout, Micros, Policy, Rate};

use super::longest_ban;

const DAY: u64 = 86_400_000_000;

/// What the algorithm does, in a sentence.
pub(super) fn sentence(algorithm: &AlgorithmConfig, policy: &Policy) -> String {
    match policy {
        Policy::TokenBucket(bucket) => {
            format!(
                "Up to {} at once, then {}.",
                bucket.capacity(),
                one_by_one(bucket.rate())
            )
        }
        Policy::IntervalBucket(bucket) => {
            let rate = bucket.rate();
            let back = match rate.count().min(bucket.capacity()) {
                0 => "nothing ever comes back".to_owned(),
                1 => format!("one comes back every {}", rate.period()),
                count => format!("{count} come back together every {}", rate.period()),
            };
            format!("Up to {} at once; {back}.", bucket.capacity())
        }
        Policy::LeakyBucket(bucket) => {
            let wait = bucket.max_wait().map_or_else(String::new, |wait| {
                format!(", but nobody longer than {wait}")
            });
            match bucket.queue() {
                0 => format!(
                    "Up to {} at once, then {}; nobody waits in a queue.",
                    bucket.burst(),
                    one_by_one(bucket.rate())
                ),
                queue => format!(
                    "Up to {} at once, then {}; up to {queue} wait for their turn{wait}.",
                    bucket.burst(),
                    one_by_one(bucket.rate())
                ),
            }
        }
        Policy::FixedWindow(window) => fixed_window(algorithm, window),
        Policy::SlidingLog(log) => {
            format!(
                "Never more than {} in any {}, counted exactly.",
                log.max(),
                each(log.period())
            )
        }
        Policy::StrictWindow(window) => format!(
            "Never more than {} in any {}; the count looks back over up to {}, so that steady \
             traffic gets {} per {}.",
            window.max(),
            each(window.period()),
            window.longest_window(),
            window.max(),
            window.longest_window()
        ),
        Policy::InterpolatedWindow(window) => format!(
            "About {} in any {}, estimated from two counters.",
            window.max(),
            window.period()
        ),
        Policy::Concurrency(concurrency) => {
            let hold = concurrency.max_hold().map_or_else(String::new, |hold| {
                format!(", and after {hold} in any case")
            });
            format!(
                "Up to {} at work at once; a permit that is not renewed comes back after {}{hold}.",
                concurrency.permits(),
                concurrency.lease()
            )
        }
        Policy::Lockout(lockout) => lockout_sentence(lockout),
    }
}

fn fixed_window(algorithm: &AlgorithmConfig, window: &FixedWindow) -> String {
    let (max, period) = (window.max(), window.period());
    match (algorithm, window.align()) {
        (AlgorithmConfig::Quota(quota), _) => {
            let start = quota
                .starts_on
                .map_or_else(String::new, |start| format!(", from {start}"));
            format!(
                "Up to {max} per calendar {} in {}{start}.",
                quota.per, quota.time_zone
            )
        }
        (_, Align::Calendar(calendar)) => {
            format!("Up to {max} per calendar window ({}).", calendar.name())
        }
        (_, Align::FirstUse) => {
            format!("Up to {max} per {period} from the first call on; then the count begins anew.")
        }
        (_, Align::Epoch) => format!(
            "Up to {max} per {period}; the count begins anew at every full {period} of the clock."
        ),
    }
}

fn lockout_sentence(lockout: &Lockout) -> String {
    let settings = lockout.settings();
    let longest = longest_ban(settings);
    let grow = if settings.factor > 1 && longest > settings.ban {
        format!(
            ", and each further one {} times as long, up to {longest}",
            settings.factor
        )
    } else {
        String::new()
    };
    let cap = settings.long_cap.map_or_else(String::new, |(cap, period)| {
        format!(" Never more than {cap} attempts without success in {period}.")
    });
    format!(
        "{} failures in {} bring a ban of {}{grow}.{cap}",
        settings.failures, settings.period, settings.ban
    )
}

/// A period after "per" and "any": `second`, `10m`.
fn each(period: Micros) -> String {
    match period.0 {
        1_000_000 => "second".to_owned(),
        60_000_000 => "minute".to_owned(),
        3_600_000_000 => "hour".to_owned(),
        DAY => "day".to_owned(),
        _ => period.to_string(),
    }
}

/// What passes in the long run, and how many a day where that is easier to picture.
pub(super) fn sustained(algorithm: &AlgorithmConfig, rate: Option<Rate>) -> String {
    let Some(rate) = rate else {
        return "not bounded".to_owned();
    };
    if let AlgorithmConfig::Quota(quota) = algorithm {
        return format!("{} per calendar {}", quota.limit.0, quota.per);
    }
    let (count, period) = (rate.count(), rate.period());
    let per_day = u128::from(count) * u128::from(DAY) / u128::from(period.0).max(1);
    if count == 0 {
        "none: nothing comes back".to_owned()
    } else if (1_000_001..DAY).contains(&period.0) && per_day < 1_000_000 {
        format!("{count} per {}, {per_day} a day", each(period))
    } else {
        format!("{count} per {}", each(period))
    }
}

/// A rate that comes evenly: `one every 200s`, `100 per second, one by one`.
fn one_by_one(rate: Rate) -> String {
    match rate.count() {
        0 => "nothing ever comes back".to_owned(),
        1 => format!("one every {}", rate.period()),
        count => format!("{count} per {}, one by one", each(rate.period())),
    }
}

/// Whose calls count together.
pub(super) fn counted_by(key: &[KeyPart]) -> String {
    if key.is_empty() {
        return "all calls together".to_owned();
    }
    let parts: Vec<String> = key.iter().map(ToString::to_string).collect();
    parts.join(" and ")
}

/// The traffic that reaches the most that is admitted.
pub(super) fn worst_traffic(policy: &Policy) -> String {
    match policy {
        Policy::TokenBucket(bucket) => {
            format!(
                "{} at once on a full bucket, then every token as it comes back",
                bucket.capacity()
            )
        }
        Policy::IntervalBucket(bucket) => {
            let refill = bucket.rate().count().min(bucket.capacity());
            format!(
                "{} in the last moment of an interval, {refill} in the next moment, and {refill} \
                 at the end of every interval",
                bucket.capacity()
            )
        }
        Policy::LeakyBucket(bucket) if bucket.burst() > 1 => {
            format!(
                "{} at once, then a queue that never runs empty",
                bucket.burst()
            )
        }
        Policy::LeakyBucket(_) => "a queue that never runs empty".to_owned(),
        Policy::FixedWindow(window) => match window.align() {
            Align::FirstUse => format!(
                "one call that opens a window, the other {} in its last moment, and {} right after",
                window.max().saturating_sub(1),
                window.max()
            ),
            _ => format!(
                "{} in the last moment of a window and {} in the first of the next",
                window.max(),
                window.max()
            ),
        },
        Policy::SlidingLog(log) => {
            format!(
                "{} at once, and again exactly {} later",
                log.max(),
                log.period()
            )
        }
        Policy::StrictWindow(window) => {
            format!(
                "{} at once, and again when their cell has left the count",
                window.max()
            )
        }
        Policy::InterpolatedWindow(window) => format!(
            "{} in the last moment of a window, then each call as soon as the estimate lets it",
            window.max()
        ),
        Policy::Concurrency(concurrency) => format!(
            "{} holders who renew for ever, or calls so short that any number passes",
            concurrency.permits()
        ),
        Policy::Lockout(lockout) => {
            let failures = lockout.settings().failures;
            format!(
                "{} failures per {}, one short of a ban; or {failures} at the end of every ban",
                failures.saturating_sub(1),
                lockout.settings().period
            )
        }
    }
}

//! Draws the numbers of limits.

use fastrand::Rng;

use super::MAX_COUNT;
use crate::model::{
    Bans, Border, Cells, Continuous, Fixed, Int, Interval, Leases, Log, Paced, Pattern, Rule,
    TwoCells,
};

/// What kind of limit to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Continuous,
    ContinuousInitial,
    Interval,
    IntervalInitial,
    Paced,
    Epoch,
    FirstUse,
    Calendar,
    AnyWindow,
    Log,
    Strict,
    Interpolated,
    Concurrency,
    Lockout,
}

const TEN_YEARS: u64 = 315_576_000_000_000;

/// A whole number up to `most` with all magnitudes equally likely.
fn magnitude(rng: &mut Rng, most: u64) -> u64 {
    let bits = rng.u32(..=most.ilog2());
    rng.u64(..=most.min((2 << bits) - 1))
}

fn period(rng: &mut Rng) -> Int {
    let picked = match rng.u32(..20) {
        0 => 1,
        1 => 2,
        2 => 7,
        3 => 10,
        4 => 15_000,
        5 => 999_999,
        6..9 => 1_000_000,
        9 => 2_500_000,
        10 => 10_000_001,
        11 => 60_000_000,
        12 => 86_400_000_000,
        13 => TEN_YEARS,
        14 | 15 => rng.u64(500_000..20_000_000),
        _ => magnitude(rng, TEN_YEARS).max(1),
    };
    picked.into()
}

fn count(rng: &mut Rng) -> Int {
    let picked = match rng.u32(..16) {
        0 => 0,
        1 | 2 => 1,
        3 => 2,
        4 => 3,
        5..8 => rng.u32(1..12),
        8 => 100,
        9 => 1_000,
        10 => MAX_COUNT - rng.u32(..2),
        11 => rng.u32(..MAX_COUNT),
        _ => magnitude(rng, MAX_COUNT.into()) as u32,
    };
    picked.into()
}

fn rate(rng: &mut Rng) -> (Int, Int) {
    match rng.u32(..16) {
        0 => (1, TEN_YEARS.into()),
        1 => (1_000_000_000, 1_000_000),
        2 => (1, 1),
        3 => (MAX_COUNT.into(), 1),
        4 => (100_001, 86_400_000_000),
        5 => (3, 600_000_000),
        6 => (MAX_COUNT.into(), TEN_YEARS.into()),
        7 => (0, period(rng)),
        8 | 9 => (rng.u32(1..20).into(), 1_000_000),
        10 => (rng.u32(1..20).into(), rng.u32(1..20).into()),
        _ => (count(rng), period(rng)),
    }
}

fn initial(rng: &mut Rng, capacity: Int, period: Int, (now, future): (Int, bool)) -> (Int, Int) {
    let most = u64::try_from(capacity).expect("a capacity in range");
    let tokens = match rng.u32(..4) {
        0 => 0,
        1 => most,
        _ => rng.u64(..=most),
    };
    let before = u64::try_from(period.min(20_000_000)).expect("a period in range");
    let since = match rng.u32(..4) {
        0 if future => now + Int::from(rng.u64(..=before)),
        0 | 1 => now,
        2 => now - Int::from(rng.u64(..=before * 4)),
        _ => Int::from(rng.u64(..1_700_000_000_000_000)).min(now),
    };
    (tokens.into(), since.clamp(0, 1 << 52))
}

fn pattern(rng: &mut Rng) -> Pattern {
    // With a cycle that is no whole number of its mean, as months have it.
    let unit = match rng.u32(..4) {
        0 => 10,
        1 => 100_000,
        2 => 1_000_000,
        _ => 3_600_000_000,
    };
    Pattern(
        (0..rng.usize(1..4))
            .map(|_| unit * Int::from(rng.u32(1..30)))
            .collect(),
    )
}

/// Draws a limit. `now` comes with whether a bucket may start in the future.
pub(super) fn draw(rng: &mut Rng, family: Family, now: (Int, bool)) -> Rule {
    match family {
        Family::Continuous | Family::ContinuousInitial => {
            let ((rate, period), capacity) = (rate(rng), count(rng));
            let wanted = family == Family::ContinuousInitial && rng.u32(..5) > 0;
            Rule::Continuous(Continuous {
                count: rate,
                period,
                capacity,
                initial: wanted.then(|| initial(rng, capacity, period, now)),
            })
        }
        Family::Interval | Family::IntervalInitial => {
            let ((rate, period), capacity) = (rate(rng), count(rng));
            let wanted = family == Family::IntervalInitial && rng.u32(..5) > 0;
            Rule::Interval(Interval {
                count: rate,
                period,
                capacity,
                initial: wanted.then(|| initial(rng, capacity, period, now)),
            })
        }
        Family::Paced => {
            let ((rate, period), burst) = (rate(rng), count(rng).max(1));
            let burst = if rng.bool() { 1 } else { burst };
            let queue = count(rng).min(Int::from(MAX_COUNT) - burst);
            Rule::Paced(Paced {
                count: rate,
                period,
                queue,
                burst,
                max_wait: rng.bool().then(|| {
                    if rng.u32(..8) == 0 {
                        0
                    } else {
                        self::period(rng)
                    }
                }),
            })
        }
        Family::Epoch | Family::FirstUse => Rule::Fixed(Fixed {
            limit: count(rng),
            period: period(rng),
            border: if family == Family::Epoch {
                Border::Epoch
            } else {
                Border::FirstUse
            },
        }),
        Family::AnyWindow => {
            let borders = [Family::Epoch, Family::FirstUse, Family::Calendar];
            let family = *rng.choice(&borders).expect("there are borders");
            draw(rng, family, now)
        }
        Family::Calendar => Rule::Fixed(Fixed {
            limit: count(rng),
            period: 1,
            border: Border::Calendar(pattern(rng)),
        }),
        Family::Log => Rule::Log(Log {
            limit: match rng.u32(..8) {
                0 => 100_000,
                1 => rng.u32(..100_000).into(),
                _ => rng.u32(..30).into(),
            },
            period: period(rng),
        }),
        Family::Strict => Rule::Cells(Cells {
            limit: count(rng),
            period: period(rng),
            cells: match rng.u32(..5) {
                0 => 1,
                1 => 60,
                2 => 3600,
                _ => rng.u32(1..100).into(),
            },
        }),
        Family::Interpolated => Rule::TwoCells(TwoCells {
            limit: count(rng),
            period: period(rng),
        }),
        Family::Concurrency => {
            let lease = period(rng);
            Rule::Leases(Leases {
                limit: count(rng),
                lease,
                max_hold: rng.bool().then(|| period(rng).max(lease)),
            })
        }
        Family::Lockout => Rule::Bans(Bans {
            failures: (if rng.u32(..8) == 0 {
                rng.u32(..20)
            } else {
                rng.u32(..5)
            })
            .into(),
            period: period(rng),
            ban: period(rng),
            factor: match rng.u32(..6) {
                0 => 1,
                1 => u32::MAX.into(),
                _ => rng.u32(2..5).into(),
            },
            max_ban: period(rng),
            jitter: if rng.bool() { 0 } else { period(rng) },
            forget_after: if rng.u32(..4) == 0 { 0 } else { period(rng) },
            long_cap: rng.bool().then(|| (rng.u32(..12).into(), period(rng))),
        }),
    }
}

/// Draws new numbers for a limit: all of them, or those near the old ones.
pub(super) fn vary(rng: &mut Rng, family: Family, old: &Rule, now: (Int, bool)) -> Rule {
    let fresh = draw(rng, family, now);
    if rng.bool() {
        return fresh;
    }
    let mut new = old.clone();
    match (&mut new, fresh) {
        (Rule::Continuous(new), Rule::Continuous(fresh)) => {
            if rng.bool() {
                (new.count, new.period) = (fresh.count, fresh.period);
            } else {
                (new.capacity, new.initial) = (fresh.capacity, fresh.initial);
            }
        }
        (Rule::Interval(new), Rule::Interval(fresh)) => {
            if rng.bool() {
                (new.count, new.period) = (fresh.count, fresh.period);
            } else {
                (new.capacity, new.initial) = (fresh.capacity, fresh.initial);
            }
        }
        (Rule::Paced(new), Rule::Paced(fresh)) => match rng.u32(..3) {
            0 => (new.count, new.period) = (fresh.count, fresh.period),
            1 => new.max_wait = fresh.max_wait,
            _ => (new.queue, new.burst) = (fresh.queue, fresh.burst),
        },
        (Rule::Fixed(new), Rule::Fixed(fresh)) => {
            if rng.bool() {
                new.limit = fresh.limit;
            } else {
                (new.period, new.border) = (fresh.period, fresh.border);
            }
        }
        (Rule::Log(new), Rule::Log(fresh)) => {
            if rng.bool() {
                new.limit = fresh.limit;
            } else {
                new.period = fresh.period;
            }
        }
        (Rule::Cells(new), Rule::Cells(fresh)) => match rng.u32(..3) {
            0 => new.limit = fresh.limit,
            1 => new.period = fresh.period,
            _ => new.cells = fresh.cells,
        },
        (Rule::TwoCells(new), Rule::TwoCells(fresh)) => {
            if rng.bool() {
                new.limit = fresh.limit;
            } else {
                new.period = fresh.period;
            }
        }
        (Rule::Leases(new), Rule::Leases(fresh)) => {
            if rng.bool() {
                new.limit = fresh.limit;
            } else {
                (new.lease, new.max_hold) = (fresh.lease, fresh.max_hold);
            }
        }
        (Rule::Bans(new), Rule::Bans(fresh)) => match rng.u32(..3) {
            0 => new.failures = fresh.failures,
            1 => new.long_cap = fresh.long_cap,
            _ => (new.ban, new.max_ban, new.factor) = (fresh.ban, fresh.max_ban, fresh.factor),
        },
        (new, fresh) => *new = fresh,
    }
    new
}

fn length(number: Int) -> u64 {
    u64::try_from(number).unwrap_or(1).max(1)
}

/// The lengths of time on which something happens under a limit.
#[must_use]
pub fn scales(rule: &Rule) -> Vec<u64> {
    let flow = |count: Int, period: Int| vec![length(period), length(period / count.max(1))];
    match rule {
        Rule::Continuous(rule) => flow(rule.count, rule.period),
        Rule::Interval(rule) => flow(rule.count, rule.period),
        Rule::Paced(rule) => flow(rule.count, rule.period),
        Rule::Fixed(Fixed {
            border: Border::Calendar(pattern),
            ..
        }) => pattern.0.iter().map(|window| length(*window)).collect(),
        Rule::Fixed(rule) => vec![length(rule.period)],
        Rule::Log(rule) => vec![length(rule.period), length(rule.period / 4)],
        Rule::Cells(rule) => vec![length(rule.period), length(rule.period / rule.cells)],
        Rule::TwoCells(rule) => vec![length(rule.period)],
        Rule::Leases(rule) => vec![length(rule.lease), length(rule.max_hold.unwrap_or(1))],
        Rule::Bans(rule) => vec![
            length(rule.period),
            length(rule.ban),
            length(rule.forget_after),
            length(rule.long_cap.map_or(1, |(_, long)| long)),
        ],
    }
}

/// The most at once.
///
/// # Panics
/// If the rule has no count of its own in range.
#[must_use]
pub fn capacity(rule: &Rule) -> u32 {
    let capacity = match rule {
        Rule::Continuous(rule) => rule.capacity,
        Rule::Interval(rule) => rule.capacity,
        Rule::Paced(rule) => rule.burst + rule.queue,
        Rule::Fixed(rule) => rule.limit,
        Rule::Log(rule) => rule.limit,
        Rule::Cells(rule) => rule.limit,
        Rule::TwoCells(rule) => rule.limit,
        Rule::Leases(rule) => rule.limit,
        Rule::Bans(rule) => rule.failures,
    };
    u32::try_from(capacity).expect("a capacity in range")
}

//! The numbers of a limit, as the model and as the engine take them.

use std::sync::Arc;

use tidegate_core::{
    Align, Calendar, Concurrency, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    Lockout, LockoutSettings, Micros, Policy, PolicyError, Rate, SlidingLog, StrictWindow,
    Timestamp, TokenBucket, Window,
};

use super::fixed::{Border, Fixed, Pattern};
use super::fluid::{Continuous, Paced};
use super::interpolated::TwoCells;
use super::interval::Interval;
use super::lockout::Bans;
use super::log::Log;
use super::numbers::Int;
use super::strict::Cells;
use super::{AnyLimit, Leases, Limit};

/// The numbers of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A continuous token bucket.
    Continuous(Continuous),
    /// A token bucket with an interval refill.
    Interval(Interval),
    /// A paced queue.
    Paced(Paced),
    /// A count per window.
    Fixed(Fixed),
    /// An exact sliding window.
    Log(Log),
    /// A strict sliding window.
    Cells(Cells),
    /// An interpolated sliding window.
    TwoCells(TwoCells),
    /// A concurrency limit.
    Leases(Leases),
    /// A lockout.
    Bans(Bans),
}

fn count(number: Int) -> u32 {
    u32::try_from(number).expect("rules hold counts in range")
}

fn micros(number: Int) -> Micros {
    Micros(u64::try_from(number).expect("rules hold lengths in range"))
}

/// A point in time as the engine takes it.
///
/// # Panics
/// Outside of valid time.
#[must_use]
pub fn timestamp(number: Int) -> Timestamp {
    let valid = u64::try_from(number).ok();
    valid
        .and_then(|number| Timestamp::from_micros(number).ok())
        .expect("times are in range")
}

impl Rule {
    /// The same numbers for the engine.
    ///
    /// # Errors
    /// If the engine takes no such numbers.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        Ok(match self {
            Self::Continuous(rule) => {
                let rate = Rate::new(count(rule.count), micros(rule.period).0)?;
                let bucket = TokenBucket::new(rate, count(rule.capacity))?;
                match rule.initial {
                    Some((initial, since)) => {
                        bucket.with_initial(count(initial), timestamp(since))?
                    }
                    None => bucket,
                }
                .into()
            }
            Self::Interval(rule) => {
                let rate = Rate::new(count(rule.count), micros(rule.period).0)?;
                let bucket = IntervalBucket::new(rate, count(rule.capacity))?;
                match rule.initial {
                    Some((initial, since)) => {
                        bucket.with_initial(count(initial), timestamp(since))?
                    }
                    None => bucket,
                }
                .into()
            }
            Self::Paced(rule) => {
                let rate = Rate::new(count(rule.count), micros(rule.period).0)?;
                let max_wait = rule.max_wait.map(micros);
                LeakyBucket::new(rate, count(rule.queue), count(rule.burst), max_wait)?.into()
            }
            Self::Fixed(rule) => match &rule.border {
                Border::Epoch => {
                    FixedWindow::new(count(rule.limit), micros(rule.period), Align::Epoch)?
                }
                Border::FirstUse => {
                    FixedWindow::new(count(rule.limit), micros(rule.period), Align::FirstUse)?
                }
                Border::Calendar(pattern) => {
                    FixedWindow::calendar(count(rule.limit), Arc::new(Repeating::of(pattern)))?
                }
            }
            .into(),
            Self::Log(rule) => SlidingLog::new(count(rule.limit), micros(rule.period))?.into(),
            Self::Cells(rule) => {
                let (limit, cells) = (count(rule.limit), count(rule.cells));
                StrictWindow::new(limit, micros(rule.period), cells)?.into()
            }
            Self::TwoCells(rule) => {
                InterpolatedWindow::new(count(rule.limit), micros(rule.period))?.into()
            }
            Self::Leases(rule) => {
                let max_hold = rule.max_hold.map(micros);
                Concurrency::new(count(rule.limit), micros(rule.lease), max_hold)?.into()
            }
            Self::Bans(rule) => Lockout::new(LockoutSettings {
                failures: count(rule.failures),
                period: micros(rule.period),
                ban: micros(rule.ban),
                factor: count(rule.factor),
                max_ban: micros(rule.max_ban),
                jitter: micros(rule.jitter),
                forget_after: micros(rule.forget_after),
                long_cap: rule.long_cap.map(|(cap, long)| (count(cap), micros(long))),
            })?
            .into(),
        })
    }

    /// A limit of the model with these numbers.
    #[must_use]
    pub fn model(&self) -> Box<dyn AnyLimit> {
        match self.clone() {
            Self::Continuous(rule) => Box::new(Limit::new(rule)),
            Self::Interval(rule) => Box::new(Limit::new(rule)),
            Self::Paced(rule) => Box::new(Limit::new(rule)),
            Self::Fixed(rule) => Box::new(Limit::new(rule)),
            Self::Log(rule) => Box::new(Limit::new(rule)),
            Self::Cells(rule) => Box::new(Limit::new(rule)),
            Self::TwoCells(rule) => Box::new(Limit::new(rule)),
            Self::Leases(rule) => Box::new(Limit::new(rule)),
            Self::Bans(rule) => Box::new(Limit::new(rule)),
        }
    }
}

/// A [`Pattern`] as a calendar for the engine.
#[derive(Debug)]
struct Repeating {
    pattern: Pattern,
    name: String,
}

impl Repeating {
    fn of(pattern: &Pattern) -> Self {
        Self {
            pattern: pattern.clone(),
            name: format!("{:?}", pattern.0),
        }
    }
}

impl Calendar for Repeating {
    fn window(&self, at: Timestamp) -> Window {
        let (start, end) = self.pattern.window(at.as_micros().into());
        Window {
            start: timestamp(start),
            end: timestamp(end.min(Timestamp::MAX.as_micros().into())),
        }
    }

    fn longest(&self) -> Micros {
        micros(*self.pattern.0.iter().max().expect("a pattern has windows"))
    }

    fn shortest(&self) -> Micros {
        micros(*self.pattern.0.iter().min().expect("a pattern has windows"))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

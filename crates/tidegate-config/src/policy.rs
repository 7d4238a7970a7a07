//! The engine's numbers for the algorithms of a document.
//!
//! The engine refuses numbers that it cannot keep; what is refused here besides is fields that do
//! not go together, each with its remedy.

use std::sync::Arc;

use tidegate_core::{
    Align as CoreAlign, Concurrency, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    Lockout, LockoutSettings, MAX_LOG_ENTRIES, Micros, Policy, PolicyError, SlidingLog,
    StrictWindow, Timestamp, TokenBucket,
};

use crate::algorithm::{
    AlgorithmConfig, Align, ConcurrencyConfig, FixedWindowConfig, LeakyBucketConfig, LockoutConfig,
    QuotaConfig, Refill, SlidingWindowConfig, TokenBucketConfig, WindowMode,
};
use crate::calendar::ZonedCalendar;
use crate::zone::{CalendarSpan, StartsOn};

const DAY: u64 = 86_400_000_000;

/// Fields of an algorithm that do not go together, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AlgorithmProblem {
    /// The field to look at, where it is one.
    pub field: Option<&'static str>,
    /// What is wrong.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl AlgorithmProblem {
    fn new(field: &'static str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            field: Some(field),
            message: message.into(),
            help: help.into(),
        }
    }
}

impl AlgorithmConfig {
    /// The name of the algorithm, as the document writes it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::Gcra(_) => "gcra",
            Self::LeakyBucket(_) => "leaky_bucket",
            Self::FixedWindow(_) => "fixed_window",
            Self::Quota(_) => "quota",
            Self::SlidingLog(_) => "sliding_log",
            Self::SlidingWindow(_) => "sliding_window",
            Self::Concurrency(_) => "concurrency",
            Self::Lockout(_) => "lockout",
        }
    }

    /// Builds the engine's numbers. `since` is when the limit begins to count: a bucket whose
    /// `initial` is below its capacity fills from then on.
    ///
    /// # Errors
    /// Fields that do not go together.
    pub fn policy(&self, since: Timestamp) -> Result<Policy, AlgorithmProblem> {
        match self {
            Self::TokenBucket(config) => config.policy(since),
            Self::Gcra(config) => built(TokenBucket::new(config.rate.0, config.burst.0), "burst"),
            Self::LeakyBucket(config) => config.policy(),
            Self::FixedWindow(config) => config.policy(),
            Self::Quota(config) => config.policy(),
            Self::SlidingLog(config) => {
                let (limit, period) = (config.limit.0.count(), config.limit.0.period());
                built(SlidingLog::new(limit, period), "limit")
            }
            Self::SlidingWindow(config) => config.policy(),
            Self::Concurrency(config) => config.policy(),
            Self::Lockout(config) => config.policy(),
        }
    }
}

/// The policy, or the engine's refusal with a remedy.
fn built<T: Into<Policy>>(
    result: Result<T, PolicyError>,
    field: &'static str,
) -> Result<Policy, AlgorithmProblem> {
    result.map(Into::into).map_err(|error| {
        let help = match error {
            PolicyError::LogTooLong(_) => format!(
                "keep at most {MAX_LOG_ENTRIES} entries per key, or write `sliding_window` with \
                 the same limit: its memory is bounded"
            ),
            PolicyError::CellsOutOfRange(_) => "60 cells suit most windows".to_owned(),
            PolicyError::BurstZero => "leave `burst` out: its default is 1".to_owned(),
            PolicyError::FactorZero => "leave `factor` out for bans of one length".to_owned(),
            PolicyError::LeaseAboveHold { .. } => {
                "make `lease` shorter or `max_hold` longer".to_owned()
            }
            _ => "counts go up to 2147483647 and periods from 1us to 10y".to_owned(),
        };
        AlgorithmProblem::new(field, error.to_string(), help)
    })
}

impl TokenBucketConfig {
    fn policy(&self, since: Timestamp) -> Result<Policy, AlgorithmProblem> {
        let initial = self.initial.unwrap_or(self.capacity);
        if initial > self.capacity {
            return Err(AlgorithmProblem::new(
                "initial",
                format!(
                    "initial {} is above the capacity {}",
                    initial.0, self.capacity.0
                ),
                "a bucket starts with its capacity at most; leave `initial` out to start full",
            ));
        }
        let full = initial == self.capacity;
        match self.refill {
            Refill::Continuous => {
                let bucket = TokenBucket::new(self.rate.0, self.capacity.0);
                let started = |bucket: TokenBucket| {
                    if full {
                        Ok(bucket)
                    } else {
                        bucket.with_initial(initial.0, since)
                    }
                };
                built(bucket.and_then(started), "capacity")
            }
            Refill::Interval => {
                let bucket = IntervalBucket::new(self.rate.0, self.capacity.0);
                let started = |bucket: IntervalBucket| {
                    if full {
                        Ok(bucket)
                    } else {
                        bucket.with_initial(initial.0, since)
                    }
                };
                built(bucket.and_then(started), "capacity")
            }
        }
    }
}

impl LeakyBucketConfig {
    fn policy(&self) -> Result<Policy, AlgorithmProblem> {
        let max_wait = self.max_wait.map(|wait| wait.0);
        built(
            LeakyBucket::new(self.rate.0, self.queue.0, self.burst.0, max_wait),
            "burst",
        )
    }
}

impl FixedWindowConfig {
    fn policy(&self) -> Result<Policy, AlgorithmProblem> {
        let (limit, period) = (self.limit.0.count(), self.limit.0.period());
        if self.time_zone.is_some() && self.align != Align::Calendar {
            return Err(AlgorithmProblem::new(
                "time_zone",
                "a time zone has no effect on this window",
                "add `align: calendar`, or leave `time_zone` out",
            ));
        }
        match self.align {
            Align::Epoch => built(FixedWindow::new(limit, period, CoreAlign::Epoch), "limit"),
            Align::FirstUse => built(
                FixedWindow::new(limit, period, CoreAlign::FirstUse),
                "limit",
            ),
            Align::Calendar => {
                let span = match period.0 {
                    DAY => CalendarSpan::Day,
                    week if week == 7 * DAY => CalendarSpan::Week,
                    _ => {
                        return Err(AlgorithmProblem::new(
                            "align",
                            format!("no calendar window is {period} long"),
                            "`align: calendar` takes a limit per 1d or 7d; for months and years \
                             use `quota`",
                        ));
                    }
                };
                let zone = self.time_zone.clone().unwrap_or_default();
                let calendar = ZonedCalendar::new(span, &zone, StartsOn::first(span));
                built(FixedWindow::calendar(limit, Arc::new(calendar)), "limit")
            }
        }
    }
}

impl QuotaConfig {
    fn policy(&self) -> Result<Policy, AlgorithmProblem> {
        let starts_on = self.starts_on.unwrap_or_else(|| StartsOn::first(self.per));
        if self.starts_on.is_some() && !starts_on.suits(self.per) {
            return Err(AlgorithmProblem::new(
                "starts_on",
                format!("a quota per {} cannot start on {starts_on}", self.per),
                match self.per {
                    CalendarSpan::Day => "leave `starts_on` out: a day starts at local midnight",
                    CalendarSpan::Week => "write a weekday, such as `monday`",
                    CalendarSpan::Month => "write a day from 1 to 28",
                    CalendarSpan::Year => "write a month and a day, such as `04-01`",
                },
            ));
        }
        let calendar = ZonedCalendar::new(self.per, &self.time_zone, starts_on);
        built(
            FixedWindow::calendar(self.limit.0, Arc::new(calendar)),
            "limit",
        )
    }
}

impl SlidingWindowConfig {
    /// The number of cells in mode `strict`.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.cells.map_or(60, |cells| cells.0)
    }

    fn policy(&self) -> Result<Policy, AlgorithmProblem> {
        let (limit, period) = (self.limit.0.count(), self.limit.0.period());
        match self.mode {
            WindowMode::Strict => built(StrictWindow::new(limit, period, self.cells()), "cells"),
            WindowMode::Interpolated if self.cells.is_some() => Err(AlgorithmProblem::new(
                "cells",
                "an interpolated window has no cells",
                "leave `cells` out, or use `mode: strict`",
            )),
            WindowMode::Interpolated => built(InterpolatedWindow::new(limit, period), "limit"),
        }
    }
}

impl ConcurrencyConfig {
    fn policy(&self) -> Result<Policy, AlgorithmProblem> {
        if self.max_wait.is_some() && self.queue.0 == 0 {
            return Err(AlgorithmProblem::new(
                "max_wait",
                "nobody waits: the queue is 0",
                "give `queue` a length, or leave `max_wait` out",
            ));
        }
        let max_hold = self.max_hold.map(|hold| hold.0);
        built(
            Concurrency::new(self.limit.0, self.lease.0, max_hold),
            "lease",
        )
    }
}

impl LockoutConfig {
    /// The longest ban.
    #[must_use]
    pub fn max_ban(&self) -> Micros {
        self.max_ban
            .map_or(Micros(DAY).max(self.ban.0), |ban| ban.0)
    }

    /// How long after the last ban the bans count from the first again.
    #[must_use]
    pub fn forget_after(&self) -> Micros {
        self.forget_after
            .map_or(Micros(DAY).max(self.max_ban()), |length| length.0)
    }

    fn policy(&self) -> Result<Policy, AlgorithmProblem> {
        if self.max_ban() < self.ban.0 {
            return Err(AlgorithmProblem::new(
                "max_ban",
                format!(
                    "the longest ban of {} is below the first of {}",
                    self.max_ban(),
                    self.ban.0
                ),
                "make `max_ban` at least as long as `ban`",
            ));
        }
        for (field, rate) in [
            ("failures", Some(self.failures)),
            ("long_cap", self.long_cap),
        ] {
            let count = rate.map_or(0, |rate| rate.0.count());
            if count > MAX_LOG_ENTRIES {
                return Err(AlgorithmProblem::new(
                    field,
                    format!("{count} failures are above {MAX_LOG_ENTRIES}"),
                    "each failure is kept for exact answers; a lockout needs far fewer",
                ));
            }
        }
        let settings = LockoutSettings {
            failures: self.failures.0.count(),
            period: self.failures.0.period(),
            ban: self.ban.0,
            factor: self.factor.0,
            max_ban: self.max_ban(),
            jitter: self.jitter.0,
            forget_after: self.forget_after(),
            long_cap: self.long_cap.map(|cap| (cap.0.count(), cap.0.period())),
        };
        built(Lockout::new(settings), "failures")
    }
}

//! The algorithms of a limit, as the document writes them.
//!
//! Each prints as the header of a timeline (`token_bucket rate 1/2s capacity 5`) and reads back
//! from one. What serde cannot see, that two fields do not go together, is found by
//! [`AlgorithmConfig::policy`], which also builds the engine's numbers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_core::{
    Align as CoreAlign, Concurrency, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    Lockout, LockoutSettings, MAX_LOG_ENTRIES, Micros, Policy, PolicyError, SlidingLog,
    StrictWindow, Timestamp, TokenBucket,
};

use crate::calendar::{CalendarSpan, StartsOn, Zone, ZonedCalendar};
use crate::scalar::{Count, Length, Period, Rate};

const DAY: u64 = 86_400_000_000;

/// How a limit counts: one of the algorithms with its numbers.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlgorithmConfig {
    /// A burst of up to `capacity`, then `rate`.
    TokenBucket(TokenBucketConfig),
    /// A continuous token bucket by its other name: up to `burst` at once, then `rate`.
    Gcra(GcraConfig),
    /// A queue whose callers leave evenly spaced, so many per period.
    LeakyBucket(LeakyBucketConfig),
    /// So many per window of the clock; up to twice as many across a border of two windows.
    FixedWindow(FixedWindowConfig),
    /// So many per calendar day, week, month or year.
    Quota(QuotaConfig),
    /// Never more than so many in any window: exact, at the price of an entry per call.
    SlidingLog(SlidingLogConfig),
    /// Never more than so many in any window, at bounded memory.
    SlidingWindow(SlidingWindowConfig),
    /// So many at once.
    Concurrency(ConcurrencyConfig),
    /// So many failures per period, then bans that grow.
    Lockout(LockoutConfig),
}

/// A token bucket: a burst of up to `capacity`, then `rate`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBucketConfig {
    /// Tokens that come back, per time: `100/s`, `3/10m`.
    pub rate: Rate,
    /// Tokens that a full bucket holds.
    pub capacity: Count,
    /// Whether tokens come back one by one or all at once. Default: `continuous`.
    #[serde(default)]
    pub refill: Refill,
    /// Tokens that a key starts with. Default: `capacity`, a full bucket.
    #[serde(default)]
    pub initial: Option<Count>,
}

/// How tokens come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Refill {
    /// One by one, evenly spaced.
    #[default]
    Continuous,
    /// All tokens of a period at its end, counted from the key's first charge.
    Interval,
}

/// The generic cell rate algorithm: up to `burst` at once, then `rate`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcraConfig {
    /// The sustained rate: `100/s`, `3/10m`.
    pub rate: Rate,
    /// The most that passes at once (one more than `max_burst` of redis-cell).
    pub burst: Count,
}

/// A paced queue: callers leave `1/rate` apart, up to `queue` of them wait.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeakyBucketConfig {
    /// How many leave per time: `100/s`, `3/10m`.
    pub rate: Rate,
    /// How many may wait behind those that pass at once. Default: 0, nobody waits.
    #[serde(default = "none_queued")]
    pub queue: Count,
    /// How many pass at once before pacing begins. Default: 1.
    #[serde(default = "one")]
    pub burst: Count,
    /// The longest wait; who would wait longer is denied. Default: as long as the queue allows.
    #[serde(default)]
    pub max_wait: Option<Length>,
}

/// A count per window that begins anew at its end.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedWindowConfig {
    /// So many per window: `100/1m`.
    pub limit: Rate,
    /// Where windows begin. Default: `epoch`.
    #[serde(default)]
    pub align: Align,
    /// The time zone of `align: calendar`, by its IANA name. Default: UTC.
    #[serde(default)]
    pub time_zone: Option<Zone>,
}

/// Where windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// At whole multiples of the period since the Unix epoch: the same for every key.
    #[default]
    Epoch,
    /// At the first call of each key.
    FirstUse,
    /// At local midnight (a period of `1d`) or on Monday at local midnight (`7d`).
    Calendar,
}

/// A count per calendar day, week, month or year.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaConfig {
    /// So many per calendar window.
    pub limit: Count,
    /// The window.
    pub per: CalendarSpan,
    /// The time zone whose midnight counts, by its IANA name. Default: UTC.
    #[serde(default)]
    pub time_zone: Zone,
    /// Where a window begins: a weekday for `week` (default: `monday`), a day from 1 to 28 for
    /// `month` (default: 1), a month and day such as `04-01` for `year` (default: `01-01`).
    #[serde(default)]
    pub starts_on: Option<StartsOn>,
}

/// An exact count over the time just past, up to 100000 entries per key.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlidingLogConfig {
    /// So many in any window: `100/1m`.
    pub limit: Rate,
}

/// A count over the time just past, kept in cells.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindowConfig {
    /// So many in any window: `100/1m`.
    pub limit: Rate,
    /// Into how many cells a window is cut, from 1 to 3600; only in mode `strict`. Default: 60.
    #[serde(default)]
    pub cells: Option<Count>,
    /// Whether the count errs on the safe side. Default: `strict`.
    #[serde(default)]
    pub mode: WindowMode,
}

/// On which side a count in cells errs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowMode {
    /// Never more than the limit in any window; looks back up to a cell further.
    #[default]
    Strict,
    /// Two weighted counters: least memory, up to twice the limit in the worst case.
    Interpolated,
}

/// So many at once, each holding a lease that expires.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencyConfig {
    /// So many at once.
    pub limit: Count,
    /// How long a permit is held without a renewal: longer than the longest pause of a live
    /// holder, as a holder that died blocks its permit for that long.
    pub lease: Period,
    /// The longest that a permit may be held by renewals. Default: without end.
    #[serde(default)]
    pub max_hold: Option<Period>,
    /// How many callers may wait for a permit. Default: 0, nobody waits.
    #[serde(default = "none_queued")]
    pub queue: Count,
    /// The longest that a caller waits for a permit. Default: `lease`.
    #[serde(default)]
    pub max_wait: Option<Length>,
}

/// So many failures per period, then a ban; each further ban is longer.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockoutConfig {
    /// How many failures in any period bring a ban: `5/15m`.
    pub failures: Rate,
    /// How long the first ban lasts.
    pub ban: Period,
    /// By how much each further ban is longer. Default: 1, all bans are the same.
    #[serde(default = "one")]
    pub factor: Count,
    /// The longest ban. Default: `1d`, or `ban` where that is longer.
    #[serde(default)]
    pub max_ban: Option<Period>,
    /// Up to how much is added to a ban at random, so that guessers do not come back together.
    /// Default: 0.
    #[serde(default = "no_length")]
    pub jitter: Length,
    /// How long after the last ban its successors count from the first again. Default: `1d`, or
    /// the longest ban where that is longer.
    #[serde(default)]
    pub forget_after: Option<Period>,
    /// A second, slower limit on failures, for guessers who stay below the first: `100/30d`.
    /// Default: none.
    #[serde(default)]
    pub long_cap: Option<Rate>,
}

fn none_queued() -> Count {
    Count(0)
}

fn one() -> Count {
    Count(1)
}

fn no_length() -> Length {
    Length(Micros::ZERO)
}

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

//! The algorithms of a limit, as the document writes them.
//!
//! Each prints as the header of a timeline (`token_bucket rate 1/2s capacity 5`) and reads back
//! from one. What serde cannot see, that two fields do not go together, is found by
//! `AlgorithmConfig::policy`, which also builds the engine's numbers.

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_core::Micros;

use crate::scalar::{Count, Length, Period, Rate};
use crate::zone::{CalendarSpan, StartsOn, Zone};

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

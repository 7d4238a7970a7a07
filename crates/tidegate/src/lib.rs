//! Exact rate and concurrency limits for Rust programs.
//!
//! A [`Limiter`] is one limit over any number of keys. It decides in memory, without a lock that
//! other keys could hold and without allocating, and it is exact: never one more than the limit,
//! and a `retry_after` that is right to the microsecond.
//!
//! ```
//! use tidegate::{Limiter, Micros, SlidingLog};
//!
//! let per_user = Limiter::new(SlidingLog::new(100, Micros::from_secs(60))?);
//! let decision = per_user.try_take("user-7", 1);
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining, 99);
//! # Ok::<(), tidegate::PolicyError>(())
//! ```
//!
//! [`all_of`] charges several limits or none. Time is an argument wherever it matters: the
//! methods that read a clock read the limiter's own, which may be a [`ManualClock`].

#[cfg(feature = "simulation")]
pub mod simulation;

mod clock;
mod composition;
#[cfg(feature = "config")]
mod configured;
#[cfg(feature = "explain")]
pub mod explain;
#[cfg(feature = "http")]
pub mod http;
mod limiter;
mod observer;
mod one_key;
#[cfg(feature = "outbound")]
pub mod outbound;
mod overrides;
mod snapshot;
mod to_key;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "tracing")]
mod tracing_observer;

pub use clock::{Clock, ManualClock, SystemClock};
pub use composition::{Member, Outcome, all_of};
#[cfg(feature = "config")]
pub use configured::{ConfigError, Limits, UnknownLimit};
pub use limiter::{Limiter, LimiterBuilder, Mode};
pub use observer::{Observer, TableEvent};
pub use one_key::{OneKey, Reserved};
pub use snapshot::Snapshot;
#[cfg(feature = "config")]
pub use tidegate_config as config;
pub use tidegate_core::{
    Align, Calendar, ChangeMode, Concurrency, Decision, Demand, Denial, FixedWindow,
    InterpolatedWindow, IntervalBucket, KeyState, LeakyBucket, LeaseGrant, LeaseId, Lockout,
    LockoutSettings, Micros, Operation, OperationError, Policy, PolicyError, Rate, Reply,
    Reservation, SlidingLog, StrictWindow, TimeError, Timestamp, TokenBucket, Verdict, Wait,
    Window,
};
pub use tidegate_store::snapshot::SnapshotError;
pub use tidegate_store::{Key, KeyOverride, KeyPart, MemoryStats, OverrideError, WhenFull};
pub use to_key::ToKey;
#[cfg(feature = "tracing")]
pub use tracing_observer::TracingObserver;

/// The examples of the README, compiled and run with the documentation's own.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

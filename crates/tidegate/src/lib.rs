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
//! # Which algorithm
//!
//! | you want | use | at most, in any period |
//! |---|---|---|
//! | a steady rate, and bursts after a pause | [`TokenBucket`] | burst + rate: up to 2N - 1 |
//! | never more than N in any window, as it is written | [`SlidingLog`] | N |
//! | the same at bounded memory, for a large N | [`StrictWindow`] | N |
//! | N per minute of the clock, or per day of a time zone | [`FixedWindow`] | 2N across a border |
//! | calls evenly spaced: a queue in front of something slow | [`LeakyBucket`] | N, one by one |
//! | so many at once | [`Concurrency`] | – |
//! | so many failures, then bans that grow | [`Lockout`] | – |
//! | the numbers of another system, bit by bit | [`IntervalBucket`], [`InterpolatedWindow`] | 2N, 2N - 1 |
//!
//! A bucket whose whole capacity is its rate admits nearly twice that in an unlucky period. If the
//! promise is "N in any period", only the log and the strict window keep it.
//!
//! # Keys
//!
//! A key says whose state is counted. Text, numbers, addresses and tuples of them are keys, by
//! [`ToKey`]; `()` is the one key of a limit for all. Only a hash is kept, under a secret seed, in
//! 24 bytes for the key and its state together. A table is bounded: see
//! [`LimiterBuilder::max_keys`] and [`WhenFull`]. A key that could still be denied is never
//! forgotten, unless you choose so.
//!
//! # Answers
//!
//! A denial is an answer, not an error: a [`Decision`] says whether the call passes, how many are
//! left, when to come back (`retry_after`, exact from both sides) and when all is back. A cost
//! above what the limit can ever hold is [`Denial::Impossible`]: its `retry_after` is never. An
//! error means that there is no decision, because the operation has no meaning on the algorithm:
//! [`OperationError`] names what to use instead.
//!
//! | to | use |
//! |---|---|
//! | pass or be refused now | [`Limiter::try_take`] |
//! | only ask | [`Limiter::peek`] |
//! | wait for its turn, in a task or with the thread | [`Limiter::until_ready`], [`Limiter::wait_blocking`]: see [`waiting`] |
//! | be one of so many at work | [`Limiter::acquire`], which gives a [`Lease`]: see [`lease`] |
//! | charge several limits, or none | [`all_of`]; with leases as guards, [`try_admit`] and [`admit`] |
//! | take what is left; book ahead and settle later; give back; block | [`Limiter::key`] and [`OneKey`] |
//! | let one key have other numbers | [`OneKey::set_tier`], [`OneKey::set_override`] |
//! | change the numbers for all | [`Limiter::change`] |
//! | try numbers out on real traffic | [`LimiterBuilder::mode`] and [`Mode::Shadow`] |
//! | keep states over a restart | [`Limiter::snapshot`] and [`LimiterBuilder::restore`] |
//! | count decisions in metrics | [`LimiterBuilder::observer`] |
//!
//! # Time
//!
//! Time is in whole microseconds and comes from the limiter's [`Clock`]: by default from a
//! [`SystemClock`], which runs on the processor's counter, never goes back, and is bent towards the
//! wall clock by at most a millisecond a second. Tests take a [`ManualClock`], or say the time with
//! each call:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tidegate::{Limiter, ManualClock, Rate, Timestamp, TokenBucket};
//!
//! let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
//! let limit = Limiter::builder(TokenBucket::new(Rate::per_second(1)?, 1)?)
//!     .clock(clock.clone())
//!     .build();
//! assert!(limit.try_take("k", 1).is_allowed());
//! let denied = limit.try_take("k", 1);
//! assert_eq!(denied.retry_after.as_duration(), Some(Duration::from_secs(1)));
//! clock.advance(Duration::from_micros(999_999));
//! assert!(!limit.try_take("k", 1).is_allowed());
//! clock.advance(Duration::from_micros(1));
//! assert!(limit.try_take("k", 1).is_allowed());
//! # Ok::<(), tidegate::PolicyError>(())
//! ```
//!
//! # Features
//!
//! Features only add: the smallest build is [`Limiter`], [`all_of`], leases and waiting.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` (default) | waiting tasks sleep by the runtime's timer; without it by a thread of the clock's own |
//! | `config` | `Limits`: the limits of a configuration document, by name |
//! | `explain` | `explain`: what a configured limit admits in the worst case |
//! | `simulation` | `simulation`: traces replayed through the very same limiters |
//! | `tracing` | `TracingObserver`: denials as `tracing` events |
//! | `http` | `http`: keys of requests, response fields, refusals, without a server |
//! | `tower`, `axum`, `tonic`, `grpc` | `tower`: the same as layers of a server |
//! | `outbound`, `reqwest` | `outbound`: a client that keeps to limits and heeds its hosts |
//! | `valkey` | `shared`: limits and leases over any number of processes, kept in Valkey or Redis |
//!
//! The engine alone, without a clock, a lock or the standard library, is the crate
//! `tidegate-core`.
//!
//! # Rust version
//!
//! The oldest Rust that builds this crate is its `rust-version`, 1.95; the project's tests run on
//! that one. A newer one is asked for only with a new minor version.
//!
//! # Coming from another crate
//!
//! See [`guide::from_governor`], and `guide::from_tower_governor` where the feature `tower` is on.

pub mod lease;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod waiting;

mod clock;
mod composition;
#[cfg(feature = "config")]
mod configured;
#[cfg(feature = "explain")]
pub mod explain;
pub mod guide;
#[cfg(feature = "http")]
pub mod http;
mod limiter;
#[cfg(feature = "config")]
mod named;
mod observer;
mod one_key;
#[cfg(feature = "outbound")]
pub mod outbound;
mod overrides;
mod per_call;
#[cfg(feature = "valkey")]
pub mod shared;
mod snapshot;
#[cfg(all(feature = "config", feature = "valkey"))]
mod stores;
mod sync;
mod to_key;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "tracing")]
mod tracing_observer;

#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{Alarm, Clock, ManualClock, RuntimeSleep, SystemClock};
pub use composition::{Member, Outcome, all_of};
#[cfg(feature = "config")]
pub use configured::{ConfigError, Limits, UnknownLimit};
pub use lease::{Lease, Lessor, Loss, Renewal};
pub use limiter::{Limiter, LimiterBuilder, Mode};
#[cfg(feature = "config")]
pub use named::NamedLimit;
pub use observer::{Observer, TableEvent};
pub use one_key::{OneKey, Reserved};
pub use per_call::PerCallLimiter;
#[cfg(feature = "valkey")]
pub use shared::{SharedKey, SharedLimiter, SharedLimiterBuilder, SharedMember};
pub use snapshot::Snapshot;
#[cfg(all(feature = "config", feature = "valkey"))]
pub use stores::{OpenStoreError, StoreWatch, Stores};
#[cfg(feature = "config")]
pub use tidegate_config as config;
pub use tidegate_core::{
    Align, Calendar, ChangeMode, Concurrency, Decision, Demand, Denial, FixedWindow,
    InterpolatedWindow, IntervalBucket, KeyState, LeakyBucket, LeaseGrant, LeaseId, Lockout,
    LockoutSettings, Micros, Operation, OperationError, Policy, PolicyError, Rate, Reply,
    Reservation, SlidingLog, Source, StrictWindow, TimeError, Timestamp, TokenBucket, Verdict,
    Wait, Window,
};
pub use tidegate_store::snapshot::SnapshotError;
pub use tidegate_store::{Key, KeyOverride, KeyPart, MemoryStats, Moment, OverrideError, WhenFull};
#[cfg(feature = "valkey")]
pub use tidegate_valkey as valkey;
pub use to_key::ToKey;
#[cfg(feature = "tracing")]
pub use tracing_observer::TracingObserver;
pub use waiting::{
    Admission, AdmitError, WaitError, WaitOptions, admit, admit_blocking, admit_with, try_admit,
};

/// The examples of the READMEs, compiled and run with the documentation's own.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;

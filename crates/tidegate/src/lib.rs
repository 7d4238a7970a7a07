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
//! [`Limiter::until_ready`] waits for its turn, [`Lease`] is a place among so many at work; see
//! [`waiting`] and [`lease`]. [`all_of`] charges several limits or none. Time is an argument wherever it matters: the
//! methods that read a clock read the limiter's own, which may be a [`ManualClock`].
//!
//! # Layers
//!
//! | feature | adds |
//! |---|---|
//! | `http` | limits over requests without a server: keys, response fields, refusals |
//! | `tower` | the same as layers for any tower service, rates and permits |
//! | `axum` | keys from axum's routes, and peers as axum knows them |
//! | `grpc` | refusals as gRPC clients read them |
//! | `tonic` | both of `tower` and `grpc`, and peers as tonic knows them |
//! | `outbound` | a layer for clients: calls wait their turn, and hosts are heeded |
//! | `reqwest` | the same around reqwest's client |

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
#[cfg(feature = "http")]
pub mod http;
mod limiter;
mod observer;
mod one_key;
#[cfg(feature = "outbound")]
pub mod outbound;
mod overrides;
mod snapshot;
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
pub use waiting::{
    Admission, AdmitError, WaitError, WaitOptions, admit, admit_blocking, admit_with, try_admit,
};

/// The examples of the README, compiled and run with the documentation's own.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

//! Limits and leases over any number of processes, kept in Valkey or Redis.
//!
//! A [`SharedLimiter`] is a [`Limiter`](crate::Limiter) whose states are on a server: with the same
//! policies, decisions and leases, and with methods that are `async`, for they may ask the server.
//! Decisions are made on the server's clock, so no process's clock matters.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate::valkey::{Client, ClientOptions, KeySpace, ValkeyStore};
//! use tidegate::{Concurrency, Micros, SharedLimiter, SlidingLog};
//!
//! # async fn first_use() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(ClientOptions::from_url("redis://127.0.0.1")?)?;
//! client.ready(Duration::from_secs(5)).await?;
//! let store = ValkeyStore::new(client, KeySpace::default());
//!
//! // Never more than 100 in any minute for a user, whichever process serves them.
//! let policy = SlidingLog::new(100, Micros::from_secs(60))?;
//! let per_user = SharedLimiter::new(store.clone(), "per-user", policy);
//! if per_user.try_take("user-7", 1).await?.is_allowed() {
//!     // Serve.
//! }
//!
//! // Three at work at once, over all processes.
//! let policy = Concurrency::new(3, Micros::from_secs(30), None)?;
//! let workers = SharedLimiter::new(store, "workers", policy);
//! let lease = workers.acquire("reports", 1).await?;
//! // Work, while `lease.is_live()`.
//! drop(lease);
//! # Ok(())
//! # }
//! ```
//!
//! # Without an answer
//!
//! A call that wants something always gets a decision: where the store gives no answer, the
//! limit's [`FailureMode`] decides, and the decision's [`source`](crate::Decision) says so. What
//! only reads or corrects a state, as [`SharedKey`] does, has no such substitute and is an error.
//!
//! A call whose answer was lost may have been counted. Such a charge stays until it is refilled, so
//! too little passes and never too much; such a lease is given back as soon as the server answers
//! again, and ends by itself if it does not.
//!
//! # Waiting
//!
//! [`SharedLimiter::until_ready`] reserves where the policy lends from the future, a token bucket or
//! a paced queue: those who wait are then served in the order in which they came, over all
//! processes, down to one capacity of debt. Where nothing is lent, and for leases, the callers of
//! one process stand in a line and only the first in it asks the server; between processes it is
//! whoever asks first. A released permit is announced by the server, and asked for once a second at
//! least in case that was missed.
//!
//! A future that is dropped, at whatever moment, gives back what it has got or is about to get, by
//! a task on the runtime that it was made in.

//!
//! # Leases of tokens
//!
//! A key that is asked thousands of times a second need not be asked about each time. With
//! [`LeaseTokens`] a process takes a batch of units in one call and spends it by itself, in a quarter
//! of a microsecond, and has the next ready before the last is spent:
//!
//! ```no_run
//! use tidegate::shared::{LeaseTokens, SharedLimiter};
//! use tidegate::valkey::ValkeyStore;
//! use tidegate::{Rate, TokenBucket};
//!
//! # async fn hot(store: ValkeyStore) -> Result<(), Box<dyn std::error::Error>> {
//! let bucket = TokenBucket::new(Rate::per_second(50_000)?, 50_000)?;
//! let leases = LeaseTokens::new(1_000, LeaseTokens::MAX_AGE)?;
//! let stage = SharedLimiter::builder(store, "stage", bucket).build_with_leased_tokens(leases)?;
//! if stage.try_take("GET /vips", 1).await?.is_allowed() {
//!     // Serve.
//! }
//! stage.return_tokens().await;
//! # Ok(())
//! # }
//! ```
//!
//! - **All processes together are charged what the limit says and no more.** What they spend in any
//!   window is what it admits in one longer by `max_age`: [`LeaseTokens::spent`], and
//!   [`LeaseTokens::explain`] in words.
//! - Units that grow old are not spent. They go back as far as that forgives nobody anything: all of
//!   them to a window that still counts them, to a bucket those that cannot have been refilled
//!   meanwhile. So they do at [`SharedLimiter::return_tokens`]. A process that is killed leaves at most
//!   [`LeaseTokens::held`] units of a key unused.
//! - Others may be denied while a process holds units that it will not spend, for `max_age` at most.
//! - A batch grows with the demand of its key; a key that is asked seldom, and a cost above a batch,
//!   are asked about one by one. A denial's `retry_after` is the store's, of what the call lacks.
//! - Policies that count units can be leased: buckets, windows, logs, quotas. A paced queue cannot, nor
//!   a limit that charges denied calls.
//! - An allowed decision of [`Source::Leased`](crate::Source::Leased) tells what was known of the key
//!   when it was asked last.

mod acquire;
mod admission;
mod builder;
mod composition;
mod key;
mod lessor;
mod limiter;
mod line;
mod undo;
mod waiting;

pub use admission::{admit, admit_with, try_admit};
pub use builder::SharedLimiterBuilder;
pub use composition::{SharedMember, all_of};
pub use key::SharedKey;
pub use limiter::SharedLimiter;
pub use tidegate_valkey::{FailureMode, LeaseTokens, LeaseTokensError, SharedStats, StoreError};

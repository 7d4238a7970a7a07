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

mod acquire;
mod builder;
mod composition;
mod key;
mod lessor;
mod limiter;
mod line;
mod undo;
mod waiting;

pub use builder::SharedLimiterBuilder;
pub use composition::{SharedMember, all_of};
pub use key::SharedKey;
pub use limiter::SharedLimiter;
pub use tidegate_valkey::{FailureMode, SharedStats, StoreError};

//! The engine of tidegate: who may pass, exactly.
//!
//! Every rule here is a pure function of a state, a point in time and what is asked. The crate
//! reads no clock, takes no lock, does no input or output, uses no floating point, and returns an
//! error instead of panicking, whatever it is given. Stores keep the states and call in; doors
//! turn the answers into their protocols.
//!
//! One file per algorithm. [`Policy`] holds the validated numbers of one limit, [`Algorithm`] is
//! what a store needs of it, [`Decision`] is what a caller gets.
//!
//! ```
//! use tidegate_core::{Entry, Operation, Rate, Reply, Timestamp, TokenBucket, engine};
//!
//! let bucket = TokenBucket::new(Rate::new(1, 2_000_000)?, 5)?;
//! let now = Timestamp::from_micros(0)?;
//! let mut entry = Entry::fresh(&bucket, now);
//! let Reply::Decision(decision) = engine::apply(&bucket, &mut entry, now, &Operation::take(5))? else {
//!     unreachable!("a take is answered by a decision");
//! };
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

extern crate alloc;

pub mod all_of;
pub mod bounds;
pub mod engine;

mod algorithm;
mod concurrency;
mod decision;
mod divisor;
mod event_log;
mod fixed_window;
mod interpolated_window;
mod interval_bucket;
mod leaky_bucket;
mod lockout;
mod meter;
mod operation;
mod policy;
mod rate;
mod sliding_log;
mod strict_window;
mod tank;
mod time;
mod token_bucket;
mod words;

pub use algorithm::{Algorithm, Assessment, ChangeMode, Entry, Family, Packed, Standing};
pub use concurrency::{Concurrency, LeaseGrant, LeaseId};
pub use decision::{Decision, Denial, Source, Verdict};
pub use fixed_window::{Align, Calendar, FixedWindow, Window};
pub use interpolated_window::InterpolatedWindow;
pub use interval_bucket::IntervalBucket;
pub use leaky_bucket::LeakyBucket;
pub use lockout::{Lockout, LockoutSettings};
pub use operation::{Demand, KeyState, Operation, OperationError, Reply, Reservation};
pub use policy::{MAX_COUNT, Policy, PolicyError};
pub use rate::Rate;
pub use sliding_log::{MAX_LOG_ENTRIES, SlidingLog};
pub use strict_window::StrictWindow;
pub use time::{MAX_DELAY, MAX_PERIOD, Micros, TimeError, Timestamp, Wait};
pub use token_bucket::TokenBucket;
pub use words::Words;

//! Waiting for a limit: fair, exact, bounded, and without a trace when given up.
//!
//! | to | use |
//! |---|---|
//! | pass or be refused now | [`Limiter::try_take`] |
//! | wait for units in a task | [`Limiter::until_ready`], [`Limiter::until_ready_with`] |
//! | wait for units with the thread, without a runtime | [`Limiter::wait_blocking`], [`Limiter::wait_blocking_with`] |
//! | hold one of so many places at work | [`Limiter::acquire`] and the rest of [`lease`](crate::lease) |
//! | take from rates and hold places in one step | [`try_admit`], [`admit`], [`admit_with`], [`admit_blocking`] |
//!
//! All of them obey the limiter's [`Clock`](crate::Clock): by a [`ManualClock`](crate::ManualClock)
//! everything happens in simulated time, with or without a runtime. They spawn nothing.
//!
//! # What is promised
//!
//! - **First come, first served**, for each key: a large cost is not passed by smaller ones that
//!   came later. Only the first in line acts on the limit.
//! - **Exact.** Nobody passes early, and nobody waits longer than was computed at its entry, unless
//!   the limit, the clock or the key changes: by [`Limiter::change`], a reset or a block, say.
//!   Whoever waits takes such changes in at once. A process that stood still does not catch up in
//!   a burst: the callers of that time are served from then on, at the limit's pace.
//! - **A wait that is too long is refused when it begins**, not after waiting in vain, and costs
//!   nothing. The error tells the wait that it would take.
//! - **Dropped at any moment**, a waiting call gives its place to the next one, and what was
//!   charged for it back. It need not be polled either: a future that is ready but not polled
//!   holds up nobody behind it.
//! - **Bounded**: so many callers for a key and for a limit, by [`WaitOptions`].
//! - A limit in [`Mode::Shadow`](crate::Mode) or `Off`, or not enforced for the key, lets pass at once.
//!
//! # What those who do not wait can do to those who do
//!
//! [`Limiter::try_take`] and its like do not stand in line: that is what makes them fast. A token
//! bucket or a paced queue has the units of the first in line booked, so nobody can take them while
//! it sleeps; those behind it can be made to wait longer only by who comes in the moment between
//! two of them. Windows, logs and interval buckets lend nothing from the future: there the
//! first in line takes its units at the very moment they come free, and a `try_take` at that
//! moment may be quicker. Where that matters, let all callers of the limit wait, with
//! [`WaitOptions::max_wait`] zero if need be.

mod admission;
mod attempt;
mod attempt_all;
mod caller;
mod charge;
mod error;
mod forecast;
mod job;
mod line;
mod options;
mod waiter;
mod waiters;

use tidegate_core::Decision;

pub use admission::{Admission, admit, admit_blocking, admit_with, try_admit};
pub use error::{AdmitError, WaitError};
#[cfg(feature = "valkey")]
pub(crate) use job::Granted;
pub(crate) use job::{Grant, Place, Refusal, Want};
pub use options::WaitOptions;
pub(crate) use waiter::Waiter;
pub(crate) use waiters::Waiters;

use crate::limiter::Limiter;
use crate::to_key::ToKey;

impl Limiter {
    /// Waits until `cost` units are there, and takes them.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tidegate::{Limiter, Rate, TokenBucket};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    /// # runtime.block_on(async {
    /// let upstream = Limiter::new(TokenBucket::new(Rate::per_second(1_000)?, 1)?);
    /// for _ in 0..3 {
    ///     upstream.until_ready("api.example.net", 1).await?;
    ///     // One call each millisecond.
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::until_ready_with`].
    pub fn until_ready<K: ToKey>(
        &self,
        key: K,
        cost: u32,
    ) -> impl Future<Output = Result<Decision, WaitError>> + Send + use<K> {
        self.until_ready_with(key, cost, &WaitOptions::new())
    }

    /// Waits until `cost` units are there, and takes them.
    ///
    /// The decision is the one of that moment; its `at` tells when it was. Nothing happens before
    /// the future is polled for the first time: that is when it gets its place in the line.
    ///
    /// # Errors
    /// [`WaitError::Impossible`] at once if the limit can never allow it; [`WaitError::TooLong`]
    /// at once if it is known that the wait would be longer than `max_wait`, also when a change
    /// makes it so later on; [`WaitError::Elapsed`] if it turned out longer, because somebody who
    /// does not wait took the units; [`WaitError::QueueFull`]; [`WaitError::Unsupported`] if the
    /// limit counts no units.
    pub fn until_ready_with<K: ToKey>(
        &self,
        key: K,
        cost: u32,
        options: &WaitOptions,
    ) -> impl Future<Output = Result<Decision, WaitError>> + Send + use<K> {
        let waiter = self.units_waiter(&key, cost, options);
        async {
            match waiter.at_once() {
                Some(decision) => Ok(decision),
                None => decided(waiter.wait().await),
            }
        }
    }

    /// [`Self::until_ready`] with the thread, without a runtime.
    ///
    /// # Errors
    /// As [`Self::until_ready_with`].
    pub fn wait_blocking(&self, key: impl ToKey, cost: u32) -> Result<Decision, WaitError> {
        self.wait_blocking_with(key, cost, &WaitOptions::new())
    }

    /// [`Self::until_ready_with`] with the thread, without a runtime.
    ///
    /// # Errors
    /// As [`Self::until_ready_with`].
    pub fn wait_blocking_with(
        &self,
        key: impl ToKey,
        cost: u32,
        options: &WaitOptions,
    ) -> Result<Decision, WaitError> {
        let waiter = self.units_waiter(&key, cost, options);
        match waiter.at_once() {
            Some(decision) => Ok(decision),
            None => decided(waiter.block()),
        }
    }

    fn units_waiter(&self, key: &impl ToKey, cost: u32, options: &WaitOptions) -> Waiter {
        let place = Place {
            limiter: self.clone(),
            hash: self.hash(key),
        };
        Waiter::new(place, Want::Units(cost), options)
    }
}

fn decided(waited: Result<Grant, Refusal>) -> Result<Decision, WaitError> {
    match waited {
        Ok(grant) => Ok(grant.known.decision),
        Err(refusal) => Err(refusal.map(|known| known.decision)),
    }
}

//! Leases as guards: so many at work at once, and nobody keeps a place by dying.
//!
//! A [`Lease`] is one holder's share of a [`Concurrency`](crate::Concurrency) limit. It renews itself
//! while it is held, and is given back when it is dropped; whoever waits next gets it in the same
//! step. It ends by itself when its process stands still for longer than the lease, and when it has
//! been held for the limit's `max_hold`.
//!
//! | to | use |
//! |---|---|
//! | have one now or do without | [`Limiter::try_acquire`] |
//! | wait for one in a task | [`Limiter::acquire`], [`Limiter::acquire_with`] |
//! | wait for one with the thread | [`Limiter::acquire_blocking`], [`Limiter::acquire_blocking_with`] |
//! | stop work that has lost its lease | [`Lease::lost`] in a `select!`, [`Lease::on_lost`], or [`Lease::is_live`] before each step |
//! | keep a slow holder from writing after it has lost its lease | [`Lease::fencing_token`], shown to what is written to |
//! | hold leases and take from rates in one step | [`admit`](crate::admit) |
//!
//! A lease can be lost at any moment, by definition: the time may run out between a check and the
//! next instruction. What must never be done twice at once needs the fencing token.

mod acquire;
mod held;
mod id;
mod lessor;

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::Arc;

use tidegate_core::{LeaseGrant, LeaseId, Timestamp};
use tidegate_store::KeyHash;

use held::Held;
pub use held::Loss;
pub(crate) use id::random_id;
use lessor::InMemory;
pub use lessor::{Lessor, Renewal};

use crate::limiter::Limiter;

/// A share of a concurrency limit, held until it is dropped.
///
/// ```
/// use tidegate::{Concurrency, Limiter, Micros};
///
/// let two_at_once = Concurrency::new(2, Micros::from_secs(30), None)?;
/// let workers = Limiter::new(two_at_once);
/// let first = workers.try_acquire("reports", 1)?;
/// let second = workers.try_acquire("reports", 1)?;
/// assert!(second.fencing_token() > first.fencing_token());
/// assert!(workers.try_acquire("reports", 1).is_err());
/// drop(first);
/// assert!(workers.try_acquire("reports", 1).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a lease that is dropped is given back at once"]
pub struct Lease {
    grant: LeaseGrant,
    /// None where the limit is not enforced, and nothing is held.
    held: Option<Arc<Held>>,
}

impl Lease {
    /// Holds a lease that `lessor` has granted this moment, and keeps it renewed.
    pub fn new(grant: LeaseGrant, lessor: Arc<dyn Lessor>) -> Self {
        let held = Some(Held::keep(grant, lessor));
        Self { grant, held }
    }

    pub(crate) fn in_memory(grant: LeaseGrant, limiter: &Limiter, key: KeyHash) -> Self {
        let limiter = limiter.clone();
        Self::new(grant, Arc::new(InMemory { limiter, key }))
    }

    /// A lease of a limit that is not enforced: it never ends, and nothing counts it.
    pub(crate) fn unenforced(weight: u32, now: Timestamp) -> Self {
        let grant = LeaseGrant {
            lease: random_id(),
            weight,
            fencing_token: now.as_micros(),
            expires_at: Timestamp::MAX,
        };
        Self { grant, held: None }
    }

    /// Whose it is: 128 random bits that nobody can guess.
    #[must_use]
    pub const fn id(&self) -> LeaseId {
        self.grant.lease
    }

    /// How many permits it holds.
    #[must_use]
    pub const fn weight(&self) -> u32 {
        self.grant.weight
    }

    /// A number that rises with every lease of the key. Show it to what the lease protects: that
    /// refuses a lower number than it has seen, and so a holder that does not know yet that it has
    /// lost its lease.
    #[must_use]
    pub const fn fencing_token(&self) -> u64 {
        self.grant.fencing_token
    }

    /// The first moment at which the lease is no longer honoured, unless it is renewed before.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.held
            .as_ref()
            .map_or(self.grant.expires_at, |held| held.expires_at())
    }

    /// Whether it is held still, by all that is known here: false from the very moment that it
    /// expires. A lease that was revoked learns of it with its next renewal, within a third of
    /// its length.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.loss().is_none()
    }

    /// Why it was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.held.as_ref()?.loss()
    }

    /// Waits until it is lost; for ever, if it never is. May be dropped and asked again.
    pub async fn lost(&self) -> Loss {
        let Some(held) = &self.held else {
            return pending().await;
        };
        let mut watcher = Watcher { held, number: None };
        poll_fn(|context| held.poll_lost(&mut watcher.number, context)).await
    }

    /// Calls back once when it is lost, or at once if it is; never after it was given back.
    ///
    /// The callback runs on the thread that found out, which keeps other leases as well: it sets a
    /// flag or sends a message, and leaves longer work to others.
    pub fn on_lost(&self, callback: impl FnOnce(Loss) + Send + 'static) {
        if let Some(held) = &self.held {
            held.on_lost(Box::new(callback));
        }
    }

    /// Gives it back, as dropping does. Returns whether it was live until now: if not, somebody
    /// else may have worked at the same time.
    pub fn release(mut self) -> bool {
        self.held.take().is_none_or(|held| held.release())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.release();
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the id: who knows it could give the lease back.
        f.debug_struct("Lease")
            .field("weight", &self.weight())
            .field("fencing_token", &self.fencing_token())
            .field("expires_at", &self.expires_at())
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}

/// One that waits for a loss.
struct Watcher<'a> {
    held: &'a Held,
    number: Option<u64>,
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.held.forget(number);
        }
    }
}

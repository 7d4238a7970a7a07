//! Who renews leases and takes them back.

use std::sync::Arc;

use tidegate_core::{LeaseGrant, LeaseId, Operation, Reply};
use tidegate_store::KeyHash;

use super::held::Held;
use crate::clock::Clock;
use crate::limiter::Limiter;

/// The store of a lease, as far as the lease needs it.
///
/// Both methods are called from the thread of the clock's alarms or from where a lease is dropped,
/// so they only begin what takes time: a store at the other end of a connection sends its message
/// from a task of its own and answers when it has one.
pub trait Lessor: Send + Sync + 'static {
    /// The clock that the lease's times are told by.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// Extends a lease, and answers through `renewal`, now or later.
    fn renew(&self, lease: LeaseId, renewal: Renewal);

    /// Takes a lease back. A lease that is lost already is no error; one that cannot be taken back
    /// ends by itself.
    fn release(&self, lease: LeaseId);
}

/// The answer to [`Lessor::renew`]. Dropped without one, the renewal has failed and is tried
/// again before the lease ends.
#[derive(Debug)]
#[must_use = "a renewal without an answer has failed"]
pub struct Renewal(Option<Arc<Held>>);

impl Renewal {
    pub(super) fn of(held: Arc<Held>) -> Self {
        Self(Some(held))
    }

    /// The lease lives on, as granted.
    pub fn renewed(mut self, grant: LeaseGrant) {
        if let Some(held) = self.0.take() {
            held.renewed(grant);
        }
    }

    /// The store knows no such lease: it has expired there, or was revoked.
    pub fn lost(mut self) {
        if let Some(held) = self.0.take() {
            held.revoked();
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.not_renewed();
        }
    }
}

/// The memory table as a lessor.
pub(super) struct InMemory {
    pub limiter: Limiter,
    pub key: KeyHash,
}

impl Lessor for InMemory {
    fn clock(&self) -> &Arc<dyn Clock> {
        self.limiter.clock()
    }

    fn renew(&self, lease: LeaseId, renewal: Renewal) {
        let renew = Operation::Renew { lease };
        match self
            .limiter
            .perform(self.key, self.limiter.moment(), &renew)
        {
            Ok(Reply::Renewed(Some(grant))) => renewal.renewed(grant),
            // Where the algorithm has changed, the leases of the old one are gone.
            _ => renewal.lost(),
        }
    }

    fn release(&self, lease: LeaseId) {
        let release = Operation::Release { lease };
        // As above.
        let _ = self
            .limiter
            .perform(self.key, self.limiter.moment(), &release);
    }
}

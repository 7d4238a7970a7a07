//! Leases that a server keeps, renewed and given back by tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{
    Demand, LeaseGrant, LeaseId, MAX_PERIOD, Micros, Operation, Policy, Reply, Timestamp,
};
use tidegate_store::Key;
use tidegate_valkey::StoreError;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::SharedLimiter;
use crate::clock::Clock;
use crate::lease::{Lessor, Renewal};

/// How often giving a lease back is tried, and the pause after the first try; it doubles.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// What an end may move by without a reason: the calls that tell it take different times.
const SAME: u64 = 1_000;

/// Who renews a lease and takes it back.
///
/// The server says when a lease ends on its own clock, which may be wrong and may be corrected.
/// So only lengths count: what is left when the server answers is counted from when it was asked,
/// on this process's clock. Every end is therefore early by as much as the call has taken, and
/// never late.
pub(super) struct Remote(Arc<Inner>);

struct Inner {
    limiter: SharedLimiter,
    key: Key,
    shadow: bool,
    /// Granted in this process, while the store gave no answer.
    is_local: bool,
    /// It is not renewed beyond this.
    last_end: u64,
    end: AtomicU64,
    runtime: Handle,
}

impl Remote {
    /// For a lease that was asked for at `sent`. Must be made within a runtime.
    pub(super) fn new(
        limiter: &SharedLimiter,
        key: &Key,
        shadow: bool,
        is_local: bool,
        sent: Timestamp,
    ) -> Self {
        let (_, longest) = lengths(limiter.policy());
        Self(Arc::new(Inner {
            limiter: limiter.clone(),
            key: key.clone(),
            shadow,
            is_local,
            last_end: sent.as_micros().saturating_add(longest.0),
            end: AtomicU64::new(0),
            runtime: Handle::current(),
        }))
    }

    /// The grant by this process's clock, where so many microseconds were left.
    pub(super) fn granted(&self, grant: LeaseGrant, sent: Timestamp, length: u64) -> LeaseGrant {
        self.0.granted(grant, sent, length)
    }
}

impl Inner {
    fn granted(&self, grant: LeaseGrant, sent: Timestamp, length: u64) -> LeaseGrant {
        let end = sent.as_micros().saturating_add(length).min(self.last_end);
        let known = self.end.load(Ordering::Relaxed);
        // One that does not grow any more is told as such, and not renewed again and again.
        let end = if (known..known.saturating_add(SAME)).contains(&end) {
            known
        } else {
            end
        };
        self.end.store(end, Ordering::Relaxed);
        LeaseGrant {
            expires_at: Timestamp::from_micros(end).unwrap_or(Timestamp::MAX),
            ..grant
        }
    }

    async fn renew(&self, lease: LeaseId) -> Result<Option<LeaseGrant>, StoreError> {
        let limit = self.limiter.limit();
        let (length, _) = lengths(self.limiter.policy());
        let mut sent = self.limiter.now();
        let renew = Operation::Renew { lease };
        let reply = limit.apply_as(&self.key, self.shadow, &renew).await?;
        let Reply::Renewed(Some(grant)) = reply else {
            return Ok(None);
        };
        let mut left = length.0;
        if !self.is_local {
            // A renewal is answered by when it ends, not by how long that is: what time is it?
            sent = self.limiter.now();
            let weight = grant.weight;
            let peek = Operation::Peek(Demand::Acquire { lease, weight });
            let reply = limit.apply_as(&self.key, self.shadow, &peek).await?;
            if let Some(decision) = reply.decision() {
                let ends = grant.expires_at.as_micros();
                left = left.min(ends.saturating_sub(decision.at.as_micros()));
            }
        }
        Ok(Some(self.granted(grant, sent, left)))
    }
}

impl Lessor for Remote {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.limiter.0.clock
    }

    fn renew(&self, lease: LeaseId, renewal: Renewal) {
        let inner = Arc::clone(&self.0);
        self.0.runtime.spawn(async move {
            match inner.renew(lease).await {
                Ok(Some(grant)) => renewal.renewed(grant),
                Ok(None) => renewal.lost(),
                // It is tried again.
                Err(_) => drop(renewal),
            }
        });
    }

    fn release(&self, lease: LeaseId) {
        let inner = Arc::clone(&self.0);
        self.0.runtime.spawn(async move {
            inner.limiter.free(&inner.key, inner.shadow, lease).await;
        });
    }
}

impl SharedLimiter {
    /// Gives a lease back, wherever it was granted.
    pub(super) async fn free(&self, key: &Key, shadow: bool, lease: LeaseId) {
        let release = Operation::Release { lease };
        let freed = self.limit().apply_as(key, shadow, &release).await;
        if freed.is_err() {
            self.free_on_server(key, shadow, lease).await;
        }
    }

    /// Gives a lease back that the server may have granted. It is tried for some seconds: what is
    /// not given back by then expires.
    pub(super) async fn free_on_server(&self, key: &Key, shadow: bool, lease: LeaseId) {
        let (store, spec) = (self.limit().store(), self.limit().spec());
        let release = Operation::Release { lease };
        let mut pause = FIRST_PAUSE;
        for _ in 0..TRIES {
            match store.apply(spec, key, None, shadow, &release).await {
                Ok(_) | Err(StoreError::Operation(_)) => return,
                Err(_) => sleep(pause).await,
            }
            pause *= 2;
        }
    }
}

/// How long a lease lives without being renewed, and at most.
fn lengths(policy: &Policy) -> (Micros, Micros) {
    match policy {
        Policy::Concurrency(permits) => (
            permits.lease(),
            permits.max_hold().unwrap_or(Micros(u64::MAX)),
        ),
        // Nothing else grants leases.
        _ => (Micros::ZERO, MAX_PERIOD),
    }
}

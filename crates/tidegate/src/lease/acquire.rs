//! Leases of a limiter.

use super::{Lease, random_id};
use crate::limiter::Limiter;
use crate::to_key::ToKey;
use crate::waiting::{Grant, Place, Refusal, WaitError, WaitOptions, Waiter, Want};

impl Limiter {
    /// A lease of `weight` permits, if they are free and nobody waits for
    /// them already.
    ///
    /// # Errors
    /// [`WaitError::Denied`] if not; [`WaitError::Impossible`] above the limit;
    /// [`WaitError::Unsupported`] if this is no concurrency limit.
    pub fn try_acquire(&self, key: impl ToKey, weight: u32) -> Result<Lease, WaitError> {
        let now_or_never = WaitOptions::new()
            .max_waiters_per_key(0)
            .max_waiters(usize::MAX);
        self.lease_waiter(&key, weight, &now_or_never)
            .block()
            .map_err(|refusal| match refusal.map(|known| known.decision) {
                WaitError::QueueFull { known, .. } => WaitError::Denied(known),
                error => error,
            })
            .map(|grant| lease_of(grant, weight))
    }

    /// Waits for a lease of `weight` permits.
    ///
    /// # Errors
    /// As [`Self::acquire_with`].
    pub fn acquire<K: ToKey>(
        &self,
        key: K,
        weight: u32,
    ) -> impl Future<Output = Result<Lease, WaitError>> + Send + use<K> {
        self.acquire_with(key, weight, &WaitOptions::new())
    }

    /// Waits for a lease: first come, first served, whatever the weights. It comes when others give
    /// theirs back, or when those expire.
    ///
    /// Dropped while it waits, it makes way for the next one.
    ///
    /// # Errors
    /// [`WaitError::Impossible`] above the limit; [`WaitError::Elapsed`] after `max_wait`, since
    /// nobody can know before when leases will be given back; [`WaitError::QueueFull`];
    /// [`WaitError::Unsupported`] if this is no concurrency limit.
    pub fn acquire_with<K: ToKey>(
        &self,
        key: K,
        weight: u32,
        options: &WaitOptions,
    ) -> impl Future<Output = Result<Lease, WaitError>> + Send + use<K> {
        let waiter = self.lease_waiter(&key, weight, options);
        async move { leased(waiter.wait().await, weight) }
    }

    /// [`Self::acquire`] with the thread, without a runtime.
    ///
    /// # Errors
    /// As [`Self::acquire_with`].
    pub fn acquire_blocking(&self, key: impl ToKey, weight: u32) -> Result<Lease, WaitError> {
        self.acquire_blocking_with(key, weight, &WaitOptions::new())
    }

    /// [`Self::acquire_with`] with the thread, without a runtime.
    ///
    /// # Errors
    /// As [`Self::acquire_with`].
    pub fn acquire_blocking_with(
        &self,
        key: impl ToKey,
        weight: u32,
        options: &WaitOptions,
    ) -> Result<Lease, WaitError> {
        let waited = self.lease_waiter(&key, weight, options).block();
        leased(waited, weight)
    }

    fn lease_waiter(&self, key: &impl ToKey, weight: u32, options: &WaitOptions) -> Waiter {
        let place = Place {
            limiter: self.clone(),
            hash: self.hash(key),
        };
        let lease = random_id();
        Waiter::new(place, Want::Permits { lease, weight }, options)
    }
}

fn leased(waited: Result<Grant, Refusal>, weight: u32) -> Result<Lease, WaitError> {
    match waited {
        Ok(grant) => Ok(lease_of(grant, weight)),
        Err(refusal) => Err(refusal.map(|known| known.decision)),
    }
}

/// What was granted, or what stands for it where the limit is not enforced.
fn lease_of(grant: Grant, weight: u32) -> Lease {
    let at = grant.known.decision.at;
    let lease = grant.leases.into_iter().next();
    lease.map_or_else(|| Lease::unenforced(weight, at), |held| held.lease)
}

//! Leases of a shared limit.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Decision, Demand, LeaseGrant, LeaseId, Operation, OperationError, Source};
use tidegate_store::Key;

use super::SharedLimiter;
use super::lessor::Remote;
use super::undo::Undoable;
use super::waiting::Waiting;
use crate::lease::{Lease, random_id};
use crate::limiter::Reach;
use crate::to_key::ToKey;
use crate::waiting::{WaitError, WaitOptions};

/// How often a permit is asked for at least: a released one is announced, but an announcement may
/// be lost.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What came of asking for a lease.
enum Asked {
    Granted(Lease),
    Denied(Decision),
}

impl SharedLimiter {
    /// A lease of `weight` permits, if they are free.
    ///
    /// Where the store gives no answer, the limit's failure mode decides: a lease of
    /// [`FailureMode::Allow`](super::FailureMode::Allow) is held nowhere and never ends, one of a
    /// local share is held in this process.
    ///
    /// # Errors
    /// [`WaitError::Denied`] if they are not free; [`WaitError::Impossible`] above the limit;
    /// [`WaitError::Unsupported`] if this is no concurrency limit.
    pub fn try_acquire<K: ToKey>(
        &self,
        key: K,
        weight: u32,
    ) -> impl Future<Output = Result<Lease, WaitError>> + Send + use<K> {
        let (limiter, key) = (self.clone(), key.to_key());
        async move {
            match limiter.ask_for_lease(&key, weight).await {
                Ok(Asked::Granted(lease)) => Ok(lease),
                Ok(Asked::Denied(known)) if known.retry_after.is_never() => {
                    Err(WaitError::Impossible(known))
                }
                Ok(Asked::Denied(known)) => Err(WaitError::Denied(known)),
                Err(error) => Err(WaitError::Unsupported(error)),
            }
        }
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

    /// Waits for a lease: first come, first served in this process, whatever the weights; between
    /// processes it is whoever asks first. It comes when others give theirs back, or when those
    /// expire.
    ///
    /// Dropped at any moment, it leaves no lease behind.
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
        let (limiter, key, options) = (self.clone(), key.to_key(), *options);
        async move {
            let waiting = Waiting::new(&limiter, &key, &options);
            waiting.for_lease(weight, &options).await
        }
    }

    /// Asks for a lease once.
    async fn ask_for_lease(&self, key: &Key, weight: u32) -> Result<Asked, OperationError> {
        let reach = self.reach(key);
        let shadow = reach == Reach::Shadow;
        if reach == Reach::Off {
            return Ok(Asked::Granted(Lease::unenforced(weight, self.now())));
        }
        // A name of its own for each try: one that was lost on the way may be given back later.
        let lease = random_id();
        let sent = self.now();
        let (limiter, owned) = (self.clone(), key.clone());
        let call = async move {
            let demand = Demand::Acquire { lease, weight };
            limiter.call(&owned, demand, shadow).decide().await
        };
        let (limiter, owned) = (self.clone(), key.clone());
        let undo = move |_| async move { limiter.free(&owned, shadow, lease).await };
        let (decision, grant): (Decision, Option<LeaseGrant>) = Undoable::new(call, undo).await?;
        self.tell(&decision);
        let is_local = decision.source == Source::Fallback;
        if is_local {
            // It may have been granted all the same.
            let (limiter, key) = (self.clone(), key.clone());
            tokio::spawn(async move { limiter.free_on_server(&key, shadow, lease).await });
        }
        Ok(match grant {
            Some(grant) => {
                let length = grant
                    .expires_at
                    .as_micros()
                    .saturating_sub(decision.at.as_micros());
                let lessor = Remote::new(self, key, shadow, is_local, sent);
                let grant = lessor.granted(grant, sent, length);
                Asked::Granted(Lease::new(grant, Arc::new(lessor)))
            }
            None if decision.is_allowed() => Asked::Granted(Lease::unenforced(weight, self.now())),
            None => Asked::Denied(decision),
        })
    }
}

impl Waiting<'_> {
    async fn for_lease(&self, weight: u32, options: &WaitOptions) -> Result<Lease, WaitError> {
        let known = if self.limiter.0.lines.is_waiting(self.key) {
            let demand = Demand::Acquire {
                lease: LeaseId(0),
                weight,
            };
            self.peek(demand).await?
        } else {
            None
        };
        let known = match known {
            Some(known) => known,
            None => match self.try_for_lease(weight).await? {
                Asked::Granted(lease) => return Ok(lease),
                Asked::Denied(known) => known,
            },
        };
        if known.retry_after.is_never() {
            return Err(WaitError::Impossible(known));
        }
        let _first = self.turn(known).await?;
        let mut freed = self.limiter.limit().released(self.key);
        loop {
            let known = match self.try_for_lease(weight).await? {
                Asked::Granted(lease) => return Ok(lease),
                Asked::Denied(known) => known,
            };
            let expire = match known.retry_after.as_duration() {
                Some(wait) => wait.max(Duration::from_millis(1)),
                None => return Err(WaitError::Impossible(known)),
            };
            let wait = expire.min(ASK_AGAIN);
            match (self.left(), options.max_wait) {
                (Some(left), Some(max_wait)) if left.is_zero() => {
                    return Err(WaitError::Elapsed { known, max_wait });
                }
                // Once more at the very end.
                (left, _) => freed.wait(left.map_or(wait, |left| wait.min(left))).await,
            };
        }
    }

    async fn try_for_lease(&self, weight: u32) -> Result<Asked, WaitError> {
        let asked = self.limiter.ask_for_lease(self.key, weight).await;
        asked.map_err(WaitError::Unsupported)
    }

    /// What is known of a demand while others wait; none where it is not denied by the store.
    async fn peek(&self, demand: Demand) -> Result<Option<Decision>, WaitError> {
        if self.limiter.reach(self.key) != Reach::Enforced {
            return Ok(None);
        }
        let peek = Operation::Peek(demand);
        match self.limiter.limit().apply(self.key, &peek).await {
            Ok(reply) => Ok(reply.decision().copied()),
            Err(tidegate_valkey::StoreError::Operation(error)) => {
                Err(WaitError::Unsupported(error))
            }
            Err(_) => Ok(None),
        }
    }
}

//! What a consumer holds while it works: a permit, had before the message.

use tidegate::{Key, Lease, Limiter, WaitError};

/// A limit of how many messages may be at work at once.
pub trait Limit: Send + Sync {
    /// The right to work on one message; given back when it is dropped.
    type Permit: Permit;

    /// Waits for a permit, and takes as many more as are free, up to `most` in all.
    ///
    /// # Errors
    /// When the limit can give none, however long one waits.
    fn acquire(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Self::Permit>, WaitError>> + Send;
}

/// The right to work on one message.
pub trait Permit: Send + Sync {
    /// Waits until it is lost; for ever, if it never is.
    fn lost(&self) -> impl Future<Output = ()> + Send;
}

impl Permit for Lease {
    async fn lost(&self) {
        Self::lost(self).await;
    }
}

/// Leases of one key of a limit in this process, each renewed while it is held.
#[derive(Debug)]
pub struct Leases {
    limiter: Limiter,
    key: Key,
}

impl Leases {
    /// Leases of `key` of `limiter`, a [`Concurrency`](tidegate::Concurrency) limit.
    #[must_use]
    pub fn new(limiter: Limiter, key: Key) -> Self {
        Self { limiter, key }
    }
}

impl Limit for Leases {
    type Permit = Lease;

    async fn acquire(&self, most: usize) -> Result<Vec<Lease>, WaitError> {
        let mut leases = vec![self.limiter.acquire(&self.key, 1).await?];
        while leases.len() < most {
            let Ok(lease) = self.limiter.try_acquire(&self.key, 1) else {
                break;
            };
            leases.push(lease);
        }
        Ok(leases)
    }
}

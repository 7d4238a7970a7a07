//! What a consumer holds while it works: a permit, had before the message.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::{Key, Lease, Limiter, Timestamp, WaitError};

/// How long after it was taken a token still pays for a start, in microseconds.
const TOKEN_AGE: u64 = 2_000_000;

/// A limit of how many messages may be at work at once, or be started in a time.
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
    /// Uses it for the start of the work. False where it is too old for that: the consumer drops
    /// it and acquires another.
    fn start(&self) -> bool;

    /// Waits until it is lost; for ever, if it never is.
    fn lost(&self) -> impl Future<Output = ()> + Send;
}

impl Permit for Lease {
    fn start(&self) -> bool {
        self.is_live()
    }

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

/// Tokens of one key of a limit in this process: so many starts in a time.
#[derive(Debug)]
pub struct Rates {
    limiter: Limiter,
    key: Key,
}

impl Rates {
    /// Tokens of `key` of `limiter`, such as a [`TokenBucket`](tidegate::TokenBucket).
    #[must_use]
    pub fn new(limiter: Limiter, key: Key) -> Self {
        Self { limiter, key }
    }

    fn token(&self) -> Token {
        Token {
            limiter: self.limiter.clone(),
            key: self.key.clone(),
            taken_at: self.limiter.now(),
            is_spent: AtomicBool::new(false),
        }
    }
}

impl Limit for Rates {
    type Permit = Token;

    async fn acquire(&self, most: usize) -> Result<Vec<Token>, WaitError> {
        self.limiter.until_ready(&self.key, 1).await?;
        let mut tokens = vec![self.token()];
        while tokens.len() < most && self.limiter.try_take(&self.key, 1).is_allowed() {
            tokens.push(self.token());
        }
        Ok(tokens)
    }
}

/// Pays for one start, within two seconds. One that was not used goes back.
#[derive(Debug)]
pub struct Token {
    limiter: Limiter,
    key: Key,
    taken_at: Timestamp,
    is_spent: AtomicBool,
}

impl Permit for Token {
    fn start(&self) -> bool {
        let age = self
            .limiter
            .now()
            .as_micros()
            .saturating_sub(self.taken_at.as_micros());
        let is_fresh = age <= TOKEN_AGE;
        self.is_spent.fetch_or(is_fresh, Ordering::Relaxed);
        is_fresh
    }

    async fn lost(&self) {
        pending().await
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if !*self.is_spent.get_mut() {
            // What cannot be refunded was not counted as units, and so never taken.
            let _ = self.limiter.key(&self.key).refund(1);
        }
    }
}

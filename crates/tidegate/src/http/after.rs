//! What becomes of a charge when the answer is known.

use super::rule_limiter::RuleLimiter;
use crate::Key;

/// What becomes of a request's charge when its answer is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum After {
    /// It stays.
    #[default]
    Keep,
    /// It is given back: the request is as if it had not been counted.
    Refund,
    /// So many units more are charged, whatever is left: into debt down to one capacity.
    Charge(u32),
}

/// A charge that is not settled yet.
#[derive(Debug)]
pub(super) struct Owed {
    /// The position of its rule.
    pub rule: usize,
    pub key: Key,
    pub cost: u32,
}

impl Owed {
    /// Settles the charge with its limit.
    pub fn settle(self, limiter: &RuleLimiter, after: After) {
        if after == After::Keep {
            return;
        }
        match limiter {
            RuleLimiter::Memory(limiter) => {
                let key = limiter.key(&self.key);
                // The limit had units to take when the request came. Should an operator have made
                // another algorithm of it since, all its keys are fresh and there is nothing to
                // settle.
                let _ = match after {
                    After::Keep => Ok(()),
                    After::Refund => key.refund(self.cost).map(drop),
                    After::Charge(units) => key.force(units).map(drop),
                };
            }
            #[cfg(feature = "valkey")]
            RuleLimiter::Shared(limiter) => {
                // The answer does not wait for the store. Without a runtime, as in a thread that
                // drops what is left at the end of the program, the charge stays.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(settle_shared(limiter.clone(), self, after));
                }
            }
        }
    }
}

/// What the store gives no answer to stays as it was charged.
#[cfg(feature = "valkey")]
async fn settle_shared(limiter: crate::shared::SharedLimiter, owed: Owed, after: After) {
    let key = limiter.key(&owed.key);
    let _ = match after {
        After::Keep => Ok(()),
        After::Refund => key.refund(owed.cost).await.map(drop),
        After::Charge(units) => key.force(units).await.map(drop),
    };
}

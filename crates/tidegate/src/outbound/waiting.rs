//! A call's turn: when the local limit and the host's own wishes let it go.

use std::time::Duration;

use tidegate_core::Decision;
use tokio::time::sleep;

use crate::{Key, Limiter};

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutboundError<E> {
    /// Its turn would have come too late. Nothing was sent.
    #[error(
        "{origin} may not be called for another {wait:?}, and a call waits {max_wait:?} at most; \
         call less often, or allow a longer wait"
    )]
    TooLong {
        /// Where it would have gone.
        origin: String,
        /// How much longer it would have had to wait when it gave up.
        wait: Duration,
        /// How long a call waits at most.
        max_wait: Duration,
    },
    /// No wait helps: the local limit lets nothing through. Nothing was sent.
    #[error("the limit on {origin} lets nothing through; raise it to call there")]
    Never {
        /// Where it would have gone.
        origin: String,
    },
    /// The client failed.
    #[error("the call failed")]
    Client(#[source] E),
}

/// A call that waits for its turn.
pub(super) struct Turn {
    pub limiter: Limiter,
    pub key: Key,
    pub origin: String,
    pub max_wait: Duration,
}

impl Turn {
    /// Waits after `decision`, the answer to a first try.
    pub async fn wait<E>(self, mut decision: Decision) -> Result<(), OutboundError<E>> {
        let mut waited = Duration::ZERO;
        loop {
            let allowed = decision.is_allowed();
            let wait = if allowed {
                decision.delay
            } else {
                decision.retry_after
            };
            let Some(wait) = wait.as_duration() else {
                let origin = self.origin;
                return Err(OutboundError::Never { origin });
            };
            waited = waited.saturating_add(wait);
            if waited > self.max_wait {
                return Err(OutboundError::TooLong {
                    origin: self.origin,
                    wait,
                    max_wait: self.max_wait,
                });
            }
            sleep(wait).await;
            if allowed {
                return Ok(());
            }
            decision = self.limiter.try_take_at(&self.key, 1, self.limiter.now());
        }
    }
}

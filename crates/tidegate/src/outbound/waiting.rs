//! A call's turn: when the local limit and the host's own wishes let it go.

use std::time::Duration;

use tidegate_core::Timestamp;

use crate::{Key, Limiter, WaitError, WaitOptions};

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OutboundError<E> {
    /// Its turn would have come too late, or never. Nothing was sent.
    #[error("the call to {origin} was not sent")]
    NotSent {
        /// Where it would have gone.
        origin: String,
        /// Why.
        source: WaitError,
    },
    /// The client failed.
    #[error("the call failed")]
    Client(#[source] E),
}

/// Waits for the turn of a call, at most so long.
///
/// Units that were booked ahead come due while the host is paused, if it asked for the pause after
/// the booking. Such a turn is given back, and another one is waited for in line, so that calls do
/// not all go out in the moment that the pause ends.
pub(super) async fn turn(limiter: Limiter, key: Key, max_wait: Duration) -> Result<(), WaitError> {
    let begun = limiter.now();
    loop {
        let left = max_wait.saturating_sub(since(begun, limiter.now()));
        let options = WaitOptions::new().max_wait(left);
        limiter.until_ready_with(&key, 1, &options).await?;
        let this = limiter.key(&key);
        if this.state().blocked_for.as_duration().is_zero() {
            return Ok(());
        }
        // It was charged a moment ago, and by a limit that counts units.
        let _ = this.refund(1);
    }
}

fn since(begun: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(now.as_micros().saturating_sub(begun.as_micros()))
}

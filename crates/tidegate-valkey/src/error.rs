//! Why a store gave no decision.

use std::time::Duration;

/// Why the shared store gave no decision.
///
/// The variants tell what may have happened to the state, because failing open or closed hangs on
/// it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing is known about the state: the call may or may not have been counted.
    #[error("no answer from {server} within {deadline:?}")]
    Timeout {
        /// Which server, as it was configured.
        server: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// The connection could not be made or broke before the call was sent: nothing was counted.
    #[error("cannot reach {server}")]
    Unreachable {
        /// Which server, as it was configured.
        server: String,
        /// What the system said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

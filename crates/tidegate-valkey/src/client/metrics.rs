//! What a client counts and tells.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::StoreError;

/// Something that happened between a client and its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A connection is ready.
    Connected {
        /// To which server.
        server: String,
    },
    /// A connection ended, or was given up since nothing came back on it.
    Disconnected {
        /// To which server.
        server: String,
    },
    /// A connection could not be made; it is tried again.
    ConnectFailed {
        /// To which server.
        server: String,
        /// Why.
        message: String,
    },
    /// A server failed several calls in succession and is not asked for a while.
    BreakerOpened {
        /// Which server.
        server: String,
    },
    /// A server that was not asked for a while answers calls again.
    BreakerClosed {
        /// Which server.
        server: String,
    },
    /// A server did not know a script and was given it.
    ScriptLoaded {
        /// Which server.
        server: String,
        /// Which script.
        script: &'static str,
    },
    /// Another server is the primary that sentinels name, or the first was found.
    PrimaryChanged {
        /// Which server.
        server: String,
    },
    /// The cluster's slots lie at other servers than before.
    SlotsChanged {
        /// How many servers have slots.
        servers: usize,
    },
}

/// What a client has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Calls, whatever came of them.
    pub calls: u64,
    /// Calls that have not ended.
    pub in_flight: u64,
    /// Calls that were sent and got no answer in time.
    pub timeouts: u64,
    /// Calls whose connection broke.
    pub broken: u64,
    /// Calls that found no connection.
    pub unreachable: u64,
    /// Calls that an open breaker answered.
    pub breaker_rejections: u64,
    /// Calls that servers refused until the deadline: loading, busy, cluster down.
    pub unavailable: u64,
    /// Calls that servers answered with another error.
    pub refused: u64,
    /// Calls sent again because a server redirected or refused them for the moment.
    pub retries: u64,
    /// Scripts loaded.
    pub script_loads: u64,
    /// Connections made.
    pub connects: u64,
    /// Attempts to connect that failed.
    pub connect_failures: u64,
    /// How often a breaker opened.
    pub breaker_openings: u64,
    /// Servers whose breaker is not closed now.
    pub breakers_open: u64,
}

/// The counters behind [`ClientStats`].
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) calls: AtomicU64,
    pub(crate) ended: AtomicU64,
    timeouts: AtomicU64,
    broken: AtomicU64,
    unreachable: AtomicU64,
    breaker_rejections: AtomicU64,
    unavailable: AtomicU64,
    refused: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) script_loads: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) connect_failures: AtomicU64,
    pub(crate) breaker_openings: AtomicU64,
}

impl Metrics {
    /// Counts what became of a call that got no reply.
    pub(crate) fn count(&self, error: &StoreError) {
        let counter = match error {
            StoreError::Timeout { .. } => &self.timeouts,
            StoreError::Broken { .. } => &self.broken,
            StoreError::Unreachable { .. } => &self.unreachable,
            StoreError::BreakerOpen { .. } => &self.breaker_rejections,
            StoreError::Unavailable { .. } => &self.unavailable,
            _ => &self.refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// All counters; each is right, and together they may be a few calls apart.
    pub(crate) fn snapshot(&self) -> ClientStats {
        // What has ended is read first, so that the difference is never negative.
        let ended = self.ended.load(Relaxed);
        let calls = self.calls.load(Relaxed);
        ClientStats {
            calls,
            in_flight: calls.saturating_sub(ended),
            timeouts: self.timeouts.load(Relaxed),
            broken: self.broken.load(Relaxed),
            unreachable: self.unreachable.load(Relaxed),
            breaker_rejections: self.breaker_rejections.load(Relaxed),
            unavailable: self.unavailable.load(Relaxed),
            refused: self.refused.load(Relaxed),
            retries: self.retries.load(Relaxed),
            script_loads: self.script_loads.load(Relaxed),
            connects: self.connects.load(Relaxed),
            connect_failures: self.connect_failures.load(Relaxed),
            breaker_openings: self.breaker_openings.load(Relaxed),
            breakers_open: 0,
        }
    }
}

//! Setting a shared limit up.

use std::sync::Arc;

use tidegate_core::{ChangeMode, Policy};
use tidegate_valkey::{
    FailureMode, LeaseTokens, LeaseTokensError, LimitSpec, SharedLimit, ValkeyStore,
};

use super::SharedLimiter;
use crate::clock::{Clock, SystemClock};
use crate::limiter::Mode;
use crate::observer::Observer;

/// Sets a [`SharedLimiter`] up.
#[must_use = "it does nothing until it is built"]
pub struct SharedLimiterBuilder {
    store: ValkeyStore,
    spec: LimitSpec,
    failure_mode: Option<FailureMode>,
    local_keys: Option<usize>,
    leases: Option<LeaseTokens>,
    mode: Mode,
    clock: Option<Arc<dyn Clock>>,
    observer: Option<Arc<dyn Observer>>,
}

impl SharedLimiterBuilder {
    pub(super) fn new(store: ValkeyStore, name: &str, policy: Policy) -> Self {
        Self {
            store,
            spec: LimitSpec::new(name, policy),
            failure_mode: None,
            local_keys: None,
            leases: None,
            mode: Mode::Enforce,
            clock: None,
            observer: None,
        }
    }

    /// Chooses what the limit does when the store gives no answer. Default: the mode that fits the
    /// policy, by [`FailureMode::default_for`].
    pub const fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.failure_mode = Some(mode);
        self
    }

    /// Bounds how many keys a local share keeps apart; further ones share some. Default: 100 000.
    pub const fn local_keys(mut self, keys: usize) -> Self {
        self.local_keys = Some(keys);
        self
    }

    /// Takes units in batches, as a document says.
    #[cfg(feature = "config")]
    pub(crate) const fn leases(mut self, leases: Option<LeaseTokens>) -> Self {
        self.leases = leases;
        self
    }

    /// Charges calls that the limit denies all the same, into debt down to one capacity: who does
    /// not wait, waits longer. Default: a denial costs nothing.
    pub fn charge_denied(mut self, charge_denied: bool) -> Self {
        self.spec = self.spec.with_charge_denied(charge_denied);
        self
    }

    /// Chooses how far decisions reach. Default: [`Mode::Enforce`].
    ///
    /// Under [`Mode::Percent`] a key is on the same side in all processes.
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Says which of several sets of numbers is the latest: those of a higher generation win where
    /// processes differ. Default: 0. See [`LimitSpec::with_generation`].
    pub fn generation(mut self, generation: u32) -> Self {
        self.spec = self.spec.with_generation(generation);
        self
    }

    /// Says what becomes of what a key has used under other numbers of the same algorithm.
    /// Default: [`ChangeMode::KeepUsed`].
    pub fn change(mut self, change: ChangeMode) -> Self {
        self.spec = self.spec.with_change(change);
        self
    }

    /// Tells by `clock` when a lease is to be renewed and when it is lost. Default: a
    /// [`SystemClock`]. Decisions are made on the server's clock in any case.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Tells `observer` of every decision of this process. There are no events of a table.
    /// Default: nobody.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Makes the limiter.
    #[must_use]
    pub fn build(self) -> SharedLimiter {
        let mode = self.mode_without_store();
        let (store, spec) = (self.store.clone(), self.spec.clone());
        // A document's leases are checked when it is read; a limit that was made one that cannot be
        // leased since is asked call by call.
        if let Some(leases) = self.leases
            && let Ok(limit) =
                SharedLimit::with_leased_tokens(store.clone(), spec.clone(), mode, leases)
        {
            return self.finish(limit);
        }
        let limit = match self.local_keys {
            Some(keys) => SharedLimit::with_local_keys(store, spec, mode, keys),
            None => SharedLimit::with_failure_mode(store, spec, mode),
        };
        self.finish(limit)
    }

    /// Makes a limiter whose units this process takes in batches and spends by itself: see
    /// [Leases of tokens](super#leases-of-tokens).
    ///
    /// # Errors
    /// The limit cannot be asked so: see [`LeaseTokens::check`].
    pub fn build_with_leased_tokens(
        self,
        leases: LeaseTokens,
    ) -> Result<SharedLimiter, LeaseTokensError> {
        let mode = self.mode_without_store();
        let (store, spec) = (self.store.clone(), self.spec.clone());
        let limit = SharedLimit::with_leased_tokens(store, spec, mode, leases)?;
        Ok(self.finish(limit))
    }

    fn mode_without_store(&self) -> FailureMode {
        let fitting = || FailureMode::default_for(self.spec.policy());
        self.failure_mode.unwrap_or_else(fitting)
    }

    fn finish(self, limit: SharedLimit) -> SharedLimiter {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        SharedLimiter::of(limit, self.mode, clock, self.observer)
    }
}

//! One limit over any number of keys and processes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tidegate_core::{Decision, Demand, LeaseGrant, Operation, OperationError, Policy, Timestamp};
use tidegate_store::{Key, KeyHasher};
use tidegate_valkey::{SharedCall, SharedLimit, SharedStats, StoreError, ValkeyStore};

use super::line::Lines;
use super::{SharedKey, SharedLimiterBuilder};
use crate::clock::Clock;
use crate::limiter::{Mode, Reach, passing, reach_of};
use crate::observer::Observer;
use crate::to_key::ToKey;

/// One limit over any number of keys, shared by all processes that have the same store.
///
/// Clones share everything. All methods that ask the store must be called within a tokio runtime.
/// See the [module](super) for first use.
#[derive(Clone)]
pub struct SharedLimiter(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) limit: SharedLimit,
    mode: AtomicU8,
    /// Picks the keys that [`Mode::Percent`] enforces: the same in all processes.
    sides: KeyHasher,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) lines: Lines,
    observer: Option<Arc<dyn Observer>>,
}

impl SharedLimiter {
    /// An enforced limit with default settings.
    ///
    /// Limits of the same name and algorithm in one store are one limit.
    #[must_use]
    pub fn new(store: ValkeyStore, name: &str, policy: impl Into<Policy>) -> Self {
        Self::builder(store, name, policy).build()
    }

    /// Sets a limit up.
    pub fn builder(
        store: ValkeyStore,
        name: &str,
        policy: impl Into<Policy>,
    ) -> SharedLimiterBuilder {
        SharedLimiterBuilder::new(store, name, policy.into())
    }

    pub(super) fn of(
        limit: SharedLimit,
        mode: Mode,
        clock: Arc<dyn Clock>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        // Another name is another choice of keys, or the same few would always go first.
        let name = Key::new(limit.spec().name());
        let seed = KeyHasher::with_seed((0, 0)).hash(&name).get();
        Self(Arc::new(Inner {
            limit,
            mode: AtomicU8::new(mode.to_byte()),
            sides: KeyHasher::with_seed((seed, 0)),
            clock,
            lines: Lines::default(),
            observer,
        }))
    }

    /// Takes `cost` units for a key, or nothing.
    ///
    /// There is a decision also where the store gives no answer: see
    /// [`FailureMode`](super::FailureMode).
    ///
    /// # Errors
    /// The limit counts no units: it is a concurrency limit or a lockout.
    pub async fn try_take(&self, key: impl ToKey, cost: u32) -> Result<Decision, OperationError> {
        // A value that makes a key need not be Send.
        let key = key.to_key();
        if let Some(decision) = self.spend(&key, cost) {
            return Ok(decision);
        }
        let decided = self.decide(&key, Demand::Take { cost });
        decided.await.map(|(decision, _)| decision)
    }

    /// Answers as [`Self::try_take`] would and writes nothing.
    ///
    /// # Errors
    /// As [`SharedKey::apply`].
    pub async fn peek(&self, key: impl ToKey, cost: u32) -> Result<Decision, StoreError> {
        let key = self.key(key);
        key.peek(cost).await
    }

    /// Spends `cost` units that this process has taken in advance, if they are enough: at once, and
    /// without asking the store. None where the limit leases no tokens, or is not enforced, or what
    /// is at hand does not suffice; then [`Self::try_take`] decides.
    #[must_use]
    pub fn try_spend(&self, key: impl ToKey, cost: u32) -> Option<Decision> {
        self.spend(&key.to_key(), cost)
    }

    pub(super) fn spend(&self, key: &Key, cost: u32) -> Option<Decision> {
        self.0.limit.leased_tokens()?;
        if self.reach(key) != Reach::Enforced {
            return None;
        }
        let decision = self.call(key, Demand::Take { cost }, false).spend()?;
        self.tell(&decision);
        Some(decision)
    }

    /// Gives back what this process has taken in advance and not spent, and takes nothing in advance
    /// any more: for the end of a process. What is not given back stays charged until it is refilled
    /// or its window has passed.
    pub async fn return_tokens(&self) {
        self.0.limit.return_tokens().await;
    }

    /// One key, and everything else that can be done to it: reserve, refund, block and so on.
    pub fn key(&self, key: impl ToKey) -> SharedKey<'_> {
        SharedKey::of(self, key.to_key())
    }

    /// The name of the limit.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.limit.spec().name()
    }

    /// The numbers that this process applies.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.0.limit.spec().policy()
    }

    /// How far decisions of this process reach.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode::from_byte(self.0.mode.load(Ordering::Acquire))
    }

    /// Changes how far decisions of this process reach. States in shadow and enforced ones are kept
    /// apart. Whoever waits takes it in when it asks next.
    pub fn set_mode(&self, mode: Mode) {
        self.0.mode.store(mode.to_byte(), Ordering::Release);
    }

    /// What it has decided in this process, and how often without the store.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        self.0.limit.stats()
    }

    /// The limit as the store's crate has it.
    #[must_use]
    pub fn limit(&self) -> &SharedLimit {
        &self.0.limit
    }

    pub(super) fn reach(&self, key: &Key) -> Reach {
        reach_of(self.0.mode.load(Ordering::Relaxed), self.0.sides.hash(key))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The decision while the limit is off.
    pub(super) fn pass(&self, cost: u32) -> Decision {
        passing(self.policy(), cost, self.now())
    }

    pub(super) fn call<'a>(&'a self, key: &'a Key, demand: Demand, shadow: bool) -> SharedCall<'a> {
        SharedCall {
            limit: &self.0.limit,
            key,
            slot: None,
            demand,
            shadow,
        }
    }

    /// Decides over a demand as the mode has it, and tells of it.
    pub(super) async fn decide(
        &self,
        key: &Key,
        demand: Demand,
    ) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        let shadow = match self.reach(key) {
            Reach::Off => {
                let (Demand::Take { cost } | Demand::Acquire { weight: cost, .. }) = demand else {
                    return Ok((self.pass(1), None));
                };
                return Ok((self.pass(cost), None));
            }
            reach => reach == Reach::Shadow,
        };
        let (decision, grant) = self.call(key, demand, shadow).decide().await?;
        self.tell(&decision);
        Ok((decision, grant))
    }

    /// Undoes something, as far as the store answers.
    pub(super) async fn undo(&self, key: &Key, shadow: bool, operation: Operation) {
        // What cannot be given back is refilled, or expires.
        let _ = self.0.limit.apply_as(key, shadow, &operation).await;
    }

    pub(super) fn tell(&self, decision: &Decision) {
        if let Some(observer) = &self.0.observer {
            observer.decided(self.name(), decision);
        }
    }
}

impl fmt::Debug for SharedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimiter")
            .field("name", &self.name())
            .field("policy", &self.policy())
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

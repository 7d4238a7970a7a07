//! One limit over any number of processes: states on a server, denials that are remembered, and
//! what happens when there is no answer.

mod joint;
mod leased;

use std::fmt;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::SmallVec;
use tidegate_core::{
    Decision, Demand, LeaseGrant, Operation, OperationError, Reply, Source, with_algorithm,
};
use tidegate_store::Key;

use crate::denied::{Denied, Pending};
use crate::failure::{Fallback, blind};
use crate::tokens::Purses;
use crate::{
    FailureMode, LeaseTokens, LeaseTokensError, LimitSpec, Notifications, SharedMember, StoreError,
    ValkeyStore,
};

pub use joint::all_of;

/// How many keys a local share keeps apart unless told otherwise.
const LOCAL_KEYS: usize = 100_000;

/// One limit whose states are shared by all processes that have the same store.
///
/// Clones share everything. Decisions come from the store; a denial is remembered for a second at
/// most, and asked again by nobody meanwhile; and where there is no answer, the limit's
/// [`FailureMode`] decides.
#[derive(Clone)]
pub struct SharedLimit(Arc<Inner>);

struct Inner {
    store: ValkeyStore,
    spec: LimitSpec,
    mode: FailureMode,
    fallback: Fallback,
    decisions: AtomicU64,
    remembered: AtomicU64,
    fallbacks: AtomicU64,
    /// What this process has taken in advance, if it may.
    purses: Option<Arc<Purses>>,
    spent: AtomicU64,
}

/// What one call wants of one limit.
#[derive(Clone, Copy, Debug)]
pub struct SharedCall<'a> {
    /// The limit.
    pub limit: &'a SharedLimit,
    /// Whose state is counted.
    pub key: &'a Key,
    /// What decides where in a cluster the state lies, if it is not the key: limits that are asked
    /// together are asked in one step if they have the same.
    pub slot: Option<&'a Key>,
    /// What the call wants.
    pub demand: Demand,
    /// Whether the limit is only watched.
    pub shadow: bool,
}

/// What a limit has decided in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// All decisions.
    pub decisions: u64,
    /// Those of them that were remembered denials.
    pub remembered: u64,
    /// Those of them that were made without the store.
    pub fallbacks: u64,
    /// Those of them that spent units taken in advance.
    pub spent: u64,
}

impl SharedLimit {
    /// A limit with the failure mode that fits its algorithm:
    /// [`FailureMode::default_for`].
    #[must_use]
    pub fn new(store: ValkeyStore, spec: LimitSpec) -> Self {
        let mode = FailureMode::default_for(spec.policy());
        Self::with_failure_mode(store, spec, mode)
    }

    /// A limit that does as `mode` says when the store gives no answer.
    #[must_use]
    pub fn with_failure_mode(store: ValkeyStore, spec: LimitSpec, mode: FailureMode) -> Self {
        Self::made(store, spec, mode, None, LOCAL_KEYS)
    }

    /// As [`with_failure_mode`](Self::with_failure_mode), and says how many keys a local share keeps
    /// apart; further ones share some. Otherwise it is 100 000.
    #[must_use]
    pub fn with_local_keys(
        store: ValkeyStore,
        spec: LimitSpec,
        mode: FailureMode,
        keys: usize,
    ) -> Self {
        Self::made(store, spec, mode, None, keys)
    }

    /// A limit whose units this process takes in batches; `mode` as in
    /// [`with_failure_mode`](Self::with_failure_mode).
    ///
    /// What is at hand is spent without asking anybody, also while the store gives no answer. What
    /// grows old goes back, as far as that forgives nobody anything; so does all of it with
    /// [`return_tokens`](Self::return_tokens), and with the last clone where a runtime is left to do
    /// it.
    ///
    /// # Errors
    /// The limit cannot be asked so: see [`LeaseTokens::check`].
    pub fn with_leased_tokens(
        store: ValkeyStore,
        spec: LimitSpec,
        mode: FailureMode,
        leases: LeaseTokens,
    ) -> Result<Self, LeaseTokensError> {
        LeaseTokens::check(&spec)?;
        let purses = Arc::new(Purses::new(leases, quanta::Clock::new()));
        Ok(Self::made(store, spec, mode, Some(purses), LOCAL_KEYS))
    }

    fn made(
        store: ValkeyStore,
        spec: LimitSpec,
        mode: FailureMode,
        purses: Option<Arc<Purses>>,
        keys: usize,
    ) -> Self {
        Self(Arc::new(Inner {
            fallback: Fallback::new(mode, &spec, keys),
            store,
            spec,
            mode,
            decisions: AtomicU64::new(0),
            remembered: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            purses,
            spent: AtomicU64::new(0),
        }))
    }

    /// How units are taken in advance, if they are.
    #[must_use]
    pub fn leased_tokens(&self) -> Option<&LeaseTokens> {
        self.0.purses.as_ref().map(|purses| purses.terms())
    }

    /// The limit's name and numbers.
    #[must_use]
    pub fn spec(&self) -> &LimitSpec {
        &self.0.spec
    }

    /// Where its states are.
    #[must_use]
    pub fn store(&self) -> &ValkeyStore {
        &self.0.store
    }

    /// What it does when the store gives no answer.
    #[must_use]
    pub fn failure_mode(&self) -> FailureMode {
        self.0.mode
    }

    /// What it has decided in this process.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        SharedStats {
            decisions: self.0.decisions.load(Relaxed),
            remembered: self.0.remembered.load(Relaxed),
            fallbacks: self.0.fallbacks.load(Relaxed),
            spent: self.0.spent.load(Relaxed),
        }
    }

    /// Takes `cost` units of a key, or nothing.
    ///
    /// There is always a decision; its [`source`](Decision::source) says where it came from.
    ///
    /// # Errors
    /// The limit has no units: it is a concurrency limit or a lockout.
    pub async fn take(&self, key: &Key, cost: u32) -> Result<Decision, OperationError> {
        let call = SharedCall {
            limit: self,
            key,
            slot: None,
            demand: Demand::Take { cost },
            shadow: false,
        };
        call.decide().await.map(|(decision, _)| decision)
    }

    /// Applies one operation to a key, at the server's time.
    ///
    /// A lease that a local share granted while there was no store is renewed and released there.
    ///
    /// # Errors
    /// The store gave no answer; the failure mode answers demands only. Or the operation has no
    /// meaning on the limit's algorithm.
    pub async fn apply(&self, key: &Key, operation: &Operation) -> Result<Reply, StoreError> {
        self.apply_as(key, false, operation).await
    }

    /// As [`apply`](Self::apply), to the state of a limit that is only watched where `shadow`.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub async fn apply_as(
        &self,
        key: &Key,
        shadow: bool,
        operation: &Operation,
    ) -> Result<Reply, StoreError> {
        if matches!(
            operation,
            Operation::Renew { .. } | Operation::Release { .. }
        ) && let Some(local) = self.0.fallback.local()
        {
            let reply = local.apply(key, shadow, operation)?;
            if matches!(reply, Reply::Renewed(Some(_)) | Reply::Released(true)) {
                return Ok(reply);
            }
        }
        if let Some(reply) = self.at_hand(key, shadow, operation) {
            return Ok(reply);
        }
        let Inner { store, spec, .. } = &*self.0;
        let reply = store.apply(spec, key, None, shadow, operation).await;
        // And what was asked for meanwhile.
        self.at_hand(key, shadow, operation);
        reply
    }

    /// Wakes whoever waits for a permit of this limit; see [`ValkeyStore::released`].
    #[must_use]
    pub fn released(&self, key: &Key) -> Notifications {
        self.0.store.released(&self.0.spec, key, None, false)
    }

    fn check(&self, demand: Demand) -> Result<(), OperationError> {
        fn check<A: tidegate_core::Algorithm>(
            _: &A,
            take: &Operation,
        ) -> Result<(), OperationError> {
            take.check::<A>()
        }
        let take = Operation::Take(demand);
        with_algorithm!(self.0.spec.policy(), algorithm => check(algorithm, &take))
    }

    fn count(&self, decision: &Decision) {
        self.0.decisions.fetch_add(1, Relaxed);
        match decision.source {
            Source::Remembered => self.0.remembered.fetch_add(1, Relaxed),
            Source::Fallback => self.0.fallbacks.fetch_add(1, Relaxed),
            Source::Leased => self.0.spent.fetch_add(1, Relaxed),
            _ => 0,
        };
    }
}

impl fmt::Debug for SharedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimit")
            .field("spec", &self.0.spec)
            .field("mode", &self.0.mode)
            .finish_non_exhaustive()
    }
}

impl SharedCall<'_> {
    /// Decides, and grants the lease if one was demanded and given.
    ///
    /// There is always a decision; its [`source`](Decision::source) says where it came from. Where
    /// [`FailureMode::Allow`] lets someone pass without the store, there is no lease.
    ///
    /// # Errors
    /// The demand has no meaning on the limit's algorithm.
    pub async fn decide(&self) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        if let Some(decision) = self.spend() {
            return Ok((decision, None));
        }
        self.limit.check(self.demand)?;
        if let Some(purses) = self.purses() {
            let decision = Box::pin(self.decide_leased(purses)).await?;
            return Ok((decision, None));
        }
        self.decide_at_store().await
    }

    /// As [`decide`](Self::decide), without what may be at hand. The demand has been checked.
    async fn decide_at_store(&self) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        let limit = self.limit;
        let memory = self.memory();
        let pending = match memory.as_ref().map(Memory::recall) {
            Some(Ok(denied)) => {
                limit.count(&denied.decision);
                return Ok((denied.decision, None));
            }
            Some(Err(pending)) => Some(pending),
            None => None,
        };
        let take = Operation::Take(self.demand);
        let store = &limit.0.store;
        let asked = store.apply(&limit.0.spec, self.key, self.slot, self.shadow, &take);
        let (decision, grant) = match asked.await {
            Ok(Reply::Decision(decision)) => (decision, None),
            Ok(Reply::Leased(decision, grant)) => (decision, grant),
            Err(StoreError::Operation(error)) => return Err(error),
            Ok(_) | Err(_) => self.fall_back()?,
        };
        if let (Some(memory), Some(pending)) = (memory, pending) {
            memory.remember(pending, decision, &[]);
        }
        limit.count(&decision);
        Ok((decision, grant))
    }

    /// Decides as [`decide`](Self::decide) does where the store gives no answer, without asking it:
    /// for a caller that has just asked something else in vain.
    ///
    /// # Errors
    /// The demand has no meaning on the limit's algorithm.
    pub fn decide_without_store(&self) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        self.limit.check(self.demand)?;
        let decided = self.fall_back()?;
        self.limit.count(&decided.0);
        Ok(decided)
    }

    /// Where a denial of this call is remembered. None where it must not be: it costs something,
    /// the limit is only watched, or a permit may be freed at any moment.
    fn memory(&self) -> Option<Memory<'_>> {
        if self.shadow {
            return None;
        }
        let mut memory = Memory::of(&self.limit.0.store);
        memory.add(self)?;
        Some(memory)
    }

    /// What the limit does without its store.
    fn fall_back(&self) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        let limit = &self.limit.0;
        let allow = match &limit.fallback {
            Fallback::Allow => true,
            Fallback::Deny => false,
            Fallback::Local(local) => {
                let take = Operation::Take(self.demand);
                let reply = local.apply(self.key, self.shadow, &take)?;
                let grant = match &reply {
                    Reply::Leased(_, grant) => *grant,
                    _ => None,
                };
                let decision = reply.decision().map(|decision| Decision {
                    source: Source::Fallback,
                    shadow: self.shadow,
                    ..*decision
                });
                return Ok((decision.unwrap_or_else(|| self.blind(false)), grant));
            }
        };
        Ok((self.blind(allow), None))
    }

    fn blind(&self, allow: bool) -> Decision {
        blind(self.limit.spec(), allow, &self.demand, self.shadow)
    }

    fn member(&self) -> SharedMember<'_> {
        SharedMember {
            limit: self.limit.spec(),
            key: self.key,
            slot: self.slot,
            demand: self.demand,
            shadow: self.shadow,
        }
    }
}

/// Where the denial of a call over one or several limits is remembered.
struct Memory<'a> {
    store: &'a ValkeyStore,
    /// Has seen everything that a denial depends on.
    hasher: SipHasher13,
    keys: SmallVec<[u64; 6]>,
}

impl<'a> Memory<'a> {
    fn of(store: &'a ValkeyStore) -> Self {
        Self {
            store,
            hasher: store.hasher(),
            keys: SmallVec::new(),
        }
    }

    /// Adds a member. None if denials that it takes part in are not remembered.
    fn add(&mut self, call: &SharedCall<'_>) -> Option<()> {
        let spec = call.limit.spec();
        let cost = match call.demand {
            Demand::Take { cost } => u64::from(cost),
            // The seed picks the length of a ban that begins; a denied attempt begins none.
            Demand::Attempt { .. } => u64::MAX,
            Demand::Acquire { .. } => return None,
        };
        if spec.charges_denied() {
            return None;
        }
        let key = self.store.hash(spec, call.key, call.slot, call.shadow);
        for number in [key, cost, spec.header().len() as u64] {
            self.hasher.write_u64(number);
        }
        self.hasher.write(spec.header());
        self.keys.push(key);
        Some(())
    }

    fn recall(&self) -> Result<Denied, Pending> {
        let call = self.hasher.finish128().as_u128();
        let keys = self.keys.iter().copied();
        self.store.denied().recall(call, keys, Instant::now())
    }

    /// Remembers a decision of the store, if it is a denial.
    fn remember(&self, pending: Pending, decision: Decision, members: &[Decision]) {
        let states = |decision: &Decision| decision.source == Source::State;
        if !decision.is_allowed() && states(&decision) && members.iter().all(states) {
            let members = SmallVec::from_slice(members);
            let denied = Denied { decision, members };
            let keys = self.keys.iter().copied();
            self.store.denied().remember(pending, keys, denied);
        }
    }
}

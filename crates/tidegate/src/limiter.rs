//! One limit over any number of keys.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tidegate_core::{
    ChangeMode, Decision, Operation, OperationError, Policy, Reply, Source, Timestamp, Verdict,
    Wait, with_algorithm,
};
use tidegate_store::{
    Key, KeyHash, KeyHasher, MemoryLimit, MemoryOptions, MemoryStats, Moment, ReadClock, WhenFull,
    memory_limit,
};

use crate::clock::{Clock, SystemClock};
use crate::observer::{Observer, Watch};
use crate::one_key::OneKey;
use crate::to_key::ToKey;
use crate::waiting::Waiters;

/// How far a limit's decisions reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// What it denies is denied.
    #[default]
    Enforce,
    /// It decides and counts, and everything passes.
    Shadow,
    /// It does nothing.
    Off,
    /// It is enforced for this share of the keys, in percent, and in shadow for the rest. A key is
    /// always on the same side.
    Percent(u8),
}

/// What a mode means for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Enforced,
    Shadow,
    Off,
}

/// Modes as bytes; below 100 they are shares in percent.
const ENFORCED: u8 = 100;
const SHADOW: u8 = 101;
const OFF: u8 = 102;

impl Mode {
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::Enforce => ENFORCED,
            Self::Shadow => SHADOW,
            Self::Off => OFF,
            Self::Percent(share) => {
                if share > ENFORCED {
                    ENFORCED
                } else {
                    share
                }
            }
        }
    }

    pub(crate) const fn from_byte(byte: u8) -> Self {
        match byte {
            ENFORCED => Self::Enforce,
            SHADOW => Self::Shadow,
            OFF => Self::Off,
            share => Self::Percent(share),
        }
    }
}

/// One limit over any number of keys, decided in memory.
///
/// Clones share their state. Every method may be called from any number of threads; none blocks
/// on another key.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

pub(crate) struct Inner {
    name: Box<str>,
    pub(crate) table: Box<dyn MemoryLimit>,
    options: MemoryOptions,
    pub(crate) hasher: KeyHasher,
    clock: Arc<dyn Clock>,
    /// Reads the same clock, for tables.
    reading: ReadClock,
    mode: AtomicU8,
    /// Who waits; shared with what takes over.
    waiters: Arc<Waiters>,
    /// Whether a take that is denied costs nothing, and one that is allowed never has to wait.
    plain: bool,
    /// How many keys have numbers of their own; held while that changes.
    pub(crate) overrides: Mutex<usize>,
    pub(crate) max_overrides: usize,
    /// Who is told of decisions.
    watch: Option<Watch>,
    /// What took over when the algorithm changed.
    successor: OnceLock<Limiter>,
}

/// Sets a [`Limiter`] up.
pub struct LimiterBuilder {
    pub(crate) policy: Policy,
    name: String,
    pub(crate) options: MemoryOptions,
    pub(crate) hasher: Option<KeyHasher>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    mode: Mode,
    max_overrides: usize,
    observer: Option<Arc<dyn Observer>>,
    pub(crate) tiers: Vec<(String, Policy)>,
}

/// How many keys may have numbers of their own unless told otherwise.
const MAX_OVERRIDES: usize = 10_000;

impl LimiterBuilder {
    /// Gives the limit a name for messages. Default: the name of the algorithm.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Bounds how many keys have a state of their own. Default: a million.
    ///
    /// Threads that bring new keys at the same moment may pass the bound by one each.
    #[must_use]
    pub const fn max_keys(mut self, max_keys: usize) -> Self {
        self.options.max_keys = max_keys;
        self
    }

    /// Chooses what becomes of new keys beyond that. Default: [`WhenFull::Overflow`].
    #[must_use]
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.options.when_full = when_full;
        self
    }

    /// Charges calls that the limit denies all the same, into debt down to one capacity: who does
    /// not wait, waits longer. Default: a denial costs nothing.
    #[must_use]
    pub const fn charge_denied(mut self, charge_denied: bool) -> Self {
        self.options.charge_denied = charge_denied;
        self
    }

    /// Chooses how far decisions reach. Default: [`Mode::Enforce`].
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Takes the time from `clock`. Default: a [`SystemClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Hashes keys under a fixed seed, so that runs repeat. Default: a random seed.
    ///
    /// Who knows the seed can make keys that share a state: not for keys from outside.
    #[must_use]
    pub fn hash_seed(mut self, seed: (u64, u64)) -> Self {
        self.hasher = Some(KeyHasher::with_seed(seed));
        self
    }

    /// Bounds how many keys may have numbers of their own, from tiers included: each is kept for
    /// as long as it has them, and counts twice among [`Self::max_keys`], once for shadow.
    /// Default: 10 000.
    #[must_use]
    pub const fn max_overrides(mut self, max_overrides: usize) -> Self {
        self.max_overrides = max_overrides;
        self
    }

    /// Tells `observer` of every decision. Default: nobody.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Makes the limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let table = memory_limit(self.policy.clone(), self.options);
        for (name, policy) in &self.tiers {
            // `tier` has seen to it that nothing is wrong with it.
            let start = Timestamp::EPOCH.into();
            let _ = table.set_tier(name, policy, ChangeMode::KeepUsed, start);
        }
        self.build_on(table, 0)
    }

    /// Makes the limiter over a table in which so many keys have numbers of their own.
    pub(crate) fn build_on(self, table: Box<dyn MemoryLimit>, overrides: usize) -> Limiter {
        let plain = is_plain(&self.policy, self.options);
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        Limiter(Arc::new(Inner {
            name: self.name.into_boxed_str(),
            table,
            options: self.options,
            hasher: self.hasher.unwrap_or_else(KeyHasher::random),
            reading: reading_of(&clock),
            clock,
            mode: AtomicU8::new(self.mode.to_byte()),
            waiters: Arc::default(),
            plain,
            overrides: Mutex::new(overrides),
            max_overrides: self.max_overrides,
            watch: self.observer.map(Watch::new),
            successor: OnceLock::new(),
        }))
    }
}

fn reading_of(clock: &Arc<dyn Clock>) -> ReadClock {
    let clock = Arc::clone(clock);
    ReadClock::new(move || clock.now())
}

fn is_plain(policy: &Policy, options: MemoryOptions) -> bool {
    !matches!(policy, Policy::LeakyBucket(_)) && !options.charge_denied
}

/// What a mode, as a byte, means for the key with a hash.
#[inline]
pub(crate) fn reach_of(mode: u8, hash: KeyHash) -> Reach {
    match mode {
        ENFORCED => Reach::Enforced,
        OFF => Reach::Off,
        SHADOW => Reach::Shadow,
        share if (hash.get() >> 32) % 100 < u64::from(share) => Reach::Enforced,
        _ => Reach::Shadow,
    }
}

/// Where a key's state in shadow is: in a key space of its own, for what is only watched never
/// counts against anyone.
pub(crate) const fn shadow_of(hash: KeyHash) -> KeyHash {
    KeyHash::new(!hash.get())
}

impl Inner {
    /// Tells who wants to know of a decision.
    #[inline]
    pub(crate) fn tell(&self, decision: &Decision) {
        if let Some(watch) = &self.watch {
            watch.tell(&self.name, decision, self.table.events());
        }
    }

    /// Where a key's state is, and how far a decision over it reaches.
    #[inline]
    fn reach(&self, hash: KeyHash) -> (KeyHash, Reach) {
        match reach_of(self.mode.load(Ordering::Relaxed), hash) {
            Reach::Enforced => (hash, Reach::Enforced),
            reach => (shadow_of(hash), reach),
        }
    }
}

impl Limiter {
    /// An enforced limit with default settings.
    #[must_use]
    pub fn new(policy: impl Into<Policy>) -> Self {
        Self::builder(policy).build()
    }

    /// Sets a limit up.
    #[must_use]
    pub fn builder(policy: impl Into<Policy>) -> LimiterBuilder {
        let policy = policy.into();
        let name = policy.algorithm_name().to_owned();
        let options = MemoryOptions::default();
        LimiterBuilder {
            policy,
            name,
            options,
            hasher: None,
            clock: None,
            mode: Mode::Enforce,
            max_overrides: MAX_OVERRIDES,
            observer: None,
            tiers: Vec::new(),
        }
    }

    /// Takes `cost` units for a key, or nothing.
    ///
    /// A limit that has no units to take, a concurrency limit or a lockout, denies as impossible.
    pub fn try_take(&self, key: impl ToKey, cost: u32) -> Decision {
        let hash = key.hash_with(&self.latest().hasher);
        self.take_hashed(hash, cost, self.moment())
    }

    /// Takes `cost` units for a key, or nothing, at a given time.
    pub fn try_take_at(&self, key: impl ToKey, cost: u32, now: Timestamp) -> Decision {
        self.take_hashed(key.hash_with(&self.latest().hasher), cost, now.into())
    }

    /// One key, and everything else that can be done to it: reserve, refund, block and so on.
    pub fn key(&self, key: impl ToKey) -> OneKey<'_> {
        OneKey {
            limiter: self,
            hash: key.hash_with(&self.latest().hasher),
            at: None,
        }
    }

    #[inline]
    pub(crate) fn take_hashed(&self, hash: KeyHash, cost: u32, now: Moment<'_>) -> Decision {
        let inner = self.latest();
        let (hash, reach) = inner.reach(hash);
        if reach == Reach::Off {
            return self.pass(cost, now.now());
        }
        let mut decision = inner.table.take(hash, now, cost);
        decision.shadow = reach == Reach::Shadow;
        inner.tell(&decision);
        decision
    }

    /// Takes `cost` units if they are there and nobody waits for the limit: what a caller that
    /// would wait comes to, usually, without a line. None, and nothing charged, otherwise.
    pub(crate) fn take_unless_waited_for(&self, hash: KeyHash, cost: u32) -> Option<Decision> {
        let inner = self.latest();
        let (hash, reach) = inner.reach(hash);
        if !inner.plain || reach != Reach::Enforced || self.waiters().len() > 0 {
            return None;
        }
        let decision = inner.table.take(hash, self.moment(), cost);
        if !decision.is_within_limit() {
            return None;
        }
        inner.tell(&decision);
        Some(decision)
    }

    /// Answers as [`Self::try_take`] would and writes nothing.
    pub fn peek(&self, key: impl ToKey, cost: u32) -> Decision {
        self.key(key).peek(cost)
    }

    pub(crate) fn peek_hashed(&self, hash: KeyHash, cost: u32, now: Moment<'_>) -> Decision {
        match self.apply_hashed(hash, now, &Operation::peek(cost)) {
            Ok(Reply::Decision(decision)) => decision,
            _ => self.impossible(cost, now.now()),
        }
    }

    /// Applies any operation to a key at a given time.
    ///
    /// A limit that is off applies operations like one in shadow: they are harmless there.
    ///
    /// # Errors
    /// The operation has no meaning on the limit's algorithm, or its numbers are out of range.
    pub fn apply(
        &self,
        key: &Key,
        now: Timestamp,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        self.key(key).at(now).apply(operation)
    }

    pub(crate) fn apply_hashed(
        &self,
        hash: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        let inner = self.latest();
        let (hash, reach) = inner.reach(hash);
        let mut reply = self.perform(hash, now, operation)?;
        if let Reply::Decision(decision)
        | Reply::Reserved(decision, _)
        | Reply::Leased(decision, _) = &mut reply
        {
            decision.shadow = reach != Reach::Enforced;
            if reach != Reach::Off && !matches!(operation, Operation::Peek(_)) {
                inner.tell(decision);
            }
        }
        Ok(reply)
    }

    /// Adopts new numbers for all keys as of `now`, without touching any of them: each is brought
    /// up to date when it is used next. Another algorithm starts all keys afresh. Whoever waits
    /// goes on waiting under the new numbers.
    pub fn change<'a>(&self, policy: Policy, mode: ChangeMode, now: impl Into<Moment<'a>>) {
        let now = now.into();
        self.waiters()
            .around_all(self, || self.change_numbers(policy, mode, now));
    }

    fn change_numbers(&self, policy: Policy, mode: ChangeMode, now: Moment<'_>) {
        if self.table().change(&policy, mode, now) {
            return;
        }
        let latest = self.latest();
        let successor = Self(Arc::new(Inner {
            name: latest.name.clone(),
            table: memory_limit(policy.clone(), latest.options),
            options: latest.options,
            hasher: latest.hasher.clone(),
            reading: reading_of(&latest.clock),
            clock: Arc::clone(&latest.clock),
            mode: AtomicU8::new(latest.mode.load(Ordering::Acquire)),
            waiters: Arc::clone(&latest.waiters),
            plain: is_plain(&policy, latest.options),
            overrides: Mutex::new(0),
            max_overrides: latest.max_overrides,
            watch: latest.watch.as_ref().map(Watch::afresh),
            successor: OnceLock::new(),
        }));
        if latest.successor.set(successor).is_err() {
            // Another thread changed the algorithm at this moment: this change comes after it.
            self.change_numbers(policy, mode, now);
        }
    }

    /// Forgets keys that cannot be told from fresh ones: looks at `slots` more of them, from where
    /// the last call stopped. Returns how many went.
    ///
    /// New keys take the places of such keys by themselves; this is for keeping a table small
    /// that sees no new keys.
    pub fn maintain(&self, now: Timestamp, slots: usize) -> usize {
        self.table().maintain(now, slots)
    }

    /// The name of the limit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The current numbers.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.table().policy()
    }

    /// How far decisions reach.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode::from_byte(self.latest().mode.load(Ordering::Acquire))
    }

    /// Changes how far decisions reach. States in shadow and enforced ones are kept apart, so a
    /// limit that is enforced from now on starts with what it enforced before. Whoever waits for a
    /// limit that is not enforced any more passes.
    pub fn set_mode(&self, mode: Mode) {
        self.waiters().around_all(self, || {
            self.latest().mode.store(mode.to_byte(), Ordering::Release);
        });
    }

    /// What the table holds and has been through.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        self.table().stats()
    }

    /// How many keys have a state of their own.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stats().keys
    }

    /// Whether no key has a state of its own.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys that were forgotten although they could still have denied.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.stats().evicted
    }

    /// Keys whose times moved back because the clock had been corrected.
    #[must_use]
    pub fn rebased(&self) -> u64 {
        self.stats().rebased
    }

    /// The time by the limiter's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The time by the limiter's clock, as the time of a call: should the calling thread stand
    /// still before its turn at a key, the clock is read anew there.
    #[inline]
    #[must_use]
    pub fn moment(&self) -> Moment<'_> {
        self.as_of(self.now())
    }

    /// A reading of the limiter's clock, made a while ago, as the time of a call.
    #[inline]
    pub(crate) fn as_of(&self, now: Timestamp) -> Moment<'_> {
        self.0.reading.moment(now)
    }

    #[inline]
    pub(crate) fn latest(&self) -> &Inner {
        let mut latest = &self.0;
        while let Some(successor) = latest.successor.get() {
            latest = &successor.0;
        }
        latest
    }

    #[inline]
    pub(crate) fn table(&self) -> &dyn MemoryLimit {
        &*self.latest().table
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.0.waiters
    }

    /// Whether both are handles of one limiter.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.waiters, &other.0.waiters)
    }

    /// A number that tells limiters apart while they live.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0.waiters).addr()
    }

    /// The hash under which a key is enforced.
    pub(crate) fn hash(&self, key: &impl ToKey) -> KeyHash {
        key.hash_with(&self.0.hasher)
    }

    /// [`Self::locate`] of a key that was hashed before.
    pub(crate) fn reach(&self, hash: KeyHash) -> (KeyHash, Reach) {
        self.latest().reach(hash)
    }

    /// Where a key's state is, and how far a decision over it reaches.
    #[inline]
    pub(crate) fn locate(&self, key: &Key) -> (KeyHash, Reach) {
        let inner = self.latest();
        inner.reach(inner.hasher.hash(key))
    }

    /// The decision of a limit that is off.
    pub(crate) fn pass(&self, cost: u32, now: Timestamp) -> Decision {
        passing(&self.policy(), cost, now)
    }

    fn impossible(&self, cost: u32, now: Timestamp) -> Decision {
        Decision {
            verdict: Verdict::Deny(tidegate_core::Denial::Impossible),
            retry_after: Wait::NEVER,
            remaining: 0,
            shadow: false,
            ..self.pass(cost, now)
        }
    }
}

/// The decision of a limit that is off.
pub(crate) fn passing(policy: &Policy, cost: u32, now: Timestamp) -> Decision {
    let limit = with_algorithm!(policy, algorithm => limit_of(algorithm));
    Decision {
        verdict: Verdict::Allow,
        limit,
        remaining: limit,
        cost,
        delay: Wait::ZERO,
        retry_after: Wait::ZERO,
        reset_after: Wait::ZERO,
        at: now,
        binding: 0,
        shadow: true,
        source: Source::State,
    }
}

fn limit_of<A: tidegate_core::Algorithm>(algorithm: &A) -> u32 {
    algorithm.limit()
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("name", &self.name())
            .field("policy", &self.policy())
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

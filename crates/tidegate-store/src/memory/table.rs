//! All keys of one limit.
//!
//! A decision on a key that exists reads its slot, computes, and locks the slot only to write.
//! Keys come and go under the lock of their segment, so that a key never has two slots. Locks are
//! taken in one order: a segment's, then a slot's; who holds a slot waits for nothing but other
//! slots at higher addresses.

use std::sync::Arc;

use tidegate_core::{
    Algorithm, ChangeMode, Decision, Demand, Denial, Entry, Family, Operation, OperationError,
    Packed, Reply, Source, Timestamp, Verdict, Wait,
    engine::{self, Effect, Weighed},
};

use super::directory::{Directory, Sizes};
use super::generations::{Generation, Generations};
use super::moment::Moment;
use super::overflow::Overflow;
use super::overrides::{Numbers, Tiers};
use super::sealed::KeySlot;
use super::segment::Segment;
use super::slot::{Head, LockedSlot, Slot};
use super::{MemoryOptions, MemoryStats, WhenFull};
use crate::key::KeyHash;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// How many other slots a full table looks through for one that may go, per new key.
const SWEEP_WHEN_FULL: usize = 128;

/// The tag of a shared state in use.
pub(super) const SHARED: u64 = 1;

/// The table of one limit.
pub(super) struct Table<A: Algorithm> {
    pub(super) generations: Generations<A>,
    pub(super) directory: Directory,
    pub(super) overflow: Overflow,
    /// Numbers that keys may have instead of the limit's.
    pub(super) tiers: Tiers<A>,
    pub(super) options: MemoryOptions,
    /// Keys that have a slot of their own.
    pub(super) keys: AtomicUsize,
    pub(super) evicted: AtomicU64,
    pub(super) rebased: AtomicU64,
    pub(super) overflowed: AtomicU64,
    /// Where the next step of [`Self::sweep`] begins: a position in the directory and a slot.
    hand: Mutex<(usize, usize)>,
}

/// A key's entry while its slot is held, and the numbers that it is under.
pub(super) struct Held<'a, A: Algorithm> {
    entry: Kept<'a, A>,
    /// The limit's own numbers.
    pub(super) generation: &'a Generation<A>,
    /// Those of the key instead, if it has some: then it is not forgotten.
    pub(super) numbers: Option<&'a Arc<Numbers<A>>>,
}

/// What does not fit a slot.
pub(super) struct Boxed<A: Algorithm> {
    pub(super) entry: Entry<A::State>,
    pub(super) numbers: Option<Arc<Numbers<A>>>,
}

/// Where an entry is while its slot is held.
enum Kept<'a, A: Algorithm> {
    /// A copy of what lies packed in the slot: to be written back if it changes.
    Packed(Entry<A::State>),
    /// The boxed entry itself.
    Boxed(&'a mut Entry<A::State>),
}

impl<'a, A: Algorithm> Held<'a, A> {
    /// The numbers that count for the key.
    pub(super) fn algorithm(&self) -> &'a A {
        match self.numbers {
            Some(numbers) => &numbers.algorithm,
            None => &self.generation.algorithm,
        }
    }

    pub(super) fn entry(&mut self) -> &mut Entry<A::State> {
        match &mut self.entry {
            Kept::Packed(entry) => entry,
            Kept::Boxed(entry) => entry,
        }
    }

    /// Whether the key may be forgotten.
    pub(super) fn is_fresh(&mut self, now: Timestamp) -> bool {
        let algorithm = self.algorithm();
        self.numbers.is_none() && engine::is_fresh(algorithm, self.entry(), now)
    }
}

impl<A: Algorithm> Table<A> {
    pub(super) fn new(algorithm: A, options: MemoryOptions) -> Self {
        Self::with_sizes(algorithm, options, Sizes::DEFAULT)
    }

    pub(super) fn with_sizes(algorithm: A, options: MemoryOptions, sizes: Sizes) -> Self {
        Self {
            generations: Generations::new(algorithm),
            directory: Directory::new(options.max_keys, sizes),
            overflow: Overflow::new(),
            tiers: Tiers::new(),
            options,
            keys: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            rebased: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            hand: Mutex::new((0, 0)),
        }
    }

    /// Takes units, or nothing: the hot path.
    #[inline]
    pub(super) fn take(&self, key: KeyHash, now: Moment<'_>, cost: u32) -> Decision {
        if A::FAMILY == Family::Units
            && let Some(slot) = self.directory.segment(key).find(key)
            && let Some((weighed, limit)) = self.take_packed(slot, key, now.now(), cost)
        {
            return weighed.decision(limit, cost);
        }
        self.take_slowly(key, now, cost)
    }

    #[cold]
    fn take_slowly(&self, key: KeyHash, now: Moment<'_>, cost: u32) -> Decision {
        match self.apply(key, now, &Operation::take(cost)) {
            Ok(Reply::Decision(decision)) => decision,
            // There are no units to take here, ever.
            _ => Decision {
                verdict: Verdict::Deny(Denial::Impossible),
                limit: self.generations.current().algorithm.limit(),
                remaining: 0,
                cost,
                delay: Wait::ZERO,
                retry_after: Wait::NEVER,
                reset_after: Wait::ZERO,
                at: now.now(),
                binding: 0,
                shadow: false,
                source: Source::State,
            },
        }
    }

    /// A take on a state that lies in the slot itself. None where it does not, or where the slot
    /// changed meanwhile: then the long way decides.
    #[inline(always)]
    fn take_packed(
        &self,
        slot: Slot<'_>,
        key: KeyHash,
        now: Timestamp,
        cost: u32,
    ) -> Option<(Weighed, u32)> {
        let head = slot.peek()?;
        let generation = self.generations.current();
        if head.is_boxed() || head.generation() != generation.index {
            return None;
        }
        let algorithm = &generation.algorithm;
        let word = slot.word.load(Ordering::Acquire);
        let packed = Packed {
            last: head.last(),
            word,
        };
        let (weighed, charged) = engine::take_word(algorithm, packed, now, cost)?;
        if self.options.charge_denied && weighed.is_limited() {
            return None;
        }
        if !weighed.fits() || cost == 0 {
            // Nothing is to be written, if what was read belongs together.
            let same = slot.tag.load(Ordering::Acquire) == key.get() && slot.unchanged(head);
            return same.then_some((weighed, algorithm.limit()));
        }
        let mut locked = slot.try_lock(head)?;
        // The head alone cannot tell that nothing happened: its version comes round.
        if locked.tag() != key.get() || locked.word() != word {
            return None;
        }
        locked.set(
            head.next(charged.last, generation.index, false),
            charged.word,
        );
        Some((weighed, algorithm.limit()))
    }

    /// Applies any operation.
    pub(super) fn apply(
        &self,
        key: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        operation.check::<A>()?;
        loop {
            let segment = self.directory.segment(key);
            if let Some(slot) = segment.find(key) {
                let mut locked = slot.lock();
                if locked.tag() == key.get() {
                    return self.apply_locked(&mut locked, now, operation);
                }
                continue;
            }
            if let Some(reply) = self.apply_missing(segment, key, now, operation)? {
                return Ok(reply);
            }
        }
    }

    /// Applies an operation to a key that seemed to have no slot. None if it has one after all.
    fn apply_missing(
        &self,
        segment: &Segment,
        key: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Option<Reply>, OperationError> {
        let structure = lock(&segment.structure);
        if !self.is_absent(segment, key) {
            return Ok(None);
        }
        let moment = now.anew();
        let now = moment.now();
        let (mut entry, generation) = self.inherited(key, now);
        let applied = engine::execute(&generation.algorithm, &mut entry, now, operation)?;
        if applied.effect != Effect::Changed {
            return Ok(Some(applied.reply));
        }
        match self.place(segment, key, now) {
            Place::Slot(_, mut locked) => {
                keep(&mut locked, generation, entry);
                locked.set_tag(key.get());
                Ok(Some(applied.reply))
            }
            Place::Grown => Ok(None),
            Place::Full => {
                drop(structure);
                self.apply_full(key, moment, operation).map(Some)
            }
        }
    }

    /// Whether a key has no slot: looked at under its segment's lock.
    pub(super) fn is_absent(&self, segment: &Segment, key: KeyHash) -> bool {
        std::ptr::eq(self.directory.segment(key), segment) && segment.find(key).is_none()
    }

    /// What a key without a slot begins with: what it may have used of a shared bucket, while the
    /// table was full, else nothing.
    pub(super) fn inherited(
        &self,
        key: KeyHash,
        now: Timestamp,
    ) -> (Entry<A::State>, &Generation<A>) {
        if let Some(slot) = self.overflow.used(key) {
            let mut locked = slot.lock();
            if locked.tag() != 0 {
                let mut held = self.held(&mut locked);
                return (held.entry().clone(), held.generation);
            }
        }
        self.fresh(now)
    }

    /// What is kept for a key, or what one without a slot begins with, and the numbers that count
    /// for it.
    pub(super) fn copied(&self, key: KeyHash, now: Timestamp) -> (Entry<A::State>, A) {
        loop {
            let segment = self.directory.segment(key);
            if let Some(slot) = segment.find(key) {
                let mut locked = slot.lock();
                if locked.tag() == key.get() {
                    let mut held = self.held(&mut locked);
                    let algorithm = held.algorithm().clone();
                    return (held.entry().clone(), algorithm);
                }
                continue;
            }
            let _structure = lock(&segment.structure);
            if self.is_absent(segment, key) {
                let (entry, generation) = self.inherited(key, now);
                return (entry, generation.algorithm.clone());
            }
        }
    }

    fn fresh(&self, now: Timestamp) -> (Entry<A::State>, &Generation<A>) {
        let generation = self.generations.current();
        (Entry::fresh(&generation.algorithm, now), generation)
    }

    /// An operation on a new key when the table is full.
    fn apply_full(
        &self,
        key: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        if let Some(shared) = self.shared_slot(key, now.now()) {
            return self.apply_locked(&mut shared.slot.lock(), now, operation);
        }
        let now = now.now();
        let (mut entry, generation) = self.fresh(now);
        let reply = engine::apply(&generation.algorithm, &mut entry, now, operation)?;
        Ok(match reply {
            Reply::Decision(decision) => Reply::Decision(no_place(decision)),
            Reply::Reserved(decision, _) => Reply::Reserved(no_place(decision), None),
            Reply::Leased(decision, _) => Reply::Leased(no_place(decision), None),
            other => other,
        })
    }

    /// The slot that a key without a place shares with others; none where it is denied instead.
    pub(super) fn shared_slot(&self, key: KeyHash, now: Timestamp) -> Option<KeySlot<'_>> {
        if self.options.when_full == WhenFull::DenyNew {
            return None;
        }
        let slot = self.overflow.slot(key);
        let mut locked = slot.lock();
        if locked.tag() == 0 {
            let (entry, generation) = self.fresh(now);
            keep(&mut locked, generation, entry);
            locked.set_tag(SHARED);
        }
        Some(KeySlot {
            slot,
            tag: SHARED,
            made: false,
        })
    }

    /// Applies an operation to a slot that is held.
    fn apply_locked(
        &self,
        locked: &mut LockedSlot<'_>,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        let old = locked.head();
        let mut held = self.held(locked);
        let algorithm = held.algorithm();
        let now = now.against(A::last(&held.entry().state));
        let mut applied = engine::execute(algorithm, held.entry(), now, operation)?;
        if applied.rebased {
            self.rebased.fetch_add(1, Ordering::Relaxed);
        }
        if let (Operation::Take(demand), Reply::Decision(decision)) = (operation, &applied.reply)
            && self.is_punished(decision, demand)
        {
            let decision = engine::punish(algorithm, held.entry(), now, demand);
            (applied.reply, applied.effect) = (Reply::Decision(decision), Effect::Changed);
        }
        match applied.effect {
            Effect::Forgotten if held.numbers.is_none() => self.forget(locked),
            Effect::None if !applied.rebased && old.generation() == held.generation.index => {}
            _ => keep_held(locked, held),
        }
        Ok(applied.reply)
    }

    /// Whether a denial is charged all the same.
    #[inline(always)]
    fn is_punished(&self, decision: &Decision, demand: &Demand) -> bool {
        self.options.charge_denied
            && decision.verdict == Verdict::Deny(Denial::Limited)
            && matches!(demand, Demand::Take { .. })
    }

    /// The entry of a slot, under the current numbers.
    pub(super) fn held(&self, locked: &mut LockedSlot<'_>) -> Held<'_, A> {
        let (head, word) = (locked.head(), locked.word());
        let kept_under = self.generations.of(head);
        if !head.is_boxed() {
            let state = kept_under.algorithm.unpack(head.last(), word);
            let mut entry = Entry {
                state,
                blocked_until: 0,
            };
            let generation = self.generations.bring_up(&mut entry, kept_under);
            return Held {
                entry: Kept::Packed(entry),
                generation,
                numbers: None,
            };
        }
        // SAFETY: the word of a boxed head is a pointer made by `Box::into_raw` in `keep`; whoever
        // holds the slot is the only one to follow it, and `free_box` is followed by another head.
        // The references do not outlive the lock or the box: every caller is done with them when it
        // lets go of either.
        let Boxed { entry, numbers } = unsafe { &mut *(word as *mut Boxed<A>) };
        let generation = match numbers {
            Some(numbers) => {
                Numbers::bring_up(numbers, entry);
                self.generations.current()
            }
            None => self.generations.bring_up(entry, kept_under),
        };
        // What was brought up to date in place must say so, whatever becomes of the call.
        locked.set(head.next(0, generation.index, true), word);
        Held {
            entry: Kept::Boxed(entry),
            generation,
            numbers: numbers.as_ref(),
        }
    }

    /// Frees a slot that is held and in use.
    pub(super) fn forget(&self, locked: &mut LockedSlot<'_>) {
        self.free_box(locked);
        let head = locked.head();
        // Only a key's own slot counts. One key in 2^64 has the tag of shared ones, and is then
        // counted wrong by one.
        if locked.tag() != SHARED {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        locked.set_tag(0);
        locked.set(head.next(0, 0, false), 0);
    }

    pub(super) fn free_box(&self, locked: &LockedSlot<'_>) {
        if locked.head().is_boxed() {
            // SAFETY: as in `held`; the caller overwrites word and head before it lets go.
            drop(unsafe { Box::from_raw(locked.word() as *mut Boxed<A>) });
        }
    }

    /// Frees a slot if its state equals that of a key that was never seen. Returns whether.
    fn forget_if_fresh(&self, slot: Slot<'_>, now: Timestamp) -> bool {
        if slot.tag.load(Ordering::Acquire) == 0 {
            return false;
        }
        // Look before taking the lock: most keys stay.
        if let Some(head) = slot.peek()
            && !head.is_boxed()
            && head.generation() == self.generations.current().index
            && !self.packed_is_fresh(head, slot.word.load(Ordering::Acquire), now)
        {
            return false;
        }
        let mut locked = slot.lock();
        if locked.tag() == 0 {
            return false;
        }
        let mut held = self.held(&mut locked);
        let fresh = held.is_fresh(now);
        if fresh {
            self.forget(&mut locked);
        } else if locked.head().generation() != held.generation.index {
            keep_held(&mut locked, held);
        }
        fresh
    }

    fn packed_is_fresh(&self, head: Head, word: u64, now: Timestamp) -> bool {
        let algorithm = &self.generations.current().algorithm;
        let state = algorithm.unpack(head.last(), word);
        engine::is_fresh(
            algorithm,
            &Entry {
                state,
                blocked_until: 0,
            },
            now,
        )
    }

    /// Finds a free slot for a key, making room if it can. The caller holds `segment.structure`.
    pub(super) fn place<'a>(
        &self,
        segment: &'a Segment,
        key: KeyHash,
        now: Timestamp,
    ) -> Place<'a> {
        let full = self.keys.load(Ordering::Relaxed) >= self.options.max_keys;
        if let Some(slot) = segment
            .candidates(key)
            .find(|slot| self.forget_if_fresh(*slot, now))
        {
            return self.claim(slot);
        }
        if full && self.sweep(now, SWEEP_WHEN_FULL, 1) == 0 {
            return self.evict(segment, key);
        }
        match segment.free_slot(key).or_else(|| segment.make_room(key)) {
            Some(slot) => self.claim(slot),
            None if self.grow(segment, key, now) => Place::Grown,
            None => self.evict(segment, key),
        }
    }

    pub(super) fn max_keys(&self) -> usize {
        self.options.max_keys
    }

    /// Takes a free slot. Only who holds the segment's lock does, so it stays free meanwhile.
    fn claim<'a>(&self, slot: Slot<'a>) -> Place<'a> {
        let locked = slot.lock();
        self.keys.fetch_add(1, Ordering::Relaxed);
        Place::Slot(slot, locked)
    }

    /// What is left when nothing may go: the choice of the configuration.
    fn evict<'a>(&self, segment: &'a Segment, key: KeyHash) -> Place<'a> {
        if self.options.when_full != WhenFull::Evict {
            return Place::Full;
        }
        // The one that has been quiet longest, among those that a new key could replace.
        let quiet = segment
            .candidates(key)
            .filter(|slot| slot.tag.load(Ordering::Acquire) != 0)
            .filter_map(|slot| Some((self.last_seen(slot)?, slot)))
            .min_by_key(|(last, _)| *last);
        let Some((_, slot)) = quiet else {
            return Place::Full;
        };
        let mut locked = slot.lock();
        if locked.tag() != 0 {
            if self.held(&mut locked).numbers.is_some() {
                return Place::Full;
            }
            self.forget(&mut locked);
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        self.keys.fetch_add(1, Ordering::Relaxed);
        Place::Slot(slot, locked)
    }

    /// When a key was seen last; none if it must stay, for it has numbers of its own.
    fn last_seen(&self, slot: Slot<'_>) -> Option<u64> {
        let mut locked = slot.lock();
        if locked.head().is_boxed() {
            let mut held = self.held(&mut locked);
            return held.numbers.is_none().then(|| A::last(&held.entry().state));
        }
        Some(locked.head().last())
    }

    /// Makes a segment larger, or moves half of its keys to another. The caller holds
    /// `segment.structure`. False where the directory allows no more segments.
    fn grow(&self, segment: &Segment, key: KeyHash, now: Timestamp) -> bool {
        if let Some(larger) = self.directory.larger(segment) {
            let larger = self.migrate(segment, larger, |_| true, now);
            self.directory.publish(key, larger);
            return true;
        }
        let Some((sibling, bit)) = self.directory.sibling(segment) else {
            return false;
        };
        let sibling = self.migrate(segment, sibling, |hash| hash & bit != 0, now);
        let depth = sibling.depth.load(Ordering::Relaxed);
        // The pointers first: a key that moved must not be looked for in vain in both.
        self.directory
            .publish(KeyHash::new(key.get() | bit), sibling);
        segment.depth.store(depth, Ordering::Release);
        true
    }

    /// Moves the chosen keys of a segment to a new one, and forgets those that may go on the way.
    /// Each is held while it moves.
    fn migrate(
        &self,
        from: &Segment,
        mut to: Box<Segment>,
        chosen: impl Fn(u64) -> bool,
        now: Timestamp,
    ) -> Box<Segment> {
        for slot in from.slots() {
            if self.forget_if_fresh(slot, now) {
                continue;
            }
            let mut locked = slot.lock();
            let (tag, head, word) = (locked.tag(), locked.head(), locked.word());
            if tag == 0 || !chosen(tag) {
                continue;
            }
            while !to.adopt(tag, head, word) {
                to = to.doubled();
            }
            locked.set_tag(0);
            locked.set(head.next(0, 0, false), 0);
        }
        to
    }

    /// Looks at up to `slots` more slots for keys that may go, from where the last call stopped,
    /// until `enough` went; and brings what it sees under the current numbers. Returns how many
    /// went.
    pub(super) fn sweep(&self, now: Timestamp, slots: usize, enough: usize) -> usize {
        let mut hand = lock(&self.hand);
        let (mut looked, mut gone) = (0, 0);
        // At most once round, however many slots were asked for.
        let mut left = self.directory.len();
        while looked < slots && gone < enough && left > 0 {
            let (segment, after) = self.directory.share(hand.0);
            for slot in segment.slots().skip(hand.1).take(slots - looked) {
                gone += usize::from(self.forget_if_fresh(slot, now));
                looked += 1;
                hand.1 += 1;
                if gone >= enough {
                    break;
                }
            }
            if hand.1 >= segment.len() {
                left = left.saturating_sub(after - hand.0);
                *hand = (after % self.directory.len(), 0);
            }
        }
        gone
    }

    /// Adopts new numbers as of `now`.
    pub(super) fn change(&self, algorithm: A, mode: ChangeMode, now: Moment<'_>) {
        let changed_at = || now.of_change();
        self.generations
            .change(algorithm, mode, changed_at, || self.upgrade_all());
    }

    /// Brings every state under the current numbers, one slot at a time.
    fn upgrade_all(&self) {
        let upgrade = |slot: Slot<'_>| {
            let mut locked = slot.lock();
            if locked.tag() != 0 {
                let held = self.held(&mut locked);
                keep_held(&mut locked, held);
            }
        };
        let mut position = 0;
        while position < self.directory.len() {
            let segment = self.directory.share(position).0;
            // No key may come in, or move to where this has been already. Only now is it certain
            // how much of the directory the segment stands for.
            let _structure = lock(&segment.structure);
            let (same, after) = self.directory.share(position);
            if std::ptr::eq(same, segment) {
                segment.slots().for_each(upgrade);
                position = after;
            }
        }
        self.overflow.slots().for_each(upgrade);
    }

    pub(super) fn algorithm(&self) -> A {
        self.generations.current().algorithm.clone()
    }

    pub(super) fn stats(&self) -> MemoryStats {
        MemoryStats {
            keys: self.keys.load(Ordering::Relaxed),
            table_bytes: self.directory.bytes() + self.overflow.bytes(),
            evicted: self.evicted.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            rebased: self.rebased.load(Ordering::Relaxed),
        }
    }
}

pub(super) fn keep_held<A: Algorithm>(locked: &mut LockedSlot<'_>, held: Held<'_, A>) {
    match held.entry {
        Kept::Packed(entry) => keep(locked, held.generation, entry),
        Kept::Boxed(_) => {
            let (head, word) = (locked.head(), locked.word());
            locked.set(head.next(0, held.generation.index, true), word);
        }
    }
}

/// Keeps an entry in a slot that holds no box: packed if it fits, else in a box. Once in a box a
/// state stays there until it is forgotten, so that a busy key does not go back and forth.
pub(super) fn keep<A: Algorithm>(
    locked: &mut LockedSlot<'_>,
    generation: &Generation<A>,
    entry: Entry<A::State>,
) {
    let head = locked.head();
    match generation
        .algorithm
        .pack(&entry.state)
        .filter(|_| entry.blocked_until == 0)
    {
        Some(word) => {
            locked.set(
                head.next(A::last(&entry.state), generation.index, false),
                word,
            );
        }
        None => {
            let numbers = None;
            keep_boxed(locked, generation, Boxed { entry, numbers });
        }
    }
}

/// Keeps what does not fit in a slot that holds no box.
pub(super) fn keep_boxed<A: Algorithm>(
    locked: &mut LockedSlot<'_>,
    generation: &Generation<A>,
    boxed: Boxed<A>,
) {
    let word = Box::into_raw(Box::new(boxed)) as u64;
    locked.set(locked.head().next(0, generation.index, true), word);
}

/// What a fresh key would be told, but denied for want of a place.
pub(super) fn no_place(decision: Decision) -> Decision {
    // Nobody knows when a key will go; a second is soon enough to ask again.
    let wait = Wait::micros(1_000_000);
    Decision {
        verdict: Verdict::Deny(Denial::TableFull),
        remaining: 0,
        delay: Wait::ZERO,
        retry_after: wait,
        reset_after: wait,
        ..decision
    }
}

/// Where a new key may go. The caller still holds the segment.
pub(super) enum Place<'a> {
    /// Here.
    Slot(Slot<'a>, LockedSlot<'a>),
    /// The segment has changed: look again.
    Grown,
    /// Nowhere: the table is full.
    Full,
}

/// Locks, also after a thread has panicked with the lock held: what these locks guard is never
/// left half-way.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> crate::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<A: Algorithm> Drop for Table<A> {
    fn drop(&mut self) {
        let free = |slot: Slot<'_>| self.free_box(&slot.lock());
        self.directory
            .segments(|segment| segment.slots().for_each(free));
        self.overflow.slots().for_each(free);
    }
}

//! One key's place in a table: a tag, a head and a word.
//!
//! The head is the lock of the slot and the first half of the state; the word is the second half,
//! or a pointer to a state that does not fit. A tag, a word and the rest of a head change only
//! while the head is locked, and every change leaves another version in the head.

use crate::sync::{AtomicU64, Ordering, fence, pause};

/// The bits of a head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Head(pub u64);

const LAST_BITS: u32 = 53;
const GENERATION_BITS: u32 = 4;
const VERSION_BITS: u32 = 5;
const LAST: u64 = (1 << LAST_BITS) - 1;
const VERSION_SHIFT: u32 = LAST_BITS + GENERATION_BITS;
const BOXED: u64 = 1 << 62;
const LOCKED: u64 = 1 << 63;

/// How many generations of a limit's numbers a head can tell apart.
pub(super) const GENERATIONS: usize = 1 << GENERATION_BITS;

impl Head {
    /// The head that follows `self` for a state seen last at `last`.
    #[inline]
    pub(super) const fn next(self, last: u64, generation: usize, boxed: bool) -> Self {
        let version = ((self.0 >> VERSION_SHIFT) + 1) & ((1 << VERSION_BITS) - 1);
        let boxed = if boxed { BOXED } else { 0 };
        let generation = ((generation % GENERATIONS) as u64) << LAST_BITS;
        Self((last & LAST) | generation | version << VERSION_SHIFT | boxed)
    }

    #[inline]
    pub(super) const fn last(self) -> u64 {
        self.0 & LAST
    }

    #[inline]
    pub(super) const fn generation(self) -> usize {
        (self.0 >> LAST_BITS) as usize % GENERATIONS
    }

    #[inline]
    pub(super) const fn is_boxed(self) -> bool {
        self.0 & BOXED != 0
    }

    #[inline]
    pub(super) const fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }
}

/// A slot, wherever its three words lie.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub tag: &'a AtomicU64,
    pub head: &'a AtomicU64,
    pub word: &'a AtomicU64,
}

impl<'a> Slot<'a> {
    /// Waits for the lock and takes it.
    pub(super) fn lock(self) -> LockedSlot<'a> {
        let mut round = 0;
        loop {
            let head = Head(self.head.load(Ordering::Relaxed));
            if !head.is_locked()
                && let Some(locked) = self.try_lock(head)
            {
                return locked;
            }
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// Takes the lock if the head still is `head`.
    #[inline]
    pub(super) fn try_lock(self, head: Head) -> Option<LockedSlot<'a>> {
        self.head
            .compare_exchange(
                head.0,
                head.0 | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()
            .map(|_| LockedSlot { slot: self, head })
    }

    /// The head, if nobody holds the slot.
    #[inline]
    pub(super) fn peek(self) -> Option<Head> {
        let head = Head(self.head.load(Ordering::Acquire));
        (!head.is_locked()).then_some(head)
    }

    /// Whether what was read since `peek` gave `head` belongs together.
    #[inline]
    pub(super) fn unchanged(self, head: Head) -> bool {
        fence(Ordering::Acquire);
        self.head.load(Ordering::Relaxed) == head.0
    }

    /// The address, by which several slots are locked in one order.
    pub(super) fn address(self) -> usize {
        std::ptr::from_ref(self.head).addr()
    }
}

/// A slot that this thread holds; given back on drop, unchanged unless [`Self::release`]d.
pub(super) struct LockedSlot<'a> {
    slot: Slot<'a>,
    /// The head when the lock was taken, or what it is to be.
    head: Head,
}

impl LockedSlot<'_> {
    #[inline]
    pub(super) const fn head(&self) -> Head {
        self.head
    }

    #[inline]
    pub(super) fn tag(&self) -> u64 {
        self.slot.tag.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn word(&self) -> u64 {
        self.slot.word.load(Ordering::Relaxed)
    }

    /// Moves what the slot keeps to a free one. The key is in both for a moment, never in none:
    /// who finds it here waits for the lock, and then looks again.
    pub(super) fn move_to(mut self, free: Slot<'_>) {
        let mut to = free.lock();
        to.set(self.head, self.word());
        to.set_tag(self.tag());
        drop(to);
        self.set_tag(0);
        self.set(self.head.next(0, 0, false), 0);
    }

    pub(super) fn set_tag(&self, tag: u64) {
        self.slot.tag.store(tag, Ordering::Release);
    }

    /// Sets the word, and the head that the slot gets when it is given back.
    #[inline]
    pub(super) fn set(&mut self, head: Head, word: u64) {
        self.head = head;
        // Whoever reads this word and then the head again must find the head locked or newer.
        self.slot.word.store(word, Ordering::Release);
    }
}

impl Drop for LockedSlot<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.head.store(self.head.0, Ordering::Release);
    }
}

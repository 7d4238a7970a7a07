//! The numbers of a limit over time.
//!
//! A change takes effect for all keys at one moment without touching any: each slot says under
//! which generation of the numbers its state is kept, and is brought up to date when it is used
//! next, as if the change had been applied to it at its moment.

use tidegate_core::{Algorithm, ChangeMode, Entry, engine};

use super::moment::ChangedAt;
use super::slot::{GENERATIONS, Head};
use crate::sync::{AtomicPtr, Mutex, Ordering};

/// One set of numbers.
pub(super) struct Generation<A> {
    pub algorithm: A,
    /// Position in the ring, as heads write it.
    pub index: usize,
    changed_at: ChangedAt,
    mode: ChangeMode,
}

/// The current numbers, and those that slots may still be kept under.
pub(super) struct Generations<A> {
    current: AtomicPtr<Generation<A>>,
    ring: [AtomicPtr<Generation<A>>; GENERATIONS],
    /// Every generation there was. A thread may still be deciding under an old one, so they are
    /// kept until the table goes: some hundred bytes for each change of a limit.
    all: Mutex<Vec<*mut Generation<A>>>,
}

// SAFETY: the pointers are to values owned by this structure, which are only read once they are
// published; `A` itself may be shared and sent, as every `Algorithm` may.
unsafe impl<A: Algorithm> Send for Generations<A> {}
// SAFETY: as above.
unsafe impl<A: Algorithm> Sync for Generations<A> {}

impl<A: Algorithm> Generations<A> {
    pub(super) fn new(algorithm: A) -> Self {
        let first = Generation {
            algorithm,
            index: 0,
            changed_at: ChangedAt::EPOCH,
            mode: ChangeMode::KeepUsed,
        };
        let first = Box::into_raw(Box::new(first));
        let ring = std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut()));
        ring[0].store(first, Ordering::Release);
        Self {
            current: AtomicPtr::new(first),
            ring,
            all: Mutex::new(vec![first]),
        }
    }

    #[inline]
    pub(super) fn current(&self) -> &Generation<A> {
        // SAFETY: published generations are valid until `self` is dropped.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    fn at(&self, index: usize) -> Option<&Generation<A>> {
        let generation = self.ring[index % GENERATIONS].load(Ordering::Acquire);
        // SAFETY: as in `current`; null before the ring was filled once.
        unsafe { generation.as_ref() }
    }

    /// The numbers that a state with this generation in its head is kept under.
    pub(super) fn of(&self, head: Head) -> &Generation<A> {
        self.at(head.generation()).unwrap_or_else(|| self.current())
    }

    /// Brings an entry kept under `from` up to date; returns the generation it is under now.
    pub(super) fn bring_up<'a>(
        &'a self,
        entry: &mut Entry<A::State>,
        mut from: &'a Generation<A>,
    ) -> &'a Generation<A> {
        let current = self.current();
        while from.index != current.index {
            let Some(to) = self.at(from.index + 1) else {
                break;
            };
            let changed_at = to.changed_at.for_key(A::last(&entry.state));
            let (old, new) = (&from.algorithm, &to.algorithm);
            engine::reprice(old, new, entry, changed_at, to.mode);
            from = to;
        }
        from
    }

    /// Makes new numbers current as of `changed_at`. `upgrade_all` is called before a generation's place
    /// in the ring is used again: no slot may be kept under it afterwards.
    pub(super) fn change(
        &self,
        algorithm: A,
        mode: ChangeMode,
        changed_at: impl FnOnce() -> ChangedAt,
        upgrade_all: impl FnOnce(),
    ) {
        let mut all = self
            .all
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let current = self.current();
        if current.algorithm == algorithm {
            return;
        }
        let index = (current.index + 1) % GENERATIONS;
        // Twice a round: a state that was brought up to date at one of these moments is so at the
        // next, before the place of the generation it was brought up to is used again.
        if index.is_multiple_of(GENERATIONS / 2) {
            upgrade_all();
        }
        let next = Generation {
            algorithm,
            index,
            changed_at: changed_at(),
            mode,
        };
        let next = Box::into_raw(Box::new(next));
        all.push(next);
        self.ring[index].store(next, Ordering::Release);
        self.current.store(next, Ordering::Release);
    }
}

impl<A> Drop for Generations<A> {
    fn drop(&mut self) {
        let all = self
            .all
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for generation in all.drain(..) {
            // SAFETY: made by `Box::into_raw` in this structure and freed only here.
            drop(unsafe { Box::from_raw(generation) });
        }
    }
}

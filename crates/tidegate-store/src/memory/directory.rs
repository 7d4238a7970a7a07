//! The segments of a table, found by the leading bits of a key's hash.
//!
//! Extendible hashing: a full segment moves half of its keys to a new one, and only the pointers
//! of that segment's share are written again. So a table grows in steps of one segment, and no
//! call ever waits for more than one.

use super::segment::Segment;
use crate::key::KeyHash;
use crate::sync::{AtomicPtr, Mutex, Ordering};

/// How large segments are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Groups of a table's first segment, which doubles until it is full size.
    pub first: usize,
    /// Groups of the smallest full-size segment; they are up to half as large again, each of
    /// another size, so that they do not all fill up and split at the same time.
    pub full: usize,
}

impl Sizes {
    pub(super) const DEFAULT: Self = Self {
        first: 8,
        full: 256,
    };
}

/// Pointers to segments by leading bits.
pub(super) struct Directory {
    pointers: Box<[AtomicPtr<Segment>]>,
    /// Leading bits that the directory can tell apart.
    bits: u64,
    sizes: Sizes,
    /// Every segment there is or was. One that was replaced stays until the table goes, since
    /// look-ups take no part in any bookkeeping that could tell when it is out of use; all of
    /// them together are smaller than one full-size segment.
    all: Mutex<Vec<*mut Segment>>,
}

// SAFETY: the pointers are to segments owned by this structure, shared between threads only as
// `&Segment`, which is made of atomics and locks.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    /// A directory that can hold `max_keys` keys with room to spare.
    pub(super) fn new(max_keys: usize, sizes: Sizes) -> Self {
        let segments = max_keys
            .div_ceil(sizes.full * super::segment::GROUP / 2)
            .max(1);
        let bits = u64::from(segments.next_power_of_two().trailing_zeros()) + 1;
        let first = Box::into_raw(Box::new(Segment::new(sizes.first, 0)));
        let pointers = (0..1_usize << bits)
            .map(|_| AtomicPtr::new(first))
            .collect();
        Self {
            pointers,
            bits,
            sizes,
            all: Mutex::new(vec![first]),
        }
    }

    #[inline]
    fn index(&self, key: KeyHash) -> usize {
        (key.get() >> (64 - self.bits)) as usize
    }

    #[inline]
    pub(super) fn segment(&self, key: KeyHash) -> &Segment {
        self.at(self.index(key))
    }

    #[inline]
    fn at(&self, index: usize) -> &Segment {
        // SAFETY: segments are valid until `self` is dropped.
        unsafe { &*self.pointers[index].load(Ordering::Acquire) }
    }

    pub(super) fn len(&self) -> usize {
        self.pointers.len()
    }

    /// The segment at a position, and the position after its share.
    pub(super) fn share(&self, position: usize) -> (&Segment, usize) {
        let segment = self.at(position % self.len());
        let width = 1 << (self.bits - segment.depth.load(Ordering::Acquire).min(self.bits));
        (segment, position - position % width + width)
    }

    /// The larger segment that is to take over all keys of a small one, if it still is small.
    pub(super) fn larger(&self, old: &Segment) -> Option<Box<Segment>> {
        let groups = old.groups().len();
        let depth = old.depth.load(Ordering::Relaxed);
        (groups < self.sizes.full)
            .then(|| Box::new(Segment::new((groups * 2).min(self.full_size()), depth)))
    }

    /// The segment that is to take half of the keys of a full-size one, and the bit of a key's
    /// hash that says which half; none where the directory can tell no more apart.
    pub(super) fn sibling(&self, old: &Segment) -> Option<(Box<Segment>, u64)> {
        let depth = old.depth.load(Ordering::Relaxed);
        (depth < self.bits).then(|| {
            (
                Box::new(Segment::new(self.full_size(), depth + 1)),
                1 << (63 - depth),
            )
        })
    }

    /// Groups of the smallest full-size segment.
    pub(super) const fn full_groups(&self) -> usize {
        self.sizes.full
    }

    /// Whether a segment of this depth can be split.
    pub(super) const fn may_split(&self, depth: u64) -> bool {
        depth < self.bits
    }

    /// Groups of a table's first segment.
    pub(super) const fn first_groups(&self) -> usize {
        self.sizes.first
    }

    /// Sizes spread evenly between the smallest full size and half as much again.
    fn full_size(&self) -> usize {
        let made = self
            .all
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .len();
        // The golden ratio's multiples fill an interval evenly, however many there are.
        self.sizes.full + self.sizes.full * (made * 618 % 1_000) / 2_000
    }

    /// Puts `new` where `old` is now, for `key` and all keys that agree with it in the leading
    /// bits that `new` says. The caller holds `old.structure`.
    pub(super) fn publish(&self, key: KeyHash, new: Box<Segment>) {
        let width = 1_usize << (self.bits - new.depth.load(Ordering::Relaxed));
        let start = self.index(key) / width * width;
        let new = Box::into_raw(new);
        self.all
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(new);
        for pointer in &self.pointers[start..start + width] {
            pointer.store(new, Ordering::Release);
        }
    }

    /// Visits every segment there is or was.
    pub(super) fn segments(&self, mut visit: impl FnMut(&Segment)) {
        let all = self
            .all
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for segment in all.iter() {
            // SAFETY: as in `at`.
            visit(unsafe { &**segment });
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let mut bytes = size_of_val(&*self.pointers);
        self.segments(|segment| bytes += segment.bytes());
        bytes
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let all = self
            .all
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for segment in all.drain(..) {
            // SAFETY: made by `Box::into_raw` in this structure and freed only here.
            drop(unsafe { Box::from_raw(segment) });
        }
    }
}

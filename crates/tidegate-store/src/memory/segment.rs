//! A piece of a table: groups of eight slots, of which a key may lie in two.
//!
//! A look-up reads at most two groups, and a slot that is freed needs no mark, so nothing ever has
//! to be swept for look-ups to stay fast. With one key moved aside where both groups are full, a
//! segment fills to 94 % before it has to grow. The tags of a group are one cache line; a foreign key is
//! passed over without touching its state.

use super::slot::{Head, Slot};
use crate::key::KeyHash;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Slots in a group.
pub(super) const GROUP: usize = 8;

/// How many slots of a key's first group stay free while its second group has more.
const SPARE: usize = 2;

/// Eight slots: their tags in the first cache line, heads and words in the next two.
#[repr(C, align(64))]
pub(super) struct Group {
    tags: [AtomicU64; GROUP],
    states: [(AtomicU64, AtomicU64); GROUP],
}

impl Group {
    #[inline]
    pub(super) fn slot(&self, index: usize) -> Slot<'_> {
        let (head, word) = &self.states[index % GROUP];
        Slot {
            tag: &self.tags[index % GROUP],
            head,
            word,
        }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..GROUP).map(|index| self.slot(index))
    }

    fn free(&self) -> usize {
        self.tags
            .iter()
            .filter(|tag| tag.load(Ordering::Acquire) == 0)
            .count()
    }

    /// The slot with a tag: in its own place most of the time. Else all tags are looked at, in
    /// no more time than a wrongly foreseen branch would cost.
    #[inline(always)]
    fn find(&self, tag: u64) -> Option<Slot<'_>> {
        let own = own_place(tag);
        if self.tags[own].load(Ordering::Acquire) == tag {
            return Some(self.slot(own));
        }
        let found = (0..GROUP).fold(0_u32, |found, index| {
            let same = self.tags[index].load(Ordering::Acquire) == tag;
            found | u32::from(same) << index
        });
        (found != 0).then(|| self.slot(found.trailing_zeros() as usize))
    }

    /// A free slot for a tag: its own place, if that is free.
    fn free_slot(&self, tag: u64) -> Option<Slot<'_>> {
        let own = own_place(tag);
        (0..GROUP)
            .map(|index| self.slot(own ^ index))
            .find(|slot| slot.tag.load(Ordering::Acquire) == 0)
    }

    /// Asks for the states, while the tags are still on their way.
    #[inline]
    fn prefetch(&self) {
        prefetch(&self.states[0]);
        prefetch(&self.states[GROUP / 2]);
    }
}

/// Where in a group a key lies if nobody was there before it. The bits that choose it choose
/// nothing else.
#[inline(always)]
const fn own_place(tag: u64) -> usize {
    tag as usize % GROUP
}

/// A power-of-two share of the keys of a table.
pub(super) struct Segment {
    groups: Box<[Group]>,
    /// How many leading bits of their hash all keys here have in common. Changes under
    /// `structure` only.
    pub depth: AtomicU64,
    /// Held while keys come in or move out.
    pub structure: Mutex<()>,
}

impl Segment {
    pub(super) fn new(groups: usize, depth: u64) -> Self {
        Self {
            groups: empty_groups(groups),
            depth: AtomicU64::new(depth),
            structure: Mutex::new(()),
        }
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        self.groups.iter().flat_map(Group::slots)
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.groups.len() * GROUP
    }

    /// Takes a key over, while nobody else knows this segment. False if both its groups are full.
    pub(super) fn adopt(&self, tag: u64, head: Head, word: u64) -> bool {
        let key = KeyHash::new(tag);
        let Some(slot) = self.free_slot(key).or_else(|| self.make_room(key)) else {
            return false;
        };
        slot.tag.store(tag, Ordering::Relaxed);
        slot.word.store(word, Ordering::Relaxed);
        slot.head.store(head.0, Ordering::Relaxed);
        true
    }

    /// The same keys in twice the room, while nobody else knows this segment.
    pub(super) fn doubled(&self) -> Box<Self> {
        let depth = self.depth.load(Ordering::Relaxed);
        let mut groups = self.groups.len();
        loop {
            groups *= 2;
            let larger = Self::new(groups, depth);
            let all = self.slots().all(|slot| {
                let tag = slot.tag.load(Ordering::Relaxed);
                let head = Head(slot.head.load(Ordering::Relaxed));
                tag == 0 || larger.adopt(tag, head, slot.word.load(Ordering::Relaxed))
            });
            if all {
                return Box::new(larger);
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.groups)
    }

    /// The two groups of a key; they may be the same.
    #[inline]
    pub(super) fn groups_of(&self, key: KeyHash) -> (&Group, &Group) {
        (self.first(key), self.second(key))
    }

    /// The leading bits, which all keys here share, take no part in the choice.
    #[inline]
    fn first(&self, key: KeyHash) -> &Group {
        self.choose(key.get())
    }

    /// The first, mixed once more.
    #[inline]
    fn second(&self, key: KeyHash) -> &Group {
        self.choose(key.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
    }

    #[inline]
    fn choose(&self, bits: u64) -> &Group {
        let index = ((bits & 0xFFFF_FFFF) * self.groups.len() as u64) >> 32;
        &self.groups[index as usize]
    }

    /// A free slot for a key, in its first group unless that is nearly full and the second is
    /// emptier: so most look-ups end in the first group, and both fill up evenly.
    pub(super) fn free_slot(&self, key: KeyHash) -> Option<Slot<'_>> {
        let (first, second) = self.groups_of(key);
        let (in_first, in_second) = (first.free(), second.free());
        let group = if in_first > SPARE || in_first >= in_second {
            first
        } else {
            second
        };
        group.free_slot(key.get())
    }

    /// Frees a slot for a key whose groups are full, by moving one of the keys there to its other
    /// group. The caller holds `structure`, or is the only one to know the segment.
    pub(super) fn make_room(&self, key: KeyHash) -> Option<Slot<'_>> {
        let (first, second) = self.groups_of(key);
        for group in [first, second] {
            for slot in group.slots() {
                let from = slot.lock();
                if from.tag() == 0 {
                    return Some(slot);
                }
                let (one, two) = self.groups_of(KeyHash::new(from.tag()));
                let other = if std::ptr::eq(one, group) { two } else { one };
                if let Some(free) = other.free_slot(from.tag()) {
                    from.move_to(free);
                    return Some(slot);
                }
            }
        }
        None
    }

    #[inline(always)]
    pub(super) fn find(&self, key: KeyHash) -> Option<Slot<'_>> {
        let first = self.first(key);
        first.prefetch();
        first
            .find(key.get())
            .or_else(|| self.second(key).find(key.get()))
    }

    /// The slots in which a key may lie, those of its first group first.
    pub(super) fn candidates(&self, key: KeyHash) -> impl Iterator<Item = Slot<'_>> {
        let (first, second) = self.groups_of(key);
        first.slots().chain(second.slots())
    }
}

/// Asks for the cache line of a value, without waiting for it.
#[inline(always)]
fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it neither reads nor writes, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Groups whose slots are all free: all words are 0.
#[cfg(not(feature = "shuttle"))]
fn empty_groups(count: usize) -> Box<[Group]> {
    let groups = Box::<[Group]>::new_zeroed_slice(count);
    // SAFETY: a group is made of atomic integers only, for which all bytes 0 is a value. Zeroed
    // pages come from the operating system untouched, so a large segment costs nothing until its
    // slots are used.
    unsafe { groups.assume_init() }
}

#[cfg(feature = "shuttle")]
fn empty_groups(count: usize) -> Box<[Group]> {
    (0..count)
        .map(|_| Group {
            tags: std::array::from_fn(|_| AtomicU64::new(0)),
            states: std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0))),
        })
        .collect()
}

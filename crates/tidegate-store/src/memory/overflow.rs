//! The fixed set of shared states that new keys fall back to while a table is full.
//!
//! Keys that share one are denied too much, never too little; and a key that later gets a slot of
//! its own begins with what its share had used.

use std::sync::OnceLock;

use super::segment::{GROUP, Segment};
use super::slot::Slot;
use crate::key::KeyHash;

/// How many shared states there are, in groups of eight.
#[cfg(not(feature = "shuttle"))]
const GROUPS: usize = 128;
#[cfg(feature = "shuttle")]
const GROUPS: usize = 2;

/// Shared states, made when the first is needed.
pub(super) struct Overflow(OnceLock<Segment>);

impl Overflow {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The state that a key shares.
    pub(super) fn slot(&self, key: KeyHash) -> Slot<'_> {
        slot_of(self.0.get_or_init(|| Segment::new(GROUPS, 0)), key)
    }

    /// The state that a key shares, if any key has ever shared one.
    pub(super) fn used(&self, key: KeyHash) -> Option<Slot<'_>> {
        self.0.get().map(|segment| slot_of(segment, key))
    }

    /// The state of this number, for states that are read back.
    pub(super) fn numbered(&self, number: usize) -> Option<Slot<'_>> {
        (number < GROUPS * GROUP).then(|| {
            let segment = self.0.get_or_init(|| Segment::new(GROUPS, 0));
            segment.groups()[number / GROUP].slot(number % GROUP)
        })
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        self.0.get().into_iter().flat_map(Segment::slots)
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.get().map_or(0, Segment::bytes)
    }
}

fn slot_of(segment: &Segment, key: KeyHash) -> Slot<'_> {
    let index = key.get() as usize;
    segment.groups()[index / 8 % GROUPS].slot(index % 8)
}

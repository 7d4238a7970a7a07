//! Writing a table's states down; [`restoring`](super::restoring) reads them.
//!
//! After the head come records, each with its kind first. States are written under the limit's
//! numbers of that moment; where those or a tier's change meanwhile, a record says so, and what
//! was written before is re-priced when it is read.

use std::io::{self, Write};
use std::sync::Arc;

use tidegate_core::{Algorithm, Policy, Timestamp};

use super::generations::Generation;
use super::overrides::Numbers;
use super::slot::Slot;
use super::table::{Table, lock};
use crate::snapshot::{BodyWriter, PolicyWords};

/// The kinds of records.
pub(super) const END: u64 = 0;
pub(super) const KEY: u64 = 1;
pub(super) const SHARED_STATE: u64 = 2;
pub(super) const TIER: u64 = 3;
pub(super) const LIMIT: u64 = 4;

/// Which numbers a state is under: the limit's, its own, or those of a tier, counted from here in
/// the order of their records.
pub(super) const LIMITS: u64 = 0;
pub(super) const OWN: u64 = 1;
pub(super) const FIRST_TIER: u64 = 2;

/// States being written.
struct Export<'a, A: Algorithm> {
    body: BodyWriter,
    /// The numbers that states without their own are under.
    generation: Option<*const Generation<A>>,
    tiers: Vec<Arc<Numbers<A>>>,
    words: Vec<u64>,
    keys: u64,
    out: &'a mut dyn Write,
}

impl<A: Algorithm> Export<'_, A>
where
    Policy: From<A>,
{
    fn policy(&mut self, algorithm: &A) {
        self.body
            .policy(&PolicyWords::of(&algorithm.clone().into()));
    }

    fn tier(&mut self, name: &str, numbers: &Arc<Numbers<A>>) {
        self.body.word(TIER);
        self.body.text(name);
        self.policy(&numbers.algorithm);
        self.tiers.push(Arc::clone(numbers));
    }

    /// Where the numbers are among the tiers that were written; they are if they were not.
    fn tier_index(&mut self, numbers: &Arc<Numbers<A>>) -> Option<u64> {
        let name = numbers.tier.as_deref()?;
        let known =
            |tiers: &[Arc<Numbers<A>>]| tiers.iter().position(|tier| Arc::ptr_eq(tier, numbers));
        let index = known(&self.tiers).or_else(|| {
            self.tier(name, numbers);
            known(&self.tiers)
        })?;
        Some(FIRST_TIER + index as u64)
    }

    fn write(&mut self) -> io::Result<()> {
        self.out.write_all(&self.body.0)?;
        self.body.0.clear();
        Ok(())
    }
}

impl<A: Algorithm> Table<A>
where
    Policy: From<A>,
{
    /// Writes all states that are not fresh at `now`.
    pub(super) fn export(&self, now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
        let mut export = Export {
            body: BodyWriter::default(),
            generation: None,
            tiers: Vec::new(),
            words: Vec::new(),
            keys: 0,
            out,
        };
        for numbers in self.tiers.all() {
            if let Some(name) = numbers.tier.as_deref() {
                export.tier(name, &numbers);
            }
        }
        let mut position = 0;
        while position < self.directory.len() {
            let segment = self.directory.share(position).0;
            {
                // No key may come in, or move to where this has been already.
                let _structure = lock(&segment.structure);
                let (same, after) = self.directory.share(position);
                if !std::ptr::eq(same, segment) {
                    continue;
                }
                for slot in segment.slots() {
                    self.export_slot(slot, None, now, &mut export);
                }
                position = after;
            }
            export.write()?;
        }
        for (index, slot) in self.overflow.slots().enumerate() {
            self.export_slot(slot, Some(index), now, &mut export);
        }
        export.body.word(END);
        export.body.fixed(export.keys);
        export.write()
    }

    /// Writes the state of a slot; `shared` is its number if it is one for keys without a place.
    fn export_slot(
        &self,
        slot: Slot<'_>,
        shared: Option<usize>,
        now: Timestamp,
        export: &mut Export<'_, A>,
    ) {
        let mut locked = slot.lock();
        let tag = locked.tag();
        if tag == 0 {
            return;
        }
        let mut held = self.held(&mut locked);
        if held.is_fresh(now) {
            return;
        }
        let (generation, numbers) = (held.generation, held.numbers);
        if export.generation != Some(std::ptr::from_ref(generation)) {
            export.generation = Some(generation);
            export.body.word(LIMIT);
            export.policy(&generation.algorithm);
        }
        let tier = numbers.and_then(|numbers| export.tier_index(numbers));
        match shared {
            Some(index) => export.body.words(&[SHARED_STATE, index as u64]),
            None => {
                export.body.word(KEY);
                export.body.fixed(tag);
            }
        }
        match (tier, numbers) {
            (Some(tier), _) => export.body.word(tier),
            (None, Some(own)) => {
                export.body.word(OWN);
                export.policy(&own.algorithm);
            }
            (None, None) => export.body.word(LIMITS),
        }
        let entry = held.entry();
        export.body.word(entry.blocked_until);
        export.words.clear();
        A::write_state(&entry.state, &mut export.words);
        export.body.words(&export.words);
        export.keys += 1;
    }
}

//! What a decision over several keys does to the slots of one table.

use tidegate_core::{
    Algorithm, Decision, Demand, Entry, LeaseGrant, Operation, OperationError, Timestamp,
    engine::{self, Effect},
};

use super::moment::Moment;
use super::sealed::{HeldSlot, KeySlot, Slots};
use super::table::{Place, Table, keep, keep_held, lock, no_place};
use crate::key::KeyHash;
use crate::sync::Ordering;

impl<A: Algorithm> Slots for Table<A> {
    fn slot_for(&self, key: KeyHash, now: Moment<'_>) -> Option<KeySlot<'_>> {
        loop {
            let segment = self.directory.segment(key);
            if let Some(slot) = segment.find(key) {
                return Some(KeySlot {
                    slot,
                    tag: key.get(),
                    made: false,
                });
            }
            let _structure = lock(&segment.structure);
            if !self.is_absent(segment, key) {
                continue;
            }
            let now = now.anew().now();
            let (entry, generation) = self.inherited(key, now);
            match self.place(segment, key, now) {
                Place::Slot(slot, mut locked) => {
                    keep(&mut locked, generation, entry);
                    locked.set_tag(key.get());
                    return Some(KeySlot {
                        slot,
                        tag: key.get(),
                        made: true,
                    });
                }
                Place::Grown => {}
                Place::Full => return self.shared_slot(key, now),
            }
        }
    }

    fn time_for(&self, slot: &mut HeldSlot<'_>, now: Moment<'_>) -> Timestamp {
        let mut held = self.held(&mut slot.0);
        now.against(A::last(&held.entry().state))
    }

    fn assess(
        &self,
        slot: &mut HeldSlot<'_>,
        now: Timestamp,
        demand: &Demand,
    ) -> Result<Decision, OperationError> {
        Operation::Take(*demand).check::<A>()?;
        let old = slot.0.head();
        let mut held = self.held(&mut slot.0);
        let algorithm = held.algorithm();
        let (decision, rebased) = engine::assess(algorithm, held.entry(), now, demand)?;
        if rebased {
            self.rebased.fetch_add(1, Ordering::Relaxed);
        }
        if rebased || old.generation() != held.generation.index {
            keep_held(&mut slot.0, held);
        }
        Ok(decision)
    }

    fn commit(
        &self,
        slot: &mut HeldSlot<'_>,
        now: Timestamp,
        demand: &Demand,
    ) -> Option<LeaseGrant> {
        let mut held = self.held(&mut slot.0);
        let algorithm = held.algorithm();
        let (effect, grant) = engine::commit(algorithm, held.entry(), now, demand);
        if effect == Effect::Changed {
            keep_held(&mut slot.0, held);
        }
        grant
    }

    fn punish(&self, slot: &mut HeldSlot<'_>, now: Timestamp, demand: &Demand) -> Option<Decision> {
        if !self.options.charge_denied {
            return None;
        }
        let mut held = self.held(&mut slot.0);
        let algorithm = held.algorithm();
        let decision = engine::punish(algorithm, held.entry(), now, demand);
        keep_held(&mut slot.0, held);
        Some(decision)
    }

    fn deny_new(&self, now: Timestamp, demand: &Demand) -> Result<Decision, OperationError> {
        let algorithm = &self.generations.current().algorithm;
        let mut entry = Entry::fresh(algorithm, now);
        Ok(no_place(
            engine::assess(algorithm, &mut entry, now, demand)?.0,
        ))
    }

    fn discard(&self, slot: &mut HeldSlot<'_>) {
        let mut held = self.held(&mut slot.0);
        let made_at = Timestamp::from_micros(A::last(&held.entry().state));
        let untouched = made_at.map(|at| Entry::fresh(held.algorithm(), at));
        if held.numbers.is_none() && untouched.is_ok_and(|fresh| fresh == *held.entry()) {
            self.forget(&mut slot.0);
        }
    }
}

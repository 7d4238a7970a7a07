//! Giving keys numbers of their own: the part of [`Table`] that no ordinary call comes through.

use std::any::Any;
use std::sync::Arc;

use tidegate_core::{Algorithm, ChangeMode, Policy, engine, with_algorithm};

use super::moment::Moment;
use super::overrides::{KeyOverride, Numbers, Override, OverrideError};
use super::slot::LockedSlot;
use super::table::{Boxed, Place, Table, keep, keep_boxed, lock};
use crate::key::KeyHash;

impl<A: Algorithm> Table<A>
where
    Policy: From<A>,
{
    pub(super) fn set_override(
        &self,
        key: KeyHash,
        numbers: Override<'_>,
        mode: ChangeMode,
        now: Moment<'_>,
    ) -> Result<(), OverrideError> {
        let numbers = match numbers {
            Override::Numbers(policy) => Numbers::new(algorithm_of(policy)?, None),
            Override::Tier(name) => self
                .tiers
                .get(name)
                .ok_or_else(|| OverrideError::UnknownTier(name.to_owned()))?,
        };
        loop {
            let segment = self.directory.segment(key);
            if let Some(slot) = segment.find(key) {
                let mut locked = slot.lock();
                if locked.tag() == key.get() {
                    self.renumber(&mut locked, Some(numbers), mode, now);
                    return Ok(());
                }
                continue;
            }
            let _structure = lock(&segment.structure);
            if !self.is_absent(segment, key) {
                continue;
            }
            let now = now.anew();
            let (entry, generation) = self.inherited(key, now.now());
            match self.place(segment, key, now.now()) {
                Place::Slot(_, mut locked) => {
                    keep(&mut locked, generation, entry);
                    self.renumber(&mut locked, Some(numbers), mode, now);
                    locked.set_tag(key.get());
                    return Ok(());
                }
                Place::Grown => {}
                Place::Full => return Err(OverrideError::TableFull),
            }
        }
    }

    pub(super) fn clear_override(&self, key: KeyHash, mode: ChangeMode, now: Moment<'_>) -> bool {
        self.with_slot(key, |locked| {
            let overridden = self.held(locked).numbers.is_some();
            if overridden {
                self.renumber(locked, None, mode, now);
            }
            overridden
        })
        .unwrap_or(false)
    }

    pub(super) fn override_of(&self, key: KeyHash) -> Option<KeyOverride> {
        self.with_slot(key, |locked| {
            let numbers = self.held(locked).numbers?;
            Some(KeyOverride {
                tier: numbers.tier.clone(),
                policy: numbers.algorithm.clone().into(),
            })
        })
        .flatten()
    }

    pub(super) fn set_tier(
        &self,
        name: &str,
        policy: &Policy,
        mode: ChangeMode,
        now: Moment<'_>,
    ) -> Result<(), OverrideError> {
        self.tiers.set(name, algorithm_of(policy)?, mode, now);
        Ok(())
    }

    pub(super) fn tiers(&self) -> Vec<(Arc<str>, Policy)> {
        let tiers = self.tiers.all().into_iter();
        tiers
            .filter_map(|numbers| {
                let name = numbers.tier.clone()?;
                Some((name, numbers.algorithm.clone().into()))
            })
            .collect()
    }

    /// Looks at a key that has a slot.
    fn with_slot<R>(&self, key: KeyHash, look: impl FnOnce(&mut LockedSlot<'_>) -> R) -> Option<R> {
        loop {
            let segment = self.directory.segment(key);
            let Some(slot) = segment.find(key) else {
                // Under the lock: it may be on its way to another segment.
                let _structure = lock(&segment.structure);
                if self.is_absent(segment, key) {
                    return None;
                }
                continue;
            };
            let mut locked = slot.lock();
            if locked.tag() == key.get() {
                return Some(look(&mut locked));
            }
        }
    }

    /// Moves the entry of a slot that is held to other numbers; none are the limit's.
    fn renumber(
        &self,
        locked: &mut LockedSlot<'_>,
        numbers: Option<Arc<Numbers<A>>>,
        mode: ChangeMode,
        now: Moment<'_>,
    ) {
        let generation = self.generations.current();
        let mut held = self.held(locked);
        let old = held.algorithm();
        let new = match &numbers {
            Some(numbers) => &numbers.algorithm,
            None => &generation.algorithm,
        };
        // The same numbers are no change, as for a limit.
        if old != new {
            let now = now.against(A::last(&held.entry().state));
            engine::reprice(old, new, held.entry(), now, mode);
        }
        let entry = held.entry().clone();
        self.free_box(locked);
        match numbers {
            Some(_) => keep_boxed(locked, generation, Boxed { entry, numbers }),
            None => keep(locked, generation, entry),
        }
    }
}

/// The numbers in a policy, if they are for this algorithm.
pub(super) fn algorithm_of<A: Algorithm>(policy: &Policy) -> Result<A, OverrideError> {
    let same = with_algorithm!(policy, algorithm => {
        (algorithm as &dyn Any).downcast_ref::<A>().cloned()
    });
    same.ok_or(OverrideError::OtherAlgorithm {
        given: policy.algorithm_name(),
        limit: A::NAME,
    })
}

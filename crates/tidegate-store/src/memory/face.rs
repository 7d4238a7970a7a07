//! One limit's table as all others see it, whatever its algorithm.

use std::any::Any;
use std::io;
use std::sync::Arc;

use tidegate_core::{
    Algorithm, ChangeMode, Decision, Entry, Operation, OperationError, Policy, Reply, Timestamp,
    engine, with_algorithm,
};

use super::moment::Moment;
use super::overrides::{KeyOverride, Override, OverrideError};
use super::table::Table;
use super::{Forecast, Imported, MemoryEvents, MemoryLimit, MemoryStats};
use crate::key::KeyHash;
use crate::snapshot::{BodyReader, SnapshotError};
use crate::sync::Ordering;

impl<A: Algorithm> MemoryLimit for Table<A>
where
    Policy: From<A>,
{
    fn take(&self, key: KeyHash, now: Moment<'_>, cost: u32) -> Decision {
        Table::take(self, key, now, cost)
    }

    fn apply(
        &self,
        key: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        Table::apply(self, key, now, operation)
    }

    fn change(&self, policy: &Policy, mode: ChangeMode, now: Moment<'_>) -> bool {
        let same = with_algorithm!(policy, algorithm => {
            (algorithm as &dyn Any).downcast_ref::<A>().cloned()
        });
        let Some(algorithm) = same else { return false };
        Table::change(self, algorithm, mode, now);
        true
    }

    fn set_override(
        &self,
        key: KeyHash,
        numbers: Override<'_>,
        mode: ChangeMode,
        now: Moment<'_>,
    ) -> Result<(), OverrideError> {
        Table::set_override(self, key, numbers, mode, now)
    }

    fn clear_override(&self, key: KeyHash, mode: ChangeMode, now: Moment<'_>) -> bool {
        Table::clear_override(self, key, mode, now)
    }

    fn override_of(&self, key: KeyHash) -> Option<KeyOverride> {
        Table::override_of(self, key)
    }

    fn set_tier(
        &self,
        name: &str,
        policy: &Policy,
        mode: ChangeMode,
        now: Moment<'_>,
    ) -> Result<(), OverrideError> {
        Table::set_tier(self, name, policy, mode, now)
    }

    fn tiers(&self) -> Vec<(Arc<str>, Policy)> {
        Table::tiers(self)
    }

    fn export(&self, now: Timestamp, out: &mut dyn io::Write) -> io::Result<()> {
        Table::export(self, now, out)
    }

    fn import(&self, body: BodyReader<'_>, now: Timestamp) -> Result<Imported, SnapshotError> {
        Table::import(self, body, now)
    }

    fn maintain(&self, now: Timestamp, slots: usize) -> usize {
        self.sweep(now, slots, usize::MAX)
    }

    fn policy(&self) -> Policy {
        self.algorithm().into()
    }

    fn stats(&self) -> MemoryStats {
        Table::stats(self)
    }

    fn events(&self) -> MemoryEvents {
        MemoryEvents {
            evicted: self.evicted.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            rebased: self.rebased.load(Ordering::Relaxed),
        }
    }

    fn forecast(&self, key: KeyHash, now: Timestamp) -> Box<dyn Forecast> {
        let (entry, algorithm) = self.copied(key, now);
        Box::new(Copied { algorithm, entry })
    }
}

/// A key's entry outside of the table.
struct Copied<A: Algorithm> {
    algorithm: A,
    entry: Entry<A::State>,
}

impl<A: Algorithm> Forecast for Copied<A> {
    fn apply(&mut self, now: Timestamp, operation: &Operation) -> Result<Reply, OperationError> {
        engine::apply(&self.algorithm, &mut self.entry, now, operation)
    }
}

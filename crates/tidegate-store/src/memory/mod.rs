//! The store in memory.
//!
//! [`MemoryLimit`] is the face of one limit's table, the same for all algorithms; [`all_of`]
//! decides over several of them at once.

mod all_of;
mod directory;
mod face;
mod generations;
mod joint;
mod moment;
mod overflow;
mod overridden;
mod overrides;
mod restoring;
mod saving;
mod segment;
mod slot;
mod table;

use std::io;
use std::sync::Arc;

use tidegate_core::{
    ChangeMode, Decision, Demand, LeaseGrant, Operation, OperationError, Policy, Reply, Timestamp,
    with_algorithm,
};

pub use all_of::{Member, Outcome, all_of, all_of_sparing};
pub use moment::{Moment, ReadClock};
pub use overrides::{KeyOverride, Override, OverrideError};
use table::Table;

use crate::key::KeyHash;
use crate::snapshot::{BodyReader, SnapshotError};

/// What becomes of a new key when the table is full of keys that could still deny.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It shares one of a fixed set of states: it can only be denied too much.
    #[default]
    Overflow,
    /// It is denied.
    DenyNew,
    /// It takes the place of the key among its neighbours that has been quiet longest. That one
    /// is forgiven what it used, so this is counted.
    Evict,
}

/// How much a table may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The most keys that have a state of their own.
    pub max_keys: usize,
    /// What happens beyond that.
    pub when_full: WhenFull,
    /// Whether a call that the limit denies is charged all the same, into debt down to one
    /// capacity: who does not wait, waits longer. A call that can never pass is never charged.
    pub charge_denied: bool,
}

impl Default for MemoryOptions {
    /// A million keys, then overflow; denials cost nothing.
    fn default() -> Self {
        Self {
            max_keys: 1_000_000,
            when_full: WhenFull::Overflow,
            charge_denied: false,
        }
    }
}

/// What a table holds and has been through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys that have a state of their own.
    pub keys: usize,
    /// Bytes of the table itself, without states that lie outside it.
    pub table_bytes: usize,
    /// Keys that were forgotten although they could still have denied.
    pub evicted: u64,
    /// Calls of keys that found no place of their own.
    pub overflowed: u64,
    /// Keys whose times moved back because the clock had been corrected.
    pub rebased: u64,
}

/// How often a table had to do something to a key since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// As [`MemoryStats::evicted`].
    pub evicted: u64,
    /// As [`MemoryStats::overflowed`].
    pub overflowed: u64,
    /// As [`MemoryStats::rebased`].
    pub rebased: u64,
}

/// What was read into a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Keys that got a slot.
    pub keys: usize,
    /// Those among them that have numbers of their own.
    pub overridden: usize,
}

/// All keys of one limit, in memory.
///
/// All methods may be called from any number of threads. None waits for another key's caller,
/// except while a segment of some thousand keys grows or two keys of one [`all_of`] are held.
pub trait MemoryLimit: Send + Sync + sealed::Slots {
    /// Takes units, or nothing: [`Self::apply`] of a take, on the shortest way.
    ///
    /// A limit that has no units, a concurrency limit or a lockout, denies as impossible.
    fn take(&self, key: KeyHash, now: Moment<'_>, cost: u32) -> Decision;

    /// Applies one operation to one key.
    ///
    /// # Errors
    /// The operation has no meaning on the limit's algorithm, or its numbers are out of range.
    fn apply(
        &self,
        key: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError>;

    /// Adopts new numbers for all keys as of `now`. False if `policy` is another algorithm: that
    /// takes another table.
    fn change(&self, policy: &Policy, mode: ChangeMode, now: Moment<'_>) -> bool;

    /// Gives a key numbers of its own, or those of a tier, as of `now`; `mode` says what becomes of
    /// what it has used. The key is then never forgotten, and no change of the limit's numbers
    /// reaches it.
    ///
    /// # Errors
    /// The numbers are for another algorithm, no tier has the name, or a new key finds no place.
    fn set_override(
        &self,
        key: KeyHash,
        numbers: Override<'_>,
        mode: ChangeMode,
        now: Moment<'_>,
    ) -> Result<(), OverrideError>;

    /// Puts a key back under the limit's numbers as of `now`. False if it was under them.
    fn clear_override(&self, key: KeyHash, mode: ChangeMode, now: Moment<'_>) -> bool;

    /// What a key has instead of the limit's numbers.
    fn override_of(&self, key: KeyHash) -> Option<KeyOverride>;

    /// Defines a tier, or changes its numbers for all of its keys as of `now`.
    ///
    /// # Errors
    /// The numbers are for another algorithm.
    fn set_tier(
        &self,
        name: &str,
        policy: &Policy,
        mode: ChangeMode,
        now: Moment<'_>,
    ) -> Result<(), OverrideError>;

    /// The current numbers of all tiers, by name.
    fn tiers(&self) -> Vec<(Arc<str>, Policy)>;

    /// Writes all states that are not fresh at `now`, and numbers of tiers and keys. Other threads
    /// go on meanwhile: each key is written as it is at one moment, not all at the same.
    ///
    /// # Errors
    /// Those of `out`.
    fn export(&self, now: Timestamp, out: &mut dyn io::Write) -> io::Result<()>;

    /// Reads what [`Self::export`] wrote into this table, which must be new.
    ///
    /// # Errors
    /// It is not that, or too much. The table is of no use then.
    fn import(&self, body: BodyReader<'_>, now: Timestamp) -> Result<Imported, SnapshotError>;

    /// Looks at `slots` more slots for keys that may be forgotten. Returns how many went.
    fn maintain(&self, now: Timestamp, slots: usize) -> usize;

    /// The current numbers.
    fn policy(&self) -> Policy;

    /// What the table holds and has been through.
    fn stats(&self) -> MemoryStats;

    /// What of [`Self::stats`] costs next to nothing to know.
    fn events(&self) -> MemoryEvents;

    /// A copy of a key as it is, to try out what would happen to it.
    ///
    /// Takes the time and memory of copying the key's state: a few words, or for a sliding log
    /// one entry for each charge in the window.
    fn forecast(&self, key: KeyHash, now: Timestamp) -> Box<dyn Forecast>;
}

/// A copy of one key under the numbers of its limit: what is done to it happens to nobody.
pub trait Forecast: Send {
    /// Applies an operation to the copy.
    ///
    /// # Errors
    /// As [`MemoryLimit::apply`].
    fn apply(&mut self, now: Timestamp, operation: &Operation) -> Result<Reply, OperationError>;
}

pub(crate) mod sealed {
    use super::*;
    use crate::memory::slot::{LockedSlot, Slot};

    /// What [`super::all_of`] needs of a table: to hold slots still while it decides.
    pub trait Slots {
        /// The slot of a key. A new key gets one if it can, else it shares one; none where new
        /// keys are denied.
        fn slot_for(&self, key: KeyHash, now: Moment<'_>) -> Option<KeySlot<'_>>;

        /// The time of a call for a key that is held: read anew if the key has seen a later one
        /// than a reading knows.
        fn time_for(&self, slot: &mut HeldSlot<'_>, now: Moment<'_>) -> Timestamp;

        /// Decides without charging.
        fn assess(
            &self,
            slot: &mut HeldSlot<'_>,
            now: Timestamp,
            demand: &Demand,
        ) -> Result<Decision, OperationError>;

        /// Charges what [`Self::assess`] allowed.
        fn commit(
            &self,
            slot: &mut HeldSlot<'_>,
            now: Timestamp,
            demand: &Demand,
        ) -> Option<LeaseGrant>;

        /// Charges a denied demand all the same, where the limit is set to, and answers anew.
        fn punish(
            &self,
            slot: &mut HeldSlot<'_>,
            now: Timestamp,
            demand: &Demand,
        ) -> Option<Decision>;

        /// Decides for a new key that finds no place.
        fn deny_new(&self, now: Timestamp, demand: &Demand) -> Result<Decision, OperationError>;

        /// Frees a slot that [`Self::slot_for`] made and nothing was charged to.
        fn discard(&self, slot: &mut HeldSlot<'_>);
    }

    /// A slot, and the tag that it must have.
    #[derive(Clone, Copy)]
    pub struct KeySlot<'a> {
        pub(in crate::memory) slot: Slot<'a>,
        pub(in crate::memory) tag: u64,
        pub(in crate::memory) made: bool,
    }

    /// A slot that is held.
    pub struct HeldSlot<'a>(pub(in crate::memory) LockedSlot<'a>);
}

/// Makes the table of a limit.
#[must_use]
pub fn memory_limit(policy: Policy, options: MemoryOptions) -> Box<dyn MemoryLimit> {
    with_algorithm!(policy, algorithm => Box::new(Table::new(algorithm, options)))
}

//! What a store must offer to be put to the test.

use tidegate_core::{
    ChangeMode, Decision, Demand, LeaseGrant, Operation, OperationError, Policy, Reply, Timestamp,
};
use tidegate_store::{
    KeyHash, Member, MemoryLimit, MemoryOptions, all_of as memory_all_of, memory_limit,
};

use crate::model::ModelMember;

/// A store under test, with one or more limits that are called by their numbers.
///
/// Keys are numbers too: the store makes of them whatever its keys are. A store that can fail to
/// answer panics then: a test has no use for that.
pub trait Subject {
    /// Applies an operation to a key of a limit.
    ///
    /// # Errors
    /// As the store says.
    fn apply(
        &mut self,
        limit: usize,
        key: u64,
        now: Timestamp,
        operation: &Operation,
    ) -> Result<Reply, OperationError>;

    /// Gives a limit new numbers; false if they are those of another algorithm.
    fn change(&mut self, limit: usize, policy: &Policy, mode: ChangeMode, now: Timestamp) -> bool;

    /// Decides over several limits at once. None without members.
    ///
    /// # Errors
    /// As the store says.
    fn all_of(
        &mut self,
        members: &[ModelMember],
        now: Timestamp,
    ) -> Result<Option<Joint>, OperationError>;

    /// Forgets every key that the store may forget at this moment.
    fn forget(&mut self, now: Timestamp);
}

/// A store's answer to a call over several limits.
#[derive(Clone, Debug)]
pub struct Joint {
    /// The decision over the call.
    pub decision: Decision,
    /// What each member said, in order.
    pub members: Vec<Decision>,
    /// The leases granted, by member.
    pub grants: Vec<Option<LeaseGrant>>,
}

/// The memory store under test.
pub struct Memory {
    limits: Vec<Box<dyn MemoryLimit>>,
    /// Takes so far: every other one goes the short way.
    takes: usize,
}

/// Enough for the few keys of a test: none is ever without a place.
const MAX_KEYS: usize = 1024;

impl Memory {
    /// Makes a table for each policy.
    #[must_use]
    pub fn open(policies: &[Policy]) -> Self {
        let options = MemoryOptions {
            max_keys: MAX_KEYS,
            ..MemoryOptions::default()
        };
        let table = |policy: &Policy| memory_limit(policy.clone(), options);
        Self {
            limits: policies.iter().map(table).collect(),
            takes: 0,
        }
    }

    /// How many keys of a limit have a state.
    #[must_use]
    pub fn keys(&self, limit: usize) -> usize {
        self.limits[limit].stats().keys
    }
}

/// Spreads a small number over all bits, as the hash of a key does (the step of SplitMix64).
fn hash(key: u64) -> KeyHash {
    let mut bits = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash::new(bits ^ (bits >> 31))
}

impl Subject for Memory {
    fn apply(
        &mut self,
        limit: usize,
        key: u64,
        now: Timestamp,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        let table = &*self.limits[limit];
        if let (Operation::Take(Demand::Take { cost }), true) = (operation, has_units(table)) {
            self.takes += 1;
            if self.takes.is_multiple_of(2) {
                return Ok(Reply::Decision(table.take(hash(key), now.into(), *cost)));
            }
        }
        table.apply(hash(key), now.into(), operation)
    }

    fn change(&mut self, limit: usize, policy: &Policy, mode: ChangeMode, now: Timestamp) -> bool {
        self.limits[limit].change(policy, mode, now.into())
    }

    fn all_of(
        &mut self,
        members: &[ModelMember],
        now: Timestamp,
    ) -> Result<Option<Joint>, OperationError> {
        let members: Vec<Member<'_>> = members
            .iter()
            .map(|member| Member {
                limit: &*self.limits[member.limit],
                key: hash(member.key),
                demand: member.demand,
                shadow: member.shadow,
            })
            .collect();
        Ok(memory_all_of(&members, now)?.map(|outcome| Joint {
            decision: outcome.decision,
            members: outcome.members.to_vec(),
            grants: outcome.grants.to_vec(),
        }))
    }

    fn forget(&mut self, now: Timestamp) {
        for limit in &self.limits {
            limit.maintain(now, usize::MAX);
        }
    }
}

/// Whether a take has a meaning on the table: the short way has no word for an error.
fn has_units(table: &dyn MemoryLimit) -> bool {
    !matches!(table.policy(), Policy::Concurrency(_) | Policy::Lockout(_))
}

//! One limit as the scripts take it.

use tidegate_core::{ChangeMode, Policy};

use crate::{header, key};

/// A limit whose states are shared: its name, its numbers, and how they are to be applied.
///
/// What is written for a key is under the name, and says under which numbers. Where a process finds
/// other numbers than its own, it turns what was used into its own as [`Self::with_change`] says;
/// or, if those were of a later generation, it decides by what it finds. So processes that do not
/// change their numbers at the same moment never turn a state to and fro.
#[derive(Clone, Debug)]
pub struct LimitSpec {
    name: Box<str>,
    policy: Policy,
    generation: u32,
    change: ChangeMode,
    charge_denied: bool,
    header: Vec<u8>,
}

impl LimitSpec {
    /// Takes the limit's name and numbers: of generation 0, keeping what was used over changes.
    #[must_use]
    pub fn new(name: &str, policy: impl Into<Policy>) -> Self {
        let policy = policy.into();
        let header = header::of(&policy, 0);
        Self {
            name: name.into(),
            policy,
            generation: 0,
            change: ChangeMode::KeepUsed,
            charge_denied: false,
            header,
        }
    }

    /// Says which of several sets of numbers is the latest: those of a higher generation win where
    /// processes differ. Among equals the last caller does. The time at which the configuration was
    /// written, in seconds, is a good one.
    #[must_use]
    pub fn with_generation(mut self, generation: u32) -> Self {
        self.generation = generation;
        self.header = header::of(&self.policy, generation);
        self
    }

    /// Says what becomes of what a key has used under other numbers of the same algorithm, at its
    /// next use. Default: it stays used.
    #[must_use]
    pub const fn with_change(mut self, change: ChangeMode) -> Self {
        self.change = change;
        self
    }

    /// Charges calls that the limit denies all the same, into debt down to one capacity. Default:
    /// a denial costs nothing.
    #[must_use]
    pub const fn with_charge_denied(mut self, charge_denied: bool) -> Self {
        self.charge_denied = charge_denied;
        self
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limit's numbers.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Which set of numbers this is.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether denied calls are charged.
    #[must_use]
    pub const fn charges_denied(&self) -> bool {
        self.charge_denied
    }

    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    pub(crate) const fn letter(&self) -> u8 {
        key::algorithm_letter(&self.policy)
    }

    pub(crate) const fn change(&self) -> ChangeMode {
        self.change
    }

    /// How a change treats what was used, as the scripts have it.
    pub(crate) const fn change_digit(&self) -> u8 {
        match self.change {
            ChangeMode::KeepUsed => b'0',
            ChangeMode::Proportional => b'1',
            ChangeMode::KeepAvailable => b'2',
            ChangeMode::Reset => b'3',
        }
    }
}

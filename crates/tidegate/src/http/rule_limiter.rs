//! What decides for a rule: a limiter in memory, or one that other processes share.

use tidegate_core::{Policy, Timestamp};

#[cfg(feature = "valkey")]
use crate::shared::SharedLimiter;
use crate::{Limiter, Mode};

/// The limiter of a rule.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RuleLimiter {
    /// It counts in the memory of this process.
    Memory(Limiter),
    /// It counts in a store that other processes have too.
    #[cfg(feature = "valkey")]
    Shared(SharedLimiter),
}

impl RuleLimiter {
    /// The name of the limit.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Memory(limiter) => limiter.name(),
            #[cfg(feature = "valkey")]
            Self::Shared(limiter) => limiter.name(),
        }
    }

    /// The numbers in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match self {
            Self::Memory(limiter) => limiter.policy(),
            #[cfg(feature = "valkey")]
            Self::Shared(limiter) => limiter.policy().clone(),
        }
    }

    /// How far its decisions reach.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Memory(limiter) => limiter.mode(),
            #[cfg(feature = "valkey")]
            Self::Shared(limiter) => limiter.mode(),
        }
    }

    /// Changes how far its decisions reach, for all who have it.
    pub fn set_mode(&self, mode: Mode) {
        match self {
            Self::Memory(limiter) => limiter.set_mode(mode),
            #[cfg(feature = "valkey")]
            Self::Shared(limiter) => limiter.set_mode(mode),
        }
    }

    /// The time by this process's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::Memory(limiter) => limiter.now(),
            #[cfg(feature = "valkey")]
            Self::Shared(limiter) => limiter.now(),
        }
    }

    /// The limiter in memory, if it is one.
    #[must_use]
    pub const fn memory(&self) -> Option<&Limiter> {
        match self {
            Self::Memory(limiter) => Some(limiter),
            #[cfg(feature = "valkey")]
            Self::Shared(_) => None,
        }
    }

    /// The shared limiter, if it is one.
    #[cfg(feature = "valkey")]
    #[must_use]
    pub const fn shared(&self) -> Option<&SharedLimiter> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(limiter) => Some(limiter),
        }
    }
}

impl From<Limiter> for RuleLimiter {
    fn from(limiter: Limiter) -> Self {
        Self::Memory(limiter)
    }
}

#[cfg(feature = "valkey")]
impl From<SharedLimiter> for RuleLimiter {
    fn from(limiter: SharedLimiter) -> Self {
        Self::Shared(limiter)
    }
}

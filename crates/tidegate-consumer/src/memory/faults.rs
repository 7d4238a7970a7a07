//! How a queue fails, by the dice of a seed.

use super::entry_error;
use crate::queue::{EntryResult, QueueError};

/// How often what goes wrong, each from 0, never, to 1, always. Default: never.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A call is refused for coming too often; nothing is done.
    pub throttled: f64,
    /// A call fails, and nothing is done.
    pub failed: f64,
    /// A call is done, and its answer is lost.
    pub lost_reply: f64,
    /// An entry of a batch fails, and the others do not.
    pub failed_entry: f64,
    /// A message of a standard queue that is in flight already is received once more.
    pub duplicate: f64,
}

/// What is to become of a call's answer.
pub(super) enum Fate {
    Answered,
    Lost,
}

impl Fate {
    pub(super) fn answer<T>(self, answer: T) -> Result<T, QueueError> {
        match self {
            Self::Answered => Ok(answer),
            Self::Lost => Err(QueueError::NoAnswer("the connection was reset".into())),
        }
    }
}

impl Faults {
    pub(super) fn call(&self, dice: &mut fastrand::Rng) -> Result<Fate, QueueError> {
        if dice.f64() < self.throttled {
            return Err(QueueError::Throttled);
        }
        if dice.f64() < self.failed {
            return Err(QueueError::NoAnswer("internal failure".into()));
        }
        if dice.f64() < self.lost_reply {
            return Ok(Fate::Lost);
        }
        Ok(Fate::Answered)
    }

    pub(super) fn entry(&self, dice: &mut fastrand::Rng) -> EntryResult {
        if dice.f64() < self.failed_entry {
            return Err(entry_error("InternalError", "try again", false));
        }
        Ok(())
    }
}

//! What a caller gets: allow or deny, and everything that a door tells its client.

use crate::time::{Timestamp, Wait};

/// Whether a call may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The call passes and has been charged.
    Allow,
    /// The call does not pass and nothing was charged.
    Deny(Denial),
}

/// Why a call does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Denial {
    /// The limit has not enough left at this moment.
    Limited,
    /// The key is blocked: by an operator, or by a lockout after too many failures.
    Blocked,
    /// The cost is above what the limit can ever hold: waiting cannot help.
    Impossible,
    /// The store holds as many keys as it may, and the limit refuses new ones then.
    TableFull,
    /// The store gave no answer, and the limit refuses calls then.
    Fallback,
}

/// What a decision was made on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The state of the key.
    #[default]
    State,
    /// A denial of a shared store that this process remembers: the state has not been asked again,
    /// and another process may have made it better since, for a second at most.
    Remembered,
    /// The store gave no answer: what the limit does then.
    Fallback,
    /// Units that this process had taken from the shared store in advance, a moment ago: the state
    /// has not been asked again.
    Leased,
}

/// The answer to a call.
///
/// Points in time are absent on purpose: every wait counts from the moment of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call passes.
    pub verdict: Verdict,
    /// The most that the limit lets through at once: a bucket's capacity, a window's number.
    pub limit: u32,
    /// How many calls of cost 1 would still pass at this moment, after this call. Rounded down.
    pub remaining: u32,
    /// What the call asked for; what it got, for an operation that takes as much as fits.
    pub cost: u32,
    /// How long an allowed caller has to wait before it goes on: only a paced queue and a
    /// reservation ever say more than zero.
    pub delay: Wait,
    /// When the same call would pass if nothing else happened: exact from both sides. Zero when
    /// allowed.
    pub retry_after: Wait,
    /// When the limit is full again if nothing else happens.
    pub reset_after: Wait,
    /// The time that the decision was made at: later than the caller's by up to a second where
    /// the clock stepped back a little.
    pub at: Timestamp,
    /// Which member of an `all_of` decided; 0 where there was only one limit.
    pub binding: usize,
    /// Whether the limit is only watched: the verdict is noted and the call passes.
    pub shadow: bool,
    /// What it was made on.
    pub source: Source,
}

impl Decision {
    /// Whether the call passes: the limit allows it, or is only watched.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.shadow || self.is_within_limit()
    }

    /// Whether the limit allows the call, watched or not.
    #[must_use]
    pub const fn is_within_limit(&self) -> bool {
        matches!(self.verdict, Verdict::Allow)
    }
}

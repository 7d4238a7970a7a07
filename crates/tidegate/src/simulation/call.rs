//! One call of a trace: when, on which keys of which limits, what.

use smallvec::SmallVec;
use tidegate_core::{ChangeMode, Micros, Policy, Timestamp};

use super::keys::KeyNumber;
use super::timeline::Written;

/// The number of a limit within its [`Simulation`](super::Simulation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitNumber(pub(crate) u32);

impl LimitNumber {
    /// Position in a table that has one entry per limit.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The limit.
    pub limit: LimitNumber,
    /// The key within the limit.
    pub key: KeyNumber,
}

/// One call, ready to be answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When, in simulated time.
    pub at: Timestamp,
    /// Which of the traces the call stands in, counted from 0.
    pub trace: u32,
    /// The line in that trace, counted from 1.
    pub line: u64,
    /// What is asked.
    pub action: Action,
    /// Of what: several targets pass together or not at all.
    pub targets: SmallVec<[Target; 1]>,
    /// The line as a person wrote it, with what was expected; timelines only.
    pub(crate) written: Option<Box<Written>>,
}

/// What a call asks.
///
/// Rare kinds are boxed: a million calls may wait to be sorted.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Takes of each limit what a request costs there, or none.
    Request(Served),
    /// Takes so many units, or none.
    Take(u32),
    /// Answers as a take would and writes nothing.
    Peek(u32),
    /// Takes as many as fit.
    TakeUpTo(u32),
    /// Gives units back.
    Refund(u32),
    /// Charges whatever is left.
    Force(u32),
    /// A guess at a secret.
    Attempt,
    /// The guess was right.
    Success,
    /// Makes the key fresh.
    Reset,
    /// Denies everything for a while.
    Block(Micros),
    /// Lifts a block.
    Unblock,
    /// Reads what is known of the key.
    State,
    /// Asks for a lease.
    Acquire {
        /// The name of the lease.
        permit: Box<str>,
        /// How many permits it holds.
        weight: u32,
    },
    /// Extends a lease.
    Renew(Box<str>),
    /// Gives a lease back.
    Release(Box<str>),
    /// Takes now what may be used later.
    Reserve(Box<Reserve>),
    /// Replaces a reservation's cost by what was used.
    Settle(Box<Settle>),
    /// Gives a reservation back.
    Cancel(Box<str>),
    /// Changes the limit itself, for all keys.
    SetPolicy(Box<Change>),
}

/// How a request was served when its trace was written; none where the trace does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// How long it took, from its call to the end of the answer.
    pub took: Option<Micros>,
    /// The status of the answer.
    pub status: Option<u16>,
}

/// The arguments of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Units.
    pub cost: u32,
    /// The longest delay that is accepted.
    pub max_wait: Micros,
    /// The name that a later settlement or cancellation uses.
    pub name: Option<Box<str>>,
}

/// The arguments of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The name of the reservation.
    pub name: Box<str>,
    /// What was used.
    pub actual: u32,
}

/// A change of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which limit.
    pub limit: LimitNumber,
    /// What it becomes.
    pub policy: Policy,
    /// What happens to the keys that it holds.
    pub mode: ChangeMode,
    /// The policy as a header of a timeline writes it.
    pub header: Box<str>,
}

impl Call {
    /// Whether a person wrote it in a timeline, so that it may say what it expects.
    #[must_use]
    pub const fn is_written(&self) -> bool {
        self.written.is_some()
    }
}

impl Action {
    /// The word for this action in files and messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Request(_) | Self::Take(_) => "take",
            Self::Peek(_) => "peek",
            Self::TakeUpTo(_) => "take_up_to",
            Self::Refund(_) => "refund",
            Self::Force(_) => "force",
            Self::Attempt => "attempt",
            Self::Success => "success",
            Self::Reset => "reset",
            Self::Block(_) => "block",
            Self::Unblock => "unblock",
            Self::State => "state",
            Self::Acquire { .. } => "acquire",
            Self::Renew(_) => "renew",
            Self::Release(_) => "release",
            Self::Reserve(_) => "reserve",
            Self::Settle(_) => "settle",
            Self::Cancel(_) => "cancel",
            Self::SetPolicy(_) => "set_policy",
        }
    }

    /// Whether it asks for something and takes it: neither a look nor a return.
    pub(crate) const fn charges(&self) -> bool {
        matches!(
            self,
            Self::Request(_)
                | Self::Take(_)
                | Self::TakeUpTo(_)
                | Self::Force(_)
                | Self::Acquire { .. }
                | Self::Attempt
                | Self::Reserve(_)
        )
    }

    /// Whether several limits can be asked at once: only what passes together or not at all.
    pub(crate) const fn combines(&self) -> bool {
        matches!(
            self,
            Self::Request(_) | Self::Take(_) | Self::Peek(_) | Self::Acquire { .. } | Self::Attempt
        )
    }
}

/// Every word that an action can be written with.
pub(crate) const ACTIONS: [&str; 18] = [
    "take",
    "peek",
    "take_up_to",
    "refund",
    "force",
    "attempt",
    "success",
    "reset",
    "block",
    "unblock",
    "state",
    "acquire",
    "renew",
    "release",
    "reserve",
    "settle",
    "cancel",
    "set_policy",
];

/// The modes of a change of limit, by name.
pub(crate) const CHANGE_MODES: [(&str, ChangeMode); 4] = [
    ("keep_used", ChangeMode::KeepUsed),
    ("proportional", ChangeMode::Proportional),
    ("keep_available", ChangeMode::KeepAvailable),
    ("reset", ChangeMode::Reset),
];

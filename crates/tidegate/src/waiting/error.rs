//! Why a caller was not served.

use tidegate_core::{Decision, Micros, OperationError};

use crate::composition::Outcome;

/// Why a caller does not get what it asked for. Nothing was charged then, and nothing is held.
///
/// `D` is what is known: the [`Decision`] of one limit or, for an admission, the [`Outcome`] over
/// all. Its `retry_after` is the wait that would have been needed, as far as that is known.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError<D = Decision> {
    /// Not now: the answer of the methods that do not wait.
    #[error("the limit has not enough left; wait for it or ask for less")]
    Denied(D),
    /// Waiting cannot help: more was asked for than the limit ever holds, or nothing comes back.
    #[error("the limit can never allow this; ask for less or raise the limit")]
    Impossible(D),
    /// It is known now that the wait would be longer than allowed.
    #[error("the wait would be longer than {max_wait}; raise max_wait or ask for less")]
    TooLong {
        /// What is known; its `retry_after` is the wait that it takes.
        known: D,
        /// The longest wait allowed.
        max_wait: Micros,
    },
    /// The longest wait has passed: somebody else kept what was waited for.
    #[error("not served within {max_wait}; raise max_wait or the limit")]
    Elapsed {
        /// What was known last.
        known: D,
        /// The longest wait allowed.
        max_wait: Micros,
    },
    /// As many callers as may wait do so already.
    #[error("{waiting} callers wait already; raise max_waiters or shed load")]
    QueueFull {
        /// What is known.
        known: D,
        /// How many wait, for the key or for the limit, whichever is at its bound.
        waiting: usize,
    },
    /// The limit counts something else than what was asked for.
    #[error("this limit cannot be asked for that")]
    Unsupported(#[source] OperationError),
    /// An admission over no limits at all.
    #[error("an admission over no limits; name at least one member")]
    NoMembers,
}

/// Why a call over several limits was not admitted.
pub type AdmitError = WaitError<Box<Outcome>>;

impl<D> WaitError<D> {
    /// What is known of the limit, where a decision was made.
    #[must_use]
    pub const fn known(&self) -> Option<&D> {
        match self {
            Self::Denied(known)
            | Self::Impossible(known)
            | Self::TooLong { known, .. }
            | Self::Elapsed { known, .. }
            | Self::QueueFull { known, .. } => Some(known),
            Self::Unsupported(_) | Self::NoMembers => None,
        }
    }

    pub(crate) fn map<E>(self, known_as: impl FnOnce(D) -> E) -> WaitError<E> {
        match self {
            Self::Denied(known) => WaitError::Denied(known_as(known)),
            Self::Impossible(known) => WaitError::Impossible(known_as(known)),
            Self::TooLong { known, max_wait } => WaitError::TooLong {
                known: known_as(known),
                max_wait,
            },
            Self::Elapsed { known, max_wait } => WaitError::Elapsed {
                known: known_as(known),
                max_wait,
            },
            Self::QueueFull { known, waiting } => WaitError::QueueFull {
                known: known_as(known),
                waiting,
            },
            Self::Unsupported(error) => WaitError::Unsupported(error),
            Self::NoMembers => WaitError::NoMembers,
        }
    }
}

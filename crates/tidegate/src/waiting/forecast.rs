//! When callers in a line will be served, if nothing else happens.

use tidegate_core::{Denial, Operation, Timestamp, Verdict};
use tidegate_store::Forecast;

use super::charge::after;

/// What a caller has to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Its units are taken, and then it is served: later only in a paced queue.
    Served {
        charged_at: Timestamp,
        served_at: Timestamp,
    },
    /// It is refused when its turn comes: nothing will ever be enough for it.
    Never,
    /// Nobody knows.
    Unknown,
}

impl Outlook {
    pub(super) const fn served_at(self) -> Option<Timestamp> {
        match self {
            Self::Served { served_at, .. } => Some(served_at),
            Self::Never | Self::Unknown => None,
        }
    }
}

/// A copy of a key from which the callers in line have been served, one after the other.
pub(super) struct Ahead {
    copy: Box<dyn Forecast>,
    /// When the last of them is; none where nobody knows.
    until: Option<Timestamp>,
}

/// When `cost` units can be taken from `from` on, by a copy of the key.
pub(super) fn foresee(copy: &mut dyn Forecast, from: Timestamp, cost: u32) -> Outlook {
    /// A block, then a place in a queue, then its turn: more are never needed.
    const STEPS: usize = 4;
    let mut at = from;
    for _ in 0..STEPS {
        let reply = copy.apply(at, &Operation::peek(cost));
        let Some(decision) = reply.as_ref().ok().and_then(|reply| reply.decision()) else {
            return Outlook::Unknown;
        };
        let wait = match decision.verdict {
            Verdict::Allow => {
                return match after(at, decision.delay.as_micros()) {
                    Some(served_at) => Outlook::Served {
                        charged_at: at,
                        served_at,
                    },
                    None => Outlook::Never,
                };
            }
            Verdict::Deny(Denial::Impossible) => return Outlook::Never,
            Verdict::Deny(_) => decision.retry_after,
        };
        match after(at, wait.as_micros()) {
            Some(later) => at = later,
            None => return Outlook::Never,
        }
    }
    Outlook::Unknown
}

impl Ahead {
    /// Nobody served yet; the first one's turn comes at `from`.
    pub(super) fn new(copy: Box<dyn Forecast>, from: Timestamp) -> Self {
        Self {
            copy,
            until: Some(from),
        }
    }

    /// What somebody at the end of the line has to expect, who wants so many units; none where
    /// it wants something else.
    pub(super) fn last(&mut self, units: Option<u32>) -> Outlook {
        match (self.until, units) {
            (Some(until), Some(cost)) => foresee(&mut *self.copy, until, cost),
            _ => Outlook::Unknown,
        }
    }

    /// Puts somebody with such an outlook at the end of the line. Returns when its turn comes.
    pub(super) fn push(&mut self, units: Option<u32>, outlook: Outlook) -> Option<Timestamp> {
        match outlook {
            Outlook::Served {
                charged_at,
                served_at,
            } => {
                let take = Operation::take(units.unwrap_or(0));
                // It was found to fit at that time.
                let _ = self.copy.apply(charged_at, &take);
                self.until = Some(served_at);
            }
            Outlook::Never => {}
            Outlook::Unknown => self.until = None,
        }
        self.until
    }
}

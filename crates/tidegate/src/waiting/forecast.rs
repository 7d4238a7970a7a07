//! When callers in a line will be served, if nothing else happens.

use tidegate_core::{Denial, Operation, Timestamp, Verdict};
use tidegate_store::Forecast;

use super::charge::after;

/// When a caller will be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreseen {
    /// When its units are taken: before it is served only in a paced queue.
    charged_at: Timestamp,
    pub served_at: Timestamp,
}

/// A copy of a key from which the callers in line have been served, one after the other.
pub(super) struct Ahead {
    copy: Box<dyn Forecast>,
    /// When the last of them is; none where nobody knows.
    until: Option<Timestamp>,
}

/// When `cost` units can be taken from `from` on, by a copy of the key; none where it is unknown,
/// or never.
pub(super) fn foresee(copy: &mut dyn Forecast, from: Timestamp, cost: u32) -> Option<Foreseen> {
    /// A block, then a place in a queue, then its turn.
    const STEPS: usize = 4;
    let mut at = from;
    for _ in 0..STEPS {
        let reply = copy.apply(at, &Operation::peek(cost)).ok()?;
        let decision = reply.decision()?;
        match decision.verdict {
            Verdict::Allow => {
                let served_at = after(at, decision.delay.as_micros())?;
                return Some(Foreseen {
                    charged_at: at,
                    served_at,
                });
            }
            Verdict::Deny(Denial::Impossible) => return None,
            Verdict::Deny(_) => at = after(at, decision.retry_after.as_micros())?,
        }
    }
    None
}

impl Ahead {
    /// Nobody served yet; the first one's turn comes at `from`.
    pub(super) fn new(copy: Box<dyn Forecast>, from: Option<Timestamp>) -> Self {
        Self { copy, until: from }
    }

    /// When somebody at the end of the line would be served.
    pub(super) fn last(&mut self, units: Option<u32>) -> Option<Foreseen> {
        foresee(&mut *self.copy, self.until?, units?)
    }

    /// Puts somebody at the end of the line.
    pub(super) fn push(&mut self, units: Option<u32>, foreseen: Option<Foreseen>) {
        self.until = foreseen.map(|foreseen| foreseen.served_at);
        if let (Some(cost), Some(foreseen)) = (units, foreseen) {
            // It was found to fit at that time.
            let _ = self.copy.apply(foreseen.charged_at, &Operation::take(cost));
        }
    }
}

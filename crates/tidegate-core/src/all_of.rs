//! Several limits on one call: all are charged, or none.
//!
//! The decision over a call is a pure function of the decisions of its members; holding the
//! members still between looking and charging is the store's part.

use crate::decision::{Decision, Denial, Verdict};

/// The decision over a call whose members decided `members`, in order.
///
/// Denied if an enforced member denies: the binding one is then an impossible one if there is
/// one, else the one with the largest `retry_after`. Allowed otherwise: the binding one is the
/// enforced one with the smallest `remaining`. `remaining` is the smallest of all enforced
/// members either way; members in shadow bind only where there are no others. None without
/// members.
#[must_use]
pub fn combine(members: &[Decision]) -> Option<Decision> {
    let enforced = members.iter().any(|member| !member.shadow);
    let considered = || {
        members
            .iter()
            .enumerate()
            .filter(move |(_, member)| !enforced || !member.shadow)
    };
    let denied = considered()
        .filter(|(_, member)| !member.is_allowed())
        .reduce(|best, member| {
            if severity(member.1) > severity(best.1) {
                member
            } else {
                best
            }
        });
    let tightest = considered().reduce(|best, member| {
        if member.1.remaining < best.1.remaining {
            member
        } else {
            best
        }
    });
    let (_, Decision { remaining, .. }) = tightest?;
    let (binding, decision) = match denied.filter(|_| enforced) {
        Some(denied) => denied,
        None => tightest?,
    };
    let verdict = if enforced {
        decision.verdict
    } else {
        Verdict::Allow
    };
    let delay = considered().map(|(_, member)| member.delay).max()?;
    let mut combined = Decision {
        binding,
        remaining: *remaining,
        verdict,
        delay,
        ..*decision
    };
    if combined.is_allowed() {
        combined.retry_after = crate::time::Wait::ZERO;
    }
    Some(combined)
}

/// Whether the members' demands are to be charged: no enforced member denies.
#[must_use]
pub fn allows(members: &[Decision]) -> bool {
    members
        .iter()
        .all(|member| member.shadow || member.is_allowed())
}

/// What makes a denial bind before others: that it can never pass, then its wait.
fn severity(decision: &Decision) -> (bool, crate::time::Wait) {
    let impossible = decision.verdict == Verdict::Deny(Denial::Impossible);
    (impossible, decision.retry_after)
}

//! Several limits on one call: all are charged, or none.
//!
//! The decision over a call is a pure function of the decisions of its members; holding the
//! members still between looking and charging is the store's part.

use crate::decision::{Decision, Denial, Verdict};
use crate::time::Wait;

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
    let tightest = considered().min_by_key(|(_, member)| member.remaining)?;
    let denied = considered()
        .filter(|(_, member)| !member.is_allowed())
        // The first of equals, as with `remaining`.
        .rev()
        .max_by_key(|(_, member)| severity(member));
    let (binding, decision) = denied.unwrap_or(tightest);
    let delay = considered().map(|(_, member)| member.delay).max()?;
    let remaining = tightest.1.remaining;
    let (verdict, retry_after) = if decision.is_allowed() {
        (Verdict::Allow, Wait::ZERO)
    } else {
        (decision.verdict, decision.retry_after)
    };
    Some(Decision {
        binding,
        remaining,
        verdict,
        retry_after,
        delay,
        shadow: !enforced,
        ..*decision
    })
}

/// Whether the members' demands are to be charged: no enforced member denies.
#[must_use]
pub fn allows(members: &[Decision]) -> bool {
    members
        .iter()
        .all(|member| member.shadow || member.is_allowed())
}

/// What makes a denial bind before others: that it can never pass, then its wait.
fn severity(decision: &Decision) -> (bool, Wait) {
    let impossible = decision.verdict == Verdict::Deny(Denial::Impossible);
    (impossible, decision.retry_after)
}

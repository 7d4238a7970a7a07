//! One try to be admitted by several limits at once.

use smallvec::SmallVec;
use tidegate_core::{Decision, Demand, Micros, Operation, OperationError, Timestamp};
use tidegate_store::KeyHash;

use super::attempt::{Verdicts, verdict};
use super::charge::{Charge, after};
use super::error::WaitError;
use super::job::{Grant, Granted, Known, Part, Place, Step};
use crate::composition::{self, Member, Outcome};
use crate::limiter::Limiter;

pub(super) fn all(
    place: &Place,
    parts: &[Part],
    now: Timestamp,
    deadline: Option<Timestamp>,
) -> Result<Step, OperationError> {
    let members: Vec<Member<'_>> = parts.iter().map(Part::as_member).collect();
    let moment = place.limiter.as_of(now);
    let Some((outcome, keys)) = composition::decide(&members, moment, false)? else {
        return Ok(Step::Refused(WaitError::NoMembers));
    };
    let decision = outcome.decision;
    let now = moment.of(&decision);
    let known = Known {
        decision,
        members: outcome.members.to_vec(),
    };
    match verdict(&decision, now) {
        Verdicts::Now => {}
        Verdicts::Never => return Ok(Step::Refused(WaitError::Impossible(known))),
        Verdicts::At(_) => return Ok(wait_for(place, parts, known, now)),
    }
    let charges = charges(&members, &outcome, &keys);
    let Some(ready_at) = after(now, decision.delay.as_micros()) else {
        undo(parts, &charges, &keys, &outcome, now);
        return Ok(Step::Refused(WaitError::Impossible(known)));
    };
    if deadline.is_some_and(|deadline| ready_at > deadline) {
        undo(parts, &charges, &keys, &outcome, now);
        return Ok(Step::Later(ready_at, known));
    }
    let leases = parts.iter().zip(&keys).zip(&outcome.grants).enumerate();
    let leases = leases
        .filter_map(|(index, ((part, key), grant))| {
            Some(Granted::new(index, (*grant)?, &part.limiter, (*key)?))
        })
        .collect();
    Ok(Step::Granted(Grant {
        charges,
        leases,
        delay: Micros(decision.delay.as_micros().unwrap_or(0)),
        known,
    }))
}

/// Where somebody waits that is denied by some of its limits: where it stands, as long as that
/// one denies; else at the first of them in an order that is the same for all callers. So those
/// with the same limits gather in one line.
fn wait_for(place: &Place, parts: &[Part], known: Known, now: Timestamp) -> Step {
    let denied = || {
        let told = parts.iter().zip(&known.members).enumerate();
        told.filter(|(_, (_, told))| !told.is_allowed())
    };
    let here = denied()
        .filter(|(_, (part, _))| part.is_at(place))
        .filter_map(|(_, (_, told))| after(now, told.retry_after.as_micros()))
        .max();
    if let Some(again) = here {
        return Step::Later(again, known);
    }
    let first = denied().min_by_key(|(_, (part, _))| part.order());
    match first.map(|(member, _)| member) {
        Some(member) => Step::Elsewhere(member, known),
        // A call is denied by a member, or not at all.
        None => Step::Refused(WaitError::Denied(known)),
    }
}

/// What an admission has charged.
fn charges(
    members: &[Member<'_>],
    outcome: &Outcome,
    keys: &[Option<KeyHash>],
) -> SmallVec<[(Limiter, Charge); 1]> {
    let mut charges = SmallVec::new();
    for ((member, told), key) in members.iter().zip(&outcome.members).zip(keys) {
        if let Demand::Take { cost } = member.demand
            && cost > 0
            && told.is_within_limit()
            && let Some(key) = key
        {
            // Members that were summed were told of the sum; each gives its own part back.
            let told = Decision { cost, ..*told };
            charges.push((member.limiter.clone(), Charge::of(*key, &told)));
        }
    }
    charges
}

/// Takes back what was granted this moment, before anybody was told.
fn undo(
    parts: &[Part],
    charges: &[(Limiter, Charge)],
    keys: &[Option<KeyHash>],
    outcome: &Outcome,
    now: Timestamp,
) {
    for (limiter, charge) in charges {
        charge.give_back(limiter, now);
    }
    for ((part, key), grant) in parts.iter().zip(keys).zip(&outcome.grants) {
        if let (Some(key), Some(grant)) = (key, grant) {
            let release = Operation::Release { lease: grant.lease };
            // This table has just granted it, so it knows the operation.
            let now = part.limiter.as_of(now);
            let _ = part.limiter.table().apply(*key, now, &release);
        }
    }
}

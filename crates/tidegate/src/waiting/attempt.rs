//! One try to get what a caller waits for.

use tidegate_core::{
    Decision, Demand, Denial, LeaseId, MAX_PERIOD, Micros, Operation, OperationError, Policy,
    Reply, Timestamp, Verdict,
};
use tidegate_store::{KeyHash, MemoryLimit};

use super::charge::{Charge, after};
use super::error::WaitError;
use super::job::{Booking, Grant, Granted, Known, Place, Step};
use crate::limiter::{Limiter, Reach};

pub(super) fn units(
    place: &Place,
    cost: u32,
    now: Timestamp,
    deadline: Option<Timestamp>,
) -> Result<Step, OperationError> {
    let (decision, charge) = take_units(place, cost, now, deadline)?;
    let now = place.limiter.as_of(now).of(&decision);
    let Some(charge) = charge else {
        return Ok(match verdict(&decision, now) {
            Verdicts::Now => Step::Granted(Grant::of(decision)),
            Verdicts::At(at) => Step::Later(at, Known::of(decision)),
            Verdicts::Never => Step::Refused(WaitError::Impossible(Known::of(decision))),
        });
    };
    let Some(ready_at) = after(now, decision.delay.as_micros()) else {
        charge.give_back(&place.limiter, now);
        return Ok(Step::Refused(WaitError::Impossible(Known::of(decision))));
    };
    let booking = Booking {
        charge,
        ready_at,
        decision,
    };
    Ok(booking.into_step(place, now, deadline))
}

pub(super) fn permits(
    place: &Place,
    lease: LeaseId,
    weight: u32,
    now: Timestamp,
) -> Result<Step, OperationError> {
    let (key, reach) = place.limiter.reach(place.hash);
    if reach == Reach::Off {
        return Ok(Step::Granted(Grant::of(place.limiter.pass(weight, now))));
    }
    let acquire = Operation::Take(Demand::Acquire { lease, weight });
    let moment = place.limiter.as_of(now);
    let reply = place.limiter.table().apply(key, moment, &acquire)?;
    let (mut decision, granted) = match reply {
        Reply::Leased(decision, granted) => (decision, granted),
        _ => (place.limiter.pass(weight, now), None),
    };
    decision.shadow = reach == Reach::Shadow;
    let now = moment.of(&decision);
    Ok(match verdict(&decision, now) {
        Verdicts::Now => {
            let granted = granted.map(|grant| Granted::new(0, grant, &place.limiter, key));
            Step::Granted(Grant {
                leases: granted.into_iter().collect(),
                ..Grant::of(decision)
            })
        }
        Verdicts::At(at) => Step::Later(at, Known::of(decision)),
        Verdicts::Never => Step::Refused(WaitError::Impossible(Known::of(decision))),
    })
}

/// Takes units, or books them for use until `deadline` where the limit lends from the future. The
/// decision alone where nothing was charged: because it is denied, or not enforced for the key.
fn take_units(
    place: &Place,
    cost: u32,
    now: Timestamp,
    deadline: Option<Timestamp>,
) -> Result<(Decision, Option<Charge>), OperationError> {
    let (key, reach) = place.limiter.reach(place.hash);
    if reach == Reach::Off {
        return Ok((place.limiter.pass(cost, now), None));
    }
    let (table, moment) = (place.limiter.table(), place.limiter.as_of(now));
    let reserve = |max_wait| {
        let reply = table.apply(key, moment, &Operation::Reserve { cost, max_wait })?;
        let decision = reply.decision().copied();
        // A reservation is always answered by a decision.
        Ok(decision.unwrap_or_else(|| place.limiter.pass(cost, now)))
    };
    let mut decision: Decision = reserve(Micros::ZERO)?;
    if reach == Reach::Shadow {
        decision.shadow = true;
        return Ok((decision, None));
    }
    if !decision.is_within_limit()
        && let Some(max_wait) = lends(&table.policy(), deadline, now)
    {
        decision = reserve(max_wait)?;
    }
    let charge = decision
        .is_within_limit()
        .then(|| Charge::of(key, &decision));
    Ok((decision, charge))
}

/// How far ahead units may be booked; none where they must be taken at their time.
fn lends(policy: &Policy, deadline: Option<Timestamp>, now: Timestamp) -> Option<Micros> {
    match policy {
        Policy::TokenBucket(_) => Some(deadline.map_or(MAX_PERIOD, |deadline| {
            Micros(deadline.as_micros().saturating_sub(now.as_micros()))
        })),
        // A shorter wait would make a cost above the burst look impossible.
        Policy::LeakyBucket(_) => Some(MAX_PERIOD),
        _ => None,
    }
}

/// What a decision means for somebody who waits.
pub(super) enum Verdicts {
    Now,
    At(Timestamp),
    Never,
}

pub(super) fn verdict(decision: &Decision, now: Timestamp) -> Verdicts {
    match decision.verdict {
        _ if decision.is_allowed() => Verdicts::Now,
        Verdict::Deny(Denial::Impossible) => Verdicts::Never,
        _ => match after(now, decision.retry_after.as_micros()) {
            None => Verdicts::Never,
            Some(at) => Verdicts::At(at),
        },
    }
}

pub(super) fn peek(
    limiter: &Limiter,
    key: KeyHash,
    reach: Reach,
    demand: &Demand,
    cost: u32,
    now: Timestamp,
) -> Result<Decision, OperationError> {
    if reach == Reach::Off {
        return Ok(limiter.pass(cost, now));
    }
    let table: &dyn MemoryLimit = limiter.table();
    let peek = Operation::Peek(*demand);
    let reply = table.apply(key, limiter.as_of(now), &peek)?;
    let mut decision = reply
        .decision()
        .copied()
        .unwrap_or_else(|| limiter.pass(cost, now));
    decision.shadow = reach == Reach::Shadow;
    Ok(decision)
}

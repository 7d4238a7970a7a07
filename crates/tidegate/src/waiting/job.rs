//! What a caller waits for, and one try to get it.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Decision, Demand, Denial, LeaseGrant, LeaseId, MAX_PERIOD, Micros, Operation, OperationError,
    Policy, Reply, Timestamp, Verdict, Wait,
};
use tidegate_store::{Key, KeyHash, MemoryLimit};

use super::charge::{Charge, after};
use super::error::WaitError;
use super::forecast::foresee;
use crate::composition::{self, Member, Outcome};
use crate::lease::Lease;
use crate::limiter::{Limiter, Reach};

/// One key of one limit: where callers stand in line. The hash is that of the enforced key.
#[derive(Clone)]
pub(crate) struct Place {
    pub limiter: Limiter,
    pub hash: KeyHash,
}

/// What a caller waits for.
#[derive(Clone)]
pub(crate) enum Want {
    /// Units of a rate, window, bucket or queue.
    Units(u32),
    /// A lease.
    Permits { lease: LeaseId, weight: u32 },
    /// All of several, or nothing.
    All(Arc<[Part]>),
}

/// One member of an admission that waits.
pub(crate) struct Part {
    pub limiter: Limiter,
    pub key: Key,
    pub demand: Demand,
}

/// What is known of a caller's chances.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub decision: Decision,
    /// Of each member of an admission; else empty.
    pub members: Vec<Decision>,
}

pub(crate) type Refusal = WaitError<Known>;

/// What a caller gets.
pub(crate) struct Grant {
    pub known: Known,
    /// What is to be given back if the caller has gone.
    pub charges: SmallVec<[(Limiter, Charge); 1]>,
    pub leases: Vec<Granted>,
    /// How much longer the caller has to wait for its turn in a paced queue.
    pub delay: Micros,
}

/// A lease that was granted.
#[derive(Debug)]
pub(crate) struct Granted {
    /// For which member; 0 where there is only one.
    pub member: usize,
    pub lease: Lease,
    limiter: Limiter,
    key: KeyHash,
}

impl Granted {
    fn new(member: usize, grant: LeaseGrant, limiter: &Limiter, key: KeyHash) -> Self {
        Self {
            member,
            lease: Lease::in_memory(grant, limiter, key),
            limiter: limiter.clone(),
            key,
        }
    }

    /// Frees its permits and serves nobody yet: that is done when the lease is dropped.
    pub(crate) fn free(&self) {
        let release = Operation::Release {
            lease: self.lease.id(),
        };
        // Where it is lost, or the algorithm has changed, there is nothing to free.
        let _ = self
            .limiter
            .table()
            .apply(self.key, self.limiter.now(), &release);
    }
}

/// Units that were charged ahead, so that nobody can take them while their owner sleeps.
pub(crate) struct Booking {
    pub charge: Charge,
    pub ready_at: Timestamp,
    pub decision: Decision,
}

/// What came of a try.
pub(crate) enum Step {
    Granted(Grant),
    /// Charged, for use at its time.
    Booked(Booking),
    /// Not now: to be tried again at that time.
    Later(Timestamp, Known),
    /// Not now, because of this member, which has a line of its own.
    Elsewhere(usize, Known),
    Refused(Refusal),
}

/// What a decision means for somebody who waits.
enum Verdicts {
    Now,
    At(Timestamp),
    Never,
}

fn verdict(decision: &Decision, now: Timestamp) -> Verdicts {
    match decision.verdict {
        _ if decision.is_allowed() => Verdicts::Now,
        Verdict::Deny(Denial::Impossible) => Verdicts::Never,
        _ => match after(now, decision.retry_after.as_micros()) {
            None => Verdicts::Never,
            Some(at) => Verdicts::At(at),
        },
    }
}

impl Booking {
    /// The decision as if the units had been taken at the moment they could be used.
    fn grant(self, place: &Place) -> Grant {
        let delay = self.decision.delay.as_micros().unwrap_or(0);
        let reset_after = match self.decision.reset_after.as_micros() {
            Some(reset) => Wait::micros(reset.saturating_sub(delay)),
            None => Wait::NEVER,
        };
        let decision = Decision {
            delay: Wait::ZERO,
            reset_after,
            at: self.ready_at,
            ..self.decision
        };
        Grant {
            charges: SmallVec::from_iter([(place.limiter.clone(), self.charge)]),
            ..Grant::of(decision)
        }
    }

    /// What becomes of it by now.
    pub(crate) fn into_step(
        self,
        place: &Place,
        now: Timestamp,
        deadline: Option<Timestamp>,
    ) -> Step {
        if self.ready_at > now {
            return Step::Booked(self);
        }
        let table = place.limiter.table();
        match self.charge.renewed_at(table, self.ready_at, now) {
            None => Step::Granted(self.grant(place)),
            Some(Some((decision, charge))) => Step::Granted(Grant {
                charges: SmallVec::from_iter([(place.limiter.clone(), charge)]),
                ..Grant::of(decision)
            }),
            // Somebody was quicker than this thread between two instructions.
            Some(None) => Want::Units(self.charge.reservation.cost).attempt(place, now, deadline),
        }
    }
}

impl Grant {
    pub(crate) fn of(decision: Decision) -> Self {
        Self {
            known: Known::of(decision),
            charges: SmallVec::new(),
            leases: Vec::new(),
            delay: Micros::ZERO,
        }
    }

    /// Undoes it all: the caller has gone. No line may be held meanwhile.
    pub(crate) fn give_back(self) {
        for (limiter, charge) in self.charges {
            limiter.waiters().around(&limiter, charge.key, || {
                charge.give_back(limiter.table(), limiter.now());
            });
        }
        for held in &self.leases {
            held.free();
        }
    }
}

impl Known {
    pub(crate) const fn of(decision: Decision) -> Self {
        let members = Vec::new();
        Self { decision, members }
    }

    /// The same, but denied until `at`.
    pub(crate) fn denied_until(mut self, at: Timestamp, now: Timestamp) -> Self {
        let wait = at.as_micros().saturating_sub(now.as_micros());
        self.decision.retry_after = Wait::micros(wait);
        if self.decision.is_within_limit() {
            self.decision.verdict = Verdict::Deny(Denial::Limited);
        }
        self
    }
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
    let table = place.limiter.table();
    let reserve = |max_wait| {
        let reply = table.apply(key, now, &Operation::Reserve { cost, max_wait })?;
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
///
/// An interval bucket could lend too, but what comes back in one piece pays for more than the
/// debt: who is lent units and those who find the bucket full then would be more than it holds.
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

impl Want {
    /// Tries to get it now. `deadline` is the last moment at which units may be used.
    pub(crate) fn attempt(
        &self,
        place: &Place,
        now: Timestamp,
        deadline: Option<Timestamp>,
    ) -> Step {
        let tried = match self {
            Self::Units(cost) => units(place, *cost, now, deadline),
            Self::Permits { lease, weight } => permits(place, *lease, *weight, now),
            Self::All(parts) => all(place, parts, now, deadline),
        };
        tried.unwrap_or_else(|error| Step::Refused(WaitError::Unsupported(error)))
    }

    /// What is known of it, without charging anything.
    pub(crate) fn peek(&self, place: &Place, now: Timestamp) -> Result<Known, OperationError> {
        let one = |demand: Demand, cost: u32| {
            let (key, reach) = place.limiter.reach(place.hash);
            peek(&place.limiter, key, reach, &demand, cost, now).map(Known::of)
        };
        match self {
            Self::Units(cost) => one(Demand::Take { cost: *cost }, *cost),
            Self::Permits { lease, weight } => {
                let (lease, weight) = (*lease, *weight);
                one(Demand::Acquire { lease, weight }, weight)
            }
            Self::All(parts) => {
                let members = parts
                    .iter()
                    .map(|part| {
                        let (key, reach) = part.limiter.locate(&part.key);
                        peek(&part.limiter, key, reach, &part.demand, 0, now)
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                let decision = tidegate_core::all_of::combine(&members);
                let decision = decision.unwrap_or_else(|| place.limiter.pass(0, now));
                Ok(Known { decision, members })
            }
        }
    }

    /// The earliest moment at which it could be served, by what came of a try; none where that may
    /// be any moment, because leases may be given back. It is tried again at `again`.
    pub(crate) fn earliest(
        &self,
        place: &Place,
        known: &Known,
        now: Timestamp,
        again: Timestamp,
    ) -> Option<Timestamp> {
        match self {
            Self::Units(cost) => {
                let mut copy = place.limiter.table().forecast(place.hash, now);
                foresee(&mut *copy, now, *cost)
                    .served_at()
                    .map(|served_at| served_at.max(again))
            }
            Self::Permits { .. } => None,
            Self::All(parts) => parts
                .iter()
                .zip(&known.members)
                .filter(|(part, told)| matches!(part.demand, Demand::Take { .. }) && !told.shadow)
                .filter_map(|(_, told)| after(now, told.retry_after.max(told.delay).as_micros()))
                .max(),
        }
    }

    /// Units that this will take of a place when its turn comes; none where it is a matter of
    /// leases or guesses, whose times nobody can foretell.
    pub(crate) fn units_at(&self, place: &Place) -> Option<u32> {
        match self {
            Self::Units(cost) => Some(*cost),
            Self::Permits { .. } => None,
            Self::All(parts) => parts
                .iter()
                .filter(|part| part.is_at(place))
                .map(|part| match part.demand {
                    Demand::Take { cost } => Some(cost),
                    _ => None,
                })
                .try_fold(0_u32, |sum, cost| Some(sum.saturating_add(cost?))),
        }
    }
}

impl Part {
    /// Where it stands in line.
    pub(crate) fn place(&self) -> Place {
        Place {
            limiter: self.limiter.clone(),
            hash: self.limiter.hash(&self.key),
        }
    }

    /// Its place among all lines there are: the same for every caller.
    pub(crate) fn order(&self) -> (usize, u64) {
        let hash = self.limiter.hash(&self.key);
        (self.limiter.address(), hash.get())
    }

    /// Whether it wants permits that others stand in line for: what is free then is theirs.
    pub(crate) fn is_waited_for(&self) -> bool {
        let waiters = self.limiter.waiters();
        matches!(self.demand, Demand::Acquire { .. })
            && waiters.is_busy(self.limiter.hash(&self.key))
    }

    fn is_at(&self, place: &Place) -> bool {
        self.limiter.is_same(&place.limiter) && self.limiter.hash(&self.key) == place.hash
    }

    pub(crate) fn as_member(&self) -> Member<'_> {
        Member {
            limiter: &self.limiter,
            key: &self.key,
            demand: self.demand,
        }
    }
}

fn units(
    place: &Place,
    cost: u32,
    now: Timestamp,
    deadline: Option<Timestamp>,
) -> Result<Step, OperationError> {
    let (decision, charge) = take_units(place, cost, now, deadline)?;
    let Some(charge) = charge else {
        return Ok(match verdict(&decision, now) {
            Verdicts::Now => Step::Granted(Grant::of(decision)),
            Verdicts::At(at) => Step::Later(at, Known::of(decision)),
            Verdicts::Never => Step::Refused(WaitError::Impossible(Known::of(decision))),
        });
    };
    let Some(ready_at) = after(now, decision.delay.as_micros()) else {
        charge.give_back(place.limiter.table(), now);
        return Ok(Step::Refused(WaitError::Impossible(Known::of(decision))));
    };
    let booking = Booking {
        charge,
        ready_at,
        decision,
    };
    Ok(booking.into_step(place, now, deadline))
}

fn permits(
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
    let reply = place.limiter.table().apply(key, now, &acquire)?;
    let (mut decision, granted) = match reply {
        Reply::Leased(decision, granted) => (decision, granted),
        _ => (place.limiter.pass(weight, now), None),
    };
    decision.shadow = reach == Reach::Shadow;
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

fn all(
    place: &Place,
    parts: &[Part],
    now: Timestamp,
    deadline: Option<Timestamp>,
) -> Result<Step, OperationError> {
    let members: Vec<Member<'_>> = parts.iter().map(Part::as_member).collect();
    let Some((outcome, keys)) = composition::decide(&members, now, false)? else {
        return Ok(Step::Refused(WaitError::NoMembers));
    };
    let decision = outcome.decision;
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

/// Tells of each member of a call what it has decided: where the call was denied, only those that
/// denied have.
pub(crate) fn tell_members(parts: &[Part], known: &Known) {
    let allowed = known.decision.is_allowed();
    for (part, decision) in parts.iter().zip(&known.members) {
        let is_off = part.limiter.locate(&part.key).1 == Reach::Off;
        if !is_off && (allowed || !decision.is_within_limit()) {
            part.limiter.latest().tell(decision);
        }
    }
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
        charge.give_back(limiter.table(), now);
    }
    for ((part, key), grant) in parts.iter().zip(keys).zip(&outcome.grants) {
        if let (Some(key), Some(grant)) = (key, grant) {
            let release = Operation::Release { lease: grant.lease };
            // This table has just granted it, so it knows the operation.
            let _ = part.limiter.table().apply(*key, now, &release);
        }
    }
}

fn peek(
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
    let reply = table.apply(key, now, &Operation::Peek(*demand))?;
    let mut decision = reply
        .decision()
        .copied()
        .unwrap_or_else(|| limiter.pass(cost, now));
    decision.shadow = reach == Reach::Shadow;
    Ok(decision)
}

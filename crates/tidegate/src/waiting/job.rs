//! What a caller waits for, and what it gets.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Decision, Demand, Denial, LeaseGrant, LeaseId, Micros, Operation, OperationError, Timestamp,
    Verdict, Wait,
};
use tidegate_store::{Key, KeyHash};

use super::charge::{Charge, after};
use super::error::WaitError;
use super::forecast::foresee;
use super::{attempt, attempt_all};
use crate::composition::Member;
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
    /// Where it is kept; none of a shared limit.
    table: Option<(Limiter, KeyHash)>,
}

impl Granted {
    pub(super) fn new(member: usize, grant: LeaseGrant, limiter: &Limiter, key: KeyHash) -> Self {
        Self {
            member,
            lease: Lease::in_memory(grant, limiter, key),
            table: Some((limiter.clone(), key)),
        }
    }

    /// A lease of a shared limit, which waits for nobody in this process.
    #[cfg(feature = "valkey")]
    pub(crate) const fn shared(member: usize, lease: Lease) -> Self {
        let table = None;
        Self {
            member,
            lease,
            table,
        }
    }

    /// Frees its permits and serves nobody yet: that is done when the lease is dropped.
    pub(crate) fn free(&self) {
        let Some((limiter, key)) = &self.table else {
            return;
        };
        let release = Operation::Release {
            lease: self.lease.id(),
        };
        // Where it is lost, or the algorithm has changed, there is nothing to free.
        let _ = limiter.table().apply(*key, limiter.moment(), &release);
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
        match self.charge.renewed_at(&place.limiter, self.ready_at, now) {
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
                charge.give_back(&limiter, limiter.now());
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

impl Want {
    /// Tries to get it now. `deadline` is the last moment at which units may be used.
    pub(crate) fn attempt(
        &self,
        place: &Place,
        now: Timestamp,
        deadline: Option<Timestamp>,
    ) -> Step {
        let tried = match self {
            Self::Units(cost) => attempt::units(place, *cost, now, deadline),
            Self::Permits { lease, weight } => attempt::permits(place, *lease, *weight, now),
            Self::All(parts) => attempt_all::all(place, parts, now, deadline),
        };
        tried.unwrap_or_else(|error| Step::Refused(WaitError::Unsupported(error)))
    }

    /// What is known of it, without charging anything.
    pub(crate) fn peek(&self, place: &Place, now: Timestamp) -> Result<Known, OperationError> {
        let one = |demand: Demand, cost: u32| {
            let (key, reach) = place.limiter.reach(place.hash);
            attempt::peek(&place.limiter, key, reach, &demand, cost, now).map(Known::of)
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
                        attempt::peek(&part.limiter, key, reach, &part.demand, 0, now)
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

    pub(super) fn is_at(&self, place: &Place) -> bool {
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

//! The states of all limits under one set of numbers, and the answers that they give.
//!
//! A simulation has one of these for the numbers as configured, and one more for each set of
//! numbers that is tried beside them. What a request does when it is over (its permit comes back,
//! its charge is given back, its key starts afresh) waits here until its time has come.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;
use tidegate_core::all_of::combine;
use tidegate_core::{
    Demand, LeaseGrant, LeaseId, Micros, Operation, Policy, Reply, Reservation, Timestamp,
};

use super::call::{Action, Call, Served, Target};
use super::replay::{Answer, CallError, Limit, LimitSettings};
use crate::{Limiter, Member, Mode, all_of};

/// The states of all limits, by the numbers of the limits.
#[derive(Debug, Default)]
pub(super) struct Play {
    limiters: Vec<Limiter>,
    kinds: Vec<Kind>,
    reservations: HashMap<(Target, Box<str>), Reservation>,
    /// What running requests will do when they are over.
    later: BinaryHeap<Later>,
    /// How many demands have been made: what makes each of them its own.
    demands: u64,
}

/// What an algorithm gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Units,
    Permits { lease: Micros },
    Attempts,
}

impl Kind {
    const fn of(policy: &Policy) -> Self {
        match policy {
            Policy::Concurrency(concurrency) => Self::Permits {
                lease: concurrency.lease(),
            },
            Policy::Lockout(_) => Self::Attempts,
            _ => Self::Units,
        }
    }
}

/// Something that a request does at a later time.
#[derive(Debug)]
struct Later {
    at: Timestamp,
    /// Of those of one time, the first planned comes first.
    sequence: u64,
    target: Target,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Release(LeaseId),
    /// Keeps a lease up until its request is over.
    Renew(LeaseId, Timestamp),
    Refund(u32),
    Success,
}

impl PartialEq for Later {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Later {}

impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Later {
    /// The heap yields its greatest: the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl Play {
    /// Adds the next limit.
    pub fn add(&mut self, name: &str, policy: Policy, mode: Mode, settings: &LimitSettings) {
        self.kinds.push(Kind::of(&policy));
        let limiter = Limiter::builder(policy)
            .name(name)
            .mode(mode)
            .max_keys(settings.max_keys)
            .when_full(settings.when_full)
            .charge_denied(settings.charge_denied)
            .hash_seed(SEED)
            .build();
        self.limiters.push(limiter);
    }

    /// The limiter of a limit.
    pub fn limiter(&self, limit: usize) -> &Limiter {
        &self.limiters[limit]
    }

    /// Changes the numbers of a limit.
    pub fn change(&mut self, change: &super::call::Change, at: Timestamp) {
        let limit = change.limit.index();
        self.kinds[limit] = Kind::of(&change.policy);
        self.limiters[limit].change(change.policy.clone(), change.mode, at);
    }

    /// Answers a call on these targets.
    ///
    /// # Errors
    /// The call has no meaning for a limit; nothing was charged then.
    pub fn answer(
        &mut self,
        limits: &[Limit],
        call: &Call,
        targets: &[Target],
    ) -> Result<Answer, CallError> {
        if self.later.peek().is_some_and(|later| later.at <= call.at) {
            self.catch_up(limits, call.at);
        }
        if let Action::Request(served) = call.action
            && targets
                .iter()
                .any(|target| self.is_looked_at(limits, served, *target))
        {
            return self.answer_with_looks(limits, call, served, targets);
        }
        match targets {
            [] => Err(CallError::NoTarget),
            [target] => self.answer_one(limits, call, *target),
            targets if matches!(call.action, Action::Peek(_)) => {
                self.peek_all(limits, call, targets)
            }
            targets => self.answer_all(limits, call, targets),
        }
    }

    /// Whether a request is only held against a limit, and not counted: a guess of which the log
    /// tells that it was none. A lockout cannot give back what was charged.
    fn is_looked_at(&self, limits: &[Limit], served: Served, target: Target) -> bool {
        let settings = limits[target.limit.index()].settings();
        let (Some(counted), Some(status)) = (&settings.count_when, served.status) else {
            return false;
        };
        let resets = settings.reset_when.as_ref();
        self.kinds[target.limit.index()] == Kind::Attempts
            && !counted.has(status)
            && !resets.is_some_and(|resets| resets.has(status))
    }

    /// Answers a request that some of its limits only look at: if none denies, the others are
    /// charged.
    fn answer_with_looks(
        &mut self,
        limits: &[Limit],
        call: &Call,
        served: Served,
        targets: &[Target],
    ) -> Result<Answer, CallError> {
        let mut members = SmallVec::new();
        for target in targets {
            let demand = self.demand(limits, &call.action, *target)?;
            let key = limits[target.limit.index()].key(*target);
            let limiter = &self.limiters[target.limit.index()];
            let reply = limiter.apply(key, call.at, &Operation::Peek(demand))?;
            members.extend(reply.decision().copied());
        }
        let decision = combine(&members).ok_or(CallError::NoTarget)?;
        let charged: SmallVec<[Target; 6]> = targets
            .iter()
            .filter(|target| !self.is_looked_at(limits, served, **target))
            .copied()
            .collect();
        if decision.is_allowed() && !charged.is_empty() {
            self.answer(limits, call, &charged)?;
        }
        Ok(Answer {
            target: targets.get(decision.binding).copied(),
            reply: Reply::Decision(decision),
            members,
        })
    }

    fn answer_one(
        &mut self,
        limits: &[Limit],
        call: &Call,
        target: Target,
    ) -> Result<Answer, CallError> {
        let operation = self.operation(limits, call, target)?;
        let key = limits[target.limit.index()].key(target);
        let reply = self.limiters[target.limit.index()].apply(key, call.at, &operation)?;
        self.remember(&call.action, target, &reply);
        if let (Action::Request(served), Operation::Take(demand)) = (&call.action, &operation)
            && reply
                .decision()
                .is_some_and(|decision| decision.is_within_limit())
        {
            self.plan(limits, call.at, *served, target, *demand);
        }
        Ok(Answer {
            reply,
            target: Some(target),
            members: SmallVec::new(),
        })
    }

    /// What is asked, in the words of the engine.
    fn operation(
        &mut self,
        limits: &[Limit],
        call: &Call,
        target: Target,
    ) -> Result<Operation, CallError> {
        Ok(match &call.action {
            Action::Request(_) | Action::Take(_) | Action::Acquire { .. } | Action::Attempt => {
                Operation::Take(self.demand(limits, &call.action, target)?)
            }
            // A peek asks for what the algorithm gives: units, a permit, a guess.
            Action::Peek(cost) => Operation::Peek(match self.kinds[target.limit.index()] {
                Kind::Permits { .. } => Demand::Acquire {
                    lease: PEEK,
                    weight: *cost,
                },
                Kind::Attempts => Demand::Attempt { seed: 0 },
                Kind::Units => Demand::Take { cost: *cost },
            }),
            Action::TakeUpTo(cost) => Operation::TakeUpTo { cost: *cost },
            Action::Refund(cost) => Operation::Refund { cost: *cost },
            Action::Force(cost) => Operation::Force { cost: *cost },
            Action::Success => Operation::Success,
            Action::Reset => Operation::Reset,
            Action::Block(period) => Operation::Block { period: *period },
            Action::Unblock => Operation::Unblock,
            Action::State => Operation::State,
            Action::Renew(permit) => Operation::Renew {
                lease: lease_id(permit),
            },
            Action::Release(permit) => Operation::Release {
                lease: lease_id(permit),
            },
            Action::Reserve(reserve) => Operation::Reserve {
                cost: reserve.cost,
                max_wait: reserve.max_wait,
            },
            Action::Settle(settle) => Operation::Settle {
                reservation: self.reservation(target, &settle.name)?,
                actual: settle.actual,
            },
            Action::Cancel(name) => Operation::Cancel {
                reservation: self.reservation(target, name)?,
            },
            Action::SetPolicy(_) => return Err(CallError::OneAtATime("set_policy")),
        })
    }

    /// What a call demands of a limit.
    fn demand(
        &mut self,
        limits: &[Limit],
        action: &Action,
        target: Target,
    ) -> Result<Demand, CallError> {
        self.demands = self.demands.wrapping_add(1);
        Ok(match action {
            Action::Acquire { permit, weight } => Demand::Acquire {
                lease: lease_id(permit),
                weight: *weight,
            },
            Action::Attempt => Demand::Attempt { seed: self.demands },
            Action::Take(cost) => Demand::Take { cost: *cost },
            Action::Request(served) => {
                let limit = &limits[target.limit.index()];
                let cost = limit.settings().cost;
                if limit.settings().asks_for_status() && served.status.is_none() {
                    return Err(CallError::NoStatus(limit.name().into()));
                }
                match self.kinds[target.limit.index()] {
                    Kind::Units => Demand::Take { cost },
                    Kind::Attempts => Demand::Attempt { seed: self.demands },
                    Kind::Permits { .. } if served.took.is_none() => {
                        return Err(CallError::NoDuration(limit.name().into()));
                    }
                    Kind::Permits { .. } => Demand::Acquire {
                        lease: LeaseId(REQUEST | u128::from(self.demands)),
                        weight: cost,
                    },
                }
            }
            _ => Demand::Take {
                cost: limits[target.limit.index()].settings().cost,
            },
        })
    }

    /// What a call over several limits demands of one of them: a lease or a guess only of those
    /// that have such, and as many units of the others.
    fn demand_of_member(
        &mut self,
        limits: &[Limit],
        action: &Action,
        target: Target,
    ) -> Result<Demand, CallError> {
        let demand = self.demand(limits, action, target)?;
        Ok(match (demand, self.kinds[target.limit.index()]) {
            (Demand::Acquire { .. }, Kind::Permits { .. })
            | (Demand::Attempt { .. }, Kind::Attempts)
            | (Demand::Take { .. }, _) => demand,
            (Demand::Acquire { weight, .. }, _) => Demand::Take { cost: weight },
            (Demand::Attempt { .. }, _) => Demand::Take { cost: 1 },
        })
    }

    fn reservation(&mut self, target: Target, name: &str) -> Result<Reservation, CallError> {
        self.reservations
            .remove(&(target, name.into()))
            .ok_or_else(|| CallError::NotReserved(name.into()))
    }

    fn remember(&mut self, action: &Action, target: Target, reply: &Reply) {
        if let (Action::Reserve(reserve), Reply::Reserved(_, Some(reservation))) = (action, reply)
            && let Some(name) = &reserve.name
        {
            self.reservations
                .insert((target, name.clone()), *reservation);
        }
    }

    /// All targets together or none; each limit is asked for what its algorithm gives.
    fn answer_all(
        &mut self,
        limits: &[Limit],
        call: &Call,
        targets: &[Target],
    ) -> Result<Answer, CallError> {
        if !call.action.combines() {
            return Err(CallError::OneAtATime(call.action.name()));
        }
        let demands = targets
            .iter()
            .map(|target| self.demand_of_member(limits, &call.action, *target))
            .collect::<Result<SmallVec<[Demand; 6]>, _>>()?;
        let members: SmallVec<[Member<'_>; 6]> = targets
            .iter()
            .zip(&demands)
            .map(|(target, demand)| Member {
                limiter: &self.limiters[target.limit.index()],
                key: limits[target.limit.index()].key(*target),
                demand: *demand,
            })
            .collect();
        let outcome = all_of(&members, call.at)?.ok_or(CallError::NoTarget)?;
        drop(members);
        let grant = outcome.grants.iter().find_map(|grant| *grant);
        if let Action::Request(served) = call.action
            && outcome.decision.is_allowed()
        {
            let each = targets.iter().zip(&demands).zip(&outcome.members);
            for ((target, demand), member) in each {
                // A member in shadow that would have denied was not charged.
                if member.is_within_limit() {
                    self.plan(limits, call.at, served, *target, *demand);
                }
            }
        }
        Ok(Answer {
            target: targets.get(outcome.decision.binding).copied(),
            reply: match grant {
                Some(grant) => Reply::Leased(outcome.decision, Some(grant)),
                None => Reply::Decision(outcome.decision),
            },
            members: outcome.members,
        })
    }

    /// Asks all targets without charging any, and combines their answers as a charge would.
    fn peek_all(
        &mut self,
        limits: &[Limit],
        call: &Call,
        targets: &[Target],
    ) -> Result<Answer, CallError> {
        let mut members = SmallVec::new();
        for target in targets {
            match self.answer_one(limits, call, *target)?.reply {
                Reply::Decision(decision) | Reply::Leased(decision, _) => members.push(decision),
                _ => return Err(CallError::OneAtATime("peek")),
            }
        }
        let decision = combine(&members).ok_or(CallError::NoTarget)?;
        Ok(Answer {
            target: targets.get(decision.binding).copied(),
            reply: Reply::Decision(decision),
            members,
        })
    }

    /// Plans what a request that was charged does when it is over.
    fn plan(
        &mut self,
        limits: &[Limit],
        at: Timestamp,
        served: Served,
        target: Target,
        demand: Demand,
    ) {
        let over = after(at, served.took.unwrap_or(Micros::ZERO));
        if let (Demand::Acquire { lease, .. }, Kind::Permits { lease: length }) =
            (demand, self.kinds[target.limit.index()])
        {
            self.plan_lease(at, over, target, lease, length);
            return;
        }
        let settings = limits[target.limit.index()].settings();
        let Some(status) = served.status.filter(|_| settings.asks_for_status()) else {
            return;
        };
        let units = match demand {
            Demand::Take { cost } => cost,
            _ => 1,
        };
        if settings
            .reset_when
            .as_ref()
            .is_some_and(|set| set.has(status))
        {
            self.push(over, target, What::Success);
        } else if settings
            .count_when
            .as_ref()
            .is_some_and(|set| !set.has(status))
        {
            self.push(over, target, What::Refund(units));
        }
    }

    /// A door renews a lease for as long as its request runs.
    fn plan_lease(
        &mut self,
        at: Timestamp,
        over: Timestamp,
        target: Target,
        lease: LeaseId,
        length: Micros,
    ) {
        if after(at, length) > over {
            self.push(over, target, What::Release(lease));
        } else {
            let half = Micros((length.0 / 2).max(1));
            self.push(after(at, half), target, What::Renew(lease, over));
        }
    }

    fn push(&mut self, at: Timestamp, target: Target, what: What) {
        self.demands = self.demands.wrapping_add(1);
        self.later.push(Later {
            at,
            sequence: self.demands,
            target,
            what,
        });
    }

    /// Does what was planned up to a time, that time included: a permit that comes back at the
    /// moment of a request is there for it.
    fn catch_up(&mut self, limits: &[Limit], until: Timestamp) {
        while let Some(later) = self.later.peek()
            && later.at <= until
        {
            let Some(Later {
                at, target, what, ..
            }) = self.later.pop()
            else {
                return;
            };
            let key = limits[target.limit.index()].key(target);
            let operation = match what {
                What::Release(lease) => Operation::Release { lease },
                What::Renew(lease, _) => Operation::Renew { lease },
                What::Refund(cost) => Operation::Refund { cost },
                What::Success => Operation::Success,
            };
            let reply = self.limiters[target.limit.index()].apply(key, at, &operation);
            // A lease that cannot be renewed any more is lost, and so is an operation that the
            // limit does not have since its algorithm was changed.
            if let (What::Renew(lease, over), Ok(Reply::Renewed(Some(_)))) = (what, reply)
                && let Kind::Permits { lease: length } = self.kinds[target.limit.index()]
            {
                self.plan_lease(at, over, target, lease, length);
            }
        }
    }
}

impl Answer {
    /// The lease that was granted or renewed.
    pub(crate) const fn grant(&self) -> Option<&LeaseGrant> {
        match &self.reply {
            Reply::Leased(_, grant) | Reply::Renewed(grant) => grant.as_ref(),
            _ => None,
        }
    }
}

/// Runs repeat, down to the share of keys that a percentage enforces.
const SEED: (u64, u64) = (0, 0);

/// A time later by a length, or the last valid one.
fn after(at: Timestamp, length: Micros) -> Timestamp {
    at.checked_add(length).unwrap_or(Timestamp::MAX)
}

/// The lease that a peek asks for: no name has this number.
const PEEK: LeaseId = LeaseId(0xFE << 120);

/// What leases of requests begin with: no name has these numbers.
const REQUEST: u128 = 0xFD << 120;

/// The number of a lease by its name.
///
/// A name of up to 15 bytes is its own number; a longer one is hashed into a range of its own.
fn lease_id(name: &str) -> LeaseId {
    let mut bytes = [0; 16];
    if let Some(short) = bytes.get_mut(..name.len()).filter(|_| name.len() < 16) {
        short.copy_from_slice(name.as_bytes());
        bytes[15] = u8::try_from(name.len()).expect("below 16");
        return LeaseId(u128::from_le_bytes(bytes));
    }
    let hash = SipHasher13::new().hash(name.as_bytes()).as_u128();
    LeaseId(hash | 0xFF << 120)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_of_different_names_have_different_numbers() {
        let names = [
            "",
            "a",
            "b",
            "a\0",
            "abcdefghijklmno",
            "abcdefghijklmnop",
            "abcdefghijklmnoq",
        ];
        for (at, name) in names.iter().enumerate() {
            assert_eq!(lease_id(name), lease_id(name));
            assert_ne!(lease_id(name), PEEK);
            assert!(
                names[..at]
                    .iter()
                    .all(|other| lease_id(other) != lease_id(name)),
                "{name}"
            );
        }
    }
}

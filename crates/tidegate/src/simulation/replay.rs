//! The limits of a simulation and the answers that they give.

use std::collections::HashMap;

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;
use tidegate_core::all_of::combine;
use tidegate_core::{
    Decision, Demand, LeaseGrant, LeaseId, Operation, OperationError, Policy, Reply, Reservation,
};

use super::call::{Action, Call, LimitNumber, Target};
use super::keys::{KeyNumber, KeyTable};
use super::request::{KeySource, Request, key_of, split_target};
use super::routes::Routes;
use crate::{Key, Limiter, Member, Mode, WhenFull, all_of};

/// What is known of a limit beside its numbers.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// What a request costs, where the call does not say.
    pub cost: u32,
    /// Whether it is enforced.
    pub mode: Mode,
    /// The most keys that its table holds.
    pub max_keys: usize,
    /// What happens when the table is full.
    pub when_full: WhenFull,
    /// Whether denied calls are charged all the same.
    pub charge_denied: bool,
    /// What makes the key of a request.
    pub keyed_by: Vec<KeySource>,
}

impl Default for LimitSettings {
    /// Enforced, with the library's table, and no way to find the key of a request.
    fn default() -> Self {
        Self {
            cost: 1,
            mode: Mode::Enforce,
            max_keys: 1_000_000,
            when_full: WhenFull::Overflow,
            charge_denied: false,
            keyed_by: Vec::new(),
        }
    }
}

/// Why a limit could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there already is a limit called {0}")]
pub struct DuplicateLimit(pub String);

/// Why a call got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The engine has no answer to it.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A settlement or cancellation of what was never reserved.
    #[error("nothing is reserved under the name {0}")]
    NotReserved(Box<str>),
    /// The call names no limit.
    #[error("there is no limit to ask")]
    NoTarget,
    /// Several limits for an operation that works on one.
    #[error("{0} works on one limit at a time")]
    OneAtATime(&'static str),
}

/// Limits in simulated time: no clock, no server, the very engine of the doors.
#[derive(Debug, Default)]
pub struct Simulation {
    limits: Vec<Limit>,
    routes: Option<Routes>,
    reservations: HashMap<(Target, Box<str>), Reservation>,
    seeds: u64,
}

#[derive(Debug)]
struct Limit {
    name: Box<str>,
    header: Box<str>,
    limiter: Limiter,
    keys: KeyTable,
    settings: LimitSettings,
}

/// What came of a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The answer; of the limit that decided, where several were asked.
    pub reply: Reply,
    /// Which limit and key decided; none for a change of a limit.
    pub target: Option<Target>,
    /// What each limit said, where several were asked.
    pub members: SmallVec<[Decision; 6]>,
}

impl Answer {
    /// The name of the limit that decided; empty for a change of a limit.
    pub(crate) fn limit<'a>(&self, simulation: &'a Simulation) -> &'a str {
        self.target
            .map_or("", |target| simulation.name(target.limit))
    }

    /// The lease that was granted or renewed.
    pub(crate) const fn grant(&self) -> Option<&LeaseGrant> {
        match &self.reply {
            Reply::Leased(_, grant) | Reply::Renewed(grant) => grant.as_ref(),
            _ => None,
        }
    }
}

impl Simulation {
    /// A simulation without limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a limit; `header` is its algorithm as a timeline's header writes it.
    ///
    /// # Errors
    /// Another limit has the name already.
    pub fn add(
        &mut self,
        name: &str,
        policy: Policy,
        header: impl Into<Box<str>>,
        settings: LimitSettings,
    ) -> Result<LimitNumber, DuplicateLimit> {
        if self.find(name).is_some() {
            return Err(DuplicateLimit(name.to_owned()));
        }
        let limiter = Limiter::builder(policy)
            .name(name)
            .mode(settings.mode)
            .max_keys(settings.max_keys)
            .when_full(settings.when_full)
            .charge_denied(settings.charge_denied)
            .hash_seed(SEED)
            .build();
        self.limits.push(Limit {
            name: name.into(),
            header: header.into(),
            limiter,
            keys: KeyTable::default(),
            settings,
        });
        Ok(LimitNumber(
            u32::try_from(self.limits.len() - 1).expect("limits fit into memory"),
        ))
    }

    /// The limit of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<LimitNumber> {
        let index = self.limits.iter().position(|limit| &*limit.name == name)?;
        u32::try_from(index).ok().map(LimitNumber)
    }

    /// All limits, in the order in which they were added.
    pub fn limits(&self) -> impl Iterator<Item = LimitNumber> + use<> {
        (0..u32::try_from(self.limits.len()).unwrap_or(u32::MAX)).map(LimitNumber)
    }

    /// The names of all limits, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|limit| &*limit.name)
    }

    /// The only limit there is.
    ///
    /// # Errors
    /// How many there are instead.
    pub(crate) fn only(&self) -> Result<LimitNumber, usize> {
        match self.limits.len() {
            1 => Ok(LimitNumber(0)),
            count => Err(count),
        }
    }

    /// The name of a limit.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn name(&self, limit: LimitNumber) -> &str {
        &self.limits[limit.index()].name
    }

    /// The algorithm of a limit, as a timeline's header writes it.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn header(&self, limit: LimitNumber) -> &str {
        &self.limits[limit.index()].header
    }

    /// What is known of a limit beside its numbers.
    pub(crate) fn settings(&self, limit: LimitNumber) -> &LimitSettings {
        &self.limits[limit.index()].settings
    }

    /// The limiter behind a limit.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn limiter(&self, limit: LimitNumber) -> &Limiter {
        &self.limits[limit.index()].limiter
    }

    /// How many distinct keys of a limit the traces have named.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn keys_seen(&self, limit: LimitNumber) -> usize {
        self.limits[limit.index()].keys.len()
    }

    /// Lets requests meet the limits of their route only. Default: all limits.
    pub fn set_routes(&mut self, routes: Routes) {
        self.routes = Some(routes);
    }

    /// The limits that requests can meet, each with what makes its key.
    pub(crate) fn met_by_requests(&self) -> Vec<(LimitNumber, &[KeySource])> {
        match &self.routes {
            None => self
                .limits()
                .map(|limit| (limit, self.keyed_by(limit)))
                .collect(),
            Some(routes) => routes
                .all()
                .map(|met| (met.limit, &*met.keyed_by))
                .collect(),
        }
    }

    /// The limits that a request meets, with its keys; none where no route serves it.
    pub(crate) fn targets(&mut self, request: &Request<'_>) -> SmallVec<[Target; 1]> {
        let Self { limits, routes, .. } = self;
        let Some(routes) = routes else {
            return limits
                .iter_mut()
                .zip(0..)
                .map(|(limit, number)| {
                    let key = key_of(&limit.settings.keyed_by, request);
                    Target {
                        limit: LimitNumber(number),
                        key: limit.keys.number(&key),
                    }
                })
                .collect();
        };
        let (Some(method), Some(target)) = (request.method, request.target) else {
            return SmallVec::new();
        };
        let Some((met, path)) = routes.of(method, split_target(target).0) else {
            return SmallVec::new();
        };
        let request = Request {
            path: Some(&path),
            ..*request
        };
        met.iter()
            .map(|met| {
                let key = key_of(&met.keyed_by, &request);
                Target {
                    limit: met.limit,
                    key: limits[met.limit.index()].keys.number(&key),
                }
            })
            .collect()
    }

    /// What makes the key of a request under this limit.
    pub(crate) fn keyed_by(&self, limit: LimitNumber) -> &[KeySource] {
        &self.limits[limit.index()].settings.keyed_by
    }

    /// What a request costs under this limit, where nothing else is said.
    pub(crate) fn cost(&self, limit: LimitNumber) -> u32 {
        self.limits[limit.index()].settings.cost
    }

    /// The number of a key of a limit.
    pub(crate) fn key_number(&mut self, limit: LimitNumber, key: &Key) -> KeyNumber {
        self.limits[limit.index()].keys.number(key)
    }

    /// A key by its number.
    pub(crate) fn key(&self, target: Target) -> &Key {
        self.limits[target.limit.index()].keys.key(target.key)
    }

    /// Answers a call.
    ///
    /// # Errors
    /// The call has no meaning for its limit; nothing was changed then.
    pub fn answer(&mut self, call: &Call) -> Result<Answer, CallError> {
        if let Action::SetPolicy(change) = &call.action {
            let limit = &mut self.limits[change.limit.index()];
            limit
                .limiter
                .change(change.policy.clone(), change.mode, call.at);
            limit.header = change.header.clone();
            return Ok(Answer {
                reply: Reply::Done,
                target: None,
                members: SmallVec::new(),
            });
        }
        match call.targets.as_slice() {
            [] => Err(CallError::NoTarget),
            [target] => self.answer_one(call, *target),
            targets if matches!(call.action, Action::Peek(_)) => self.peek_all(call, targets),
            targets => self.answer_all(call, targets),
        }
    }

    fn answer_one(&mut self, call: &Call, target: Target) -> Result<Answer, CallError> {
        let operation = self.operation(call, target)?;
        let limit = &self.limits[target.limit.index()];
        let reply = limit
            .limiter
            .apply(limit.keys.key(target.key), call.at, &operation)?;
        self.remember(&call.action, target, &reply);
        Ok(Answer {
            reply,
            target: Some(target),
            members: SmallVec::new(),
        })
    }

    /// What is asked, in the words of the engine.
    fn operation(&mut self, call: &Call, target: Target) -> Result<Operation, CallError> {
        Ok(match &call.action {
            Action::Request | Action::Take(_) | Action::Acquire { .. } | Action::Attempt => {
                self.seeds = self.seeds.wrapping_add(1);
                Operation::Take(self.demand(&call.action, target.limit))
            }
            // A peek asks for what the algorithm gives: units, a permit, a guess.
            Action::Peek(cost) => Operation::Peek(match self.limiter(target.limit).policy() {
                Policy::Concurrency(_) => Demand::Acquire {
                    lease: PEEK,
                    weight: *cost,
                },
                Policy::Lockout(_) => Demand::Attempt { seed: 0 },
                _ => Demand::Take { cost: *cost },
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
    fn demand(&self, action: &Action, limit: LimitNumber) -> Demand {
        match action {
            Action::Acquire { permit, weight } => Demand::Acquire {
                lease: lease_id(permit),
                weight: *weight,
            },
            Action::Attempt => Demand::Attempt { seed: self.seeds },
            Action::Take(cost) => Demand::Take { cost: *cost },
            _ => Demand::Take {
                cost: self.cost(limit),
            },
        }
    }

    /// What a call over several limits demands of one of them: a lease or a guess only of those
    /// that have such, and as many units of the others.
    fn demand_of_member(&self, action: &Action, limit: LimitNumber) -> Demand {
        let demand = self.demand(action, limit);
        match (demand, self.limiter(limit).policy()) {
            (Demand::Acquire { .. }, Policy::Concurrency(_))
            | (Demand::Attempt { .. }, Policy::Lockout(_)) => demand,
            (Demand::Acquire { weight, .. }, _) => Demand::Take { cost: weight },
            (Demand::Attempt { .. }, _) => Demand::Take { cost: 1 },
            (Demand::Take { .. }, _) => demand,
        }
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
    fn answer_all(&mut self, call: &Call, targets: &[Target]) -> Result<Answer, CallError> {
        if !call.action.combines() {
            return Err(CallError::OneAtATime(call.action.name()));
        }
        self.seeds = self.seeds.wrapping_add(1);
        let members: SmallVec<[Member<'_>; 6]> = targets
            .iter()
            .map(|target| {
                let limit = &self.limits[target.limit.index()];
                let demand = self.demand_of_member(&call.action, target.limit);
                Member {
                    limiter: &limit.limiter,
                    key: limit.keys.key(target.key),
                    demand,
                }
            })
            .collect();
        let outcome = all_of(&members, call.at)?.ok_or(CallError::NoTarget)?;
        let grant = outcome.grants.iter().find_map(|grant| *grant);
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
    fn peek_all(&mut self, call: &Call, targets: &[Target]) -> Result<Answer, CallError> {
        let mut members = SmallVec::new();
        for target in targets {
            match self.answer_one(call, *target)?.reply {
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
}

/// Runs repeat, down to the share of keys that a percentage enforces.
const SEED: (u64, u64) = (0, 0);

/// The lease that a peek asks for: no name has this number.
const PEEK: LeaseId = LeaseId(0xFE << 120);

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

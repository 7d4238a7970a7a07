//! Leases of a limit on what is at work at once.

use tidegate_core::{ChangeMode, Demand, Operation, Timestamp};

use super::answer::{Answer, Grant, Refusal};
use super::numbers::{Int, Moment, first};
use super::{Algorithm, Judgement, Rule, Special};

/// So many permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Permits.
    pub limit: Int,
    /// How long a lease lives without being renewed.
    pub lease: Int,
    /// How long it lives at most.
    pub max_hold: Option<Int>,
}

/// One lease.
#[derive(Clone, Debug)]
pub struct Held {
    id: u128,
    weight: Int,
    token: Int,
    granted: Int,
    expires: Int,
}

impl Held {
    fn grant(&self) -> Grant {
        Grant {
            lease: self.id,
            weight: self.weight,
            token: self.token,
            // A lease that outlives all valid time is told to end with it.
            expires: self.expires.min(Timestamp::MAX.as_micros().into()),
        }
    }
}

/// The leases of a key, and its highest fencing token.
#[derive(Clone, Debug)]
pub struct Holders {
    held: Vec<Held>,
    token: Int,
}

impl Holders {
    fn weight(&self, t: Int) -> Int {
        let live = self.held.iter().filter(|held| held.expires > t);
        live.map(|held| held.weight).sum()
    }

    fn find(&self, id: u128) -> Option<usize> {
        self.held.iter().position(|held| held.id == id)
    }

    fn full(&self, n: Int) -> Moment {
        first(n, |t| self.weight(t) == 0)
    }
}

impl Algorithm for Leases {
    type State = Holders;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Leases(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn limit(&self) -> Int {
        self.limit
    }

    fn fresh(&self, _: Int) -> Holders {
        Holders {
            held: Vec::new(),
            token: 0,
        }
    }

    fn age(&self, state: &mut Holders, _: Int, to: Int) {
        state.held.retain(|held| held.expires > to);
    }

    fn rebase(&self, state: &mut Holders, from: Int, to: Int) {
        for held in &mut state.held {
            held.granted -= from - to;
            held.expires -= from - to;
        }
    }

    /// Leases are work under way and stay; a reset drops them.
    fn change(&self, _: &Self, state: &mut Holders, _: Int, mode: ChangeMode) {
        if mode == ChangeMode::Reset {
            state.held.clear();
        }
    }

    fn judge(&self, state: &Holders, n: Int, demand: &Demand) -> Option<Judgement<Holders>> {
        let Demand::Acquire { lease, weight } = demand else {
            return None;
        };
        let weight = Int::from(*weight);
        let mut judged = Judgement {
            cost: weight,
            refusal: None,
            remaining: (self.limit - state.weight(n)).max(0),
            goes: Some(n),
            passes: Some(n),
            full: state.full(n),
            after: None,
            grant: None,
        };
        if let Some(index) = state.find(lease.0) {
            // A weight of 0 only asks.
            judged.grant = (weight > 0).then(|| state.held[index].grant());
            return Some(judged);
        }
        if weight > self.limit {
            judged.refusal = Some(Refusal::Impossible);
            judged.passes = None;
            return Some(judged);
        }
        judged.passes = first(n, |t| state.weight(t) + weight <= self.limit);
        if judged.passes != Some(n) {
            judged.refusal = Some(Refusal::Limited);
            return Some(judged);
        }
        if weight > 0 {
            let mut after = state.clone();
            after.token = n.max(after.token + 1);
            let held = Held {
                id: lease.0,
                weight,
                token: after.token,
                granted: n,
                expires: n + self.lease,
            };
            judged.grant = Some(held.grant());
            after.held.push(held);
            judged.remaining -= weight;
            judged.full = after.full(n);
            judged.after = Some(after);
        }
        Some(judged)
    }

    fn standing(&self, state: &Holders, n: Int) -> (Int, Int, Moment) {
        let used = state.weight(n);
        (used, (self.limit - used).max(0), state.full(n))
    }

    fn special(&self, state: &Holders, n: Int, operation: &Operation) -> Option<Special<Holders>> {
        let mut after = state.clone();
        Some(match operation {
            Operation::Renew { lease } => match after.find(lease.0) {
                Some(index) => {
                    let held = &mut after.held[index];
                    let mut until = n + self.lease;
                    if let Some(most) = self.max_hold {
                        until = until.min(held.granted + most);
                    }
                    held.expires = held.expires.max(until);
                    let grant = held.grant();
                    Special::Plain(Answer::Renewed(Some(grant)), Some(after))
                }
                None => Special::Plain(Answer::Renewed(None), None),
            },
            Operation::Release { lease } => match after.find(lease.0) {
                Some(index) => {
                    after.held.remove(index);
                    Special::Plain(Answer::Released(true), Some(after))
                }
                None => Special::Plain(Answer::Released(false), None),
            },
            _ => return None,
        })
    }

    fn is_fresh(&self, state: &Holders, _: Int) -> bool {
        state.held.is_empty()
    }

    /// The fencing token goes on rising.
    fn reset(&self, state: &Holders) -> Option<(Holders, Int)> {
        let rest = Holders {
            held: Vec::new(),
            token: state.token,
        };
        (state.token > 0).then_some((rest, state.token))
    }

    fn leases(&self, state: &Holders) -> Vec<Grant> {
        let mut leases: Vec<Grant> = state.held.iter().map(Held::grant).collect();
        leases.sort_by_key(|grant| (grant.expires, grant.token));
        leases
    }
}

//! Several limits on one call.

use tidegate_core::{Demand, Operation};

use super::AnyLimit;
use super::answer::{Answer, JointAnswer, Refusal, Ruling};
use super::numbers::Int;

/// One limit that a call must pass, by its number.
#[derive(Clone, Copy, Debug)]
pub struct ModelMember {
    /// The number of the limit.
    pub limit: usize,
    /// Whose state is counted.
    pub key: u64,
    /// What the call wants of it.
    pub demand: Demand,
    /// Whether the limit is only watched.
    pub shadow: bool,
}

impl ModelMember {
    fn same_key(&self, other: &Self) -> bool {
        (self.limit, self.key) == (other.limit, other.key)
    }
}

/// Decides over all members: all are charged, or none. None without members, or where a demand
/// has no meaning on its limit.
pub fn all_of(
    limits: &mut [Box<dyn AnyLimit>],
    members: &[ModelMember],
    now: Int,
) -> Option<JointAnswer> {
    if members.is_empty() || members.iter().any(|m| !limits[m.limit].knows(&m.demand)) {
        return None;
    }
    // A key that is named several times is asked once, for the sum.
    let mut calls: Vec<ModelMember> = Vec::new();
    for member in members {
        match calls.iter_mut().find(|call| call.same_key(member)) {
            Some(call) => {
                if let (Demand::Take { cost: sum }, Demand::Take { cost }) =
                    (&mut call.demand, member.demand)
                {
                    *sum = sum.saturating_add(cost);
                }
            }
            None => calls.push(*member),
        }
    }
    let mut rulings: Vec<Ruling> = Vec::new();
    for call in &calls {
        let asked = limits[call.limit].apply(call.key, now, &Operation::Peek(call.demand));
        let mut ruling = asked.ruling().expect("the limit knows the demand").clone();
        ruling.shadow = call.shadow;
        rulings.push(ruling);
    }
    let passes = rulings
        .iter()
        .all(|ruling| ruling.shadow || ruling.refusal.is_none());
    let mut grants = Vec::new();
    for (call, ruling) in calls.iter().zip(&rulings) {
        let mut granted = None;
        if passes && ruling.refusal.is_none() {
            let taken = limits[call.limit].apply(call.key, now, &Operation::Take(call.demand));
            if let Answer::Leased(_, grant) = taken {
                granted = grant;
            }
        }
        grants.push(granted);
    }
    let call_of = |member: &ModelMember| {
        let found = calls.iter().position(|call| call.same_key(member));
        found.expect("every member is part of a call")
    };
    let told: Vec<Ruling> = members
        .iter()
        .map(|m| rulings[call_of(m)].clone())
        .collect();
    let grants = members.iter().map(|m| grants[call_of(m)].clone()).collect();
    Some(JointAnswer {
        ruling: combined(&told),
        members: told,
        grants,
    })
}

/// The ruling over a call.
fn combined(members: &[Ruling]) -> Ruling {
    let watched_only = members.iter().all(|member| member.shadow);
    let counts = |member: &Ruling| watched_only || !member.shadow;
    let remaining = |index: &usize| members[*index].remaining;
    let considered: Vec<usize> = (0..members.len())
        .filter(|index| counts(&members[*index]))
        .collect();
    let least = *considered
        .iter()
        .min_by_key(|index| remaining(index))
        .expect("there is a member");

    // The first of the worst refusals: impossible, then the longest wait, where never is longest.
    let mut binding = least;
    let mut worst = None;
    if !watched_only {
        for index in &considered {
            let member = &members[*index];
            let Some(refusal) = member.refusal else {
                continue;
            };
            let wait = member.retry_after.unwrap_or(Int::MAX);
            let severity = Some((refusal == Refusal::Impossible, wait));
            if severity > worst {
                worst = severity;
                binding = *index;
            }
        }
    }
    let decider = &members[binding];
    let delays = considered.iter().map(|index| members[*index].delay);
    let longest_delay = delays.max_by_key(|delay| delay.unwrap_or(Int::MAX));
    let denied = worst.is_some();
    Ruling {
        refusal: if denied { decider.refusal } else { None },
        retry_after: if denied { decider.retry_after } else { Some(0) },
        remaining: remaining(&least),
        delay: longest_delay.expect("there is a member"),
        binding,
        shadow: watched_only,
        ..decider.clone()
    }
}

//! Several shared limits on one call: all are charged, or none.
//!
//! Limits whose states lie together are asked in one step. Where they lie apart there is a step for
//! each place, one after the other in a fixed order; after a denial, what was charged before is
//! given back. So between two places a denial may be seen that was none, and a process that dies
//! in between leaves its charges: both deny too much, and nothing ever passes too much.
//!
//! Limits whose units are at hand are not asked at all; a denial puts back what was held of them.

use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    Decision, Demand, LeaseGrant, Operation, OperationError, Reply, Reservation, Source,
    all_of as rules,
};
use tidegate_store::{Member, Outcome, all_of as all_of_local};
use tokio::time::Instant;

use super::leased::AtHand;
use super::{Memory, SharedCall};
use crate::StoreError;
use crate::failure::{Fallback, local_now};

type List<T> = SmallVec<[T; 6]>;

/// What a member said, and the lease that it was granted.
type Said = (Decision, Option<LeaseGrant>);

/// Decides over all calls, and charges all limits or none. None without calls.
///
/// There is always a decision; the [`source`](Decision::source) of each member says where it came
/// from. A limit whose store gives no answer does as its failure mode says, and the others decide.
///
/// # Errors
/// A demand has no meaning on its limit's algorithm. Nothing was charged then.
pub async fn all_of(calls: &[SharedCall<'_>]) -> Result<Option<Outcome>, OperationError> {
    for call in calls {
        call.limit.check(call.demand)?;
    }
    let Some(first) = calls.first() else {
        return Ok(None);
    };
    let at_hand: List<Option<AtHand<'_>>> = calls.iter().map(SharedCall::at_hand).collect();
    let groups = groups(calls, &at_hand);
    // What was denied with units at hand may have been allowed without, or the other way about.
    let is_plain = at_hand.iter().all(Option::is_none);
    let memory = memory(calls).filter(|_| groups.len() == 1 && is_plain);
    let pending = match memory.as_ref().map(Memory::recall) {
        Some(Ok(denied)) => {
            let grants = smallvec![None; calls.len()];
            let members: List<Decision> = denied.members.into_iter().collect();
            count(calls, &members);
            return Ok(Some(Outcome {
                decision: denied.decision,
                members,
                grants,
            }));
        }
        Some(Err(pending)) => Some(pending),
        None => None,
    };
    let deadline = first.limit.store().client().deadline();
    let known = |held: &Option<AtHand<'_>>| held.as_ref().map(|held| (held.decision(), None));
    let mut said: List<Option<Said>> = at_hand.iter().map(known).collect();
    let mut charged: List<usize> = SmallVec::new();
    let mut denied = false;
    for group in groups {
        let answers = if denied {
            look(calls, &group, deadline).await?
        } else {
            take(calls, &group, deadline).await?
        };
        let decisions: List<Decision> = answers.iter().map(|(decision, _)| *decision).collect();
        let allowed = rules::allows(&decisions);
        if !denied && allowed {
            charged.extend(group.iter().copied());
        }
        denied |= !allowed;
        for (index, answer) in group.into_iter().zip(answers) {
            said[index] = Some(answer);
        }
    }
    let said: List<Said> = said.into_iter().flatten().collect();
    let members: List<Decision> = said.iter().map(|(decision, _)| *decision).collect();
    let mut grants: List<Option<LeaseGrant>> = said.iter().map(|(_, grant)| *grant).collect();
    if denied {
        for index in charged {
            give_back(&calls[index], &said[index]).await;
            grants[index] = None;
        }
    }
    for (call, held) in calls.iter().zip(at_hand) {
        match held {
            Some(held) if !denied => held.spend(),
            None if !denied => call.ask_after(),
            _ => {}
        }
    }
    count(calls, &members);
    let Some(decision) = rules::combine(&members) else {
        return Ok(None);
    };
    if let (Some(memory), Some(pending)) = (memory, pending) {
        memory.remember(pending, decision, &members);
    }
    Ok(Some(Outcome {
        decision,
        members,
        grants,
    }))
}

fn count(calls: &[SharedCall<'_>], members: &[Decision]) {
    for (call, decision) in calls.iter().zip(members) {
        call.limit.count(decision);
    }
}

/// Members that lie together.
struct Group {
    store: Option<usize>,
    slot: u16,
    /// What an attempt charges cannot be given back, so it comes last.
    attempt: bool,
    members: List<usize>,
}

/// The members that lie together, in the order in which they are asked.
fn groups(calls: &[SharedCall<'_>], at_hand: &[Option<AtHand<'_>>]) -> Vec<List<usize>> {
    // A store as the first call that has it, so that the order is the same for equal calls.
    let store = |call: &SharedCall<'_>| {
        let client = call.limit.store().client();
        calls
            .iter()
            .position(|other| other.limit.store().client().is(client))
    };
    let mut groups: Vec<Group> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        if at_hand[index].is_some() {
            continue;
        }
        let limit = &call.limit.0;
        let name = limit
            .store
            .key_name(&limit.spec, call.key, call.slot, call.shadow);
        let (store, slot) = (store(call), limit.store.client().slot(&name));
        let attempt = matches!(call.demand, Demand::Attempt { .. });
        let found = groups
            .iter_mut()
            .find(|group| group.store == store && group.slot == slot);
        match found {
            Some(group) => {
                group.attempt |= attempt;
                group.members.push(index);
            }
            None => groups.push(Group {
                store,
                slot,
                attempt,
                members: smallvec![index],
            }),
        }
    }
    groups.sort_by_key(|group| (group.attempt, group.store, group.slot));
    groups.into_iter().map(|group| group.members).collect()
}

/// Where a denial of the whole call is remembered, if it may be.
fn memory<'a>(calls: &[SharedCall<'a>]) -> Option<Memory<'a>> {
    let mut memory = Memory::of(calls.first()?.limit.store());
    for call in calls {
        memory.add(call)?;
    }
    calls.iter().any(|call| !call.shadow).then_some(memory)
}

/// Takes what the members of a group want, all or nothing.
async fn take(
    calls: &[SharedCall<'_>],
    group: &[usize],
    deadline: Instant,
) -> Result<List<Said>, OperationError> {
    let members: List<_> = group.iter().map(|index| calls[*index].member()).collect();
    let store = calls[group[0]].limit.store();
    match store.all_of_until(&members, deadline).await {
        Ok(Some(outcome)) => Ok(outcome.members.into_iter().zip(outcome.grants).collect()),
        Err(StoreError::Operation(error)) => Err(error),
        Ok(None) | Err(_) => fall_back(calls, group),
    }
}

/// What the members of a group say without being charged: another group has denied already.
async fn look(
    calls: &[SharedCall<'_>],
    group: &[usize],
    deadline: Instant,
) -> Result<List<Said>, OperationError> {
    let mut said = SmallVec::new();
    for index in group {
        let call = &calls[*index];
        let limit = &call.limit.0;
        let peek = Operation::Peek(call.demand);
        let asked = limit.store.apply_until(
            &limit.spec,
            call.key,
            call.slot,
            call.shadow,
            &peek,
            deadline,
        );
        let decision = match asked.await {
            Ok(reply) => reply.decision().copied(),
            Err(StoreError::Operation(error)) => return Err(error),
            Err(_) => None,
        };
        let decision = match decision {
            Some(decision) => decision,
            None => look_without_store(call)?,
        };
        said.push((decision, None));
    }
    Ok(said)
}

fn look_without_store(call: &SharedCall<'_>) -> Result<Decision, OperationError> {
    Ok(match &call.limit.0.fallback {
        Fallback::Allow => call.blind(true),
        Fallback::Deny => call.blind(false),
        Fallback::Local(local) => {
            let reply = local.apply(call.key, call.shadow, &Operation::Peek(call.demand))?;
            reply.decision().map_or_else(
                || call.blind(false),
                |decision| without_store(*decision, call),
            )
        }
    })
}

fn without_store(decision: Decision, call: &SharedCall<'_>) -> Decision {
    Decision {
        source: Source::Fallback,
        shadow: call.shadow,
        ..decision
    }
}

/// What the members of a group do without their store, all or nothing.
fn fall_back(calls: &[SharedCall<'_>], group: &[usize]) -> Result<List<Said>, OperationError> {
    let refused =
        |call: &SharedCall<'_>| !call.shadow && matches!(call.limit.0.fallback, Fallback::Deny);
    let charge = !group.iter().any(|index| refused(&calls[*index]));
    let mut said: List<Said> = SmallVec::new();
    let mut locals: List<Member<'_>> = SmallVec::new();
    let mut places: List<usize> = SmallVec::new();
    for (place, index) in group.iter().enumerate() {
        let call = &calls[*index];
        said.push((look_without_store(call)?, None));
        if let Some(local) = call.limit.0.fallback.local() {
            places.push(place);
            locals.push(Member {
                limit: &*local.table,
                key: local.hash(call.key, call.shadow),
                demand: call.demand,
                shadow: call.shadow,
            });
        }
    }
    if charge && let Some(outcome) = all_of_local(&locals, local_now())? {
        let answers = outcome.members.into_iter().zip(outcome.grants);
        for (place, (decision, grant)) in places.into_iter().zip(answers) {
            said[place] = (without_store(decision, &calls[group[place]]), grant);
        }
    }
    Ok(said)
}

/// Gives back what a member was charged, with a deadline of its own: the call's may be over. Where
/// it fails the charge stays until it is refilled, or the lease until it expires.
async fn give_back(call: &SharedCall<'_>, (decision, grant): &Said) {
    let operation = match call.demand {
        Demand::Take { cost } if decision.is_within_limit() => Operation::Cancel {
            reservation: Reservation {
                cost,
                at: decision.at,
            },
        },
        Demand::Acquire { lease, .. } if grant.is_some() => Operation::Release { lease },
        _ => return,
    };
    let limit = &call.limit.0;
    if decision.source == Source::Fallback {
        if let Some(local) = limit.fallback.local() {
            // The operation fits the algorithm: its demand did.
            let _: Result<Reply, _> = local.apply(call.key, call.shadow, &operation);
        }
        return;
    }
    let given = limit
        .store
        .apply(&limit.spec, call.key, call.slot, call.shadow, &operation);
    let _: Result<Reply, _> = given.await;
}

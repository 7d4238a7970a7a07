//! Several keys decided as one: all are charged, or none.
//!
//! The slots of all members are held, in the order of their addresses, while they are looked at
//! and charged; so no other call can see or make a state in between.

use smallvec::SmallVec;
use tidegate_core::{
    Decision, Demand, Denial, LeaseGrant, OperationError, Timestamp, Verdict, all_of as rules,
};

use super::MemoryLimit;
use super::moment::Moment;
use super::sealed::{HeldSlot, KeySlot};
use crate::key::KeyHash;

/// One limit that a call must pass.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The limit's table.
    pub limit: &'a dyn MemoryLimit,
    /// Whose state is counted.
    pub key: KeyHash,
    /// What the call wants of it.
    pub demand: Demand,
    /// Whether the limit is only watched: it never denies, and is charged only where the call
    /// passes and it would have let it pass too.
    pub shadow: bool,
}

/// What a list of members needs in room before it is moved to the heap.
type List<T> = SmallVec<[T; 6]>;

/// What became of a call over several limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The decision over the call; `binding` is the index of the member that made it.
    pub decision: Decision,
    /// What each member said, in order.
    pub members: List<Decision>,
    /// The leases granted, by member.
    pub grants: List<Option<LeaseGrant>>,
}

/// Members that share a slot, as one: the first of them, with the sum of what they demand.
struct Share<'a> {
    slot: Option<KeySlot<'a>>,
    first: usize,
    demand: Demand,
}

/// Decides over all members at one moment, and charges all or none of them. None without
/// members.
///
/// Members with the same key of the same limit are summed first: each is then told what the sum
/// was told.
///
/// # Errors
/// A demand has no meaning on its limit's algorithm. Nothing was charged then.
pub fn all_of<'a>(
    members: &[Member<'_>],
    now: impl Into<Moment<'a>>,
) -> Result<Option<Outcome>, OperationError> {
    over_all(members, now.into(), true)
}

/// [`all_of`], but a denial costs nothing, also where a limit charges what it denies: for callers
/// that wait for their turn and ask again only then.
///
/// # Errors
/// As [`all_of`].
pub fn all_of_sparing<'a>(
    members: &[Member<'_>],
    now: impl Into<Moment<'a>>,
) -> Result<Option<Outcome>, OperationError> {
    over_all(members, now.into(), false)
}

fn over_all(
    members: &[Member<'_>],
    now: Moment<'_>,
    punish: bool,
) -> Result<Option<Outcome>, OperationError> {
    for _ in 0..MAX_TRIES {
        let slots = members
            .iter()
            .map(|member| member.limit.slot_for(member.key, now))
            .collect();
        if let Some(outcome) = attempt(members, slots, now, punish)? {
            return Ok(outcome);
        }
    }
    // A table so small that it evicts one member for another has no place for the call.
    let nowhere = SmallVec::from_elem(None, members.len());
    Ok(attempt(members, nowhere, now, punish)?.flatten())
}

/// How often slots may change hands between finding and holding them, before a call is denied for
/// want of a place.
const MAX_TRIES: usize = 1_000;

/// One try; none if a slot changed hands between finding it and holding it.
fn attempt(
    members: &[Member<'_>],
    slots: List<Option<KeySlot<'_>>>,
    now: Moment<'_>,
    punish: bool,
) -> Result<Option<Option<Outcome>>, OperationError> {
    let mut order: List<usize> = (0..members.len()).collect();
    order.sort_unstable_by_key(|index| slots[*index].map(|slot| slot.slot.address()));

    let mut shares: List<Share<'_>> = List::new();
    let mut share_of: List<usize> = (0..members.len()).collect();
    for index in order {
        let same = shares
            .last_mut()
            .filter(|share| is_same(share.slot, slots[index]));
        match same {
            // A later member took the slot of an earlier one, whose key could be forgotten.
            Some(share) if !is_same_key(share.slot, slots[index]) => {
                discard_made(members, &slots);
                return Ok(None);
            }
            Some(share) => share.demand = share.demand.and(members[index].demand),
            None => shares.push(Share {
                slot: slots[index],
                first: index,
                demand: members[index].demand,
            }),
        }
        share_of[index] = shares.len() - 1;
    }

    let mut held: List<Option<HeldSlot<'_>>> = List::new();
    for share in &shares {
        let locked = share.slot.map(|wanted| (wanted, wanted.slot.lock()));
        match locked {
            Some((wanted, locked)) if locked.tag() != wanted.tag => {
                drop((locked, held));
                discard_made(members, &slots);
                return Ok(None);
            }
            Some((_, locked)) => held.push(Some(HeldSlot(locked))),
            None => held.push(None),
        }
    }
    let now = time_for_all(members, &shares, &mut held, now);
    let outcome = decide(members, &shares, &share_of, &mut held, now, punish);
    for (share, held) in shares.iter().zip(&mut held) {
        if let (Some(slot), Some(held)) = (share.slot, held)
            && slot.made
        {
            members[share.first].limit.discard(held);
        }
    }
    outcome.map(Some)
}

/// One time for all members, while all slots are held: that of the call, unless a key has seen a
/// later one than its reading of the clock knows.
fn time_for_all(
    members: &[Member<'_>],
    shares: &[Share<'_>],
    held: &mut [Option<HeldSlot<'_>>],
    now: Moment<'_>,
) -> Timestamp {
    let times = shares.iter().zip(held).filter_map(|(share, held)| {
        let limit = members[share.first].limit;
        held.as_mut().map(|held| limit.time_for(held, now))
    });
    // A reading is the same for all that it does for, and one that was made anew does for all.
    times
        .into_iter()
        .find(|time| *time != now.now())
        .unwrap_or(now.now())
}

/// Decides while all slots are held.
fn decide(
    members: &[Member<'_>],
    shares: &[Share<'_>],
    share_of: &[usize],
    held: &mut [Option<HeldSlot<'_>>],
    now: Timestamp,
    punish: bool,
) -> Result<Option<Outcome>, OperationError> {
    let mut decisions: List<Decision> = List::new();
    for (share, held) in shares.iter().zip(held.iter_mut()) {
        let limit = members[share.first].limit;
        decisions.push(match held {
            Some(held) => limit.assess(held, now, &share.demand)?,
            None => limit.deny_new(now, &share.demand)?,
        });
    }
    for (index, share) in shares.iter().enumerate() {
        let member = &members[share.first];
        if let Some(held) = &mut held[index]
            && punish
            && !member.shadow
            && decisions[index].verdict == Verdict::Deny(Denial::Limited)
            && let Some(decision) = member.limit.punish(held, now, &share.demand)
        {
            decisions[index] = decision;
        }
    }
    let told: List<Decision> = members
        .iter()
        .zip(share_of)
        .map(|(member, share)| Decision {
            shadow: member.shadow,
            ..decisions[*share]
        })
        .collect();
    let Some(decision) = rules::combine(&told) else {
        return Ok(None);
    };
    let mut grants: List<Option<LeaseGrant>> = SmallVec::from_elem(None, members.len());
    if rules::allows(&told) {
        for (index, share) in shares.iter().enumerate() {
            if let (Some(held), true) = (&mut held[index], decisions[index].is_allowed()) {
                let grant = members[share.first].limit.commit(held, now, &share.demand);
                grants[share.first] = grant;
            }
        }
    }
    Ok(Some(Outcome {
        decision,
        members: told,
        grants,
    }))
}

/// Frees what a try that came to nothing has made, so that the next one makes it again.
fn discard_made(members: &[Member<'_>], slots: &[Option<KeySlot<'_>>]) {
    for (member, slot) in members.iter().zip(slots) {
        if let Some(made) = slot.filter(|slot| slot.made) {
            let locked = made.slot.lock();
            if locked.tag() == made.tag {
                member.limit.discard(&mut HeldSlot(locked));
            }
        }
    }
}

fn is_same_key(a: Option<KeySlot<'_>>, b: Option<KeySlot<'_>>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.tag == b.tag)
}

fn is_same(a: Option<KeySlot<'_>>, b: Option<KeySlot<'_>>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.slot.address() == b.slot.address())
}

//! Several limits on one call.

use smallvec::SmallVec;
use tidegate_core::{Decision, Demand, LeaseGrant, OperationError, Timestamp, all_of as rules};
use tidegate_store::{Key, KeyHash};

use crate::lease::random_id;
use crate::limiter::{Limiter, Reach};

/// One limit that a call must pass.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The limit.
    pub limiter: &'a Limiter,
    /// Whose state is counted.
    pub key: &'a Key,
    /// What the call wants of it.
    pub demand: Demand,
}

impl<'a> Member<'a> {
    /// Wants `cost` units.
    #[must_use]
    pub const fn take(limiter: &'a Limiter, key: &'a Key, cost: u32) -> Self {
        let demand = Demand::Take { cost };
        Self {
            limiter,
            key,
            demand,
        }
    }

    /// Wants a lease of `weight` permits, under a fresh random id.
    #[must_use]
    pub fn acquire(limiter: &'a Limiter, key: &'a Key, weight: u32) -> Self {
        let lease = random_id();
        let demand = Demand::Acquire { lease, weight };
        Self {
            limiter,
            key,
            demand,
        }
    }
}

/// What became of a call over several limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The decision over the call; `binding` is the index of the member that made it.
    pub decision: Decision,
    /// What each member said, in order. Members in shadow and such as are off are marked.
    pub members: SmallVec<[Decision; 6]>,
    /// The leases granted, by member.
    pub grants: SmallVec<[Option<LeaseGrant>; 6]>,
}

/// Decides over several limits at one moment: all are charged, or none. None without members.
///
/// No other call sees a state in between. Members with the same key of the same limit are summed
/// first. A member in shadow never denies; it is charged where the call passes and it would have
/// let it pass too.
///
/// ```
/// use tidegate::{Demand, Key, Limiter, Member, Micros, Rate, SlidingLog, Timestamp, TokenBucket, all_of};
///
/// let stage = Limiter::new(TokenBucket::new(Rate::per_second(100)?, 200)?);
/// let per_user = Limiter::new(SlidingLog::new(1, Micros::from_secs(60))?);
/// let (route, user) = (Key::new("GET /vips"), Key::new("user-7"));
/// let members = [
///     Member { limiter: &stage, key: &route, demand: Demand::Take { cost: 1 } },
///     Member { limiter: &per_user, key: &user, demand: Demand::Take { cost: 1 } },
/// ];
/// let now = Timestamp::from_micros(0)?;
/// assert!(all_of(&members, now)?.is_some_and(|outcome| outcome.decision.is_allowed()));
/// let second = all_of(&members, now)?.ok_or("there are members")?;
/// assert!(!second.decision.is_allowed());
/// // The user's limit decided, and the stage was not charged for it.
/// assert_eq!((second.decision.binding, second.members[0].remaining), (1, 198));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A demand has no meaning on its limit's algorithm. Nothing was charged then.
pub fn all_of(members: &[Member<'_>], now: Timestamp) -> Result<Option<Outcome>, OperationError> {
    Ok(decide(members, now, true)?.map(|(outcome, _)| outcome))
}

/// Where the state of each member's key lies; none of members that are off.
pub(crate) type Keys = SmallVec<[Option<KeyHash>; 6]>;

/// [`all_of`], and where it was decided. `counts` says whether the call counts as made even if it is
/// denied: then a limit that charges what it denies does so, and observers are told. A caller that
/// waits makes its call when it is through.
pub(crate) fn decide(
    members: &[Member<'_>],
    now: Timestamp,
    counts: bool,
) -> Result<Option<(Outcome, Keys)>, OperationError> {
    let mut keys: Keys = SmallVec::from_elem(None, members.len());
    let mut active: SmallVec<[usize; 6]> = SmallVec::new();
    let mut calls: SmallVec<[tidegate_store::Member<'_>; 6]> = SmallVec::new();
    for (index, member) in members.iter().enumerate() {
        let (key, reach) = member.limiter.locate(member.key);
        if reach != Reach::Off {
            let (limit, shadow) = (member.limiter.table(), reach == Reach::Shadow);
            calls.push(tidegate_store::Member {
                limit,
                key,
                demand: member.demand,
                shadow,
            });
            active.push(index);
            keys[index] = Some(key);
        }
    }
    let decided = if counts {
        tidegate_store::all_of(&calls, now)?
    } else {
        tidegate_store::all_of_sparing(&calls, now)?
    };
    // Who tries again and again tells only what came of it in the end.
    if counts && let Some(decided) = &decided {
        let allowed = decided.decision.is_allowed();
        for (place, index) in active.iter().enumerate() {
            let decision = &decided.members[place];
            // What would have allowed a call that others denied has decided nothing.
            if allowed || !decision.is_within_limit() {
                members[*index].limiter.latest().tell(decision);
            }
        }
    }
    let outcome = match decided {
        Some(decided) if active.len() == members.len() => Some(Outcome {
            decision: decided.decision,
            members: decided.members,
            grants: decided.grants,
        }),
        decided => with_those_that_are_off(members, &active, decided, now),
    };
    Ok(outcome.map(|outcome| (outcome, keys)))
}

/// The outcome where some members are off, or all are: those let everything pass.
fn with_those_that_are_off(
    members: &[Member<'_>],
    active: &[usize],
    decided: Option<tidegate_store::Outcome>,
    now: Timestamp,
) -> Option<Outcome> {
    let mut told: SmallVec<[Decision; 6]> = members
        .iter()
        .map(|member| member.limiter.pass(0, now))
        .collect();
    let mut grants = SmallVec::from_elem(None, members.len());
    if let Some(decided) = decided {
        for (place, index) in active.iter().enumerate() {
            told[*index] = decided.members[place];
            grants[*index] = decided.grants[place];
        }
    }
    let decision = rules::combine(&told)?;
    Some(Outcome {
        decision,
        members: told,
        grants,
    })
}

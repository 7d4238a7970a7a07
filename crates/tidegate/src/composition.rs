//! Several limits on one call.

use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    Decision, Demand, Denial, LeaseGrant, OperationError, Timestamp, Verdict, all_of as rules,
};
use tidegate_store::{Key, KeyHash, Moment};

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
pub fn all_of<'a>(
    members: &[Member<'_>],
    now: impl Into<Moment<'a>>,
) -> Result<Option<Outcome>, OperationError> {
    let now = now.into();
    if let [member] = members
        && let Some(decision) = alone(member, now)
    {
        return Ok(Some(Outcome {
            decision,
            members: smallvec![decision],
            grants: smallvec![None],
        }));
    }
    Ok(decide(members, now, true)?.map(|(outcome, _)| outcome))
}

/// What taking units of one enforced limit alone would come to, on the shortest way. None where
/// the long way has to say it: of a limit that may count no units, for one.
pub(crate) fn alone(member: &Member<'_>, now: Moment<'_>) -> Option<Decision> {
    let Demand::Take { cost } = member.demand else {
        return None;
    };
    let (key, reach) = member.limiter.locate(member.key);
    if reach != Reach::Enforced {
        return None;
    }
    let inner = member.limiter.latest();
    let decision = inner.table.take(key, now, cost);
    if decision.verdict == Verdict::Deny(Denial::Impossible) {
        // Nothing was charged.
        return None;
    }
    inner.tell(&decision);
    Some(decision)
}

/// Where the state of each member's key lies; none of members that are off.
pub(crate) type Keys = SmallVec<[Option<KeyHash>; 6]>;

/// [`all_of`], and where it was decided. `counts` says whether the call counts as made even if it is
/// denied: then a limit that charges what it denies does so, and observers are told. A caller that
/// waits makes its call when it is through.
pub(crate) fn decide(
    members: &[Member<'_>],
    now: Moment<'_>,
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
        decided => with_those_that_are_off(members, &active, decided, now.now()),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{Clock as _, ManualClock, Micros, Mode, Policy, Rate, SlidingLog, TokenBucket};

    /// The short way of one member answers as the long way does, and as the limiter itself.
    #[test]
    fn one_limit_alone_decides_as_among_others() {
        let bucket = TokenBucket::new(Rate::new(3, 1_000_003).unwrap(), 7).unwrap();
        let log = SlidingLog::new(5, Micros::from_secs(2)).unwrap();
        for policy in [Policy::from(bucket), Policy::from(log)] {
            for (mode, punishes) in [
                (Mode::Enforce, false),
                (Mode::Enforce, true),
                (Mode::Shadow, false),
                (Mode::Off, false),
            ] {
                let clock = Arc::new(ManualClock::new(Timestamp::from_micros(9).unwrap()));
                let limiter = || {
                    Limiter::builder(policy.clone())
                        .mode(mode)
                        .charge_denied(punishes)
                        .clock(clock.clone())
                        .build()
                };
                let (short, long) = (limiter(), limiter());
                let key = Key::new("k");
                for round in 0..200_u64 {
                    let cost = u32::try_from(round * 7 % 9).unwrap();
                    let now = clock.now();
                    let quick = all_of(&[Member::take(&short, &key, cost)], now).unwrap();
                    let slow =
                        decide(&[Member::take(&long, &key, cost)], now.into(), true).unwrap();
                    assert_eq!(quick, slow.map(|(outcome, _)| outcome), "{mode:?} {round}");
                    clock.advance(Duration::from_micros(round * 7_919 % 600_000));
                }
                assert_eq!(short.key("k").state(), long.key("k").state());
            }
        }
    }
}

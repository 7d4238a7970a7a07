//! Several shared limits on one call.

use smallvec::{SmallVec, smallvec};
use tidegate_core::{Decision, Demand, OperationError, all_of as rules};
use tidegate_store::Key;
use tidegate_valkey::SharedCall;

use super::SharedLimiter;
use crate::composition::Outcome;
use crate::lease::random_id;
use crate::limiter::Reach;

/// One shared limit that a call must pass.
#[derive(Clone, Copy, Debug)]
pub struct SharedMember<'a> {
    /// The limit.
    pub limiter: &'a SharedLimiter,
    /// Whose state is counted.
    pub key: &'a Key,
    /// What the call wants of it.
    pub demand: Demand,
}

impl<'a> SharedMember<'a> {
    /// Wants `cost` units.
    #[must_use]
    pub const fn take(limiter: &'a SharedLimiter, key: &'a Key, cost: u32) -> Self {
        let demand = Demand::Take { cost };
        Self {
            limiter,
            key,
            demand,
        }
    }

    /// Wants a lease of `weight` permits, under a fresh random id.
    #[must_use]
    pub fn acquire(limiter: &'a SharedLimiter, key: &'a Key, weight: u32) -> Self {
        let lease = random_id();
        let demand = Demand::Acquire { lease, weight };
        Self {
            limiter,
            key,
            demand,
        }
    }
}

/// Decides over several shared limits: all are charged, or none. None without members.
///
/// Limits whose states lie on one server, or in one slot of a cluster, are asked in one step; how it
/// goes where they lie apart is told at [`valkey::all_of`](tidegate_valkey::all_of()). A member in
/// shadow never denies. One whose store gives no answer does as its failure mode says.
///
/// What it grants is not held by anybody: a grant ends at `expires_at` by the server's clock, and is
/// renewed and released by [`SharedKey::apply`](super::SharedKey::apply).
/// [`try_admit`](super::try_admit) gives leases that keep themselves.
///
/// ```no_run
/// use tidegate::shared::{SharedLimiter, SharedMember, all_of};
/// use tidegate::{Key, OperationError};
///
/// # async fn call(stage: SharedLimiter, per_user: SharedLimiter) -> Result<(), OperationError> {
/// let (route, user) = (Key::new("GET /vips"), Key::new("user-7"));
/// let members = [
///     SharedMember::take(&stage, &route, 1),
///     SharedMember::take(&per_user, &user, 1),
/// ];
/// let outcome = all_of(&members).await?;
/// if outcome.is_some_and(|outcome| outcome.decision.is_allowed()) {
///     // Serve.
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A demand has no meaning on its limit's algorithm. Nothing was charged then.
pub async fn all_of(members: &[SharedMember<'_>]) -> Result<Option<Outcome>, OperationError> {
    if let [member] = members {
        let (decision, grant) = member.limiter.decide(member.key, member.demand).await?;
        return Ok(Some(Outcome {
            decision,
            members: smallvec![decision],
            grants: smallvec![grant],
        }));
    }
    let outcome = decide(members).await?;
    if let Some(outcome) = &outcome {
        tell(members, outcome);
    }
    Ok(outcome)
}

/// [`all_of`], of which nobody is told yet.
pub(super) async fn decide(
    members: &[SharedMember<'_>],
) -> Result<Option<Outcome>, OperationError> {
    let mut active: SmallVec<[usize; 6]> = SmallVec::new();
    let mut calls: SmallVec<[SharedCall<'_>; 6]> = SmallVec::new();
    for (index, member) in members.iter().enumerate() {
        let reach = member.limiter.reach(member.key);
        if reach != Reach::Off {
            let shadow = reach == Reach::Shadow;
            calls.push(member.limiter.call(member.key, member.demand, shadow));
            active.push(index);
        }
    }
    let mut told: SmallVec<[Decision; 6]> = members
        .iter()
        .map(|member| member.limiter.pass(0))
        .collect();
    let mut grants = SmallVec::from_elem(None, members.len());
    if let Some(decided) = tidegate_valkey::all_of(&calls).await? {
        for (place, index) in active.iter().enumerate() {
            told[*index] = decided.members[place];
            grants[*index] = decided.grants[place];
        }
    }
    let Some(decision) = rules::combine(&told) else {
        return Ok(None);
    };
    Ok(Some(Outcome {
        decision,
        members: told,
        grants,
    }))
}

/// Tells observers what each member has decided: what would have allowed a call that others denied
/// has decided nothing, and a limit that is off never does.
pub(super) fn tell(members: &[SharedMember<'_>], outcome: &Outcome) {
    let allowed = outcome.decision.is_allowed();
    for (member, decision) in members.iter().zip(&outcome.members) {
        let is_off = member.limiter.reach(member.key) == Reach::Off;
        if !is_off && (allowed || !decision.is_within_limit()) {
            member.limiter.tell(decision);
        }
    }
}

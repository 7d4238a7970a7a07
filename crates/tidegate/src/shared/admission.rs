//! Several shared limits at once, with leases that keep themselves: now, or when all admit.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Decision, Demand, Operation, Reservation, Source, Wait};
use tidegate_store::Key;
use tidegate_valkey::Notifications;
use tokio::time::{Instant, sleep, timeout_at};

use super::SharedLimiter;
use super::acquire::ASK_AGAIN;
use super::composition::{SharedMember, decide, tell};
use super::lessor::Remote;
use super::line::First;
use super::undo::{Undoable, Undone};
use super::waiting::TICK;
use crate::composition::Outcome;
use crate::lease::{Lease, random_id};
use crate::limiter::Reach;
use crate::waiting::{Admission, AdmitError, Granted, WaitError, WaitOptions};

/// Admits a call by all shared limits now, or by none: rates are charged once, leases are granted.
///
/// [`all_of`](super::all_of()), with leases that renew themselves and are given back when the
/// [`Admission`] is dropped. The lease ids in the members' demands are not used. Dropped on its
/// way, the future gives back what it has got.
///
/// ```no_run
/// use tidegate::shared::{SharedLimiter, SharedMember, try_admit};
/// use tidegate::{AdmitError, Key};
///
/// # async fn call(workers: SharedLimiter, per_tenant: SharedLimiter) -> Result<(), AdmitError> {
/// let (cluster, tenant) = (Key::new("cluster"), Key::new("acme"));
/// let members = [
///     SharedMember::acquire(&workers, &cluster, 1),
///     SharedMember::take(&per_tenant, &tenant, 1),
/// ];
/// let admission = try_admit(&members).await?;
/// // Work, while `admission.is_live()`.
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`WaitError::Denied`] if a member has not enough left; [`WaitError::Impossible`] if it never
/// will; [`WaitError::Unsupported`] if a demand has no meaning on its limit;
/// [`WaitError::NoMembers`].
pub async fn try_admit(members: &[SharedMember<'_>]) -> Result<Admission, AdmitError> {
    let parts = owned(members);
    let (outcome, admission) = attempt(&parts).await?;
    tell(members, &outcome);
    admission.ok_or_else(|| {
        let known = Box::new(outcome);
        if known.decision.retry_after.is_never() {
            WaitError::Impossible(known)
        } else {
            WaitError::Denied(known)
        }
    })
}

/// Waits until all limits admit a call at once.
///
/// # Errors
/// As [`admit_with`].
pub async fn admit(members: &[SharedMember<'_>]) -> Result<Admission, AdmitError> {
    admit_with(members, &WaitOptions::new()).await
}

/// Waits until all limits admit a call at once; holds nothing while it waits, so no order of limits
/// can lock callers against each other.
///
/// In this process a caller stands in the line of a limit that denies it, and goes over to that of
/// another when that is what denies it; between processes it is whoever asks first. Where a paced
/// queue is among the members, the call waits for its turn there once all others admit it.
///
/// Dropped at any moment, it leaves nothing behind.
///
/// # Errors
/// [`WaitError::Impossible`] if a member can never allow its part; [`WaitError::TooLong`] at once if
/// it is clear that a rate needs longer than `max_wait`, [`WaitError::Elapsed`] once it has passed;
/// [`WaitError::QueueFull`]; [`WaitError::Unsupported`] if a demand has no meaning on its limit;
/// [`WaitError::NoMembers`].
pub async fn admit_with(
    members: &[SharedMember<'_>],
    options: &WaitOptions,
) -> Result<Admission, AdmitError> {
    let patience = Patience {
        options,
        begun: Instant::now(),
    };
    let parts = owned(members);
    let mut line: Option<InLine> = None;
    loop {
        let (outcome, admission) = attempt(&parts).await?;
        if let Some(admission) = admission {
            return patience
                .hold_back(&parts, members, outcome, admission)
                .await;
        }
        let denied: Vec<usize> = denials(&outcome).collect();
        let rates = denied
            .iter()
            .filter(|member| parts[**member].is_rate())
            .map(|member| outcome.members[*member].retry_after)
            .max();
        let refused = |error: fn(Box<Outcome>) -> AdmitError, outcome: Outcome| {
            tell(members, &outcome);
            Err(error(Box::new(outcome)))
        };
        if outcome.decision.retry_after.is_never() {
            return refused(WaitError::Impossible, outcome);
        }
        if let Some(max_wait) = options.max_wait {
            let left = patience.left().unwrap_or(Duration::ZERO);
            let needed = rates.and_then(Wait::as_duration);
            if left.is_zero() || needed.is_some_and(|needed| needed > left) {
                tell(members, &outcome);
                let known = Box::new(outcome);
                return Err(if line.is_none() && !left.is_zero() {
                    WaitError::TooLong { known, max_wait }
                } else {
                    WaitError::Elapsed { known, max_wait }
                });
            }
        }
        match &mut line {
            Some(line) if denied.contains(&line.member) => {
                line.sleep(&outcome, rates, patience.left()).await;
            }
            _ => {
                // Out of the old line before into the new one: nobody stands in two.
                drop(line.take());
                // A call is denied by a member, or not at all.
                let member = denied.first().copied().unwrap_or(0);
                line = Some(patience.stand(&parts[member], member, outcome).await?);
            }
        }
    }
}

/// A member that outlives the caller's borrow.
#[derive(Clone)]
struct Part {
    limiter: SharedLimiter,
    key: Key,
    demand: Demand,
}

impl Part {
    fn as_member(&self) -> SharedMember<'_> {
        SharedMember {
            limiter: &self.limiter,
            key: &self.key,
            demand: self.demand,
        }
    }

    const fn is_rate(&self) -> bool {
        matches!(self.demand, Demand::Take { .. })
    }

    fn is_shadow(&self) -> bool {
        self.limiter.reach(&self.key) == Reach::Shadow
    }
}

fn owned(members: &[SharedMember<'_>]) -> Vec<Part> {
    let part = |member: &SharedMember<'_>| Part {
        limiter: member.limiter.clone(),
        key: member.key.clone(),
        demand: member.demand,
    };
    members.iter().map(part).collect()
}

/// The members that keep a call from passing.
fn denials(outcome: &Outcome) -> impl Iterator<Item = usize> {
    let told = outcome.members.iter().enumerate();
    told.filter(|(_, told)| !told.is_allowed())
        .map(|(member, _)| member)
}

/// Asks all limits once. With leases of its own for each try: one that was lost on the way may be
/// given back later.
async fn attempt(parts: &[Part]) -> Result<(Outcome, Option<Admission>), AdmitError> {
    let fresh = |part: &Part| Part {
        demand: match part.demand {
            Demand::Acquire { weight, .. } => Demand::Acquire {
                lease: random_id(),
                weight,
            },
            demand => demand,
        },
        ..part.clone()
    };
    let asked: Arc<[Part]> = parts.iter().map(fresh).collect();
    let sent: Vec<_> = asked.iter().map(|part| part.limiter.now()).collect();
    let shared = Arc::clone(&asked);
    let call = async move {
        let members: Vec<_> = shared.iter().map(Part::as_member).collect();
        decide(&members).await
    };
    let shared = Arc::clone(&asked);
    let undo = move |decided| async move {
        if let Ok(Some(outcome)) = decided {
            give_back(&shared, &outcome).await;
        }
    };
    let decided = Undoable::new(call, undo).await;
    let outcome = decided
        .map_err(WaitError::Unsupported)?
        .ok_or(WaitError::NoMembers)?;
    let mut leases = Vec::new();
    for (member, part) in asked.iter().enumerate() {
        let told = &outcome.members[member];
        let Demand::Acquire { lease, .. } = part.demand else {
            continue;
        };
        let (shadow, is_local) = (part.is_shadow(), told.source == Source::Fallback);
        if is_local {
            // It may have been granted on the server all the same.
            let (limiter, key) = (part.limiter.clone(), part.key.clone());
            tokio::spawn(async move { limiter.free_on_server(&key, shadow, lease).await });
        }
        if let Some(grant) = outcome.grants[member] {
            let left = grant.expires_at.as_micros();
            let left = left.saturating_sub(told.at.as_micros());
            let lessor = Remote::new(&part.limiter, &part.key, shadow, is_local, sent[member]);
            let grant = lessor.granted(grant, sent[member], left);
            leases.push(Granted::shared(member, Lease::new(grant, Arc::new(lessor))));
        }
    }
    let admission = outcome
        .decision
        .is_allowed()
        .then(|| Admission::new(outcome.decision, outcome.members.to_vec(), leases));
    Ok((outcome, admission))
}

/// Gives back what a call has got that nobody waits for any more.
async fn give_back(parts: &[Part], outcome: &Outcome) {
    if !outcome.decision.is_allowed() {
        return;
    }
    for (member, part) in parts.iter().enumerate() {
        let told = &outcome.members[member];
        let shadow = part.is_shadow();
        if let Some(grant) = outcome.grants[member] {
            part.limiter.free(&part.key, shadow, grant.lease).await;
        } else {
            cancel(part, told, shadow).await;
        }
    }
}

/// Gives the units of a member back.
async fn cancel(part: &Part, told: &Decision, shadow: bool) {
    if let Demand::Take { cost } = part.demand
        && cost > 0
        && told.is_within_limit()
        && told.source == Source::State
    {
        let at = told.at;
        let reservation = Reservation { cost, at };
        let cancel = Operation::Cancel { reservation };
        part.limiter.undo(&part.key, shadow, cancel).await;
    }
}

/// How long a caller waits, and since when.
struct Patience<'a> {
    options: &'a WaitOptions,
    begun: Instant,
}

impl Patience<'_> {
    /// How much longer; none for as long as it takes.
    fn left(&self) -> Option<Duration> {
        let max_wait = self.options.max_wait?.as_duration();
        Some(max_wait.saturating_sub(self.begun.elapsed()))
    }

    /// Stands in the line of a member, and is the first in it once this returns.
    async fn stand(
        &self,
        part: &Part,
        member: usize,
        known: Outcome,
    ) -> Result<InLine, AdmitError> {
        let known = Box::new(known);
        let place = match part.limiter.0.lines.join(&part.key, self.options) {
            Ok(place) => place,
            Err(waiting) => return Err(WaitError::QueueFull { known, waiting }),
        };
        let first = match self.options.max_wait {
            None => place.first().await,
            Some(max_wait) => {
                let end = self.begun + max_wait.as_duration();
                match timeout_at(end, place.first()).await {
                    Ok(first) => first,
                    Err(_) => return Err(WaitError::Elapsed { known, max_wait }),
                }
            }
        };
        // Heard from before the next try, so that nothing is missed between it and the sleep.
        let freed = (!part.is_rate()).then(|| part.limiter.limit().released(&part.key));
        Ok(InLine {
            member,
            freed,
            _first: first,
        })
    }

    /// Waits for the turn in a paced queue that an admitted call may have. Given up meanwhile, what
    /// it was charged goes back.
    async fn hold_back(
        &self,
        parts: &[Part],
        members: &[SharedMember<'_>],
        outcome: Outcome,
        admission: Admission,
    ) -> Result<Admission, AdmitError> {
        let delay = outcome.decision.delay.as_duration().unwrap_or_default();
        if !delay.is_zero() {
            let rates: Vec<_> = parts
                .iter()
                .zip(&outcome.members)
                .filter(|(part, _)| part.is_rate())
                .map(|(part, told)| (part.clone(), *told))
                .collect();
            let charged = Undone::unless_kept(async move {
                for (part, told) in rates {
                    cancel(&part, &told, part.is_shadow()).await;
                }
            });
            if let Some(max_wait) = self.options.max_wait
                && self.left().is_some_and(|left| delay > left)
            {
                // Dropped here: the charges and the leases go back.
                let known = Box::new(outcome);
                return Err(WaitError::TooLong { known, max_wait });
            }
            sleep(delay).await;
            charged.keep();
        }
        tell(members, &outcome);
        Ok(admission.waited_for())
    }
}

/// The first in the line of a member.
struct InLine {
    member: usize,
    /// Told when somebody gives permits of the member back; none of a rate.
    freed: Option<Notifications>,
    _first: First,
}

impl InLine {
    /// Sleeps until asking again may help.
    async fn sleep(&mut self, outcome: &Outcome, rates: Option<Wait>, left: Option<Duration>) {
        let rest = rates.and_then(Wait::as_duration);
        let expires = outcome.members[self.member].retry_after.as_duration();
        let bounded = |wait: Duration| left.map_or(wait, |left| wait.min(left)).max(TICK);
        match (&mut self.freed, rest) {
            // Nothing helps before the rates have what they lack.
            (_, Some(rest)) => sleep(bounded(rest)).await,
            (Some(freed), None) => {
                let wait = expires.unwrap_or(ASK_AGAIN).min(ASK_AGAIN);
                freed.wait(bounded(wait)).await;
            }
            (None, None) => sleep(bounded(ASK_AGAIN)).await,
        }
    }
}

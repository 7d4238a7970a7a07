//! Several limits at once: rates are charged and leases are held, or nothing is.

use std::sync::Arc;

use tidegate_core::{Decision, Demand, Wait};

use super::error::{AdmitError, WaitError};
use super::job::{Grant, Granted, Known, Part, Refusal, Step, Want, tell_members};
use super::options::WaitOptions;
use super::waiter::Waiter;
use crate::composition::{Member, Outcome};
use crate::lease::{Lease, random_id};

/// A call that was admitted by several limits: holds its leases until it is dropped.
///
/// What the call took from rates stays taken: it was admitted.
#[derive(Debug)]
#[must_use = "an admission that is dropped gives its leases back at once"]
pub struct Admission {
    decision: Decision,
    members: Vec<Decision>,
    leases: Vec<Granted>,
}

impl Admission {
    #[cfg(feature = "valkey")]
    pub(crate) const fn new(
        decision: Decision,
        members: Vec<Decision>,
        leases: Vec<Granted>,
    ) -> Self {
        Self {
            decision,
            members,
            leases,
        }
    }

    /// The same once the caller's turn in a paced queue has come.
    #[cfg(feature = "valkey")]
    pub(crate) const fn waited_for(mut self) -> Self {
        self.decision.delay = Wait::ZERO;
        self
    }

    /// The decision over the call; `binding` is the index of the member that had least to spare.
    ///
    /// Its `delay` is more than zero only from `try_admit` and only where a paced queue is among
    /// the members: the caller waits so long before it goes on.
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What each member said, in order.
    #[must_use]
    pub fn members(&self) -> &[Decision] {
        &self.members
    }

    /// The lease that was granted for a member. None for one that asked for units, that is not
    /// enforced, or that named the same key as an earlier member: that one has the lease of both.
    #[must_use]
    pub fn lease(&self, member: usize) -> Option<&Lease> {
        let held = self.leases.iter().find(|held| held.member == member);
        held.map(|held| &held.lease)
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().map(|held| &held.lease)
    }

    /// Whether all leases are held still.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.leases().all(Lease::is_live)
    }

    /// The leases, to be held apart from the admission.
    #[must_use]
    pub fn into_leases(mut self) -> Vec<Lease> {
        let leases = std::mem::take(&mut self.leases);
        leases.into_iter().map(|held| held.lease).collect()
    }
}

impl Drop for Admission {
    /// Gives all leases back before anybody is served who waits for one of them: whoever waits for
    /// several finds all of them free, at its turn.
    fn drop(&mut self) {
        for held in &self.leases {
            held.free();
        }
    }
}

/// Admits a call by all limits now, or by none: rates are charged once, leases are granted.
///
/// The lease ids in the members' demands are not used: every admission has leases of its own. Time
/// is read once, from the clock of the first member.
///
/// ```
/// use tidegate::{Concurrency, Demand, Key, LeaseId, Limiter, Member, Micros, Rate, TokenBucket, try_admit};
///
/// let rate = Limiter::new(TokenBucket::new(Rate::per_second(10)?, 10)?);
/// let workers = Limiter::new(Concurrency::new(1, Micros::from_secs(30), None)?);
/// let key = Key::new("reports");
/// let members = [
///     Member::take(&rate, &key, 1),
///     Member::acquire(&workers, &key, 1),
/// ];
/// let admission = try_admit(&members)?;
/// assert!(admission.lease(1).is_some());
/// // The worker is busy, so the rate is not charged either.
/// let refused = try_admit(&members);
/// assert_eq!(refused.err().and_then(|error| Some(error.known()?.members[0].remaining)), Some(8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`WaitError::Denied`] if a member has not enough left, or others wait for its leases already;
/// [`WaitError::Impossible`] if it never will; [`WaitError::Unsupported`] if a demand has no meaning on its limit;
/// [`WaitError::NoMembers`].
pub fn try_admit(members: &[Member<'_>]) -> Result<Admission, AdmitError> {
    let want = owned(members);
    let place = want.first().ok_or(WaitError::NoMembers)?.place();
    let somebody_waits = want.iter().any(Part::is_waited_for);
    let now = place.limiter.now();
    let all = Want::All(Arc::clone(&want));
    let decided = if somebody_waits {
        let known = all.peek(&place, now).map_err(WaitError::Unsupported);
        Err(known.map_or_else(|error| error, WaitError::Denied))
    } else {
        match all.attempt(&place, now, None) {
            Step::Granted(grant) => Ok(grant),
            Step::Refused(refusal) => Err(refusal),
            Step::Later(_, known) | Step::Elsewhere(_, known) => Err(WaitError::Denied(known)),
            // Units of several limits are never booked: that would be holding while waiting.
            Step::Booked(booking) => Err(WaitError::Denied(Known::of(booking.decision))),
        }
    };
    match decided {
        Ok(grant) => {
            tell_members(&want, &grant.known);
            Ok(admission(grant))
        }
        Err(refusal) => {
            if let Some(known) = refusal.known() {
                tell_members(&want, known);
            }
            Err(refused(refusal))
        }
    }
}

/// Waits until all limits admit a call at one moment, as long as it takes.
///
/// # Errors
/// As [`admit_with`].
pub async fn admit(members: &[Member<'_>]) -> Result<Admission, AdmitError> {
    admit_with(members, &WaitOptions::new()).await
}

/// Waits until all limits admit a call at one moment.
///
/// It holds nothing while it waits, so no order of members, here or elsewhere, leads to a deadlock;
/// and no attempt that is refused is charged. It stands in the line of one limit that keeps it
/// waiting, behind those who came before it; when its turn comes there and only others deny, it
/// goes over to the line of one of those, and stands there before all who have come later.
///
/// So callers with the same limits gather in one line and are served in the order in which they
/// came. A caller can be passed where limits are shared in part: while it stands in the line of
/// one limit, callers that do not want that one go on taking from the others.
///
/// Where a paced queue is among the members, the call takes its place there when all others
/// admit it, and is held until its turn.
///
/// # Errors
/// [`WaitError::Impossible`] if a member can never allow its part; [`WaitError::TooLong`] if it is
/// clear that a rate needs longer than `max_wait`, [`WaitError::Elapsed`] once it has passed;
/// [`WaitError::QueueFull`]; [`WaitError::Unsupported`] if a demand has no meaning on its limit;
/// [`WaitError::NoMembers`].
pub async fn admit_with(
    members: &[Member<'_>],
    options: &WaitOptions,
) -> Result<Admission, AdmitError> {
    waited(waiter(members, options)?.wait().await)
}

/// [`admit_with`] with the thread, without a runtime.
///
/// # Errors
/// As [`admit_with`].
pub fn admit_blocking(
    members: &[Member<'_>],
    options: &WaitOptions,
) -> Result<Admission, AdmitError> {
    waited(waiter(members, options)?.block())
}

fn waiter(members: &[Member<'_>], options: &WaitOptions) -> Result<Waiter, AdmitError> {
    let want = owned(members);
    let place = want.first().ok_or(WaitError::NoMembers)?.place();
    Ok(Waiter::new(place, Want::All(want), options))
}

fn waited(waited: Result<Grant, Refusal>) -> Result<Admission, AdmitError> {
    let mut grant = waited.map_err(refused)?;
    // It has been waited for.
    grant.known.decision.delay = Wait::ZERO;
    Ok(admission(grant))
}

/// The members, to be kept while waiting, with lease ids of their own.
fn owned(members: &[Member<'_>]) -> Arc<[Part]> {
    members
        .iter()
        .map(|member| Part {
            limiter: member.limiter.clone(),
            key: member.key.clone(),
            demand: match member.demand {
                Demand::Acquire { weight, .. } => Demand::Acquire {
                    lease: random_id(),
                    weight,
                },
                demand => demand,
            },
        })
        .collect()
}

fn admission(grant: Grant) -> Admission {
    Admission {
        decision: grant.known.decision,
        members: grant.known.members,
        leases: grant.leases,
    }
}

fn refused(refusal: Refusal) -> AdmitError {
    refusal.map(|known| {
        let grants = std::iter::repeat_n(None, known.members.len()).collect();
        Box::new(Outcome {
            decision: known.decision,
            members: known.members.into(),
            grants,
        })
    })
}

//! What the model answers: its own words, and the translation of an engine's reply into them.

use tidegate_core::{Decision, Denial, KeyState, LeaseGrant, OperationError, Reply, Verdict, Wait};

use super::numbers::Int;

/// Why a demand is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not enough is left.
    Limited,
    /// The key is blocked or banned.
    Blocked,
    /// It can never fit.
    Impossible,
}

/// The answer to a demand. Waits are in microseconds; none means never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// None if the demand passes.
    pub refusal: Option<Refusal>,
    /// The most at once.
    pub limit: Int,
    /// Calls of cost 1 that would still pass.
    pub remaining: Int,
    /// Units asked for.
    pub cost: Int,
    /// How long an allowed caller waits.
    pub delay: Option<Int>,
    /// When a refused demand would pass.
    pub retry_after: Option<Int>,
    /// When the limit is full again.
    pub reset_after: Option<Int>,
    /// The key's own time.
    pub at: Int,
    /// Which member decided.
    pub binding: usize,
    /// Whether the limit is only watched.
    pub shadow: bool,
}

/// A live lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// Whose.
    pub lease: u128,
    /// Permits.
    pub weight: Int,
    /// Rises with every grant.
    pub token: Int,
    /// The first moment it is dead.
    pub expires: Int,
}

/// Everything that is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The most at once.
    pub limit: Int,
    /// Units in use, rounded up.
    pub used: Int,
    /// Calls of cost 1 that would pass.
    pub remaining: Int,
    /// When the limit is full again.
    pub reset_after: Option<Int>,
    /// How much longer the key is blocked.
    pub blocked_for: Int,
    /// The latest time seen.
    pub last: Int,
    /// Live leases, in the order of their expiry.
    pub leases: Vec<Grant>,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To take, peek, take_up_to, force and attempt.
    Ruling(Ruling),
    /// To reserve: with cost and time of the reservation.
    Reserved(Ruling, Option<(Int, Int)>),
    /// To acquire.
    Leased(Ruling, Option<Grant>),
    /// To settle, cancel and refund.
    Refunded(Int),
    /// To renew.
    Renewed(Option<Grant>),
    /// To release.
    Released(bool),
    /// To what has nothing to say.
    Done,
    /// To state.
    Standing(Standing),
    /// The algorithm has no such operation.
    Unsupported,
    /// A number is out of its range.
    OutOfRange,
}

/// The answer to a call over several limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointAnswer {
    /// The ruling over the call.
    pub ruling: Ruling,
    /// What each member said.
    pub members: Vec<Ruling>,
    /// The leases granted, by member.
    pub grants: Vec<Option<Grant>>,
}

fn wait(wait: Wait) -> Option<Int> {
    wait.as_micros().map(Int::from)
}

impl Ruling {
    /// The engine's decision in the model's words.
    ///
    /// # Panics
    /// On a denial that the model does not know, such as that of a full table.
    #[must_use]
    pub fn of(decision: &Decision) -> Self {
        Self {
            refusal: match decision.verdict {
                Verdict::Allow => None,
                Verdict::Deny(Denial::Limited) => Some(Refusal::Limited),
                Verdict::Deny(Denial::Blocked) => Some(Refusal::Blocked),
                Verdict::Deny(Denial::Impossible) => Some(Refusal::Impossible),
                Verdict::Deny(other) => panic!("the model never denies as {other:?}"),
            },
            limit: decision.limit.into(),
            remaining: decision.remaining.into(),
            cost: decision.cost.into(),
            delay: wait(decision.delay),
            retry_after: wait(decision.retry_after),
            reset_after: wait(decision.reset_after),
            at: decision.at.as_micros().into(),
            binding: decision.binding,
            shadow: decision.shadow,
        }
    }
}

impl Grant {
    /// The engine's grant in the model's words.
    #[must_use]
    pub fn of(grant: &LeaseGrant) -> Self {
        Self {
            lease: grant.lease.0,
            weight: grant.weight.into(),
            token: grant.fencing_token.into(),
            expires: grant.expires_at.as_micros().into(),
        }
    }
}

impl Standing {
    fn of(state: &KeyState) -> Self {
        let mut leases: Vec<Grant> = state.leases.iter().map(Grant::of).collect();
        leases.sort_by_key(|grant| (grant.expires, grant.token));
        Self {
            limit: state.limit.into(),
            used: state.used.into(),
            remaining: state.remaining.into(),
            reset_after: wait(state.reset_after),
            blocked_for: state.blocked_for.0.into(),
            last: state.last.as_micros().into(),
            leases,
        }
    }
}

impl Answer {
    /// An engine's reply in the model's words.
    ///
    /// # Panics
    /// On a reply or an error that the model does not know.
    #[must_use]
    pub fn of(reply: &Result<Reply, OperationError>) -> Self {
        match reply {
            Ok(Reply::Decision(decision)) => Self::Ruling(Ruling::of(decision)),
            Ok(Reply::Reserved(decision, reservation)) => Self::Reserved(
                Ruling::of(decision),
                reservation.map(|made| (made.cost.into(), made.at.as_micros().into())),
            ),
            Ok(Reply::Leased(decision, grant)) => {
                Self::Leased(Ruling::of(decision), grant.as_ref().map(Grant::of))
            }
            Ok(Reply::Refunded(units)) => Self::Refunded((*units).into()),
            Ok(Reply::Renewed(grant)) => Self::Renewed(grant.as_ref().map(Grant::of)),
            Ok(Reply::Released(live)) => Self::Released(*live),
            Ok(Reply::Done) => Self::Done,
            Ok(Reply::State(state)) => Self::Standing(Standing::of(state)),
            Ok(other) => panic!("the model never answers {other:?}"),
            Err(OperationError::Unsupported { .. }) => Self::Unsupported,
            Err(OperationError::PeriodOutOfRange(_)) => Self::OutOfRange,
            Err(other) => panic!("the model never fails with {other:?}"),
        }
    }

    /// The ruling in this answer, where there is one.
    #[must_use]
    pub const fn ruling(&self) -> Option<&Ruling> {
        match self {
            Self::Ruling(ruling) | Self::Reserved(ruling, _) | Self::Leased(ruling, _) => {
                Some(ruling)
            }
            _ => None,
        }
    }
}

//! The commands on configured limits: `TG.TAKE` and its kin.
//!
//! A decision is seven answers in one, the same in both versions of the protocol: whether the call
//! passes (1 or 0), the limit, what remains, `retry_after`, `reset_after` and `delay` in
//! milliseconds, rounded up, -1 for never, and why in a word.

use tidegate::{
    Decision, Demand, Denial, LeaseGrant, Operation, Policy, Reply, Timestamp, Verdict,
};

use super::arguments::{lease, lease_text, millis, number, wrong_number};
use super::frame::Command;
use super::reply::{Replies, quote};
use crate::served::{Served, ServedLimit};

/// The most units of a call.
const MAX_UNITS: u32 = i32::MAX as u32;

/// The longest lease in milliseconds that a number here can say.
const MAX_LEASE: u32 = u32::MAX;

/// The commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitCommand {
    Take,
    Peek,
    Refund,
    Acquire,
    Renew,
    Release,
    Explain,
}

impl LimitCommand {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Take => "tg.take",
            Self::Peek => "tg.peek",
            Self::Refund => "tg.refund",
            Self::Acquire => "tg.acquire",
            Self::Renew => "tg.renew",
            Self::Release => "tg.release",
            Self::Explain => "tg.explain",
        }
    }

    /// The least and the most arguments, the name included.
    pub(crate) const fn arguments(self) -> (usize, usize) {
        match self {
            Self::Take | Self::Peek | Self::Refund => (3, 4),
            Self::Acquire => (4, 5),
            Self::Renew | Self::Release => (4, 4),
            Self::Explain => (2, 3),
        }
    }

    /// Answers the command.
    pub(crate) fn answer(
        self,
        served: &Served,
        command: Command<'_>,
        now: Timestamp,
        replies: &mut Replies<'_>,
    ) {
        let (least, most) = self.arguments();
        if !(least..=most).contains(&command.len()) {
            return wrong_number(self.name(), replies);
        }
        let name = command.get(1).unwrap_or_default();
        let Some(limit) = served.get(name) else {
            let known = served.names().join(", ");
            let error = format!(
                "TGNOLIMIT there is no limit {}; there are: {known}",
                quote(name)
            );
            return replies.error(&error);
        };
        let key = command.get(2);
        let answered = match self {
            Self::Take => take(limit, command, now, replies),
            Self::Peek => peek(limit, command, now, replies),
            Self::Refund => refund(limit, command, now, replies),
            Self::Acquire => acquire(limit, command, now, replies),
            Self::Renew => renew(limit, command, now, replies),
            Self::Release => release(limit, command, now, replies),
            Self::Explain => super::explain::explain(limit, key, now, replies),
        };
        if let Err(error) = answered {
            replies.error(&error);
        }
    }
}

/// What could not be done, as the client reads it.
type Failed = String;

fn no_decision(limit: &ServedLimit, error: &impl std::fmt::Display) -> Failed {
    format!("ERR limit '{}': {error}", limit.named().name())
}

fn key(command: Command<'_>) -> &[u8] {
    command.get(2).unwrap_or_default()
}

/// The number at a place, if the command has it.
fn optional(command: Command<'_>, place: usize, name: &str) -> Result<Option<u32>, Failed> {
    if command.len() <= place {
        return Ok(None);
    }
    number(command, place, name, 0, MAX_UNITS).map(Some)
}

#[inline]
fn take(
    limit: &ServedLimit,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), Failed> {
    let cost = optional(command, 3, "cost")?;
    let decision = limit
        .take(key(command), cost, now)
        .map_err(|error| no_decision(limit, &error))?;
    write_decision(&decision, replies);
    Ok(())
}

fn peek(
    limit: &ServedLimit,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), Failed> {
    let cost = optional(command, 3, "cost")?.unwrap_or(limit.named().config().cost);
    // What a take would answer: of permits where the limit has those, of a guess where it has these.
    let demand = match limit.named().limiter().policy() {
        Policy::Concurrency(_) => Demand::Acquire {
            lease: tidegate::LeaseId(0),
            weight: cost,
        },
        Policy::Lockout(_) => Demand::Attempt { seed: 0 },
        _ => Demand::Take { cost },
    };
    let reply = limit
        .apply(key(command), &Operation::Peek(demand), now)
        .map_err(|error| no_decision(limit, &error))?;
    if let Some(decision) = reply.decision() {
        write_decision(decision, replies);
    }
    Ok(())
}

fn refund(
    limit: &ServedLimit,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), Failed> {
    let cost = optional(command, 3, "units")?.unwrap_or(limit.named().config().cost);
    let reply = limit.apply(key(command), &Operation::Refund { cost }, now);
    let Reply::Refunded(units) = reply.map_err(|error| no_decision(limit, &error))? else {
        unreachable!("a refund is answered by units");
    };
    replies.int(i64::from(units));
    Ok(())
}

fn acquire(
    limit: &ServedLimit,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), Failed> {
    let wanted = number(command, 3, "lease-ms", 1, MAX_LEASE)?;
    let weight = optional(command, 4, "weight")?.unwrap_or(1);
    if let Policy::Concurrency(policy) = limit.named().limiter().policy() {
        // A lease that ends before its holder believes would let one more work.
        let longest = policy.lease().0 / 1_000;
        if u64::from(wanted) > longest {
            return Err(format!(
                "ERR limit '{}' grants leases of {longest} ms: ask for no more, and renew",
                limit.named().name()
            ));
        }
    }
    let (decision, grant) = limit
        .acquire(key(command), weight, now)
        .map_err(|error| no_decision(limit, &error))?;
    replies.array(7);
    replies.int(i64::from(grant.is_some()));
    match &grant {
        Some(grant) => replies.text(&lease_text(grant.lease)),
        None => replies.null(),
    }
    write_hold(grant.as_ref(), now, replies);
    replies.int(i64::from(decision.limit));
    replies.int(i64::from(decision.remaining));
    replies.int(millis(decision.retry_after));
    Ok(())
}

fn renew(
    limit: &ServedLimit,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), Failed> {
    let lease = lease(command.get(3).unwrap_or_default())?;
    let renewed = limit.named().renew(key(command), lease, now);
    let grant = renewed.map_err(|error| no_decision(limit, &error))?;
    replies.array(3);
    replies.int(i64::from(grant.is_some()));
    write_hold(grant.as_ref(), now, replies);
    Ok(())
}

fn release(
    limit: &ServedLimit,
    command: Command<'_>,
    now: Timestamp,
    replies: &mut Replies<'_>,
) -> Result<(), Failed> {
    let lease = lease(command.get(3).unwrap_or_default())?;
    let released = limit.named().release(key(command), lease, now);
    let was_live = released.map_err(|error| no_decision(limit, &error))?;
    replies.int(i64::from(was_live));
    Ok(())
}

/// The fencing token, and for how many milliseconds the lease is held: rounded down, for whoever
/// goes on working after it has ended is late.
fn write_hold(grant: Option<&LeaseGrant>, now: Timestamp, replies: &mut Replies<'_>) {
    let (token, left) = grant.map_or((0, 0), |grant| {
        let left = grant.expires_at.as_micros().saturating_sub(now.as_micros());
        (grant.fencing_token, left / 1_000)
    });
    replies.int(i64::try_from(token).unwrap_or(i64::MAX));
    replies.int(i64::try_from(left).unwrap_or(i64::MAX));
}

#[inline]
fn write_decision(decision: &Decision, replies: &mut Replies<'_>) {
    replies.array(7);
    replies.int(i64::from(decision.is_allowed()));
    replies.int(i64::from(decision.limit));
    replies.int(i64::from(decision.remaining));
    replies.int(millis(decision.retry_after));
    replies.int(millis(decision.reset_after));
    replies.int(millis(decision.delay));
    replies.simple(reason(decision));
}

/// Why, in a word.
fn reason(decision: &Decision) -> &'static str {
    match decision.verdict {
        Verdict::Allow => "allowed",
        Verdict::Deny(_) if decision.shadow => "shadow",
        Verdict::Deny(Denial::Limited) => "limited",
        Verdict::Deny(Denial::Blocked) => "blocked",
        Verdict::Deny(Denial::Impossible) => "impossible",
        Verdict::Deny(Denial::TableFull) => "table_full",
        Verdict::Deny(_) => "fallback",
    }
}

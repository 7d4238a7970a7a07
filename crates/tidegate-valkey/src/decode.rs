//! What scripts answer, as the engine's answers.

use redis::Value;
use smallvec::SmallVec;
use tidegate_core::{
    Decision, Demand, Denial, KeyState, LeaseGrant, LeaseId, Micros, Operation, Reply, Reservation,
    Source, Timestamp, Verdict, Wait, all_of as rules,
};
use tidegate_store::Outcome;

use crate::encode::JointCall;

/// What came back for a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<T> {
    /// The answer itself.
    Reply {
        /// What the engine says.
        reply: T,
        /// How many keys had their times moved back, because the server's clock was corrected.
        rebased: u32,
    },
    /// Nothing was done: the calendar's window at this point in time is needed. The caller makes
    /// the call again and brings it along.
    NeedsWindow(Timestamp),
}

/// An answer that no script gives: another version of them, or another server, spoke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected answer of a script: {found}; are all processes of one version?")]
pub struct ReplyError {
    found: String,
}

impl ReplyError {
    fn new(value: &Value) -> Self {
        Self {
            found: format!("{value:?}"),
        }
    }
}

/// What a script says instead of an answer when it lacks a calendar's window.
const NEEDS_WINDOW: u8 = 64;

/// What is added to the first number when the key's times were moved back.
const REBASED: u8 = 8;

/// The fields of an answer, read one after the other: whole numbers, high byte first.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::BulkString(bytes) => Some(Self(bytes)),
            _ => None,
        }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn count(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn micros(&mut self) -> Option<u64> {
        let [a, b, c, d, e, f, g] = self.take()?;
        Some(u64::from_be_bytes([0, a, b, c, d, e, f, g]))
    }

    /// What lies beyond the end of time is told as its end.
    fn time(&mut self) -> Option<Timestamp> {
        let micros = self.micros()?;
        Some(Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX))
    }

    /// All bits set is never.
    fn wait(&mut self) -> Option<Wait> {
        let micros = self.micros()?;
        Some(if micros == (1 << 56) - 1 {
            Wait::NEVER
        } else {
            Wait::micros(micros)
        })
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A lease whose id the caller knows.
    fn grant(&mut self, lease: LeaseId) -> Option<LeaseGrant> {
        Some(LeaseGrant {
            lease,
            weight: self.count()?,
            fencing_token: self.micros()?,
            expires_at: self.time()?,
        })
    }

    /// A lease if there is one.
    fn optional_grant(&mut self, lease: LeaseId) -> Option<Option<LeaseGrant>> {
        if self.is_empty() {
            return Some(None);
        }
        self.grant(lease).map(Some)
    }

    fn leases(&mut self) -> Option<Vec<LeaseGrant>> {
        let mut leases = Vec::new();
        while !self.is_empty() {
            let id = u128::from_be_bytes(self.take()?);
            leases.push(self.grant(LeaseId(id))?);
        }
        Some(leases)
    }

    /// The rest of a decision, after its first number.
    fn decision(&mut self, code: u8) -> Option<Decision> {
        Some(Decision {
            verdict: match code {
                0 => Verdict::Allow,
                1 => Verdict::Deny(Denial::Limited),
                2 => Verdict::Deny(Denial::Blocked),
                3 => Verdict::Deny(Denial::Impossible),
                _ => return None,
            },
            limit: self.count()?,
            remaining: self.count()?,
            cost: self.count()?,
            delay: self.wait()?,
            retry_after: self.wait()?,
            reset_after: self.wait()?,
            at: self.time()?,
            binding: 0,
            shadow: false,
            source: Source::State,
        })
    }
}

/// The answer to one operation. `shadow` says whether the limit is only watched.
///
/// # Errors
/// The value is nothing that the scripts of this version answer.
pub fn reply_from(
    operation: &Operation,
    shadow: bool,
    value: &Value,
) -> Result<Answer<Reply>, ReplyError> {
    read_reply(operation, shadow, value).ok_or_else(|| ReplyError::new(value))
}

fn read_reply(operation: &Operation, shadow: bool, value: &Value) -> Option<Answer<Reply>> {
    let mut fields = Fields::of(value)?;
    let code = fields.byte()?;
    if code == NEEDS_WINDOW {
        return fields.time().map(Answer::NeedsWindow);
    }
    let verdict = code % REBASED;
    let mut decision = || {
        let decision = fields.decision(verdict)?;
        Some(Decision { shadow, ..decision })
    };
    let reply = match *operation {
        Operation::Take(Demand::Acquire { lease, .. })
        | Operation::Peek(Demand::Acquire { lease, .. }) => {
            let decision = decision()?;
            Reply::Leased(decision, fields.optional_grant(lease)?)
        }
        Operation::Take(_)
        | Operation::Peek(_)
        | Operation::TakeUpTo { .. }
        | Operation::Force { .. } => Reply::Decision(decision()?),
        Operation::Reserve { cost, .. } => {
            let decision = decision()?;
            let at = decision.at;
            let reservation = Reservation { cost, at };
            Reply::Reserved(decision, decision.is_within_limit().then_some(reservation))
        }
        Operation::Settle { .. } | Operation::Cancel { .. } | Operation::Refund { .. } => {
            Reply::Refunded(fields.count()?)
        }
        Operation::Renew { lease } => Reply::Renewed(fields.optional_grant(lease)?),
        Operation::Release { .. } => Reply::Released(fields.byte()? == 1),
        Operation::State => Reply::State(KeyState {
            limit: fields.count()?,
            used: fields.count()?,
            remaining: fields.count()?,
            reset_after: fields.wait()?,
            blocked_for: Micros(fields.micros()?),
            last: fields.time()?,
            leases: fields.leases()?,
        }),
        _ => Reply::Done,
    };
    let rebased = u32::from(code >= REBASED);
    fields
        .is_empty()
        .then_some(Answer::Reply { reply, rebased })
}

/// The answer to a call over several limits.
///
/// # Errors
/// As [`reply_from`].
pub fn outcome_from(call: &JointCall, value: &Value) -> Result<Answer<Outcome>, ReplyError> {
    read_outcome(call, value).ok_or_else(|| ReplyError::new(value))
}

fn read_outcome(call: &JointCall, value: &Value) -> Option<Answer<Outcome>> {
    let Value::Array(answers) = value else {
        let mut fields = Fields::of(value)?;
        fields.byte().filter(|code| *code == NEEDS_WINDOW)?;
        return fields.time().map(Answer::NeedsWindow);
    };
    if answers.len() != call.shares.len() {
        return None;
    }
    let mut rebased = 0;
    let mut decisions: SmallVec<[Decision; 6]> = SmallVec::new();
    let mut grants = SmallVec::from_elem(None, call.share_of.len());
    for ((first, demand), answer) in call.shares.iter().zip(answers) {
        let mut fields = Fields::of(answer)?;
        let code = fields.byte()?;
        rebased += u32::from(code >= REBASED);
        decisions.push(fields.decision(code % REBASED)?);
        if let Demand::Acquire { lease, .. } = demand {
            grants[*first] = fields.optional_grant(*lease)?;
        }
    }
    let told: SmallVec<[Decision; 6]> = call
        .share_of
        .iter()
        .zip(&call.shadow)
        .map(|(share, shadow)| Decision {
            shadow: *shadow,
            ..decisions[*share]
        })
        .collect();
    let reply = Outcome {
        decision: rules::combine(&told)?,
        members: told,
        grants,
    };
    Some(Answer::Reply { reply, rebased })
}

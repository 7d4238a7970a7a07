//! One attempt: what the engine makes of values as they were read, and what is to be written.
//!
//! The steps are those of `engine.lua`, made by the engine itself.

use tidegate_core::engine::Effect;
use tidegate_core::{
    Algorithm, Decision, Demand, Denial, Entry, LeaseGrant, Operation, OperationError, Policy,
    Reply, Timestamp, Verdict, all_of as rules, engine, with_algorithm,
};

use smallvec::SmallVec;
use tidegate_store::Outcome;

use super::codec::{self, Kept, as_same};
use crate::{JointCall, LimitSpec, SharedMember};

/// How far a clock may be behind before it counts as corrected, in microseconds.
const JITTER: u64 = 1_000_000;

/// What becomes of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// It stays as it was read.
    None,
    /// It is replaced by this, for so many microseconds or for ever.
    Set(Vec<u8>, Option<u64>),
    /// It goes.
    Forget,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    Operation(OperationError),
    /// A value is none that this version writes.
    Unreadable,
}

/// A key's entry under the numbers that decide.
struct Opened<A: Algorithm> {
    algorithm: A,
    policy: Policy,
    header: Vec<u8>,
    entry: Entry<A::State>,
    is_kept: bool,
    is_dirty: bool,
    is_rebased: bool,
}

/// Applies an operation to a value as it was read; `now` is the server's time. Also says whether the
/// key's times were moved back.
pub(crate) fn apply(
    limit: &LimitSpec,
    raw: Option<&[u8]>,
    now: Timestamp,
    operation: &Operation,
    shadow: bool,
) -> Result<(Reply, bool, Write), Failure> {
    with_algorithm!(limit.policy(), algorithm => {
        let mut opened = open(algorithm, limit, raw, now)?;
        let reply = opened.execute(limit, now, operation, shadow)?;
        let (reply, effect) = reply;
        let write = opened.close(now, effect);
        Ok((reply, opened.is_rebased, write))
    })
}

fn open<A: Algorithm>(
    own: &A,
    limit: &LimitSpec,
    raw: Option<&[u8]>,
    now: Timestamp,
) -> Result<Opened<A>, Failure> {
    let mut opened = Opened {
        algorithm: own.clone(),
        policy: limit.policy().clone(),
        header: limit.header().to_vec(),
        entry: Entry::fresh(own, now),
        is_kept: false,
        is_dirty: false,
        is_rebased: false,
    };
    // What was forgotten by being emptied is as good as gone.
    let Some(raw) = raw.filter(|raw| !raw.is_empty()) else {
        return Ok(opened);
    };
    let kept = Kept::read(raw, limit.policy().calendar()).ok_or(Failure::Unreadable)?;
    let old = as_same(own, &kept.policy).ok_or(Failure::Unreadable)?;
    opened.is_kept = true;
    opened.entry = kept.entry(old).ok_or(Failure::Unreadable)?;
    opened.is_rebased = kept.last.saturating_sub(now.as_micros()) > JITTER;
    opened.is_dirty = opened.is_rebased;
    if kept.header == opened.header {
        return Ok(opened);
    }
    let empty = value_of(limit);
    let own_calendar = Kept::read(&empty, limit.policy().calendar());
    let is_other_calendar = own_calendar.is_none_or(|own| own.calendar != kept.calendar);
    if is_other_calendar && let Some(end) = kept.calendar_end() {
        // Its count is in a window that only its own calendar knows: until that ends, it is in the
        // one of now.
        let at = kept.last.max(now.as_micros());
        let is_over = at >= end && !opened.is_rebased;
        let words = [
            at,
            if is_over {
                0
            } else {
                used_of(&opened.entry, old)
            },
            0,
        ];
        let mut words = words.into_iter();
        let state = old
            .read_state(&mut || words.next())
            .ok_or(Failure::Unreadable)?;
        opened.entry.state = state;
    }
    if kept.generation > limit.generation() {
        // Another process has newer numbers already; going back would forgive with each turn.
        opened.algorithm = old.clone();
        opened.policy = kept.policy.clone();
        opened.header = kept.header;
    } else if kept.header[0] != opened.header[0] || kept.header[5..] != opened.header[5..] {
        engine::reprice(old, own, &mut opened.entry, now, limit.change());
        opened.is_dirty = true;
    }
    Ok(opened)
}

/// An empty value of a limit, for the numbers in its header.
fn value_of(limit: &LimitSpec) -> Vec<u8> {
    let mut value = limit.header().to_vec();
    value.extend_from_slice(&[0; 7]);
    value
}

/// What a fixed window has counted when it was written.
fn used_of<A: Algorithm>(entry: &Entry<A::State>, _: &A) -> u64 {
    let mut words = Vec::new();
    A::write_state(&entry.state, &mut words);
    words.get(1).copied().unwrap_or(0)
}

impl<A: Algorithm> Opened<A> {
    fn execute(
        &mut self,
        limit: &LimitSpec,
        now: Timestamp,
        operation: &Operation,
        shadow: bool,
    ) -> Result<(Reply, Effect), Failure> {
        let applied = engine::execute(&self.algorithm, &mut self.entry, now, operation)
            .map_err(Failure::Operation)?;
        let (mut reply, mut effect) = (applied.reply, applied.effect);
        let is_take = matches!(
            operation,
            Operation::Take(Demand::Take { .. }) | Operation::TakeUpTo { .. }
        );
        if let Reply::Decision(decision) = &reply
            && is_take
            && limit.charges_denied()
            && is_limited(decision)
        {
            let demand = Demand::Take {
                cost: decision.cost,
            };
            let decision = engine::punish(&self.algorithm, &mut self.entry, now, &demand);
            (reply, effect) = (Reply::Decision(decision), Effect::Changed);
        }
        if shadow {
            watched(&mut reply);
        }
        Ok((reply, effect))
    }

    /// What is to be written.
    fn close(&self, now: Timestamp, effect: Effect) -> Write {
        match effect {
            Effect::Forgotten if self.is_kept => Write::Forget,
            Effect::Forgotten => Write::None,
            Effect::None if !(self.is_dirty && self.is_kept) => Write::None,
            Effect::None | Effect::Changed => {
                let value = codec::write::<A>(&self.header, &self.policy, &self.entry);
                let fresh = engine::fresh_after(&self.algorithm, &self.entry, now);
                Write::Set(value, fresh.as_micros())
            }
        }
    }
}

const fn is_limited(decision: &Decision) -> bool {
    matches!(decision.verdict, Verdict::Deny(Denial::Limited))
}

const fn watched(reply: &mut Reply) {
    if let Reply::Decision(decision) | Reply::Leased(decision, _) | Reply::Reserved(decision, _) =
        reply
    {
        decision.shadow = true;
    }
}

/// One key of a call over several limits.
struct Share<'a> {
    limit: &'a LimitSpec,
    demand: Demand,
    shadow: bool,
    raw: Option<&'a [u8]>,
}

/// What one key of a call over several limits is told, and what is to be written.
struct Told {
    decision: Decision,
    grant: Option<LeaseGrant>,
    is_rebased: bool,
    write: Write,
}

/// An entry that is looked at before any is charged.
trait Looked {
    fn decision(&self) -> Decision;
    fn finish(self: Box<Self>, now: Timestamp, demand: &Demand, charge: bool) -> Told;
}

struct Assessed<A: Algorithm> {
    opened: Opened<A>,
    decision: Decision,
    effect: Effect,
}

impl<A: Algorithm> Looked for Assessed<A> {
    fn decision(&self) -> Decision {
        self.decision
    }

    fn finish(mut self: Box<Self>, now: Timestamp, demand: &Demand, charge: bool) -> Told {
        let mut grant = None;
        if charge {
            let opened = &mut self.opened;
            (self.effect, grant) =
                engine::commit(&opened.algorithm, &mut opened.entry, now, demand);
        }
        Told {
            decision: self.decision,
            grant,
            is_rebased: self.opened.is_rebased,
            write: self.opened.close(now, self.effect),
        }
    }
}

/// Decides over several keys, and charges all or none.
fn all_of(shares: &[Share<'_>], now: Timestamp) -> Result<Vec<Told>, Failure> {
    let mut looked: Vec<Box<dyn Looked>> = Vec::new();
    for share in shares {
        looked.push(with_algorithm!(share.limit.policy(), algorithm => {
            look(open(algorithm, share.limit, share.raw, now)?, share, now)?
        }));
    }
    let decisions: Vec<Decision> = looked.iter().map(|looked| looked.decision()).collect();
    let passes = rules::allows(&decisions);
    let told = looked.into_iter().zip(shares).map(|(looked, share)| {
        let charge = passes && looked.decision().is_within_limit();
        looked.finish(now, &share.demand, charge)
    });
    Ok(told.collect())
}

fn look<A: Algorithm>(
    mut opened: Opened<A>,
    share: &Share<'_>,
    now: Timestamp,
) -> Result<Box<dyn Looked>, Failure> {
    let (decision, _) = engine::assess(&opened.algorithm, &mut opened.entry, now, &share.demand)
        .map_err(Failure::Operation)?;
    let mut effect = Effect::None;
    let mut decision = decision;
    let is_take = matches!(share.demand, Demand::Take { .. });
    if is_take && share.limit.charges_denied() && !share.shadow && is_limited(&decision) {
        decision = engine::punish(&opened.algorithm, &mut opened.entry, now, &share.demand);
        effect = Effect::Changed;
    }
    decision.shadow = share.shadow;
    Ok(Box::new(Assessed {
        opened,
        decision,
        effect,
    }))
}

/// Decides over the keys of a joint call, from their values as they were read. Also says how many
/// keys had their times moved back.
pub(crate) fn decide_joint<V: AsRef<[u8]>>(
    members: &[SharedMember<'_>],
    joint: &JointCall,
    values: &[Option<V>],
    now: Timestamp,
) -> Result<((Outcome, u32), Vec<Write>), Failure> {
    let shares: Vec<Share<'_>> = joint
        .shares
        .iter()
        .zip(values)
        .map(|((first, demand), raw)| Share {
            limit: members[*first].limit,
            demand: *demand,
            shadow: members[*first].shadow,
            raw: raw.as_ref().map(AsRef::as_ref),
        })
        .collect();
    let told = all_of(&shares, now)?;
    let mut grants = SmallVec::from_elem(None, members.len());
    let mut rebased = 0;
    for ((first, _), told) in joint.shares.iter().zip(&told) {
        grants[*first] = told.grant;
        rebased += u32::from(told.is_rebased);
    }
    let decisions: SmallVec<[Decision; 6]> = joint
        .share_of
        .iter()
        .map(|share| told[*share].decision)
        .collect();
    let decision = rules::combine(&decisions).ok_or(Failure::Unreadable)?;
    let outcome = Outcome {
        decision,
        members: decisions,
        grants,
    };
    let writes = told.into_iter().map(|told| told.write).collect();
    Ok(((outcome, rebased), writes))
}

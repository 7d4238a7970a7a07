//! Operations: the same on every algorithm, made of what [`Algorithm`] offers.
//!
//! This is the only place that turns a caller's `now` into a key's own time. Up to one second
//! back is jitter, and time stands still at the latest moment seen; further back the clock was
//! corrected, and the key's stored times move with it: neither frozen nor forgiven.

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Entry, Packed};
use crate::concurrency::LeaseGrant;
use crate::decision::{Decision, Denial, Source, Verdict};
use crate::operation::{Demand, KeyState, Operation, OperationError, Reply, Reservation};
use crate::time::{JITTER, MAX_DELAY, Micros, Timestamp, Wait};

/// What an operation did to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that needs to be kept.
    None,
    /// The entry changed and must be kept.
    Changed,
    /// The entry equals that of a key that was never seen.
    Forgotten,
}

/// An answer, and what became of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub reply: Reply,
    /// What a store has to do.
    pub effect: Effect,
    /// Whether the clock had been corrected, so that the entry's times moved back. A store keeps
    /// that of a key that exists, whatever the effect.
    pub rebased: bool,
}

/// A key's entry seen at the key's own time.
struct View<'a, A: Algorithm> {
    algorithm: &'a A,
    entry: &'a mut Entry<A::State>,
    /// The key's own time.
    n: u64,
    /// How far the caller's clock is behind it.
    lag: u64,
    rebased: bool,
}

/// Applies one operation to a key's entry.
///
/// # Errors
/// The operation has no meaning on this algorithm, or its numbers are out of range. Nothing has
/// changed then.
pub fn apply<A: Algorithm>(
    algorithm: &A,
    entry: &mut Entry<A::State>,
    now: Timestamp,
    operation: &Operation,
) -> Result<Reply, OperationError> {
    execute(algorithm, entry, now, operation).map(|applied| applied.reply)
}

/// Applies one operation to a key's entry and tells what a store has to do.
///
/// # Errors
/// As [`apply`].
pub fn execute<A: Algorithm>(
    algorithm: &A,
    entry: &mut Entry<A::State>,
    now: Timestamp,
    operation: &Operation,
) -> Result<Applied, OperationError> {
    operation.check::<A>()?;
    let mut view = View::new(algorithm, entry, now);
    let (reply, effect) = match *operation {
        Operation::Take(demand) => view.take(&demand),
        Operation::Peek(demand) => (peeked(&demand, view.assess(&demand)), Effect::None),
        Operation::TakeUpTo { cost } => view.take_up_to(cost),
        Operation::Reserve { cost, max_wait } => view.reserve(cost, max_wait),
        Operation::Settle {
            reservation,
            actual,
        } => view.settle(reservation, actual),
        Operation::Cancel { reservation } => view.settle(reservation, 0),
        Operation::Refund { cost } => view.refund(cost, None),
        Operation::Force { cost } => view.force(cost),
        Operation::Reset => view.reset(),
        Operation::Block { period } => view.block(period),
        Operation::Unblock => view.unblock(),
        Operation::State => (view.state(), Effect::None),
        Operation::Renew { lease } => {
            let lease = view.algorithm.renew(&mut view.entry.state, view.n, lease);
            (Reply::Renewed(lease), changed_if(lease.is_some()))
        }
        Operation::Release { lease } => {
            let released = view.algorithm.release(&mut view.entry.state, view.n, lease);
            (Reply::Released(released), changed_if(released))
        }
        Operation::Success => {
            let cleared = view.algorithm.success(&mut view.entry.state, view.n);
            (Reply::Done, changed_if(cleared))
        }
    };
    let rebased = view.rebased;
    Ok(Applied {
        reply,
        effect,
        rebased,
    })
}

/// What taking a demand would answer; nothing is charged. For stores that decide over several
/// keys before they charge any.
///
/// # Errors
/// As [`apply`].
#[inline(always)]
pub fn assess<A: Algorithm>(
    algorithm: &A,
    entry: &mut Entry<A::State>,
    now: Timestamp,
    demand: &Demand,
) -> Result<(Decision, bool), OperationError> {
    Operation::Take(*demand).check::<A>()?;
    let view = View::new(algorithm, entry, now);
    let decision = view.assess(demand);
    Ok((decision, view.rebased))
}

/// A take of units on a key that is not blocked, weighed: the hot path of a store.
#[derive(Clone, Copy, Debug)]
pub struct Weighed {
    assessment: Assessment,
    n: u64,
    lag: u64,
}

impl Weighed {
    /// Whether the units fit.
    #[inline(always)]
    #[must_use]
    pub const fn fits(&self) -> bool {
        self.assessment.denial.is_none()
    }

    /// Whether the limit denies it for now.
    #[inline(always)]
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        matches!(self.assessment.denial, Some(Denial::Limited))
    }

    /// The decision that [`execute`] would give.
    #[inline(always)]
    #[must_use]
    pub fn decision(&self, limit: u32, cost: u32) -> Decision {
        decision(&self.assessment, self.n, self.lag, limit, cost)
    }
}

/// Whether a call at `now` on a key that was last seen at `last` comes by a clock that has been
/// corrected: then the key's times move back with it. A store whose callers read the time
/// themselves has to know that a reading is not merely an old one.
#[inline(always)]
#[must_use]
pub const fn is_corrected(last: u64, now: Timestamp) -> bool {
    last.saturating_sub(now.as_micros()) > JITTER
}

/// Weighs a take of units on a packed state without a block, and charges it if it fits. None
/// where the clock was corrected, or the new state does not fit a word: that is no matter for the
/// hot path.
#[inline(always)]
pub fn take_word<A: Algorithm>(
    algorithm: &A,
    packed: Packed,
    now: Timestamp,
    cost: u32,
) -> Option<(Weighed, Packed)> {
    if is_corrected(packed.last, now) {
        return None;
    }
    let now = now.as_micros();
    let lag = packed.last.saturating_sub(now);
    let n = now + lag;
    let (assessment, packed) = algorithm.take_word(packed.last, packed.word, n, cost)?;
    Some((Weighed { assessment, n, lag }, packed))
}

/// An assessment at the key's own time as a decision at the caller's.
#[inline(always)]
fn decision(assessment: &Assessment, n: u64, lag: u64, limit: u32, cost: u32) -> Decision {
    let from_caller = |wait: Wait| {
        if wait == Wait::ZERO {
            wait
        } else {
            wait.plus(lag)
        }
    };
    Decision {
        verdict: assessment.denial.map_or(Verdict::Allow, Verdict::Deny),
        limit,
        remaining: assessment.remaining,
        cost,
        delay: from_caller(assessment.delay),
        retry_after: from_caller(assessment.retry),
        reset_after: from_caller(assessment.reset),
        // Both ends of this are valid times, so it always is one.
        at: Timestamp::from_micros(n).unwrap_or(Timestamp::MAX),
        binding: 0,
        shadow: false,
        source: Source::State,
    }
}

/// Charges a demand that [`assess`] allowed at the same moment.
#[inline(always)]
pub fn commit<A: Algorithm>(
    algorithm: &A,
    entry: &mut Entry<A::State>,
    now: Timestamp,
    demand: &Demand,
) -> (Effect, Option<LeaseGrant>) {
    let mut view = View::new(algorithm, entry, now);
    view.charge(demand)
}

/// Charges a demand of units that [`assess`] has denied at the same moment, into debt down to one
/// capacity, and answers anew: for limits that punish who does not wait. The denial's waits then
/// include what it has cost.
pub fn punish<A: Algorithm>(
    algorithm: &A,
    entry: &mut Entry<A::State>,
    now: Timestamp,
    demand: &Demand,
) -> Decision {
    let view = View::new(algorithm, entry, now);
    if let Demand::Take { cost } = demand {
        view.algorithm.force(&mut view.entry.state, view.n, *cost);
    }
    view.assess(demand)
}

/// Whether an entry cannot be told from that of a key that was never seen.
///
/// Not even by a call whose clock is a second behind: what has only just become fresh could still
/// deny that one. So an entry that was made at this moment is not fresh yet.
pub fn is_fresh<A: Algorithm>(algorithm: &A, entry: &Entry<A::State>, now: Timestamp) -> bool {
    let Some(earliest) = now.as_micros().checked_sub(JITTER) else {
        return false;
    };
    A::last(&entry.state) <= earliest
        && entry.blocked_until <= earliest
        && algorithm.is_fresh(&entry.state, earliest)
}

/// How long until [`is_fresh`] if nothing else happens: how long a store must keep the entry.
pub fn fresh_after<A: Algorithm>(algorithm: &A, entry: &Entry<A::State>, now: Timestamp) -> Wait {
    let now = now.as_micros();
    let n = now.saturating_sub(JITTER).max(A::last(&entry.state));
    let blocked = Wait::micros(entry.blocked_until.saturating_sub(n));
    let fresh = algorithm.fresh_after(&entry.state, n).max(blocked);
    // From `n` on, and then until a clock that is behind has passed it too.
    fresh.plus((n + JITTER).saturating_sub(now))
}

/// Adopts `new` numbers for an entry that was kept under `old`, as of `now`.
pub fn reprice<A: Algorithm>(
    old: &A,
    new: &A,
    entry: &mut Entry<A::State>,
    now: Timestamp,
    mode: ChangeMode,
) {
    let view = View::new(old, entry, now);
    let n = view.n;
    new.reprice(old, &mut entry.state, n, mode);
}

impl<'a, A: Algorithm> View<'a, A> {
    #[inline(always)]
    fn new(algorithm: &'a A, entry: &'a mut Entry<A::State>, now: Timestamp) -> Self {
        let last = A::last(&entry.state);
        let corrected = is_corrected(last, now);
        let now = now.as_micros();
        let behind = last.saturating_sub(now);
        if !corrected {
            return Self {
                algorithm,
                entry,
                n: now + behind,
                lag: behind,
                rebased: false,
            };
        }
        algorithm.rebase(&mut entry.state, now);
        entry.blocked_until = entry.blocked_until.saturating_sub(behind);
        Self {
            algorithm,
            entry,
            n: now,
            lag: 0,
            rebased: true,
        }
    }

    #[inline(always)]
    fn blocked(&self) -> bool {
        self.entry.blocked_until > self.n
    }

    /// A wait from the key's own time on, as one from the caller's.
    #[inline(always)]
    fn wait(&self, wait: Wait) -> Wait {
        if wait == Wait::ZERO {
            wait
        } else {
            wait.plus(self.lag)
        }
    }

    #[inline(always)]
    fn assess(&self, demand: &Demand) -> Decision {
        let cost = match *demand {
            Demand::Take { cost } => cost,
            Demand::Acquire { weight, .. } => weight,
            Demand::Attempt { .. } => 1,
        };
        self.decide(cost, |state, n| self.algorithm.assess(state, n, demand))
    }

    /// Puts blocks and clock steps on top of what the algorithm says.
    #[inline(always)]
    fn decide(&self, cost: u32, assess: impl Fn(&A::State, u64) -> Assessment) -> Decision {
        let assessment = assess(&self.entry.state, self.n);
        let assessment = if self.blocked() {
            let then = assess(&self.entry.state, self.entry.blocked_until);
            self.block_over(assessment, then)
        } else {
            assessment
        };
        decision(&assessment, self.n, self.lag, self.algorithm.limit(), cost)
    }

    /// A blocked key denies until the block ends, and longer if the limit itself would `then`.
    #[cold]
    fn block_over(&self, assessment: Assessment, then: Assessment) -> Assessment {
        let left = self.entry.blocked_until.saturating_sub(self.n);
        let denial = match assessment.denial {
            Some(Denial::Impossible) => Denial::Impossible,
            _ => Denial::Blocked,
        };
        let reset = self
            .algorithm
            .standing(&self.entry.state, self.n)
            .reset
            .max(Wait::micros(left));
        Assessment {
            denial: Some(denial),
            remaining: 0,
            delay: Wait::ZERO,
            retry: then.retry.plus(left),
            reset,
        }
    }

    /// Charges what was found to fit. A cost of 0 changes nothing.
    #[inline(always)]
    fn charge(&mut self, demand: &Demand) -> (Effect, Option<LeaseGrant>) {
        if let Demand::Take { cost: 0 } | Demand::Acquire { weight: 0, .. } = demand {
            return (Effect::None, None);
        }
        let grant = self.algorithm.commit(&mut self.entry.state, self.n, demand);
        // A lease that is asked for again writes nothing.
        if A::last(&self.entry.state) == self.n {
            self.lapse();
        }
        (Effect::Changed, grant)
    }

    /// A block that is over is not kept.
    #[inline(always)]
    fn lapse(&mut self) {
        if !self.blocked() {
            self.entry.blocked_until = 0;
        }
    }

    #[inline(always)]
    fn take(&mut self, demand: &Demand) -> (Reply, Effect) {
        let decision = self.assess(demand);
        let (effect, grant) = if decision.is_within_limit() {
            self.charge(demand)
        } else {
            (Effect::None, None)
        };
        let reply = match demand {
            Demand::Acquire { .. } => Reply::Leased(decision, grant),
            _ => Reply::Decision(decision),
        };
        (reply, effect)
    }

    fn take_up_to(&mut self, cost: u32) -> (Reply, Effect) {
        let standing = self.algorithm.standing(&self.entry.state, self.n);
        // With nothing left this asks for 1, whose denial says when something will be.
        let fits = cost.min(standing.remaining.max(1));
        self.take(&Demand::Take { cost: fits })
    }

    fn reserve(&mut self, cost: u32, max_wait: Micros) -> (Reply, Effect) {
        let decision = self.decide(cost, |state, n| {
            self.algorithm
                .assess_reservation(state, n, cost, max_wait.min(MAX_DELAY))
        });
        if !decision.is_within_limit() {
            return (Reply::Reserved(decision, None), Effect::None);
        }
        let (effect, _) = self.charge(&Demand::Take { cost });
        let reservation = Reservation {
            cost,
            at: decision.at,
        };
        (Reply::Reserved(decision, Some(reservation)), effect)
    }

    fn settle(&mut self, reservation: Reservation, actual: u32) -> (Reply, Effect) {
        match actual.checked_sub(reservation.cost) {
            None => {
                let charged_at = reservation.at.as_micros();
                self.refund(reservation.cost - actual, Some(charged_at))
            }
            Some(extra) => {
                let effect = self.force(extra).1;
                (Reply::Refunded(0), effect)
            }
        }
    }

    fn refund(&mut self, cost: u32, charged_at: Option<u64>) -> (Reply, Effect) {
        let back = self
            .algorithm
            .refund(&mut self.entry.state, self.n, cost, charged_at);
        (Reply::Refunded(back), changed_if(back > 0))
    }

    fn force(&mut self, cost: u32) -> (Reply, Effect) {
        if cost > 0 {
            self.algorithm.force(&mut self.entry.state, self.n, cost);
            self.lapse();
        }
        let standing = self.algorithm.standing(&self.entry.state, self.n);
        let decision = self.decide_forced(cost, standing.remaining, standing.reset);
        (Reply::Decision(decision), changed_if(cost > 0))
    }

    /// A forced charge is always allowed, also on a blocked key.
    fn decide_forced(&self, cost: u32, remaining: u32, reset: Wait) -> Decision {
        let fits = Assessment::fits(if self.blocked() { 0 } else { remaining }, reset);
        let decision = self.decide(cost, |_, _| fits);
        Decision {
            verdict: Verdict::Allow,
            retry_after: Wait::ZERO,
            ..decision
        }
    }

    fn reset(&mut self) -> (Reply, Effect) {
        self.algorithm.start_over(&mut self.entry.state, self.n);
        self.entry.blocked_until = 0;
        let effect = if self.algorithm.outlives_start(&self.entry.state) {
            Effect::Changed
        } else {
            Effect::Forgotten
        };
        (Reply::Done, effect)
    }

    fn block(&mut self, period: Micros) -> (Reply, Effect) {
        if period == Micros::ZERO {
            return (Reply::Done, Effect::None);
        }
        // The state must have seen this moment, for a step of the clock to be noticed later.
        self.algorithm.advance(&mut self.entry.state, self.n);
        self.entry.blocked_until = self.n + period.0;
        (Reply::Done, Effect::Changed)
    }

    fn unblock(&mut self) -> (Reply, Effect) {
        let blocked = self.entry.blocked_until > 0;
        self.entry.blocked_until = 0;
        (Reply::Done, changed_if(blocked))
    }

    fn state(&self) -> Reply {
        let standing = self.algorithm.standing(&self.entry.state, self.n);
        let left = self.entry.blocked_until.saturating_sub(self.n);
        let (remaining, reset, blocked_for) = if left > 0 {
            let reset = standing.reset.max(Wait::micros(left));
            (0, reset, Micros(left + self.lag))
        } else {
            (standing.remaining, standing.reset, Micros::ZERO)
        };
        Reply::State(KeyState {
            limit: self.algorithm.limit(),
            used: standing.used,
            remaining,
            reset_after: self.wait(reset),
            blocked_for,
            last: Timestamp::from_micros(A::last(&self.entry.state)).unwrap_or(Timestamp::MAX),
            leases: self.algorithm.leases(&self.entry.state, self.n),
        })
    }
}

const fn changed_if(changed: bool) -> Effect {
    if changed {
        Effect::Changed
    } else {
        Effect::None
    }
}

const fn peeked(demand: &Demand, decision: Decision) -> Reply {
    match demand {
        Demand::Acquire { .. } => Reply::Leased(decision, None),
        _ => Reply::Decision(decision),
    }
}

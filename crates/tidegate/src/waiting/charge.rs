//! What was charged for a caller that may still go away.

use tidegate_core::{Decision, KeyState, Micros, Operation, Policy, Reply, Reservation, Timestamp};
use tidegate_store::{Forecast, KeyHash, MemoryLimit};

use crate::limiter::Limiter;

/// Units taken, and until when they matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    /// Where: the key's hash, as it lies in the table.
    pub key: KeyHash,
    pub reservation: Reservation,
    /// When the limit would be full again if nothing else happened; none if never.
    full_at: Option<Timestamp>,
}

impl Charge {
    /// What an allowed decision has charged.
    pub(crate) fn of(key: KeyHash, decision: &Decision) -> Self {
        let reservation = Reservation {
            cost: decision.cost,
            at: decision.at,
        };
        Self {
            key,
            reservation,
            full_at: after(decision.at, decision.reset_after.as_micros()),
        }
    }

    /// Gives the units back as if they had never been taken.
    ///
    /// Once the limit could be full again the charge has been worked off, and giving it back would
    /// forgive what others took. The same goes for units that others have booked behind it: their
    /// times are settled, and whoever came next would go at one of them. Both keep the charge,
    /// which can only deny too much.
    pub(crate) fn give_back(&self, limiter: &Limiter, now: Timestamp) {
        let worked_off = self.full_at.is_some_and(|full_at| now >= full_at);
        if worked_off || self.others_are_booked_behind(limiter, now) {
            return;
        }
        self.cancel(limiter, now);
    }

    fn cancel(&self, limiter: &Limiter, now: Timestamp) {
        let cancel = Operation::Cancel {
            reservation: self.reservation,
        };
        // The units were taken from this table, so it knows the operation; where the algorithm has
        // changed since, there is nothing to give back to.
        let _ = limiter.table().apply(self.key, limiter.as_of(now), &cancel);
    }

    /// Takes the units anew, at the time they were booked for: of a bucket that was full then, for
    /// who takes all that it holds. Such a bucket has lost what came in the last part of a
    /// microsecond; one that was charged ahead has not.
    ///
    /// None where there is no such difference. Else what was taken; none if there was not enough.
    pub(crate) fn renewed_at(
        &self,
        limiter: &Limiter,
        ready_at: Timestamp,
        now: Timestamp,
    ) -> Option<Option<(Decision, Self)>> {
        let table = limiter.table();
        let capacity = self.empties_a_bucket(table)?;
        let state = state_of(limiter, self.key, now)?;
        // In debt, others have booked more of it.
        if state.used > capacity || self.reservation.at == ready_at {
            return None;
        }
        let at = ready_at.max(state.last);
        self.cancel(limiter, at);
        let take = Operation::Reserve {
            cost: capacity,
            max_wait: Micros::ZERO,
        };
        let taken = table.apply(self.key, limiter.as_of(at), &take).ok();
        let decision = taken.and_then(|reply| reply.decision().copied());
        Some(
            decision
                .filter(Decision::is_within_limit)
                .map(|decision| (decision, Self::of(self.key, &decision))),
        )
    }

    /// The same on a copy of the key.
    pub(super) fn renew_ahead(
        &self,
        table: &dyn MemoryLimit,
        copy: &mut dyn Forecast,
        ready_at: Timestamp,
    ) {
        if let Some(capacity) = self.empties_a_bucket(table) {
            let cancel = Operation::Cancel {
                reservation: self.reservation,
            };
            // A bucket knows both.
            let _ = copy.apply(ready_at, &cancel);
            let _ = copy.apply(ready_at, &Operation::take(capacity));
        }
    }

    /// What a token bucket holds, if this is all of it.
    fn empties_a_bucket(&self, table: &dyn MemoryLimit) -> Option<u32> {
        match numbers_of(table, self.key) {
            Policy::TokenBucket(bucket) => Some(bucket.capacity()),
            _ => None,
        }
        .filter(|capacity| *capacity == self.reservation.cost)
    }

    fn others_are_booked_behind(&self, limiter: &Limiter, now: Timestamp) -> bool {
        let at_once = match numbers_of(limiter.table(), self.key) {
            Policy::TokenBucket(bucket) => bucket.capacity(),
            Policy::LeakyBucket(queue) => queue.burst(),
            // These lend nothing from the future.
            _ => return false,
        };
        let Some(state) = state_of(limiter, self.key, now) else {
            return false;
        };
        state.used > at_once && after(now, state.reset_after.as_micros()) > self.full_at
    }
}

/// The numbers that count for a key.
pub(crate) fn numbers_of(table: &dyn MemoryLimit, key: KeyHash) -> Policy {
    let own = table.override_of(key);
    own.map_or_else(|| table.policy(), |own| own.policy)
}

fn state_of(limiter: &Limiter, key: KeyHash, now: Timestamp) -> Option<KeyState> {
    let now = limiter.as_of(now);
    match limiter.table().apply(key, now, &Operation::State) {
        Ok(Reply::State(state)) => Some(state),
        _ => None,
    }
}

/// The moment `wait` microseconds after `time`; none if that is never.
pub(crate) fn after(time: Timestamp, wait: Option<u64>) -> Option<Timestamp> {
    time.checked_add(Micros(wait?))
}

//! What was charged for a caller that may still go away.

use tidegate_core::{Decision, KeyState, Micros, Operation, Policy, Reply, Reservation, Timestamp};
use tidegate_store::{KeyHash, MemoryLimit};

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
    pub(crate) fn give_back(&self, table: &dyn MemoryLimit, now: Timestamp) {
        let worked_off = self.full_at.is_some_and(|full_at| now >= full_at);
        if worked_off || self.others_are_booked_behind(table, now) {
            return;
        }
        self.cancel(table, now);
    }

    pub(crate) fn cancel(&self, table: &dyn MemoryLimit, now: Timestamp) {
        let cancel = Operation::Cancel {
            reservation: self.reservation,
        };
        // The units were taken from this table, so it knows the operation; where the algorithm has
        // changed since, there is nothing to give back to.
        let _ = table.apply(self.key, now, &cancel);
    }

    /// Whether this is all that a token bucket holds, and nobody has booked more of it.
    pub(crate) fn empties_a_bucket(&self, table: &dyn MemoryLimit, now: Timestamp) -> bool {
        let Policy::TokenBucket(bucket) = table.policy() else {
            return false;
        };
        let capacity = bucket.capacity();
        self.reservation.cost == capacity
            && state_of(table, self.key, now).is_some_and(|state| state.used <= capacity)
    }

    fn others_are_booked_behind(&self, table: &dyn MemoryLimit, now: Timestamp) -> bool {
        let at_once = match table.policy() {
            Policy::TokenBucket(bucket) => bucket.capacity(),
            Policy::IntervalBucket(bucket) => bucket.capacity(),
            Policy::LeakyBucket(queue) => queue.burst(),
            // These lend nothing from the future.
            _ => return false,
        };
        let Some(state) = state_of(table, self.key, now) else {
            return false;
        };
        state.used > at_once && after(now, state.reset_after.as_micros()) > self.full_at
    }
}

fn state_of(table: &dyn MemoryLimit, key: KeyHash, now: Timestamp) -> Option<KeyState> {
    match table.apply(key, now, &Operation::State) {
        Ok(Reply::State(state)) => Some(state),
        _ => None,
    }
}

/// The moment `wait` microseconds after `time`; none if that is never.
pub(crate) fn after(time: Timestamp, wait: Option<u64>) -> Option<Timestamp> {
    time.checked_add(Micros(wait?))
}

//! Every operation, on one key of a shared limit.

use std::hash::BuildHasher as _;
use std::time::Duration;

use tidegate_core::{
    Decision, Demand, KeyState, Micros, Operation, OperationError, Reply, Reservation,
};
use tidegate_store::Key;
use tidegate_valkey::StoreError;

use super::SharedLimiter;
use crate::limiter::Reach;
use crate::one_key::Reserved;

/// One key of a shared limit, with everything that can be done to it: what [`SharedLimiter::key`]
/// gives, and what [`OneKey`](crate::OneKey) is to a limit in memory.
///
/// Operations happen at the server's time. A limit that is off applies them like one in shadow.
#[derive(Clone, Debug)]
#[must_use = "it names a key and does nothing by itself"]
pub struct SharedKey<'a> {
    limiter: &'a SharedLimiter,
    key: Key,
}

/// Takes the one kind of reply that an operation has: the store has read it as such.
macro_rules! expect_reply {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => Ok($value),
            other => unreachable!("an operation was answered by {other:?}"),
        }
    };
}

impl<'a> SharedKey<'a> {
    pub(super) const fn of(limiter: &'a SharedLimiter, key: Key) -> Self {
        Self { limiter, key }
    }

    /// Takes `cost` units, or nothing, as [`SharedLimiter::try_take`] does.
    ///
    /// # Errors
    /// The limit counts no units.
    pub async fn try_take(&self, cost: u32) -> Result<Decision, OperationError> {
        let decided = self.limiter.decide(&self.key, Demand::Take { cost });
        decided.await.map(|(decision, _)| decision)
    }

    /// Answers as [`Self::try_take`] would and writes nothing.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn peek(&self, cost: u32) -> Result<Decision, StoreError> {
        self.decision(&Operation::peek(cost)).await
    }

    /// Takes as many units as fit, at most `cost`, and is denied only where nothing fits. The
    /// decision's `cost` is what it got; denied, what it waits for.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn take_up_to(&self, cost: u32) -> Result<Decision, StoreError> {
        self.decision(&Operation::TakeUpTo { cost }).await
    }

    /// Takes units now that may be used after the decision's `delay`, if that is at most
    /// `max_wait` (rounded up to a microsecond). The delay counts from now.
    ///
    /// Continuous token buckets and paced queues lend from the future, down to one capacity of debt;
    /// a window, and a bucket that refills in intervals, gives what it has now or denies.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn reserve(&self, cost: u32, max_wait: Duration) -> Result<Reserved, StoreError> {
        let max_wait = Micros::from_duration(max_wait);
        let reply = self.apply(&Operation::Reserve { cost, max_wait }).await?;
        expect_reply!(reply, Reply::Reserved(decision, reservation) => Reserved {
            decision,
            reservation,
        })
    }

    /// Replaces what a reservation of this key has charged by what was really used: less is given
    /// back, more is charged, even into debt. Returns how many units came back.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn settle(&self, reservation: Reservation, actual: u32) -> Result<u32, StoreError> {
        let settle = Operation::Settle {
            reservation,
            actual,
        };
        self.refunded(&settle).await
    }

    /// Gives a whole reservation of this key back. Returns how many units came back: none that
    /// the key no longer counts.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn cancel(&self, reservation: Reservation) -> Result<u32, StoreError> {
        self.refunded(&Operation::Cancel { reservation }).await
    }

    /// Gives units back, never above full. Returns how many came back.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn refund(&self, cost: u32) -> Result<u32, StoreError> {
        self.refunded(&Operation::Refund { cost }).await
    }

    /// Charges units that were used already, whatever is left, into debt down to one capacity.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn force(&self, cost: u32) -> Result<Decision, StoreError> {
        self.decision(&Operation::Force { cost }).await
    }

    /// Takes one guess at a secret, as [`OneKey::attempt`](crate::OneKey::attempt) does. Tell a
    /// right one by [`Self::success`]. Without an answer the limit's failure mode decides.
    ///
    /// # Errors
    /// The limit is no lockout.
    pub async fn attempt(&self) -> Result<Decision, OperationError> {
        // The standard library draws this from the operating system: nobody foresees a ban's end.
        let seed = std::collections::hash_map::RandomState::new().hash_one(());
        let decided = self.limiter.decide(&self.key, Demand::Attempt { seed });
        decided.await.map(|(decision, _)| decision)
    }

    /// Says that the last guess was right: takes its failure back and forgets the others, and a
    /// ban that it began.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn success(&self) -> Result<(), StoreError> {
        self.apply(&Operation::Success).await.map(drop)
    }

    /// Makes the key as if it had never been seen, and lifts a block.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn reset(&self) -> Result<(), StoreError> {
        self.apply(&Operation::Reset).await.map(drop)
    }

    /// Denies everything for a while, from now (rounded up to a microsecond). Zero changes
    /// nothing.
    ///
    /// # Errors
    /// As [`Self::apply`]; also more than 10 years.
    pub async fn block(&self, period: Duration) -> Result<(), StoreError> {
        let period = Micros::from_duration(period);
        self.apply(&Operation::Block { period }).await.map(drop)
    }

    /// Lifts a block.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn unblock(&self) -> Result<(), StoreError> {
        self.apply(&Operation::Unblock).await.map(drop)
    }

    /// Everything that is known of the key. Points in time are the server's.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn state(&self) -> Result<KeyState, StoreError> {
        let reply = self.apply(&Operation::State).await?;
        expect_reply!(reply, Reply::State(state) => state)
    }

    /// Applies any operation.
    ///
    /// # Errors
    /// The store gave no answer, and [`StoreError::was_counted`] tells what may have happened; or
    /// the operation has no meaning on the limit's algorithm, or its numbers are out of range.
    pub async fn apply(&self, operation: &Operation) -> Result<Reply, StoreError> {
        let shadow = self.limiter.reach(&self.key) != Reach::Enforced;
        let limit = self.limiter.limit();
        let reply = limit.apply_as(&self.key, shadow, operation).await?;
        if let Some(decision) = reply.decision()
            && !matches!(operation, Operation::Peek(_))
            && self.limiter.reach(&self.key) != Reach::Off
        {
            self.limiter.tell(decision);
        }
        Ok(reply)
    }

    async fn decision(&self, operation: &Operation) -> Result<Decision, StoreError> {
        let reply = self.apply(operation).await?;
        expect_reply!(reply, Reply::Decision(decision) => decision)
    }

    async fn refunded(&self, operation: &Operation) -> Result<u32, StoreError> {
        let reply = self.apply(operation).await?;
        expect_reply!(reply, Reply::Refunded(units) => units)
    }
}

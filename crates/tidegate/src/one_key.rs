//! Every operation, on one key of a limit.

use std::hash::BuildHasher as _;
use std::time::Duration;

use tidegate_core::{
    Decision, Demand, KeyState, Micros, Operation, OperationError, Reply, Reservation, Timestamp,
};
use tidegate_store::{KeyHash, Moment};

use crate::limiter::Limiter;

/// One key of a limit, with everything that can be done to it: what [`Limiter::key`] gives.
///
/// Operations happen at the time of the limiter's clock, or at the one of [`Self::at`].
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, Rate, Timestamp, TokenBucket};
///
/// let jobs = Limiter::new(TokenBucket::new(Rate::per_minute(60)?, 100)?);
/// let acme = jobs.key(("acme", "export")).at(Timestamp::EPOCH);
///
/// // As much as fits, now.
/// assert_eq!(acme.take_up_to(150)?.cost, 100);
/// // Ahead of time, and settled when it is known what the work has really cost.
/// let reserved = acme.reserve(30, Duration::from_secs(60))?;
/// let reservation = reserved.reservation.ok_or("it is free within the minute")?;
/// assert_eq!(reserved.decision.delay.as_duration(), Some(Duration::from_secs(30)));
/// assert_eq!(acme.settle(reservation, 10)?, 20);
/// // By an operator.
/// acme.block(Duration::from_secs(3600))?;
/// assert!(!acme.try_take(1).is_allowed());
/// acme.reset();
/// assert!(acme.try_take(1).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it names a key and does nothing by itself"]
pub struct OneKey<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) hash: KeyHash,
    pub(crate) at: Option<Timestamp>,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a reservation that is made has been charged: settle or cancel it, or let it stand"]
pub struct Reserved {
    /// Whether it was made, and how long to wait before the units may be used: `delay`.
    pub decision: Decision,
    /// What was made; none where the limit denies, also where it is only watched.
    pub reservation: Option<Reservation>,
}

impl Reserved {
    /// How long to wait before the units may be used; none where the call must not go on.
    ///
    /// A limit in shadow lets it go on at once.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.decision
            .is_allowed()
            .then(|| self.decision.delay.as_duration().unwrap_or(Duration::ZERO))
    }
}

/// Takes the one kind of reply that an operation has.
macro_rules! expect_reply {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => $value,
            other => unreachable!("an operation was answered by {other:?}"),
        }
    };
}

impl OneKey<'_> {
    /// The same key at a given time. Time is obeyed as given, so it belongs in the hands of tests
    /// and simulations, or of who reads it once for several calls.
    pub const fn at(self, now: Timestamp) -> Self {
        Self {
            at: Some(now),
            ..self
        }
    }

    /// Takes `cost` units, or nothing, as [`Limiter::try_take`] does.
    pub fn try_take(&self, cost: u32) -> Decision {
        self.limiter.take_hashed(self.hash, cost, self.moment())
    }

    /// Answers as [`Self::try_take`] would and writes nothing.
    pub fn peek(&self, cost: u32) -> Decision {
        self.limiter.peek_hashed(self.hash, cost, self.moment())
    }

    /// Takes as many units as fit, at most `cost`, and is denied only where nothing fits. The
    /// decision's `cost` is what it got; denied, what it waits for.
    ///
    /// # Errors
    /// The limit counts no units: it is a concurrency limit or a lockout.
    pub fn take_up_to(&self, cost: u32) -> Result<Decision, OperationError> {
        self.decide(&Operation::TakeUpTo { cost })
    }

    /// Takes units now that may be used after the decision's `delay`, if that is at most
    /// `max_wait` (rounded up to a microsecond).
    ///
    /// Continuous token buckets and paced queues lend from the future, down to one capacity of debt;
    /// a window, and a bucket that refills in intervals, gives what it has now or denies.
    ///
    /// # Errors
    /// The limit counts no units.
    pub fn reserve(&self, cost: u32, max_wait: Duration) -> Result<Reserved, OperationError> {
        let max_wait = Micros::from_duration(max_wait);
        let reply = self.apply(&Operation::Reserve { cost, max_wait })?;
        Ok(
            expect_reply!(reply, Reply::Reserved(decision, reservation) => Reserved {
                decision,
                reservation,
            }),
        )
    }

    /// Replaces what a reservation of this key has charged by what was really used: less is given
    /// back, more is charged, even into debt. Returns how many units came back.
    ///
    /// # Errors
    /// The limit counts no units.
    pub fn settle(&self, reservation: Reservation, actual: u32) -> Result<u32, OperationError> {
        self.give_back(&Operation::Settle {
            reservation,
            actual,
        })
    }

    /// Gives a whole reservation of this key back. Returns how many units came back: none that
    /// the key no longer counts.
    ///
    /// # Errors
    /// The limit counts no units.
    pub fn cancel(&self, reservation: Reservation) -> Result<u32, OperationError> {
        self.give_back(&Operation::Cancel { reservation })
    }

    /// Gives units back, never above full. Returns how many came back.
    ///
    /// # Errors
    /// The limit counts no units.
    pub fn refund(&self, cost: u32) -> Result<u32, OperationError> {
        self.give_back(&Operation::Refund { cost })
    }

    /// Charges units that were used already, whatever is left, into debt down to one capacity.
    ///
    /// # Errors
    /// The limit counts no units.
    pub fn force(&self, cost: u32) -> Result<Decision, OperationError> {
        self.decide(&Operation::Force { cost })
    }

    /// Takes one guess at a secret: its failure is charged in advance, so that parallel guesses
    /// gain nothing. Tell a right one by [`Self::success`].
    ///
    /// ```
    /// use tidegate::{Limiter, Lockout, LockoutSettings, Micros};
    ///
    /// let minute = Micros::from_secs(60);
    /// let login = Limiter::new(Lockout::new(LockoutSettings {
    ///     failures: 2,
    ///     period: minute,
    ///     ban: minute,
    ///     factor: 2,
    ///     max_ban: Micros::from_secs(3600),
    ///     jitter: Micros::ZERO,
    ///     forget_after: Micros::from_secs(86_400),
    ///     long_cap: None,
    /// })?);
    /// let asha = login.key("asha");
    /// assert!(asha.attempt()?.is_allowed());
    /// asha.success()?;
    /// assert!(asha.attempt()?.is_allowed());
    /// assert!(asha.attempt()?.is_allowed());
    /// assert!(!asha.attempt()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is no lockout.
    pub fn attempt(&self) -> Result<Decision, OperationError> {
        // The standard library draws this from the operating system: nobody foresees a ban's end.
        let seed = std::collections::hash_map::RandomState::new().hash_one(());
        self.decide(&Operation::Take(Demand::Attempt { seed }))
    }

    /// Says that the last guess was right: takes its failure back and forgets the others, and a
    /// ban that it began.
    ///
    /// # Errors
    /// The limit is no lockout.
    pub fn success(&self) -> Result<(), OperationError> {
        self.apply(&Operation::Success).map(drop)
    }

    /// Makes the key as if it had never been seen, and lifts a block. Numbers of its own stay.
    pub fn reset(&self) {
        self.certain(&Operation::Reset);
    }

    /// Denies everything for a while, from now (rounded up to a microsecond). Zero changes
    /// nothing.
    ///
    /// # Errors
    /// More than 10 years.
    pub fn block(&self, period: Duration) -> Result<(), OperationError> {
        let period = Micros::from_duration(period);
        self.apply(&Operation::Block { period }).map(drop)
    }

    /// Lifts a block.
    pub fn unblock(&self) {
        self.certain(&Operation::Unblock);
    }

    /// Everything that is known of the key.
    #[must_use]
    pub fn state(&self) -> KeyState {
        expect_reply!(self.certain(&Operation::State), Reply::State(state) => state)
    }

    /// Applies any operation.
    ///
    /// # Errors
    /// The operation has no meaning on the limit's algorithm, or its numbers are out of range.
    pub fn apply(&self, operation: &Operation) -> Result<Reply, OperationError> {
        self.limiter
            .apply_hashed(self.hash, self.moment(), operation)
    }

    pub(crate) fn moment(&self) -> Moment<'_> {
        self.at.map_or_else(|| self.limiter.moment(), Moment::from)
    }

    /// An operation that has a meaning everywhere and no numbers.
    fn certain(&self, operation: &Operation) -> Reply {
        self.apply(operation)
            .expect("every algorithm has this operation")
    }

    fn decide(&self, operation: &Operation) -> Result<Decision, OperationError> {
        let reply = self.apply(operation)?;
        Ok(expect_reply!(reply, Reply::Decision(decision) => decision))
    }

    fn give_back(&self, operation: &Operation) -> Result<u32, OperationError> {
        let reply = self.apply(operation)?;
        Ok(expect_reply!(reply, Reply::Refunded(units) => units))
    }
}

//! Waiting for units.

use std::time::Duration;

use tidegate_core::{
    Decision, Demand, Denial, MAX_PERIOD, Micros, Operation, OperationError, Policy, Reply,
    Reservation, Verdict, Wait,
};
use tidegate_store::Key;
use tidegate_valkey::StoreError;
use tokio::time::{Instant, sleep, timeout_at};

use super::SharedLimiter;
use super::line::First;
use super::undo::{Undoable, Undone};
use crate::limiter::Reach;
use crate::to_key::ToKey;
use crate::waiting::{WaitError, WaitOptions};

/// Timers tick in milliseconds: nothing is asked again sooner.
pub(super) const TICK: Duration = Duration::from_millis(1);

impl SharedLimiter {
    /// Waits until `cost` units are there, and takes them.
    ///
    /// # Errors
    /// As [`Self::until_ready_with`].
    pub fn until_ready<K: ToKey>(
        &self,
        key: K,
        cost: u32,
    ) -> impl Future<Output = Result<Decision, WaitError>> + Send + use<K> {
        self.until_ready_with(key, cost, &WaitOptions::new())
    }

    /// Waits until `cost` units are there, and takes them.
    ///
    /// The decision is the one of the moment at which they may be used; its `at` is the server's
    /// time of that. Nothing happens before the future is polled for the first time. The bounds of
    /// `options` on how many wait are those of this process.
    ///
    /// While the store gives no answer the limit's failure mode decides: where that refuses, the
    /// caller waits for the store.
    ///
    /// # Errors
    /// [`WaitError::Impossible`] at once if the limit can never allow it; [`WaitError::TooLong`] at
    /// once if it is known that the wait would be longer than `max_wait`, and nothing was charged;
    /// [`WaitError::Elapsed`] if it turned out longer, because others were quicker;
    /// [`WaitError::QueueFull`]; [`WaitError::Unsupported`] if the limit counts no units.
    pub fn until_ready_with<K: ToKey>(
        &self,
        key: K,
        cost: u32,
        options: &WaitOptions,
    ) -> impl Future<Output = Result<Decision, WaitError>> + Send + use<K> {
        let (limiter, key, options) = (self.clone(), key.to_key(), *options);
        async move {
            let waiting = Waiting::new(&limiter, &key, &options);
            waiting.for_units(cost).await
        }
    }

    /// Whether the policy lends from the future.
    fn lends(&self) -> bool {
        matches!(
            self.policy(),
            Policy::TokenBucket(_) | Policy::LeakyBucket(_)
        )
    }

    /// Reserves units for use within `max_wait`.
    async fn reserve(
        &self,
        key: &Key,
        shadow: bool,
        cost: u32,
        max_wait: Micros,
    ) -> Result<(Decision, Option<Reservation>), OperationError> {
        let (limiter, owned) = (self.clone(), key.clone());
        let call = async move {
            let reserve = Operation::Reserve { cost, max_wait };
            limiter.limit().apply_as(&owned, shadow, &reserve).await
        };
        let (limiter, owned) = (self.clone(), key.clone());
        let undo = move |reply| async move {
            if let Ok(Reply::Reserved(_, Some(reservation))) = reply {
                let cancel = Operation::Cancel { reservation };
                limiter.undo(&owned, shadow, cancel).await;
            }
        };
        match Undoable::new(call, undo).await {
            Ok(Reply::Reserved(decision, reservation)) => Ok((decision, reservation)),
            Err(StoreError::Operation(error)) => Err(error),
            Ok(_) | Err(_) => {
                let call = self.call(key, Demand::Take { cost }, shadow);
                Ok((call.decide_without_store()?.0, None))
            }
        }
    }
}

/// One caller that waits.
pub(super) struct Waiting<'a> {
    pub(super) limiter: &'a SharedLimiter,
    pub(super) key: &'a Key,
    options: &'a WaitOptions,
    begun: Instant,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(limiter: &'a SharedLimiter, key: &'a Key, options: &'a WaitOptions) -> Self {
        Self {
            limiter,
            key,
            options,
            begun: Instant::now(),
        }
    }

    /// How much longer it is ready to wait; none for as long as it takes.
    pub(super) fn left(&self) -> Option<Duration> {
        let max_wait = self.options.max_wait?.as_duration();
        Some(max_wait.saturating_sub(self.begun.elapsed()))
    }

    /// Stands in line, and is the first in it once this returns.
    pub(super) async fn turn(&self, known: Decision) -> Result<First, WaitError> {
        let place = match self.limiter.0.lines.join(self.key, self.options) {
            Ok(place) => place,
            Err(waiting) => return Err(WaitError::QueueFull { known, waiting }),
        };
        match self.options.max_wait {
            None => Ok(place.first().await),
            Some(max_wait) => timeout_at(self.begun + max_wait.as_duration(), place.first())
                .await
                .map_err(|_| WaitError::Elapsed { known, max_wait }),
        }
    }

    /// Refuses where `known` says that waiting cannot help, or not in time.
    pub(super) fn check(&self, known: Decision, is_first_try: bool) -> Result<Duration, WaitError> {
        let impossible = known.verdict == Verdict::Deny(Denial::Impossible);
        let wait = match known.retry_after.as_duration() {
            Some(wait) if !impossible => wait.max(TICK),
            _ => return Err(WaitError::Impossible(known)),
        };
        match self.options.max_wait {
            Some(max_wait) if self.left().is_some_and(|left| wait > left) => Err(if is_first_try {
                WaitError::TooLong { known, max_wait }
            } else {
                WaitError::Elapsed { known, max_wait }
            }),
            _ => Ok(wait),
        }
    }

    async fn for_units(&self, cost: u32) -> Result<Decision, WaitError> {
        if let Some(decision) = self.limiter.spend(self.key, cost) {
            return Ok(decision);
        }
        let mut turn = None;
        let mut is_first_try = true;
        if self.limiter.0.lines.is_waiting(self.key) && self.is_enforced() {
            // Without an answer there is nothing to stand in line for: see what the limit does then.
            if let Some(known) = self.ask(cost).await.map_err(WaitError::Unsupported)? {
                if !known.is_allowed() {
                    self.check(known, true)?;
                }
                turn = Some(self.turn(known).await?);
                is_first_try = false;
            }
        }
        loop {
            let shadow = match self.limiter.reach(self.key) {
                Reach::Off => return Ok(self.limiter.pass(cost)),
                reach => reach == Reach::Shadow,
            };
            let lends = self.limiter.lends() && !shadow;
            let max_wait = match self.left() {
                _ if !lends => Micros::ZERO,
                Some(left) => Micros::from_duration(left).min(MAX_PERIOD),
                None => MAX_PERIOD,
            };
            let reserved = self.limiter.reserve(self.key, shadow, cost, max_wait);
            let (decision, reservation) = reserved.await.map_err(WaitError::Unsupported)?;
            if decision.is_allowed() {
                self.limiter.tell(&decision);
                return self.sleep(decision, reservation, shadow, turn).await;
            }
            // What is too far ahead is known by what a take would say: a reservation's denial
            // tells when it would be near enough.
            let known = if lends && self.options.max_wait.is_some() {
                let asked = self.ask(cost).await.map_err(WaitError::Unsupported)?;
                asked.unwrap_or(decision)
            } else {
                decision
            };
            let refused = |error| {
                self.limiter.tell(&known);
                error
            };
            let wait = if known.is_allowed() {
                // A paced queue that has room: but the delay is longer than allowed, or somebody
                // has made room just now.
                let waited = Decision {
                    retry_after: known.delay,
                    ..known
                };
                self.check(waited, is_first_try).map_err(refused)?.min(TICK)
            } else {
                self.check(known, is_first_try).map_err(refused)?;
                let wait = decision.retry_after.as_duration();
                wait.unwrap_or(TICK).max(TICK)
            };
            if turn.is_none() {
                turn = Some(self.turn(known).await?);
                // Who was in front has changed what was known.
                is_first_try = false;
            } else {
                sleep(wait).await;
            }
        }
    }

    fn is_enforced(&self) -> bool {
        self.limiter.reach(self.key) == Reach::Enforced
    }

    /// What a take would say; none where the store gives no answer.
    async fn ask(&self, cost: u32) -> Result<Option<Decision>, OperationError> {
        match self
            .limiter
            .limit()
            .apply(self.key, &Operation::peek(cost))
            .await
        {
            Ok(Reply::Decision(decision)) => Ok(Some(decision)),
            Err(StoreError::Operation(error)) => Err(error),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Sleeps until reserved units may be used. Given up meanwhile, they go back.
    async fn sleep(
        &self,
        decision: Decision,
        reservation: Option<Reservation>,
        shadow: bool,
        turn: Option<First>,
    ) -> Result<Decision, WaitError> {
        let delay = decision.delay.as_duration().unwrap_or(Duration::ZERO);
        if shadow || (delay.is_zero() && turn.is_none()) {
            return Ok(decision);
        }
        let reserved = reservation.map(|reservation| {
            let (limiter, key) = (self.limiter.clone(), self.key.clone());
            Undone::unless_kept(async move {
                let cancel = Operation::Cancel { reservation };
                limiter.undo(&key, shadow, cancel).await;
            })
        });
        // The next in line may reserve while this one sleeps.
        let _place = match turn {
            Some(first) => first.step_aside(),
            None => {
                let place = self.limiter.0.lines.sleep(self.key, self.options);
                place.map_err(|waiting| WaitError::QueueFull {
                    known: decision,
                    waiting,
                })?
            }
        };
        let spare = self.left().map(|left| left.saturating_sub(delay));
        let jitter = self.options.draw_jitter().as_duration();
        let jitter = spare.map_or(jitter, |spare| jitter.min(spare));
        sleep(delay + jitter).await;
        if let Some(reserved) = reserved {
            reserved.keep();
        }
        let micros = decision.delay.as_micros().unwrap_or(0);
        let reset_after = match decision.reset_after.as_micros() {
            Some(reset) => Wait::micros(reset.saturating_sub(micros)),
            None => Wait::NEVER,
        };
        Ok(Decision {
            delay: Wait::ZERO,
            reset_after,
            at: decision
                .at
                .checked_add(Micros(micros))
                .unwrap_or(decision.at),
            ..decision
        })
    }
}

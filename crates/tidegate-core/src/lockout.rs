//! So many failures, then bans that grow.
//!
//! An attempt charges its failure in advance and a success takes it back: checking first and
//! recording later would let any number of parallel guesses through. The attempt that uses up the
//! last failure begins the ban; if it succeeds after all, the success lifts it.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Family, Standing, count};
use crate::concurrency::LeaseGrant;
use crate::decision::Denial;
use crate::event_log::{EventLog, signed};
use crate::operation::Demand;
use crate::policy::{Policy, PolicyError};
use crate::sliding_log::MAX_LOG_ENTRIES;
use crate::time::{MAX_PERIOD, Micros, Wait};
use crate::words::{self, Words};

/// The numbers of a lockout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockoutSettings {
    /// How many failures within `period` begin a ban; 0 denies every attempt.
    pub failures: u32,
    /// The window in which failures are counted.
    pub period: Micros,
    /// How long the first ban lasts.
    pub ban: Micros,
    /// How many times longer each further ban is.
    pub factor: u32,
    /// How long a ban lasts at most, before jitter.
    pub max_ban: Micros,
    /// Up to how much is added to a ban, drawn by the caller.
    pub jitter: Micros,
    /// How long after the last failure and ban the number of bans is forgotten.
    pub forget_after: Micros,
    /// At most so many attempts without success in a long window, whatever happens in between:
    /// what stops a patient guesser that waits out every ban.
    pub long_cap: Option<(u32, Micros)>,
}

/// Failures, then growing bans.
#[derive(Clone, Debug, PartialEq)]
pub struct Lockout {
    settings: LockoutSettings,
}

/// The failures that still count, and the bans so far.
#[derive(Clone, Debug, PartialEq)]
pub struct LockoutState {
    last: u64,
    failures: EventLog,
    long: EventLog,
    bans: u32,
    banned_until: u64,
    /// When the last failure was charged; 0 for none.
    failed_at: u64,
}

impl Lockout {
    /// Takes the numbers of a lockout.
    ///
    /// # Errors
    /// A count above 100 000; a length of time outside its range; a factor of 0.
    pub fn new(settings: LockoutSettings) -> Result<Self, PolicyError> {
        let LockoutSettings {
            failures,
            period,
            ban,
            max_ban,
            jitter,
            forget_after,
            ..
        } = settings;
        let (cap, long) = settings.long_cap.unwrap_or((0, Micros(1)));
        for length in [period, ban, max_ban, long] {
            if length == Micros::ZERO || length > MAX_PERIOD {
                return Err(PolicyError::PeriodOutOfRange(length));
            }
        }
        for length in [jitter, forget_after] {
            if length > MAX_PERIOD {
                return Err(PolicyError::PeriodOutOfRange(length));
            }
        }
        if settings.factor == 0 {
            return Err(PolicyError::FactorZero);
        }
        for number in [failures, cap] {
            if number > MAX_LOG_ENTRIES {
                return Err(PolicyError::LogTooLong(number));
            }
        }
        Ok(Self { settings })
    }

    /// The numbers.
    #[must_use]
    pub const fn settings(&self) -> &LockoutSettings {
        &self.settings
    }

    fn cutoff(&self, n: u64) -> i64 {
        signed(n) - signed(self.settings.period.0)
    }

    fn long_cutoff(&self, n: u64) -> i64 {
        signed(n)
            - self
                .settings
                .long_cap
                .map_or(0, |(_, period)| signed(period.0))
    }

    fn failures(&self, state: &LockoutState, n: u64) -> u64 {
        state.failures.sum(self.cutoff(n))
    }

    /// How many bans still count.
    fn bans(&self, state: &LockoutState, n: u64) -> u32 {
        if n >= self.forgotten_at(state) {
            0
        } else {
            state.bans
        }
    }

    fn forgotten_at(&self, state: &LockoutState) -> u64 {
        state
            .failed_at
            .max(state.banned_until)
            .saturating_add(self.settings.forget_after.0)
    }

    /// How long the `bans`-th ban lasts, counted from 0.
    fn ban(&self, bans: u32, seed: u64) -> u64 {
        let LockoutSettings {
            ban,
            factor,
            max_ban,
            jitter,
            ..
        } = self.settings;
        let grown = u64::from(factor)
            .checked_pow(bans)
            .and_then(|by| ban.0.checked_mul(by));
        let length = grown.unwrap_or(u64::MAX).min(max_ban.0);
        length.saturating_add(seed % (jitter.0 + 1))
    }

    /// When the long cap lets another attempt through.
    fn long_wait(&self, state: &LockoutState, n: u64) -> Wait {
        let Some((cap, period)) = self.settings.long_cap else {
            return Wait::ZERO;
        };
        if cap == 0 {
            return Wait::NEVER;
        }
        let above = (state.long.sum(self.long_cutoff(n)) + 1).saturating_sub(u64::from(cap));
        if above == 0 {
            return Wait::ZERO;
        }
        state
            .long
            .leaves(self.long_cutoff(n), above)
            .map_or(Wait::NEVER, |at| left(at, period, n))
    }

    fn remaining(&self, state: &LockoutState, n: u64) -> u32 {
        if state.banned_until > n {
            return 0;
        }
        let own = u64::from(self.settings.failures).saturating_sub(self.failures(state, n));
        let long = self.settings.long_cap.map_or(u64::MAX, |(cap, _)| {
            u64::from(cap).saturating_sub(state.long.sum(self.long_cutoff(n)))
        });
        count(own.min(long))
    }

    fn reset(&self, state: &LockoutState, n: u64) -> Wait {
        let window = state.failures.newest(self.cutoff(n));
        let window = window.map_or(Wait::ZERO, |at| left(at, self.settings.period, n));
        window.max(Wait::micros(state.banned_until.saturating_sub(n)))
    }
}

/// How long until something at `at` is `period` old.
fn left(at: i64, period: Micros, n: u64) -> Wait {
    Wait::micros((at + signed(period.0) - signed(n)).max(0).unsigned_abs())
}

impl Algorithm for Lockout {
    const NAME: &'static str = "lockout";
    const FAMILY: Family = Family::Attempts;
    type State = LockoutState;

    fn fresh(&self, n: u64) -> LockoutState {
        LockoutState {
            last: n,
            failures: EventLog::default(),
            long: EventLog::default(),
            bans: 0,
            banned_until: 0,
            failed_at: 0,
        }
    }

    fn last(state: &LockoutState) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut LockoutState, now: u64) {
        let by = state.last.saturating_sub(now);
        state.failures.shift_back(signed(by));
        state.long.shift_back(signed(by));
        state.banned_until = state.banned_until.saturating_sub(by);
        state.failed_at = state.failed_at.saturating_sub(by);
        state.last = now;
    }

    fn advance(&self, state: &mut LockoutState, n: u64) {
        state.bans = self.bans(state, n);
        state.failures.trim(self.cutoff(n));
        state.long.trim(self.long_cutoff(n));
        state.last = n;
    }

    fn limit(&self) -> u32 {
        self.settings.failures
    }

    fn assess(&self, state: &LockoutState, n: u64, demand: &Demand) -> Assessment {
        let Demand::Attempt { seed } = *demand else {
            return Assessment::impossible(0, Wait::ZERO);
        };
        let (remaining, reset) = (self.remaining(state, n), self.reset(state, n));
        if self.settings.failures == 0 || self.settings.long_cap.is_some_and(|(cap, _)| cap == 0) {
            return Assessment::impossible(remaining, reset);
        }
        let long = self.long_wait(state, n);
        let banned = Wait::micros(state.banned_until.saturating_sub(n));
        if banned > Wait::ZERO {
            let denial = Some(Denial::Blocked);
            return Assessment {
                denial,
                ..Assessment::limited(0, banned.max(long), reset)
            };
        }
        if long > Wait::ZERO {
            return Assessment::limited(remaining, long, reset);
        }
        let last_one = self.failures(state, n) + 1 >= u64::from(self.settings.failures);
        let reset = if last_one {
            Wait::micros(self.ban(self.bans(state, n), seed))
        } else {
            Wait::micros(self.settings.period.0)
        };
        let remaining = if last_one {
            0
        } else {
            remaining.saturating_sub(1)
        };
        Assessment::fits(remaining, reset)
    }

    fn commit(&self, state: &mut LockoutState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        let Demand::Attempt { seed } = *demand else {
            return None;
        };
        self.advance(state, n);
        if self.settings.long_cap.is_some() {
            state.long.add(signed(n), 1);
        }
        state.failed_at = n;
        if self.failures(state, n) + 1 < u64::from(self.settings.failures) {
            state.failures.add(signed(n), 1);
        } else {
            state.banned_until = n.saturating_add(self.ban(state.bans, seed));
            state.bans = state.bans.saturating_add(1);
            state.failures.clear();
        }
        None
    }

    fn standing(&self, state: &LockoutState, n: u64) -> Standing {
        Standing {
            used: count(self.failures(state, n)),
            remaining: self.remaining(state, n),
            reset: self.reset(state, n),
        }
    }

    fn is_fresh(&self, state: &LockoutState, n: u64) -> bool {
        self.fresh_after(state, n) == Wait::ZERO
    }

    fn fresh_after(&self, state: &LockoutState, n: u64) -> Wait {
        let bans = if self.bans(state, n) > 0 {
            self.forgotten_at(state).saturating_sub(n)
        } else {
            0
        };
        let long = state
            .long
            .newest(self.long_cutoff(n))
            .map_or(Wait::ZERO, |at| {
                self.settings
                    .long_cap
                    .map_or(Wait::ZERO, |(_, period)| left(at, period, n))
            });
        self.reset(state, n).max(Wait::micros(bans)).max(long)
    }

    /// Failures follow the mode; a ban that has begun stays, except after a reset.
    fn reprice(&self, old: &Self, state: &mut LockoutState, n: u64, mode: ChangeMode) {
        old.advance(state, n);
        if mode == ChangeMode::Reset {
            *state = self.fresh(n);
            return;
        }
        let used = mode.used(
            state.failures.sum(i64::MIN),
            old.settings.failures,
            self.settings.failures,
        );
        state.failures.scale(used, signed(n));
        if self.settings.long_cap.is_none() {
            state.long.clear();
        }
    }

    fn write_state(state: &LockoutState, out: &mut Vec<u64>) {
        out.extend([state.last, state.bans.into()]);
        out.extend([state.banned_until, state.failed_at]);
        state.failures.write(out);
        state.long.write(out);
    }

    fn read_state(&self, words: &mut impl Words) -> Option<LockoutState> {
        Some(LockoutState {
            last: words::time(words)?,
            bans: words::small(words)?,
            banned_until: words::number(words)?,
            failed_at: words::number(words)?,
            failures: EventLog::read(words)?,
            long: EventLog::read(words)?,
        })
    }

    fn pack(&self, _state: &LockoutState) -> Option<u64> {
        None
    }

    fn unpack(&self, last: u64, _word: u64) -> LockoutState {
        self.fresh(last)
    }

    /// Clears the failures and the ban; of the long cap only the attempt's own charge.
    fn success(&self, state: &mut LockoutState, n: u64) -> bool {
        if self.is_fresh(state, n) {
            return false;
        }
        self.advance(state, n);
        state.long.take_newest(1);
        state.failures.clear();
        (state.bans, state.banned_until, state.failed_at) = (0, 0, 0);
        true
    }
}

impl From<Lockout> for Policy {
    fn from(lockout: Lockout) -> Self {
        Self::Lockout(lockout)
    }
}

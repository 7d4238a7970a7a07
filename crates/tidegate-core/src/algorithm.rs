//! What a store needs of an algorithm, and what it keeps for a key.
//!
//! The methods take `n`, the key's own time: never before [`Algorithm::last`]. Turning a caller's
//! `now` into it, blocking, and combining the pieces into operations is the same for all and done
//! once, in [`crate::engine`].

use core::fmt::Debug;

use crate::concurrency::{LeaseGrant, LeaseId};
use crate::decision::Denial;
use crate::operation::Demand;
use crate::time::{Micros, Timestamp, Wait};
use crate::words::Words;

/// What a limit counts, and so which operations it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Units: taken, given back, reserved.
    Units,
    /// Leases: acquired, renewed, released.
    Leases,
    /// Guesses: attempted, succeeded.
    Attempts,
}

/// What happens to the state of a key when its limit's numbers change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeMode {
    /// What was used stays used, at most up to the new capacity of a bucket.
    #[default]
    KeepUsed,
    /// The used share stays the same, rounded up.
    Proportional,
    /// What was available stays available, at most up to the new capacity.
    KeepAvailable,
    /// Every key starts afresh.
    Reset,
}

impl ChangeMode {
    /// Units in use after a change of the limit from `old` to `new`, for everything that counts
    /// whole units.
    pub(crate) fn used(self, used: u64, old: u32, new: u32) -> u64 {
        let (old, new) = (u64::from(old), u64::from(new));
        match self {
            // A key that has used nothing is one that was never seen, and stays so: it may have
            // been forgotten.
            _ if used == 0 => 0,
            Self::KeepUsed => used,
            // A limit that was 0 has no share to keep.
            Self::Proportional if old == 0 => used,
            Self::Proportional => (used * new).div_ceil(old).min(u32::MAX.into()),
            Self::KeepAvailable => new - old.saturating_sub(used).min(new),
            Self::Reset => 0,
        }
    }
}

/// What a store keeps for a key: the algorithm's state, and a block if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<S> {
    /// The algorithm's state.
    pub state: S,
    /// Until when everything is denied, in microseconds since the epoch; 0 for no block.
    pub blocked_until: u64,
}

impl<S> Entry<S> {
    /// The entry of a key that was never seen.
    pub fn fresh<A: Algorithm<State = S>>(algorithm: &A, now: Timestamp) -> Self {
        Self {
            state: algorithm.fresh(now.as_micros()),
            blocked_until: 0,
        }
    }
}

/// A state that fits a word, and the latest time that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// What [`Algorithm::last`] gives.
    pub last: u64,
    /// What [`Algorithm::pack`] gives.
    pub word: u64,
}

/// What an algorithm says to a demand, before blocks and clock steps are taken into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// None if the demand fits.
    pub denial: Option<Denial>,
    /// What is left for calls of cost 1: after the charge if the demand fits.
    pub remaining: u32,
    /// How long an allowed caller must wait before it goes on.
    pub delay: Wait,
    /// When the demand would fit, counted from `n`.
    pub retry: Wait,
    /// When the limit would be full again, counted from `n`, after the charge if it fits.
    pub reset: Wait,
}

impl Assessment {
    /// A demand that fits.
    pub(crate) const fn fits(remaining: u32, reset: Wait) -> Self {
        Self {
            denial: None,
            remaining,
            delay: Wait::ZERO,
            retry: Wait::ZERO,
            reset,
        }
    }

    /// A demand that does not fit now.
    pub(crate) const fn limited(remaining: u32, retry: Wait, reset: Wait) -> Self {
        let denial = Some(Denial::Limited);
        Self {
            denial,
            remaining,
            delay: Wait::ZERO,
            retry,
            reset,
        }
    }

    /// A demand that can never fit.
    pub(crate) const fn impossible(remaining: u32, reset: Wait) -> Self {
        let denial = Some(Denial::Impossible);
        Self {
            denial,
            remaining,
            delay: Wait::ZERO,
            retry: Wait::NEVER,
            reset,
        }
    }
}

/// What is used and what is left at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Units in use, rounded up.
    pub used: u32,
    /// What is left for calls of cost 1.
    pub remaining: u32,
    /// When the limit is full again.
    pub reset: Wait,
}

/// One algorithm with its numbers: pure functions of a state and the key's own time.
pub trait Algorithm: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// The word for the algorithm in files and messages.
    const NAME: &'static str;

    /// Which operations have a meaning here.
    const FAMILY: Family = Family::Units;

    /// What is kept for a key.
    type State: Clone + Debug + PartialEq + Send + 'static;

    /// The state of a key that was never seen.
    fn fresh(&self, n: u64) -> Self::State;

    /// The latest time that the state has seen.
    fn last(state: &Self::State) -> u64;

    /// Moves every stored time back by `last - now`: the clock was corrected.
    fn rebase(&self, state: &mut Self::State, now: u64);

    /// Lets time pass up to `n` without charging anything.
    fn advance(&self, state: &mut Self::State, n: u64);

    /// The most that the limit lets through at once.
    fn limit(&self) -> u32;

    /// What taking the demand would mean.
    ///
    /// A demand of another family costs nothing here: the engine lets none through.
    fn assess(&self, state: &Self::State, n: u64, demand: &Demand) -> Assessment;

    /// Charges a demand that [`Self::assess`] said fits.
    fn commit(&self, state: &mut Self::State, n: u64, demand: &Demand) -> Option<LeaseGrant>;

    /// What is used and left.
    fn standing(&self, state: &Self::State, n: u64) -> Standing;

    /// Whether the state cannot be told from that of a key that was never seen.
    fn is_fresh(&self, state: &Self::State, n: u64) -> bool;

    /// How long until [`Self::is_fresh`] if nothing else happens.
    fn fresh_after(&self, state: &Self::State, n: u64) -> Wait;

    /// Adopts these numbers for a state that was kept under `old` and has advanced to `n`.
    fn reprice(&self, old: &Self, state: &mut Self::State, n: u64, mode: ChangeMode);

    /// The state in one word beside [`Self::last`], if it fits.
    fn pack(&self, state: &Self::State) -> Option<u64>;

    /// The state that [`Self::pack`] wrote.
    fn unpack(&self, last: u64, word: u64) -> Self::State;

    /// Takes `cost` units of a packed state, or nothing: [`Self::assess`] and [`Self::commit`] on
    /// what [`Self::unpack`] gives, packed again. None where the new state does not fit a word.
    ///
    /// The hot path of a store. An algorithm that can do it in one word says how.
    #[inline(always)]
    fn take_word(&self, last: u64, word: u64, n: u64, cost: u32) -> Option<(Assessment, Packed)> {
        let mut state = self.unpack(last, word);
        let demand = Demand::Take { cost };
        let assessment = self.assess(&state, n, &demand);
        if assessment.denial.is_some() || cost == 0 {
            return Some((assessment, Packed { last, word }));
        }
        self.commit(&mut state, n, &demand);
        let word = self.pack(&state)?;
        let last = Self::last(&state);
        Some((assessment, Packed { last, word }))
    }

    /// Appends the state as words, for [`Self::read_state`].
    fn write_state(state: &Self::State, out: &mut alloc::vec::Vec<u64>);

    /// The state that [`Self::write_state`] wrote under these numbers; none for words that are no
    /// state.
    fn read_state(&self, words: &mut impl Words) -> Option<Self::State>;

    /// Makes the key fresh.
    fn start_over(&self, state: &mut Self::State, n: u64) {
        *state = self.fresh(n);
    }

    /// Whether something is to be remembered of a key that was reset: a fencing token rises on.
    fn outlives_start(&self, _state: &Self::State) -> bool {
        false
    }

    /// What reserving `cost` for use within `max_wait` would mean.
    ///
    /// Unless the algorithm can lend from the future, this is what taking it now would mean.
    fn assess_reservation(
        &self,
        state: &Self::State,
        n: u64,
        cost: u32,
        _max_wait: Micros,
    ) -> Assessment {
        self.assess(state, n, &Demand::Take { cost })
    }

    /// Charges `cost` whatever is left, into debt down to one capacity.
    fn force(&self, _state: &mut Self::State, _n: u64, _cost: u32) {}

    /// Gives back up to `cost` units; of the charge made at `charged_at` if that is known.
    /// Returns how many came back; the state is untouched if none did.
    fn refund(
        &self,
        _state: &mut Self::State,
        _n: u64,
        _cost: u32,
        _charged_at: Option<u64>,
    ) -> u32 {
        0
    }

    /// Extends a live lease; none, and nothing changed, if it was lost.
    fn renew(&self, _state: &mut Self::State, _n: u64, _lease: LeaseId) -> Option<LeaseGrant> {
        None
    }

    /// Gives a lease back; false, and nothing changed, if it was not live.
    fn release(&self, _state: &mut Self::State, _n: u64, _lease: LeaseId) -> bool {
        false
    }

    /// Takes an attempt back and forgets the failures; false if there was nothing to forget.
    fn success(&self, _state: &mut Self::State, _n: u64) -> bool {
        false
    }

    /// Live leases.
    fn leases(&self, _state: &Self::State, _n: u64) -> alloc::vec::Vec<LeaseGrant> {
        alloc::vec::Vec::new()
    }
}

/// Saturates a count of units that is known to be small into the type that decisions use.
pub(crate) fn count(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

//! So many at once: leases that expire.
//!
//! A lease lives from its grant to its expiry, not including it. A holder that is late finds its
//! lease lost, and a release can only free what the releaser holds.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Assessment, ChangeMode, Family, Standing, count};
use crate::event_log::signed;
use crate::operation::Demand;
use crate::policy::{MAX_COUNT, Policy, PolicyError};
use crate::time::{MAX_PERIOD, Micros, Timestamp, Wait};
use crate::words::{self, Words};

/// Whose lease it is: chosen by the caller, unique among the callers of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u128);

/// A live lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Whose it is.
    pub lease: LeaseId,
    /// How many permits it holds.
    pub weight: u32,
    /// Rises with every grant of the key: who writes to a shared resource shows it there, and
    /// the resource refuses a lower one than it has seen.
    ///
    /// It is at least the microsecond of the grant, so that it still rises after a store has
    /// lost its memory.
    pub fencing_token: u64,
    /// The first moment at which the lease is no longer honoured.
    pub expires_at: Timestamp,
}

/// A limit on what is at work at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    limit: u32,
    lease: Micros,
    max_hold: Option<Micros>,
}

/// The leases that may still be live, soonest expiry first.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyState {
    last: u64,
    /// Stored times are `shift` later than the true ones.
    shift: i64,
    leases: Vec<Held>,
    fencing_token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    lease: LeaseId,
    weight: u32,
    fencing_token: u64,
    granted: i64,
    expires: i64,
}

impl Concurrency {
    /// Takes how many permits there are, how long a lease lives without being renewed, and how
    /// long it may live at most.
    ///
    /// # Errors
    /// A limit or length of time outside its range; a lease longer than the longest hold.
    pub fn new(limit: u32, lease: Micros, max_hold: Option<Micros>) -> Result<Self, PolicyError> {
        if limit > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(limit));
        }
        for length in [Some(lease), max_hold].into_iter().flatten() {
            if length == Micros::ZERO || length > MAX_PERIOD {
                return Err(PolicyError::PeriodOutOfRange(length));
            }
        }
        if let Some(max_hold) = max_hold.filter(|max_hold| *max_hold < lease) {
            return Err(PolicyError::LeaseAboveHold { lease, max_hold });
        }
        Ok(Self {
            limit,
            lease,
            max_hold,
        })
    }

    /// How many permits there are.
    #[must_use]
    pub const fn permits(&self) -> u32 {
        self.limit
    }

    /// How long a lease lives without being renewed.
    #[must_use]
    pub const fn lease(&self) -> Micros {
        self.lease
    }

    /// How long a lease may live at most.
    #[must_use]
    pub const fn max_hold(&self) -> Option<Micros> {
        self.max_hold
    }

    fn live<'a>(
        &self,
        state: &'a ConcurrencyState,
        n: u64,
    ) -> impl Iterator<Item = &'a Held> + use<'a> {
        let now = signed(n).saturating_add(state.shift);
        state
            .leases
            .iter()
            .skip_while(move |held| held.expires <= now)
    }

    fn used(&self, state: &ConcurrencyState, n: u64) -> u64 {
        self.live(state, n).map(|held| u64::from(held.weight)).sum()
    }

    fn reset(&self, state: &ConcurrencyState, n: u64) -> Wait {
        let newest = self.live(state, n).last();
        newest.map_or(Wait::ZERO, |held| expires_in(state, held, n))
    }

    /// When leases of `weight` in sum have expired, if none is renewed.
    fn freed_in(&self, state: &ConcurrencyState, n: u64, weight: u64) -> Wait {
        let mut freed = 0;
        for held in self.live(state, n) {
            freed += u64::from(held.weight);
            if freed >= weight {
                return expires_in(state, held, n);
            }
        }
        Wait::NEVER
    }

    /// Puts a lease where its expiry belongs.
    fn insert(&self, state: &mut ConcurrencyState, held: Held) {
        let place = state
            .leases
            .partition_point(|other| other.expires <= held.expires);
        state.leases.insert(place, held);
    }
}

/// How long a live lease still lives.
fn expires_in(state: &ConcurrencyState, held: &Held, n: u64) -> Wait {
    Wait::micros(
        (held.expires - state.shift - signed(n))
            .max(0)
            .unsigned_abs(),
    )
}

/// A lease as its holder sees it.
fn grant(state: &ConcurrencyState, held: &Held) -> LeaseGrant {
    let expires = (held.expires - state.shift).max(0).unsigned_abs();
    LeaseGrant {
        lease: held.lease,
        weight: held.weight,
        fencing_token: held.fencing_token,
        expires_at: Timestamp::from_micros(expires).unwrap_or(Timestamp::MAX),
    }
}

impl Algorithm for Concurrency {
    const NAME: &'static str = "concurrency";
    const FAMILY: Family = Family::Leases;
    type State = ConcurrencyState;

    fn fresh(&self, n: u64) -> ConcurrencyState {
        ConcurrencyState {
            last: n,
            shift: 0,
            leases: Vec::new(),
            fencing_token: 0,
        }
    }

    fn last(state: &ConcurrencyState) -> u64 {
        state.last
    }

    fn rebase(&self, state: &mut ConcurrencyState, now: u64) {
        const MAX_SHIFT: i64 = 1 << 60;
        if state.shift > MAX_SHIFT {
            for held in &mut state.leases {
                held.granted = held.granted.saturating_sub(state.shift);
                held.expires = held.expires.saturating_sub(state.shift);
            }
            state.shift = 0;
        }
        state.shift = state
            .shift
            .saturating_add(signed(state.last.saturating_sub(now)));
        state.last = now;
    }

    fn advance(&self, state: &mut ConcurrencyState, n: u64) {
        let now = signed(n).saturating_add(state.shift);
        let expired = state.leases.partition_point(|held| held.expires <= now);
        state.leases.drain(..expired);
        if state.leases.is_empty() {
            state.shift = 0;
        }
        state.last = n;
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn assess(&self, state: &ConcurrencyState, n: u64, demand: &Demand) -> Assessment {
        let Demand::Acquire { lease, weight } = *demand else {
            return Assessment::impossible(0, Wait::ZERO);
        };
        let used = self.used(state, n);
        let remaining = count(u64::from(self.limit).saturating_sub(used));
        let reset = self.reset(state, n);
        if self.live(state, n).any(|held| held.lease == lease) {
            return Assessment::fits(remaining, reset);
        }
        if weight > self.limit {
            return Assessment::impossible(remaining, reset);
        }
        let above = (used + u64::from(weight)).saturating_sub(u64::from(self.limit));
        if above > 0 {
            return Assessment::limited(remaining, self.freed_in(state, n, above), reset);
        }
        let own = if weight == 0 {
            Wait::ZERO
        } else {
            Wait::micros(self.lease.0)
        };
        Assessment::fits(remaining - weight, reset.max(own))
    }

    fn commit(&self, state: &mut ConcurrencyState, n: u64, demand: &Demand) -> Option<LeaseGrant> {
        let Demand::Acquire { lease, weight } = *demand else {
            return None;
        };
        if let Some(held) = self.live(state, n).find(|held| held.lease == lease) {
            return Some(grant(state, held));
        }
        if weight == 0 {
            return None;
        }
        self.advance(state, n);
        state.fencing_token = n.max(state.fencing_token.saturating_add(1));
        let granted = signed(n).saturating_add(state.shift);
        let held = Held {
            lease,
            weight,
            fencing_token: state.fencing_token,
            granted,
            expires: granted.saturating_add(signed(self.lease.0)),
        };
        self.insert(state, held);
        Some(grant(state, &held))
    }

    fn standing(&self, state: &ConcurrencyState, n: u64) -> Standing {
        let used = self.used(state, n);
        Standing {
            used: count(used),
            remaining: count(u64::from(self.limit).saturating_sub(used)),
            reset: self.reset(state, n),
        }
    }

    /// No live lease, and a later grant would get a higher fencing token without being told.
    fn is_fresh(&self, state: &ConcurrencyState, n: u64) -> bool {
        self.live(state, n).next().is_none() && state.fencing_token < n.max(1)
    }

    fn fresh_after(&self, state: &ConcurrencyState, n: u64) -> Wait {
        let token = Wait::micros((state.fencing_token + 1).saturating_sub(n.max(1)));
        self.reset(state, n).max(token)
    }

    /// Leases are work under way: no change of numbers undoes them, except a reset.
    fn reprice(&self, old: &Self, state: &mut ConcurrencyState, n: u64, mode: ChangeMode) {
        if mode == ChangeMode::Reset {
            state.leases.clear();
        }
        old.advance(state, n);
    }

    /// Only the token is left, and the moment it was given is all that the key has seen: no call
    /// can tell it from one that was forgotten when the token allowed that.
    fn start_over(&self, state: &mut ConcurrencyState, _n: u64) {
        *state = ConcurrencyState {
            last: state.last.min(state.fencing_token),
            fencing_token: state.fencing_token,
            ..self.fresh(0)
        };
    }

    fn outlives_start(&self, state: &ConcurrencyState) -> bool {
        state.fencing_token > 0
    }

    fn write_state(state: &ConcurrencyState, out: &mut Vec<u64>) {
        let true_time = |at: i64| words::write_signed(at.saturating_sub(state.shift));
        out.extend([state.last, state.fencing_token, state.leases.len() as u64]);
        for held in &state.leases {
            words::write_wide(held.lease.0, out);
            out.extend([held.weight.into(), held.fencing_token]);
            out.extend([true_time(held.granted), true_time(held.expires)]);
        }
    }

    fn read_state(&self, words: &mut impl Words) -> Option<ConcurrencyState> {
        let mut state = ConcurrencyState {
            last: words::time(words)?,
            shift: 0,
            leases: Vec::new(),
            fencing_token: words::number(words)?,
        };
        for _ in 0..words.next_word()? {
            let held = Held {
                lease: LeaseId(words::wide(words)?),
                weight: words::small(words)?,
                fencing_token: words::number(words)?,
                granted: words::signed(words)?,
                expires: words::signed(words)?,
            };
            let in_order = state
                .leases
                .last()
                .is_none_or(|last| last.expires <= held.expires);
            if !in_order || held.fencing_token > state.fencing_token {
                return None;
            }
            state.leases.push(held);
        }
        Some(state)
    }

    fn pack(&self, _state: &ConcurrencyState) -> Option<u64> {
        None
    }

    fn unpack(&self, last: u64, _word: u64) -> ConcurrencyState {
        self.fresh(last)
    }

    fn renew(&self, state: &mut ConcurrencyState, n: u64, lease: LeaseId) -> Option<LeaseGrant> {
        if !self.live(state, n).any(|held| held.lease == lease) {
            return None;
        }
        self.advance(state, n);
        let place = state.leases.iter().position(|held| held.lease == lease)?;
        let mut held = state.leases.remove(place);
        let now = signed(n).saturating_add(state.shift);
        let longest = self
            .max_hold
            .map_or(i64::MAX, |hold| held.granted + signed(hold.0));
        // A change of limits may have shortened the lease: what was promised stays.
        held.expires = (now.saturating_add(signed(self.lease.0)))
            .min(longest)
            .max(held.expires);
        self.insert(state, held);
        Some(grant(state, &held))
    }

    fn release(&self, state: &mut ConcurrencyState, n: u64, lease: LeaseId) -> bool {
        if !self.live(state, n).any(|held| held.lease == lease) {
            return false;
        }
        self.advance(state, n);
        state.leases.retain(|held| held.lease != lease);
        true
    }

    fn leases(&self, state: &ConcurrencyState, n: u64) -> Vec<LeaseGrant> {
        self.live(state, n).map(|held| grant(state, held)).collect()
    }
}

impl From<Concurrency> for Policy {
    fn from(concurrency: Concurrency) -> Self {
        Self::Concurrency(concurrency)
    }
}

//! Denials that a process remembers, so that a caller who does not wait costs no round trip.
//!
//! A denial is remembered until its exact `retry_after`, a second at most, and for that very call
//! only. It never lets anything pass. What this process itself does to a key ends what it remembers
//! of it; what others do to it is seen within the second.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate_core::{Decision, Source, Timestamp, Wait};

/// The longest time for which a state is not asked again.
const LONGEST: Duration = Duration::from_secs(1);

/// Shorter waits are over before they are worth a place.
const SHORTEST: Duration = Duration::from_millis(1);

/// Places that one call may lie in.
const WAYS: usize = 4;

/// How many counters tell whether this process changed a key. Keys that share one end each other's
/// memories, which costs a round trip.
const STAMPS: usize = 4096;

/// A denial, and what each member of the call said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Denied {
    pub(crate) decision: Decision,
    pub(crate) members: SmallVec<[Decision; 1]>,
}

/// What one process remembers, bounded from the start.
#[derive(Debug)]
pub(crate) struct DeniedCalls {
    sets: Box<[Mutex<[Option<Entry>; WAYS]>]>,
    stamps: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct Entry {
    call: u128,
    /// Before it was sent: a wait counts from there, so that it never ends too late.
    sent: Instant,
    until: Instant,
    stamp: u64,
    denied: Denied,
}

/// A call that may be remembered, as it was before it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    call: u128,
    sent: Instant,
    stamp: u64,
}

/// Ends what is remembered of a key, at the beginning of a change and at its end: what is denied
/// in between may have been denied before the change.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    stamp: &'a AtomicU64,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.stamp.fetch_add(1, SeqCst);
    }
}

impl DeniedCalls {
    /// Remembers about so many calls.
    pub(crate) fn new(calls: usize) -> Self {
        Self {
            sets: (0..calls.div_ceil(WAYS).max(1))
                .map(|_| Mutex::default())
                .collect(),
            stamps: (0..STAMPS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// What is remembered of a call, as of now; else what has to be given back with its answer.
    /// `call` is a hash that nobody outside can make, of everything that the answer depends on;
    /// `keys` are such hashes of its keys.
    pub(crate) fn recall(
        &self,
        call: u128,
        keys: impl Iterator<Item = u64>,
        now: Instant,
    ) -> Result<Denied, Pending> {
        let stamp = self.stamp(keys);
        let mut set = self.set(call);
        let found = set.iter_mut().find(|place| {
            let entry = place.as_ref();
            entry.is_some_and(|entry| entry.call == call)
        });
        if let Some(place) = found {
            let entry = place.take_if(|entry| entry.stamp != stamp || entry.until <= now);
            if let (None, Some(entry)) = (entry, place) {
                return Ok(entry.denied.after(now.duration_since(entry.sent)));
            }
        }
        Err(Pending {
            call,
            sent: now,
            stamp,
        })
    }

    /// Remembers a denial, unless one of its keys was changed since it was sent.
    pub(crate) fn remember(
        &self,
        pending: Pending,
        keys: impl Iterator<Item = u64>,
        denied: Denied,
    ) {
        let wait = denied.decision.retry_after.as_duration();
        let wait = wait.unwrap_or(LONGEST).min(LONGEST);
        if wait < SHORTEST || self.stamp(keys) != pending.stamp {
            return;
        }
        let entry = Entry {
            call: pending.call,
            sent: pending.sent,
            until: pending.sent + wait,
            stamp: pending.stamp,
            denied,
        };
        let mut set = self.set(pending.call);
        let known = set
            .iter()
            .position(|place| place.as_ref().is_some_and(|other| other.call == entry.call));
        let place = known.unwrap_or_else(|| {
            // An empty place, or the one that is empty first.
            let ends = |place: &Option<Entry>| place.as_ref().map(|entry| entry.until);
            (0..WAYS).min_by_key(|way| ends(&set[*way])).unwrap_or(0)
        });
        set[place] = Some(entry);
    }

    /// Begins a change of a key.
    pub(crate) fn change(&self, key: u64) -> Changing<'_> {
        let stamp = &self.stamps[place(key, STAMPS)];
        stamp.fetch_add(1, SeqCst);
        Changing { stamp }
    }

    /// Rises with every change of one of the keys, and never falls.
    fn stamp(&self, keys: impl Iterator<Item = u64>) -> u64 {
        keys.map(|key| self.stamps[place(key, STAMPS)].load(SeqCst))
            .sum()
    }

    fn set(&self, call: u128) -> std::sync::MutexGuard<'_, [Option<Entry>; WAYS]> {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "any half of a hash will do"
        )]
        let set = &self.sets[place(call as u64, self.sets.len())];
        set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hash as a position.
fn place(hash: u64, places: usize) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "it is less than `places`")]
    let place = (hash % places as u64) as usize;
    place
}

impl Denied {
    /// The same denial after some time in which nothing happened.
    fn after(&self, elapsed: Duration) -> Self {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        Self {
            decision: later(self.decision, micros),
            members: self
                .members
                .iter()
                .map(|member| later(*member, micros))
                .collect(),
        }
    }
}

fn later(decision: Decision, micros: u64) -> Decision {
    let shorter = |wait: Wait| {
        wait.as_micros().map_or(Wait::NEVER, |wait| {
            Wait::micros(wait.saturating_sub(micros))
        })
    };
    let at = decision.at.as_micros().saturating_add(micros);
    Decision {
        retry_after: shorter(decision.retry_after),
        reset_after: shorter(decision.reset_after),
        at: Timestamp::from_micros(at).unwrap_or(Timestamp::MAX),
        source: Source::Remembered,
        ..decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Denial, Verdict};

    fn denied(retry_after: Wait) -> Denied {
        let decision = Decision {
            verdict: Verdict::Deny(Denial::Limited),
            limit: 5,
            remaining: 0,
            cost: 1,
            delay: Wait::ZERO,
            retry_after,
            reset_after: Wait::micros(10_000_000),
            at: Timestamp::from_micros(1_000).unwrap(),
            binding: 0,
            shadow: false,
            source: Source::State,
        };
        Denied {
            decision,
            members: SmallVec::new(),
        }
    }

    /// One call on one key; a moment is in milliseconds.
    struct Bench {
        calls: DeniedCalls,
        start: Instant,
    }

    impl Bench {
        fn new(calls: usize) -> Self {
            Self {
                calls: DeniedCalls::new(calls),
                start: Instant::now(),
            }
        }

        fn recall(&self, call: u64, at: u64) -> Result<Denied, Pending> {
            let now = self.start + Duration::from_millis(at);
            self.calls.recall(call.into(), [call].into_iter(), now)
        }

        fn remember(&self, call: u64, at: u64, retry_after: Wait) {
            let pending = self.recall(call, at).unwrap_err();
            let key = [call].into_iter();
            self.calls.remember(pending, key, denied(retry_after));
        }
    }

    #[test]
    fn a_denial_is_remembered_until_its_exact_end() {
        let bench = Bench::new(100);
        bench.remember(1, 0, Wait::micros(300_000));
        let seen = bench.recall(1, 299).unwrap().decision;
        assert_eq!(seen.retry_after, Wait::micros(1_000));
        assert_eq!(seen.reset_after, Wait::micros(9_701_000));
        assert_eq!(seen.at.as_micros(), 300_000);
        assert_eq!(seen.source, Source::Remembered);
        assert!(bench.recall(1, 300).is_err());
        assert!(bench.recall(2, 0).is_err());
    }

    #[test]
    fn no_state_is_left_unasked_for_longer_than_a_second() {
        let bench = Bench::new(100);
        bench.remember(1, 0, Wait::NEVER);
        bench.remember(2, 0, Wait::micros(60_000_000));
        assert!(
            bench
                .recall(1, 999)
                .unwrap()
                .decision
                .retry_after
                .is_never()
        );
        assert_eq!(
            bench.recall(2, 999).unwrap().decision.retry_after,
            Wait::micros(59_001_000)
        );
        assert!(bench.recall(1, 1000).is_err());
        assert!(bench.recall(2, 1000).is_err());
    }

    #[test]
    fn a_change_of_the_key_ends_what_is_remembered() {
        let bench = Bench::new(100);
        bench.remember(1, 0, Wait::NEVER);
        drop(bench.calls.change(1));
        assert!(bench.recall(1, 1).is_err());
    }

    #[test]
    fn what_was_denied_while_the_key_changed_is_not_remembered() {
        let bench = Bench::new(100);
        let before = bench.recall(1, 0).unwrap_err();
        let change = bench.calls.change(1);
        let during = bench.recall(1, 1).unwrap_err();
        let key = || [1].into_iter();
        bench.calls.remember(before, key(), denied(Wait::NEVER));
        assert!(bench.recall(1, 2).is_err());
        bench.calls.remember(during, key(), denied(Wait::NEVER));
        drop(change);
        assert!(bench.recall(1, 3).is_err());
    }

    #[test]
    fn a_flood_of_calls_takes_no_more_room_and_ends_the_oldest() {
        let bench = Bench::new(8);
        for call in 0..1000 {
            bench.remember(call, 0, Wait::micros(500_000 + call));
        }
        let remembered = (0..1000).filter(|call| bench.recall(*call, 1).is_ok());
        assert_eq!(remembered.count(), 8);
        assert!(bench.recall(999, 1).is_ok());
    }
}

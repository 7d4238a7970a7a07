//! Who waits for a limit: a line for each key that somebody waits for, and none for any other.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, VacantEntry};
use std::task::Waker;

use tidegate_core::{Operation, OperationError, Reply, Timestamp};
use tidegate_store::{KeyHash, Moment};

use super::caller::{Caller, Settled};
use super::error::WaitError;
use super::job::{Place, Step};
use super::line::{Line, Number, Seen};
use super::options::WaitOptions;
use crate::limiter::Limiter;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, lock};

/// Lines are spread over so many locks.
const SHARDS: usize = 16;

/// The lines of one limit.
#[derive(Default)]
pub(crate) struct Waiters {
    shards: [Mutex<Lines>; SHARDS],
    /// Callers in all lines.
    waiting: AtomicUsize,
}

type Lines = HashMap<KeyHash, Line>;

/// A line that is held. When it is let go, those that were moved on in it are woken.
struct Held<'a> {
    lines: MutexGuard<'a, Lines>,
    wake: Vec<Waker>,
}

impl Held<'_> {
    /// Lets the line go, and wakes with it free: what is woken may look at once.
    fn finish(self, place: KeyHash, waiting: &AtomicUsize, before: usize) {
        let Self { mut lines, wake } = self;
        let after = lines.get(&place).map_or(0, Line::len);
        if lines.get(&place).is_some_and(Line::is_done) {
            lines.remove(&place);
        }
        if after > before {
            waiting.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            waiting.fetch_sub(before - after, Ordering::Relaxed);
        }
        drop(lines);
        wake.into_iter().for_each(Waker::wake);
    }
}

impl Waiters {
    fn shard(&self, key: KeyHash) -> &Mutex<Lines> {
        // The upper bits: the lower ones choose a place in the map.
        let shard = usize::try_from(key.get() >> 48).unwrap_or(0);
        &self.shards[shard % SHARDS]
    }

    /// Runs `act` on the line of a key, if there is one, with the line held.
    fn with<T>(
        &self,
        key: KeyHash,
        act: impl FnOnce(Option<&mut Line>, &mut Vec<Waker>) -> T,
    ) -> T {
        let mut held = Held {
            lines: lock(self.shard(key)),
            wake: Vec::new(),
        };
        let Held { lines, wake } = &mut held;
        let line = lines.get_mut(&key);
        let before = line.as_deref().map_or(0, Line::len);
        let done = act(line, wake);
        held.finish(key, &self.waiting, before);
        done
    }

    /// Whether somebody waits for a key.
    pub(super) fn is_busy(&self, key: KeyHash) -> bool {
        lock(self.shard(key))
            .get(&key)
            .is_some_and(|line| line.len() > 0)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Serves a caller at once, refuses it, or lets it stand in line: then there is nothing to
    /// tell yet.
    pub(super) fn enter(
        &self,
        place: &Place,
        number: Number,
        caller: Caller,
        options: &WaitOptions,
    ) -> Option<Settled> {
        let mut held = Held {
            lines: lock(self.shard(place.hash)),
            wake: Vec::new(),
        };
        let now = place.limiter.now();
        let (before, told) = match held.lines.entry(place.hash) {
            Entry::Occupied(mut entry) => {
                let line = entry.get_mut();
                let before = line.len();
                line.pump(place, now, &mut held.wake);
                let told = match self.full(line.len(), options) {
                    Some(waiting) => Some(no_place(&caller, place, now, waiting)),
                    None => line.join(number, caller, place, now, &mut held.wake),
                };
                (before, told)
            }
            Entry::Vacant(entry) => (0, self.begin(entry, place, number, caller, options, now)),
        };
        held.finish(place.hash, &self.waiting, before);
        told
    }

    /// A caller comes where nobody waits. What it wants is there, usually.
    fn begin(
        &self,
        entry: VacantEntry<'_, KeyHash, Line>,
        place: &Place,
        number: Number,
        caller: Caller,
        options: &WaitOptions,
        now: Timestamp,
    ) -> Option<Settled> {
        let step = caller.want.attempt(place, now, caller.deadline);
        let step = match step {
            Step::Granted(grant) => return Some(Settled::Granted(grant)),
            Step::Refused(refusal) => return Some(Settled::Refused(refusal)),
            step => step,
        };
        if let Some(waiting) = self.full(0, options) {
            if let Step::Booked(booking) = &step {
                booking.charge.give_back(&place.limiter, now);
            }
            return Some(no_place(&caller, place, now, waiting));
        }
        match Line::of_one(number, caller, step, place, now) {
            Ok(line) => {
                entry.insert(line);
                None
            }
            Err(settled) => Some(*settled),
        }
    }

    /// How many wait, if that is as many as may.
    fn full(&self, in_line: usize, options: &WaitOptions) -> Option<usize> {
        if in_line >= options.per_key {
            return Some(in_line);
        }
        Some(self.len()).filter(|waiting| *waiting >= options.in_total)
    }

    /// A caller looks what has become of it.
    pub(super) fn look(&self, place: &Place, number: Number, waker: &Waker) -> Seen {
        self.with(place.hash, |line, wake| match line {
            Some(line) => line.look(number, waker, place, place.limiter.now(), wake),
            None => Seen::Sleep(None),
        })
    }

    /// Takes a caller out of its line. Returns what it was already granted.
    pub(super) fn leave(&self, place: &Place, number: Number) -> Option<Settled> {
        self.with(place.hash, |line, wake| {
            line?.leave(number, place, place.limiter.now(), wake)
        })
    }

    /// Does something to a key that those who wait for it have relied on: what the first of them
    /// has booked is taken back before, and it is tried anew after.
    pub(crate) fn around<T>(&self, limiter: &Limiter, key: KeyHash, act: impl FnOnce() -> T) -> T {
        self.with(key, |line, wake| {
            let Some(line) = line else { return act() };
            let place = Place {
                limiter: limiter.clone(),
                hash: key,
            };
            line.unsettle(&place, limiter.now());
            let done = act();
            line.pump(&place, limiter.now(), wake);
            done
        })
    }

    /// Does something to a limit that all who wait for it have relied on.
    pub(crate) fn around_all(&self, limiter: &Limiter, act: impl FnOnce()) {
        let mut wake = Vec::new();
        // All at once, in one order: no line may see the limit half-way.
        let mut shards: Vec<_> = self.shards.iter().map(lock).collect();
        let place = |key: &KeyHash| Place {
            limiter: limiter.clone(),
            hash: *key,
        };
        for (key, line) in shards.iter_mut().flat_map(|lines| lines.iter_mut()) {
            line.unsettle(&place(key), limiter.now());
        }
        act();
        for (key, line) in shards.iter_mut().flat_map(|lines| lines.iter_mut()) {
            let before = line.len();
            line.pump(&place(key), limiter.now(), &mut wake);
            self.waiting
                .fetch_sub(before - line.len(), Ordering::Relaxed);
        }
        drop(shards);
        wake.into_iter().for_each(Waker::wake);
    }
}

fn no_place(caller: &Caller, place: &Place, now: Timestamp, waiting: usize) -> Settled {
    Settled::Refused(match caller.want.peek(place, now) {
        Ok(known) => WaitError::QueueFull { known, waiting },
        Err(error) => WaitError::Unsupported(error),
    })
}

impl Limiter {
    /// Applies an operation to a key's state; whoever waits for it takes notice.
    pub(crate) fn perform(
        &self,
        key: KeyHash,
        now: Moment<'_>,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        let apply = || self.table().apply(key, now, operation);
        match operation {
            // These make nothing free that was not before.
            Operation::Take(_)
            | Operation::Peek(_)
            | Operation::TakeUpTo { .. }
            | Operation::Reserve { .. }
            | Operation::Force { .. }
            | Operation::State
            | Operation::Renew { .. } => apply(),
            _ => self.waiters().around(self, key, apply),
        }
    }

    /// How many callers wait for the limit, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters().len()
    }
}

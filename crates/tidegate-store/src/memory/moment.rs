//! When a call happens.
//!
//! A thread may stand still between its reading of the clock and its turn at a key, while others
//! charge that key. Its reading then looks like that of a clock that was corrected, and a key whose
//! times moved back for it would let more pass than its limit says. So a call brings its clock
//! along, and a table that finds a reading too old takes a new one, with the key held.

use std::fmt;

use tidegate_core::{Decision, Timestamp, engine};

/// When a call happens: at a time that is obeyed as given, or by a clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    now: Timestamp,
    clock: Option<&'a ReadClock>,
}

/// What reads a clock.
// One pointer wide behind a reference, so that a moment fits two registers on its way to a table.
pub struct ReadClock(Box<dyn Fn() -> Timestamp + Send + Sync>);

impl ReadClock {
    /// Reads the clock that `read` reads.
    pub fn new(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }

    /// Takes a reading of this clock, made a while ago, as the time of a call.
    #[inline]
    #[must_use]
    pub const fn moment(&self, now: Timestamp) -> Moment<'_> {
        Moment {
            now,
            clock: Some(self),
        }
    }
}

impl fmt::Debug for ReadClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadClock")
    }
}

impl From<Timestamp> for Moment<'_> {
    /// A time that is obeyed as given: for simulations and tests.
    #[inline]
    fn from(now: Timestamp) -> Self {
        Self { now, clock: None }
    }
}

impl Moment<'_> {
    /// The time as it was given or read.
    #[inline]
    #[must_use]
    pub const fn now(self) -> Timestamp {
        self.now
    }

    /// The moment that a decision at this one counts its waits from: a later one, if the clock was
    /// read anew.
    #[inline]
    #[must_use]
    pub const fn of(self, decision: &Decision) -> Timestamp {
        if engine::is_corrected(decision.at.as_micros(), self.now) {
            decision.at
        } else {
            self.now
        }
    }

    /// The time for a key that is held and was last seen at `last`: the clock is read anew where
    /// the key has seen a time that the reading does not know.
    #[inline]
    pub(crate) fn against(self, last: u64) -> Timestamp {
        match self.clock {
            Some(clock) if engine::is_corrected(last, self.now) => (clock.0)(),
            _ => self.now,
        }
    }

    /// The time for a key that is not kept, which nobody can use meanwhile. Nothing tells what was
    /// forgotten since the clock was read; but nothing is before it has been fresh for a second.
    pub(crate) fn anew(self) -> Self {
        let read = self.clock.map_or(self.now, |clock| (clock.0)());
        let late = engine::is_corrected(read.as_micros(), self.now);
        Self {
            now: if late { read } else { self.now },
            ..self
        }
    }

    /// The time as that of a change that reaches keys when they are used next.
    pub(super) fn of_change(self) -> ChangedAt {
        ChangedAt {
            now: self.clock.map_or(self.now, |clock| (clock.0)()),
            by_clock: self.clock.is_some(),
        }
    }
}

/// When numbers were changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangedAt {
    now: Timestamp,
    by_clock: bool,
}

impl ChangedAt {
    pub(super) const EPOCH: Self = Self {
        now: Timestamp::EPOCH,
        by_clock: false,
    };

    /// When the change reaches a key that was last seen, under the old numbers, at `last`. By a
    /// clock, a later moment can only be one before the change was made known.
    pub(super) fn for_key(self, last: u64) -> Timestamp {
        match Timestamp::from_micros(last) {
            Ok(last) if self.by_clock => self.now.max(last),
            _ => self.now,
        }
    }
}

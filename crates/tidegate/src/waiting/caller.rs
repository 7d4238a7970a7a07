//! One that waits in a line: what it does when its turn comes, and what becomes of it.

use std::task::Waker;

use tidegate_core::{Micros, Timestamp};

use super::error::WaitError;
use super::job::{Booking, Grant, Known, Place, Refusal, Step, Want};

/// One that waits.
pub(super) struct Caller {
    pub want: Want,
    pub max_wait: Option<Micros>,
    pub deadline: Option<Timestamp>,
    /// Whom to wake, once it has looked.
    pub waker: Option<Waker>,
    /// Until when it said it would sleep.
    pub asleep_until: Option<Timestamp>,
    /// When its turn should come.
    pub expected: Option<Timestamp>,
    pub turn: Turn,
}

/// How far a caller has come.
pub(super) enum Turn {
    /// It has not been tried yet.
    Queued,
    /// It is at the front, and its units are charged.
    Booked(Booking),
    /// It is at the front, and to be tried again at that time.
    Again(Timestamp),
}

/// What became of a caller.
pub(super) enum Settled {
    Granted(Grant),
    Refused(Refusal),
    /// It has to stand in this member's line.
    Moved(usize),
}

impl Caller {
    pub(super) fn new(want: Want, max_wait: Option<Micros>, deadline: Option<Timestamp>) -> Self {
        Self {
            want,
            max_wait,
            deadline,
            waker: None,
            asleep_until: None,
            expected: None,
            turn: Turn::Queued,
        }
    }

    /// Sets when this caller, at the front, has to act; wakes it if it would sleep longer.
    fn act_at(&mut self, at: Timestamp, wake: &mut Vec<Waker>) {
        self.expected = Some(at);
        let until = self.until(Some(at));
        if self.asleep_until.is_none_or(|asleep| Some(asleep) > until) {
            wake.extend(self.waker.clone());
        }
    }

    /// When it has to look again.
    pub(super) fn until(&self, at: Option<Timestamp>) -> Option<Timestamp> {
        [at, self.deadline].into_iter().flatten().min()
    }

    pub(super) fn is_too_late(&self, at: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| at > deadline)
    }

    pub(super) fn too_long(&self, known: Known, at: Timestamp, now: Timestamp) -> Refusal {
        WaitError::TooLong {
            known: known.denied_until(at, now),
            max_wait: self.max_wait.unwrap_or(Micros::ZERO),
        }
    }

    pub(super) fn elapsed(&self, place: &Place, now: Timestamp) -> Refusal {
        match self.want.peek(place, now) {
            Ok(known) => WaitError::Elapsed {
                known,
                max_wait: self.max_wait.unwrap_or(Micros::ZERO),
            },
            Err(error) => WaitError::Unsupported(error),
        }
    }

    /// Tries it, as far as its turn has come. None where it has to go on waiting.
    pub(super) fn act(
        &mut self,
        place: &Place,
        now: Timestamp,
        wake: &mut Vec<Waker>,
    ) -> Option<Settled> {
        let step = match std::mem::replace(&mut self.turn, Turn::Queued) {
            Turn::Booked(booking) => booking.into_step(place, now, self.deadline),
            Turn::Again(at) if at > now => {
                self.turn = Turn::Again(at);
                return None;
            }
            _ if self.is_too_late(now) => Step::Refused(self.elapsed(place, now)),
            _ => self.want.attempt(place, now, self.deadline),
        };
        self.follow(step, place, now, wake)
    }

    /// Does what came of a try. None where it has to go on waiting.
    pub(super) fn follow(
        &mut self,
        step: Step,
        place: &Place,
        now: Timestamp,
        wake: &mut Vec<Waker>,
    ) -> Option<Settled> {
        match step {
            Step::Granted(grant) => Some(Settled::Granted(grant)),
            Step::Refused(refusal) => Some(Settled::Refused(refusal)),
            Step::Booked(booking) if self.is_too_late(booking.ready_at) => {
                booking.charge.give_back(&place.limiter, now);
                let known = Known::of(booking.decision);
                Some(Settled::Refused(self.too_long(
                    known,
                    booking.ready_at,
                    now,
                )))
            }
            Step::Booked(booking) => {
                self.act_at(booking.ready_at, wake);
                self.turn = Turn::Booked(booking);
                None
            }
            Step::Later(at, known) => {
                if let Some(refusal) = self.hopeless(place, known, now, at) {
                    return Some(Settled::Refused(refusal));
                }
                self.act_at(at, wake);
                self.turn = Turn::Again(at);
                None
            }
            Step::Elsewhere(member, known) => Some(match self.hopeless(place, known, now, now) {
                Some(refusal) => Settled::Refused(refusal),
                None => Settled::Moved(member),
            }),
        }
    }

    /// Why there is no point in waiting any longer, where there is none.
    fn hopeless(
        &self,
        place: &Place,
        known: Known,
        now: Timestamp,
        again: Timestamp,
    ) -> Option<Refusal> {
        self.deadline?;
        let earliest = self.want.earliest(place, &known, now, again)?;
        self.is_too_late(earliest)
            .then(|| self.too_long(known, earliest, now))
    }
}

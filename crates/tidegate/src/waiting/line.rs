//! Callers that wait for one key, first come, first served.
//!
//! Only the one at the front acts on the key. A limit that lends from the future has its units
//! booked, so that nobody can take them while it sleeps; of any other limit it takes them at the
//! moment they come free. Whoever is served makes way for the next one, in the same step.
//!
//! The line is moved on by any caller that looks at it, also on behalf of others. A caller that is
//! slow to look, or never does, holds nobody up.

use std::collections::BTreeMap;
use std::task::Waker;

use tidegate_core::{Decision, Timestamp};

use super::caller::{Caller, Settled, Turn};
use super::error::WaitError;
use super::forecast::{Ahead, Outlook};
use super::job::{Place, Refusal, Step};

/// A caller's number: smaller ones came earlier.
pub(super) type Number = u64;

/// The callers that wait for one key.
#[derive(Default)]
pub(super) struct Line {
    /// The one whose turn it is.
    front: Option<(Number, Caller)>,
    queue: BTreeMap<Number, Caller>,
    /// What became of those that are through, until they look.
    settled: BTreeMap<Number, Settled>,
    /// When those in the queue will be served; none where that is to be worked out anew.
    ahead: Option<Ahead>,
    /// The latest time seen: a clock behind it was set back.
    seen: Timestamp,
}

/// What a caller learns when it looks.
pub(super) enum Seen {
    Settled(Settled),
    /// It is to look again then, or when it is woken.
    Sleep(Option<Timestamp>),
}

impl Line {
    /// Callers in line.
    pub(super) fn len(&self) -> usize {
        usize::from(self.front.is_some()) + self.queue.len()
    }

    /// Whether nobody is in line, or still to learn what became of it.
    pub(super) fn is_done(&self) -> bool {
        self.len() == 0 && self.settled.is_empty()
    }

    /// A line of one caller, which has been tried; or what became of it.
    pub(super) fn of_one(
        number: Number,
        mut caller: Caller,
        step: Step,
        place: &Place,
        now: Timestamp,
    ) -> Result<Self, Box<Settled>> {
        if let Some(settled) = caller.follow(step, place, now, &mut Vec::new()) {
            return Err(Box::new(settled));
        }
        Ok(Self {
            front: Some((number, caller)),
            seen: now,
            ..Self::default()
        })
    }

    /// Lets a caller stand in line; or tells what became of it at once.
    pub(super) fn join(
        &mut self,
        number: Number,
        mut caller: Caller,
        place: &Place,
        now: Timestamp,
        wake: &mut Vec<Waker>,
    ) -> Option<Settled> {
        if self.len() > 0
            && let Err(refusal) = self.queue_up(number, &mut caller, place, now)
        {
            return Some(Settled::Refused(refusal));
        }
        self.queue.insert(number, caller);
        self.make_way(number);
        self.pump(place, now, wake);
        self.settled.remove(&number)
    }

    /// The one at the front makes way for one that has come before it, but to another line. What
    /// is booked stays.
    fn make_way(&mut self, number: Number) {
        let is_later = |(front, caller): &mut (Number, Caller)| {
            *front > number && !matches!(caller.turn, Turn::Booked(_))
        };
        if let Some((later, mut caller)) = self.front.take_if(is_later) {
            caller.turn = Turn::Queued;
            self.queue.insert(later, caller);
            self.ahead = None;
        }
    }

    /// What a caller behind others has to expect.
    fn queue_up(
        &mut self,
        number: Number,
        caller: &mut Caller,
        place: &Place,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let known = caller
            .want
            .peek(place, now)
            .map_err(WaitError::Unsupported)?;
        if is_impossible(&known.decision) {
            return Err(WaitError::Impossible(known));
        }
        if self
            .queue
            .last_key_value()
            .is_some_and(|(last, _)| *last > number)
        {
            // It has come before others: they are foreseen anew when one of them asks.
            self.ahead = None;
            return Ok(());
        }
        let units = caller.want.units_at(place);
        if units.is_none() {
            self.ahead = None;
            return Ok(());
        }
        let ahead = self.look_ahead(place, now);
        let outlook = ahead.last(units);
        if let Some(served_at) = outlook.served_at()
            && caller.is_too_late(served_at)
        {
            return Err(caller.too_long(known, served_at, now));
        }
        caller.expected = ahead.push(units, outlook);
        Ok(())
    }

    /// When those in the queue will be served, worked out anew if need be.
    fn look_ahead(&mut self, place: &Place, now: Timestamp) -> &mut Ahead {
        let (front, queue) = (&self.front, &mut self.queue);
        self.ahead.get_or_insert_with(|| {
            let table = place.limiter.table();
            let mut copy = table.forecast(place.hash, now);
            let (from, first) = match front {
                // Its units are charged already.
                Some((_, caller)) => match &caller.turn {
                    Turn::Booked(booking) => {
                        let ready_at = booking.ready_at;
                        booking.charge.renew_ahead(table, &mut *copy, ready_at);
                        (ready_at, None)
                    }
                    Turn::Again(at) => (*at, Some(caller)),
                    Turn::Queued => (now, Some(caller)),
                },
                None => (now, None),
            };
            let mut ahead = Ahead::new(copy, from);
            if let Some(caller) = first {
                let units = caller.want.units_at(place);
                let outlook = ahead.last(units);
                ahead.push(units, outlook);
            }
            for caller in queue.values_mut() {
                let units = caller.want.units_at(place);
                let outlook = match ahead.last(units) {
                    // By a change it has become too long a wait: it will give up.
                    Outlook::Served { served_at, .. } if caller.is_too_late(served_at) => {
                        Outlook::Never
                    }
                    outlook => outlook,
                };
                caller.expected = ahead.push(units, outlook);
            }
            ahead
        })
    }

    /// Moves the line on: serves all whose turn has come, and lets the next one act.
    pub(super) fn pump(&mut self, place: &Place, now: Timestamp, wake: &mut Vec<Waker>) {
        if now < self.seen {
            self.unsettle(place, now);
        }
        self.seen = now;
        loop {
            if self.front.is_none() {
                self.front = self.queue.pop_first();
            }
            let Some((number, caller)) = &mut self.front else {
                self.ahead = None;
                return;
            };
            let number = *number;
            let expected = caller.expected;
            if let Turn::Booked(booking) = &caller.turn
                && booking.ready_at > now
            {
                return;
            }
            let settled = caller.act(place, now, wake);
            let as_expected = match &settled {
                None => caller.expected == expected,
                Some(Settled::Granted(_)) => expected == Some(now),
                Some(_) => false,
            };
            if !as_expected {
                self.ahead = None;
            }
            let Some(settled) = settled else { return };
            if let Some((_, caller)) = self.front.take() {
                wake.extend(caller.waker);
            }
            self.settled.insert(number, settled);
        }
    }

    /// Takes back what the one at the front has booked, so that it is tried anew: what it relied
    /// on is about to change, or has changed.
    pub(super) fn unsettle(&mut self, place: &Place, now: Timestamp) {
        self.ahead = None;
        if let Some((_, caller)) = &mut self.front
            && let Turn::Booked(booking) = std::mem::replace(&mut caller.turn, Turn::Queued)
        {
            booking.charge.give_back(&place.limiter, now);
        }
    }

    /// A caller looks what has become of it, and leaves its waker.
    pub(super) fn look(
        &mut self,
        number: Number,
        waker: &Waker,
        place: &Place,
        now: Timestamp,
        wake: &mut Vec<Waker>,
    ) -> Seen {
        self.pump(place, now, wake);
        if let Some(settled) = self.settled.remove(&number) {
            return Seen::Settled(settled);
        }
        let late = self
            .queue
            .get(&number)
            .is_some_and(|caller| caller.expected.is_some_and(|expected| expected <= now));
        if late {
            // Somebody else has taken what was foreseen for it.
            self.ahead = None;
            self.look_ahead(place, now);
        }
        let Some(caller) = self.find(number) else {
            // It was told before, and asks again for nothing.
            return Seen::Sleep(None);
        };
        if caller.deadline.is_some_and(|deadline| deadline <= now) {
            let refusal = caller.elapsed(place, now);
            self.leave(number, place, now, wake);
            return Seen::Settled(Settled::Refused(refusal));
        }
        if !caller
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            caller.waker = Some(waker.clone());
        }
        caller.asleep_until = caller.until(caller.expected);
        Seen::Sleep(caller.asleep_until)
    }

    fn find(&mut self, number: Number) -> Option<&mut Caller> {
        match &mut self.front {
            Some((front, caller)) if *front == number => Some(caller),
            _ => self.queue.get_mut(&number),
        }
    }

    /// Takes a caller out of the line. What it was already granted is returned: to be given back
    /// once the line is free.
    pub(super) fn leave(
        &mut self,
        number: Number,
        place: &Place,
        now: Timestamp,
        wake: &mut Vec<Waker>,
    ) -> Option<Settled> {
        if let Some(settled) = self.settled.remove(&number) {
            return Some(settled);
        }
        if self
            .front
            .as_ref()
            .is_some_and(|(front, _)| *front == number)
        {
            self.unsettle(place, now);
            self.front = None;
            self.pump(place, now, wake);
        } else if self.queue.remove(&number).is_some() {
            self.ahead = None;
        }
        None
    }
}

fn is_impossible(decision: &Decision) -> bool {
    use tidegate_core::{Denial, Verdict};
    !decision.is_allowed() && decision.verdict == Verdict::Deny(Denial::Impossible)
}

//! The messages of a queue, and what each call does to them. No call in here waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;

use tidegate::Timestamp;

use super::faults::{Fate, Faults};
use super::{Settings, entry_error, later};
use crate::queue::{
    Attributes, EntryError, EntryResult, MAX_VISIBILITY_SECS, Message, QueueError, Receipt,
    Receive, VisibilityChange,
};

/// A message as the queue keeps it.
pub(super) struct Stored {
    id: Arc<str>,
    body: Arc<str>,
    group: Option<Arc<str>>,
    sent_at: Timestamp,
    /// Invisible before that.
    seen_at: Timestamp,
    received_at: Timestamp,
    receives: u32,
}

impl Stored {
    fn is_visible(&self, now: Timestamp) -> bool {
        self.seen_at <= now
    }

    fn is_in_flight(&self, now: Timestamp) -> bool {
        self.receives > 0 && !self.is_visible(now)
    }
}

pub(super) struct State {
    /// By the number of the message, which rises.
    messages: BTreeMap<u64, Stored>,
    next: u64,
    /// Says which receipts are this queue's own.
    secret: u64,
    dice: fastrand::Rng,
    pub(super) faults: Faults,
    pub(super) receives: u64,
    /// Receives that wait for a message.
    waiting: Vec<Waker>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        Self {
            messages: BTreeMap::new(),
            next: 0,
            secret: dice.u64(..),
            dice,
            faults: Faults::default(),
            receives: 0,
            waiting: Vec::new(),
        }
    }

    pub(super) fn fate(&mut self) -> Result<Fate, QueueError> {
        self.faults.call(&mut self.dice)
    }

    pub(super) fn entry_fate(&mut self) -> EntryResult {
        self.faults.entry(&mut self.dice)
    }

    pub(super) fn add(
        &mut self,
        body: Arc<str>,
        group: Option<Arc<str>>,
        sent_at: Timestamp,
        seen_at: Timestamp,
    ) -> Arc<str> {
        let id: Arc<str> = format!("{:016x}-{:x}", self.secret, self.next).into();
        let stored = Stored {
            id: Arc::clone(&id),
            body,
            group,
            sent_at,
            seen_at,
            received_at: sent_at,
            receives: 0,
        };
        self.push(stored);
        id
    }

    /// Takes in what another queue has given up. Its receives begin anew.
    pub(super) fn bury(&mut self, dead: Vec<Stored>) {
        for mut stored in dead {
            stored.receives = 0;
            self.push(stored);
        }
    }

    fn push(&mut self, stored: Stored) {
        self.messages.insert(self.next, stored);
        self.next += 1;
    }

    pub(super) fn bodies(&self) -> Vec<Arc<str>> {
        let messages = self.messages.values();
        messages.map(|stored| Arc::clone(&stored.body)).collect()
    }

    /// What is received now, and what goes to the dead-letter queue instead.
    pub(super) fn take(
        &mut self,
        settings: &Settings,
        ask: Receive,
        now: Timestamp,
    ) -> Result<(Vec<Message>, Vec<Stored>), QueueError> {
        let (mut taken, mut dead) = (Vec::new(), Vec::new());
        let in_flight = self.count(|stored| stored.is_in_flight(now));
        let room = settings.max_in_flight.saturating_sub(in_flight);
        if room == 0 && !settings.fifo {
            return Err(QueueError::OverLimit);
        }
        for number in self.candidates(settings.fifo, now) {
            if taken.len() == ask.max.min(room) {
                break;
            }
            let stored = self.messages.get_mut(&number).expect("it was just listed");
            if let Some((most, _)) = settings.redrive
                && stored.receives >= most
            {
                // It would only be received again.
                dead.extend(self.messages.remove(&number));
                continue;
            }
            stored.receives += 1;
            stored.received_at = now;
            stored.seen_at = later(now, ask.visibility_secs);
            self.receives += 1;
            taken.push(Message {
                id: Arc::clone(&stored.id),
                receipt: receipt(self.secret, number, stored.receives),
                body: Arc::clone(&stored.body),
                receives: stored.receives,
                sent_at: stored.sent_at,
                group: stored.group.clone(),
            });
        }
        Ok((taken, dead))
    }

    /// The numbers of the messages that can be received, in the order in which they are.
    fn candidates(&mut self, fifo: bool, now: Timestamp) -> Vec<u64> {
        if fifo {
            let messages = self.messages.values();
            // In flight it holds back its whole group; delayed, what was sent after it.
            let mut held: BTreeSet<_> = messages
                .filter(|stored| stored.is_in_flight(now))
                .map(|stored| stored.group.clone())
                .collect();
            let mut numbers = Vec::new();
            for (number, stored) in &self.messages {
                if held.contains(&stored.group) {
                    continue;
                }
                if stored.is_visible(now) {
                    numbers.push(*number);
                } else {
                    held.insert(stored.group.clone());
                }
            }
            return numbers;
        }
        let (dice, often) = (&mut self.dice, self.faults.duplicate);
        let mut numbers: Vec<u64> = self
            .messages
            .iter()
            .filter(|(_, stored)| {
                stored.is_visible(now)
                    || (often > 0.0 && stored.is_in_flight(now) && dice.f64() < often)
            })
            .map(|(number, _)| *number)
            .collect();
        self.dice.shuffle(&mut numbers);
        numbers
    }

    /// Wakes `waker` when something changes; returns when to look again, `until` at the latest.
    pub(super) fn watch(&mut self, now: Timestamp, until: Timestamp, waker: &Waker) -> Timestamp {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
        // What is visible already waits for another of its group, and so for that one's time.
        let times = self.messages.values().map(|stored| stored.seen_at);
        times.filter(|at| *at > now).fold(until, Timestamp::min)
    }

    pub(super) fn notify(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    pub(super) fn delete(&mut self, receipt: &Receipt, fifo: bool, now: Timestamp) -> EntryResult {
        let (number, receive) = self.read(receipt)?;
        let Some(stored) = self.messages.get(&number) else {
            return Ok(());
        };
        let latest = stored.receives == receive;
        if fifo && !(latest && stored.is_in_flight(now)) {
            let message = "the receipt handle has expired";
            return Err(entry_error("InvalidParameterValue", message, true));
        }
        if latest {
            self.messages.remove(&number);
        }
        Ok(())
    }

    pub(super) fn change(&mut self, change: &VisibilityChange, now: Timestamp) -> EntryResult {
        let (number, receive) = self.read(&change.receipt)?;
        let gone = || entry_error("MessageNotInflight", "the message is not in flight", true);
        let stored = self.messages.get_mut(&number).ok_or_else(gone)?;
        if stored.receives != receive || !stored.is_in_flight(now) {
            return Err(gone());
        }
        let seen_at = later(now, change.visibility_secs);
        if change.visibility_secs > MAX_VISIBILITY_SECS
            || seen_at > later(stored.received_at, MAX_VISIBILITY_SECS)
        {
            let message = "the visibility ends more than 12 hours after the receive";
            return Err(entry_error("InvalidParameterValue", message, true));
        }
        stored.seen_at = seen_at;
        Ok(())
    }

    pub(super) fn attributes(&self, settings: &Settings, now: Timestamp) -> Attributes {
        let visible = self.count(|stored| stored.is_visible(now));
        let in_flight = self.count(|stored| stored.is_in_flight(now));
        Attributes {
            visible: visible as u64,
            in_flight: in_flight as u64,
            delayed: (self.messages.len() - visible - in_flight) as u64,
            max_receive_count: settings.redrive.as_ref().map(|(most, _)| *most),
            fifo: settings.fifo,
        }
    }

    fn count(&self, which: impl Fn(&Stored) -> bool) -> usize {
        self.messages
            .values()
            .filter(|stored| which(stored))
            .count()
    }

    /// The message and the receive that a receipt is of.
    fn read(&self, receipt: &Receipt) -> Result<(u64, u32), EntryError> {
        let read = || {
            let mut parts = receipt.as_str().split('-');
            let secret = u64::from_str_radix(parts.next()?, 16).ok()?;
            let number = parts.next()?.parse().ok()?;
            let receive = parts.next()?.parse().ok()?;
            (secret == self.secret && number < self.next).then_some((number, receive))
        };
        let message = "the receipt handle is not of this queue";
        read().ok_or_else(|| entry_error("ReceiptHandleIsInvalid", message, true))
    }
}

fn receipt(secret: u64, number: u64, receive: u32) -> Receipt {
    Receipt::new(&format!("{secret:016x}-{number}-{receive}"))
}

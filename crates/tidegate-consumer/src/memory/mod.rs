//! A queue in the process, with the rules of SQS, for tests in simulated time.
//!
//! | rule | standard | FIFO |
//! |---|---|---|
//! | order | any | as sent, within a group; a group waits while one of its messages is in flight |
//! | a delete after the visibility has passed | succeeds, unless it was received again | fails |
//! | a delete with the receipt of an earlier receive | succeeds, and deletes nothing | fails |
//! | too many in flight | `OverLimit` | nothing is received |
//! | the same message twice | by [`Faults::duplicate`] | never |
//!
//! On both a receive counts when it happens and is never taken back; a message that has been
//! received `max_receive_count` times goes to the dead-letter queue at the receive after that; a
//! change of visibility needs the latest receipt and a message in flight, counts from the call and
//! ends 12 hours after the receive. Messages are not forgotten by age.

mod faults;
mod state;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tidegate::{Clock, Timestamp};

pub use faults::Faults;
use state::State;

use crate::queue::{
    Attributes, EntryError, EntryResult, MAX_BATCH, MAX_VISIBILITY_SECS, MAX_WAIT_SECS, Message,
    Queue, QueueError, Receipt, Receive, VisibilityChange,
};

/// How a queue is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether it keeps order within groups.
    pub fifo: bool,
    /// For how long a message is kept back after it was sent, in seconds.
    pub delay_secs: u32,
    /// Where a message goes after so many receives.
    pub redrive: Option<(u32, MemoryQueue)>,
    /// So many can be in flight. 120 000 unless set otherwise.
    pub max_in_flight: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fifo: false,
            delay_secs: 0,
            redrive: None,
            max_in_flight: 120_000,
        }
    }
}

/// A queue in the process. Clones are the same queue.
#[derive(Clone)]
pub struct MemoryQueue(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    settings: Settings,
    state: Mutex<State>,
}

impl std::fmt::Debug for MemoryQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryQueue").finish_non_exhaustive()
    }
}

impl MemoryQueue {
    /// An empty queue in the time of `clock` that never fails, and orders by `seed` what has no
    /// order.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, settings: Settings, seed: u64) -> Self {
        Self(Arc::new(Inner {
            clock,
            settings,
            state: Mutex::new(State::new(seed)),
        }))
    }

    /// From now on it fails like that.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Sends a message, to a group if the queue is FIFO, and returns its id.
    ///
    /// # Panics
    ///
    /// When a FIFO queue is given no group, or a standard queue is given one.
    pub fn send(&self, body: &str, group: Option<&str>) -> Arc<str> {
        assert_eq!(
            group.is_some(),
            self.0.settings.fifo,
            "a FIFO queue needs a group, and a standard queue has none"
        );
        let now = self.0.clock.now();
        let seen_at = later(now, self.0.settings.delay_secs);
        let mut state = self.state();
        let id = state.add(body.into(), group.map(Into::into), now, seen_at);
        state.notify();
        id
    }

    /// The bodies of all messages that are in it, in flight or not, in the order in which they
    /// were sent.
    #[must_use]
    pub fn bodies(&self) -> Vec<Arc<str>> {
        self.state().bodies()
    }

    /// How often messages were received from it.
    #[must_use]
    pub fn receives(&self) -> u64 {
        self.state().receives
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked with the queue in hand has failed already.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One look at what can be received.
    fn take(&self, ask: Receive, now: Timestamp) -> Result<Vec<Message>, QueueError> {
        let settings = &self.0.settings;
        let mut state = self.state();
        let (taken, dead) = state.take(settings, ask, now)?;
        drop(state);
        if let Some((_, queue)) = &settings.redrive {
            queue.bury(dead);
        }
        Ok(taken)
    }

    fn bury(&self, dead: Vec<state::Stored>) {
        if !dead.is_empty() {
            let mut state = self.state();
            state.bury(dead);
            state.notify();
        }
    }

    /// Calls `each` for each entry, unless the call or the entry is to fail.
    fn batch<T>(
        &self,
        entries: &[T],
        mut each: impl FnMut(&mut State, &T) -> EntryResult,
    ) -> Result<Vec<EntryResult>, QueueError> {
        match entries.len() {
            0 => return Err(refused("EmptyBatchRequest", "the batch has no entry")),
            1..=MAX_BATCH => {}
            _ => {
                let code = "TooManyEntriesInBatchRequest";
                return Err(refused(code, "the batch has more than 10 entries"));
            }
        }
        let mut state = self.state();
        let fate = state.fate()?;
        let results = entries
            .iter()
            .map(|entry| {
                state.entry_fate()?;
                each(&mut state, entry)
            })
            .collect();
        state.notify();
        fate.answer(results)
    }
}

impl Queue for MemoryQueue {
    async fn receive(&self, ask: Receive) -> Result<Vec<Message>, QueueError> {
        if !(1..=MAX_BATCH).contains(&ask.max) {
            return Err(out_of_range("MaxNumberOfMessages"));
        }
        if ask.wait_secs > MAX_WAIT_SECS {
            return Err(out_of_range("WaitTimeSeconds"));
        }
        if ask.visibility_secs > MAX_VISIBILITY_SECS {
            return Err(out_of_range("VisibilityTimeout"));
        }
        let fate = self.state().fate()?;
        let until = later(self.0.clock.now(), ask.wait_secs);
        let mut alarm = None;
        let taken = poll_fn(|context| {
            let now = self.0.clock.now();
            let taken = self.take(ask, now);
            if now >= until || !matches!(&taken, Ok(none) if none.is_empty()) {
                return Poll::Ready(taken);
            }
            let at = self.state().watch(now, until, context.waker());
            alarm = Some(self.0.clock.wake_at(at, context.waker().clone()));
            Poll::Pending
        })
        .await?;
        drop(alarm);
        fate.answer(taken)
    }

    async fn delete(&self, receipts: &[Receipt]) -> Result<Vec<EntryResult>, QueueError> {
        let (now, fifo) = (self.0.clock.now(), self.0.settings.fifo);
        self.batch(receipts, |state, receipt| state.delete(receipt, fifo, now))
    }

    async fn change_visibility(
        &self,
        changes: &[VisibilityChange],
    ) -> Result<Vec<EntryResult>, QueueError> {
        let now = self.0.clock.now();
        self.batch(changes, |state, change| state.change(change, now))
    }

    async fn attributes(&self) -> Result<Attributes, QueueError> {
        let now = self.0.clock.now();
        let mut state = self.state();
        let fate = state.fate()?;
        fate.answer(state.attributes(&self.0.settings, now))
    }
}

/// `secs` after `at`.
fn later(at: Timestamp, secs: u32) -> Timestamp {
    let micros = u64::from(secs) * 1_000_000;
    Timestamp::from_micros(at.as_micros().saturating_add(micros)).unwrap_or(Timestamp::MAX)
}

fn refused(code: &str, message: &str) -> QueueError {
    QueueError::Refused {
        code: code.into(),
        message: message.into(),
    }
}

fn out_of_range(parameter: &str) -> QueueError {
    let message = format!("{parameter} is out of its range");
    refused("InvalidParameterValue", &message)
}

fn entry_error(code: &str, message: &str, sender_fault: bool) -> EntryError {
    EntryError {
        code: code.into(),
        message: message.into(),
        sender_fault,
    }
}

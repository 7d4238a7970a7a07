//! What a consumer needs of a queue. No type of any vendor is in here.

use std::fmt;
use std::sync::Arc;

use tidegate::Timestamp;

/// Most messages in one receive, and most entries in one batch.
pub const MAX_BATCH: usize = 10;

/// Longest time for which a message can be invisible after a receive: 12 hours.
pub const MAX_VISIBILITY_SECS: u32 = 43_200;

/// Longest wait of one receive.
pub const MAX_WAIT_SECS: u32 = 20;

/// A queue of which each message is received, held invisible, and then deleted or seen again.
///
/// Batches take from one entry to [`MAX_BATCH`]. The outer error means that the call as a whole has
/// no answer or was refused; each entry has a result of its own, in the order of the entries.
/// Two entries of one batch may name the same message.
///
/// Source of the rules: Amazon SQS API reference, 2012-11-05.
pub trait Queue: Send + Sync {
    /// Receives at most `ask.max` messages, and waits up to `ask.wait_secs` for the first. None is
    /// an answer.
    ///
    /// Each received message has counted one receive, whatever becomes of the answer. Do not drop
    /// the future before it is done: a server may hand messages to a connection that is gone.
    fn receive(
        &self,
        ask: Receive,
    ) -> impl Future<Output = Result<Vec<Message>, QueueError>> + Send;

    /// Deletes messages. To delete one that is gone already succeeds.
    fn delete(
        &self,
        receipts: &[Receipt],
    ) -> impl Future<Output = Result<Vec<EntryResult>, QueueError>> + Send;

    /// Sets for how long messages stay invisible, counted from this call.
    fn change_visibility(
        &self,
        changes: &[VisibilityChange],
    ) -> impl Future<Output = Result<Vec<EntryResult>, QueueError>> + Send;

    /// How the queue is set up, and about how much is in it.
    fn attributes(&self) -> impl Future<Output = Result<Attributes, QueueError>> + Send;
}

/// What to receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Receive {
    /// At most so many messages: 1 to [`MAX_BATCH`].
    pub max: usize,
    /// How long to wait for the first one, in seconds: 0 to [`MAX_WAIT_SECS`].
    pub wait_secs: u32,
    /// For how long what is received is invisible, in seconds: 0 to [`MAX_VISIBILITY_SECS`].
    pub visibility_secs: u32,
}

/// The right to delete a message, or to change when it is seen again: of one receive only.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct Receipt(Arc<str>);

impl Receipt {
    /// The receipt that a server wrote as `handle`.
    #[must_use]
    pub fn new(handle: &str) -> Self {
        Self(handle.into())
    }

    /// As the server wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the handle: who knows it could delete the message.
        f.write_str("Receipt")
    }
}

/// One receive of a message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The same at each receive of the message.
    pub id: Arc<str>,
    /// Of this receive only.
    pub receipt: Receipt,
    /// What was sent.
    pub body: Arc<str>,
    /// How often it has been received, this time included.
    pub receives: u32,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// The messages of one group of a FIFO queue come in the order in which they were sent.
    pub group: Option<Arc<str>>,
}

/// When a message is to be seen again.
#[derive(Clone, Debug)]
pub struct VisibilityChange {
    /// Of its latest receive.
    pub receipt: Receipt,
    /// From the call on, in seconds: 0 is at once, and no more than [`MAX_VISIBILITY_SECS`] since
    /// the receive in all.
    pub visibility_secs: u32,
}

/// How a queue is set up, and about how much is in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attributes {
    /// Messages that can be received.
    pub visible: u64,
    /// Messages that were received and are invisible.
    pub in_flight: u64,
    /// Messages that were sent with a delay that has not passed.
    pub delayed: u64,
    /// After so many receives the next one finds the message in the dead-letter queue. None
    /// without a dead-letter queue.
    pub max_receive_count: Option<u32>,
    /// Whether it keeps order within groups.
    pub fifo: bool,
}

/// What became of one entry of a batch.
pub type EntryResult = Result<(), EntryError>;

/// Why one entry of a batch failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct EntryError {
    /// The queue's name for it.
    pub code: String,
    /// In the queue's words.
    pub message: String,
    /// Whether the caller is to blame, so that the same entry fails again.
    pub sender_fault: bool,
}

/// Why a call has no answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Too many calls: nothing was done, call again later.
    #[error("the queue asks for fewer calls")]
    Throttled,
    /// So many messages are in flight that no more can be received.
    #[error("too many messages of the queue are in flight: finish or return some")]
    OverLimit,
    /// Nothing was done, and the same call is refused again.
    #[error("{code}: {message}")]
    Refused {
        /// The queue's name for it.
        code: String,
        /// In the queue's words.
        message: String,
    },
    /// No answer came: it may have been done, or not.
    #[error("no answer from the queue: {0}")]
    NoAnswer(String),
}

impl QueueError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }
}

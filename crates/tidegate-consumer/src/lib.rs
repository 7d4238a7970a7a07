//! Consumers of queues, under limits that hold over all of them together.
//!
//! A consumer must not find out that it has to wait by receiving a message: each receive counts
//! towards the dead-letter queue. So permits are had first, and then as many messages are received
//! as there are permits.
//!
//! [`Consumer`] does that over a [`Queue`] and a [`Limit`]. [`memory::MemoryQueue`] is a queue in
//! the process that keeps the rules of SQS to the microsecond in simulated time, and fails as a
//! seed tells it to; [`conformance`] holds any queue to the same rules.

pub mod conformance;
mod consumer;
mod limit;
pub mod memory;
mod queue;
mod wait;

pub use consumer::{Consumer, ConsumerError, Options, Outcome};
pub use limit::{Leases, Limit, Permit, Rates, Token};
pub use queue::{
    Attributes, EntryError, EntryResult, MAX_BATCH, MAX_VISIBILITY_SECS, MAX_WAIT_SECS, Message,
    Queue, QueueError, Receipt, Receive, VisibilityChange,
};

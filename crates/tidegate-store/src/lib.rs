//! What keeps the states of keys, and the store in memory.
//!
//! A [`MemoryLimit`] holds all keys of one limit. It is built for tens of millions of keys on
//! every core: a decision reads one or two cache lines, takes no lock that another key could
//! hold, and writes nothing when it refuses.

#![warn(clippy::undocumented_unsafe_blocks)]

mod key;
mod memory;
mod per_call;
pub mod snapshot;
mod sync;

pub use key::{Key, KeyHash, KeyHasher, KeyPart, Parts};
pub use memory::{
    Forecast, Imported, KeyOverride, Member, MemoryEvents, MemoryLimit, MemoryOptions, MemoryStats,
    Moment, Outcome, Override, OverrideError, ReadClock, WhenFull, all_of, all_of_sparing,
    memory_limit,
};
pub use per_call::PerCallTable;

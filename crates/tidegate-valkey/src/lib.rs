//! Limits that hold over many processes: states kept in Valkey or Redis.
//!
//! Every decision is one script, run by the server in one step and on the server's clock, so that
//! any number of processes share a limit exactly and no process's clock matters.
//!
//! # What is kept for a key
//!
//! One string, all numbers high byte first. Points in time and lengths of time have seven bytes,
//! counts have four.
//!
//! | bytes | what |
//! |---|---|
//! | header | a letter for the form, the generation (4), the limit's numbers: see below |
//! | last (7) | the latest time that the key has seen |
//! | blocked until (7) | only under a block: the letter is a small one then |
//! | state | see below |
//!
//! | form | numbers | state |
//! |---|---|---|
//! | `B` token bucket | `r` (4), `t` (7), what the rate was reduced by (4), capacity (4) | missing tokens (4), missing `t`-ths of one (7) |
//! | `C` that with initial tokens | also the missing (4), since (7) | as `B` |
//! | `I` interval bucket | count (4), period (7), capacity (4) | used (4), time into the grid plus one, 0 for no grid (7) |
//! | `J` that with initial tokens | also the missing (4), since (7) | as `I` |
//! | `Q` paced queue | as `B` with burst and queue as the capacity, burst (4), `max_wait` plus one (7) | as `B` |
//! | `F` window of the clock | limit (4), period (7) | used (4) |
//! | `U` window from first use | as `F` | used (4), age of the window (7) |
//! | `K` window of a calendar | as `F`, hash of the calendar's name (8) | used (4), end of the window (7) |
//! | `L` sliding log | limit (4), period (7) | a log |
//! | `S` strict window | limit (4), period (7), cells (2) | a log whose times are numbers of cells |
//! | `W` interpolated window | limit (4), period (7) | count of the cell before (4), and of this one (4) |
//! | `P` concurrency | limit (4), lease (7), `max_hold` plus one (7) | offset (7), last fencing token (7), weight of all (5), leases |
//! | `X` lockout | failures, period, ban, factor, `max_ban`, jitter, `forget_after`, cap plus one, its period | bans (4), banned until (7), failed at (7), log of failures, log of attempts |
//!
//! A log is an offset of its times (7), the number of records that are dead (4) and of all (4), the
//! sum before the first live one (5, modulo 2^40), and the records: time (7, signed) and the sum of
//! all charges up to it (5). So what is used is one subtraction, found by halving; charges of one
//! instant are one record. Values of more than 2 KiB are read in pages and written in parts, until
//! half of their records are dead: a charge on a log of 100 000 touches some hundred bytes. Only
//! giving back an old charge of such a log, as a late settlement does, rewrites what came after it.
//! A lease is its id (16), weight (4), fencing token (7), and the times of its grant and expiry (7
//! each, signed); the records stand in order of expiry.
//!
//! A key's name ([`KeySpace`]) tells the limit and the algorithm; the header tells the numbers. So a
//! change of numbers is applied at the key's next use, by whoever uses it, and one of the
//! algorithm starts afresh: see [`LimitSpec`].
//!
//! Every key expires once it equals that of a key that was never seen, and a second later, for a
//! clock that is behind. A state that never comes back, as under a rate of 0, never expires: it goes
//! with `reset`. A peek, a denial and a cost of 0 write nothing, with two exceptions: a corrected
//! clock and a change of numbers are written down by the first call that sees them.
//!
//! # Arithmetic
//!
//! The scripts' numbers are doubles, and whole: everything stored or computed stays at or below
//! 2^53 - 1, and products that could pass it are divided without being formed. Every limit that
//! loads is decided as the engine decides it, to the microsecond.
//!
//! # Calendars
//!
//! A server knows no time zones: a call brings the windows that it may need, and the server asks
//! for another where the clocks differ or a block ends later ([`Answer::NeedsWindow`]).

mod acl;
mod calls;
mod cas;
mod client;
mod decode;
mod denied;
mod encode;
mod error;
mod failure;
mod header;
mod key;
mod limit;
mod script;
mod scripts;
mod shared;
mod store;
mod tokens;

pub use calls::StoreCall;
pub use client::{
    Client, ClientError, ClientOptions, ClientStats, Event, Notifications, UrlError, Wake,
};
pub use decode::{Answer, ReplyError, outcome_from, reply_from};
pub use encode::{Argument, JointCall, ScriptCall, SharedMember, call_for, joint_call_for};
pub use error::{Certainty, StoreError};
pub use failure::FailureMode;
pub use key::KeySpace;
pub use limit::LimitSpec;
pub use script::Script;
pub use shared::{SharedCall, SharedLimit, SharedStats, all_of};
pub use store::{Atomicity, ValkeyStore};
pub use tokens::{LeaseTokens, LeaseTokensError};

#[cfg(test)]
mod tests;

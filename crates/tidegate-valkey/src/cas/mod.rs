//! Decisions without scripts: a value is read, the engine decides here, and what it makes of the value
//! is written if nobody has written since.
//!
//! For servers that run no scripts. The values are those of the scripts, byte for byte, so both may
//! share keys. What it costs: a decision takes two round trips, and those who write one key at the
//! same time try again. So scripts stay the default.

mod attempt;
mod bytes;
mod codec;
mod numbers;
mod swapper;

pub(crate) use attempt::Write;
#[cfg(test)]
pub(crate) use attempt::{Failure, apply, decide_joint};
pub(crate) use swapper::Swapper;

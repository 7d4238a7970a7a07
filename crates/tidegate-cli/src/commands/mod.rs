//! One file per sub-command: its arguments and `execute`, which returns the exit code.

pub mod check;
pub mod explain;
pub mod run;
pub mod schema;
pub mod simulate;

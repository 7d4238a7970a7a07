//! `tidegate explain`.

use std::process::ExitCode;

/// The arguments of `tidegate explain`.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Runs the command.
pub fn execute(_arguments: Arguments) -> ExitCode {
    ExitCode::SUCCESS
}

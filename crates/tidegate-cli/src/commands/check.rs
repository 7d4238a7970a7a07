//! `tidegate check`.

use std::process::ExitCode;

/// The arguments of `tidegate check`.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Runs the command.
pub fn execute(_arguments: Arguments) -> ExitCode {
    ExitCode::SUCCESS
}

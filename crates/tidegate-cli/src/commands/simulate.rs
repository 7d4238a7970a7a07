//! `tidegate simulate`.

use std::process::ExitCode;

/// The arguments of `tidegate simulate`.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Runs the command.
pub fn execute(_arguments: Arguments) -> ExitCode {
    ExitCode::SUCCESS
}

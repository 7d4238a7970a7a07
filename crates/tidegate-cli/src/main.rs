//! The `tidegate` command: one file per sub-command under `commands`.

mod commands;
mod document;
mod plot;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides, exactly and fast, who may pass.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Opens every door that the file configures.
    Run(commands::run::Arguments),
    /// Validates a configuration and lints it.
    Check(commands::check::Arguments),
    /// Prints the JSON Schema of the configuration.
    Schema(commands::schema::Arguments),
    /// Tells what each limit admits, and the worst case.
    Explain(commands::explain::Arguments),
    /// Replays real or written traffic against the limits of a configuration.
    Simulate(commands::simulate::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => commands::run::execute(arguments),
        Command::Check(arguments) => commands::check::execute(arguments),
        Command::Schema(arguments) => commands::schema::execute(arguments),
        Command::Explain(arguments) => commands::explain::execute(arguments),
        Command::Simulate(arguments) => commands::simulate::execute(arguments),
    }
}

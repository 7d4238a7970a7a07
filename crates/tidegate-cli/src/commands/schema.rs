//! `tidegate schema`: the JSON Schema of the configuration, for editors.

use std::process::ExitCode;

/// The arguments of `tidegate schema`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "An editor with a YAML language server takes it from the first line of a \
file:\n  # yaml-language-server: $schema=tidegate.schema.json"
)]
pub struct Arguments {}

/// Runs the command.
pub fn execute(_arguments: Arguments) -> ExitCode {
    println!("{:#}", tidegate_config::json_schema());
    ExitCode::SUCCESS
}

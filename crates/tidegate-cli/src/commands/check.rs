//! `tidegate check`: whether a configuration is right, and what in it is probably not meant.
//!
//! It holds a file to what `tidegate run` would: what this version cannot enforce is an error
//! here too.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_config::{Checked, Config, LoadError, Purpose, Report};

/// The arguments of `tidegate check`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file; `-` reads standard input.
    config: PathBuf,
    /// Takes warnings for errors.
    #[arg(long)]
    deny_warnings: bool,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn execute(arguments: Arguments) -> ExitCode {
    let (report, config) = match read(&arguments.config) {
        Ok(Checked { config, warnings }) => (warnings, Some(config)),
        Err(LoadError::Invalid(report)) => (report, None),
        Err(error) => return unreadable(&error, arguments.json),
    };
    let failed = config.is_none() || (arguments.deny_warnings && report.warnings() > 0);
    if arguments.json {
        let answer = serde_json::json!({
            "ok": !failed,
            "errors": report.errors(),
            "warnings": report.warnings(),
            "problems": report.to_json(),
        });
        println!("{answer}");
    } else {
        print_problems(&report);
        if let Some(config) = config {
            println!("{}: {}", report.name(), summary(&config));
        }
        if failed {
            eprintln!("{}", verdict(&report));
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Loads a file, or standard input where the path is `-`.
fn read(path: &Path) -> Result<Checked, LoadError> {
    if path != Path::new("-") {
        return tidegate_config::load(path, Purpose::Run);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| LoadError::Read(PathBuf::from("standard input"), error))?;
    tidegate_config::parse("standard input", &text, Purpose::Run).map_err(LoadError::Invalid)
}

fn unreadable(error: &LoadError, json: bool) -> ExitCode {
    let cause =
        std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    if json {
        let message = format!("{error}{cause}");
        println!("{}", serde_json::json!({ "ok": false, "error": message }));
    } else {
        eprintln!("error: {error}{cause}");
    }
    ExitCode::FAILURE
}

/// Draws a report on standard error, in colour where somebody looks at it.
fn print_problems(report: &Report) {
    if report.problems().is_empty() {
        return;
    }
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    eprintln!("{}\n", report.render(colour));
}

fn summary(config: &Config) -> String {
    let limits = counted(config.limits.len(), "limit");
    match &config.gateway {
        Some(gateway) => format!("{limits}, {}", counted(gateway.routes.len(), "route")),
        None => limits,
    }
}

fn verdict(report: &Report) -> String {
    let parts = [(report.errors(), "error"), (report.warnings(), "warning")];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| counted(number, word))
        .collect();
    format!("{}: {}", report.name(), parts.join(" and "))
}

fn counted(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

//! `tidegate check`: whether a configuration is right, and what in it is probably not meant.
//!
//! It holds a file to what `tidegate run` would: what this version cannot enforce is an error
//! here too.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_config::{Checked, Config, LoadError, Purpose, Report};

use crate::document::{chain, counted, counts, print_error, print_report, read};

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
    let checked = read(&arguments.config, Purpose::Run);
    let ok = match &checked {
        Ok(checked) => !arguments.deny_warnings || checked.warnings.warnings() == 0,
        Err(_) => false,
    };
    if arguments.json {
        print_json(ok, &checked);
    } else {
        print_text(ok, &checked);
    }
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_json(ok: bool, checked: &Result<Checked, LoadError>) {
    let of_report = |report: &Report| {
        serde_json::json!({
            "ok": ok,
            "errors": report.errors(),
            "warnings": report.warnings(),
            "problems": report.to_json(),
        })
    };
    let answer = match checked {
        Ok(checked) => of_report(&checked.warnings),
        Err(LoadError::Invalid(report)) => of_report(report),
        Err(error) => serde_json::json!({ "ok": false, "error": chain(error) }),
    };
    println!("{answer}");
}

fn print_text(ok: bool, checked: &Result<Checked, LoadError>) {
    match checked {
        Ok(Checked { config, warnings }) => {
            print_report(warnings);
            if ok {
                println!("{}: {}", warnings.name(), summary(config));
            } else {
                eprintln!("{}: {}", warnings.name(), counts(warnings));
            }
        }
        Err(error) => print_error(error),
    }
}

fn summary(config: &Config) -> String {
    let limits = counted(config.limits.len(), "limit");
    match &config.gateway {
        Some(gateway) => format!("{limits}, {}, fine", counted(gateway.routes.len(), "route")),
        None => format!("{limits}, fine"),
    }
}

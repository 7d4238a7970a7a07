//! `tidegate check`: whether a configuration is right, and what in it is probably not meant.
//!
//! It holds a file to what `tidegate run` would: what this version cannot enforce is an error
//! here too.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tidegate::{StoreWatch, Stores};
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
    /// Also opens the stores, and says which of them give no answer.
    #[arg(long)]
    connect: bool,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// How long a store may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn execute(arguments: Arguments) -> ExitCode {
    let checked = read(&arguments.config, Purpose::Run);
    let mut ok = match &checked {
        Ok(checked) => !arguments.deny_warnings || checked.warnings.warnings() == 0,
        Err(_) => false,
    };
    let silent = match &checked {
        Ok(checked) if arguments.connect => Some(silent_stores(&checked.config)),
        _ => None,
    };
    ok &= silent.as_ref().is_none_or(Vec::is_empty);
    if arguments.json {
        print_json(ok, &checked, silent);
    } else {
        for problem in silent.iter().flatten() {
            eprintln!("error: {problem}");
        }
        print_text(ok, &checked);
    }
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What keeps stores from being opened or from answering, one line each.
fn silent_stores(config: &Config) -> Vec<String> {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return vec![format!("cannot look at the stores: {error}")],
    };
    runtime.block_on(async {
        let stores = match Stores::open(&config.stores, &Stores::default(), &StoreWatch::default())
        {
            Ok(stores) => stores,
            Err(error) => return vec![chain(&error)],
        };
        let mut silent = Vec::new();
        for (name, store) in stores.iter() {
            if let Err(error) = store.client().ready(PATIENCE).await {
                silent.push(format!("store `{name}`: {}", chain(&error)));
            }
        }
        silent
    })
}

fn print_json(ok: bool, checked: &Result<Checked, LoadError>, silent: Option<Vec<String>>) {
    let of_report = |report: &Report| {
        serde_json::json!({
            "ok": ok,
            "errors": report.errors(),
            "warnings": report.warnings(),
            "problems": report.to_json(),
        })
    };
    let mut answer = match checked {
        Ok(checked) => of_report(&checked.warnings),
        Err(LoadError::Invalid(report)) => of_report(report),
        Err(error) => serde_json::json!({ "ok": false, "error": chain(error) }),
    };
    if let Some(silent) = silent {
        answer["stores"] = silent.into();
    }
    println!("{answer}");
}

fn print_text(ok: bool, checked: &Result<Checked, LoadError>) {
    match checked {
        Ok(Checked { config, warnings }) => {
            print_report(warnings);
            if ok {
                println!("{}: {}", warnings.name(), summary(config));
            } else if !warnings.problems().is_empty() {
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

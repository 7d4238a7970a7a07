//! Reading a configuration for a command, and telling what is wrong with it.

use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use tidegate_config::{Checked, LoadError, Purpose, Report};

/// Loads a file, or standard input where the path is `-`.
pub fn read(path: &Path, purpose: Purpose) -> Result<Checked, LoadError> {
    let checked = if path == Path::new("-") {
        let text = tidegate_config::read_bounded(std::io::stdin())
            .map_err(|error| LoadError::Read(PathBuf::from("standard input"), error))?;
        tidegate_config::parse("standard input", &text, purpose).map_err(LoadError::Invalid)?
    } else {
        tidegate_config::load(path, purpose)?
    };
    match purpose {
        Purpose::Run => with_its_files(checked).map_err(LoadError::Invalid),
        Purpose::Inspect => Ok(checked),
    }
}

/// Looks into the files that a document names, too.
pub fn with_its_files(checked: Checked) -> Result<Checked, Report> {
    let Checked { config, warnings } = checked;
    let warnings = warnings.with(tidegate_gateway::tls::inspect(&config));
    if warnings.errors() > 0 {
        return Err(warnings);
    }
    Ok(Checked { config, warnings })
}

/// Draws a report on standard error, in colour where somebody looks at it.
pub fn print_report(report: &Report) {
    if report.problems().is_empty() {
        return;
    }
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    eprintln!("{}\n", report.render(colour));
}

/// Tells on standard error why a file gave no configuration.
pub fn print_error(error: &LoadError) {
    match error {
        LoadError::Invalid(report) => {
            print_report(report);
            eprintln!("{}: {}", report.name(), counts(report));
        }
        LoadError::Read(..) => eprintln!("error: {}", chain(error)),
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How many errors and warnings a report has, in words.
pub fn counts(report: &Report) -> String {
    let parts = [(report.errors(), "error"), (report.warnings(), "warning")];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| counted(number, word))
        .collect();
    parts.join(" and ")
}

/// A number with its word: `1 limit`, `2 limits`.
pub fn counted(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

//! What is told on standard error at the end of a run, and the exit code.

use std::process::ExitCode;

use tidegate::Micros;
use tidegate::simulation::{Problem, Tally};

/// How many differences are shown.
const SHOWN: usize = 20;

/// What was other than expected.
#[derive(Debug, Default)]
pub struct Outcome {
    differences: u64,
    shown: Vec<Problem>,
}

impl Outcome {
    /// Counts differences and keeps the first of them.
    pub fn add(&mut self, problems: Vec<Problem>) {
        self.differences += problems.len() as u64;
        let room = SHOWN.saturating_sub(self.shown.len());
        self.shown.extend(problems.into_iter().take(room));
    }
}

/// Prints what a user has to know of the input, then what was other than expected.
pub fn print(tally: &Tally, left_out: u64, outcome: &Outcome, horizon: Micros) -> ExitCode {
    if tally.unreadable > 0 {
        eprintln!(
            "warning: {} of {} could not be read{}",
            tally.unreadable,
            counted(tally.lines, "line"),
            more(tally.unreadable, tally.problems.len())
        );
        for problem in &tally.problems {
            eprintln!("\n{problem}");
        }
    }
    for (name, error) in &tally.broken {
        eprintln!("warning: the rest of {name} could not be read: {error}; was it cut off?");
    }
    if tally.outside > 0 {
        eprintln!(
            "note: {} outside the range of time",
            counted(tally.outside, "call")
        );
    }
    if left_out > 0 {
        eprintln!(
            "note: {} of callers that are not in the sample",
            counted(left_out, "call")
        );
    }
    if tally.unlimited > 0 {
        eprintln!(
            "note: {} met no limit: no route serves them, or their route has none",
            counted(tally.unlimited, "request")
        );
    }
    let disorder = tally.disorder;
    if disorder.reordered > 0 {
        eprintln!(
            "note: {} stood after a later one and {} sorted",
            counted(disorder.reordered, "line"),
            if disorder.reordered == 1 {
                "was"
            } else {
                "were"
            }
        );
    }
    if disorder.overrun > 0 {
        eprintln!(
            "warning: {} came more than {horizon} late and stayed where they stood; --horizon {} \
             sorts them",
            counted(disorder.overrun, "line"),
            round_up(disorder.latest)
        );
    }
    for (field, lines) in &tally.unknown_fields {
        let meant = Tally::meant(field).map(|known| format!("; is {known} meant?"));
        eprintln!(
            "warning: the field {field} is not known and was left out of account, in {}{}",
            counted(*lines, "line"),
            meant.unwrap_or_default()
        );
    }
    if outcome.differences > 0 {
        eprintln!(
            "error: {} not as expected{}",
            match outcome.differences {
                1 => "1 answer is".to_owned(),
                count => format!("{count} answers are"),
            },
            more(outcome.differences, outcome.shown.len())
        );
    }
    for problem in &outcome.shown {
        eprintln!("\n{problem}");
    }
    let nothing_read = tally.lines > 0 && tally.unreadable >= tally.lines;
    if outcome.differences > 0 || nothing_read {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn more(all: u64, shown: usize) -> String {
    if all > shown as u64 {
        format!("; the first {shown}:")
    } else {
        ":".to_owned()
    }
}

/// A horizon that is enough, in whole seconds.
fn round_up(lateness: Micros) -> Micros {
    Micros::from_secs(lateness.0.div_ceil(1_000_000))
}

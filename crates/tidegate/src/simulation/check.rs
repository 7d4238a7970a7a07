//! Timelines as tests: every expectation is compared.

use std::fmt;
use std::sync::Arc;

use super::call::Call;
use super::format::Format;
use super::problem::{Fault, Problem};
use super::replay::{Answer, CallError, Simulation};
use super::timeline::Clause;
use super::trace::{TraceError, TraceOptions, Traces};

/// What differs between a call's answer and what its line expects of it.
///
/// Lines of other formats expect nothing.
#[must_use]
pub fn differences(
    simulation: &Simulation,
    source: &str,
    call: &Call,
    answer: &Result<Answer, CallError>,
) -> Vec<Problem> {
    let Some(written) = &call.written else {
        return Vec::new();
    };
    let source: Arc<str> = source.into();
    let mut problems = Vec::new();
    for (expected, start, length) in &written.clauses {
        let got = match answer {
            Ok(answer) => match expected.actual(answer, simulation) {
                Some(actual) if actual == *expected => continue,
                Some(actual) => actual.to_string(),
                None => Clause::of(call, answer, simulation)
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("  "),
            },
            Err(CallError::Operation(_)) if *expected == Clause::Unsupported => continue,
            Err(error) => error.to_string(),
        };
        let fault = Fault::new(*start, *length, format!("expected {expected}, got {got}"));
        problems.push(Problem::new(
            &source,
            call.line,
            written.text.as_bytes(),
            fault,
        ));
    }
    problems
}

/// Whether the line of a call expects that its algorithm has no such operation.
#[must_use]
pub fn expects_no_answer(call: &Call) -> bool {
    let clauses = call.written.iter().flat_map(|written| &written.clauses);
    clauses
        .into_iter()
        .any(|(clause, ..)| *clause == Clause::Unsupported)
}

/// Why a timeline is not as it says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// It could not be read to its end.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Answers differ from what was expected of them.
    #[error("{}", Problems(.0))]
    Different(Vec<Problem>),
    /// It expects nothing, so nothing was checked.
    #[error("{0} expects nothing of any answer")]
    Nothing(String),
}

struct Problems<'a>(&'a [Problem]);

impl fmt::Display for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.iter().enumerate() {
            let gap = if position > 0 { "\n\n" } else { "" };
            write!(f, "{gap}{problem}")?;
        }
        Ok(())
    }
}

/// Plays a timeline that brings its own limits and compares every expectation.
///
/// Returns how many calls it has.
///
/// # Errors
/// A faulty line, an answer other than expected, or nothing that could differ.
///
/// ```
/// tidegate::simulation::check("login", "
///     limit login: token_bucket rate 1/2s capacity 5 refill interval
///          0ms asha  take 5  allow  remaining 0
///       3999ms asha  take 2  deny   retry after 1ms
///       4000ms asha  take 2  allow  remaining 0
/// ")?;
/// # Ok::<(), tidegate::simulation::CheckError>(())
/// ```
pub fn check(name: &str, text: &str) -> Result<usize, CheckError> {
    let mut simulation = Simulation::new();
    let mut traces = Traces::new(TraceOptions::default());
    traces.open_as(
        name,
        Format::Timeline,
        Box::new(std::io::Cursor::new(text.to_owned())),
    );
    let (mut calls, mut expectations) = (0, 0);
    let mut problems = Vec::new();
    while let Some(call) = traces.next(&mut simulation)? {
        let answer = simulation.answer(&call);
        calls += 1;
        expectations += call
            .written
            .as_ref()
            .map_or(0, |written| written.clauses.len());
        if let Err(error) = &answer
            && !expects_no_answer(&call)
        {
            traces.refuse(&call, error)?;
        }
        problems.extend(differences(&simulation, name, &call, &answer));
    }
    if !problems.is_empty() {
        return Err(CheckError::Different(problems));
    }
    if expectations == 0 {
        return Err(CheckError::Nothing(name.to_owned()));
    }
    Ok(calls)
}

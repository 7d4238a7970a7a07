//! The formats of traces: which one a file is of, and how a line of it becomes a call.

use std::sync::Arc;

use tidegate_core::{Policy, Timestamp};

use super::access_log::{self, LogLine, unescaped};
use super::call::{Action, Call};
use super::csv::{self, Columns};
use super::lines::Line;
use super::problem::Fault;
use super::replay::Simulation;
use super::request::{KeySource, Request};
use super::trace::{Tally, TraceError};
use super::{jsonl, timeline};

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The project's own text form.
    Timeline,
    /// One JSON object a line.
    Jsonl,
    /// CSV with a header.
    Csv,
    /// The common or combined format of web servers.
    AccessLog,
}

/// A format, with what its reader keeps between two lines.
pub(crate) enum Kind {
    Timeline,
    Jsonl,
    Csv(Option<Box<Columns>>),
    AccessLog {
        /// Whether the limits are known to fit.
        fitted: bool,
    },
}

impl Kind {
    /// The reader of a format, at the beginning of a file.
    pub fn new(format: Format) -> Self {
        match format {
            Format::Timeline => Self::Timeline,
            Format::Jsonl => Self::Jsonl,
            Format::Csv => Self::Csv(None),
            Format::AccessLog => Self::AccessLog { fitted: false },
        }
    }

    /// Reads one line; none where it holds no call.
    pub fn read(
        &mut self,
        name: &Arc<str>,
        line: Line<'_>,
        trace: u32,
        tally: &mut Tally,
        simulation: &mut Simulation,
    ) -> Result<Result<Option<Call>, Fault>, TraceError> {
        Ok(match self {
            Self::Timeline => match std::str::from_utf8(line.text) {
                Ok(text) => timeline::read_line(text, trace, line.number, simulation),
                Err(error) => Err(Fault::new(error.valid_up_to(), 1, "this byte is no UTF-8")),
            },
            Self::Jsonl => {
                let mut unknown = |field: &str| tally.unknown(field);
                jsonl::read(line.text, &mut unknown)
                    .and_then(|fields| fields.call(trace, line.number, simulation))
                    .map(Some)
            }
            Self::Csv(columns @ None) => Columns::read_header(line.text).map(|read| {
                *columns = Some(Box::new(read));
                None
            }),
            Self::Csv(Some(columns)) => columns
                .read_row(line.text)
                .and_then(|fields| fields.call(trace, line.number, simulation))
                .map(Some),
            Self::AccessLog { fitted } => {
                if !std::mem::replace(fitted, true) {
                    fit(name, simulation)?;
                }
                access_log::read(line.text)
                    .and_then(|read| call_of_log(&read, trace, line.number, simulation))
                    .map(Some)
            }
        })
        .map(|read| read.map(|call| call.filter(|call| tally.is_limited(call))))
    }
}

/// The call of a line of an access log: all limits that it meets, together or not at all.
fn call_of_log(
    line: &LogLine<'_>,
    trace: u32,
    number: u64,
    simulation: &mut Simulation,
) -> Result<Call, Fault> {
    let at = Timestamp::from_micros(line.at).map_err(|error| Fault::line(error.to_string()))?;
    let target = line.target.map(unescaped);
    let (referer, agent) = line.referer_and_agent();
    let (referer, agent) = (referer.map(unescaped), agent.map(unescaped));
    let request = Request {
        client: Some(line.client),
        user: line.user,
        method: line.method,
        target: target.as_deref(),
        referer: referer.as_deref(),
        user_agent: agent.as_deref(),
        path: None,
        headers: &[],
    };
    let targets = simulation.targets(&request);
    Ok(Call {
        at,
        trace,
        line: number,
        action: Action::Request,
        targets,
        written: None,
    })
}

/// Whether an access log holds what all limits ask for.
fn fit(trace: &str, simulation: &Simulation) -> Result<(), TraceError> {
    let unfit = |limit: &str, reason: String| {
        Err(TraceError::Unfit {
            trace: trace.to_owned(),
            limit: limit.to_owned(),
            reason,
        })
    };
    for (limit, keyed_by) in simulation.met_by_requests() {
        let name = simulation.name(limit);
        match simulation.limiter(limit).policy() {
            Policy::Concurrency(_) => {
                return unfit(
                    name,
                    "an access log has no field for how long a request took, so nothing tells \
                     when its permit came back; write acquire and release as a timeline or JSON"
                        .to_owned(),
                );
            }
            Policy::Lockout(_) => {
                return unfit(
                    name,
                    "an access log does not tell whether a guess was right; write attempt and \
                     success as a timeline or JSON"
                        .to_owned(),
                );
            }
            _ => {}
        }
        for source in keyed_by {
            let missing = match source {
                KeySource::Absent(name) => name.to_string(),
                KeySource::Cookie(name) => format!("cookie.{name}"),
                KeySource::Header(name) if !matches!(&**name, "referer" | "user-agent") => {
                    format!("header.{name}")
                }
                _ => continue,
            };
            return unfit(
                name,
                format!(
                    "its key has the part {missing}, which an access log does not hold; it holds \
                     client_ip, principal, method_and_route, query.NAME, header.referer and \
                     header.user-agent"
                ),
            );
        }
    }
    Ok(())
}

impl Format {
    /// The format that a file is of, by its first lines; none if it is of no known one.
    #[must_use]
    pub fn of(beginning: &[u8]) -> Option<Self> {
        detect(beginning)
    }
}

fn detect(beginning: &[u8]) -> Option<Format> {
    const LOOKED_AT: usize = 100;
    let lines = beginning.split(|byte| *byte == b'\n').take(LOOKED_AT);
    for line in lines {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if line.starts_with(b"{") {
            return Some(Format::Jsonl);
        }
        if access_log::looks_like(line) {
            return Some(Format::AccessLog);
        }
        let Ok(text) = std::str::from_utf8(line) else {
            continue;
        };
        if timeline::looks_like(text) {
            return Some(Format::Timeline);
        }
        if csv::looks_like(text) {
            return Some(Format::Csv);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_shows_in_the_first_line_that_is_of_one() {
        for (text, format) in [
            (
                "\n# a comment\nlimit a: gcra rate 1/s burst 1\n",
                Some(Format::Timeline),
            ),
            ("0ms asha take", Some(Format::Timeline)),
            (" {\"at_ms\": 1}", Some(Format::Jsonl)),
            ("key,at_ms\nk,1", Some(Format::Csv)),
            (
                "garbage\nh - - [01/Aug/1995:09:30:03 -0400] \"-\" 400 -",
                Some(Format::AccessLog),
            ),
            ("limits:\n  login: {}\n", None),
            ("", None),
        ] {
            assert_eq!(detect(text.as_bytes()), format, "{text}");
        }
    }
}

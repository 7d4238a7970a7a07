//! Traces of any format as one stream of calls in the order of time.
//!
//! Each file is sorted within the horizon, then all of them are merged: logs of several servers,
//! or of several days, in whatever order they are named. Timelines alone are never sorted: they
//! are written scenarios, and a step back in time is part of one.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Micros, Policy, Timestamp};

use super::access_log::{self, LogLine, unescaped};
use super::call::{Action, Call, Target};
use super::csv::{self, Columns};
use super::jsonl;
use super::lines::{Line, Lines, MAX_LINE};
use super::problem::{Fault, Problem, nearest};
use super::replay::{CallError, Simulation};
use super::request::{KeySource, Request, key_of};
use super::sorter::{Disorder, Sorter};
use super::{fields::FIELDS, timeline};

/// How many unreadable lines are kept to be shown.
const SHOWN: usize = 10;

/// How traces are read.
#[derive(Clone, Copy, Debug)]
pub struct TraceOptions {
    /// Within which lines are sorted by time.
    pub horizon: Micros,
    /// Whether the first unreadable line ends the run.
    pub strict: bool,
}

impl Default for TraceOptions {
    /// A horizon of 60 s; unreadable lines are counted.
    fn default() -> Self {
        Self {
            horizon: Micros::from_secs(60),
            strict: false,
        }
    }
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A file could not be read.
    #[error("cannot read {0}")]
    Read(String, #[source] io::Error),
    /// A line could not be read, where that ends the run.
    #[error(transparent)]
    Line(Box<Problem>),
    /// The first lines are of no known format.
    #[error(
        "{0} is no trace: its first lines are neither a timeline, nor JSON objects, nor CSV with a \
         column at_ms or at_us, nor an access log"
    )]
    UnknownFormat(String),
    /// A limit that an access log cannot feed.
    #[error("{trace} cannot be played against limit {limit}: {reason}")]
    Unfit {
        /// The file.
        trace: String,
        /// The limit.
        limit: String,
        /// What an access log lacks, and what to do.
        reason: String,
    },
}

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

/// What was read, and what could not be.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Lines read, without empty ones, comments and headers.
    pub lines: u64,
    /// Lines that could not be read or have no meaning.
    pub unreadable: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
    /// Lines out of order.
    pub disorder: Disorder,
    /// Fields that are not known, with how often they stood there; the first twenty.
    pub unknown_fields: BTreeMap<String, u64>,
}

/// Several traces, read as one.
#[derive(Default)]
pub struct Traces {
    sources: Vec<Source>,
    options: TraceOptions,
    tally: Tally,
}

struct Source {
    name: Arc<str>,
    lines: Lines<Box<dyn Read + Send>>,
    kind: Kind,
    sorter: Sorter<Call>,
    ended: bool,
    head: Option<Call>,
}

enum Kind {
    Timeline,
    Jsonl,
    Csv(Option<Box<Columns>>),
    AccessLog {
        /// Whether the limits are known to fit.
        fitted: bool,
    },
}

impl Traces {
    /// No traces yet.
    #[must_use]
    pub fn new(options: TraceOptions) -> Self {
        Self {
            sources: Vec::new(),
            options,
            tally: Tally::default(),
        }
    }

    /// Adds a trace, whose format shows in its first lines; none if it holds no line at all.
    ///
    /// # Errors
    /// It cannot be read, or is of no known format.
    pub fn open(
        &mut self,
        name: &str,
        reader: Box<dyn Read + Send>,
    ) -> Result<Option<Format>, TraceError> {
        let mut lines = Lines::new(reader);
        let beginning = lines
            .preview()
            .map_err(|error| TraceError::Read(name.to_owned(), error))?;
        let Some(format) = detect(beginning) else {
            if beginning.iter().all(u8::is_ascii_whitespace) {
                return Ok(None);
            }
            return Err(TraceError::UnknownFormat(name.to_owned()));
        };
        let kind = match format {
            Format::Timeline => Kind::Timeline,
            Format::Jsonl => Kind::Jsonl,
            Format::Csv => Kind::Csv(None),
            Format::AccessLog => Kind::AccessLog { fitted: false },
        };
        self.sources.push(Source {
            name: name.into(),
            lines,
            kind,
            sorter: Sorter::new(self.options.horizon),
            ended: false,
            head: None,
        });
        Ok(Some(format))
    }

    /// The name of the trace that a call stands in.
    #[must_use]
    pub fn name(&self, trace: u32) -> &str {
        self.sources
            .get(trace as usize)
            .map_or("", |source| &source.name)
    }

    /// What was read so far, and what could not be.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        for source in &self.sources {
            let disorder = source.sorter.disorder();
            tally.disorder.reordered += disorder.reordered;
            tally.disorder.overrun += disorder.overrun;
            tally.disorder.latest = tally.disorder.latest.max(disorder.latest);
        }
        tally
    }

    /// The next call of all traces; none at the end.
    ///
    /// # Errors
    /// A file cannot be read, a timeline has a faulty line, or a line is unreadable and the
    /// options are strict.
    pub fn next(&mut self, simulation: &mut Simulation) -> Result<Option<Call>, TraceError> {
        let Self {
            sources,
            options,
            tally,
        } = self;
        let mut first: Option<(Timestamp, usize)> = None;
        for (index, source) in sources.iter_mut().enumerate() {
            if source.head.is_none() && !source.ended {
                let trace = u32::try_from(index).unwrap_or(u32::MAX);
                source.head = source.next(trace, *options, tally, simulation)?;
                source.ended = source.head.is_none();
            }
            if let Some(head) = &source.head
                && first.is_none_or(|(at, _)| head.at < at)
            {
                first = Some((head.at, index));
            }
        }
        Ok(first.and_then(|(_, index)| sources[index].head.take()))
    }

    /// Counts a call that has no meaning for its limit as an unreadable line.
    ///
    /// # Errors
    /// It ends the run: the options are strict, or the call is of a timeline.
    pub fn refuse(&mut self, call: &Call, error: &CallError) -> Result<(), TraceError> {
        let problem = self.problem(call, error);
        if self.options.strict || call.written.is_some() {
            return Err(TraceError::Line(Box::new(problem)));
        }
        self.tally.count(problem);
        Ok(())
    }

    fn problem(&self, call: &Call, error: &CallError) -> Problem {
        let name = Arc::from(self.name(call.trace));
        let message = error.to_string();
        match &call.written {
            Some(written) => {
                let (start, length) = written.operation;
                Problem::new(
                    &name,
                    call.line,
                    written.text.as_bytes(),
                    Fault::new(start, length, message),
                )
            }
            None => Problem::new(&name, call.line, b"", Fault::line(message)),
        }
    }
}

impl Tally {
    fn count(&mut self, problem: Problem) {
        self.unreadable += 1;
        if self.problems.len() < SHOWN {
            self.problems.push(problem);
        }
    }
}

impl Source {
    /// The next call of this trace.
    fn next(
        &mut self,
        trace: u32,
        options: TraceOptions,
        tally: &mut Tally,
        simulation: &mut Simulation,
    ) -> Result<Option<Call>, TraceError> {
        loop {
            if let Some(call) = self.sorter.pop_ready() {
                return Ok(Some(call));
            }
            let line = match self.lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(self.sorter.pop()),
                Err(error) => return Err(TraceError::Read(self.name.to_string(), error)),
            };
            if line.text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let read = if line.cut {
                Err(Fault::line(format!(
                    "this line is longer than {} MiB",
                    MAX_LINE >> 20
                )))
            } else {
                self.kind.read(&self.name, line, trace, tally, simulation)?
            };
            match read {
                Ok(None) => {}
                Ok(Some(call)) => {
                    tally.lines += 1;
                    if matches!(self.kind, Kind::Timeline) {
                        return Ok(Some(call));
                    }
                    self.sorter.push(call.at, call);
                }
                Err(fault) => {
                    tally.lines += 1;
                    let problem = Problem::new(&self.name, line.number, line.text, fault);
                    if options.strict || matches!(self.kind, Kind::Timeline | Kind::Csv(None)) {
                        return Err(TraceError::Line(Box::new(problem)));
                    }
                    tally.count(problem);
                }
            }
        }
    }
}

impl Kind {
    /// Reads one line; none where it holds no call.
    fn read(
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
    }
}

impl Tally {
    fn unknown(&mut self, field: &str) {
        const KEPT: usize = 20;
        if let Some(count) = self.unknown_fields.get_mut(field) {
            *count += 1;
        } else if self.unknown_fields.len() < KEPT {
            self.unknown_fields.insert(field.to_owned(), 1);
        }
    }

    /// The known field that an unknown one may have meant.
    #[must_use]
    pub fn meant(field: &str) -> Option<&'static str> {
        nearest(field, FIELDS)
    }
}

/// The call of a line of an access log: every limit, together or not at all.
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
        headers: &[],
    };
    let mut targets = SmallVec::new();
    for limit in simulation.limits() {
        let key = key_of(simulation.keyed_by(limit), &request);
        targets.push(Target {
            limit,
            key: simulation.key_number(limit, &key),
        });
    }
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
    for limit in simulation.limits() {
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
        for source in simulation.keyed_by(limit) {
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

//! Traces of any format as one stream of calls in the order of time.
//!
//! Each file is sorted within the horizon, then all of them are merged: logs of several servers,
//! or of several days, in whatever order they are named. Timelines alone are never sorted: they
//! are written scenarios, and a step back in time is part of one.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};

use super::call::{Action, Call};
use super::fields::FIELDS;
use super::format::{Format, Kind};
use super::lines::{Lines, MAX_LINE};
use super::problem::{Fault, Problem, nearest};
use super::replay::{CallError, Simulation};
use super::sorter::{Disorder, Sorter};

/// How many unreadable lines are kept to be shown.
const SHOWN: usize = 10;

/// How traces are read.
#[derive(Clone, Copy, Debug)]
pub struct TraceOptions {
    /// Within which lines are sorted by time.
    pub horizon: Micros,
    /// Whether the first unreadable line ends the run.
    pub strict: bool,
    /// Calls before this are left out.
    pub from: Timestamp,
    /// Calls at this time and after are left out.
    pub until: Timestamp,
}

impl Default for TraceOptions {
    /// A horizon of 60 s, all of time; unreadable lines are counted.
    fn default() -> Self {
        Self {
            horizon: Micros::from_secs(60),
            strict: false,
            from: Timestamp::EPOCH,
            until: Timestamp::MAX,
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
    /// Requests that no route serves, or whose route has no limit.
    pub unlimited: u64,
    /// Calls outside the range of time that is played.
    pub outside: u64,
    /// Files that ended before their time, with what was wrong: the rest of them is missing.
    pub broken: Vec<(String, String)>,
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
        let Some(format) = Format::of(beginning) else {
            if beginning.iter().all(u8::is_ascii_whitespace) {
                return Ok(None);
            }
            return Err(TraceError::UnknownFormat(name.to_owned()));
        };
        self.add(name, format, lines);
        Ok(Some(format))
    }

    /// Adds a trace whose format is known.
    pub fn open_as(&mut self, name: &str, format: Format, reader: Box<dyn Read + Send>) {
        self.add(name, format, Lines::new(reader));
    }

    fn add(&mut self, name: &str, format: Format, lines: Lines<Box<dyn Read + Send>>) {
        self.sources.push(Source {
            name: name.into(),
            lines,
            kind: Kind::new(format),
            sorter: Sorter::new(self.options.horizon),
            ended: false,
            head: None,
        });
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

/// Whether what was read so far is good and only the rest is lost, as in a compressed file that was
/// cut off.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    matches!(
        error.kind(),
        UnexpectedEof | InvalidData | InvalidInput | Other
    )
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
            let begun = self.lines.number() > 0;
            let line = match self.lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(self.sorter.pop()),
                // A file that was cut off is played as far as it goes.
                Err(error) if begun && !options.strict && is_broken(&error) => {
                    let name = self.name.to_string();
                    tally.broken.push((name, error.to_string()));
                    self.lines = Lines::new(Box::new(io::empty()));
                    continue;
                }
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
                    if call.at < options.from || call.at >= options.until {
                        tally.outside += 1;
                        continue;
                    }
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

impl Tally {
    /// Whether a call meets any limit; counts it if not.
    pub(super) fn is_limited(&mut self, call: &Call) -> bool {
        let limited = !call.targets.is_empty() || matches!(call.action, Action::SetPolicy(_));
        if !limited {
            self.lines += 1;
            self.unlimited += 1;
        }
        limited
    }

    /// Counts a field that is not known.
    pub(super) fn unknown(&mut self, field: &str) {
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

//! `tidegate simulate`: what a configuration would have done to real or written traffic.
//!
//! The answers go to standard output, and everything that is wrong with the input, or other than
//! expected, to standard error.

mod input;
mod limits;
mod report;

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate::Micros;
use tidegate::simulation::{
    Answer, Call, Format, Simulation, Summary, TraceOptions, Traces, differences,
    expects_no_answer, output,
};
use tidegate_config::{LoadError, Purpose, text::parse_duration};

use self::input::Progress;
use self::report::Outcome;

/// How much output is gathered before it is written.
const CHUNK: usize = 1 << 16;

/// The arguments of `tidegate simulate`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration, of which only the limits matter; or a timeline that brings its own
    config: String,
    /// What is replayed: timelines, JSON lines, CSV with a header, or access logs in the common
    /// or combined format; .gz and .zst as they are; - is standard input
    traces: Vec<String>,
    /// Prints one JSON object per answer, or per limit and key with --summary
    #[arg(long)]
    json: bool,
    /// Prints totals per limit and key instead of the answers
    #[arg(long)]
    summary: bool,
    /// How answers are printed
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["json", "summary"])]
    format: OutputFormat,
    /// Within how much time lines are sorted; 0 takes them as they stand
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_horizon)]
    horizon: Micros,
    /// Stops at the first line that cannot be read
    #[arg(long)]
    strict: bool,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// A timeline, which can be replayed
    #[default]
    Timeline,
    /// The HTTP status that each call would get
    Http,
}

fn parse_horizon(text: &str) -> Result<Micros, String> {
    parse_duration(text).map_err(|error| format!("{}; {}", error.message, error.help))
}

/// Runs the command.
pub fn execute(arguments: Arguments) -> ExitCode {
    match run(&arguments) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether whoever read the output has gone, as `head` does: no reason to complain.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let progress = Progress::default();
    let mut simulation = Simulation::new();
    let options = TraceOptions {
        horizon: arguments.horizon,
        strict: arguments.strict,
    };
    let mut traces = Traces::new(options);
    if !configure(&arguments.config, &mut simulation, &mut traces, &progress)?
        && arguments.traces.is_empty()
    {
        eprintln!(
            "error: {} holds limits and nothing to replay; name a trace, or - for standard input",
            arguments.config
        );
        return Ok(ExitCode::from(2));
    }
    for path in &arguments.traces {
        let input = input::open(path, &progress).with_context(|| format!("cannot read {path}"))?;
        if is_timeline(path) {
            traces.open_as(path, Format::Timeline, input);
        } else {
            traces.open(path, input)?;
        }
    }
    let mut printer = Printer::new(arguments);
    let mut bar = Bar::new(progress, arguments.summary);
    let outcome = replay(&mut simulation, &mut traces, &mut printer, &mut bar);
    bar.clear();
    // What was answered before a faulty line is shown before the fault.
    printer.finish(&simulation)?;
    let outcome = outcome?;
    Ok(report::print(&traces.tally(), &outcome, arguments.horizon))
}

/// Whether the name says that this is a timeline, whatever mistakes its first lines hold.
fn is_timeline(path: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "timeline")
}

/// Reads the configuration; true if it is a timeline, which is a trace as well.
fn configure(
    path: &str,
    simulation: &mut Simulation,
    traces: &mut Traces,
    progress: &Progress,
) -> anyhow::Result<bool> {
    let mut text = Vec::new();
    input::open(path, progress)
        .and_then(|mut input| input.read_to_end(&mut text))
        .with_context(|| format!("cannot read {path}"))?;
    if is_timeline(path) || Format::of(&text) == Some(Format::Timeline) {
        traces.open_as(path, Format::Timeline, Box::new(io::Cursor::new(text)));
        return Ok(true);
    }
    let text =
        String::from_utf8(text).map_err(|_| anyhow::anyhow!("{path} is no text in UTF-8"))?;
    let checked =
        tidegate_config::parse(path, &text, Purpose::Inspect).map_err(LoadError::Invalid)?;
    limits::add(&checked.config, simulation)?;
    Ok(false)
}

/// Plays all traces to their end.
fn replay(
    simulation: &mut Simulation,
    traces: &mut Traces,
    printer: &mut Printer,
    bar: &mut Bar,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    while let Some(call) = traces.next(simulation)? {
        let answer = simulation.answer(&call);
        match &answer {
            Ok(answer) => printer.print(simulation, &call, answer)?,
            Err(_) if expects_no_answer(&call) => printer.print_unsupported(simulation, &call),
            Err(error) => traces.refuse(&call, error)?,
        }
        if call.is_written() {
            outcome.add(differences(
                simulation,
                traces.name(call.trace),
                &call,
                &answer,
            ));
        }
        bar.tick();
    }
    Ok(outcome)
}

/// Writes answers in the form that was asked for.
struct Printer {
    kind: Kind,
    text: String,
    bytes: Vec<u8>,
    /// How many limits have had their header printed.
    headers: usize,
}

enum Kind {
    Timeline,
    Http,
    Json,
    Summary(Summary),
    SummaryJson(Summary),
}

impl Printer {
    fn new(arguments: &Arguments) -> Self {
        let kind = match (arguments.summary, arguments.json, arguments.format) {
            (true, false, _) => Kind::Summary(Summary::new()),
            (true, true, _) => Kind::SummaryJson(Summary::new()),
            (false, true, _) => Kind::Json,
            (false, false, OutputFormat::Timeline) => Kind::Timeline,
            (false, false, OutputFormat::Http) => Kind::Http,
        };
        Self {
            kind,
            text: String::new(),
            bytes: Vec::new(),
            headers: 0,
        }
    }

    fn print(&mut self, simulation: &Simulation, call: &Call, answer: &Answer) -> io::Result<()> {
        match &mut self.kind {
            Kind::Summary(summary) | Kind::SummaryJson(summary) => {
                summary.add(simulation, call, answer);
                return Ok(());
            }
            Kind::Json => output::write_json(&mut self.bytes, simulation, call, answer)?,
            Kind::Http => output::write_http(&mut self.text, simulation, call, answer),
            Kind::Timeline => {
                self.headers += output::write_headers(&mut self.text, simulation, self.headers);
                output::write_timeline(&mut self.text, simulation, call, answer);
            }
        }
        if self.text.len() + self.bytes.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    fn print_unsupported(&mut self, simulation: &Simulation, call: &Call) {
        if matches!(self.kind, Kind::Timeline) {
            output::write_unsupported(&mut self.text, simulation, call);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        out.write_all(&self.bytes)?;
        self.text.clear();
        self.bytes.clear();
        out.flush()
    }

    fn finish(&mut self, simulation: &Simulation) -> io::Result<()> {
        match &self.kind {
            Kind::Summary(summary) => self.text.push_str(&summary.table(simulation)),
            Kind::SummaryJson(summary) => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                summary.write_json(simulation, &mut out)?;
                out.flush()?;
            }
            _ => {}
        }
        self.flush()
    }
}

/// A progress bar, if the input turns out to be long and somebody watches.
struct Bar {
    progress: Progress,
    bar: Option<ProgressBar>,
    calls: u64,
    started: Option<std::time::Instant>,
}

impl Bar {
    /// How many calls pass between two looks at the clock.
    const STEP: u64 = 1 << 14;

    fn new(progress: Progress, summary: bool) -> Self {
        // Where answers scroll by on the same terminal, they are the progress.
        let watched = io::stderr().is_terminal() && (summary || !io::stdout().is_terminal());
        let started = watched.then(std::time::Instant::now);
        Self {
            progress,
            bar: None,
            calls: 0,
            started,
        }
    }

    fn tick(&mut self) {
        self.calls += 1;
        let Some(started) = self
            .started
            .filter(|_| self.calls.is_multiple_of(Self::STEP))
        else {
            return;
        };
        if started.elapsed() < Duration::from_secs(1) {
            return;
        }
        let Self {
            progress,
            bar,
            calls,
            ..
        } = self;
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(
                Some(progress.total()),
                ProgressDrawTarget::stderr_with_hz(5),
            );
            let style = "{bar:30} {percent}% {msg}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar
        });
        bar.set_message(format!("{calls} calls"));
        bar.set_position(progress.read().min(progress.total()));
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

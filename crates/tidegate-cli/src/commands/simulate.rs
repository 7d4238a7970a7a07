//! `tidegate simulate`: what a configuration would have done to real or written traffic.
//!
//! The answers go to standard output, and everything that is wrong with the input, or other than
//! expected, to standard error.

mod bar;
mod calendar;
mod condition;
mod input;
mod limits;
mod page;
mod printer;
mod report;
mod series;
mod trials;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use tidegate::simulation::{
    Answer, Call, CallError, Dial, Format, KeyShare, Needs, Simulation, TraceOptions, Traces,
    WhatIf, differences, expects_no_answer, parse_time,
};
use tidegate::{Micros, Timestamp};
use tidegate_config::{LoadError, Purpose, text::parse_duration};

use self::bar::Bar;
use self::input::Progress;
use self::page::Page;
use self::printer::Printer;
use self::report::Outcome;
use self::series::Series;
use self::trials::Suggestion;

pub use self::trials::length;

/// The arguments of `tidegate simulate`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration, of which only the limits matter; or a timeline that brings its own
    config: String,
    /// What is replayed: timelines, JSON lines, CSV with a header, access logs in the common or
    /// combined format, logs of AWS load balancers or CloudFront; .gz and .zst as they are; - is
    /// standard input
    traces: Vec<String>,
    /// Prints one JSON object per answer, or per limit and key with --summary
    #[arg(long)]
    json: bool,
    /// Prints totals per limit and key instead of the answers
    #[arg(long)]
    summary: bool,
    /// Tries other numbers in the same pass: LIMIT.FIELD=VALUE,… or LIMIT=ALGORITHM FIELD VALUE
    /// …, as in per-user.limit=50/1m,100/1m; may be repeated
    #[arg(long, value_name = "NUMBERS", conflicts_with = "format")]
    what_if: Vec<String>,
    /// Finds for each limit the smallest number under which this share of the keys passes
    /// untouched, such as 99.9%; plays the traces twice
    #[arg(long, value_name = "SHARE", value_parser = KeyShare::parse, conflicts_with = "format")]
    suggest: Option<KeyShare>,
    /// Writes a page with plots: calls over time, who is denied, how large each limit must be
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    report: Option<PathBuf>,
    /// Leaves out what happened before this time, such as 2026-05-01T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = read_time)]
    from: Option<Timestamp>,
    /// Leaves out what happened at this time and after
    #[arg(long, value_name = "TIME", value_parser = read_time)]
    until: Option<Timestamp>,
    /// Plays only this share of the callers, always the same ones, such as 10%
    #[arg(long, value_name = "SHARE", value_parser = KeyShare::parse)]
    sample: Option<KeyShare>,
    /// How answers are printed
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["json", "summary"])]
    format: OutputFormat,
    /// Within how much time lines are sorted; 0 takes them as they stand
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_horizon)]
    horizon: Micros,
    /// Stops at the first line that cannot be read, or where a file was cut off
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

fn read_time(text: &str) -> Result<Timestamp, String> {
    // A day begins at its first moment.
    let day = text.len() == 10 && text.as_bytes()[4] == b'-';
    let whole = if day {
        format!("{text}T00:00:00Z")
    } else {
        text.to_owned()
    };
    parse_time(&whole).map_err(|(message, help)| match help {
        Some(help) => format!("{message}; {help}"),
        None => message.to_owned(),
    })
}

/// Runs the command.
pub fn execute(arguments: Arguments) -> ExitCode {
    match run(arguments) {
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

/// What is played: the limits and the traces, at their beginning.
struct Stage {
    simulation: Simulation,
    traces: Traces,
    bar: Bar,
}

/// Who watches a run beside the printer.
#[derive(Default)]
struct Watchers {
    what_if: WhatIf,
    needs: Vec<Needs>,
    series: Option<Series>,
}

impl Watchers {
    fn observe(
        &mut self,
        simulation: &mut Simulation,
        call: &Call,
        answer: &Answer,
    ) -> Result<(), CallError> {
        if let Some(series) = &mut self.series {
            series.add(simulation, call, answer);
        }
        self.what_if.observe(simulation, call)?;
        for needs in &mut self.needs {
            needs.observe(simulation, call)?;
        }
        Ok(())
    }
}

fn run(mut arguments: Arguments) -> anyhow::Result<ExitCode> {
    // Kept until the end: standard input can be read only once, and a suggestion plays it twice.
    let _spooled = match arguments.suggest {
        Some(_) => input::spool(&mut arguments.traces)?,
        None => None,
    };
    let Some(mut stage) = Stage::set(&arguments)? else {
        eprintln!(
            "error: {} holds limits and nothing to replay; name a trace, or - for standard input",
            arguments.config
        );
        return Ok(ExitCode::from(2));
    };
    let reports = arguments.report.is_some();
    let mut watchers = Watchers {
        what_if: trials::add(&arguments.what_if, reports, &mut stage.simulation)?,
        needs: Vec::new(),
        series: reports.then(Series::default),
    };
    if arguments.suggest.is_some() || reports {
        watchers.needs = watch(&mut stage.simulation, arguments.suggest.is_some())?;
    }
    let mut printer = Printer::new(&arguments);
    let outcome = stage.play(&mut watchers, &mut printer);
    // What was answered before a faulty line is shown before the fault.
    printer.finish(&stage.simulation)?;
    let outcome = outcome?;
    if let Some(path) = &arguments.report {
        write_page(path, &arguments, &stage, &watchers)?;
    }
    if !arguments.what_if.is_empty() {
        printer.what_if(&watchers.what_if, &stage.simulation)?;
    }
    if let Some(share) = arguments.suggest {
        suggest(&arguments, share, watchers.needs, &mut printer)?;
    }
    let left_out = stage.simulation.left_out();
    Ok(report::print(
        &stage.traces.tally(),
        left_out,
        &outcome,
        arguments.horizon,
    ))
}

/// Watches what the keys of each limit need, where a number decides that.
fn watch(simulation: &mut Simulation, tells: bool) -> anyhow::Result<Vec<Needs>> {
    let mut watched = Vec::new();
    for limit in simulation.limits() {
        let name = simulation.name(limit).to_owned();
        match Dial::of(simulation, limit) {
            Ok(dial) => watched.push(
                Needs::watch(simulation, dial)
                    .map_err(|error| anyhow::anyhow!("limit {name}: {error}"))?,
            ),
            Err(_) if !tells => {}
            Err(reason) => eprintln!("note: nothing is suggested for limit {name}: {reason}"),
        }
    }
    Ok(watched)
}

/// Writes the page of `--report`.
fn write_page(
    path: &Path,
    arguments: &Arguments,
    stage: &Stage,
    watchers: &Watchers,
) -> anyhow::Result<()> {
    let Some(series) = &watchers.series else {
        return Ok(());
    };
    let needs = watchers.needs.iter();
    let names = std::iter::once(&arguments.config).chain(&arguments.traces);
    let page = Page {
        simulation: &stage.simulation,
        what_if: &watchers.what_if,
        needs: needs
            .map(|needs| (needs.dial().clone(), needs.sorted()))
            .collect(),
        series,
        tally: stage.traces.tally(),
        names: names.cloned().collect(),
    };
    std::fs::write(path, page.html())
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("note: the report is in {}", path.display());
    Ok(())
}

/// Plays the traces again, under what the needs suggest.
fn suggest(
    arguments: &Arguments,
    share: KeyShare,
    needs: Vec<Needs>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Some(mut stage) = Stage::set(arguments)? else {
        return Ok(());
    };
    let mut watchers = Watchers::default();
    let mut suggestions = Vec::new();
    for needs in needs {
        let sorted = needs.sorted();
        suggestions.extend(Suggestion::new(
            needs.dial().clone(),
            share,
            sorted,
            &mut stage.simulation,
            &mut watchers.what_if,
        )?);
    }
    stage.play(&mut watchers, &mut Printer::silent())?;
    for suggestion in &suggestions {
        let text = suggestion.report(&watchers.what_if, &stage.simulation, arguments.json)?;
        printer.text(&text)?;
    }
    Ok(())
}

/// Whether the name says that this is a timeline, whatever mistakes its first lines hold.
fn is_timeline(path: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "timeline")
}

impl Stage {
    /// Opens everything; none where there is nothing to play.
    fn set(arguments: &Arguments) -> anyhow::Result<Option<Self>> {
        let progress = Progress::default();
        let mut simulation = Simulation::new();
        if let Some(share) = arguments.sample {
            simulation.set_sample(share);
        }
        let defaults = TraceOptions::default();
        let mut traces = Traces::new(TraceOptions {
            horizon: arguments.horizon,
            strict: arguments.strict,
            from: arguments.from.unwrap_or(defaults.from),
            until: arguments.until.unwrap_or(defaults.until),
        });
        if !configure(&arguments.config, &mut simulation, &mut traces, &progress)?
            && arguments.traces.is_empty()
        {
            return Ok(None);
        }
        for path in &arguments.traces {
            let input =
                input::open(path, &progress).with_context(|| format!("cannot read {path}"))?;
            if is_timeline(path) {
                traces.open_as(path, Format::Timeline, input);
            } else {
                traces.open(path, input)?;
            }
        }
        Ok(Some(Self {
            simulation,
            traces,
            bar: Bar::new(progress, arguments.prints_little()),
        }))
    }

    /// Plays all traces to their end.
    fn play(&mut self, watchers: &mut Watchers, printer: &mut Printer) -> anyhow::Result<Outcome> {
        let outcome = self.play_on(watchers, printer);
        self.bar.clear();
        outcome
    }

    fn play_on(
        &mut self,
        watchers: &mut Watchers,
        printer: &mut Printer,
    ) -> anyhow::Result<Outcome> {
        let Self {
            simulation,
            traces,
            bar,
        } = self;
        let mut outcome = Outcome::default();
        while let Some(call) = traces.next(simulation)? {
            let answer = simulation.answer(&call);
            match &answer {
                Ok(answer) => {
                    printer.print(simulation, &call, answer)?;
                    if let Err(error) = watchers.observe(simulation, &call, answer) {
                        traces.refuse(&call, &error)?;
                    }
                }
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
}

impl Arguments {
    /// Whether the output is a few tables, and not an answer for each call.
    fn prints_little(&self) -> bool {
        self.summary || self.tries()
    }

    /// Whether other numbers are tried, whose results take the place of the answers.
    fn tries(&self) -> bool {
        !self.what_if.is_empty() || self.suggest.is_some() || self.report.is_some()
    }
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

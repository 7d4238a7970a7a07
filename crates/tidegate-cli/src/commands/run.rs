//! `tidegate run`: opens every door that the file configures, until it is told to stop.
//!
//! What was opened goes to standard output, a line for each listener; logs go to standard error.
//! SIGHUP or a changed file puts the new configuration in force, SIGTERM and SIGINT drain, a
//! second one ends at once.

mod admin;
mod doors;
mod exposition;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use tidegate_config::{Checked, Purpose, Report, parse};
use tidegate_gateway::watch::Watch;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use self::doors::Doors;
use crate::document::with_its_files;

/// Between two looks at the file. A change is taken over at the second look that sees it.
const LOOK: Duration = Duration::from_millis(500);

/// Lines of the log that wait to be written.
const QUEUED_LINES: usize = 16_384;

/// Drained, but work was cancelled.
const CANCELLED: u8 = 3;

/// The arguments of `tidegate run`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file.
    config: PathBuf,
    /// How logs are written. RUST_LOG chooses how much.
    #[arg(long, value_enum, default_value_t = LogFormat::Human, value_name = "FORMAT")]
    log: LogFormat,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Human,
    /// One JSON object a line.
    Json,
}

/// Runs the command.
pub fn execute(arguments: Arguments) -> ExitCode {
    let _flush = start_logging(arguments.log);
    let text = match std::fs::read_to_string(&arguments.config) {
        Ok(text) => text,
        Err(error) => {
            eprintln!(
                "error: cannot read {}: {error}; give the path of a configuration file",
                arguments.config.display()
            );
            return ExitCode::FAILURE;
        }
    };
    let mut watch = Watch::new(&arguments.config, text.as_str());
    let parsed = parse(&arguments.config.display().to_string(), &text, Purpose::Run);
    let checked = match parsed.and_then(with_its_files) {
        Ok(checked) => checked,
        Err(report) => {
            show(&report);
            return ExitCode::FAILURE;
        }
    };
    if !checked.warnings.problems().is_empty() {
        show(&checked.warnings);
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}; raise the limit of processes");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&checked, &mut watch)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal, then drains.
async fn run(checked: &Checked, watch: &mut Watch) -> anyhow::Result<ExitCode> {
    // Before the doors open: who sees that they are open may send signals.
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut stop = Stop {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let mut doors = Doors::open(checked).await?;
    announce(&doors);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.asked() => break,
            _ = hang_up.recv() => {
                let read = watch.read().map(<[u8]>::to_vec);
                match read {
                    Ok(content) => reload(&mut doors, watch, &content),
                    Err(error) => {
                        doors.count_refused_reload();
                        tracing::error!(%error, file = %watch.path().display(), "cannot read the configuration; the last good one stays in force");
                    }
                }
            }
            _ = looks.tick() => {
                if let Some(content) = watch.look().map(<[u8]>::to_vec) {
                    reload(&mut doors, watch, &content);
                }
            }
        }
    }
    let in_flight = doors.in_flight();
    tracing::info!(
        in_flight = in_flight(),
        "draining; a second signal ends at once"
    );
    // Pinned out here: dropping it would end the requests before they are counted.
    let mut draining = pin!(doors.drain());
    let cancelled = tokio::select! {
        cancelled = &mut draining => cancelled,
        () = stop.asked() => in_flight(),
    };
    if cancelled > 0 {
        tracing::warn!(cancelled, "ended with requests cut off");
        return Ok(ExitCode::from(CANCELLED));
    }
    tracing::info!("ended with all requests answered");
    Ok(ExitCode::SUCCESS)
}

/// The signals that stop.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Says what was opened: with the real ports where 0 was asked for.
fn announce(doors: &Doors) {
    let lines = doors.addresses();
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
        // Nobody listens to standard output: no reason not to serve.
        tracing::info!(%error, "opened\n{lines}");
    }
}

/// Puts other content of the file in force, or says why not.
fn reload(doors: &mut Doors, watch: &Watch, content: &[u8]) {
    let file = watch.path().display().to_string();
    let text = String::from_utf8_lossy(content);
    let parsed = parse(&file, &text, Purpose::Run);
    let checked = match parsed.and_then(with_its_files) {
        Ok(checked) => checked,
        Err(report) => {
            doors.count_refused_reload();
            tracing::error!("the last good configuration stays in force:\n{report}");
            return;
        }
    };
    if !checked.warnings.problems().is_empty() {
        tracing::warn!("the configuration has warnings:\n{}", checked.warnings);
    }
    match doors.reload(&checked) {
        Ok(fixed) => {
            tracing::info!(file, "configuration reloaded");
            for field in fixed {
                tracing::warn!("{field} has changed, which needs a restart; it stays as it was");
            }
        }
        Err(error) => tracing::error!("{error:#}; the last good configuration stays in force"),
    }
}

fn show(report: &Report) {
    let colour = std::io::stderr().is_terminal();
    eprintln!("{}", report.render(colour).trim_end());
}

/// Starts logging to standard error from a thread of its own: whoever reads the log slowly, or not
/// at all, holds up no request, and what does not fit into the queue is dropped. What is queued is
/// written when the guard goes.
fn start_logging(format: LogFormat) -> WorkerGuard {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUED_LINES)
        .finish(std::io::stderr());
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Human => logs.with_target(false).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    guard
}

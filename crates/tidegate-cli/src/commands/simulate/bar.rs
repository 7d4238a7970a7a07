//! How far a long run is, for whoever watches.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::input::Progress;

/// A progress bar, if the input turns out to be long and somebody watches.
pub(super) struct Bar {
    progress: Progress,
    bar: Option<ProgressBar>,
    calls: u64,
    started: Option<Instant>,
}

impl Bar {
    /// How many calls pass between two looks at the clock.
    const STEP: u64 = 1 << 14;

    pub(super) fn new(progress: Progress, summary: bool) -> Self {
        // Where answers scroll by on the same terminal, they are the progress.
        let watched = io::stderr().is_terminal() && (summary || !io::stdout().is_terminal());
        let started = watched.then(Instant::now);
        Self {
            progress,
            bar: None,
            calls: 0,
            started,
        }
    }

    pub(super) fn tick(&mut self) {
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
        let rate = *calls as f64 / started.elapsed().as_secs_f64();
        bar.set_message(format!("{calls} calls, {:.2} million/s", rate / 1e6));
        bar.set_position(progress.read().min(progress.total()));
    }

    pub(super) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

//! Contenders measured in turn, round after round, so that all see the same machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use criterion::{BenchmarkId, Criterion};

/// What is measured: so many calls of something, and how long they took.
pub struct Contender<'a> {
    /// What it is called in the table.
    pub name: &'a str,
    /// Makes so many calls and says how long they took.
    pub calls: Box<dyn Fn(u64) -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    /// A contender by its calls.
    pub fn new(name: &'a str, calls: impl Fn(u64) -> Duration + 'a) -> Self {
        Self {
            name,
            calls: Box::new(calls),
        }
    }
}

/// Criterion, and how often it goes round.
pub struct Bench {
    criterion: Criterion,
    output: PathBuf,
    rounds: u32,
}

impl Bench {
    /// A bench that goes round so many times.
    pub fn new(rounds: u32) -> Self {
        let output = Path::new("target/criterion").to_owned();
        let criterion = Criterion::default()
            .output_directory(&output)
            .without_plots()
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(400));
        Self {
            criterion,
            output,
            rounds,
        }
    }

    /// How often it goes round.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The median nanoseconds of one call of each contender.
    pub fn medians(&mut self, work: &str, contenders: &[Contender<'_>]) -> Result<Vec<f64>> {
        let mut times = vec![Vec::new(); contenders.len()];
        for round in 0..self.rounds {
            for (place, contender) in contenders.iter().enumerate() {
                let name = format!("{work} {}", contender.name);
                let id = BenchmarkId::new(&name, round);
                self.criterion
                    .bench_with_input(id, contender, |bencher, contender| {
                        bencher.iter_custom(&contender.calls);
                    });
                times[place].push(self.estimate(&name, round)?);
            }
        }
        Ok(times.into_iter().map(median).collect())
    }

    /// The median of a measurement that criterion has written.
    fn estimate(&self, name: &str, round: u32) -> Result<f64> {
        let path = self
            .output
            .join(name)
            .join(round.to_string())
            .join("new/estimates.json");
        let text =
            std::fs::read(&path).with_context(|| format!("no result at {}", path.display()))?;
        let estimates: serde_json::Value = serde_json::from_slice(&text)?;
        estimates["median"]["point_estimate"]
            .as_f64()
            .context("criterion wrote no median")
    }
}

/// The middle one; the upper of two.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

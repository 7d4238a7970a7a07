//! Decisions in memory beside `governor` and `throttlecrab`, in one process.
//!
//! `cargo xtask bench [ROUNDS] [--large]`. Every piece of work is measured by criterion for each
//! subject in turn, and that several times over; the table shows medians over the rounds and the
//! ratio of each peer to tidegate. Compare ratios, not times: machines differ.

mod memory;
mod subjects;
mod table;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use criterion::{BenchmarkId, Criterion};
use subjects::{Subject, all};

/// One piece of work: so many keys, drawn uniformly, by so many threads.
struct Work {
    name: &'static str,
    keys: u64,
    threads: u64,
}

const WORKS: [Work; 6] = [
    Work {
        name: "one key, one thread",
        keys: 1,
        threads: 1,
    },
    Work {
        name: "one hot key, two threads",
        keys: 1,
        threads: 2,
    },
    Work {
        name: "1 k keys, one thread",
        keys: 1_000,
        threads: 1,
    },
    Work {
        name: "1 M keys, one thread",
        keys: 1_000_000,
        threads: 1,
    },
    Work {
        name: "1 M keys, two threads",
        keys: 1_000_000,
        threads: 2,
    },
    Work {
        name: "10 M keys, one thread",
        keys: 10_000_000,
        threads: 1,
    },
];

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = arguments
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(5);
    let large = arguments.iter().any(|argument| argument == "--large");
    let output = Path::new("target/criterion");
    let mut criterion = Criterion::default()
        .output_directory(output)
        .without_plots()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    let works: Vec<&Work> = WORKS
        .iter()
        .filter(|work| large || work.keys <= 1_000_000)
        .collect();
    let mut rows = Vec::new();
    for work in works {
        let subjects: Vec<(Box<dyn Subject>, f64, Duration)> = all(work)
            .into_iter()
            .map(|subject| fill(subject, work.keys))
            .collect();
        let mut times = vec![Vec::new(); subjects.len()];
        for round in 0..rounds {
            for (place, (subject, ..)) in subjects.iter().enumerate() {
                let name = format!("{} {}", work.name, subject.name());
                let id = BenchmarkId::new(&name, round);
                criterion.bench_with_input(id, work, |bencher, work| {
                    bencher.iter_custom(|calls| run(&**subject, work, calls));
                });
                times[place].push(estimate(output, &name, round)?);
            }
        }
        let row = subjects
            .iter()
            .zip(times)
            .map(|((subject, bytes, worst), mut times)| {
                times.sort_by(f64::total_cmp);
                table::Cell {
                    subject: subject.name(),
                    nanoseconds: times[times.len() / 2],
                    bytes_per_key: *bytes,
                    worst_fill: *worst,
                }
            });
        rows.push((work.name, row.collect::<Vec<_>>()));
    }
    table::print(&rows, rounds);
    Ok(())
}

/// Makes all keys known to a subject; returns what that cost in bytes per key, and the longest
/// single call.
fn fill(subject: Box<dyn Subject>, keys: u64) -> (Box<dyn Subject>, f64, Duration) {
    let before = memory::in_use();
    let mut worst = Duration::ZERO;
    for key in 0..keys {
        let start = Instant::now();
        subject.take(key);
        worst = worst.max(start.elapsed());
    }
    let bytes = memory::in_use().saturating_sub(before) as f64 / keys as f64;
    (subject, bytes, worst)
}

/// The time of `calls` decisions, shared out over the threads.
fn run(subject: &dyn Subject, work: &Work, calls: u64) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..work.threads {
            scope.spawn(move || draw(subject, work, thread, calls / work.threads));
        }
        draw(subject, work, 0, calls / work.threads);
    });
    start.elapsed()
}

/// Decides `calls` times over keys from a small random generator of the thread's own.
fn draw(subject: &dyn Subject, work: &Work, thread: u64, calls: u64) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(thread + 1);
    for _ in 0..calls.max(1) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::hint::black_box(subject.take(state % work.keys));
    }
}

/// The median of a measurement that criterion has written.
fn estimate(output: &Path, name: &str, round: usize) -> Result<f64> {
    let path = output
        .join(name)
        .join(round.to_string())
        .join("new/estimates.json");
    let text = std::fs::read(&path).with_context(|| format!("no result at {}", path.display()))?;
    let estimates: serde_json::Value = serde_json::from_slice(&text)?;
    estimates["median"]["point_estimate"]
        .as_f64()
        .context("criterion wrote no median")
}

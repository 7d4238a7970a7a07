//! Decisions over one key and over millions.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::keys::{Draw, Keys, Source};
use crate::measure::{Bench, Contender};
use crate::memory;
use crate::subjects::{Subject, all};
use crate::table::{self, Cell};

/// One piece of work: so many keys, drawn so, by so many threads.
pub struct Work {
    name: &'static str,
    pub keys: u64,
    draw: Draw,
    threads: u64,
}

const fn work(name: &'static str, keys: u64, draw: Draw, threads: u64) -> Work {
    Work {
        name,
        keys,
        draw,
        threads,
    }
}

const WORKS: [Work; 11] = [
    work("one key", 1, Draw::Uniform, 1),
    work("one hot key, two threads", 1, Draw::Uniform, 2),
    work("1 k keys", 1_000, Draw::Uniform, 1),
    work("1 k keys, two threads", 1_000, Draw::Uniform, 2),
    work("1 M keys", 1_000_000, Draw::Uniform, 1),
    work("1 M keys, two threads", 1_000_000, Draw::Uniform, 2),
    work("1 M keys, Zipf", 1_000_000, Draw::Zipf, 1),
    work("1 M keys, Zipf, two threads", 1_000_000, Draw::Zipf, 2),
    work("10 M keys", 10_000_000, Draw::Uniform, 1),
    work("10 M keys, two threads", 10_000_000, Draw::Uniform, 2),
    work("10 M keys, Zipf", 10_000_000, Draw::Zipf, 1),
];

/// Measures all pieces of work and prints a table; ten million keys only if asked for, since they
/// take some gigabytes.
pub fn run(bench: &mut Bench, large: bool) -> Result<()> {
    let mut rows = Vec::new();
    for work in WORKS.iter().filter(|work| large || work.keys <= 1_000_000) {
        let subjects: Vec<(Box<dyn Subject>, f64)> = all(work.keys)
            .into_iter()
            .map(|subject| fill(subject, work.keys))
            .collect();
        let source = Source::new(work.draw, work.keys, work.threads);
        let source = &source;
        let contenders: Vec<Contender<'_>> = subjects
            .iter()
            .map(|(subject, _)| {
                Contender::new(subject.name(), |calls| {
                    run_calls(&**subject, source, work.threads, calls)
                })
            })
            .collect();
        let times = bench.medians(work.name, &contenders)?;
        let cells = subjects.iter().zip(times).map(|((subject, bytes), time)| {
            let bytes = (work.keys > 1_000).then_some(*bytes);
            Cell::new(subject.name(), time, bytes)
        });
        rows.push((work.name, cells.collect::<Vec<_>>()));
    }
    table::print("ns per decision", &rows, bench.rounds());
    Ok(())
}

/// Makes all keys known to a subject; returns what that cost in bytes per key.
fn fill(subject: Box<dyn Subject>, keys: u64) -> (Box<dyn Subject>, f64) {
    let before = memory::in_use();
    for key in 0..keys {
        subject.take(key);
    }
    let bytes = memory::in_use().saturating_sub(before) as f64 / keys as f64;
    (subject, bytes)
}

/// The time of `calls` decisions, shared out over the threads.
fn run_calls(subject: &dyn Subject, source: &Source, threads: u64, calls: u64) -> Duration {
    let rows: Vec<Keys> = (0..threads).map(|thread| source.row(thread)).collect();
    let share = (calls / threads).max(1);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut rows = rows.into_iter();
        let own = rows.next();
        for row in rows {
            scope.spawn(move || decide(subject, row, share));
        }
        if let Some(own) = own {
            decide(subject, own, share);
        }
    });
    start.elapsed()
}

fn decide(subject: &dyn Subject, mut keys: Keys, calls: u64) {
    for _ in 0..calls {
        std::hint::black_box(subject.take(keys.next()));
    }
}

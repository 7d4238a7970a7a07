//! The library beside its peers, in one process.
//!
//! `cargo xtask bench library [ROUNDS] [--large] [--only PART…]`, and `cargo xtask bench shared [ROUNDS]`
//! for limits that a server keeps. Every piece of work is measured by
//! criterion for each contender in turn, and that several times over; the tables show medians over
//! the rounds and the ratio of each peer to tidegate. Compare ratios, not times: machines differ.

mod decisions;
mod expiry;
mod keys;
mod layer;
mod machine;
mod measure;
mod memory;
mod shared;
mod subjects;
mod table;
mod waiting;

use anyhow::{Result, bail};
use measure::Bench;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// The parts, in the order in which they run.
const PARTS: [&str; 5] = ["machine", "decisions", "expiry", "waiting", "layer"];

/// What needs a server, and runs only where it is asked for.
const SHARED: &str = "shared";

fn main() -> Result<()> {
    let (mut rounds, mut large, mut parts) = (5, false, Vec::new());
    for argument in std::env::args().skip(1) {
        if let Ok(number) = argument.parse() {
            rounds = number;
        } else if argument == "--large" {
            large = true;
        } else if argument == SHARED {
            parts.push(SHARED);
        } else if let Some(part) = PARTS.iter().find(|part| **part == argument) {
            parts.push(*part);
        } else {
            bail!(
                "no part is called `{argument}`: there are {}",
                PARTS.join(", ")
            );
        }
    }
    if rounds == 0 {
        bail!("at least one round is needed for a median");
    }
    if parts.contains(&SHARED) {
        return shared::run(rounds);
    }
    let mut bench = Bench::new(rounds);
    for part in PARTS {
        if !parts.is_empty() && !parts.contains(&part) {
            continue;
        }
        match part {
            "machine" => machine::run(&mut bench)?,
            "decisions" => decisions::run(&mut bench, large)?,
            "expiry" => expiry::run(rounds),
            "waiting" => waiting::run(&mut bench)?,
            _ => layer::run(&mut bench)?,
        }
    }
    Ok(())
}

//! The decision service beside its peers: each server on one core, the load on another.
//!
//! `cargo xtask bench service [ROUNDS] [--only PART]`. The load comes from `redis-benchmark` and `wrk`,
//! fifty connections each, so that no side's own client makes the difference. Every contender is
//! measured in turn, round after round; the tables show medians over the rounds. Compare ratios. The
//! processor time of a server per call is what a busy neighbour disturbs least.

mod bare;
mod load;
mod server;

use std::path::Path;

use anyhow::{Result, bail};

use load::{Load, Measured};
use server::Server;

/// Calls of one measurement at depth 1, and at depth 16.
const CALLS: [(u32, u64); 2] = [(1, 40_000), (16, 400_000)];

/// Limits that deny nobody, so that each call does its whole work.
const CONFIGURATION: &str = "
limits:
  hot: { algorithm: { token_bucket: { rate: 1000000000/s, capacity: 1000000000 } }, max_keys: 2000000 }
service: { resp: 127.0.0.1:0, http: 127.0.0.1:0, max_throttle_keys: 2000000 }
";

/// One contender at one piece of work.
struct Contender<'a> {
    name: &'a str,
    server: &'a Server,
    load: Load,
}

fn main() -> Result<()> {
    let (mut rounds, mut parts) = (5, Vec::new());
    let arguments = std::env::args().skip(1);
    for argument in arguments {
        match argument.as_str() {
            // This program is also one of the peers.
            "bare-hyper" => return bare::serve(),
            "resp" | "http" => parts.push(argument),
            other => match other.parse() {
                Ok(number) if number > 0 => rounds = number,
                _ => bail!("`{other}` is no part and no number of rounds: there are resp, http"),
            },
        }
    }
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let tidegate = Server::tidegate(CONFIGURATION)?;
    if wanted("resp") {
        resp(&tidegate, rounds)?;
    }
    if wanted("http") {
        http(&tidegate, rounds)?;
    }
    Ok(())
}

/// Redis clients: beside the server that people would otherwise ask, and a service of the kind.
fn resp(tidegate: &Server, rounds: usize) -> Result<()> {
    let valkey = Server::valkey()?;
    let throttlecrab = Server::throttlecrab()?;
    for (keys, key) in [("one key", "hot"), ("1 M keys", "key:__rand_int__")] {
        for (depth, calls) in CALLS {
            let contender = |name, server, command: &[&str]| Contender {
                name,
                server,
                load: Load::redis(command, depth, calls),
            };
            let numbers = ["1000000", "1000000", "1"];
            let throttle = ["CL.THROTTLE", key, numbers[0], numbers[1], numbers[2]];
            let crab = ["THROTTLE", key, numbers[0], numbers[1], numbers[2]];
            let mut contenders = vec![
                contender("tidegate TG.TAKE", tidegate, &["TG.TAKE", "hot", key]),
                contender("tidegate CL.THROTTLE", tidegate, &throttle),
                contender("valkey-server INCR", &valkey, &["INCR", key]),
                contender("valkey-server GET", &valkey, &["GET", key]),
            ];
            if let Some(throttlecrab) = &throttlecrab {
                contenders.push(contender("throttlecrab THROTTLE", throttlecrab, &crab));
            }
            table(
                &format!("RESP, {keys}, pipeline {depth}"),
                &contenders,
                rounds,
            )?;
        }
    }
    Ok(())
}

/// Programs that speak JSON: beside a server that reads the body and answers a constant.
fn http(tidegate: &Server, rounds: usize) -> Result<()> {
    let bare = Server::bare_hyper()?;
    let folder = Path::new("target");
    let load = |server: &Server| Load::wrk(folder, server.http);
    let contenders = [
        Contender {
            name: "tidegate /v1/take",
            server: tidegate,
            load: load(tidegate)?,
        },
        Contender {
            name: "bare hyper, a constant",
            server: &bare,
            load: load(&bare)?,
        },
    ];
    table("HTTP, one key", &contenders, rounds)
}

/// Measures contenders in turn and prints their medians; ratios are to the first.
fn table(work: &str, contenders: &[Contender<'_>], rounds: usize) -> Result<()> {
    let mut results: Vec<Vec<Measured>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (contender, results) in contenders.iter().zip(&mut results) {
            results.push(contender.load.run(contender.server)?);
        }
    }
    println!("\n{work}; medians of {rounds} interleaved rounds\n");
    println!(
        "| server | calls/s | of tidegate's | its processor time per call, us | of tidegate's | p50, ms | p99, ms |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut first: Option<(f64, f64)> = None;
    for (contender, results) in contenders.iter().zip(&results) {
        let median = |value: fn(&Measured) -> f64| {
            let mut values: Vec<f64> = results.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let rate = median(|measured| measured.rate);
        let cpu = median(|measured| measured.cpu_micros);
        let (ours, our_cpu) = *first.get_or_insert((rate, cpu));
        println!(
            "| {} | {rate:.0} | {:.2} | {cpu:.2} | {:.2} | {:.2} | {:.2} |",
            contender.name,
            rate / ours,
            cpu / our_cpu,
            median(|measured| measured.p50),
            median(|measured| measured.p99),
        );
    }
    Ok(())
}

//! Load from programs that know none of the servers.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::server::Server;

/// The core that the load has for itself.
const CORE: &str = "1";

/// Keys that random ones are picked among.
const KEYS: &str = "1000000";

/// What one measurement has come to.
pub struct Measured {
    /// Calls answered in a second.
    pub rate: f64,
    /// Processor time of the server per call, in microseconds.
    pub cpu_micros: f64,
    /// Milliseconds that half of the calls, or batches, took at most.
    pub p50: f64,
    /// The same for 99 of 100.
    pub p99: f64,
}

/// Fifty connections that call as fast as they are answered.
pub enum Load {
    /// `redis-benchmark` with a command.
    Redis {
        command: Vec<String>,
        depth: u32,
        calls: u64,
    },
    /// `wrk` with a script, and the address.
    Wrk(String, SocketAddr),
}

impl Load {
    pub fn redis(command: &[&str], depth: u32, calls: u64) -> Self {
        Self::Redis {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            depth,
            calls,
        }
    }

    /// Takes over HTTP; the script is written into a folder.
    pub fn wrk(folder: &Path, server: SocketAddr) -> Result<Self> {
        let script = folder.join("take.lua");
        let text = "wrk.method = 'POST'\nwrk.headers['content-type'] = 'application/json'\n\
                    wrk.body = '{\"limit\":\"hot\",\"key\":\"asha\"}'\n";
        std::fs::write(&script, text)?;
        Ok(Self::Wrk(script.display().to_string(), server))
    }

    pub fn run(&self, server: &Server) -> Result<Measured> {
        let before = server.cpu()?;
        let (mut measured, calls) = match self {
            Self::Redis {
                command,
                depth,
                calls,
            } => (redis(command, *depth, *calls, server.resp)?, *calls as f64),
            Self::Wrk(script, address) => wrk(script, *address)?,
        };
        let ticks = server.cpu()? - before;
        measured.cpu_micros = ticks as f64 * 10_000.0 / calls;
        Ok(measured)
    }
}

/// What a program on the core of the load says.
fn say(program: &str, arguments: &[&str], more: &[String]) -> Result<String> {
    let output = Command::new("taskset")
        .args(["--cpu-list", CORE, program])
        .args(arguments)
        .args(more)
        .output()
        .with_context(|| format!("cannot run {program}; `cargo xtask tools` installs it"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn redis(command: &[String], depth: u32, calls: u64, server: SocketAddr) -> Result<Measured> {
    let (port, depth, calls) = (
        server.port().to_string(),
        depth.to_string(),
        calls.to_string(),
    );
    let arguments = [
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-c",
        "50",
        "-P",
        &depth,
        "-n",
        &calls,
        "-r",
        KEYS,
        "--csv",
    ];
    let said = say("redis-benchmark", &arguments, command)?;
    // The name of the test, calls a second, and latencies: mean, least, p50, p95, p99, most.
    let line = said
        .lines()
        .last()
        .context("redis-benchmark said nothing")?;
    let numbers: Vec<f64> = line
        .split(',')
        .skip(1)
        .map(|field| field.trim_matches('"').parse())
        .collect::<Result<_, _>>()
        .with_context(|| format!("redis-benchmark said {line}"))?;
    let [rate, _, _, p50, _, p99, _] = numbers[..] else {
        bail!("redis-benchmark said {line}");
    };
    Ok(Measured {
        rate,
        cpu_micros: 0.0,
        p50,
        p99,
    })
}

/// The measurement, and how many calls it made.
fn wrk(script: &str, server: SocketAddr) -> Result<(Measured, f64)> {
    let url = format!("http://{server}/v1/take");
    let arguments = ["-t1", "-c50", "-d2s", "--latency", "-s", script, &url];
    let said = say("wrk", &arguments, &[])?;
    if said.contains("Non-2xx") {
        bail!("a call was not allowed: {said}");
    }
    let after = |name: &str| {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(name));
        line.map(str::trim)
            .with_context(|| format!("no {name} in {said}"))
    };
    let millis = |name: &str| -> Result<f64> {
        let text = after(name)?;
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number: f64 = text.trim_end_matches(unit).parse()?;
        Ok(match unit {
            "us" => number / 1_000.0,
            "ms" => number,
            _ => number * 1_000.0,
        })
    };
    let calls = said
        .lines()
        .find_map(|line| line.trim().split_once(" requests in"))
        .context("wrk counts no requests")?;
    let measured = Measured {
        rate: after("Requests/sec:")?.parse()?,
        cpu_micros: 0.0,
        p50: millis("50%")?,
        p99: millis("99%")?,
    };
    Ok((measured, calls.0.parse()?))
}

//! Development tasks.
//!
//! `cargo xtask test` runs everything on a machine that has only a Rust toolchain; what else it
//! needs it installs. `cargo xtask bench` measures tidegate beside its peers.

mod api;
mod features;
mod simulate_bench;
mod toolchain;
mod tools;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};

/// Development tasks of tidegate.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs all tests: units, properties, real threads, interleavings, documentation, processes,
    /// examples.
    Test,
    /// Installs what the tests need, without running them.
    Tools,
    /// Checks format, lints, documentation, dependencies and layers.
    Lint,
    /// Compares the public items of the library's crates with the checked-in lists.
    Api {
        /// Write the lists anew.
        #[arg(long)]
        bless: bool,
    },
    /// Measures tidegate beside its peers, in one run, as ratios.
    Bench {
        /// What to measure.
        #[arg(value_enum, default_value = "library")]
        suite: Suite,
        /// How many interleaved rounds.
        #[arg(default_value_t = 5)]
        rounds: u32,
        /// Also measure ten million keys, which takes some gigabytes.
        #[arg(long)]
        large: bool,
        /// Only these parts of the suite.
        #[arg(long, value_name = "PART")]
        only: Vec<String>,
    },
}

/// What can be measured.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Suite {
    /// Decisions in this process: beside governor, tower_governor, leaky-bucket and throttlecrab.
    Library,
    /// Limits that a server keeps: the client beside the server's own limit, batches of tokens,
    /// compare-and-swap, and what each algorithm costs the server.
    Shared,
    /// Lines of an access log replayed against a limit per client: beside awk, which counts them
    /// per client, and goaccess.
    Simulate,
    /// The decision service: beside valkey-server, throttlecrab-server and a bare hyper server.
    Service,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test => test(),
        Task::Tools => tools::need_everything(),
        Task::Lint => lint(),
        Task::Api { bless } => api::check(bless),
        Task::Bench {
            suite: Suite::Library,
            rounds,
            large,
            only,
        } => bench(rounds, large, only),
        Task::Bench {
            suite: Suite::Shared,
            rounds,
            ..
        } => bench_shared(rounds),
        Task::Bench {
            suite: Suite::Simulate,
            rounds,
            large,
            ..
        } => simulate_bench::run(rounds, large),
        Task::Bench {
            suite: Suite::Service,
            rounds,
            large: _,
            only,
        } => bench_service(rounds, only),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<()> {
    tools::need_everything()?;
    cargo(
        "everything",
        &["test", "--workspace", "--quiet", "--no-fail-fast"],
    )?;
    for (package, test) in [
        ("tidegate-store", "interleavings"),
        ("tidegate", "waiting_interleavings"),
    ] {
        cargo(
            test,
            &[
                "test",
                "--quiet",
                "-p",
                package,
                "--features",
                "shuttle",
                "--test",
                test,
            ],
        )?;
    }
    Ok(())
}

fn lint() -> Result<()> {
    cargo("format", &["fmt", "--all", "--check"])?;
    cargo(
        "lints",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "--deny",
            "warnings",
        ],
    )?;
    toolchain::check_rust_version()?;
    toolchain::check_no_std()?;
    features::check()?;
    api::check(false)?;
    // A warning in documentation is a broken link that a reader will follow.
    let mut doc = cargo_command(&["doc", "--workspace", "--no-deps", "--quiet"]);
    run("documentation", doc.env("RUSTDOCFLAGS", "--deny warnings"))?;
    let deny = tools::cargo_deny()?;
    // It reads the manifests of all platforms' dependencies, also of those that are not built here.
    cargo("manifests", &["fetch", "--locked", "--quiet"])?;
    let checks = [
        "--offline",
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ];
    run("dependencies", Command::new(deny).args(checks))
}

fn bench(rounds: u32, large: bool, only: Vec<String>) -> Result<()> {
    let rounds = rounds.to_string();
    let mut arguments = vec![
        "run",
        "--release",
        "--quiet",
        "-p",
        "tidegate-bench",
        "--",
        &rounds,
    ];
    if large {
        arguments.push("--large");
    }
    arguments.extend(only.iter().map(String::as_str));
    cargo("bench", &arguments)
}

fn bench_shared(rounds: u32) -> Result<()> {
    tools::need_everything()?;
    bench(rounds, false, vec!["shared".into()])?;
    let example = [
        "run",
        "--release",
        "--quiet",
        "-p",
        "tidegate-valkey",
        "--example",
        "server_cost",
    ];
    cargo("server cost", &example)
}

fn bench_service(rounds: u32, only: Vec<String>) -> Result<()> {
    tools::need_everything()?;
    tools::throttlecrab_server()?;
    let tidegate = ["build", "--release", "--quiet", "-p", "tidegate-cli"];
    cargo("the command", &tidegate)?;
    let rounds = rounds.to_string();
    let mut arguments = vec!["run", "--release", "--quiet", "-p", "tidegate-bench"];
    arguments.extend(["--bin", "service", "--", &rounds]);
    arguments.extend(only.iter().map(String::as_str));
    cargo("bench", &arguments)
}

fn cargo(what: &str, arguments: &[&str]) -> Result<()> {
    run(what, &mut cargo_command(arguments))
}

fn cargo_command(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments);
    command
}

/// What cargo knows of the workspace's own crates.
fn metadata() -> Result<serde_json::Value> {
    let output = cargo_command(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs a command to its end and says how long it took.
fn run(what: &str, command: &mut Command) -> Result<()> {
    println!("== {what}");
    let start = Instant::now();
    let status = command.status()?;
    println!("== {what}: {} s", start.elapsed().as_secs());
    if !status.success() {
        bail!("{what} failed: {status}");
    }
    Ok(())
}

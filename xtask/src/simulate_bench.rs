//! `cargo xtask bench simulate`: how fast logs are replayed, on one core, beside tools that people
//! count logs with.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, tools};

/// Lines of the usual log, and of the large one.
const LINES: (u64, u64) = (2_000_000, 10_000_000);

/// Clients that write them.
const CLIENTS: u64 = 100_000;

/// What one run took.
#[derive(Clone, Copy)]
struct Taken {
    time: Duration,
    /// The most memory at once, in KiB.
    memory: u64,
}

/// Runs all in turns and prints medians, and ratios to the first.
pub fn run(rounds: u32, large: bool) -> Result<()> {
    tools::need_everything()?;
    cargo(
        "build",
        &["build", "--release", "--quiet", "-p", "tidegate-cli"],
    )?;
    let folder = Path::new("target/bench-simulate");
    fs::create_dir_all(folder)?;
    let lines = if large { LINES.1 } else { LINES.0 };
    let log = folder.join(format!("{lines}.log"));
    if !log.exists() {
        write_log(&log, lines)?;
    }
    let limits = folder.join("limits.yaml");
    fs::write(
        &limits,
        "limits: { per-client: { algorithm: { token_bucket: { rate: 10/1m, capacity: 20 } }, key: [client_ip] } }\n",
    )?;
    let (log, limits) = (text(&log)?, text(&limits)?);
    let tidegate = |more: &[&str]| {
        let mut words = vec!["target/release/tidegate", "simulate", limits, log];
        words.extend(more);
        words.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let count = "{ asked[$1]++ } END { for (client in asked) keys++; print keys }";
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let subjects = [
        ("awk, counting per client", words(&["awk", count, log])),
        ("tidegate --summary", tidegate(&["--summary"])),
        (
            "tidegate --what-if, 4 numbers",
            tidegate(&["--what-if", "per-client.capacity=5,10,40"]),
        ),
        (
            "tidegate --suggest, 2 passes",
            tidegate(&["--suggest", "99.9%"]),
        ),
        (
            "goaccess",
            words(&[
                "goaccess",
                log,
                "--log-format=COMBINED",
                "--no-global-config",
                "-o",
                "json",
            ]),
        ),
    ];
    let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); subjects.len()];
    for _ in 0..rounds {
        for (subject, taken) in subjects.iter().zip(&mut taken) {
            taken.push(measure(&subject.1)?);
        }
    }
    println!("{lines} lines of {CLIENTS} clients, one core, medians of {rounds} rounds");
    println!(
        "{:<32} {:>9} {:>10} {:>7} {:>8}",
        "", "million/s", "s", "x awk", "MiB"
    );
    let mut awk = None;
    for ((name, _), mut taken) in subjects.iter().zip(taken) {
        taken.sort_by_key(|taken| taken.time);
        let Some(median) = taken.get(taken.len() / 2) else {
            continue;
        };
        let seconds = median.time.as_secs_f64();
        let awk = *awk.get_or_insert(seconds);
        println!(
            "{name:<32} {:>9.2} {seconds:>10.2} {:>7.2} {:>8}",
            lines as f64 / seconds / 1e6,
            seconds / awk,
            median.memory / 1_024
        );
    }
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the path of the log is no text")
}

/// Runs a command on one core and watches its memory.
fn measure(words: &[String]) -> Result<Taken> {
    let start = Instant::now();
    let mut child = Command::new("taskset")
        .args(["-c", "0"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run taskset, of the package util-linux")?;
    let mut memory = 0;
    let status = loop {
        memory = memory.max(peak(&child).unwrap_or(0));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        bail!("{} failed: {status}", words.join(" "));
    }
    Ok(Taken {
        time: start.elapsed(),
        memory,
    })
}

fn peak(child: &Child) -> Option<u64> {
    let path = PathBuf::from(format!("/proc/{}/status", child.id()));
    let status = fs::read_to_string(path).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Writes a log in the combined format: few clients call often and many rarely.
fn write_log(path: &Path, lines: u64) -> Result<()> {
    println!("== writing {}", path.display());
    let paths = [
        "/",
        "/index.html",
        "/images/logo.png",
        "/login",
        "/api/orders?page=2",
    ];
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as f64 / (1_u64 << 53) as f64
    };
    for line in 0..lines {
        let client = (draw().powi(3) * CLIENTS as f64) as u64;
        // A hundred a second.
        let second = line / 100;
        let (day, of_day) = (second / 86_400 % 28 + 1, second % 86_400);
        writeln!(
            out,
            "10.{}.{}.{} - - [{day:02}/May/2026:{:02}:{:02}:{:02} +0000] \"GET {} HTTP/1.1\" 200 {} \"-\" \
             \"Mozilla/5.0 (X11; Linux x86_64)\"",
            client >> 16,
            client >> 8 & 255,
            client & 255,
            of_day / 3_600,
            of_day / 60 % 60,
            of_day % 60,
            paths[(line % 5) as usize],
            line % 5_000
        )?;
    }
    Ok(out.flush()?)
}

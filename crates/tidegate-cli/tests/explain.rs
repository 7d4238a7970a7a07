//! `tidegate explain` as a process.

use std::path::Path;
use std::process::{Command, Output};

const LIMITS: &str = "\
limits:
  otp-bucket: { algorithm: { token_bucket: { rate: 1/200s, capacity: 3, refill: interval } }, key: [form.phone] }
  otp-log: { algorithm: { sliding_log: { limit: 3/10m } }, key: [form.phone], store: shared }
  stage: { algorithm: { token_bucket: { rate: 100/s, capacity: 200 } } }
  paced: { algorithm: { leaky_bucket: { rate: 10/s, queue: 20, burst: 2, max_wait: 1s } }, key: [client_ip] }
  minute: { algorithm: { fixed_window: { limit: 100/1m } }, key: [client_ip, path.id] }
  use: { algorithm: { fixed_window: { limit: 100/1m, align: first_use } } }
  month: { algorithm: { quota: { limit: 1000, per: month, time_zone: America/New_York } } }
  strict: { algorithm: { sliding_window: { limit: 100/1m } }, mode: 10% }
  estimate: { algorithm: { sliding_window: { limit: 100/1m, mode: interpolated } } }
  work: { algorithm: { concurrency: { limit: 32, lease: 30s, max_hold: 1h } } }
  guesses: { algorithm: { lockout: { failures: 5/15m, ban: 15m, factor: 2, long_cap: 50/30d } } }
  closed: { algorithm: { gcra: { rate: 0/s, burst: 0 } } }
stores: { shared: { valkey: { url: \"redis://127.0.0.1:6379\" } } }
";

fn explain(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tidegate.yaml"), LIMITS).unwrap();
    run(
        directory.path(),
        &[&["explain", "tidegate.yaml"], arguments].concat(),
    )
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn every_algorithm_is_explained() {
    let output = explain(&["--window", "1h"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    insta::assert_snapshot!(said);
}

#[test]
fn the_bucket_for_one_time_passwords_is_warned_about_and_the_log_is_not() {
    let output = explain(&[
        "--json",
        "--window",
        "10m",
        "--limit",
        "otp-bucket",
        "--limit",
        "otp-log",
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let limits: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let admits = |index: usize| {
        let all = limits[index]["admits"].as_array().unwrap();
        let found = all.iter().find(|one| one["window"] == "10m").unwrap();
        found["most"].as_u64()
    };
    assert_eq!((admits(0), admits(1)), (Some(6), Some(3)));
    let warning = &limits[0]["warnings"][0];
    assert!(
        warning["message"]
            .as_str()
            .unwrap()
            .contains("admits 6 within 10m"),
        "{warning}"
    );
    assert!(
        warning["help"]
            .as_str()
            .unwrap()
            .contains("sliding_log: { limit: 3/10m }")
    );
    let said = limits[1]["warnings"].as_array().unwrap();
    assert!(
        said.iter()
            .all(|warning| !warning["message"].as_str().unwrap().contains("within"))
    );
    assert_eq!(limits[0]["longest_wait_us"], 200_000_000);
}

#[test]
fn what_is_not_there_is_an_error_and_what_is_no_length_wrong_usage() {
    let output = explain(&["--limit", "stag"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("there is no limit `stag`"),
        "{output:?}"
    );
    let output = explain(&["--window", "10"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("write `10s` for seconds"),
        "{output:?}"
    );
    assert_eq!(
        run(Path::new("."), &["explain", "none.yaml"]).status.code(),
        Some(1)
    );
    assert_eq!(run(Path::new("."), &["explain"]).status.code(), Some(2));
}

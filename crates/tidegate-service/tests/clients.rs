//! Real clients of three languages ask the service.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use redis::Value;
use support::{Served, serve, serve_all};

const SECRET: &str = "test";

fn guarded() -> Served {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    serve(&format!(", secret_sha256: {hash}"))
}

/// A folder that `cargo xtask tools` fills.
fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.tools")
        .join(name);
    assert!(
        path.exists(),
        "{name} is not installed; `cargo xtask tools` installs it"
    );
    path
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn redis_py_asks_in_both_versions_of_the_protocol() {
    let served = guarded();
    succeeds(
        Command::new("python3")
            .env("PYTHONPATH", tool("redis-py"))
            .arg(script("redis_py.py"))
            .args([&served.resp.port().to_string(), SECRET]),
    );
}

#[test]
fn iovalkey_asks_a_thousand_times_at_once() {
    let served = guarded();
    succeeds(
        Command::new("node")
            .arg(script("iovalkey.cjs"))
            .arg(tool("iovalkey"))
            .args([&served.resp.port().to_string(), SECRET]),
    );
}

#[test]
fn the_rust_client_asks_in_both_versions_of_the_protocol() {
    let served = guarded();
    for protocol in ["resp2", "resp3"] {
        let url = format!(
            "redis://default:{SECRET}@127.0.0.1:{}/0?protocol={protocol}",
            served.resp.port()
        );
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_connection().unwrap();
        let throttled: Vec<i64> = redis::cmd("CL.THROTTLE")
            .arg(("rust", protocol == "resp2").0)
            .arg(&[1, 1, 60])
            .query(&mut connection)
            .unwrap();
        let left = if protocol == "resp2" { 1 } else { 0 };
        assert_eq!(throttled[..4], [0, 2, left, -1]);
        let mut pipe = redis::pipe();
        for _ in 0..6 {
            pipe.cmd("TG.TAKE").arg("rate").arg(protocol);
        }
        let answers: Vec<Value> = pipe.query(&mut connection).unwrap();
        let passed =
            |answer: &Value| matches!(answer, Value::Array(parts) if parts[0] == Value::Int(1));
        assert_eq!(answers.iter().filter(|answer| passed(answer)).count(), 5);
    }
    let wrong = format!("redis://:wrong@127.0.0.1:{}", served.resp.port());
    assert!(
        redis::Client::open(wrong)
            .unwrap()
            .get_connection()
            .is_err()
    );
}

/// The document says what is true: whatever it allows is taken, whatever it does not is refused, and
/// every answer is one that it names.
#[test]
fn the_openapi_document_is_true() {
    let served = serve_all(
        "
limits:
  rate:   { algorithm: { token_bucket: { rate: 1000000/s, capacity: 1000000 } } }
  jobs:   { algorithm: { concurrency: { limit: 2000000000, lease: 60s } } }
  logins: { algorithm: { lockout: { failures: 100000/1h, ban: 1h } } }
service: { http: 127.0.0.1:0, resp: 127.0.0.1:0 }
",
    );
    let address = served.service.http_address().unwrap();
    let folder = tempfile::tempdir().unwrap();
    succeeds(
        Command::new("python3")
            .env("PYTHONPATH", tool("schemathesis"))
            .current_dir(folder.path())
            .args([
                "-c",
                "from schemathesis.cli import schemathesis; schemathesis()",
            ])
            .args(["run", &format!("http://{address}/v1/openapi.json")])
            .args([
                "--phases",
                "coverage,fuzzing",
                "--max-examples",
                "30",
                "--no-color",
            ]),
    );
}

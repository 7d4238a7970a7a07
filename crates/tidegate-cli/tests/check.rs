//! `tidegate check` and `tidegate schema` as processes: output, exit codes, standard input.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn tidegate(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

/// Runs the command in a directory that holds `tidegate.yaml` with this text.
fn check(document: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tidegate.yaml"), document).unwrap();
    tidegate(
        directory.path(),
        &[&["check", "tidegate.yaml"], arguments].concat(),
    )
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const RIGHT: &str = "limits: { a: { algorithm: { sliding_log: { limit: 1/s } } } }
gateway: { listen: 127.0.0.1:8080, routes: [ { match: GET /, limits: [a], mock: {} } ] }
";

#[test]
fn a_right_file_is_said_to_be_fine() {
    let output = check(RIGHT, &["--deny-warnings"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        text(&output.stdout),
        "tidegate.yaml: 1 limit, 1 route, fine\n"
    );
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn stores_are_asked_where_that_is_wanted_and_a_silent_one_is_named() {
    let document = |url: &str| {
        format!(
            "stores: {{ shared: {{ valkey: {{ url: \"{url}\" }} }} }}
limits: {{ a: {{ algorithm: {{ sliding_log: {{ limit: 1/s }} }}, store: shared }} }}
"
        )
    };
    let server = tidegate_testkit::Server::start(tidegate_testkit::Flavor::Valkey9);
    let output = check(&document(&server.url()), &["--connect"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Nobody listens there.
    let silent = document("redis://127.0.0.1:1");
    assert_eq!(check(&silent, &[]).status.code(), Some(0));
    let output = check(&silent, &["--connect"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("store `shared`: cannot reach 127.0.0.1:1"),
        "{said}"
    );
    let output = check(&silent, &["--connect", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&answer["ok"], answer["stores"].as_array().unwrap().len()),
        (&false.into(), 1)
    );
}

#[test]
fn certificates_that_are_not_there_are_shown_where_the_file_names_them() {
    let output = check(
        "gateway:
  listen: 127.0.0.1:0
  tls: { certificate: none.pem, key: none.key }
  routes: [ { match: GET /, mock: {} } ]
",
        &[],
    );
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(
        told.contains("cannot read none.pem: No such file"),
        "{told}"
    );
    assert!(told.contains("tidegate.yaml:3:23"), "{told}");
    assert!(told.contains("give the path of a PEM file"), "{told}");
}

#[test]
fn json_has_the_place_and_the_remedy_of_each_problem() {
    let output = check(
        "limits:\n  a: { algorithm: { gcra: { rate: 5, burst: 1 } } }\n",
        &["--json"],
    );
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        answer,
        serde_json::json!({
            "ok": false,
            "errors": 1,
            "warnings": 0,
            "problems": [{
                "severity": "error",
                "code": null,
                "message": "`5` is no rate",
                "file": "tidegate.yaml",
                "line": 2,
                "column": 35,
                "help": ["write a count per period, such as 5/s or 5/10m"],
            }],
        })
    );
    let output = check(RIGHT, &["--json"]);
    assert_eq!(output.status.code(), Some(0));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], true);
}

#[test]
fn standard_input_is_read_where_the_file_is_a_hyphen() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"limits: { a: 5 }\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("standard input:1:"),
        "{output:?}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_a_wrong_option_wrong_usage() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| tidegate(directory.path(), arguments);
    let output = run(&["check", "none.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).starts_with("error: cannot read none.yaml: "),
        "{output:?}"
    );
    std::fs::write(directory.path().join("binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(run(&["check", "binary.yaml"]).status.code(), Some(1));
    assert_eq!(run(&["check", "."]).status.code(), Some(1));
    assert_eq!(run(&["check"]).status.code(), Some(2));
    assert_eq!(run(&["check", "a", "--strict"]).status.code(), Some(2));
}

#[test]
fn the_schema_is_json_and_knows_every_section_and_algorithm() {
    let output = tidegate(Path::new("."), &["schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for section in [
        "stores", "identity", "limits", "plans", "api_keys", "gateway", "service", "admin",
    ] {
        let description = &schema["properties"][section]["description"];
        assert!(description.is_string(), "{section} has no description");
    }
    let all = text(&output.stdout);
    for algorithm in [
        "token_bucket",
        "gcra",
        "leaky_bucket",
        "fixed_window",
        "quota",
        "sliding_log",
        "sliding_window",
        "concurrency",
        "lockout",
    ] {
        assert!(
            all.contains(&format!("\"{algorithm}\"")),
            "{algorithm} is missing"
        );
    }
    assert_eq!(schema["additionalProperties"], false);
}

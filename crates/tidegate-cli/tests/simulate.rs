//! `tidegate simulate` as a user runs it.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What a run left behind.
struct Run {
    out: String,
    err: String,
    code: i32,
}

impl Run {
    /// The lines of standard output as JSON.
    fn json(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("simulate").args(arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finish(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    Run {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap(),
    }
}

fn simulate(arguments: &[&str]) -> Run {
    finish(&mut command(arguments))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Files of one test, named by what they hold.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

const LOGIN: &str =
    "limits:\n  login: { algorithm: { token_bucket: { rate: 1/2s, capacity: 5 } } }\n";

const LOG_LIMIT: &str =
    "limits:\n  per-client: { algorithm: { sliding_log: { limit: 2/2s } }, key: [client_ip] }\n";

fn log_line(client: &str, time: &str) -> String {
    format!("{client} - - [{time}] \"GET / HTTP/1.1\" 200 2 \"-\" \"curl/8\"\n")
}

#[test]
fn login_attempts_print_as_a_page_of_statuses_to_the_byte() {
    let example = repository().join("examples/otp/login-attempts.timeline");
    let run = simulate(&[example.to_str().unwrap(), "--format", "http"]);
    assert_eq!(
        run.out,
        fs::read_to_string(fixture("login-attempts.http.txt")).unwrap()
    );
    assert_eq!((run.err.as_str(), run.code), ("", 0));
}

#[test]
fn the_output_of_a_timeline_is_a_timeline_with_the_same_output() {
    let files = Files::new();
    let example = repository().join("examples/otp/login-attempts.timeline");
    let first = simulate(&[example.to_str().unwrap()]);
    let second = simulate(&[&files.write("again.timeline", &first.out)]);
    assert_eq!(first.out, second.out);
    assert_eq!((second.err.as_str(), second.code), ("", 0));
    assert_eq!(
        first
            .out
            .lines()
            .filter(|line| line.contains("take"))
            .count(),
        11
    );
}

#[test]
fn an_answer_other_than_expected_is_shown_with_both_and_ends_with_1() {
    let files = Files::new();
    let wrong = files.write(
        "wrong.timeline",
        "limit login: token_bucket rate 1/2s capacity 1\n0ms asha take 1 allow remaining 1\n1ms asha take 1 deny retry after 2s\n",
    );
    let run = simulate(&[&wrong]);
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("expected remaining 1, got remaining 0"),
        "{}",
        run.err
    );
    assert!(run.err.contains("wrong.timeline:2:23"), "{}", run.err);
    assert!(
        run.err
            .contains("expected retry after 2s, got retry after 1999ms"),
        "{}",
        run.err
    );
    assert!(
        run.err.contains("2 answers are not as expected"),
        "{}",
        run.err
    );
}

#[test]
fn a_faulty_timeline_names_file_line_and_column_with_a_caret_and_a_remedy() {
    let files = Files::new();
    let path = files.write(
        "faulty.timeline",
        "limit login: token_bucket rate 1/2s capacity 1\n0ms asha take 1 allow\n500 asha take 1\n",
    );
    let run = simulate(&[&path]);
    assert_eq!(run.code, 1);
    // What came before is not lost.
    assert!(run.out.contains("allow  remaining 0"), "{}", run.out);
    assert!(run.err.contains("faulty.timeline:3:1\n"), "{}", run.err);
    assert!(
        run.err.contains("3 | 500 asha take 1\n  | ^^^\n"),
        "{}",
        run.err
    );
    assert!(run.err.contains("help: write 500ms"), "{}", run.err);
}

#[test]
fn each_call_as_json_has_one_answer_as_json() {
    let files = Files::new();
    let config = files.write(
        "limits.yaml",
        "limits:
  login: { algorithm: { token_bucket: { rate: 1/2s, capacity: 5, refill: interval } } }
  per-user: { algorithm: { sliding_log: { limit: 1/1m } } }
  stage: { algorithm: { fixed_window: { limit: 10/1m } } }
  jobs: { algorithm: { concurrency: { limit: 1, lease: 30s } } }
  guess: { algorithm: { lockout: { failures: 1/1m, ban: 5m } } }
  closed: { algorithm: { fixed_window: { limit: 0/1m } } }
",
    );
    let calls = files.write(
        "calls.jsonl",
        r#"{"at_ms": 0, "limit": "login", "key": "asha", "cost": 5}
{"at_us": 1500, "limit": "login", "key": "asha", "cost": 3, "op": "peek"}
{"at_ms": 2, "limits": {"per-user": "asha", "stage": "GET /vips"}, "cost": 1}
{"at_ms": 3, "limits": {"per-user": "asha", "stage": "GET /vips"}}
{"at_ms": 3, "op": "acquire", "limit": "jobs", "key": "k", "permit": "p1"}
{"at_ms": 4, "op": "acquire", "limit": "jobs", "key": "k", "permit": "p2"}
{"at_ms": 5, "op": "renew", "limit": "jobs", "key": "k", "permit": "p1"}
{"at_ms": 5, "op": "renew", "limit": "jobs", "key": "k", "permit": "p2"}
{"at_ms": 6, "op": "release", "limit": "jobs", "key": "k", "permit": "p1"}
{"at_ms": 6, "op": "release", "limit": "jobs", "key": "k", "permit": "p1"}
{"at_ms": 7, "op": "refund", "limit": "login", "key": "asha", "cost": 2}
{"at_ms": 8, "op": "attempt", "limit": "guess", "key": "asha"}
{"at_ms": 8, "op": "attempt", "limit": "guess", "key": "asha"}
{"at_ms": 8, "op": "success", "limit": "guess", "key": "ravi"}
{"at_ms": 9, "op": "set_policy", "limit": "login", "algorithm": {"token_bucket": {"rate": "2/s", "capacity": 10}}}
{"at_ms": 9, "limit": "closed", "key": "x"}
"#,
    );
    let run = simulate(&[&config, &calls, "--json"]);
    assert_eq!((run.err.as_str(), run.code), ("", 0));
    let decided = |at: u64,
                   key: &str,
                   limit: &str,
                   decision: &str,
                   remaining: u32,
                   retry: Value,
                   reset: Value| {
        json!({
            "at_us": at, "key": key, "limit": limit, "decision": decision, "remaining": remaining,
            "retry_after_us": retry, "reset_after_us": reset, "delay_us": 0,
            "lease": null, "fencing_token": null,
        })
    };
    let mut leased = decided(3_000, "k", "jobs", "allow", 0, json!(0), json!(30_000_000));
    leased["lease"] = json!("p1");
    let answers = run.json();
    leased["fencing_token"] = answers[4]["fencing_token"].clone();
    assert!(
        answers[4]["fencing_token"]
            .as_u64()
            .is_some_and(|token| token >= 3_000)
    );
    let expected = [
        decided(0, "asha", "login", "allow", 0, json!(0), json!(10_000_000)),
        decided(
            1_500,
            "asha",
            "login",
            "deny",
            0,
            json!(5_998_500),
            json!(9_998_500),
        ),
        decided(
            2_000,
            "asha",
            "per-user",
            "allow",
            0,
            json!(0),
            json!(60_000_000),
        ),
        decided(
            3_000,
            "asha",
            "per-user",
            "deny",
            0,
            json!(59_999_000),
            json!(59_999_000),
        ),
        leased,
        decided(
            4_000,
            "k",
            "jobs",
            "deny",
            0,
            json!(29_999_000),
            json!(29_999_000),
        ),
        json!({"at_us": 5_000, "key": "k", "limit": "jobs", "renewed": true}),
        json!({"at_us": 5_000, "key": "k", "limit": "jobs", "renewed": false}),
        json!({"at_us": 6_000, "key": "k", "limit": "jobs", "released": true}),
        json!({"at_us": 6_000, "key": "k", "limit": "jobs", "released": false}),
        json!({"at_us": 7_000, "key": "asha", "limit": "login", "refunded": 2}),
    ];
    for (answer, expected) in answers.iter().zip(&expected) {
        assert_eq!(answer, expected);
    }
    assert_eq!(answers[11]["decision"], "allow");
    assert_eq!(answers[12]["decision"], "deny");
    assert_eq!(
        answers[13],
        json!({"at_us": 8_000, "key": "ravi", "limit": "guess", "done": true})
    );
    assert_eq!(
        answers[14],
        json!({"at_us": 9_000, "limit": "login", "done": true})
    );
    assert_eq!(
        answers[15],
        decided(9_000, "x", "closed", "deny", 0, Value::Null, json!(0))
    );
    assert_eq!(answers.len(), 16);
}

#[test]
fn a_real_log_is_counted_per_client_as_a_plain_count_does() {
    let files = Files::new();
    let config = files.write(
        "limits.yaml",
        "limits:\n  per-client: { algorithm: { sliding_log: { limit: 20/1m } }, key: [client_ip] }\n",
    );
    let log = fixture("nasa-1995-08-01.clf.log.gz");
    let run = simulate(&[&config, log.to_str().unwrap(), "--summary", "--json"]);
    assert_eq!((run.err.as_str(), run.code), ("", 0));

    // The plain count: who passed in the minute that ends now, the moment a minute ago left out.
    let mut text = String::new();
    GzDecoder::new(fs::File::open(&log).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let mut passed: HashMap<&str, Vec<u64>> = HashMap::new();
    let mut counts: HashMap<&str, [u64; 5]> = HashMap::new();
    let mut minutes: HashMap<(&str, u64), u64> = HashMap::new();
    for line in text.lines() {
        let client = line.split(' ').next().unwrap();
        let clock = line.split("01/Aug/1995:").nth(1).unwrap();
        let number = |from: usize| clock[from..from + 2].parse::<u64>().unwrap();
        let now = number(0) * 3_600 + number(3) * 60 + number(6);
        let times = passed.entry(client).or_default();
        let recent = times.iter().filter(|time| **time + 60 > now).count();
        let [asked, allowed, denied, streak, longest] = counts.entry(client).or_default();
        *asked += 1;
        if recent < 20 {
            times.push(now);
            *allowed += 1;
            *streak = 0;
        } else {
            *denied += 1;
            *streak += 1;
            *longest = (*longest).max(*streak);
        }
        *minutes.entry((client, now / 60)).or_default() += 1;
    }

    let lines = run.json();
    let keys: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "key").collect();
    assert_eq!(keys.len(), counts.len());
    for line in &keys {
        let client = line["key"].as_str().unwrap();
        let [asked, allowed, denied, _, longest] = counts[client];
        let peak = minutes
            .iter()
            .filter(|((of, _), _)| *of == client)
            .map(|(_, n)| n)
            .max();
        assert_eq!(line["asked"], asked, "{client}");
        assert_eq!(line["allowed"], allowed, "{client}");
        assert_eq!(line["denied"], denied, "{client}");
        assert_eq!(line["longest_denial_streak"], longest, "{client}");
        assert_eq!(line["peak"], *peak.unwrap(), "{client}");
    }
    let total = lines.iter().find(|line| line["kind"] == "limit").unwrap();
    assert_eq!(total["asked"], 19_316);
    assert_eq!(
        total["denied"],
        counts.values().map(|count| count[2]).sum::<u64>()
    );
    assert!(total["denied"].as_u64().unwrap() > 0);
    assert_eq!(total["most_denied"][0], keys[0]["key"]);
    assert!(keys.is_sorted_by_key(|line| std::cmp::Reverse(line["denied"].as_u64())));
}

#[test]
fn a_summary_is_an_aligned_table_with_the_most_denied_first() {
    let files = Files::new();
    let timeline = files.write(
        "calls.timeline",
        "limit login: fixed_window limit 1/1s\n0ms asha take\n0ms asha take\n0ms asha take\n1ms ravi take\n",
    );
    let run = simulate(&[&timeline, "--summary"]);
    assert_eq!(
        run.out,
        "limit  asked  allowed  denied  denied %  keys  streak  peak  in\n\
         login      4        2       2      50.0     2       2     3  1s\n\
         \n\
         login: fixed_window limit 1/s\n\
         most denied  asked  allowed  denied  streak  peak\n\
         asha             3        1       2       2     3\n"
    );
}

#[test]
fn the_zone_of_the_machine_changes_nothing() {
    let files = Files::new();
    let config = files.write(
        "limits.yaml",
        "limits:\n  one: { algorithm: { sliding_log: { limit: 1/1s } }, key: [client_ip] }\n",
    );
    let log = files.write(
        "access.log",
        log_line("192.0.2.1", "01/May/2026:10:00:00 +0200")
            + &log_line("192.0.2.1", "01/May/2026:08:00:00 +0000"),
    );
    for zone in ["UTC", "Asia/Tokyo"] {
        let run = finish(command(&[&config, &log, "--json"]).env("TZ", zone));
        let decisions: Vec<Value> = run
            .json()
            .iter()
            .map(|line| line["decision"].clone())
            .collect();
        assert_eq!(decisions, ["allow", "deny"], "{zone}");
        assert_eq!(run.json()[0]["at_us"], 1_777_622_400_000_000_u64);
    }
}

#[test]
fn late_lines_are_judged_in_the_order_of_time_and_counted() {
    let files = Files::new();
    let config = files.write("limits.yaml", LOG_LIMIT);
    let at = |second: u32| log_line("192.0.2.1", &format!("01/May/2026:08:00:{second:02} +0000"));
    let late = files.write("late.log", [10, 11, 9, 12].map(at).concat());
    let sorted = files.write("sorted.log", [9, 10, 11, 12].map(at).concat());
    let run = simulate(&[&config, &late, "--json"]);
    assert_eq!(run.out, simulate(&[&config, &sorted, "--json"]).out);
    assert!(
        run.json().iter().all(|line| line["decision"] == "allow"),
        "{}",
        run.out
    );
    assert_eq!(
        run.err,
        "note: 1 line stood after a later one and was sorted\n"
    );
    assert_eq!(run.code, 0);

    let run = simulate(&[&config, &late, "--json", "--horizon", "1s"]);
    assert!(
        run.err.contains("1 line came more than 1s late"),
        "{}",
        run.err
    );
    assert!(run.err.contains("--horizon 2s sorts them"), "{}", run.err);
}

#[test]
fn several_logs_are_one_stream_in_whatever_order_they_are_named() {
    let files = Files::new();
    let config = files.write("limits.yaml", LOG_LIMIT);
    let at = |second: u32| log_line("192.0.2.1", &format!("01/May/2026:08:00:{second:02} +0000"));
    let even = files.write("even.log", [10, 12, 14, 16].map(at).concat());
    let odd = files.write("odd.log", [11, 13, 15, 17].map(at).concat());
    let all = files.write("all.log", (10..18).map(at).collect::<String>());
    let expected = simulate(&[&config, &all]).out;
    assert_eq!(simulate(&[&config, &even, &odd]).out, expected);
    assert_eq!(simulate(&[&config, &odd, &even]).out, expected);
}

#[test]
fn unreadable_lines_are_counted_and_shown_and_strict_stops_at_the_first() {
    let files = Files::new();
    let config = files.write("limits.yaml", LOG_LIMIT);
    let good = log_line("192.0.2.1", "01/May/2026:08:00:00 +0000");
    let bad = "192.0.2.1 - - [01/May/2026:08:00:61 +0000] \"GET / HTTP/1.1\" 200 2\n";
    let log = files.write(
        "access.log",
        good.clone() + &bad.repeat(12) + "\x1b[2J\u{7}\n" + &good,
    );
    let run = simulate(&[&config, &log, "--summary", "--json"]);
    assert_eq!(run.code, 0);
    assert_eq!(run.json()[0]["asked"], 2);
    assert!(
        run.err
            .contains("13 of 15 lines could not be read; the first 10:"),
        "{}",
        run.err
    );
    assert_eq!(run.err.matches("there is no such time of day").count(), 10);
    assert!(run.err.contains("access.log:2:15"), "{}", run.err);
    assert!(
        !run.err.contains('\x1b'),
        "a log must not reach the terminal raw"
    );

    let run = simulate(&[&config, &log, "--summary", "--json", "--strict"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("access.log:2:15"), "{}", run.err);

    let nothing = files.write("nothing.jsonl", "{\"at_ms\": -1}\n");
    assert_eq!(simulate(&[&config, &nothing]).code, 1);
}

#[test]
fn a_slip_in_a_field_does_not_stay_unseen() {
    let files = Files::new();
    let config = files.write("limits.yaml", LOGIN);
    let calls = files.write(
        "calls.jsonl",
        "{\"at_ms\": 0, \"key\": \"asha\", \"costs\": 5}\n",
    );
    let run = simulate(&[&config, &calls]);
    assert_eq!(run.code, 0);
    assert!(
        run.err.contains("the field costs is not known"),
        "{}",
        run.err
    );
    assert!(run.err.contains("is cost meant?"), "{}", run.err);
}

#[test]
fn standard_input_and_compressed_files_are_read_like_plain_ones() {
    let files = Files::new();
    let config = files.write("limits.yaml", LOGIN);
    let calls =
        "{\"at_ms\": 0, \"key\": \"asha\", \"cost\": 5}\n{\"at_ms\": 1, \"key\": \"asha\"}\n";
    let plain = simulate(&[&config, &files.write("calls", calls), "--json"]);
    assert_eq!(plain.json().len(), 2);

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(calls.as_bytes()).unwrap();
    let gzip = files.write("calls.gz", encoder.finish().unwrap());
    assert_eq!(simulate(&[&config, &gzip, "--json"]).out, plain.out);

    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstandard = ruzstd::encoding::compress_to_vec(calls.as_bytes(), level);
    let zstandard = files.write("calls.zst", zstandard);
    assert_eq!(simulate(&[&config, &zstandard, "--json"]).out, plain.out);

    let mut child = command(&[&config, "-", "--json"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(calls.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), plain.out);
}

#[test]
fn csv_and_json_with_request_fields_give_the_answers_of_a_log() {
    let files = Files::new();
    let config = files.write(
        "limits.yaml",
        "limits:
  per-user: { algorithm: { sliding_log: { limit: 1/1m } }, key: [query.user_id] }
  per-client: { algorithm: { sliding_log: { limit: 2/1m } }, key: [client_ip, header.user-agent] }
",
    );
    let target = [
        "/vips?user_id=7",
        "/vips?user_id=7",
        "/vips?user_id=8",
        "/vips?user_id=9",
    ];
    let log: String = (0..4)
        .map(|second| {
            format!(
                "192.0.2.1 - - [01/Jan/1970:00:00:0{second} +0000] \"GET {} HTTP/1.1\" 200 2 \"-\" \"curl/8\"\n",
                target[second]
            )
        })
        .collect();
    let jsonl: String = (0..4)
        .map(|second| {
            json!({
                "at_ms": second * 1_000, "method": "GET", "path": target[second],
                "client_ip": "192.0.2.1", "status": 200, "headers": {"User-Agent": "curl/8"},
            })
            .to_string()
                + "\n"
        })
        .collect();
    let mut csv = "at_ms,method,path,client_ip,status,header.user-agent\n".to_owned();
    for (second, path) in target.iter().enumerate() {
        csv += &format!("{},GET,{path},192.0.2.1,200,curl/8\n", second * 1_000);
    }
    let expected = simulate(&[&config, &files.write("access.log", log), "--json"]);
    let decisions: Vec<(Value, Value)> = expected
        .json()
        .iter()
        .map(|line| (line["decision"].clone(), line["limit"].clone()))
        .collect();
    // The second call is refused by the user's limit and does not count for the client's.
    assert_eq!(
        decisions,
        [
            ("allow", "per-user"),
            ("deny", "per-user"),
            ("allow", "per-user"),
            ("deny", "per-client")
        ]
        .map(|(decision, limit)| (json!(decision), json!(limit)))
    );
    assert_eq!(expected.json()[3]["key"], json!(["192.0.2.1", "curl/8"]));
    for (name, trace) in [("calls.jsonl", jsonl), ("calls.csv", csv)] {
        let run = simulate(&[&config, &files.write(name, trace), "--json"]);
        assert_eq!(run.out, expected.out, "{name}");
        assert_eq!(run.err, "");
    }
}

#[test]
fn a_limit_that_a_log_cannot_feed_is_an_error_that_names_what_is_missing() {
    let files = Files::new();
    let log = files.write(
        "access.log",
        log_line("192.0.2.1", "01/May/2026:08:00:00 +0000"),
    );
    for (algorithm, key, missing) in [
        (
            "concurrency: { limit: 5, lease: 30s }",
            "client_ip",
            "how long a request took",
        ),
        (
            "lockout: { failures: 5/15m, ban: 15m }",
            "client_ip",
            "whether a guess was right",
        ),
        (
            "sliding_log: { limit: 5/1m }",
            "cookie.session",
            "cookie.session",
        ),
        (
            "sliding_log: { limit: 5/1m }",
            "header.x-tenant",
            "header.x-tenant",
        ),
    ] {
        let config = files.write(
            "limits.yaml",
            format!("limits:\n  it: {{ algorithm: {{ {algorithm} }}, key: [{key}] }}\n"),
        );
        let run = simulate(&[&config, &log]);
        assert_eq!(run.code, 1);
        assert!(
            run.err.contains("limit it") && run.err.contains(missing),
            "{}",
            run.err
        );
    }
}

#[test]
fn wrong_usage_ends_with_2_and_wrong_input_with_1() {
    let files = Files::new();
    let config = files.write("limits.yaml", LOGIN);
    let run = simulate(&[&config]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("nothing to replay"), "{}", run.err);
    assert_eq!(simulate(&[&config, "x", "--horizon", "soon"]).code, 2);

    let run = simulate(&[&config, "no-such-file"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("cannot read no-such-file"), "{}", run.err);
    let run = simulate(&[&config, &files.write("trace", "what\nis\nthis\n")]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("is no trace"), "{}", run.err);
    let run = simulate(&[
        &files.write("bad.yaml", "limits:\n  a: { algorythm: {} }\n"),
        "x",
    ]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("bad.yaml:2"), "{}", run.err);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let log = fixture("nasa-1995-08-01.clf.log.gz");
    let files = Files::new();
    let config = files.write("limits.yaml", LOG_LIMIT);
    let mut child = command(&[&config, log.to_str().unwrap()]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn with_a_gateway_a_line_meets_the_limits_of_its_route() {
    let files = Files::new();
    let config = files.write(
        "gateway.yaml",
        "limits:
  stage: { algorithm: { fixed_window: { limit: 3/1m } }, key: [method_and_route] }
  per-user: { algorithm: { sliding_log: { limit: 1/1m } }, key: [query.user_id] }
gateway:
  listen: 127.0.0.1:0
  routes:
    - { match: GET /vips, limits: [stage, per-user], mock: { status: 200, body: hello } }
    - { match: \"ANY /orders/{id}\", limits: [stage], mock: { status: 200, body: hello } }
",
    );
    let requests = [
        ("GET /vips?user_id=7", Some(("allow", "per-user"))),
        ("GET //vips/?user%5Fid=7", Some(("deny", "per-user"))),
        ("GET /VIPS?user_id=7", None),
        ("POST /vips", None),
        ("DELETE /orders/1", Some(("allow", "stage"))),
        ("GET /x/../orders/%31", Some(("allow", "stage"))),
        ("GET /orders/2", Some(("allow", "stage"))),
        ("GET /orders/3", Some(("deny", "stage"))),
        ("HEAD /vips?user_id=8", Some(("allow", "per-user"))),
    ];
    let log: String = requests
        .iter()
        .map(|(request, _)| {
            format!("192.0.2.1 - - [01/May/2026:08:00:00 +0000] \"{request} HTTP/1.1\" 200 2\n")
        })
        .collect();
    let run = simulate(&[&config, &files.write("access.log", log), "--json"]);
    let expected: Vec<(&str, &str)> = requests.iter().filter_map(|(_, answer)| *answer).collect();
    let lines = run.json();
    let answers: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| {
            (
                line["decision"].as_str().unwrap(),
                line["limit"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(answers, expected);
    assert_eq!(lines[2]["key"], "ANY /orders/{id}");
    assert_eq!(
        run.err,
        "note: 2 requests met no limit: no route serves them, or their route has none\n"
    );
}

#[test]
fn the_quickstart_can_be_simulated() {
    let files = Files::new();
    let config = repository().join("examples/quickstart.yaml");
    let log: String = (0..120)
        .map(|_| {
            "192.0.2.1 - - [01/May/2026:08:00:00 +0000] \"GET /vips?user_id=7 HTTP/1.1\" 200 2\n"
        })
        .collect();
    let log = files.write("access.log", log);
    let run = simulate(&[config.to_str().unwrap(), &log, "--summary", "--json"]);
    assert_eq!((run.err.as_str(), run.code), ("", 0));
    let limits: Vec<Value> = run
        .json()
        .into_iter()
        .filter(|line| line["kind"] == "limit")
        .collect();
    assert_eq!(
        (&limits[0]["limit"], &limits[0]["allowed"]),
        (&json!("stage"), &json!(100))
    );
    assert_eq!(
        (&limits[0]["denied"], &limits[0]["denied_elsewhere"]),
        (&json!(0), &json!(20))
    );
    assert_eq!(
        (&limits[1]["limit"], &limits[1]["denied"]),
        (&json!("per-user"), &json!(20))
    );
}

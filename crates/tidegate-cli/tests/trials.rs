//! `tidegate simulate --what-if` and `--suggest`, and what logs tell beside client and time: held
//! against counts that are written here from nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

/// How many calls at these seconds are denied.
type Count<'a> = &'a dyn Fn(&[u64]) -> u64;

/// The same under a number.
type CountAt<'a> = &'a dyn Fn(&[u64], u64) -> u64;

struct Run {
    out: String,
    err: String,
    code: i32,
}

impl Run {
    fn json(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{}", self.err)))
            .collect()
    }
}

fn simulate(arguments: &[&str], input: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("simulate")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // Who does not ask for standard input does not read it.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Run {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap(),
    }
}

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

fn fixture() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("tests/fixtures/nasa-1995-08-01.clf.log.gz");
    path.to_str().unwrap().to_owned()
}

/// The seconds of each client's requests, read in the plainest way.
fn clients() -> BTreeMap<String, Vec<u64>> {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(fixture()).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let mut clients: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let client = line.split(' ').next().unwrap();
        let time = line.split(['[', ']']).nth(1).unwrap();
        let number = |from: usize, to: usize| time[from..to].parse::<u64>().unwrap();
        assert_eq!(&time[3..11], "Aug/1995");
        let seconds = number(0, 2) * 86_400 + number(12, 14) * 3_600;
        let seconds = seconds + number(15, 17) * 60 + number(18, 20);
        clients.entry(client.to_owned()).or_default().push(seconds);
    }
    for times in clients.values_mut() {
        times.sort_unstable();
    }
    clients
}

/// How many of a client's calls an exact log of `most` per minute denies.
fn denied_by_log(times: &[u64], most: usize) -> u64 {
    let mut passed: Vec<u64> = Vec::new();
    let mut denied = 0;
    for now in times {
        if passed.iter().filter(|at| **at + 60 > *now).count() < most {
            passed.push(*now);
        } else {
            denied += 1;
        }
    }
    denied
}

/// The same for a count that begins anew at every full minute.
fn denied_by_window(times: &[u64], most: u64) -> u64 {
    let mut passed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut denied = 0;
    for now in times {
        let count = passed.entry(now / 60).or_default();
        if *count < most {
            *count += 1;
        } else {
            denied += 1;
        }
    }
    denied
}

/// The same for a bucket that gets `rate` tokens a minute: in sixtieths of a token.
fn denied_by_bucket(times: &[u64], rate: u64, capacity: u64) -> u64 {
    let (mut level, mut last, mut denied) = (capacity * 60, times[0], 0);
    for now in times {
        level = (level + (now - last) * rate).min(capacity * 60);
        last = *now;
        if level >= 60 {
            level -= 60;
        } else {
            denied += 1;
        }
    }
    denied
}

const PER_CLIENT: &str =
    "limits:\n  per-client: { algorithm: { sliding_log: { limit: 20/1m } }, key: [client_ip] }\n";

#[test]
fn every_figure_of_a_what_if_is_that_of_a_plain_count() {
    let files = Files::new();
    let config = files.write("limits.yaml", PER_CLIENT);
    let run = simulate(
        &[
            &config,
            &fixture(),
            "--json",
            "--what-if",
            "per-client.limit=3/1m,10/1m",
            "--what-if",
            "per-client=fixed_window limit 7/1m,token_bucket rate 6/1m capacity 9",
        ],
        "",
    );
    assert_eq!((run.err.as_str(), run.code), ("", 0));
    let clients = clients();
    let expected: [(&str, Count<'_>); 5] = [
        ("as configured", &|times| denied_by_log(times, 20)),
        ("limit 3/1m", &|times| denied_by_log(times, 3)),
        ("limit 10/1m", &|times| denied_by_log(times, 10)),
        ("fixed_window limit 7/m", &|times| {
            denied_by_window(times, 7)
        }),
        ("token_bucket rate 6/m capacity 9", &|times| {
            denied_by_bucket(times, 6, 9)
        }),
    ];
    let lines = run.json();
    assert_eq!(lines.len(), expected.len());
    for (line, (label, count)) in lines.iter().zip(expected) {
        let denied: BTreeMap<&str, u64> = clients
            .iter()
            .map(|(client, times)| (client.as_str(), count(times)))
            .filter(|(_, denied)| *denied > 0)
            .collect();
        assert!(
            line["label"] == label || line["algorithm"] == label,
            "{label}: {line}"
        );
        assert_eq!(line["asked"], 19_316);
        assert_eq!(line["keys"], clients.len());
        assert_eq!(line["denied"], denied.values().sum::<u64>(), "{label}");
        assert_eq!(line["keys_denied"], denied.len(), "{label}");
        for most in line["most_denied"].as_array().unwrap() {
            let key = most["key"].as_str().unwrap();
            assert_eq!(most["denied"], denied[key], "{label}: {key}");
            assert_eq!(most["asked"], clients[key].len());
        }
        let worst = denied.values().max().copied();
        assert_eq!(line["most_denied"][0]["denied"].as_u64(), worst, "{label}");
    }
}

#[test]
fn the_suggested_number_is_the_least_that_spares_the_share_by_a_plain_search() {
    let files = Files::new();
    let clients = clients();
    let least = |share_of_ten_thousand: usize, denied: &dyn Fn(&[u64], u64) -> u64| {
        let wanted = (clients.len() * share_of_ten_thousand).div_ceil(10_000);
        (0..)
            .find(|number| {
                let spared = clients.values().filter(|times| denied(times, *number) == 0);
                spared.count() >= wanted
            })
            .unwrap()
    };
    let algorithms: [(&str, CountAt<'_>); 3] = [
        ("sliding_log: { limit: 20/1m }", &|times, n| {
            denied_by_log(times, usize::try_from(n).unwrap())
        }),
        ("fixed_window: { limit: 20/1m }", &denied_by_window),
        ("token_bucket: { rate: 6/1m, capacity: 9 }", &|times, n| {
            denied_by_bucket(times, 6, n)
        }),
    ];
    for (algorithm, denied) in algorithms {
        let config = files.write(
            "limits.yaml",
            format!(
                "limits: {{ per-client: {{ algorithm: {{ {algorithm} }}, key: [client_ip] }} }}"
            ),
        );
        for (text, share) in [
            ("50%", 5_000),
            ("99%", 9_900),
            ("99.9%", 9_990),
            ("100%", 10_000),
        ] {
            let run = simulate(&[&config, &fixture(), "--json", "--suggest", text], "");
            assert_eq!((run.err.as_str(), run.code), ("", 0), "{algorithm}");
            let line = &run.json()[0];
            assert_eq!(line["number"], least(share, denied), "{algorithm}, {text}");
            let wanted = (clients.len() * share).div_ceil(10_000) as u64;
            assert!(line["untouched"].as_u64().unwrap() >= wanted);
            assert!(line["untouched_by_one_less"].as_u64().unwrap() < wanted);
        }
    }
}

#[test]
fn a_suggestion_from_standard_input_is_that_from_a_file() {
    let files = Files::new();
    let config = files.write("limits.yaml", PER_CLIENT);
    let mut log = String::new();
    GzDecoder::new(fs::File::open(fixture()).unwrap())
        .read_to_string(&mut log)
        .unwrap();
    let from_file = simulate(&[&config, &fixture(), "--suggest", "99.9%"], "");
    let from_input = simulate(&[&config, "-", "--suggest", "99.9%"], &log);
    assert_eq!(from_input.out, from_file.out);
    assert!(
        from_file
            .out
            .contains("write algorithm: { sliding_log: { limit: 25/m } }"),
        "{}",
        from_file.out
    );
}

#[test]
fn what_names_no_limit_or_no_number_says_what_to_write() {
    let files = Files::new();
    let config = files.write("limits.yaml", PER_CLIENT);
    for (text, message) in [
        ("per-client", "write LIMIT.FIELD=VALUE"),
        ("per-clint.limit=1/1m", "is per-client meant?"),
        ("per-client.limits=1/1m", "limits"),
        ("per-client.limit=1", "1"),
        ("per-client=leaky_bucket rate", "rate has no value"),
        ("per-client.limit=1/1m,", "limit"),
    ] {
        let run = simulate(&[&config, &fixture(), "--what-if", text], "");
        assert_eq!(run.code, 1, "{text}");
        assert!(run.err.contains(message), "{text}: {}", run.err);
    }
    let run = simulate(&[&config, &fixture(), "--suggest", "0%"], "");
    assert_eq!(run.code, 2, "{}", run.err);
}

const IN_FLIGHT: &str = "limits: { in-flight: { algorithm: { concurrency: { limit: 1, lease: 30s } }, key: [client_ip] } }";

/// Requests as (start in ms, duration in ms, client), in the order in which they end.
const REQUESTS: [(u64, u64, &str); 6] = [
    // Both while the first is at work.
    (100, 200, "192.0.2.1"),
    (500, 100, "192.0.2.2"),
    // Longer than a lease, which is renewed meanwhile.
    (0, 90_000, "192.0.2.1"),
    // At the very moment at which the permit comes back.
    (90_000, 1_000, "192.0.2.1"),
    (90_500, 1_000, "192.0.2.1"),
    (92_000, 1_000, "192.0.2.1"),
];

fn denied(config: &str, log: &str) -> u64 {
    let run = simulate(&[config, "-", "--summary", "--json"], log);
    assert_eq!(run.code, 0, "{}", run.err);
    let lines = run.json();
    assert_eq!(lines[0]["asked"], 6, "{}", run.err);
    lines[0]["denied"].as_u64().unwrap()
}

fn second(millis: u64) -> String {
    format!("10:{:02}:{:02}", millis / 60_000, millis / 1_000 % 60)
}

#[test]
fn a_permit_comes_back_when_its_request_is_over_in_every_format() {
    let files = Files::new();
    let config = files.write("limits.yaml", IN_FLIGHT);
    let mut jsonl = String::new();
    let mut csv = "at_ms,client_ip,duration_ms\n".to_owned();
    let mut nginx = String::new();
    let mut balancer = String::new();
    let mut edge =
        "#Version: 1.0\n#Fields: date time c-ip cs-method cs-uri-stem sc-status time-taken\n"
            .to_owned();
    for (start, took, client) in REQUESTS {
        let end = start + took;
        let seconds = format!("{}.{:03}", took / 1_000, took % 1_000);
        jsonl +=
            &format!("{{\"at_ms\":{start},\"client_ip\":\"{client}\",\"duration_ms\":{took}}}\n");
        csv += &format!("{start},{client},{took}\n");
        nginx += &format!(
            "{client} - - [01/May/2026:{}.{:03} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"a\" rt={seconds}\n",
            second(end),
            end % 1_000
        );
        balancer += &format!(
            "http 2026-05-01T{}.{:03}000Z app/a {client}:4711 10.0.0.1:80 0.000 {seconds} 0.000 200 200 1 1 \"GET http://a:80/ HTTP/1.1\" \"a\" - - arn \"Root=1\" \"-\" \"-\" 0 2026-05-01T{}.{:03}000Z \"forward\" \"-\" \"-\"\n",
            second(end),
            end % 1_000,
            second(start),
            start % 1_000
        );
        edge += &format!(
            "2026-05-01\t{}.{:03}\t{client}\tGET\t/\t200\t{seconds}\n",
            second(end),
            end % 1_000
        );
    }
    for (format, log) in [
        ("jsonl", jsonl),
        ("csv", csv),
        ("nginx", nginx),
        ("balancer", balancer),
        ("edge", edge),
    ] {
        // Lines stand in the order of their ends, so starts are up to 90 s late.
        let run = simulate(
            &[&config, "-", "--summary", "--json", "--horizon", "100s"],
            &log,
        );
        let lines = run.json();
        assert_eq!(lines[0]["asked"], 6, "{format}: {}", run.err);
        assert_eq!(lines[0]["denied"], 2, "{format}: {}", run.err);
    }
    let plain = "192.0.2.1 - - [01/May/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let run = simulate(&[&config, "-"], plain);
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("no field for how long a request took"),
        "{}",
        run.err
    );
    let run = simulate(
        &[&config, "-"],
        "{\"at_ms\":1,\"client_ip\":\"192.0.2.1\"}\n",
    );
    assert!(run.err.contains("duration_ms is missing"), "{}", run.err);
}

#[test]
fn the_status_of_an_answer_decides_what_a_guess_counts() {
    let files = Files::new();
    let login = |conditions: &str| {
        files.write(
            "login.yaml",
            format!(
                "limits: {{ logins: {{ algorithm: {{ lockout: {{ failures: 3/15m, ban: 15m }} }}, key: [client_ip], {conditions} }} }}"
            ),
        )
    };
    let log = |statuses: &[u16]| -> String {
        let lines = statuses.iter().enumerate().map(|(second, status)| {
            format!("192.0.2.1 - - [01/May/2026:10:00:{second:02} +0000] \"POST /login HTTP/1.1\" {status} 1\n")
        });
        lines.collect()
    };
    let both = login("count_when: \"status in [401, 403]\", reset_when: \"status == 200\"");
    // A success between them makes failures count from the first again, and a 500 is none.
    assert_eq!(denied(&both, &log(&[401, 401, 200, 401, 403, 500])), 0);
    assert_eq!(denied(&both, &log(&[401, 500, 403, 401, 401, 200])), 2);
    let conditionless = login("mode: enforce");
    let run = simulate(&[&conditionless, "-"], &log(&[401]));
    assert!(run.err.contains("reset_when"), "{}", run.err);
    let strange = login("count_when: \"body == 1\"");
    let run = simulate(&[&strange, "-"], &log(&[401]));
    assert!(run.err.contains("cannot be read from a log"), "{}", run.err);
}

#[test]
fn a_client_is_found_behind_the_proxies_that_are_trusted_and_no_others() {
    let files = Files::new();
    let line = |peer: &str, chain: &str, second: u8| {
        format!(
            "{peer} - - [01/May/2026:10:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"a\" \"{chain}\"\n"
        )
    };
    let log = [
        line("10.0.0.1", "192.0.2.7", 0),
        line("10.0.0.2", "192.0.2.8, 192.0.2.7, 10.0.0.1", 1),
        line("203.0.113.5", "192.0.2.7", 2),
        line("10.0.0.1", "-", 3),
    ]
    .concat();
    let limits = "limits: { a: { algorithm: { sliding_log: { limit: 9/1m } }, key: [client_ip] } }";
    let seen = |config: &str| -> BTreeSet<String> {
        let run = simulate(&[config, "-", "--summary", "--json"], &log);
        let keys = run.json().into_iter().filter(|line| line["kind"] == "key");
        keys.map(|line| line["key"].as_str().unwrap().to_owned())
            .collect()
    };
    let trusting =
        format!("identity: {{ client_ip: {{ trusted_proxies: [10.0.0.0/8] }} }}\n{limits}");
    assert_eq!(
        seen(&files.write("a.yaml", trusting)),
        ["10.0.0.1", "192.0.2.7", "203.0.113.5"]
            .map(str::to_owned)
            .into()
    );
    assert_eq!(
        seen(&files.write("b.yaml", limits)),
        ["10.0.0.1", "10.0.0.2", "203.0.113.5"]
            .map(str::to_owned)
            .into()
    );
}

#[test]
fn a_sample_holds_whole_callers_and_a_range_of_time_whole_seconds() {
    let files = Files::new();
    let config = files.write("limits.yaml", PER_CLIENT);
    let clients = clients();
    let run = simulate(
        &[
            &config,
            &fixture(),
            "--summary",
            "--json",
            "--sample",
            "25%",
        ],
        "",
    );
    let keys: Vec<Value> = run
        .json()
        .into_iter()
        .filter(|line| line["kind"] == "key")
        .collect();
    let share = keys.len() * 100 / clients.len();
    assert!((18..=32).contains(&share), "{share} %");
    for line in &keys {
        let client = line["key"].as_str().unwrap();
        assert_eq!(line["asked"], clients[client].len(), "{client}");
        assert_eq!(line["denied"], denied_by_log(&clients[client], 20));
    }
    assert!(run.err.contains("not in the sample"), "{}", run.err);
    // 14:00 to 14:10 in UTC is 10:00 to 10:10 of the log.
    let range = [
        "--from",
        "1995-08-01T14:00:00Z",
        "--until",
        "1995-08-01T14:10:00Z",
    ];
    let mut arguments = vec![config.as_str(), "", "--summary", "--json"];
    let fixture = fixture();
    arguments[1] = &fixture;
    arguments.extend(range);
    let run = simulate(&arguments, "");
    let inside = clients.values().flatten();
    let (from, until) = (86_400 + 36_000, 86_400 + 36_600);
    let inside = inside.filter(|at| (from..until).contains(*at)).count();
    assert_eq!(run.json()[0]["asked"], inside);
    assert!(run.err.contains("outside the range"), "{}", run.err);
}

#[test]
fn a_log_that_was_cut_off_is_played_as_far_as_it_goes_and_strict_refuses_it() {
    let files = Files::new();
    let config = files.write("limits.yaml", PER_CLIENT);
    let whole = fs::read(fixture()).unwrap();
    let half = files.write("half.log.gz", &whole[..whole.len() / 2]);
    let run = simulate(&[&config, &half, "--summary", "--json"], "");
    let asked = run.json()[0]["asked"].as_u64().unwrap();
    assert!((5_000..15_000).contains(&asked), "{asked}");
    assert_eq!(run.code, 0);
    assert!(run.err.contains("the rest of"), "{}", run.err);
    assert!(run.err.contains("cut off"), "{}", run.err);
    let run = simulate(&[&config, &half, "--summary", "--strict"], "");
    assert_eq!(run.code, 1);
    // Bytes that are no text and times that are no times are counted, with a reason each.
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder
        .write_all(b"\xff\xfe - - [01/May/2026:10:00:00 +0000] \"GET /\xe9 HTTP/1.1\" 200 1\n192.0.2.1 - - [99/May/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n192.0.2.1 - - [01/May/9999:10:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n\x00\x01\x02\n")
        .unwrap();
    let odd = files.write("odd.log.gz", encoder.finish().unwrap());
    let run = simulate(&[&config, &odd, "--summary", "--json"], "");
    assert_eq!((run.json()[0]["asked"].as_u64(), run.code), (Some(1), 0));
    assert!(
        run.err.contains("3 of 4 lines could not be read"),
        "{}",
        run.err
    );
    assert!(run.err.contains("no such day"), "{}", run.err);
    assert_eq!(simulate(&[&config, &odd, "--strict"], "").code, 1);
}

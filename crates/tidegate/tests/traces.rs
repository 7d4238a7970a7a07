//! Readers of traces: no input makes them panic, and order does not matter within the horizon.

use std::io::Cursor;

use proptest::prelude::*;
use tidegate::simulation::{
    FindRoute, Format, Found, KeySource, LimitSettings, RouteLimit, Routes, Simulation, Summary,
    Tally, TraceOptions, Traces, output,
};
use tidegate::{Align, FixedWindow, Micros, SlidingLog};
use tidegate_config::RoutePattern;
use tidegate_config::model::{Identity, KeyPart};

/// Two limits: one keyed by client, one for all.
fn limits() -> Simulation {
    let mut simulation = Simulation::new();
    let log = SlidingLog::new(2, Micros::from_secs(10)).unwrap();
    simulation
        .add(
            "log",
            log.into(),
            "sliding_log limit 2/10s",
            LimitSettings::default(),
        )
        .unwrap();
    let window = FixedWindow::new(9, Micros::from_secs(10), Align::Epoch).unwrap();
    simulation
        .add(
            "all",
            window.into(),
            "fixed_window limit 9/10s",
            LimitSettings::default(),
        )
        .unwrap();
    simulation
}

/// Plays a trace and returns its answers as JSON, with what was counted.
fn play(text: &[u8], options: TraceOptions) -> Result<(String, Tally), String> {
    let mut simulation = limits();
    let mut traces = Traces::new(options);
    traces
        .open("trace", Box::new(Cursor::new(text.to_vec())))
        .map_err(|error| error.to_string())?;
    let mut summary = Summary::new();
    let (mut json, mut text) = (Vec::new(), String::new());
    while let Some(call) = traces
        .next(&mut simulation)
        .map_err(|error| error.to_string())?
    {
        match simulation.answer(&call) {
            Ok(answer) => {
                output::write_json(&mut json, &simulation, &call, &answer).unwrap();
                output::write_timeline(&mut text, &simulation, &call, &answer);
                output::write_http(&mut text, &simulation, &call, &answer);
                summary.add(&simulation, &call, &answer);
            }
            Err(error) => traces
                .refuse(&call, &error)
                .map_err(|error| error.to_string())?,
        }
    }
    assert!(!summary.table(&simulation).is_empty());
    Ok((String::from_utf8(json).unwrap(), traces.tally()))
}

/// One good line of each format, and the header that a format needs.
const GOOD: [(&str, &str); 4] = [
    (
        "limit x: gcra rate 1/s burst 1\n",
        "5s log=a all=\"b c\" take 1 allow remaining 1\n",
    ),
    (
        "",
        "{\"at_ms\": 5000, \"limits\": {\"log\": \"a\", \"all\": [\"b\", null]}, \"cost\": 1}\n",
    ),
    ("at_ms,key,limit,cost\n", "5000,\"a,b\",log,1\n"),
    (
        "",
        "192.0.2.1 - - [01/May/2026:08:00:05 +0000] \"GET / HTTP/1.1\" 200 2\n",
    ),
];

#[test]
fn the_good_lines_are_of_the_formats_that_they_stand_for() {
    let formats = GOOD.map(|(header, line)| Format::of(format!("{header}{line}").as_bytes()));
    assert_eq!(
        formats,
        [
            Format::Timeline,
            Format::Jsonl,
            Format::Csv,
            Format::AccessLog
        ]
        .map(Some)
    );
    for (header, line) in GOOD {
        let (json, tally) = play(
            format!("{header}{line}").as_bytes(),
            TraceOptions::default(),
        )
        .unwrap();
        assert_eq!((json.lines().count(), tally.unreadable), (1, 0), "{line}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_trace_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = play(&bytes, TraceOptions::default());
    }

    #[test]
    fn no_mutation_of_good_lines_makes_a_trace_panic(
        format in 0_usize..4,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..8),
        strict: bool,
    ) {
        let (header, line) = GOOD[format];
        let mut bytes = format!("{header}{}", line.repeat(3)).into_bytes();
        for (index, byte, kind) in edits {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => { bytes.remove(at); }
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        let _ = play(&bytes, TraceOptions { strict, ..TraceOptions::default() });
    }

    #[test]
    fn a_disordered_log_is_answered_like_the_sorted_one(
        lines in prop::collection::vec((0_u32..60, 0_u8..4), 1..80),
    ) {
        let log = |lines: &[(u32, u8)]| -> String {
            lines
                .iter()
                .map(|(second, client)| format!(
                    "192.0.2.{client} - - [01/May/2026:08:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 2\n"
                ))
                .collect()
        };
        let mut sorted = lines.clone();
        sorted.sort_by_key(|(second, _)| *second);
        let (expected, tally) = play(log(&sorted).as_bytes(), TraceOptions::default()).unwrap();
        prop_assert_eq!(tally.disorder.reordered, 0);
        let (answers, tally) = play(log(&lines).as_bytes(), TraceOptions::default()).unwrap();
        prop_assert_eq!(answers, expected);
        prop_assert_eq!(tally.disorder.overrun, 0);
        prop_assert_eq!(tally.lines, lines.len() as u64);
    }
}

#[test]
fn a_key_that_every_line_names_is_kept_once() {
    let mut simulation = limits();
    let line = GOOD[3].1.as_bytes();
    let repeated = std::iter::repeat_n(line, 50_000)
        .flatten()
        .copied()
        .collect::<Vec<u8>>();
    let mut traces = Traces::new(TraceOptions::default());
    traces.open("log", Box::new(Cursor::new(repeated))).unwrap();
    let mut calls = 0;
    while let Some(call) = traces.next(&mut simulation).unwrap() {
        simulation.answer(&call).unwrap();
        calls += 1;
    }
    assert_eq!(calls, 50_000);
    let log = simulation.find("log").unwrap();
    assert_eq!(simulation.keys_seen(log), 1);
}

#[test]
fn a_request_meets_the_limits_of_its_route_and_keys_follow_the_path_of_the_route() {
    let identity = Identity::default();
    let pattern = RoutePattern::parse("GET /files/{owner}/{path+}").unwrap();
    let keyed_by = ["method_and_route", "path.owner", "path.path"]
        .map(|part| KeySource::on_route(&KeyPart::parse(part).unwrap(), &identity, &pattern));
    let mut simulation = limits();
    let limit = simulation.find("log").unwrap();
    let find: FindRoute = Box::new(|method, path| {
        (method == "GET" && path.starts_with("/files/")).then(|| Found {
            route: 0,
            path: path.to_owned(),
        })
    });
    let met = RouteLimit {
        limit,
        keyed_by: keyed_by.to_vec(),
    };
    simulation.set_routes(Routes::new(find, vec![vec![met]]));
    let lines = [
        "{\"at_ms\": 1, \"method\": \"GET\", \"path\": \"/files/asha/a%20b/c?x=1\"}",
        "{\"at_ms\": 2, \"method\": \"GET\", \"path\": \"/other\"}",
        "{\"at_ms\": 3, \"method\": \"POST\", \"path\": \"/files/asha/a\"}",
        "{\"at_ms\": 4, \"client_ip\": \"192.0.2.1\"}",
    ];
    let mut traces = Traces::new(TraceOptions::default());
    traces
        .open("calls", Box::new(Cursor::new(lines.join("\n"))))
        .unwrap();
    let mut text = String::new();
    while let Some(call) = traces.next(&mut simulation).unwrap() {
        let answer = simulation.answer(&call).unwrap();
        output::write_timeline(&mut text, &simulation, &call, &answer);
    }
    assert_eq!(
        text,
        "     1ms log=[\"GET /files/{owner}/{path+}\",asha,\"a b/c\"] take 1  allow  remaining 1\n"
    );
    let tally = traces.tally();
    assert_eq!((tally.lines, tally.unlimited, tally.unreadable), (4, 3, 0));
}

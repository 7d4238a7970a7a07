//! Hostile and broken documents: an answer, in bounded time and memory, and never a panic.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate_config::{Purpose, Report, parse};

const WHOLE: &str = include_str!("documents/whole.yaml");

/// Reads a document both ways and draws what is said about it.
fn read(text: &str) -> Option<Report> {
    let mut found = None;
    for purpose in [Purpose::Inspect, Purpose::Run] {
        let report = match parse("test.yaml", text, purpose) {
            Ok(checked) => checked.warnings,
            Err(report) => report,
        };
        let _ = (report.render(true), report.to_json());
        let drawn = report.render(false);
        assert_eq!(drawn.is_empty(), report.problems().is_empty());
        for problem in report.problems() {
            if let Some(span) = problem.span {
                assert!(
                    text.get(span.start..span.end).is_some(),
                    "{span:?} of {text:?}"
                );
                let (line, column) = report.line_and_column(span);
                assert!(line >= 1 && column >= 1);
            }
        }
        found = Some(report);
    }
    found
}

/// Says that a document is refused, fast, and with what words.
#[track_caller]
fn refused(text: &str, message: &str) {
    let start = Instant::now();
    let report = read(text).unwrap();
    assert!(report.errors() > 0);
    let drawn = report.render(false);
    assert!(
        drawn.contains(message),
        "{}",
        &drawn[..drawn.len().min(2_000)]
    );
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "took {:?}",
        start.elapsed()
    );
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut text = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let item = format!("*a{}", level - 1);
        let items = [item.as_str(); 10].join(", ");
        let _ = writeln!(text, "b{level}: &a{level} [{items}]");
    }
    refused(&text, "larger, deeper or more entangled");
}

#[test]
fn deep_nesting_is_refused() {
    refused(&format!("limits: {}", "[".repeat(100_000)), "no valid YAML");
    refused(
        &format!("limits: {}", "{a: ".repeat(5_000)),
        "no valid YAML",
    );
    refused(&"- ".repeat(50_000), "no valid YAML");
}

#[test]
fn a_document_that_is_too_large_is_refused() {
    refused(&"#".repeat(5 * 1024 * 1024), "larger than 4 MiB");
    refused(
        &format!("limits: [{}]", "1,".repeat(500_000)),
        "larger, deeper",
    );
}

#[test]
fn thousands_of_mistakes_are_told_in_bounded_time() {
    let mut text = "limits:\n".to_owned();
    for number in 0..3_000 {
        let _ = writeln!(
            text,
            "  l{number}: {{ algoritm: {{ gcra: {{ rate: {number} }} }} }}"
        );
    }
    refused(&text, "unknown key `algoritm`");
    let mut text = "limits:\n  a:\n".to_owned();
    for number in 0..3_000 {
        let _ = writeln!(text, "    k{number}: {number}");
    }
    refused(&text, "... and 2901 more problems");
}

#[test]
fn the_same_key_ten_thousand_times_is_told_once_each() {
    let text = format!("limits:\n{}", "  a: {}\n".repeat(10_000));
    refused(&text, "`a` is there twice");
}

#[test]
fn many_limits_and_routes_are_read_in_bounded_time() {
    let start = Instant::now();
    let mut text = "limits:\n".to_owned();
    for number in 0..2_000 {
        let _ = writeln!(
            text,
            "  l{number}: {{ algorithm: {{ sliding_log: {{ limit: 5/m }} }} }}"
        );
    }
    text.push_str("gateway:\n  listen: 127.0.0.1:0\n  routes:\n");
    for number in 0..2_000 {
        let _ = writeln!(
            text,
            "    - {{ match: GET /r{number}, limits: [l{number}], mock: {{}} }}"
        );
    }
    let checked = parse("test.yaml", &text, Purpose::Run).unwrap();
    assert_eq!(checked.config.limits.len(), 2_000);
    assert_eq!(checked.config.gateway.unwrap().routes.len(), 2_000);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "took {:?}",
        start.elapsed()
    );
}

#[test]
fn control_characters_of_a_file_do_not_reach_the_terminal() {
    let report = read("limits: { \"a\\e[31m\": { key: [\"\\a\\e]0;x\\a\"] } }\n").unwrap();
    let drawn = report.render(false);
    assert!(
        !drawn.chars().any(|c| c.is_control() && c != '\n'),
        "{drawn:?}"
    );
}

/// What mutations put into a document.
const PIECES: [&str; 42] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    ",",
    "\n",
    "\t",
    "  ",
    "\"",
    "'",
    "|",
    ">",
    "&a ",
    "*a",
    "<<: *a",
    "!!int ",
    "!x ",
    "? ",
    "#",
    "---",
    "...",
    "%",
    "~",
    "null",
    "true",
    "-1",
    "0",
    "1e9",
    "9999999999999999999999",
    "0x10",
    ".inf",
    "100/s",
    "1h 30m",
    "限流",
    "🌊",
    "\u{feff}",
    "\u{0}",
    "token_bucket",
    "limits",
];

#[derive(Clone, Debug)]
enum Mutation {
    Insert(usize, usize),
    Remove(usize, usize),
    Replace(usize, char),
    RemoveLine(usize),
    DoubleLine(usize),
    SwapLines(usize, usize),
    Cut(usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<usize>(), 0..PIECES.len()).prop_map(|(at, piece)| Mutation::Insert(at, piece)),
        (any::<usize>(), 1..20_usize).prop_map(|(at, length)| Mutation::Remove(at, length)),
        (any::<usize>(), any::<char>()).prop_map(|(at, c)| Mutation::Replace(at, c)),
        any::<usize>().prop_map(Mutation::RemoveLine),
        any::<usize>().prop_map(Mutation::DoubleLine),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Mutation::SwapLines(a, b)),
        any::<usize>().prop_map(Mutation::Cut),
    ]
}

fn mutated(text: &str, mutations: &[Mutation]) -> String {
    let mut text = text.to_owned();
    for mutation in mutations {
        let chars: Vec<char> = text.chars().collect();
        let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        let (many, rows) = (chars.len().max(1), lines.len().max(1));
        let join = |lines: Vec<String>| lines.join("\n") + "\n";
        text = match mutation {
            Mutation::Insert(at, piece) => {
                let (head, tail) = chars.split_at(at % many);
                head.iter().collect::<String>() + PIECES[*piece] + &tail.iter().collect::<String>()
            }
            Mutation::Remove(at, length) => {
                let at = at % many;
                let end = (at + length).min(chars.len());
                chars.iter().take(at).chain(&chars[end..]).collect()
            }
            Mutation::Replace(at, c) => {
                let mut chars = chars;
                if let Some(place) = chars.get_mut(at % many) {
                    *place = *c;
                }
                chars.into_iter().collect()
            }
            Mutation::RemoveLine(at) if !lines.is_empty() => {
                lines.remove(at % rows);
                join(lines)
            }
            Mutation::DoubleLine(at) if !lines.is_empty() => {
                lines.insert(at % rows, lines[at % rows].clone());
                join(lines)
            }
            Mutation::SwapLines(a, b) if !lines.is_empty() => {
                lines.swap(a % rows, b % rows);
                join(lines)
            }
            Mutation::Cut(at) => chars.iter().take(at % many).collect(),
            _ => text,
        };
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_document_never_panics(mutations in prop::collection::vec(mutation(), 1..8)) {
        read(&mutated(WHOLE, &mutations));
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in ".{0,200}") {
        read(&text);
    }

    #[test]
    fn any_pieces_are_read_without_a_panic(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40)
    ) {
        read(&pieces.concat());
        read(&format!("limits:\n  a:\n    algorithm: {}", pieces.concat()));
    }
}

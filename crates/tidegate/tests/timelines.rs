//! Plays every timeline of `tests/timelines`; each guards against a fault that some limiter had.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::simulation::{Simulation, TraceOptions, Traces, check, output};

fn timelines() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timelines");
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "timeline")
        })
        .collect();
    paths.sort();
    paths
}

#[test]
fn every_timeline_is_answered_as_it_says() {
    let mut faults = Vec::new();
    let paths = timelines();
    for path in &paths {
        let name = path.file_name().unwrap().to_string_lossy();
        let text = fs::read_to_string(path).unwrap();
        if let Err(error) = check(&name, &text) {
            faults.push(error.to_string());
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(
        paths.len() >= 44,
        "only {} timelines were found",
        paths.len()
    );
}

#[test]
fn every_timeline_tells_what_it_guards_against() {
    for path in timelines() {
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# "),
            "{} does not begin with a comment",
            path.display()
        );
    }
}

/// What a timeline prints when it is played.
fn played(text: &str) -> String {
    let mut simulation = Simulation::new();
    let mut traces = Traces::new(TraceOptions::default());
    let input = Box::new(std::io::Cursor::new(text.to_owned()));
    traces.open("timeline", input).unwrap();
    let (mut out, mut headers) = (String::new(), 0);
    while let Some(call) = traces.next(&mut simulation).unwrap() {
        headers += output::write_headers(&mut out, &simulation, headers);
        match simulation.answer(&call) {
            Ok(answer) => output::write_timeline(&mut out, &simulation, &call, &answer),
            Err(_) => output::write_unsupported(&mut out, &simulation, &call),
        }
    }
    out
}

#[test]
fn what_a_timeline_prints_is_a_timeline_that_prints_the_same() {
    for path in timelines() {
        let first = played(&fs::read_to_string(&path).unwrap());
        assert_eq!(played(&first), first, "{}", path.display());
        if let Err(error) = check("output", &first) {
            panic!("{}: {error}", path.display());
        }
    }
}

#[test]
fn a_timeline_with_one_answer_changed_fails() {
    for path in timelines() {
        let text = fs::read_to_string(&path).unwrap();
        let changed = if text.contains("  deny ") {
            text.replacen("  deny ", "  allow ", 1)
        } else {
            text.replacen("  allow ", "  deny ", 1)
        };
        assert_ne!(text, changed, "{} expects nothing", path.display());
        assert!(
            check("changed", &changed).is_err(),
            "{} cannot fail",
            path.display()
        );
    }
}

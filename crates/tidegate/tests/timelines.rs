//! Plays every timeline of `tests/timelines`; each guards against a fault that some limiter had.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::simulation::check;

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

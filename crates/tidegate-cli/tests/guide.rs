//! The guide does what it says: its files are written, its commands run, its answers compared.
//!
//! `TIDEGATE_BLESS=1` writes the answers anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/choosing_a_limit.md")
}

/// The words of a command, of which those in quotes are one.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in command.trim().chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

/// What a command prints, all that it has to say to people among it.
fn answer(command: &str, folder: &Path) -> String {
    let words = words(command);
    assert_eq!(words[0], "tidegate", "{command}");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(&words[1..])
        .current_dir(folder)
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{command}: {err}");
    format!("{err}{out}")
}

#[test]
fn every_command_of_the_guide_answers_as_the_guide_says() {
    let folder = tempfile::tempdir().unwrap();
    let log =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nasa-1995-08-01.clf.log.gz");
    fs::copy(log, folder.path().join("access.log.gz")).unwrap();
    let text = fs::read_to_string(guide()).unwrap();
    let mut played = String::new();
    let mut commands = 0;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        played += line;
        played.push('\n');
        let Some(info) = line.strip_prefix("```").filter(|info| !info.is_empty()) else {
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some(name) = info.strip_prefix("yaml ") {
            fs::write(folder.path().join(name), block.join("\n")).unwrap();
            played += &block.join("\n");
            played += "\n```\n";
            continue;
        }
        assert_eq!(info, "console");
        for command in block.iter().filter_map(|line| line.strip_prefix("$ ")) {
            commands += 1;
            played += &format!("$ {command}\n{}", answer(command, folder.path()));
        }
        played += "```\n";
    }
    assert_eq!(commands, 8);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(guide(), played).unwrap();
    } else {
        assert_eq!(played, text, "TIDEGATE_BLESS=1 writes the answers anew");
    }
}

//! The public items of the crates that people depend on, as checked-in lists.
//!
//! A list says in a review what a change does to them. It is made from rustdoc's JSON, whose format
//! belongs to the toolchain: `RUSTC_BOOTSTRAP` has the stable one write it, in a target folder of
//! its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use public_api::Builder;

use crate::{cargo_command, run};

/// The crates whose items people name, the library's own and those that it passes on.
const CRATES: [&str; 3] = ["tidegate-core", "tidegate-store", "tidegate"];

/// Where rustdoc writes.
const TARGET: &str = "target/api";

/// Compares the lists with what there is, or writes them anew.
pub fn check(bless: bool) -> Result<()> {
    let mut command = cargo_command(&["doc", "--quiet", "--no-deps", "--lib", "--all-features"]);
    command.args(["--target-dir", TARGET]);
    for name in CRATES {
        command.args(["--package", name]);
    }
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    run("public items", &mut command)?;
    let mut changed = Vec::new();
    for name in CRATES {
        let (path, now) = (list_of(name), items(name)?);
        if bless {
            fs::write(&path, now).with_context(|| format!("cannot write {}", path.display()))?;
            continue;
        }
        let before = fs::read_to_string(&path).unwrap_or_default();
        changed.extend(differences(&before, &now));
    }
    if changed.is_empty() {
        return Ok(());
    }
    for line in &changed {
        eprintln!("{line}");
    }
    bail!("public items changed; if that is meant, run: cargo xtask api --bless");
}

/// The list of a crate.
fn list_of(name: &str) -> PathBuf {
    Path::new("crates").join(name).join("api.txt")
}

/// What a crate offers, one item a line. Impls that follow from others are left out.
fn items(name: &str) -> Result<String> {
    let json = Path::new(TARGET)
        .join("doc")
        .join(format!("{}.json", name.replace('-', "_")));
    let api = Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| {
            format!(
                "cannot read {}; `public-api` must be the version for this toolchain",
                json.display()
            )
        })?;
    let lines: Vec<String> = api.items().map(|item| format!("{item}\n")).collect();
    Ok(lines.concat())
}

/// Lines that are only in one of two lists.
fn differences(before: &str, now: &str) -> Vec<String> {
    let (before, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (before.lines().collect(), now.lines().collect());
    let gone = before.difference(&now).map(|line| format!("- {line}"));
    let new = now.difference(&before).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

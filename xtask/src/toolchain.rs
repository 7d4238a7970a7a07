//! What the crates promise about where they build: the oldest toolchain, and no standard library
//! for the engine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{cargo, cargo_command, metadata, run};

/// Checks that the stated `rust-version` is one that builds: this toolchain's, or one that is
/// installed beside it. What the standard library had by then is clippy's `incompatible_msrv`.
pub fn check_rust_version() -> Result<()> {
    let metadata = metadata()?;
    let stated = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "tidegate")
        .and_then(|package| package["rust_version"].as_str())
        .context("the library states no rust-version")?;
    let output = Command::new("rustc").arg("--version").output()?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    let this = version.split_whitespace().nth(1).unwrap_or_default();
    if this == stated || this.starts_with(&format!("{stated}.")) {
        println!("== rust-version {stated}: this toolchain, so that every build shows it");
        return Ok(());
    }
    let toolchain = format!("+{stated}");
    let arguments = [
        "check",
        "--quiet",
        "--package",
        "tidegate",
        "--all-features",
    ];
    let mut check = Command::new("cargo");
    // The cargo of this process would hand its own toolchain down.
    check
        .arg(toolchain)
        .args(arguments)
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN")
        .args(["--target-dir", "target/rust-version"]);
    run(&format!("rust-version {stated}"), &mut check)
        .with_context(|| format!("this is {this}; try: rustup toolchain install {stated}"))
}

/// Builds a program without the standard library upon the engine.
pub fn check_no_std() -> Result<()> {
    cargo(
        "engine",
        &["build", "--quiet", "--package", "tidegate-core"],
    )?;
    let output = cargo_command(&["build", "--quiet", "--package", "tidegate-core"])
        .arg("--message-format=json")
        .output()?;
    let library = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "tidegate_core")
        .filter_map(|message| Some(message["filenames"][0].as_str()?.to_owned()))
        .next_back();
    let Some(library) = library else {
        bail!("cargo named no file for tidegate-core");
    };
    let folder = Path::new(&library).parent().unwrap_or(Path::new("."));
    let mut probe = Command::new("rustc");
    probe
        .args(["--edition", "2024", "--crate-type", "staticlib"])
        .args(["--emit", "metadata", "-C", "panic=abort"])
        .arg("--extern")
        .arg(format!("tidegate_core={library}"))
        .arg("-L")
        .arg(format!("dependency={}", folder.join("deps").display()))
        .arg("-L")
        .arg(format!("dependency={}", folder.display()))
        .args(["-o", "target/no_std_probe", "xtask/probes/no_std.rs"]);
    run("engine without the standard library", &mut probe)
}

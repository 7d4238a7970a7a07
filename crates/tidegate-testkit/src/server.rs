//! One server: started, paused, killed, started again.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::binaries::Flavor;
use crate::certificates::Certificates;
use crate::places::{self, Port};
use crate::process::Process;

/// How long a server may take to answer after its start.
const START: Duration = Duration::from_secs(20);

/// How a server is started.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    flavor: Flavor,
    directives: Vec<String>,
    clock: Option<String>,
    sentinel: bool,
    tls: Option<(Certificates, bool)>,
}

impl ServerOptions {
    /// A server that keeps nothing on disk.
    #[must_use]
    pub fn new(flavor: Flavor) -> Self {
        Self {
            flavor,
            directives: Vec::new(),
            clock: None,
            sentinel: false,
            tls: None,
        }
    }

    /// Adds a line to the server's configuration, `maxmemory 2mb` for example.
    #[must_use]
    pub fn directive(mut self, line: impl Into<String>) -> Self {
        self.directives.push(line.into());
        self
    }

    /// Keeps the data over restarts: every write is on disk before it is answered.
    #[must_use]
    pub fn persistent(self) -> Self {
        self.directive("appendonly yes")
            .directive("appendfsync always")
    }

    /// Gives the server a clock that is wrong by an offset as `faketime` writes it: `+61s`.
    #[must_use]
    pub fn clock(mut self, offset: impl Into<String>) -> Self {
        self.clock = Some(offset.into());
        self
    }

    /// A sentinel, which keeps no data and watches servers that do.
    #[must_use]
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Encrypts what goes through the port; with `ask_clients` a client needs a certificate.
    /// Needs a server that is built with TLS: [`Flavor::Redis7`].
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates, ask_clients: bool) -> Self {
        self.tls = Some((certificates.clone(), ask_clients));
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not answer in time.
    #[must_use]
    pub fn start(self) -> Server {
        Server::with(self)
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    // Before the directory and the port: what is dropped first has to have ended.
    process: Process,
    port: Port,
    directory: TempDir,
}

impl Server {
    /// Starts a server with nothing special about it.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not answer in time.
    #[must_use]
    pub fn start(flavor: Flavor) -> Self {
        ServerOptions::new(flavor).start()
    }

    fn with(options: ServerOptions) -> Self {
        let port = Port::free();
        let directory = places::directory();
        write_configuration(&options, &port, directory.path());
        let process = launch(&options, &port, directory.path());
        let mut server = Self {
            options,
            process,
            port,
            directory,
        };
        server.wait_until_ready();
        server
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        format!("{scheme}://{}", self.address())
    }

    /// The unix socket that it listens on as well.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.port.socket()
    }

    /// The directory that it works in: its configuration, log and data.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process's id.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// A new connection of the test's own, with a second's patience.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        connect(&self.socket()).unwrap_or_else(|error| {
            panic!("no connection to the server at {}: {error}", self.address())
        })
    }

    /// Runs one command, whose words stand between blanks, and expects it to succeed.
    ///
    /// # Panics
    ///
    /// If the server answers with an error.
    pub fn command(&self, words: &str) -> redis::Value {
        command(&mut self.connection(), words)
    }

    /// Runs one command that answers with text; none where there is no server.
    pub(crate) fn info(&self, words: &str) -> String {
        let Ok(mut connection) = connect(&self.socket()) else {
            return String::new();
        };
        match command(&mut connection, words) {
            redis::Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            redis::Value::VerbatimString { text, .. } => text,
            other => panic!("`{words}` answers with no text: {other:?}"),
        }
    }

    /// Whether it is a primary; a server that does not run is none.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.info("info replication").contains("role:master")
    }

    /// Stops the process in its tracks: connections stay, and nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Ends it at once, as a crash does. The port and the directory stay its own.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port, with what its directory holds, and waits for the answer.
    ///
    /// # Panics
    ///
    /// If it does not answer in time.
    pub fn restart(&mut self) {
        self.relaunch();
        self.wait_until_ready();
    }

    /// As [`restart`](Self::restart), without waiting: to see what it does while it starts.
    pub fn relaunch(&mut self) {
        self.process.kill();
        self.process = launch(&self.options, &self.port, self.directory.path());
    }

    /// Waits until the server answers `PING`, and makes sure that it is this one.
    ///
    /// # Panics
    ///
    /// If it does not answer in time.
    pub fn wait_until_ready(&mut self) {
        let started = Instant::now();
        loop {
            if self.is_ready() {
                return;
            }
            let late = started.elapsed() > START;
            if late || !self.process.is_running() {
                let log = std::fs::read_to_string(self.directory.path().join(LOG));
                panic!(
                    "{:?} did not answer on {} within {START:?}; it said:\n{}",
                    self.options.flavor,
                    self.address(),
                    log.unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The socket belongs to the port, which is this server's alone, so nobody else can be answering on it.
    fn is_ready(&self) -> bool {
        let Ok(mut connection) = connect(&self.socket()) else {
            return false;
        };
        redis::cmd("PING").query::<String>(&mut connection).is_ok()
    }
}

const CONFIGURATION: &str = "server.conf";
const LOG: &str = "log";

fn write_configuration(options: &ServerOptions, port: &Port, directory: &Path) {
    let mut text = String::new();
    if let Some((certificates, ask_clients)) = &options.tls {
        certificates.write(directory);
        let _ = writeln!(text, "port 0");
        let _ = writeln!(text, "tls-port {}", port.number());
        let _ = writeln!(text, "tls-cert-file server.pem");
        let _ = writeln!(text, "tls-key-file server.key");
        let _ = writeln!(text, "tls-ca-cert-file authority.pem");
        let ask = if *ask_clients { "yes" } else { "no" };
        let _ = writeln!(text, "tls-auth-clients {ask}");
    } else {
        let _ = writeln!(text, "port {}", port.number());
    }
    let _ = writeln!(text, "bind 127.0.0.1");
    let _ = writeln!(text, "unixsocket {}", port.socket().display());
    let _ = writeln!(text, "dir {}", directory.display());
    if !options.sentinel {
        let _ = writeln!(text, "save \"\"");
    }
    for line in &options.directives {
        let _ = writeln!(text, "{line}");
    }
    std::fs::write(directory.join(CONFIGURATION), text).expect("the server's configuration");
}

fn launch(options: &ServerOptions, port: &Port, directory: &Path) -> Process {
    // One that crashed leaves it behind.
    let _ = std::fs::remove_file(port.socket());
    let mut arguments = vec![directory.join(CONFIGURATION).into_os_string()];
    if options.sentinel {
        arguments.push("--sentinel".into());
    }
    let variables = options.clock.as_deref().map(faketime).unwrap_or_default();
    Process::start(
        &options.flavor.program(),
        &arguments,
        &variables,
        &directory.join(LOG),
    )
}

/// The program `faketime` starts a child of its own, which would outlive it; its library does not.
fn faketime(offset: &str) -> Vec<(String, OsString)> {
    let library = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
        .find(|path| path.exists())
        .expect("faketime is not installed; `cargo xtask test` installs it");
    vec![
        ("LD_PRELOAD".into(), library.into()),
        ("FAKETIME".into(), offset.into()),
    ]
}

fn connect(socket: &Path) -> redis::RedisResult<redis::Connection> {
    let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
    let connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.set_write_timeout(Some(Duration::from_secs(1)))?;
    Ok(connection)
}

/// Runs one command, whose words stand between blanks.
fn command(connection: &mut redis::Connection, words: &str) -> redis::Value {
    let mut words_left = words.split_ascii_whitespace();
    let mut command = redis::cmd(words_left.next().expect("a command has a name"));
    command.arg(words_left.collect::<Vec<_>>());
    command
        .query(connection)
        .unwrap_or_else(|error| panic!("the server refuses `{words}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flavor_starts_and_answers() {
        for flavor in [Flavor::Valkey9, Flavor::Redis7, Flavor::Redis6] {
            let server = Server::start(flavor);
            assert!(server.url().starts_with("redis://127.0.0.1:"));
            server.command("SET key value");
        }
    }

    #[test]
    fn a_server_forgets_or_keeps_over_a_crash_as_it_was_told() {
        for (options, kept) in [
            (ServerOptions::new(Flavor::Valkey9), false),
            (ServerOptions::new(Flavor::Valkey9).persistent(), true),
        ] {
            let mut server = options.start();
            let port = server.port();
            server.command("SET key value");
            server.kill();
            server.restart();
            assert_eq!(server.port(), port);
            let found = server.command("EXISTS key");
            assert_eq!(found, redis::Value::Int(i64::from(kept)));
        }
    }

    #[test]
    fn a_clock_can_be_wrong() {
        let right = Server::start(Flavor::Valkey9);
        let wrong = ServerOptions::new(Flavor::Valkey9).clock("+61s").start();
        let seconds = |server: &Server| -> i64 {
            let (seconds, _micros): (i64, i64) = redis::cmd("TIME")
                .query(&mut server.connection())
                .expect("the time");
            seconds
        };
        let ahead = seconds(&wrong) - seconds(&right);
        assert!((60..=62).contains(&ahead), "{ahead} s ahead");
    }

    #[test]
    fn a_dropped_server_is_gone() {
        let server = Server::start(Flavor::Valkey9);
        let (id, directory) = (server.process_id(), server.directory().to_owned());
        drop(server);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
        assert!(!directory.exists());
    }
}

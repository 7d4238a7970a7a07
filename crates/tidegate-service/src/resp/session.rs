//! One client's side of the protocol: what it speaks, whether it may, and which command does what.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tidegate::Timestamp;

use super::arguments::wrong_number;
use super::catalogue;
use super::frame::Command;
use super::limits::LimitCommand;
use super::reply::{Replies, Version, quote};
use super::throttle::{Recent, throttle};
use crate::served::Served;

/// The longest name that a client may give its connection.
const MAX_NAME: usize = 128;

/// The version of Redis whose answers clients may expect.
const REDIS_VERSION: &str = "7.2.4";

/// What the sessions of a door have in common.
#[derive(Debug)]
pub(crate) struct Hall {
    /// The SHA-256 hash of the secret that clients show, if they must.
    pub secret_sha256: Option<[u8; 32]>,
    /// The port that clients connect to.
    pub port: u16,
    /// When the door was opened.
    pub since: std::time::Instant,
    /// How many connections are open.
    pub connections: prometheus_client::metrics::gauge::Gauge,
}

/// One connection's state.
#[derive(Debug)]
pub(crate) struct Session {
    hall: Arc<Hall>,
    id: i64,
    version: Version,
    admitted: bool,
    name: Vec<u8>,
    recent: Recent,
}

/// What becomes of the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Go,
    /// Ends once everything is answered.
    End,
}

/// What a command is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Throttle,
    Limit(LimitCommand),
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Command,
    Info,
    Select,
    Reset,
    Quit,
    Unknown,
}

impl Kind {
    #[inline]
    fn of(name: &[u8]) -> Self {
        let mut upper = [0; 12];
        let Some(upper) = upper.get_mut(..name.len()) else {
            return Self::Unknown;
        };
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        match &*upper {
            b"CL.THROTTLE" => Self::Throttle,
            b"TG.TAKE" => Self::Limit(LimitCommand::Take),
            b"TG.PEEK" => Self::Limit(LimitCommand::Peek),
            b"TG.REFUND" => Self::Limit(LimitCommand::Refund),
            b"TG.ACQUIRE" => Self::Limit(LimitCommand::Acquire),
            b"TG.RENEW" => Self::Limit(LimitCommand::Renew),
            b"TG.RELEASE" => Self::Limit(LimitCommand::Release),
            b"TG.EXPLAIN" => Self::Limit(LimitCommand::Explain),
            b"PING" => Self::Ping,
            b"ECHO" => Self::Echo,
            b"HELLO" => Self::Hello,
            b"AUTH" => Self::Auth,
            b"CLIENT" => Self::Client,
            b"COMMAND" => Self::Command,
            b"INFO" => Self::Info,
            b"SELECT" => Self::Select,
            b"RESET" => Self::Reset,
            b"QUIT" => Self::Quit,
            _ => Self::Unknown,
        }
    }
}

impl Session {
    pub(crate) fn new(hall: Arc<Hall>, id: i64) -> Self {
        Self {
            admitted: hall.secret_sha256.is_none(),
            hall,
            id,
            version: Version::default(),
            name: Vec::new(),
            recent: Recent::default(),
        }
    }

    /// Answers one command.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        command: Command<'_>,
        served: &Served,
        now: Timestamp,
        out: &mut Vec<u8>,
    ) -> Then {
        let Some(name) = command.get(0) else {
            // A command of nothing is answered by nothing.
            return Then::Go;
        };
        let kind = Kind::of(name);
        let mut replies = Replies::new(out, self.version);
        if !self.admitted && !matches!(kind, Kind::Auth | Kind::Hello | Kind::Quit | Kind::Reset) {
            replies.error("NOAUTH Authentication required.");
            return Then::Go;
        }
        match kind {
            Kind::Throttle => throttle(served, &mut self.recent, command, now, &mut replies),
            Kind::Limit(limit) => limit.answer(served, command, now, &mut replies),
            Kind::Quit => {
                replies.ok();
                return Then::End;
            }
            other => self.housekeeping(other, command, &mut replies),
        }
        Then::Go
    }

    /// Everything that decides nothing.
    #[cold]
    fn housekeeping(&mut self, kind: Kind, command: Command<'_>, replies: &mut Replies<'_>) {
        let argument = |place| command.get(place).unwrap_or_default();
        match (kind, command.len()) {
            (Kind::Ping, 1) => replies.simple("PONG"),
            (Kind::Ping | Kind::Echo, 2) => replies.bulk(argument(1)),
            (Kind::Ping, _) => wrong_number("ping", replies),
            (Kind::Echo, _) => wrong_number("echo", replies),
            (Kind::Hello, _) => self.hello(command, replies),
            (Kind::Auth, 2) => self.auth(b"default", argument(1), replies),
            (Kind::Auth, 3) => self.auth(argument(1), argument(2), replies),
            (Kind::Auth, _) => wrong_number("auth", replies),
            (Kind::Client, _) => self.client(command, replies),
            (Kind::Command, _) => catalogue::answer(command, replies),
            (Kind::Info, _) => replies.text(&self.info()),
            (Kind::Select, 2) if argument(1) == b"0" => replies.ok(),
            (Kind::Select, 2) => replies.error("ERR DB index is out of range: there is only 0"),
            (Kind::Select, _) => wrong_number("select", replies),
            (Kind::Reset, 1) => {
                *self = Self::new(Arc::clone(&self.hall), self.id);
                replies.version = self.version;
                replies.simple("RESET");
            }
            (Kind::Reset, _) => wrong_number("reset", replies),
            _ => {
                let name = quote(argument(0));
                replies.error(&format!(
                    "ERR unknown command {name}: this is tidegate, which has CL.THROTTLE, TG.TAKE, \
                     TG.PEEK, TG.REFUND, TG.ACQUIRE, TG.RENEW, TG.RELEASE and TG.EXPLAIN"
                ));
            }
        }
    }

    /// Whether what a client shows is the secret.
    fn admits(&self, user: &[u8], secret: &[u8]) -> bool {
        let hash: [u8; 32] = Sha256::digest(secret).into();
        user == b"default" && self.hall.secret_sha256 == Some(hash)
    }

    fn auth(&mut self, user: &[u8], secret: &[u8], replies: &mut Replies<'_>) {
        if self.hall.secret_sha256.is_none() {
            return replies.error(
                "ERR AUTH called without any secret configured: set `secret_sha256`, or do not \
                 authenticate",
            );
        }
        if self.admits(user, secret) {
            self.admitted = true;
            return replies.ok();
        }
        replies.error(WRONG_SECRET);
    }

    /// `HELLO [2|3 [AUTH user secret] [SETNAME name]]`: all of it, or none.
    fn hello(&mut self, command: Command<'_>, replies: &mut Replies<'_>) {
        let version = match command.get(1) {
            None => self.version,
            Some(b"2") => Version::Resp2,
            Some(b"3") => Version::Resp3,
            Some(_) => return replies.error("NOPROTO unsupported protocol version: 2 and 3 are"),
        };
        let (mut place, mut admitted, mut name) = (2, self.admitted, None);
        while let Some(option) = command.get(place) {
            let (first, second) = (command.get(place + 1), command.get(place + 2));
            match (first, second) {
                (Some(user), Some(secret)) if option.eq_ignore_ascii_case(b"AUTH") => {
                    if self.hall.secret_sha256.is_some() && !self.admits(user, secret) {
                        return replies.error(WRONG_SECRET);
                    }
                    admitted = true;
                    place += 3;
                }
                (Some(given), _) if option.eq_ignore_ascii_case(b"SETNAME") => {
                    if !is_name(given) {
                        return replies.error(WRONG_NAME);
                    }
                    name = Some(given);
                    place += 2;
                }
                _ => {
                    let option = quote(option);
                    return replies.error(&format!("ERR Syntax error in HELLO option {option}"));
                }
            }
        }
        if !admitted {
            return replies.error(
                "NOAUTH HELLO must be called with the client already authenticated, or with AUTH",
            );
        }
        (self.version, self.admitted) = (version, true);
        replies.version = version;
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        replies.map(7);
        for (key, value) in [
            ("server", "tidegate"),
            ("version", env!("CARGO_PKG_VERSION")),
        ] {
            replies.text(key);
            replies.text(value);
        }
        replies.text("proto");
        replies.int(match version {
            Version::Resp2 => 2,
            Version::Resp3 => 3,
        });
        replies.text("id");
        replies.int(self.id);
        for (key, value) in [("mode", "standalone"), ("role", "master")] {
            replies.text(key);
            replies.text(value);
        }
        replies.text("modules");
        replies.array(0);
    }

    /// What client libraries say and ask of a connection.
    fn client(&mut self, command: Command<'_>, replies: &mut Replies<'_>) {
        let argument = |place| command.get(place).unwrap_or_default();
        let what = argument(1).to_ascii_uppercase();
        match (what.as_slice(), command.len()) {
            (b"ID", 2) => replies.int(self.id),
            (b"GETNAME", 2) if self.name.is_empty() => replies.null(),
            (b"GETNAME", 2) => replies.bulk(&self.name),
            (b"SETNAME", 3) if is_name(argument(2)) => {
                self.name = argument(2).to_vec();
                replies.ok();
            }
            (b"SETNAME", 3) => replies.error(WRONG_NAME),
            // What a library is called, and that its connection is worth keeping: taken note of.
            (b"SETINFO", 4) | (b"NO-EVICT" | b"NO-TOUCH", 3) => replies.ok(),
            (b"INFO", 2) => {
                let name = String::from_utf8_lossy(&self.name);
                replies.text(&format!("id={} name={name} db=0\n", self.id));
            }
            _ => replies.error(&format!(
                "ERR unknown subcommand or wrong number of arguments for {}",
                quote(argument(1))
            )),
        }
    }

    fn info(&self) -> String {
        let hall = &self.hall;
        format!(
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nserver_name:tidegate\r\n\
             tidegate_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\ntcp_port:{}\r\n\
             uptime_in_seconds:{}\r\n\r\n# Clients\r\nconnected_clients:{}\r\n\r\n\
             # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n\
             connected_slaves:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            hall.port,
            hall.since.elapsed().as_secs(),
            hall.connections.get(),
        )
    }
}

const WRONG_SECRET: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const WRONG_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters, nor be very long.";

fn is_name(name: &[u8]) -> bool {
    name.len() <= MAX_NAME && name.iter().all(u8::is_ascii_graphic)
}

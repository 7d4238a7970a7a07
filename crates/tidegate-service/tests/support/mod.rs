//! A service of the test's own, and bytes to and from it.

#![allow(dead_code, reason = "not every test needs everything")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate_config::{Checked, Purpose, parse};
use tidegate_service::Service;
use tokio::runtime::Runtime;

/// Longer than anything here takes, short enough to notice.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Limits of every kind, whose numbers do not move while a test runs.
pub const LIMITS: &str = "
limits:
  rate:   { algorithm: { token_bucket: { rate: 1/h, capacity: 5 } } }
  dear:   { algorithm: { sliding_log: { limit: 10/1h } }, cost: 4 }
  paced:  { algorithm: { leaky_bucket: { rate: 1/h, queue: 2, max_wait: 3h } } }
  jobs:   { algorithm: { concurrency: { limit: 2, lease: 60s } } }
  logins: { algorithm: { lockout: { failures: 2/1h, ban: 1h } } }
  tried:  { algorithm: { token_bucket: { rate: 1/h, capacity: 1 } }, mode: shadow }
  trial:  { algorithm: { concurrency: { limit: 0, lease: 60s } }, mode: shadow }
  closed: { algorithm: { token_bucket: { rate: 0/s, capacity: 0 } } }
";

pub fn checked(text: &str) -> Checked {
    parse("test.yaml", text, Purpose::Run).unwrap_or_else(|report| panic!("{report}"))
}

/// A running service.
pub struct Served {
    pub runtime: Runtime,
    pub service: Service,
    pub resp: SocketAddr,
}

/// A service of [`LIMITS`] with some more settings.
pub fn serve(settings: &str) -> Served {
    serve_all(&format!(
        "{LIMITS}\nservice: {{ resp: 127.0.0.1:0, drain: 5s {settings} }}"
    ))
}

pub fn serve_all(text: &str) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let checked = checked(text);
    let service = runtime.block_on(Service::start(&checked, &[])).unwrap();
    let resp = service.resp_address().unwrap();
    Served {
        runtime,
        service,
        resp,
    }
}

impl Served {
    pub fn connect(&self) -> Wire {
        Wire::to(self.resp)
    }
}

/// A connection on which bytes are written by hand.
pub struct Wire(pub TcpStream);

impl Wire {
    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// Expects exactly these bytes next.
    #[track_caller]
    pub fn expect(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        if let Err(error) = self.0.read_exact(&mut bytes) {
            panic!(
                "{error} instead of {expected:?}: {:?}",
                bytes.escape_ascii().to_string()
            );
        }
        assert_eq!(
            bytes.escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
    }

    /// Sends a command on a line and expects these bytes.
    #[track_caller]
    pub fn ask(&mut self, line: &str, expected: &str) {
        self.send(format!("{line}\r\n"));
        self.expect(expected);
    }

    /// Sends commands in one batch, which is decided at one moment, and expects these bytes.
    #[track_caller]
    pub fn ask_all(&mut self, asked: &[(&str, &str)]) {
        let lines: String = asked
            .iter()
            .map(|(line, _)| format!("{line}\r\n"))
            .collect();
        self.send(lines);
        for (_, expected) in asked {
            self.expect(expected);
        }
    }

    /// Everything up to the end of the connection.
    #[track_caller]
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            // What was sent after the service had ended the connection may reset it.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error}"),
        }
        bytes.escape_ascii().to_string()
    }
}

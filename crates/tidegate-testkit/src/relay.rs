//! A relay between a client and a server that can be slow, silent or gone.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the threads of a relay look at what it has been told.
const TICK: Duration = Duration::from_millis(2);

/// Passes bytes between clients and one server on 127.0.0.1, as it is told.
///
/// It loses no bytes, as TCP does not: what it holds back arrives later, or its connection ends.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    /// Nothing passes, in either direction.
    held: AtomicBool,
    /// Added to the way of everything, in microseconds.
    delay: AtomicU64,
    /// New connections are closed at once.
    refusing: AtomicBool,
    over: AtomicBool,
    connections: Mutex<Vec<Arc<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Nothing will ever pass again, and neither side is told.
    stranded: AtomicBool,
}

impl Relay {
    /// Begins to pass bytes to the server on a port.
    ///
    /// # Panics
    ///
    /// If the system has no port left.
    #[must_use]
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the relay");
        let port = listener.local_addr().expect("the relay's address").port();
        listener
            .set_nonblocking(true)
            .expect("a listener that can be ended");
        let shared = Arc::new(Shared {
            server,
            held: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { port, shared }
    }

    /// `redis://127.0.0.1:PORT` of the relay.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Holds everything back, as a network does that lost its way for a while.
    pub fn hold(&self) {
        self.shared.held.store(true, SeqCst);
    }

    /// Lets through again what [`hold`](Self::hold) held back.
    pub fn release(&self) {
        self.shared.held.store(false, SeqCst);
    }

    /// Makes every piece arrive so much later.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay.store(micros, SeqCst);
    }

    /// Ends all connections, and takes new ones.
    pub fn cut(&self) {
        for connection in self.shared.connections().drain(..) {
            connection.close();
        }
    }

    /// Ends all connections, and every new one at once.
    pub fn refuse(&self) {
        self.shared.refusing.store(true, SeqCst);
        self.cut();
    }

    /// Takes new connections again after [`refuse`](Self::refuse).
    pub fn accept(&self) {
        self.shared.refusing.store(false, SeqCst);
    }

    /// Makes all present connections silent for good without ending them, as a router does that
    /// forgot them. New ones work.
    pub fn strand(&self) {
        for connection in self.shared.connections().iter() {
            connection.stranded.store(true, SeqCst);
        }
    }

    /// As [`strand`](Self::strand), for the oldest connection alone.
    pub fn strand_one(&self) {
        if let Some(connection) = self.shared.connections().first() {
            connection.stranded.store(true, SeqCst);
        }
    }

    /// How many connections pass through it.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections().len()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        self.cut();
    }
}

impl Shared {
    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections
            .lock()
            .expect("no thread of the relay panics")
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        while !self.over.load(SeqCst) {
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(TICK);
                continue;
            };
            if self.refusing.load(SeqCst) {
                continue;
            }
            // Without a server the client sees its connection end.
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server)) else {
                continue;
            };
            let connection = Arc::new(Connection {
                client,
                server,
                stranded: AtomicBool::new(false),
            });
            self.connections().push(Arc::clone(&connection));
            for upwards in [true, false] {
                let (shared, connection) = (Arc::clone(&self), Arc::clone(&connection));
                std::thread::spawn(move || shared.pump(&connection, upwards));
            }
        }
    }

    fn pump(&self, connection: &Arc<Connection>, upwards: bool) {
        let (mut from, mut to) = if upwards {
            (&connection.client, &connection.server)
        } else {
            (&connection.server, &connection.client)
        };
        for stream in [from, to] {
            // Accepted sockets may have taken over that the listener does not block.
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_nodelay(true);
        }
        let _ = from.set_read_timeout(Some(TICK));
        let mut buffer = [0; 64 * 1024];
        while !self.over.load(SeqCst) {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            std::thread::sleep(Duration::from_micros(self.delay.load(SeqCst)));
            while (self.held.load(SeqCst) || connection.stranded.load(SeqCst))
                && !self.over.load(SeqCst)
            {
                std::thread::sleep(TICK);
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        connection.close();
        self.connections()
            .retain(|other| !Arc::ptr_eq(other, connection));
    }
}

impl Connection {
    fn close(&self) {
        // Either side may be closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flavor, Server};

    fn ping(relay: &Relay, patience: Duration) -> Result<String, redis::RedisError> {
        let client = redis::Client::open(relay.url())?;
        let mut connection = client.get_connection_with_timeout(patience)?;
        connection.set_read_timeout(Some(patience))?;
        redis::cmd("PING").query(&mut connection)
    }

    #[test]
    fn a_relay_passes_holds_and_refuses() {
        let server = Server::start(Flavor::Valkey9);
        let relay = Relay::to(server.port());
        let long = Duration::from_secs(10);
        assert_eq!(ping(&relay, long).unwrap(), "PONG");
        relay.hold();
        assert!(ping(&relay, Duration::from_millis(50)).is_err());
        relay.release();
        assert_eq!(ping(&relay, long).unwrap(), "PONG");
        relay.refuse();
        assert!(ping(&relay, long).is_err());
        relay.accept();
        assert_eq!(ping(&relay, long).unwrap(), "PONG");
    }
}

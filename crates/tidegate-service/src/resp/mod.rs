//! The door for Redis clients: RESP2 and RESP3.
//!
//! [`frame`] makes commands of bytes, [`session`] answers them, [`connection`] moves both.

mod arguments;
mod catalogue;
mod connection;
mod explain;
mod frame;
mod limits;
mod reply;
mod session;
mod throttle;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use tidegate::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use self::connection::{Connection, Ended, Shared};
use self::session::{Hall, Session};
use crate::accept::{self, Limits};
use crate::metrics::{Door, Metrics, Refusal};
use crate::served::Served;

/// The door, open.
pub(crate) struct RespDoor {
    shared: Arc<Shared>,
    hall: Arc<Hall>,
    metrics: Arc<Metrics>,
    next_id: AtomicI64,
}

impl RespDoor {
    pub(crate) fn new(
        served: Served,
        clock: Arc<dyn Clock>,
        address: SocketAddr,
        secret_sha256: Option<[u8; 32]>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                served: ArcSwap::from_pointee(served),
                clock,
            }),
            hall: Arc::new(Hall {
                secret_sha256,
                port: address.port(),
                since: std::time::Instant::now(),
                connections: metrics.connections(Door::Resp),
            }),
            metrics,
            next_id: AtomicI64::new(1),
        }
    }

    /// Puts other limits in force, from the next batch of each connection on.
    pub(crate) fn replace(&self, served: Served) {
        self.shared.served.store(Arc::new(served));
    }

    /// Accepts clients until `stop` says until when those at work are still answered; then waits
    /// for them. Returns how many had to be cut off.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        limits: Limits,
        stop: watch::Receiver<Option<Instant>>,
    ) -> usize {
        accept::serve(listener, limits, stop, move |stream, stop| {
            Arc::clone(&self).connection(stream, stop)
        })
        .await
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        mut stop: watch::Receiver<Option<Instant>>,
    ) {
        self.hall.connections.inc();
        let _open = Open(&self.hall);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(Arc::clone(&self.hall), id);
        let connection = Connection::new(stream, Arc::clone(&self.shared), session);
        match connection.serve(accept::deadline(&mut stop)).await {
            Ended::Done => {}
            Ended::Malformed(error) => {
                self.metrics.refuse(Door::Resp, Refusal::Malformed);
                tracing::debug!(%error, "ended a connection that spoke no RESP");
            }
            Ended::Slow => self.metrics.refuse(Door::Resp, Refusal::Slow),
            Ended::Broken(error) => tracing::debug!(%error, "a connection broke"),
        }
    }
}

/// Counts a connection as long as it lives.
struct Open<'a>(&'a Hall);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

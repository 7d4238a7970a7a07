//! Listening, accepting, and letting connections finish: the same for all protocols.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// The pause after the system refused a connection, for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// How long connections may take beyond the deadline to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a door lets in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many connections are open at most.
    pub connections: usize,
}

/// Opens a listening socket.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    // A restart must not wait for the connections of the run before to be forgotten.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

/// Waits for the word to stop, and says until when clients at work are still answered. A service
/// that is gone stops at once.
pub(crate) async fn deadline(stop: &mut watch::Receiver<Option<Instant>>) -> Instant {
    let told = stop.wait_for(Option::is_some).await;
    told.ok()
        .and_then(|until| *until)
        .unwrap_or_else(Instant::now)
}

/// Accepts until told to stop, then waits for the connections. Returns how many were cut off.
pub(crate) async fn serve<F, C>(
    listener: TcpListener,
    limits: Limits,
    mut stop: watch::Receiver<Option<Instant>>,
    connection: F,
) -> usize
where
    F: Fn(TcpStream, watch::Receiver<Option<Instant>>) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(
        limits.connections.min(Semaphore::MAX_PERMITS),
    ));
    let mut connections = JoinSet::new();
    let told = stop.clone();
    let until = loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            until = deadline(&mut stop) => break until,
            accepted = async {
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit, listener.accept().await)
            } => accepted,
        };
        let (Ok(permit), accepted) = accepted else {
            break Instant::now();
        };
        match accepted {
            Ok((stream, _)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "the client left at once");
                    continue;
                }
                let serving = connection(stream, told.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = timeout_at(until + GOODBYE, all).await;
    let left = connections.len();
    connections.shutdown().await;
    left
}

/// Errors of one connection that do not concern the next.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

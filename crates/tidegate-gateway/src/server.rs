//! Connections: accepting them, serving them, and letting them finish.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_config::model::Timeouts;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::service::{Gateway, Peer};
use crate::tls::Certificates;
use crate::transport::Transport;
use crate::wire::{Activity, Protocol, Wire, WireTimeouts};

/// The largest head of a request, its request line included.
const MAX_HEAD: usize = 16 * 1024;

/// What is read at once of a body.
const READ_BUFFER: usize = 64 * 1024;

/// Requests at one time on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;

/// The pause after the system refused a connection, for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Opens a listening socket.
///
/// # Errors
/// The address is taken, or may not be used.
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

/// Accepts until told to stop; then returns the connections that are still open.
pub(crate) async fn accept(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    certificates: Option<Arc<Certificates>>,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
) -> JoinSet<()> {
    let room = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = async {
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit, listener.accept().await)
            } => accepted,
        };
        let (Ok(permit), accepted) = accepted else {
            break;
        };
        match accepted {
            Ok((stream, peer)) => {
                let peer = Peer {
                    address: peer.ip(),
                    is_secure: certificates.is_some(),
                };
                let serving = connection(
                    stream,
                    peer,
                    Arc::clone(&gateway),
                    certificates.clone(),
                    stop.clone(),
                );
                connections.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    connections
}

/// Waits for the word to stop; a gateway that is gone has stopped too.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The guard in the result must not live on.
    drop(stop.wait_for(|stopped| *stopped).await);
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

impl From<Timeouts> for WireTimeouts {
    fn from(timeouts: Timeouts) -> Self {
        Self {
            header: timeouts.header,
            idle: timeouts.idle,
            write: timeouts.body,
        }
    }
}

/// Serves one connection to its end.
async fn connection(
    stream: TcpStream,
    peer: Peer,
    gateway: Arc<Gateway>,
    certificates: Option<Arc<Certificates>>,
    mut stop: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "the client left at once");
        return;
    }
    gateway.metrics.connections.inc();
    let _open = Open(&gateway);
    let timeouts = gateway.current.load().timeouts;
    let activity = Arc::new(Activity::default());
    let sniffed = tokio::select! {
        sniffed = sniff(stream, peer, certificates, timeouts, &activity) => sniffed,
        () = stopped(&mut stop) => return,
    };
    let Some((wire, protocol)) = sniffed else {
        return;
    };
    let io = TokioIo::new(wire);
    let service = {
        let (gateway, activity) = (Arc::clone(&gateway), Arc::clone(&activity));
        service_fn(move |request| Arc::clone(&gateway).serve(peer, Arc::clone(&activity), request))
    };
    let ended = match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                // The wire below has time-outs that cost no timer for each request.
                .header_read_timeout(None)
                .max_header_size(MAX_HEAD)
                .max_buf_size(READ_BUFFER)
                .serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_header_list_size(MAX_HEAD as u32)
                .max_concurrent_streams(MAX_STREAMS)
                .max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
                .max_send_buf_size(READ_BUFFER)
                .initial_stream_window_size(256 * 1024)
                .initial_connection_window_size(1024 * 1024)
                .keep_alive_interval(timeouts.idle / 2)
                .keep_alive_timeout(timeouts.header)
                .serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = until_idle(&activity, timeouts.idle) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.address, %error, "a connection broke");
    }
}

/// Shakes hands where TLS is spoken, and finds out what the client speaks.
async fn sniff(
    stream: TcpStream,
    peer: Peer,
    certificates: Option<Arc<Certificates>>,
    timeouts: Timeouts,
    activity: &Arc<Activity>,
) -> Option<(Wire, Protocol)> {
    let stream = match certificates {
        None => Transport::Plain(stream),
        Some(certificates) => {
            let config = certificates.current();
            match Transport::accept(stream, config, timeouts.header).await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(peer = %peer.address, %error, "no TLS with this client");
                    return None;
                }
            }
        }
    };
    Wire::sniff(stream, timeouts.into(), Arc::clone(activity)).await
}

/// Waits until a whole period has passed without a request.
async fn until_idle(activity: &Activity, period: Duration) {
    let mut begun = activity.begun();
    loop {
        tokio::time::sleep(period).await;
        let now = activity.begun();
        if now == begun && activity.count() == 0 {
            return;
        }
        begun = now;
    }
}

/// Counts a connection as long as it lives.
struct Open<'a>(&'a Gateway);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

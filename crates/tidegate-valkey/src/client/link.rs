//! One connection to one server, kept up: made again when it ends or when nothing comes back on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::Shared;
use super::backoff::Backoff;
use super::dial::{DialError, Dialer};
use super::metrics::Event;

/// A connection that lived shorter is not followed by another at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Waits between attempts to connect: with the time of an attempt itself, a server that is back is
/// found within a second.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(400));

/// How many deadlines a doubted connection has to prove itself. A server that merely stalls keeps
/// its connections: a thousand clients that come back together would make it slower.
const PATIENCE: u32 = 5;

/// No deadline counts as shorter here.
const SHORTEST: Duration = Duration::from_millis(10);

/// What a link is doing.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// The first attempt is under way, or the first after a connection ended.
    Connecting,
    /// Calls can be sent.
    Up(MultiplexedConnection),
    /// The last attempt failed, and another is made soon.
    Down(Arc<DialError>),
}

/// One connection, kept up by a task of its own.
#[derive(Debug)]
pub(crate) struct Link {
    state: watch::Receiver<State>,
    health: Arc<Health>,
    task: AbortHandle,
}

/// What calls tell the task.
#[derive(Debug, Default)]
struct Health {
    /// Whether the last call got no answer.
    silent: AtomicBool,
    /// Wakes the task: nothing comes back, or the server is not what it was.
    doubted: Notify,
}

impl Link {
    /// Begins to connect. Needs a tokio runtime.
    pub(crate) fn start(dialer: Arc<Dialer>, shared: Arc<Shared>) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let health = Arc::new(Health::default());
        let task = Task {
            dialer,
            shared,
            state: sender,
            health: Arc::clone(&health),
        };
        Self {
            state,
            health,
            task: tokio::spawn(task.run()).abort_handle(),
        }
    }

    /// What it is doing now.
    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// The connection, if there is one and calls on it get answers.
    pub(crate) fn trusted(&self) -> Option<MultiplexedConnection> {
        match &*self.state.borrow() {
            State::Up(connection) if !self.health.silent.load(Relaxed) => Some(connection.clone()),
            _ => None,
        }
    }

    /// Waits until the link does something else than now.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut state = self.state.clone();
        state.mark_unchanged();
        async move {
            // The sender lives as long as the link's task; without it there is nothing to wait for.
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notes that a call was answered, with whatever.
    pub(crate) fn answered(&self) {
        if self.health.silent.load(Relaxed) {
            self.health.silent.store(false, Relaxed);
        }
    }

    /// Notes that a call was not answered in time: others are used until the connection has proved
    /// itself.
    pub(crate) fn silent(&self) {
        self.health.silent.store(true, Relaxed);
        self.doubt();
    }

    /// Has the connection prove that the server answers and is a primary, or be replaced.
    pub(crate) fn doubt(&self) {
        self.health.doubted.notify_one();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    dialer: Arc<Dialer>,
    shared: Arc<Shared>,
    state: watch::Sender<State>,
    health: Arc<Health>,
}

impl Task {
    async fn run(self) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let ended = Arc::new(Notify::new());
            let told = Arc::clone(&ended);
            let pushed = move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    told.notify_one();
                }
                Ok::<(), redis::aio::SendError>(())
            };
            match self.dialer.dial(pushed).await {
                Ok(connection) => {
                    let since = Instant::now();
                    self.shared.metrics.connects.fetch_add(1, Relaxed);
                    self.shared.tell(|| Event::Connected {
                        server: self.dialer.to_string(),
                    });
                    self.health.silent.store(false, Relaxed);
                    self.state.send_replace(State::Up(connection.clone()));
                    self.keep(connection, &ended).await;
                    self.state.send_replace(State::Connecting);
                    self.shared.tell(|| Event::Disconnected {
                        server: self.dialer.to_string(),
                    });
                    if since.elapsed() > SHORT_LIFE {
                        backoff.reset();
                    } else {
                        tokio::time::sleep(backoff.next()).await;
                    }
                }
                Err(error) => {
                    self.shared.metrics.connect_failures.fetch_add(1, Relaxed);
                    self.shared.tell(|| Event::ConnectFailed {
                        server: self.dialer.to_string(),
                        message: error.to_string(),
                    });
                    self.state.send_replace(State::Down(Arc::new(error)));
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
    }

    /// Returns when the connection is of no more use.
    async fn keep(&self, mut connection: MultiplexedConnection, ended: &Notify) {
        loop {
            tokio::select! {
                () = ended.notified() => return,
                () = self.health.doubted.notified() => {}
            }
            let patience = PATIENCE * self.shared.options.deadline.max(SHORTEST);
            match timeout(patience, self.dialer.check(&mut connection)).await {
                Ok(Ok(())) => self.health.silent.store(false, Relaxed),
                _ => return,
            }
        }
    }
}

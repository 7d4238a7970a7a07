//! One server: its connections, its breaker, the scripts that it knows.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::{Instant, timeout, timeout_at};

mod watched;

use super::Shared;
use super::address::Address;
use super::backoff::Backoff;
use super::breaker::{Breaker, Change};
use super::dial::Dialer;
use super::link::{Link, State};
use super::metrics::Event;
use super::refusal::Refusal;
use crate::{Script, StoreError};
use watched::OwnConnections;
pub(crate) use watched::Watched;

/// The longest time between two probes of a server that is not asked.
const PROBE: Duration = Duration::from_millis(400);

/// How often one call loads a script that the server says it lacks: a server that is emptied again
/// and again must not hold a call.
const LOADS: u32 = 3;

/// One server that decides.
#[derive(Debug)]
pub(crate) struct Node {
    dialer: Arc<Dialer>,
    links: Vec<Link>,
    next: AtomicUsize,
    breaker: Breaker,
    /// How often the breaker opened since it was last closed.
    reopenings: AtomicU32,
    loaded: Loaded,
    /// Connections that serve one call at a time.
    own: OwnConnections,
    shared: Arc<Shared>,
    /// For the task that probes: it must not keep the server's connections alive.
    this: Weak<Self>,
}

/// Which scripts were given to the server, and when.
#[derive(Debug, Default)]
struct Loaded {
    /// How many times a script was loaded.
    count: AtomicU64,
    /// The count right after each script's last loading. Held while one is loaded, so that many
    /// calls which miss a script together load it once.
    last: tokio::sync::Mutex<HashMap<&'static str, u64>>,
}

/// One call, as it is sent.
pub(crate) struct Request {
    /// What it is called in messages.
    pub(crate) name: &'static str,
    /// What the server has to know first.
    pub(crate) script: Option<&'static Script>,
    /// A command that goes with it: then the reply is a list of both replies.
    pub(crate) lead: Option<redis::Cmd>,
    /// `EVALSHA` with everything, or what is asked without scripts.
    pub(crate) command: redis::Cmd,
    pub(crate) deadline: Instant,
}

/// Why one server gave no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server did not run the script and says why: another server or another moment may do.
    Refused(Refusal),
    /// The call is over.
    Final(StoreError),
}

impl Node {
    /// Begins to connect to a server. Needs a tokio runtime.
    pub(crate) fn start(dialer: Dialer, shared: &Arc<Shared>) -> Arc<Self> {
        let dialer = Arc::new(dialer);
        Arc::new_cyclic(|this| Self {
            links: (0..shared.options.connections)
                .map(|_| Link::start(Arc::clone(&dialer), Arc::clone(shared)))
                .collect(),
            dialer,
            next: AtomicUsize::new(0),
            breaker: Breaker::new(shared.options.failures),
            reopenings: AtomicU32::new(0),
            loaded: Loaded::default(),
            own: OwnConnections::default(),
            shared: Arc::clone(shared),
            this: this.clone(),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        self.dialer.address()
    }

    pub(crate) fn dialer(&self) -> Arc<Dialer> {
        Arc::clone(&self.dialer)
    }

    /// Whether calls are let through to it.
    pub(crate) fn is_closed(&self) -> bool {
        self.breaker.is_closed()
    }

    /// Waits until a connection is up.
    pub(crate) async fn ready(&self, deadline: Instant) -> Result<(), StoreError> {
        match self.connected(deadline).await {
            Ok(_) => Ok(()),
            Err(Failure::Final(error)) => Err(error),
            Err(Failure::Refused(_)) => unreachable!("nothing was sent"),
        }
    }

    /// Makes sure that calls are let through to it and that it answers.
    pub(crate) async fn check(&self, deadline: Instant) -> Result<(), StoreError> {
        let server = || self.dialer.to_string();
        if self.breaker.is_open() {
            return Err(StoreError::BreakerOpen { server: server() });
        }
        let (link, mut connection) = match self.connected(deadline).await {
            Ok(connected) => connected,
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Refused(_)) => unreachable!("nothing was sent"),
        };
        let ping = redis::cmd("PING");
        let pong = timeout_at(deadline, connection.send_packed_command(&ping));
        match pong.await {
            Ok(Ok(Value::ServerError(error))) => match Refusal::of(&error) {
                Some(refusal) => Err(StoreError::Unavailable {
                    server: server(),
                    message: refusal.message(),
                }),
                // A missing permission says that it is well.
                None => Ok(()),
            },
            Ok(Ok(_)) => Ok(()),
            Ok(Err(source)) => Err(StoreError::Broken {
                server: server(),
                source: Box::new(source),
            }),
            Err(_) => {
                link.doubt();
                Err(StoreError::Timeout {
                    server: server(),
                    deadline: self.shared.options.deadline,
                })
            }
        }
    }

    /// Has every connection make sure that the server is still a primary.
    pub(crate) fn doubt(&self) {
        self.links.iter().for_each(Link::doubt);
    }

    /// A connection that is up, for questions beside the calls.
    pub(crate) fn connection(&self) -> Option<MultiplexedConnection> {
        self.links.iter().find_map(Link::trusted)
    }

    /// Runs the script, loading it if the server lacks it. `asking` goes before it where a slot is
    /// on its way to this server.
    pub(crate) async fn ask(&self, request: &Request, asking: bool) -> Result<Value, Failure> {
        let Some(admission) = self.breaker.admit() else {
            let server = self.dialer.to_string();
            return Err(Failure::Final(StoreError::BreakerOpen { server }));
        };
        let result = self.run(request, asking).await;
        self.note(match &result {
            Err(Failure::Refused(refusal)) if refusal.blames_server() => admission.refuse(),
            Err(Failure::Final(error)) if error.blames_server() => admission.fail(),
            _ => admission.succeed(),
        });
        result
    }

    /// Notes that a call was given up since the server went on refusing it.
    pub(crate) fn gave_up(&self) {
        if let Some(admission) = self.breaker.admit() {
            self.note(admission.fail());
        }
    }

    fn note(&self, change: Change) {
        match change {
            Change::None => {}
            Change::Opened => self.opened(),
            Change::Closed => self.closed(),
        }
    }

    async fn run(&self, request: &Request, asking: bool) -> Result<Value, Failure> {
        let mut loads = 0;
        loop {
            let (link, connection) = self.connected(request.deadline).await?;
            let known = self.loaded.count.load(Acquire);
            let reply = self.send(link, connection, request, asking).await?;
            let Value::ServerError(error) = reply else {
                return Ok(reply);
            };
            match Refusal::of(&error) {
                Some(Refusal::NoScript)
                    if loads < LOADS
                        && let Some(script) = request.script =>
                {
                    loads += 1;
                    self.shared.metrics.retries.fetch_add(1, Relaxed);
                    self.load(script, request.deadline, known).await?;
                }
                Some(refusal) => return Err(Failure::Refused(refusal)),
                None => {
                    let server = self.dialer.to_string();
                    let error = super::refusal::final_error(server, request.name, &error);
                    return Err(Failure::Final(error));
                }
            }
        }
    }

    /// The next connection that is up; waits for one if all are being made.
    async fn connected(
        &self,
        deadline: Instant,
    ) -> Result<(&Link, MultiplexedConnection), Failure> {
        loop {
            let first = self.next.fetch_add(1, Relaxed);
            let links = (0..self.links.len()).map(|i| &self.links[(first + i) % self.links.len()]);
            if let Some(found) = links.clone().find_map(|link| Some((link, link.trusted()?))) {
                return Ok(found);
            }
            // Subscribed before it is looked at, so that no change is missed.
            let changes: Vec<_> = links.clone().map(|link| Box::pin(link.changed())).collect();
            let mut why = None;
            let mut connecting = false;
            for link in links {
                match link.state() {
                    State::Up(connection) => return Ok((link, connection)),
                    State::Connecting => connecting = true,
                    State::Down(error) => why = Some(error),
                }
            }
            if let (false, Some(error)) = (connecting, why) {
                let error = error.to_store_error(self.dialer.to_string());
                return Err(Failure::Final(error));
            }
            if timeout_at(deadline, first_of(changes)).await.is_err() {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(Failure::Final(StoreError::Unreachable {
                    server: self.dialer.to_string(),
                    source: Box::new(late),
                }));
            }
        }
    }

    async fn send(
        &self,
        link: &Link,
        mut connection: MultiplexedConnection,
        request: &Request,
        asking: bool,
    ) -> Result<Value, Failure> {
        let sent = async {
            if asking || request.lead.is_some() {
                together(&mut connection, request, asking).await
            } else {
                connection.send_packed_command(&request.command).await
            }
        };
        match timeout_at(request.deadline, sent).await {
            Ok(Ok(reply)) => {
                link.answered();
                Ok(reply)
            }
            Ok(Err(source)) => Err(Failure::Final(StoreError::Broken {
                server: self.dialer.to_string(),
                source: Box::new(source),
            })),
            Err(_) => {
                link.silent();
                Err(Failure::Final(StoreError::Timeout {
                    server: self.dialer.to_string(),
                    deadline: self.shared.options.deadline,
                }))
            }
        }
    }

    /// Gives the server a script, unless that was done since `known` loadings.
    async fn load(
        &self,
        script: &'static Script,
        deadline: Instant,
        known: u64,
    ) -> Result<(), Failure> {
        let late = || Failure::Refused(Refusal::NoScript);
        let lock = timeout_at(deadline, self.loaded.last.lock());
        let mut last = lock.await.map_err(|_| late())?;
        if last.get(script.sha1()).is_some_and(|count| *count > known) {
            return Ok(());
        }
        let (_, mut connection) = self.connected(deadline).await?;
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(script.source);
        let sent = timeout_at(deadline, connection.send_packed_command(&command));
        let server = || self.dialer.to_string();
        match sent.await.map_err(|_| late())? {
            Ok(Value::ServerError(error)) => Err(match Refusal::of(&error) {
                Some(refusal) => Failure::Refused(refusal),
                None => {
                    let error = super::refusal::final_error(server(), script.name, &error);
                    Failure::Final(error)
                }
            }),
            Ok(_) => {
                let count = self.loaded.count.fetch_add(1, Release) + 1;
                last.insert(script.sha1(), count);
                self.shared.metrics.script_loads.fetch_add(1, Relaxed);
                self.shared.tell(|| Event::ScriptLoaded {
                    server: server(),
                    script: script.name,
                });
                Ok(())
            }
            // The script itself was not run.
            Err(source) => Err(Failure::Final(StoreError::Unreachable {
                server: server(),
                source: Box::new(source),
            })),
        }
    }

    fn opened(&self) {
        let again = self.reopenings.fetch_add(1, Relaxed);
        self.shared.metrics.breaker_openings.fetch_add(1, Relaxed);
        self.shared.tell(|| Event::BreakerOpened {
            server: self.dialer.to_string(),
        });
        let first = self.shared.options.deadline.max(Duration::from_millis(10));
        let mut backoff = Backoff::new(first * 2, PROBE.max(first * 2));
        // A server that answers probes and fails calls is tried less and less often.
        for _ in 0..again.min(8) {
            backoff.next();
        }
        tokio::spawn(probe(self.this.clone(), backoff));
    }

    fn closed(&self) {
        self.reopenings.store(0, Relaxed);
        self.shared.tell(|| Event::BreakerClosed {
            server: self.dialer.to_string(),
        });
    }
}

/// Asks a server that calls are kept from whether it is back.
async fn probe(node: Weak<Node>, mut backoff: Backoff) {
    loop {
        tokio::time::sleep(backoff.next()).await;
        let Some(node) = node.upgrade() else { return };
        if !node.breaker.is_open() {
            return;
        }
        // Where no connection is up, its own task is making one.
        for link in &node.links {
            let State::Up(mut connection) = link.state() else {
                continue;
            };
            let ping = redis::cmd("PING");
            let patience = node.shared.options.deadline.max(Duration::from_millis(10));
            let pong = timeout(patience, connection.send_packed_command(&ping)).await;
            match pong {
                // Not yet: it loads, or is busy. A missing permission says that it is well.
                Ok(Ok(Value::ServerError(error))) if Refusal::of(&error).is_some() => {}
                Ok(Ok(_)) => {
                    link.answered();
                    node.breaker.probe_succeeded();
                    return;
                }
                Ok(Err(_)) | Err(_) => link.doubt(),
            }
        }
    }
}

/// The command with what goes before it, and nothing of another call between them.
async fn together(
    connection: &mut MultiplexedConnection,
    request: &Request,
    asking: bool,
) -> Result<Value, RedisError> {
    let mut all = redis::Pipeline::with_capacity(3);
    if let Some(lead) = &request.lead {
        all.add_command(lead.clone());
    }
    if asking {
        all.cmd("ASKING");
    }
    all.add_command(request.command.clone());
    let mut replies = connection.send_packed_commands(&all, 0, all.len()).await?;
    let last = replies.pop().unwrap_or(Value::Nil);
    if request.lead.is_none() || matches!(last, Value::ServerError(_)) {
        return Ok(last);
    }
    replies.truncate(1);
    replies.push(last);
    Ok(Value::Array(replies))
}

/// The first of several futures to end.
async fn first_of<F: Future<Output = ()> + Unpin>(mut futures: Vec<F>) {
    std::future::poll_fn(|context| {
        let ended = futures
            .iter_mut()
            .any(|future| std::pin::Pin::new(future).poll(context).is_ready());
        if ended {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

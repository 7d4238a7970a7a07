//! The network side: scripts are called on whatever server decides about their keys.
//!
//! Calls share connections and go out together; no call waits for another's answer. What a server
//! refuses is tried again where or when it may succeed, as long as the call's deadline allows.
//! What may have been counted is never tried again.

mod address;
mod backoff;
mod breaker;
mod cluster;
mod dial;
mod found;
mod link;
mod metrics;
mod node;
mod notify;
mod options;
mod refusal;
mod sentinel;
mod swap;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

pub(crate) use address::Layout;
pub use address::UrlError;
pub use metrics::{ClientStats, Event};
pub use notify::{Notifications, Wake};
pub use options::ClientOptions;
pub(crate) use swap::{Read, jitter, set};

use crate::{Script, StoreError};
use backoff::Backoff;
use metrics::Metrics;
use node::{Failure, Node, Request};
use notify::Hub;
use refusal::Refusal;
use topology::Topology;

/// How often one call is sent on by servers before it waits for them to agree.
const HOPS: u32 = 8;

/// Waits between tries of a call that a server refuses for the moment.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// Options that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("a certificate or key cannot be read; it must be PEM")]
pub struct ClientError(#[source] redis::RedisError);

/// Calls scripts on one server, the primary that sentinels name, or a cluster.
///
/// Clones share everything. Connections are kept up in the background and closed with the last
/// clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    topology: Arc<Topology>,
    hub: Arc<Hub>,
}

/// What all parts of a client need.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ClientOptions,
    pub(crate) metrics: Metrics,
}

impl Shared {
    /// Tells the observer, if there is one.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(observer) = &self.options.observer {
            observer(&event());
        }
    }
}

impl Client {
    /// Begins to connect and returns at once: a store that is down is no reason not to start, the
    /// first calls say so. Who wants to know first asks [`ready`](Self::ready).
    ///
    /// # Errors
    /// If a certificate or key is no PEM.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(options: ClientOptions) -> Result<Self, ClientError> {
        let shared = Arc::new(Shared {
            options,
            metrics: Metrics::default(),
        });
        let topology = Arc::new(Topology::start(&shared).map_err(ClientError)?);
        let hub = Hub::new(Arc::downgrade(&topology));
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                topology,
                hub,
            }),
        })
    }

    /// Waits until every server that decides can be asked.
    ///
    /// # Errors
    /// If that does not come true `within` a time: why the last server could not be asked. A wrong
    /// password or a server of the wrong kind is told at once.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + within;
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(50));
        loop {
            let error = match self.all_ready(deadline).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let hopeless = matches!(
                error,
                StoreError::Authentication { .. } | StoreError::Unsupported { .. }
            );
            let wait = backoff.next();
            if hopeless || Instant::now() + wait >= deadline {
                return Err(error);
            }
            self.inner.topology.suspect();
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks every server that decides whether it answers, once: for those who want to know whether
    /// a call would get an answer now.
    ///
    /// # Errors
    /// Why the first one that does not answer `within` a time cannot be asked.
    pub async fn check(&self, within: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + within;
        let owner = self.inner.topology.owner(b"", deadline).await?;
        if owner.is_none() {
            return Err(StoreError::Unavailable {
                server: self.name(),
                message: "no server has some of the slots".into(),
            });
        }
        for node in self.inner.topology.nodes() {
            node.check(deadline).await?;
        }
        Ok(())
    }

    async fn all_ready(&self, deadline: Instant) -> Result<(), StoreError> {
        self.inner.topology.owner(b"", deadline).await?;
        for node in self.inner.topology.nodes() {
            node.ready(deadline).await?;
        }
        Ok(())
    }

    /// Runs a script on the server that decides about its first key.
    ///
    /// In a cluster all keys must lie in one slot. The server is given the script if it lacks it.
    ///
    /// # Errors
    /// If there is no reply: [`StoreError::was_counted`] tells what may have happened.
    pub async fn call<K, A>(
        &self,
        script: &'static Script,
        keys: &[K],
        arguments: &[A],
    ) -> Result<Value, StoreError>
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        self.call_until(script, keys, arguments, self.deadline())
            .await
    }

    /// When a call that begins now has to be over.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.inner.shared.options.deadline
    }

    /// How long a call may take.
    pub(crate) fn patience(&self) -> Duration {
        self.inner.shared.options.deadline
    }

    /// Where in a cluster a key lies; without a cluster all keys lie together.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        match &*self.inner.topology {
            Topology::Cluster(_) => cluster::slot(key),
            Topology::Single(_) | Topology::Sentinel(_) => 0,
        }
    }

    /// Whether both are clones of one client.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// What the servers are called in messages about no one of them.
    pub(crate) fn name(&self) -> String {
        self.inner.shared.options.place.layout.to_string()
    }

    /// As [`call`](Self::call), for one of several calls that share a deadline.
    pub(crate) async fn call_until<K, A>(
        &self,
        script: &'static Script,
        keys: &[K],
        arguments: &[A],
        deadline: Instant,
    ) -> Result<Value, StoreError>
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        let request = Request {
            name: script.name,
            script: Some(script),
            lead: None,
            command: evalsha(script, keys, arguments),
            deadline,
        };
        let key = keys.first().map_or(&[][..], AsRef::as_ref);
        self.request(&request, key).await
    }

    async fn request(&self, request: &Request, key: &[u8]) -> Result<Value, StoreError> {
        let metrics = &self.inner.shared.metrics;
        metrics.calls.fetch_add(1, Relaxed);
        let _ended = Ended(&metrics.ended);
        let result = self.attempts(request, key).await;
        if let Err(error) = &result {
            metrics.count(error);
        }
        result
    }

    async fn attempts(&self, request: &Request, key: &[u8]) -> Result<Value, StoreError> {
        let topology = &self.inner.topology;
        let mut backoff = Backoff::new(TRY_AGAIN.0, TRY_AGAIN.1);
        let mut hops = 0;
        // Where another server sent the call, and whether the slot is only on its way there.
        let mut sent_on: Option<(Arc<Node>, bool)> = None;
        loop {
            let started = Instant::now();
            let target = match sent_on.take() {
                Some(target) => Some(target),
                None => {
                    let owner = topology.owner(key, request.deadline).await?;
                    owner.map(|node| (node, false))
                }
            };
            let refusal = match &target {
                Some((node, asking)) => match node.ask(request, *asking).await {
                    Ok(reply) => return Ok(reply),
                    Err(Failure::Final(error)) => {
                        if error.blames_server() {
                            topology.suspect();
                        }
                        return Err(error);
                    }
                    Err(Failure::Refused(refusal)) => refusal.seen_from(node.address()),
                },
                None => Refusal::Later("no server has the key's slot".into()),
            };
            self.inner.shared.metrics.retries.fetch_add(1, Relaxed);
            if !matches!(refusal, Refusal::Ask(_)) {
                topology.suspect();
            }
            if let (Refusal::ReadOnly(_), Some((node, _))) = (&refusal, &target) {
                node.doubt();
            }
            match refusal {
                Refusal::Moved(address) if hops < HOPS => {
                    sent_on = Some((topology.member(&address)?, false));
                }
                Refusal::Ask(address) if hops < HOPS => {
                    sent_on = Some((topology.member(&address)?, true));
                }
                refusal => {
                    let wait = backoff.next();
                    // The next try has to end in time as well: one that is cut off would leave
                    // open whether it was counted.
                    let now = Instant::now();
                    if now + wait + 2 * (now - started) >= request.deadline {
                        return Err(given_up(target.as_ref().map(|(node, _)| &**node), &refusal));
                    }
                    tokio::time::sleep(wait).await;
                }
            }
            hops += 1;
        }
    }

    /// Listens to a channel: whoever waits for something that others free is woken when they say
    /// so.
    ///
    /// Messages may be lost, when a connection breaks for example; so whoever waits looks again
    /// after some time without one, too. Needs a tokio runtime.
    #[must_use]
    pub fn notifications(&self, channel: impl Into<Vec<u8>>) -> Notifications {
        Hub::listen(&self.inner.hub, channel.into())
    }

    /// What was counted since the start.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let nodes = self.inner.topology.nodes();
        let open = nodes.iter().filter(|node| !node.is_closed()).count();
        ClientStats {
            breakers_open: open as u64,
            ..self.inner.shared.metrics.snapshot()
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("options", &self.inner.shared.options)
            .finish_non_exhaustive()
    }
}

/// Counts the end of a call, also of one that its caller gave up.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// What a call is told whose servers refused it until there was no time left.
fn given_up(node: Option<&Node>, refusal: &Refusal) -> StoreError {
    if let Some(node) = node.filter(|_| refusal.blames_server()) {
        node.gave_up();
    }
    StoreError::Unavailable {
        server: node.map_or_else(|| "the cluster".into(), |node| node.address().to_string()),
        message: refusal.message(),
    }
}

fn evalsha<K, A>(script: &'static Script, keys: &[K], arguments: &[A]) -> redis::Cmd
where
    K: AsRef<[u8]>,
    A: AsRef<[u8]>,
{
    let keys_size: usize = keys.iter().map(|key| key.as_ref().len()).sum();
    let arguments_size: usize = arguments.iter().map(|value| value.as_ref().len()).sum();
    let mut command = redis::Cmd::with_capacity(
        3 + keys.len() + arguments.len(),
        64 + keys_size + arguments_size,
    );
    command.arg("EVALSHA").arg(script.sha1()).arg(keys.len());
    for key in keys {
        command.arg(key.as_ref());
    }
    for argument in arguments {
        command.arg(argument.as_ref());
    }
    command
}

//! Being woken when another process frees what one waits for.
//!
//! Plain channels, not sharded ones: they exist in every version, and a cluster carries them to all
//! nodes. A message says only that something may have changed. Nothing is missed for good: a
//! channel counts as changed too when it begins to be listened to, and whoever waits looks again
//! after some time anyway.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::backoff::Backoff;
use super::dial::bytes;
use super::topology::Topology;

/// How often a quiet connection has to show that it is alive.
const PULSE: Duration = Duration::from_secs(5);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something was published, or may have been.
    Published,
    /// The time is over.
    Elapsed,
}

/// Listens to one channel until it is dropped.
#[derive(Debug)]
pub struct Notifications {
    channel: Arc<[u8]>,
    changes: watch::Receiver<u64>,
    hub: Arc<Hub>,
}

impl Notifications {
    /// Waits until something is published, or has been since the last wait ended, at most for
    /// `at_most`. What a caller does before it waits is safe: look, and wait if there is nothing.
    pub async fn wait(&mut self, at_most: Duration) -> Wake {
        match timeout(at_most, self.changes.changed()).await {
            Ok(Ok(())) => Wake::Published,
            // The hub goes with the last listener, so its side is there.
            Ok(Err(_)) | Err(_) => Wake::Elapsed,
        }
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        let mut channels = self.hub.channels();
        if let Entry::Occupied(mut entry) = channels.entry(Arc::clone(&self.channel)) {
            entry.get_mut().listeners -= 1;
            if entry.get().listeners == 0 {
                entry.remove();
                self.hub.tell(Order::Leave(Arc::clone(&self.channel)));
            }
        }
    }
}

/// All channels of a client, on one connection that is made when the first is listened to.
#[derive(Debug)]
pub(crate) struct Hub {
    channels: Mutex<HashMap<Arc<[u8]>, Channel>>,
    topology: Weak<Topology>,
    task: Mutex<Option<(mpsc::UnboundedSender<Order>, AbortHandle)>>,
}

#[derive(Debug)]
struct Channel {
    changes: watch::Sender<u64>,
    listeners: usize,
}

#[derive(Debug)]
enum Order {
    Join(Arc<[u8]>),
    Leave(Arc<[u8]>),
}

impl Hub {
    pub(crate) fn new(topology: Weak<Topology>) -> Arc<Self> {
        Arc::new(Self {
            channels: Mutex::default(),
            topology,
            task: Mutex::default(),
        })
    }

    pub(crate) fn listen(hub: &Arc<Self>, channel: Vec<u8>) -> Notifications {
        let channel: Arc<[u8]> = channel.into();
        let changes = match hub.channels().entry(Arc::clone(&channel)) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().listeners += 1;
                entry.get().changes.subscribe()
            }
            Entry::Vacant(entry) => {
                let (sender, receiver) = watch::channel(0);
                entry.insert(Channel {
                    changes: sender,
                    listeners: 1,
                });
                hub.start();
                hub.tell(Order::Join(Arc::clone(&channel)));
                receiver
            }
        };
        Notifications {
            channel,
            changes,
            hub: Arc::clone(hub),
        }
    }

    fn start(self: &Arc<Self>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_none() {
            let (sender, orders) = mpsc::unbounded_channel();
            let running = tokio::spawn(run(Arc::downgrade(self), orders));
            *task = Some((sender, running.abort_handle()));
        }
    }

    fn tell(&self, order: Order) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((orders, _)) = &*task {
            // If the task has ended, the client has.
            let _ = orders.send(order);
        }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, channel: &[u8]) {
        if let Some(channel) = self.channels().get(channel) {
            channel.changes.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, task)) = task {
            task.abort();
        }
    }
}

async fn run(hub: Weak<Hub>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
    loop {
        let ended = Arc::new(Notify::new());
        if let Some(connection) = connect(&hub, Arc::clone(&ended)).await {
            let Some(channels) = hub
                .upgrade()
                .map(|hub| hub.channels().keys().map(Arc::clone).collect::<Vec<_>>())
            else {
                return;
            };
            if serve(connection, channels, &mut orders, &ended).await {
                return;
            }
            backoff.reset();
        }
        sleep(backoff.next()).await;
    }
}

/// A connection to any server, whose messages wake the channels' listeners.
async fn connect(hub: &Weak<Hub>, ended: Arc<Notify>) -> Option<MultiplexedConnection> {
    let nodes = hub.upgrade()?.topology.upgrade()?.nodes();
    let nodes: Vec<_> = nodes.into_iter().filter(|node| node.is_closed()).collect();
    let dialer = fastrand::choice(nodes.iter())?.dialer();
    drop(nodes);
    let hub = Weak::clone(hub);
    let pushed = move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => ended.notify_one(),
            // From here on messages come; there may have been some before.
            PushKind::Message | PushKind::Subscribe => {
                let channel = push.data.first().and_then(bytes);
                if let (Some(hub), Some(channel)) = (hub.upgrade(), channel) {
                    hub.wake(channel);
                }
            }
            _ => {}
        }
        Ok::<(), redis::aio::SendError>(())
    };
    dialer.dial(pushed).await.ok()
}

/// Keeps the subscriptions as they should be; returns whether the hub is gone.
async fn serve(
    mut connection: MultiplexedConnection,
    channels: Vec<Arc<[u8]>>,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    ended: &Notify,
) -> bool {
    for channel in &channels {
        if connection.subscribe(&channel[..]).await.is_err() {
            return false;
        }
    }
    // Orders that were given while there was no connection may name what is done already.
    let mut joined: HashSet<_> = channels.into_iter().collect();
    loop {
        let done = tokio::select! {
            () = ended.notified() => return false,
            order = orders.recv() => match order {
                Some(Order::Join(channel)) if joined.contains(&channel) => Ok(()),
                Some(Order::Join(channel)) => {
                    let done = connection.subscribe(&channel[..]).await;
                    joined.insert(channel);
                    done
                }
                Some(Order::Leave(channel)) => {
                    joined.remove(&channel);
                    connection.unsubscribe(&channel[..]).await
                }
                None => return true,
            },
            () = sleep(PULSE) => {
                match timeout(PULSE, connection.send_packed_command(&redis::cmd("PING"))).await {
                    Ok(pong) => pong.map(|_| ()),
                    Err(_) => return false,
                }
            }
        };
        if done.is_err() {
            return false;
        }
    }
}

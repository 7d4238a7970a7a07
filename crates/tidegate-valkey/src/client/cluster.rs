//! A cluster: which server has a key's slot, found out again when servers say otherwise.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::address::Address;
use super::dial::{DialError, Dialer, Expect, bytes};
use super::found::{Finder, Found, unknown};
use super::metrics::Event;
use super::node::Node;

/// The shortest time between two questions for the slots.
const PAUSE: Duration = Duration::from_millis(50);

/// A server that so many views of the cluster in succession do not name is let go. One may be
/// missing in the view of a node that heard of it late.
const MISSES: u8 = 3;

/// The slot of a key: of what stands between its first `{` and the next `}`, if that is not
/// empty, else of all.
///
/// Source: the Redis cluster specification, hash tags.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % 16_384
}

/// Ranges of slots and their primaries, in order.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<(u16, u16, Arc<Node>)>);

impl Slots {
    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let after = self.0.partition_point(|(first, ..)| *first <= slot);
        let (_, last, node) = self.0.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(node)
    }

    /// All primaries, some of them more than once.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.0.iter().map(|(.., node)| node)
    }
}

/// A cluster that is followed.
#[derive(Debug)]
pub(crate) struct Cluster {
    slots: Found<Arc<Slots>>,
    members: Arc<Members>,
    wanted: Arc<Notify>,
    task: AbortHandle,
}

/// Servers that connections are kept to.
#[derive(Debug)]
struct Members {
    nodes: Mutex<HashMap<Address, (Arc<Node>, u8)>>,
    shared: Arc<Shared>,
}

impl Cluster {
    /// Begins to ask for the slots. Needs a tokio runtime.
    pub(crate) fn start(
        seeds: &[Address],
        shared: &Arc<Shared>,
    ) -> Result<Self, redis::RedisError> {
        // What cannot be read in the options is found out here, not at the first redirection.
        for seed in seeds {
            Dialer::new(seed.clone(), Expect::ClusterNode, &shared.options)?;
        }
        let (finder, slots) = unknown();
        let wanted = Arc::new(Notify::new());
        let members = Arc::new(Members {
            nodes: Mutex::default(),
            shared: Arc::clone(shared),
        });
        let task = Task {
            seeds: seeds.to_vec(),
            others: Vec::new(),
            layout: Vec::new(),
            members: Arc::clone(&members),
            finder,
        };
        Ok(Self {
            slots,
            members,
            task: tokio::spawn(task.run(Arc::clone(&wanted))).abort_handle(),
            wanted,
        })
    }

    pub(crate) const fn slots(&self) -> &Found<Arc<Slots>> {
        &self.slots
    }

    /// The server that another one named.
    pub(crate) fn member(&self, address: &Address) -> Result<Arc<Node>, redis::RedisError> {
        self.members.get(address)
    }

    /// Has the slots asked for soon: they are not where they were.
    pub(crate) fn suspect(&self) {
        self.wanted.notify_one();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Members {
    fn get(&self, address: &Address) -> Result<Arc<Node>, redis::RedisError> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((node, _)) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let dialer = Dialer::new(
            address.clone(),
            Expect::ClusterPrimary,
            &self.shared.options,
        )?;
        let node = Node::start(dialer, &self.shared);
        nodes.insert(address.clone(), (Arc::clone(&node), 0));
        Ok(node)
    }

    /// Lets go of servers that have not been named for a while.
    fn retain(&self, named: &[&Address]) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|address, (_, misses)| {
            *misses = if named.contains(&address) {
                0
            } else {
                *misses + 1
            };
            *misses < MISSES
        });
    }

    fn all(&self) -> Vec<Arc<Node>> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.values().map(|(node, _)| Arc::clone(node)).collect()
    }
}

/// A range of slots as a server describes it: first, last, the primary, its replicas.
type Range = (u16, u16, Address, Vec<Address>);

struct Task {
    seeds: Vec<Address>,
    /// Replicas, which know the slots as well.
    others: Vec<Address>,
    layout: Vec<(u16, u16, Address)>,
    members: Arc<Members>,
    finder: Finder<Arc<Slots>>,
}

impl Task {
    async fn run(mut self, wanted: Arc<Notify>) {
        loop {
            match self.ask().await {
                Ok(ranges) => self.follow(ranges),
                Err((server, error)) => self.finder.fail(server, error),
            }
            // Spread, so that many clients do not ask a cluster that has just come back together.
            sleep(PAUSE.mul_f64(1.0 + fastrand::f64())).await;
            wanted.notified().await;
        }
    }

    /// Asks servers one after another, those first that calls get answers from.
    async fn ask(&self) -> Result<Vec<Range>, (String, DialError)> {
        let mut nodes = self.members.all();
        nodes.retain(|node| node.is_closed());
        fastrand::shuffle(&mut nodes);
        for node in nodes {
            let Some(mut connection) = node.connection() else {
                continue;
            };
            if let Ok(ranges) = self.ask_on(&mut connection, node.address()).await {
                return Ok(ranges);
            }
        }
        let mut addresses: Vec<_> = self.others.iter().chain(&self.seeds).collect();
        fastrand::shuffle(&mut addresses);
        let mut failure = None;
        for address in addresses {
            let options = &self.members.shared.options;
            let answer = match Dialer::new(address.clone(), Expect::ClusterNode, options) {
                Ok(dialer) => match dialer.dial(|_| Ok(())).await {
                    Ok(mut connection) => self.ask_on(&mut connection, address).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(DialError::Connect(error)),
            };
            match answer {
                Ok(ranges) => return Ok(ranges),
                Err(error) => failure = Some((address.to_string(), error)),
            }
        }
        Err(failure.unwrap_or_else(|| ("the cluster".into(), DialError::timed_out())))
    }

    async fn ask_on(
        &self,
        connection: &mut MultiplexedConnection,
        address: &Address,
    ) -> Result<Vec<Range>, DialError> {
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let patience = self.members.shared.options.connect_timeout;
        let reply = timeout(patience, connection.send_packed_command(&question))
            .await
            .map_err(|_| DialError::timed_out())?
            .and_then(Value::extract_error)
            .map_err(DialError::Connect)?;
        Ok(read_ranges(&reply, address))
    }

    fn follow(&mut self, mut ranges: Vec<Range>) {
        ranges.sort_unstable();
        self.others = ranges.iter().flat_map(|range| range.3.clone()).collect();
        self.others.sort_unstable();
        self.others.dedup();
        let layout: Vec<_> = ranges
            .into_iter()
            .map(|(first, last, address, _)| (first, last, address))
            .collect();
        let slots = layout
            .iter()
            .filter_map(|(first, last, address)| {
                // The options were good for the seeds; an address cannot make them worse.
                let node = self.members.get(address).ok()?;
                Some((*first, *last, node))
            })
            .collect();
        let mut named: Vec<_> = layout.iter().map(|(.., address)| address).collect();
        named.sort_unstable();
        named.dedup();
        self.members.retain(&named);
        if layout != self.layout {
            self.members.shared.tell(|| Event::SlotsChanged {
                servers: named.len(),
            });
            self.layout = layout;
        }
        self.finder.know(Arc::new(Slots(slots)));
    }
}

/// Reads `CLUSTER SLOTS`. What is not understood is left out: its slots have no owner then.
fn read_ranges(reply: &Value, asked: &Address) -> Vec<Range> {
    let Value::Array(ranges) = reply else {
        return Vec::new();
    };
    ranges
        .iter()
        .filter_map(|range| {
            let Value::Array(fields) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = fields.as_slice()
            else {
                return None;
            };
            Some((
                u16::try_from(*first).ok()?,
                u16::try_from(*last).ok()?,
                read_node(primary, asked)?,
                replicas
                    .iter()
                    .filter_map(|replica| read_node(replica, asked))
                    .collect(),
            ))
        })
        .collect()
}

fn read_node(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(fields) = value else {
        return None;
    };
    let [host, Value::Int(port), ..] = fields.as_slice() else {
        return None;
    };
    let host = match bytes(host) {
        // It is reached under the name that it was asked by.
        None | Some(b"") => match asked {
            Address::Tcp(host, _) => host.clone(),
            Address::Unix(_) => return None,
        },
        // It has no name yet.
        Some(b"?") => return None,
        Some(host) => String::from_utf8(host.to_vec()).ok()?,
    };
    Some(Address::Tcp(host, u16::try_from(*port).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, expected) in [
            ("123456789", 0x31c3),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("a{foo}bar", 12_182),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
            ("", 0),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn a_view_is_read_with_its_odd_hosts() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port)]);
        let text = |text: &str| Value::BulkString(text.into());
        let range = |first, last, nodes: Vec<Value>| {
            let mut fields = vec![Value::Int(first), Value::Int(last)];
            fields.extend(nodes);
            Value::Array(fields)
        };
        let reply = Value::Array(vec![
            range(0, 9, vec![node(text("a"), 1), node(text("b"), 2)]),
            range(10, 19, vec![node(Value::Nil, 3)]),
            range(20, 29, vec![node(text("?"), 4)]),
        ]);
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        assert_eq!(
            read_ranges(&reply, &tcp("seed", 9)),
            [
                (0, 9, tcp("a", 1), vec![tcp("b", 2)]),
                (10, 19, tcp("seed", 3), vec![]),
            ]
        );
    }
}

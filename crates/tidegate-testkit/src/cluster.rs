//! A cluster of three primaries, each with a replica.

use std::process::{Command, Stdio};
use std::time::Duration;

use redis::Value;

use crate::binaries::{Flavor, program};
use crate::server::{Server, ServerOptions};
use crate::waiting::wait_until;

/// How long a cluster may take to agree on something.
const AGREE: Duration = Duration::from_secs(30);

/// Six servers that are a cluster. It sees within half a second that a node is gone.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts the servers, joins them and waits until all agree and every replica has its copy.
    ///
    /// # Panics
    ///
    /// If a program is not installed or the cluster is not ready in time.
    #[must_use]
    pub fn start(flavor: Flavor) -> Self {
        let nodes: Vec<_> = (0..6)
            .map(|_| {
                ServerOptions::new(flavor)
                    .directive("cluster-enabled yes")
                    .directive("cluster-node-timeout 500")
                    // A replica that has no copy yet takes over from nobody; without this the
                    // first copy comes after five seconds.
                    .directive("repl-diskless-sync-delay 0")
                    .start()
            })
            .collect();
        let created = Command::new(program("redis-cli"))
            .args(["--cluster", "create"])
            .args(nodes.iter().map(Server::address))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdin(Stdio::null())
            .output()
            .expect("redis-cli runs");
        assert!(
            created.status.success(),
            "no cluster: {}",
            String::from_utf8_lossy(&created.stdout)
        );
        let cluster = Self { nodes };
        wait_until("all nodes agree", AGREE, || {
            cluster.nodes.iter().all(|node| {
                node.info("cluster info").contains("cluster_state:ok")
                    && (node.is_primary()
                        || node
                            .info("info replication")
                            .contains("master_link_status:up"))
            })
        });
        cluster
    }

    /// All nodes, primaries and replicas.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// All nodes, to be killed or started again.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// `redis+cluster://` and the addresses of all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(Server::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// The place in [`nodes`](Self::nodes) of the primary that has a key's slot.
    ///
    /// # Panics
    ///
    /// If no node says that it has the slot.
    #[must_use]
    pub fn owner(&self, key: &str) -> usize {
        let slot = slot_of(&self.nodes[0], key);
        (0..self.nodes.len())
            .find(|index| self.nodes[*index].is_primary() && has_slot(&self.nodes[*index], slot))
            .expect("a primary has the slot")
    }

    /// Moves the slot of a key to another primary in the way that Valkey 9 has for it.
    ///
    /// # Panics
    ///
    /// If the servers refuse or do not finish in time.
    pub fn migrate(&self, key: &str, to: usize) {
        let from = self.owner(key);
        let slot = slot_of(&self.nodes[0], key);
        let id = self.nodes[to].info("cluster myid");
        self.nodes[from].command(&format!(
            "CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"
        ));
        wait_until("the slot has moved", AGREE, || {
            has_slot(&self.nodes[to], slot)
        });
    }
}

fn slot_of(node: &Server, key: &str) -> i64 {
    match node.command(&format!("CLUSTER KEYSLOT {key}")) {
        Value::Int(slot) => slot,
        other => panic!("no slot: {other:?}"),
    }
}

/// Whether a node believes that it has a slot itself.
fn has_slot(node: &Server, slot: i64) -> bool {
    node.info("cluster nodes")
        .lines()
        .filter(|line| line.contains("myself"))
        .flat_map(|line| line.split_ascii_whitespace().skip(8).map(str::to_owned))
        .filter(|range| !range.starts_with('['))
        .any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((&range, &range));
            let parse = |text: &str| text.parse::<i64>().expect("a slot");
            (parse(first)..=parse(last)).contains(&slot)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_starts_and_moves_a_slot() {
        let cluster = Cluster::start(Flavor::Valkey9);
        let from = cluster.owner("some-key");
        let to = (0..6)
            .find(|index| *index != from && cluster.nodes()[*index].is_primary())
            .unwrap();
        cluster.migrate("some-key", to);
        assert_eq!(cluster.owner("some-key"), to);
    }
}

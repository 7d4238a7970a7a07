//! A primary with two replicas, watched by three sentinels.

use std::time::Duration;

use crate::binaries::Flavor;
use crate::server::{Server, ServerOptions};
use crate::waiting::wait_until;

/// What the sentinels call the primary.
const NAME: &str = "main";

/// How long the servers may take to find each other.
const AGREE: Duration = Duration::from_secs(30);

/// A primary, its replicas and sentinels that replace it within about a second.
#[derive(Debug)]
pub struct SentinelSet {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl SentinelSet {
    /// Starts everything, and waits until the replicas have their copies and the sentinels know
    /// each other.
    ///
    /// # Panics
    ///
    /// If a server is not installed or all this takes too long.
    #[must_use]
    pub fn start(flavor: Flavor) -> Self {
        let options = || ServerOptions::new(flavor).directive("repl-diskless-sync-delay 0");
        let primary = options().start();
        let replica = || {
            options()
                .directive(format!("replicaof 127.0.0.1 {}", primary.port()))
                .start()
        };
        let replicas = [replica(), replica()];
        let monitor = format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port());
        let sentinels: Vec<_> = (0..3)
            .map(|_| {
                ServerOptions::new(flavor)
                    .sentinel()
                    .directive(&monitor)
                    .directive(format!("sentinel down-after-milliseconds {NAME} 500"))
                    .directive(format!("sentinel failover-timeout {NAME} 3000"))
                    .start()
            })
            .collect();
        let [first, second] = replicas;
        let set = Self {
            servers: vec![primary, first, second],
            sentinels,
        };
        wait_until("replicas and sentinels agree", AGREE, || {
            let copied = set.servers[1..].iter().all(|replica| {
                replica
                    .info("info replication")
                    .contains("master_link_status:up")
            });
            copied
                && set.sentinels.iter().all(|sentinel| {
                    sentinel
                        .info("info sentinel")
                        .contains("slaves=2,sentinels=3")
                })
        });
        set
    }

    /// `redis+sentinel://`, the addresses of the sentinels and the name.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(Server::address).collect();
        format!("redis+sentinel://{}/{NAME}", addresses.join(","))
    }

    /// The servers that keep data; at the start the first is the primary.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The servers that keep data, to be killed or started again.
    pub fn servers_mut(&mut self) -> &mut [Server] {
        &mut self.servers
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_primary_is_replaced() {
        let mut set = SentinelSet::start(Flavor::Valkey9);
        set.servers_mut()[0].kill();
        wait_until("a replica is primary", AGREE, || {
            set.servers()[1..].iter().any(Server::is_primary)
        });
    }
}

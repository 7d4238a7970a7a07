//! Which server decides about a key.

use std::sync::Arc;

use tokio::time::Instant;

use super::Shared;
use super::address::{Address, Layout};
use super::cluster::{Cluster, slot};
use super::dial::{Dialer, Expect};
use super::node::Node;
use super::sentinel::Sentinels;
use crate::StoreError;

/// The servers and how they stand to each other.
#[derive(Debug)]
pub(crate) enum Topology {
    Single(Arc<Node>),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

impl Topology {
    /// Begins to connect. Needs a tokio runtime.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, redis::RedisError> {
        match &shared.options.place.layout {
            Layout::Single(address) => {
                let dialer = Dialer::new(address.clone(), Expect::Primary, &shared.options)?;
                Ok(Self::Single(Node::start(dialer, shared)))
            }
            Layout::Sentinel { sentinels, primary } => {
                Sentinels::start(sentinels, primary, shared).map(Self::Sentinel)
            }
            Layout::Cluster(seeds) => Cluster::start(seeds, shared).map(Self::Cluster),
        }
    }

    /// The server that decides about a key; none where no server has its slot at the moment.
    pub(crate) async fn owner(
        &self,
        key: &[u8],
        deadline: Instant,
    ) -> Result<Option<Arc<Node>>, StoreError> {
        match self {
            Self::Single(node) => Ok(Some(Arc::clone(node))),
            Self::Sentinel(sentinels) => sentinels.primary().get(deadline).await.map(Some),
            Self::Cluster(cluster) => {
                let slots = cluster.slots().get(deadline).await?;
                Ok(slots.owner(slot(key)).map(Arc::clone))
            }
        }
    }

    /// The server that another one sent a call to.
    pub(crate) fn member(&self, address: &Address) -> Result<Arc<Node>, StoreError> {
        let unsupported = |message: String| StoreError::Unsupported {
            server: address.to_string(),
            message,
        };
        match self {
            Self::Cluster(cluster) => cluster
                .member(address)
                .map_err(|error| unsupported(error.to_string())),
            Self::Single(_) | Self::Sentinel(_) => Err(unsupported(
                "calls are redirected to it; use redis+cluster://".into(),
            )),
        }
    }

    /// Has the servers looked for again: one of them does not do what it should.
    pub(crate) fn suspect(&self) {
        match self {
            Self::Single(_) => {}
            Self::Sentinel(sentinels) => sentinels.suspect(),
            Self::Cluster(cluster) => cluster.suspect(),
        }
    }

    /// All servers that decide, as far as they are known.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::Single(node) => vec![Arc::clone(node)],
            Self::Sentinel(sentinels) => sentinels.primary().now().into_iter().collect(),
            Self::Cluster(cluster) => {
                let slots = cluster.slots().now();
                let mut nodes: Vec<Arc<Node>> = slots
                    .iter()
                    .flat_map(|slots| slots.nodes().cloned())
                    .collect();
                nodes.sort_unstable_by_key(Arc::as_ptr);
                nodes.dedup_by_key(|node| Arc::as_ptr(node));
                nodes
            }
        }
    }
}

//! One configuration in force: what every request that begins under it sees until it ends.
//!
//! A new one is built beside the old and takes its place in one step. Limits that did not change
//! keep their counters, those with other numbers keep what was used, those whose key means
//! something else begin afresh.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tidegate::http::{Answers, BodyStyle, ClientAddress, RuleLimiter};
use tidegate::{ChangeMode, Mode, OpenStoreError, Stores};
use tidegate_config::Config;
use tidegate_config::model::{self, Action, Gateway, Timeouts};
use tidegate_core::{Policy, Timestamp};

use crate::limits::{self, Limit, LimitError, RouteLimits};
use crate::metrics::{Metrics, Name, Seconds, UpstreamLabels};
use crate::pools::Pools;
use crate::route::Router;
use crate::stores;
use crate::tls::TlsError;
use crate::upstream::Upstream;

/// A configuration in force.
#[derive(Debug)]
pub struct Generation {
    pub(crate) router: Router,
    pub(crate) routes: Vec<Route>,
    pub(crate) client_address: ClientAddress,
    pub(crate) answers: Answers,
    pub(crate) bodies: BodyStyle,
    pub(crate) timeouts: Timeouts,
    pub(crate) access_log: bool,
    pools: Pools,
    limits: Vec<Arc<Limit>>,
    stores: Stores,
}

/// A route in force.
#[derive(Debug)]
pub(crate) struct Route {
    pub name: Name,
    pub limits: RouteLimits,
    pub action: RouteAction,
}

/// What a route does, ready to do it.
#[derive(Debug)]
pub(crate) enum RouteAction {
    Mock(Mock),
    Proxy(Box<Upstream>, Seconds),
}

/// A ready answer.
#[derive(Debug)]
pub(crate) struct Mock {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl From<&model::Mock> for Mock {
    fn from(mock: &model::Mock) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in &mock.headers {
            headers.append(name, value.clone());
        }
        Self {
            status: mock.status,
            headers,
            body: mock.body.clone().into(),
        }
    }
}

/// Why a configuration cannot be put in force.
///
/// One that was read to be run can, but for the first and the last two.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A store that cannot be opened: a secret or a certificate is missing.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// A limit that cannot work.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// An upstream behind TLS that nobody can vouch for.
    #[error("cannot speak TLS to the upstream {0}")]
    Upstream(String, #[source] TlsError),
    /// There is no gateway to open.
    #[error("the configuration has no `gateway`; add one with `listen` and `routes`")]
    NoGateway,
}

/// A generation that is not in force yet, and what is to be changed when it comes into force.
#[derive(Debug)]
pub(crate) struct Draft {
    pub generation: Generation,
    changes: Vec<Change>,
}

/// What becomes of a limit that is taken over.
#[derive(Debug)]
struct Change {
    limiter: RuleLimiter,
    policy: Option<Policy>,
    mode: Mode,
}

impl Generation {
    /// Builds a generation, taking over what it can from the one before. Nothing of that one
    /// changes yet.
    pub(crate) fn draft(
        config: &Config,
        metrics: &Arc<Metrics>,
        before: Option<&Self>,
        now: Timestamp,
    ) -> Result<Draft, BuildError> {
        let gateway = config.gateway.as_ref().ok_or(BuildError::NoGateway)?;
        let no_stores = Stores::default();
        let stores_before = before.map_or(&no_stores, |before| &before.stores);
        let watch = stores::watch(&config.stores, metrics);
        let stores = Stores::open(&config.stores, stores_before, &watch)?;
        let known: HashMap<&str, &Arc<Limit>> = before
            .into_iter()
            .flat_map(|before| &before.limits)
            .map(|limit| (limit.config().name.as_str(), limit))
            .collect();
        let mut changes = Vec::new();
        let limits = used(gateway, config.limits.len())
            .into_iter()
            .zip(&config.limits)
            .map(|(used, wanted)| {
                if !used {
                    return Ok(None);
                }
                let policy = wanted
                    .policy(now)
                    .map_err(|problem| LimitError::Numbers(wanted.name.clone(), problem))?;
                let kept = known
                    .get(wanted.name.as_str())
                    .filter(|limit| keeps_counters(limit.config(), wanted))
                    .filter(|limit| match (limit.config().store, wanted.store) {
                        (None, None) => true,
                        // The numbers of a shared limit belong to its limiter; what was counted is
                        // in the store and stays there.
                        (Some(there), Some(here)) => {
                            stores.keeps(here, stores_before, there)
                                && limit.config().algorithm == wanted.algorithm
                                && limit.config().on_store_failure == wanted.on_store_failure
                        }
                        _ => false,
                    });
                changes.extend(kept.map(|limit| Change {
                    limiter: limit.limiter().clone(),
                    policy: (limit.config().algorithm != wanted.algorithm).then(|| policy.clone()),
                    mode: limits::mode(wanted.mode),
                }));
                let kept = kept.map(|limit| limit.limiter().clone());
                Ok(Some(Arc::new(Limit::new(
                    wanted.clone(),
                    policy,
                    kept,
                    &stores,
                    metrics,
                )?)))
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        // Pooled connections outlive a reload.
        let mut pools = Pools::default();
        let pools_before = before.map(|before| &before.pools);
        let connect = gateway.timeouts.connect;
        let routes = gateway.routes.iter().map(|route| {
            let upstream = |proxy: &model::Proxy| match pools.pool(proxy, connect, pools_before) {
                Ok(pool) => Ok(Upstream::new(proxy, pool)),
                Err(error) => Err(BuildError::Upstream(proxy.url.clone(), error)),
            };
            build_route(route, &limits, &stores, metrics, upstream)
        });
        let routes = routes.collect::<Result<_, _>>()?;
        let bodies = limits::bodies(gateway.compat);
        let generation = Self {
            router: Router::new(gateway.routes.iter().map(|route| &route.pattern)),
            routes,
            client_address: limits::client_address(&config.identity),
            answers: Answers::default()
                .fields(limits::fields(gateway.limit_headers))
                .bodies(bodies)
                .grpc_code(limits::grpc_code(gateway.grpc_denial)),
            bodies,
            timeouts: gateway.timeouts,
            access_log: gateway.access_log,
            pools,
            limits: limits.into_iter().flatten().collect(),
            stores,
        };
        Ok(Draft {
            generation,
            changes,
        })
    }

    /// The stores, in configured order.
    #[must_use]
    pub const fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The limits that routes use, in configured order.
    #[must_use]
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }
}

impl Draft {
    /// Gives the limits that were taken over their new numbers.
    pub fn apply_changes(&mut self) {
        for Change {
            limiter,
            policy,
            mode,
        } in self.changes.drain(..)
        {
            if let (Some(policy), Some(limiter)) = (policy, limiter.memory()) {
                limiter.change(policy, ChangeMode::KeepUsed, limiter.moment());
            }
            limiter.set_mode(mode);
        }
    }
}

/// Which limits any route uses: the others belong to other doors.
fn used(gateway: &Gateway, limits: usize) -> Vec<bool> {
    let mut used = vec![false; limits];
    for position in gateway.routes.iter().flat_map(|route| &route.limits) {
        used[*position] = true;
    }
    used
}

fn build_route(
    route: &model::Route,
    limits: &[Option<Arc<Limit>>],
    stores: &Stores,
    metrics: &Metrics,
    upstream: impl FnOnce(&model::Proxy) -> Result<Upstream, BuildError>,
) -> Result<Route, BuildError> {
    let of_route = route
        .limits
        .iter()
        .filter_map(|position| limits[*position].clone());
    Ok(Route {
        name: Name::from(route.pattern.as_str()),
        limits: RouteLimits::new(of_route.collect(), &route.pattern, stores, metrics)?,
        action: match &route.action {
            Action::Mock(mock) => RouteAction::Mock(mock.into()),
            Action::Proxy(proxy) => {
                let labels = UpstreamLabels {
                    upstream: proxy.authority.as_str().into(),
                };
                let seconds = metrics.upstream_seconds.get_or_create_owned(&labels);
                RouteAction::Proxy(Box::new(upstream(proxy)?), seconds)
            }
        },
    })
}

/// Whether the counters still mean the same: only then do they live on.
fn keeps_counters(before: &model::Limit, after: &model::Limit) -> bool {
    before.key == after.key
        && before.max_keys == after.max_keys
        && before.when_full == after.when_full
        && before.charge_denied == after.charge_denied
}

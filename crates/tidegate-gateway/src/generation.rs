//! One configuration in force: what every request that begins under it sees until it ends.
//!
//! A new one is built beside the old and takes its place in one step. Limits that did not change
//! keep their counters, those with other numbers keep what was used, those whose key means
//! something else begin afresh.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{ChangeMode, Limiter, Mode};
use tidegate_core::{Policy, Timestamp};

use crate::identity::Identity;
use crate::limits::{Limit, LimitError, RouteLimit};
use crate::metrics::{Metrics, Name, Seconds, UpstreamLabels};
use crate::problem::Compat;
use crate::ratelimit_fields::Dialect;
use crate::route::{PatternError, Router};
use crate::settings::{Action, LimitSettings, Mock, Proxy, Settings, Timeouts};
use crate::upstream::Client;

/// A configuration in force.
#[derive(Debug)]
pub struct Generation {
    pub(crate) router: Router,
    pub(crate) routes: Vec<Route>,
    pub(crate) identity: Identity,
    pub(crate) dialect: Dialect,
    pub(crate) compat: Compat,
    pub(crate) timeouts: Timeouts,
    pub(crate) access_log: bool,
    pub(crate) client: Client,
    limits: Vec<Arc<Limit>>,
}

/// A route in force.
#[derive(Debug)]
pub(crate) struct Route {
    pub name: Name,
    pub limits: Vec<RouteLimit>,
    pub action: RouteAction,
}

/// What a route does, ready to do it.
#[derive(Debug)]
pub(crate) enum RouteAction {
    Mock(Mock),
    Proxy(Proxy, Seconds),
}

/// Why settings cannot be put in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Two routes for the same requests.
    #[error(transparent)]
    Route(#[from] PatternError),
    /// A limit that cannot work.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A route names a limit that is not there.
    #[error("route {0:?} refers to limit number {1}, which does not exist")]
    UnknownLimit(String, usize),
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
    limiter: Limiter,
    policy: Option<Policy>,
    mode: Mode,
}

impl Generation {
    /// Builds a generation, taking over what it can from the one before. Nothing of that one
    /// changes yet.
    pub(crate) fn draft(
        settings: &Settings,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Result<Draft, BuildError> {
        let router = Router::new(settings.routes.iter().map(|route| &route.pattern))?;
        let known: HashMap<&str, &Arc<Limit>> = before
            .into_iter()
            .flat_map(|before| &before.limits)
            .map(|limit| (limit.settings().name.as_str(), limit))
            .collect();
        let mut changes = Vec::new();
        let mut limits = Vec::with_capacity(settings.limits.len());
        for wanted in &settings.limits {
            let kept = known
                .get(wanted.name.as_str())
                .filter(|limit| keeps_counters(limit.settings(), wanted));
            changes.extend(kept.map(|limit| Change {
                limiter: limit.limiter().clone(),
                policy: (limit.settings().policy != wanted.policy).then(|| wanted.policy.clone()),
                mode: wanted.mode,
            }));
            let kept = kept.map(|limit| limit.limiter().clone());
            limits.push(Arc::new(Limit::new(wanted.clone(), kept, metrics)?));
        }
        let routes = settings
            .routes
            .iter()
            .map(|route| {
                let of_route = route.limits.iter().map(|position| {
                    let limit = limits.get(*position).ok_or_else(|| {
                        BuildError::UnknownLimit(route.pattern.as_str().to_owned(), *position)
                    })?;
                    Ok(RouteLimit::new(Arc::clone(limit), &route.pattern)?)
                });
                Ok(Route {
                    name: Name::from(route.pattern.as_str()),
                    limits: of_route.collect::<Result<_, BuildError>>()?,
                    action: match &route.action {
                        Action::Mock(mock) => RouteAction::Mock(mock.clone()),
                        Action::Proxy(proxy) => {
                            let upstream = Name::from(proxy.upstream.authority().as_str());
                            let labels = UpstreamLabels { upstream };
                            let seconds = metrics.upstream_seconds.get_or_create_owned(&labels);
                            RouteAction::Proxy(proxy.clone(), seconds)
                        }
                    },
                })
            })
            .collect::<Result<_, BuildError>>()?;
        // Pooled connections outlive a reload.
        let client = match before {
            Some(before) if before.timeouts.connect == settings.timeouts.connect => {
                before.client.clone()
            }
            _ => Client::new(settings.timeouts.connect),
        };
        let generation = Self {
            router,
            routes,
            identity: settings.identity.clone(),
            dialect: settings.dialect,
            compat: settings.compat,
            timeouts: settings.timeouts,
            access_log: settings.access_log,
            client,
            limits,
        };
        Ok(Draft {
            generation,
            changes,
        })
    }

    /// The limits, in configured order.
    #[must_use]
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }
}

impl Draft {
    /// Gives the limits that were taken over their new numbers.
    pub fn apply_changes(&mut self, now: Timestamp) {
        for Change {
            limiter,
            policy,
            mode,
        } in self.changes.drain(..)
        {
            if let Some(policy) = policy {
                limiter.change(policy, ChangeMode::KeepUsed, now);
            }
            limiter.set_mode(mode);
        }
    }
}

/// Whether the counters still mean the same: only then do they live on.
fn keeps_counters(before: &LimitSettings, after: &LimitSettings) -> bool {
    before.key == after.key
        && before.max_keys == after.max_keys
        && before.when_full == after.when_full
}

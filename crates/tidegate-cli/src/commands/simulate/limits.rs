//! The limits of a configuration, and which of them the requests of each route meet.
//!
//! Everything is kept in memory here, whatever store a limit names.

use anyhow::{Context, bail};
use http::Method;
use tidegate::http::ClientAddress;
use tidegate::simulation::{
    FindRoute, Found, KeySource, LimitNumber, LimitSettings, RouteLimit, Routes, Simulation,
};
use tidegate::{Mode, Timestamp, WhenFull};
use tidegate_config::{Config, model};
use tidegate_gateway::canonical::canonical;
use tidegate_gateway::route::{Match, Router};

use super::condition;

/// Adds all limits, and the routes if there are any.
pub fn add(config: &Config, simulation: &mut Simulation) -> anyhow::Result<()> {
    if config.limits.is_empty() {
        bail!("the configuration has no limits");
    }
    let mut numbers = Vec::with_capacity(config.limits.len());
    for limit in &config.limits {
        let policy = limit
            .policy(Timestamp::EPOCH)
            .with_context(|| format!("limit {} cannot be used", limit.name))?;
        let header = limit.algorithm.to_string();
        numbers.push(simulation.add(&limit.name, policy, header, settings(config, limit)?)?);
    }
    if !config.identity.trusted_proxies.is_empty() {
        let identity = &config.identity;
        let clients = ClientAddress::behind(identity.trusted_proxies.iter().copied());
        simulation.set_clients(clients.headers(identity.headers.iter().cloned()));
    }
    if let Some(gateway) = &config.gateway {
        simulation.set_routes(routes(config, gateway, &numbers));
    }
    Ok(())
}

fn settings(config: &Config, limit: &model::Limit) -> anyhow::Result<LimitSettings> {
    let keyed_by = limit.key.iter();
    let statuses = |condition: &Option<String>| {
        let condition = condition.as_deref();
        condition
            .map(|text| condition::statuses(text).with_context(|| format!("limit {}", limit.name)))
            .transpose()
    };
    Ok(LimitSettings {
        charge_denied: limit.charge_denied,
        cost: limit.cost,
        mode: match limit.mode {
            model::Mode::Enforce => Mode::Enforce,
            model::Mode::Shadow => Mode::Shadow,
            model::Mode::Off => Mode::Off,
            model::Mode::Percent(share) => Mode::Percent(share),
        },
        max_keys: usize::try_from(limit.max_keys).unwrap_or(usize::MAX),
        when_full: match limit.when_full {
            model::WhenFull::Overflow => WhenFull::Overflow,
            model::WhenFull::DenyNew => WhenFull::DenyNew,
            model::WhenFull::Evict => WhenFull::Evict,
        },
        keyed_by: keyed_by
            .map(|part| KeySource::new(part, &config.identity))
            .collect(),
        count_when: statuses(&limit.count_when)?,
        reset_when: statuses(&limit.reset_when)?,
    })
}

/// The routes, found by the very router of the gateway.
fn routes(config: &Config, gateway: &model::Gateway, numbers: &[LimitNumber]) -> Routes {
    let limits = gateway.routes.iter().map(|route| {
        let met = route.limits.iter().map(|position| RouteLimit {
            limit: numbers[*position],
            keyed_by: config.limits[*position]
                .key
                .iter()
                .map(|part| KeySource::on_route(part, &config.identity, &route.pattern))
                .collect(),
        });
        met.collect()
    });
    let router = Router::new(gateway.routes.iter().map(|route| &route.pattern));
    let find: FindRoute = Box::new(move |method, path| {
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let path = canonical(path).ok()?;
        match router.find(&method, &path) {
            Match::Route(route) => Some(Found {
                route,
                path: path.into_owned(),
            }),
            Match::OtherMethod(_) | Match::Nothing => None,
        }
    });
    Routes::new(find, limits.collect())
}

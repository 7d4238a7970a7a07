//! What a document probably does not mean.
//!
//! Each lint has a stable code, a place and a remedy. The codes:
//!
//! | code | says |
//! |---|---|
//! | `TG-LINT-001` | the limit admits more than its description promises |
//! | `TG-LINT-002` | the cost is above what the limit can ever hold |
//! | `TG-LINT-003` | a quota is below the burst of a bucket beside it |
//! | `TG-LINT-004` | no route and no plan uses the limit |
//! | `TG-LINT-005` | an interpolated window admits nearly twice its limit at worst |
//! | `TG-LINT-006` | every peer is a trusted proxy |
//! | `TG-LINT-007` | a bucket is never refilled |
//! | `TG-LINT-008` | an interval refill brings more than the bucket holds |
//! | `TG-LINT-009` | a lease is shorter than the time-out of a route |
//! | `TG-LINT-010` | the admin listener can be reached from other machines |
//! | `TG-LINT-011` | the end of a queue waits longer than clients do |
//! | `TG-LINT-012` | callers write the header that they are counted by |
//! | `TG-LINT-030` | a store's password crosses the network as it is |
//! | `TG-LINT-031` | a store's password stands in the file |
//! | `TG-LINT-032` | two limits of a route cannot lie in one slot of their cluster |
//! | `TG-LINT-033` | no limit counts in the store |
//! | `TG-LINT-034` | a guard against guesses or for leases lets everything pass without its store |
//! | `TG-LINT-035` | the first filling of a shared bucket has no effect |
//! | `TG-LINT-040` | anybody who reaches the decision service may ask it |
//! | `TG-LINT-070` | a certificate is out of its dates (found by who opens the file) |

mod promise;
mod stores;

use std::time::Duration;

use tidegate_core::{Micros, Timestamp, bounds};

use crate::algorithm::{AlgorithmConfig, Refill, WindowMode};
use crate::cursor::Cursor;
use crate::model::{Action, Config, KeyPart, Limit};
use crate::node::Node;
use crate::report::Problem;

/// How long clients wait for an answer before they give up, by common defaults.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);

/// Adds a warning for all that is probably not meant.
pub(crate) fn lint(config: &Config, node: &Node, problems: &mut Vec<Problem>) {
    let root = Cursor::new(node);
    for (position, limit) in config.limits.iter().enumerate() {
        let at = root.get("limits").at(position);
        problems.extend(broken_promise(limit, at));
        problems.extend(impossible_cost(limit, at));
        problems.extend(numbers(limit, at));
        problems.extend(forged_keys(limit, at));
        problems.extend(unused(config, position, at));
    }
    problems.extend(trusts_everybody(config, root));
    problems.extend(open_admin(config, root));
    problems.extend(open_service(config, root));
    stores::stores(config, root, problems);
    routes(config, root, problems);
}

/// The place of an algorithm's field.
fn field<'n>(limit: &Limit, at: Cursor<'n>, name: &str) -> Cursor<'n> {
    at.get("algorithm").get(limit.algorithm.name()).get(name)
}

fn broken_promise(limit: &Limit, at: Cursor<'_>) -> Option<Problem> {
    let description = limit.description.as_ref()?;
    let promise = promise::promise(description)?;
    let policy = limit.policy(Timestamp::EPOCH).ok()?;
    let most = bounds::admitted(&policy, promise.period)?;
    if most <= u64::from(promise.count) {
        return None;
    }
    let (count, period) = (promise.count, promise.period);
    let better = if count > tidegate_core::MAX_LOG_ENTRIES {
        "sliding_window"
    } else {
        "sliding_log"
    };
    Some(
        Problem::warning(
            "TG-LINT-001",
            format!("`{}` admits up to {most} within {period}", limit.name),
        )
        .at(at.get("algorithm").get(limit.algorithm.name()).key_span())
        .label(format!("not {count} in any {period}"))
        .see(at.get("description").span(), "promised here")
        .help(format!(
            "`{better}: {{ limit: {count}/{period} }}` never admits more than {count}"
        )),
    )
}

/// The most that the limit can ever hold, and the field that says so.
fn most(limit: &Limit) -> Option<(u32, &'static str)> {
    Some(match &limit.algorithm {
        AlgorithmConfig::TokenBucket(config) => (config.capacity.0, "capacity"),
        AlgorithmConfig::Gcra(config) => (config.burst.0, "burst"),
        AlgorithmConfig::LeakyBucket(config) => {
            (config.queue.0.saturating_add(config.burst.0), "queue")
        }
        AlgorithmConfig::FixedWindow(config) => (config.limit.0.count(), "limit"),
        AlgorithmConfig::Quota(config) => (config.limit.0, "limit"),
        AlgorithmConfig::SlidingLog(config) => (config.limit.0.count(), "limit"),
        AlgorithmConfig::SlidingWindow(config) => (config.limit.0.count(), "limit"),
        AlgorithmConfig::Concurrency(config) => (config.limit.0, "limit"),
        AlgorithmConfig::Lockout(_) => return None,
    })
}

fn impossible_cost(limit: &Limit, at: Cursor<'_>) -> Option<Problem> {
    let (most, name) = most(limit)?;
    // A limit of 0 denies all on purpose.
    if most == 0 || limit.cost <= most {
        return None;
    }
    Some(
        Problem::warning(
            "TG-LINT-002",
            format!(
                "every call costs {}, and `{}` holds {most} at most",
                limit.cost, limit.name
            ),
        )
        .at(at.get("cost").span())
        .label("no call can ever pass")
        .see(field(limit, at, name).span(), "the most that it holds")
        .help(format!(
            "raise `{name}` to at least {}, or lower `cost`",
            limit.cost
        )),
    )
}

/// Numbers of one algorithm that do something else than they seem to.
fn numbers(limit: &Limit, at: Cursor<'_>) -> Option<Problem> {
    let rate_at = field(limit, at, "rate").span();
    let name = &limit.name;
    match &limit.algorithm {
        AlgorithmConfig::TokenBucket(config) if config.rate.0.count() == 0 => {
            never_refilled(limit, config.capacity.0, at)
        }
        AlgorithmConfig::Gcra(config) if config.rate.0.count() == 0 => {
            never_refilled(limit, config.burst.0, at)
        }
        AlgorithmConfig::LeakyBucket(config) if config.rate.0.count() == 0 => {
            never_refilled(limit, config.burst.0, at)
        }
        AlgorithmConfig::TokenBucket(config)
            if config.refill == Refill::Interval
                && config.capacity.0 > 0
                && config.rate.0.count() > config.capacity.0 =>
        {
            let (count, period, capacity) = (
                config.rate.0.count(),
                config.rate.0.period(),
                config.capacity.0,
            );
            Some(
                Problem::warning(
                    "TG-LINT-008",
                    format!("{count} tokens come back at once, and `{name}` holds {capacity}"),
                )
                .at(rate_at)
                .label("the rest is lost")
                .help(format!(
                    "the rate is in truth {capacity} per {period}; raise `capacity`, or refill \
                     continuously"
                )),
            )
        }
        AlgorithmConfig::SlidingWindow(config)
            if config.mode == WindowMode::Interpolated && config.limit.0.count() > 1 =>
        {
            let (count, period) = (config.limit.0.count(), config.limit.0.period());
            let worst = u64::from(count) * 2 - 1;
            Some(
                Problem::warning(
                    "TG-LINT-005",
                    format!("`{name}` admits up to {worst} within {period}"),
                )
                .at(field(limit, at, "mode").span())
                .label("an estimate, not a count")
                .help(format!("`mode: strict` never admits more than {count}")),
            )
        }
        _ => None,
    }
}

fn never_refilled(limit: &Limit, burst: u32, at: Cursor<'_>) -> Option<Problem> {
    (burst > 0).then(|| {
        Problem::warning(
            "TG-LINT-007",
            format!(
                "`{}` is never refilled: each key gets {burst} and then nothing",
                limit.name
            ),
        )
        .at(field(limit, at, "rate").span())
        .help("write a rate above 0; to deny everything, set the capacity to 0 as well")
    })
}

fn forged_keys(limit: &Limit, at: Cursor<'_>) -> Option<Problem> {
    const FORWARDING: [&str; 5] = [
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "true-client-ip",
        "x-client-ip",
    ];
    let forged = |part: &KeyPart| match part {
        KeyPart::Header(name) => FORWARDING.contains(&name.as_str()),
        _ => false,
    };
    let index = limit.key.iter().position(forged)?;
    let part = &limit.key[index];
    Some(
        Problem::warning(
            "TG-LINT-012",
            format!(
                "callers write `{part}` themselves, and so their key of `{}`",
                limit.name
            ),
        )
        .at(at.get("key").at(index).span())
        .label("a new value is a new allowance")
        .help("count by `client_ip`, which believes only `identity.client_ip.trusted_proxies`"),
    )
}

fn unused(config: &Config, position: usize, at: Cursor<'_>) -> Option<Problem> {
    let gateway = config.gateway.as_ref()?;
    if config.service.is_some() {
        // Any limit may be asked by name.
        return None;
    }
    let routes = gateway.routes.iter().flat_map(|route| &route.limits);
    let plans = config.plans.iter().flat_map(|plan| {
        plan.limits
            .iter()
            .chain(plan.methods.iter().flat_map(|(_, limits)| limits))
    });
    if routes.chain(plans).any(|used| *used == position) {
        return None;
    }
    let name = &config.limits[position].name;
    Some(
        Problem::warning("TG-LINT-004", format!("nothing uses limit `{name}`"))
            .at(at.key_span())
            .help(format!(
                "add `{name}` to the `limits` of a route, or leave it out"
            )),
    )
}

fn trusts_everybody(config: &Config, root: Cursor<'_>) -> Option<Problem> {
    let proxies = &config.identity.trusted_proxies;
    let index = proxies
        .iter()
        .position(|network| network.prefix_len() == 0)?;
    let at = root
        .get("identity")
        .get("client_ip")
        .get("trusted_proxies")
        .at(index);
    Some(
        Problem::warning(
            "TG-LINT-006",
            format!("`{}` trusts every peer to name the client", proxies[index]),
        )
        .at(at.span())
        .label("anybody can choose an address, and with it a key")
        .help("list the networks of your own proxies only"),
    )
}

fn open_admin(config: &Config, root: Cursor<'_>) -> Option<Problem> {
    let address = config.admin.filter(|address| !address.ip().is_loopback())?;
    Some(
        Problem::warning(
            "TG-LINT-010",
            format!("the admin listener `{address}` can be reached from other machines"),
        )
        .at(root.get("admin").get("listen").span())
        .help(format!(
            "listen on `127.0.0.1:{}`, or make sure that only operators reach it",
            address.port()
        )),
    )
}

fn open_service(config: &Config, root: Cursor<'_>) -> Option<Problem> {
    let service = config
        .service
        .filter(|service| service.secret_sha256.is_none())?;
    let doors = [("http", service.http), ("resp", service.resp)];
    let (door, address) = doors
        .into_iter()
        .find_map(|(door, address)| Some((door, address.filter(|at| !at.ip().is_loopback())?)))?;
    Some(
        Problem::warning(
            "TG-LINT-040",
            format!("whoever reaches `{address}` spends the limits of others"),
        )
        .at(root.get("service").get(door).span())
        .help(
            "ask for a secret with `secret_sha256`, or make sure that only your programs reach it",
        ),
    )
}

/// What does not go together on one route, or in one plan.
fn routes(config: &Config, root: Cursor<'_>, problems: &mut Vec<Problem>) {
    let limits = root.get("limits");
    let mut quotas: Vec<(usize, usize)> = Vec::new();
    for plan in &config.plans {
        quotas.extend(small_quotas(config, &plan.limits));
    }
    let mut leases: Vec<usize> = Vec::new();
    let mut queues: Vec<usize> = Vec::new();
    let routes = config
        .gateway
        .iter()
        .flat_map(|gateway| gateway.routes.iter().enumerate());
    for (index, route) in routes {
        let at = root.get("gateway").get("routes").at(index);
        quotas.extend(small_quotas(config, &route.limits));
        for position in &route.limits {
            let limit = &config.limits[*position];
            if let Some(lease) = short_lease(limit, &route.action)
                && !leases.contains(position)
            {
                leases.push(*position);
                problems.push(
                    lease
                        .at(field(limit, limits.at(*position), "lease").span())
                        .see(at.get("match").span(), "on this route")
                        .help("make the lease longer than the time-out, or the time-out shorter"),
                );
            }
            if let Some(queue) = long_queue(limit)
                && !queues.contains(position)
            {
                queues.push(*position);
                let place = field(limit, limits.at(*position), "queue").span();
                problems.push(
                    queue
                        .at(place)
                        .help("shorten `queue`, or set `max_wait` to what callers wait"),
                );
            }
        }
    }
    quotas.sort_unstable();
    quotas.dedup();
    for (quota, bucket) in quotas {
        problems.push(small_quota(config, limits, quota, bucket));
    }
}

/// The quotas among some limits, each with a bucket among them whose burst alone is more.
fn small_quotas(config: &Config, positions: &[usize]) -> Vec<(usize, usize)> {
    let burst = |limit: &Limit| match &limit.algorithm {
        AlgorithmConfig::TokenBucket(config) => Some(config.capacity.0),
        AlgorithmConfig::Gcra(config) => Some(config.burst.0),
        _ => None,
    };
    let mut found = Vec::new();
    for quota in positions {
        let AlgorithmConfig::Quota(numbers) = &config.limits[*quota].algorithm else {
            continue;
        };
        let above = positions.iter().find(|bucket| {
            numbers.limit.0 > 0
                && burst(&config.limits[**bucket]).is_some_and(|burst| burst > numbers.limit.0)
        });
        found.extend(above.map(|bucket| (*quota, *bucket)));
    }
    found
}

fn small_quota(config: &Config, limits: Cursor<'_>, quota: usize, bucket: usize) -> Problem {
    let (small, large) = (&config.limits[quota], &config.limits[bucket]);
    let burst = most(large).map_or("capacity", |(_, name)| name);
    Problem::warning(
        "TG-LINT-003",
        format!(
            "one burst of `{}` is more than the whole quota `{}`",
            large.name, small.name
        ),
    )
    .at(field(small, limits.at(quota), "limit").span())
    .see(field(large, limits.at(bucket), burst).span(), "the burst")
    .help("raise the quota, or lower the burst: above the quota it has no effect")
}

fn short_lease(limit: &Limit, action: &Action) -> Option<Problem> {
    let (AlgorithmConfig::Concurrency(config), Action::Proxy(proxy)) = (&limit.algorithm, action)
    else {
        return None;
    };
    let (lease, timeout) = (config.lease.0, Micros::from_duration(proxy.timeout));
    (lease < timeout).then(|| {
        Problem::warning(
            "TG-LINT-009",
            format!(
                "a lease of `{}` ends after {lease}, a call may take {timeout}",
                limit.name
            ),
        )
        .label("its permit may be given to another while the call runs")
    })
}

fn long_queue(limit: &Limit) -> Option<Problem> {
    let AlgorithmConfig::LeakyBucket(config) = &limit.algorithm else {
        return None;
    };
    let rate = config.rate.0;
    let full = u64::from(config.queue.0).saturating_mul(rate.period().0);
    let mut wait = Micros(full.checked_div(u64::from(rate.count()))?);
    if let Some(max_wait) = config.max_wait {
        wait = wait.min(max_wait.0);
    }
    (wait.as_duration() > CLIENT_PATIENCE).then(|| {
        Problem::warning(
            "TG-LINT-011",
            format!("the last in the queue of `{}` waits {wait}", limit.name),
        )
        .label("most clients give up after 30s, and their place was taken for nothing")
    })
}

//! Stores and limits in them that probably do something else than meant.

use crate::algorithm::AlgorithmConfig;
use crate::cursor::Cursor;
use crate::model::{Config, Limit, OnStoreFailure, StoreKind};
use crate::report::Problem;

/// Adds a warning for all about stores that is probably not meant.
pub(super) fn stores(config: &Config, root: Cursor<'_>, problems: &mut Vec<Problem>) {
    for (position, store) in config.stores.iter().enumerate() {
        let at = root.get("stores").at(position);
        let url_at = at.get("valkey").get("url").span();
        let has_password = store.url.has_password() || store.password.is_some();
        if has_password && !store.url.tls() && !store.url.is_local() {
            problems.push(
                Problem::warning(
                    "TG-LINT-030",
                    format!("the password of store `{}` crosses the network as it is", store.name),
                )
                .at(url_at)
                .label("not encrypted")
                .help("write `rediss` instead of `redis`, and `tls: { ca: FILE }` for an authority of your own"),
            );
        }
        if store.url.has_password() {
            problems.push(
                Problem::warning(
                    "TG-LINT-031",
                    format!("the password of store `{}` stands in this file", store.name),
                )
                .at(url_at)
                .help("write `password: { env: VARIABLE }` or `password: { file: PATH }` instead"),
            );
        }
        let used = config
            .limits
            .iter()
            .any(|limit| limit.store == Some(position));
        if !used {
            problems.push(
                Problem::warning(
                    "TG-LINT-033",
                    format!("no limit counts in store `{}`", store.name),
                )
                .at(at.key_span())
                .help(format!(
                    "add `store: {}` to a limit, or leave the store out",
                    store.name
                )),
            );
        }
    }
    for (position, limit) in config.limits.iter().enumerate() {
        let at = root.get("limits").at(position);
        problems.extend(failure_mode(limit, at));
        problems.extend(no_beginning(limit, at));
    }
    problems.extend(apart(config, root));
}

fn failure_mode(limit: &Limit, at: Cursor<'_>) -> Option<Problem> {
    let place = at.get("on_store_failure").key_span();
    let is_guard = matches!(
        limit.algorithm,
        AlgorithmConfig::Lockout(_) | AlgorithmConfig::Concurrency(_)
    );
    (limit.store.is_some() && is_guard && limit.on_store_failure == OnStoreFailure::Allow).then(
        || {
            Problem::warning(
                "TG-LINT-034",
                format!(
                    "while its store gives no answer, `{}` guards nothing",
                    limit.name
                ),
            )
            .at(place)
            .label("everything passes then")
            .help("write `deny`, or `{ local_share: 0.5 }` to go on in each process by itself")
        },
    )
}

/// A bucket's first filling, which depends on when a process begins to count.
fn no_beginning(limit: &Limit, at: Cursor<'_>) -> Option<Problem> {
    let AlgorithmConfig::TokenBucket(bucket) = &limit.algorithm else {
        return None;
    };
    (limit.store.is_some() && bucket.initial.is_some()).then(|| {
        Problem::warning(
            "TG-LINT-035",
            format!("`initial` has no effect on `{}`", limit.name),
        )
        .at(at
            .get("algorithm")
            .get("token_bucket")
            .get("initial")
            .key_span())
        .label("a shared limit has no moment at which it begins")
        .help("leave `initial` out: keys that were never seen are full")
    })
}

/// Limits of one route that lie in one cluster but cannot lie in one slot of it, since they count by
/// different keys: each pair once.
fn apart(config: &Config, root: Cursor<'_>) -> Vec<Problem> {
    let limits = root.get("limits");
    let in_cluster = |position: &usize| {
        let store = config.limits[*position].store;
        store.is_some_and(|store| config.stores[store].url.kind() == StoreKind::Cluster)
    };
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut problems = Vec::new();
    let routes = config.gateway.iter().flat_map(|gateway| &gateway.routes);
    for route in routes {
        let shared: Vec<usize> = route.limits.iter().copied().filter(in_cluster).collect();
        for (index, first) in shared.iter().enumerate() {
            for second in &shared[index + 1..] {
                let (one, other) = (&config.limits[*first], &config.limits[*second]);
                let pair = (*first.min(second), *first.max(second));
                if one.store != other.store || one.key == other.key || found.contains(&pair) {
                    continue;
                }
                found.push(pair);
                problems.push(
                    Problem::warning(
                        "TG-LINT-032",
                        format!(
                            "`{}` and `{}` are asked one after the other on `{}`",
                            one.name, other.name, route.pattern
                        ),
                    )
                    .at(limits.at(*second).get("key").key_span())
                    .label("other keys lie in other slots of the cluster")
                    .see(limits.at(*first).get("key").key_span(), "than these")
                    .help(
                        "count both by the same key, or keep one of them in memory; as it is, a call \
                         takes two steps, and one that is denied may for a moment deny another",
                    ),
                );
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use crate::{Purpose, parse};

    /// The codes of the warnings about a document, this module's alone.
    fn codes(text: &str) -> Vec<&'static str> {
        let checked =
            parse("t", text, Purpose::Inspect).unwrap_or_else(|report| panic!("{report}"));
        let problems = checked.warnings.problems().iter();
        problems
            .filter_map(|problem| problem.code)
            .filter(|code| code.starts_with("TG-LINT-03"))
            .collect()
    }

    fn store(url: &str, fields: &str, limit: &str) -> String {
        format!(
            "stores: {{ s: {{ valkey: {{ url: \"{url}\"{fields} }} }} }}
limits: {{ a: {{ algorithm: {{ sliding_log: {{ limit: 1/s }} }}, store: {limit} }} }}"
        )
    }

    #[test]
    fn a_password_in_the_file_or_in_the_open_is_warned_about() {
        let env = ", password: { env: P }";
        for (url, fields, expected) in [
            ("redis://10.0.0.1", env, &["TG-LINT-030"][..]),
            ("rediss://10.0.0.1", env, &[]),
            ("redis://127.0.0.1", env, &[]),
            ("redis+cluster://localhost,b", env, &["TG-LINT-030"]),
            ("redis+unix:///s", env, &[]),
            ("redis://:x@10.0.0.1", "", &["TG-LINT-030", "TG-LINT-031"]),
            ("redis://:x@127.0.0.1", "", &["TG-LINT-031"]),
        ] {
            assert_eq!(codes(&store(url, fields, "s")), expected, "{url}");
        }
    }

    #[test]
    fn a_store_without_limits_is_warned_about() {
        assert_eq!(codes(&store("redis://a", "", "memory")), ["TG-LINT-033"]);
        assert_eq!(codes(&store("redis://a", "", "s")), [""; 0]);
    }

    #[test]
    fn guards_that_open_without_their_store_are_warned_about() {
        let guard = |algorithm: &str, mode: &str| {
            codes(&format!(
                "stores: {{ s: {{ valkey: {{ url: redis://a }} }} }}
limits: {{ a: {{ algorithm: {algorithm}, store: s, on_store_failure: {mode} }} }}"
            ))
        };
        let lockout = "{ lockout: { failures: 5/15m, ban: 15m } }";
        assert_eq!(guard(lockout, "allow"), ["TG-LINT-034"]);
        assert_eq!(guard(lockout, "deny"), [""; 0]);
        assert_eq!(guard("{ sliding_log: { limit: 1/s } }", "allow"), [""; 0]);
        let initial = "{ token_bucket: { rate: 1/s, capacity: 5, initial: 0 } }";
        assert_eq!(guard(initial, "deny"), ["TG-LINT-035"]);
    }

    #[test]
    fn limits_that_a_cluster_cannot_decide_in_one_step_are_warned_about_once() {
        let document = |url: &str, keys: [&str; 2], stores: [&str; 2]| {
            let limit = |name: &str, at: usize| {
                format!(
                    "  {name}: {{ algorithm: {{ sliding_log: {{ limit: 1/s }} }}, key: [{}], store: {} }}",
                    keys[at], stores[at]
                )
            };
            format!(
                "stores:
  s: {{ valkey: {{ url: \"{url}\" }} }}
limits:
{}
{}
gateway:
  listen: 127.0.0.1:0
  routes: [ {{ match: GET /, limits: [a, b], mock: {{}} }}, {{ match: GET /b, limits: [b, a], mock: {{}} }} ]",
                limit("a", 0),
                limit("b", 1)
            )
        };
        let (cluster, single) = ("redis+cluster://a", "redis://a");
        let apart = ["client_ip", "header.x"];
        assert_eq!(
            codes(&document(cluster, apart, ["s", "s"])),
            ["TG-LINT-032"]
        );
        assert_eq!(
            codes(&document(cluster, ["client_ip"; 2], ["s", "s"])),
            [""; 0]
        );
        assert_eq!(codes(&document(cluster, apart, ["s", "memory"])), [""; 0]);
        assert_eq!(codes(&document(single, apart, ["s", "s"])), [""; 0]);
    }
}

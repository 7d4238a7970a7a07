//! What `tidegate check` says to typical mistakes: each message names the place and the remedy.
//!
//! The snapshots are the texts that people see; a change of one is a change of the product.

use std::fmt::Write as _;
use std::process::Command;

/// What the command says to each of the documents, and that it ends with this code.
fn said(cases: &[(&str, &str)], arguments: &[&str], code: i32) -> String {
    let mut all = String::new();
    for (name, document) in cases {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("tidegate.yaml"), document).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["check", "tidegate.yaml"])
            .args(arguments)
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        for problem in text.split("\n\n").filter(|part| part.contains(" --> ")) {
            assert!(problem.contains("= help: "), "{name}: no remedy: {problem}");
        }
        let _ = writeln!(all, "## {name}\n\n{text}");
    }
    all
}

/// What the command says to documents that are wrong.
fn errors(cases: &[(&str, &str)]) -> String {
    said(cases, &[], 1)
}

/// The same for an algorithm alone.
fn algorithm_errors(cases: &[(&str, &str)]) -> String {
    let documents: Vec<String> = cases
        .iter()
        .map(|(_, algorithm)| format!("limits:\n  a:\n    algorithm: {algorithm}\n"))
        .collect();
    let names = cases.iter().map(|(name, _)| *name);
    let cases: Vec<(&str, &str)> = names.zip(documents.iter().map(String::as_str)).collect();
    errors(&cases)
}

#[test]
fn what_is_no_yaml_is_shown_where_it_breaks() {
    let said = errors(&[
        ("an empty file", ""),
        ("only a comment", "# limits come later\n"),
        ("a list", "- limits\n- gateway\n"),
        ("a word", "limits\n"),
        (
            "a bracket that stays open",
            "limits: { a: { algorithm: { gcra: { rate: 1/s }\n",
        ),
        ("a tab", "limits:\n\ta: {}\n"),
        ("wrong indentation", "limits:\n    a: {}\n  b: {}\n"),
        ("two documents", "limits: {}\n---\nlimits: {}\n"),
        ("an alias of nothing", "limits: *base\n"),
        (
            "a section that is there twice",
            "limits: {}\nstores: {}\nlimits: {}\n",
        ),
        (
            "text behind other scripts",
            "limits:\n  a: { description: \"限流 🌊\", algoritm: {} }\n",
        ),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_numbers_come_with_the_right_ones() {
    let said = algorithm_errors(&[
        (
            "a rate without a period",
            "{ gcra: { rate: 100, burst: 1 } }",
        ),
        (
            "a rate with a fraction",
            "{ gcra: { rate: 0.5/s, burst: 1 } }",
        ),
        ("a period of zero", "{ sliding_log: { limit: 100/0s } }"),
        (
            "a period above ten years",
            "{ gcra: { rate: 1/11y, burst: 1 } }",
        ),
        ("a period in months", "{ sliding_log: { limit: 5/month } }"),
        (
            "a length without a unit",
            "{ concurrency: { limit: 3, lease: 30 } }",
        ),
        (
            "a length below a microsecond",
            "{ concurrency: { limit: 3, lease: 30ns } }",
        ),
        ("a negative count", "{ gcra: { rate: 1/s, burst: -1 } }"),
        (
            "a count that is too large",
            "{ gcra: { rate: 1/s, burst: 3000000000 } }",
        ),
        ("a count in words", "{ gcra: { rate: 1/s, burst: many } }"),
        (
            "a log that is too long",
            "{ sliding_log: { limit: 100001/day } }",
        ),
        (
            "several at once",
            "{ token_bucket: { rate: 1.5/s, capacity: few, refill: daily } }",
        ),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_algorithms_come_with_the_right_ones() {
    let said = algorithm_errors(&[
        ("no algorithm", ""),
        ("an unknown algorithm", "{ tocken_bucket: { rate: 1/s } }"),
        (
            "two algorithms",
            "{ gcra: { rate: 1/s, burst: 1 }, sliding_log: { limit: 1/s } }",
        ),
        ("an algorithm without numbers", "token_bucket"),
        ("an algorithm with nothing behind it", "{ token_bucket: }"),
        ("a number for an algorithm", "{ sliding_log: 100/1m }"),
        ("a missing field", "{ token_bucket: { rate: 1/s } }"),
        (
            "an unknown field",
            "{ token_bucket: { rate: 1/s, capacity: 5, burst: 5 } }",
        ),
        (
            "an unknown refill",
            "{ token_bucket: { rate: 1/s, capacity: 5, refill: intervals } }",
        ),
        (
            "a start above the capacity",
            "{ token_bucket: { rate: 1/s, capacity: 5, initial: 6 } }",
        ),
        (
            "an unknown time zone",
            "{ quota: { limit: 5, per: day, time_zone: Asia/Shangai } }",
        ),
        (
            "a start that does not suit",
            "{ quota: { limit: 5, per: week, starts_on: 15 } }",
        ),
        ("an unknown span", "{ quota: { limit: 5, per: days } }"),
        (
            "a calendar window of an hour",
            "{ fixed_window: { limit: 5/1h, align: calendar } }",
        ),
        (
            "a zone without a calendar",
            "{ fixed_window: { limit: 5/1h, time_zone: UTC } }",
        ),
        (
            "cells of an estimate",
            "{ sliding_window: { limit: 5/1h, mode: interpolated, cells: 5 } }",
        ),
        (
            "too many cells",
            "{ sliding_window: { limit: 5/1h, cells: 5000 } }",
        ),
        (
            "a lease beyond the longest hold",
            "{ concurrency: { limit: 5, lease: 60s, max_hold: 30s } }",
        ),
        (
            "a wait without a queue",
            "{ concurrency: { limit: 5, lease: 60s, max_wait: 30s } }",
        ),
        (
            "bans that shrink",
            "{ lockout: { failures: 5/15m, ban: 1h, max_ban: 15m } }",
        ),
        ("no burst", "{ leaky_bucket: { rate: 5/s, burst: 0 } }"),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_limits_come_with_the_right_ones() {
    let lines = [
        ("an unknown key", "limit: 5"),
        ("a mistyped key part", "key: [client-ip]"),
        ("a key part without its name", "key: [query]"),
        ("a key that is no list", "key: client_ip"),
        ("an unknown mode", "mode: shaddow"),
        ("a mode above all", "mode: 110%"),
        ("an unknown store", "store: valkey"),
        ("an unknown answer to a failure", "on_store_failure: open"),
        (
            "a share above one",
            "on_store_failure: { local_share: 1.5 }",
        ),
        ("no keys at all", "max_keys: 0"),
        ("an empty condition", "count_when: \"\""),
        (
            "several at once",
            "{ mode: maybe, cost: -1, max_keys: none, kee: [] }",
        ),
    ];
    let documents = lines.map(|(name, line)| {
        let algorithm = "algorithm: { sliding_log: { limit: 5/1m } }";
        let text = match line.strip_prefix('{') {
            Some(rest) => format!("limits:\n  a: {{ {algorithm},{rest}\n"),
            None => format!("limits:\n  a:\n    {algorithm}\n    {line}\n"),
        };
        (name, text)
    });
    let cases: Vec<(&str, &str)> = documents
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let said = errors(&cases);
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_stores_identities_plans_and_keys_come_with_the_right_ones() {
    let said = errors(&[
        (
            "a limit's name with a space",
            "limits: { a b: { algorithm: { sliding_log: { limit: 5/1m } } } }\n",
        ),
        (
            "a store named memory",
            "stores: { memory: { valkey: { url: \"redis://a\" } } }\n",
        ),
        (
            "a store without a scheme",
            "stores: { shared: { valkey: { url: \"localhost:6379\" } } }\n",
        ),
        (
            "a proxy that is a name",
            "identity: { client_ip: { trusted_proxies: [proxy.internal] } }\n",
        ),
        (
            "a proxy with host bits",
            "identity: { client_ip: { trusted_proxies: [10.1.2.3/8] } }\n",
        ),
        (
            "a header with a space",
            "identity: { client_ip: { headers: [x forwarded for] } }\n",
        ),
        (
            "a prefix that is too long",
            "identity: { client_ip: { ipv4_prefix: 64 } }\n",
        ),
        (
            "an unknown limit in a plan",
            "limits: {}\nplans: { gold: { limits: [rate] } }\n",
        ),
        (
            "a hash that is none",
            "api_keys: [ { id: alice, sha256: secret } ]\n",
        ),
        (
            "an unknown plan and a key of two",
            "plans: { gold: {} }\napi_keys:\n  - { id: alice, plan: golden, sha256: \
             9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 }\n  - { id: alice, \
             sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 }\n",
        ),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_settings_of_a_store_come_with_the_right_ones() {
    let store = |fields: &str| format!("stores:\n  shared: {{ valkey: {{ {fields} }} }}\n");
    let documents = [
        (
            "a password in a URL that is wrong",
            store("url: \"redis://bob:hunter2@a:port\""),
        ),
        (
            "a user without a password",
            store("url: redis://a, user: bob"),
        ),
        (
            "two passwords",
            store("url: \"redis://:hunter2@a\", password: { env: P }"),
        ),
        (
            "a password that is written down",
            store("url: redis://a, password: hunter2"),
        ),
        (
            "a variable without a name",
            store("url: redis://a, password: { env: \"\" }"),
        ),
        (
            "certificates without TLS",
            store("url: redis://a, tls: { ca: ca.pem }"),
        ),
        (
            "a certificate without its key",
            store("url: rediss://a, tls: { certificate: own.pem }"),
        ),
        (
            "a sentinel's user without sentinels",
            store("url: redis://a, sentinel_user: s, sentinel_password: { env: S }"),
        ),
        (
            "sentinels without a name",
            store("url: redis+sentinel://a:1"),
        ),
        ("a database of a cluster", store("url: redis+cluster://a/1")),
        ("several hosts of one server", store("url: \"redis://a,b\"")),
        (
            "a prefix with a brace",
            store("url: redis://a, key_prefix: \"{a}\""),
        ),
        (
            "no connections and no failures",
            store("url: redis://a, connections: 0, breaker: { failures: 0 }"),
        ),
        (
            "a deadline of nothing",
            store("url: redis://a, deadline: 0s"),
        ),
        (
            "a limit in an unknown store",
            format!(
                "{}limits: {{ a: {{ algorithm: {{ sliding_log: {{ limit: 1/s }} }}, store: shard }} }}\n",
                store("url: redis://a")
            ),
        ),
    ];
    let cases: Vec<(&str, &str)> = documents
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    insta::assert_snapshot!(errors(&cases));
}

#[test]
fn wrong_routes_come_with_the_right_ones() {
    let routes = [
        (
            "an unknown limit",
            "{ match: GET /, limits: [stag], mock: {} }",
        ),
        (
            "a limit that is there twice",
            "{ match: GET /, limits: [stage, stage], mock: {} }",
        ),
        (
            "a parameter that the route lacks",
            "{ match: \"GET /orders/{order}\", limits: [per-order], mock: {} }",
        ),
        ("no method", "{ match: /vips, mock: {} }"),
        (
            "a method in small letters",
            "{ match: get /vips, mock: {} }",
        ),
        (
            "a parameter in another style",
            "{ match: GET /orders/:id, mock: {} }",
        ),
        (
            "a path that goes on",
            "{ match: \"GET /{all+}/x\", mock: {} }",
        ),
        ("a route that leads nowhere", "{ match: GET /vips }"),
        (
            "a route that leads to two places",
            "{ match: GET /vips, mock: {}, proxy: \"http://a\" }",
        ),
        (
            "a route that is never reached",
            "{ match: \"GET /a/{x}\", mock: {} }\n    - { match: \"GET /a/{y}\", mock: {} }",
        ),
        (
            "an upstream without a scheme",
            "{ match: GET /, proxy: \"127.0.0.1:9000\" }",
        ),
        (
            "an upstream of another kind",
            "{ match: GET /, proxy: \"ftp://a\" }",
        ),
        (
            "an upstream with a query",
            "{ match: GET /, proxy: \"http://a/?b=c\" }",
        ),
        (
            "an upstream with an unknown setting",
            "{ match: GET /, proxy: { to: \"http://a\", time_out: 5s } }",
        ),
        (
            "an upstream with an impossible port",
            "{ match: GET /, proxy: \"http://a:99999\" }",
        ),
        (
            "a status that is none",
            "{ match: GET /, mock: { status: 99 } }",
        ),
        (
            "a body where none may be",
            "{ match: GET /, mock: { status: 204, body: hello } }",
        ),
        (
            "headers that are none",
            "{ match: GET /, mock: { headers: { \"x y\": z, connection: close } } }",
        ),
        (
            "several at once",
            "{ match: GTE /a, limits: [stge], mock: { status: 1000, boddy: x } }",
        ),
    ];
    let documents = routes.map(|(name, route)| {
        let algorithm = "algorithm: { gcra: { rate: 1/s, burst: 1 } }";
        let text = format!(
            "limits:\n  stage: {{ {algorithm} }}\n  per-order: {{ {algorithm}, key: [path.id] }}\n\
             gateway:\n  listen: 127.0.0.1:8080\n  routes:\n    - {route}\n"
        );
        (name, text)
    });
    let cases: Vec<(&str, &str)> = documents
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let said = errors(&cases);
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_doors_come_with_the_right_ones() {
    let said = errors(&[
        (
            "an unknown dialect",
            "gateway: { listen: 127.0.0.1:8080, limit_headers: draft-3 }\n",
        ),
        (
            "a time-out of zero",
            "gateway: { listen: 127.0.0.1:8080, timeouts: { header: 0s } }\n",
        ),
        (
            "a flag that is none",
            "gateway: { listen: 127.0.0.1:8080, access_log: sometimes }\n",
        ),
        (
            "an address that is a name",
            "gateway: { listen: localhost:8080 }\n",
        ),
        (
            "an address without a host",
            "gateway: { listen: \":8080\" }\n",
        ),
        (
            "a port that is none",
            "admin: { listen: 127.0.0.1:80800 }\n",
        ),
        (
            "two doors at one address",
            "gateway: { listen: 0.0.0.0:8080 }\nadmin: { listen: 127.0.0.1:8080 }\n",
        ),
        ("no address", "gateway: { routes: [] }\n"),
        (
            "no connections",
            "gateway: { listen: 127.0.0.1:8080, max_connections: 0 }\n",
        ),
        ("a service that listens nowhere", "service: {}\n"),
        (
            "a service whose settings cannot be",
            "service: { resp: 6380, secret_sha256: hunter2, max_connections: 0, max_throttle_keys: 0 }\n",
        ),
        ("an unknown section", "limit: {}\n"),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn what_cannot_be_enforced_yet_is_refused_by_name() {
    let said = errors(&[(
        "everything that later versions bring",
        r#"stores:
  shared: { valkey: { url: "redis://127.0.0.1:6379", deadline: 20ms } }
limits:
  per-user:  { algorithm: { sliding_log: { limit: 100/1m } }, key: [query.user_id], store: shared }
  logins:    { algorithm: { lockout: { failures: 5/15m, ban: 15m } }, key: [client_ip, form.username],
               count_when: "status in [401, 403]", reset_when: "status == 200" }
  in-flight: { algorithm: { concurrency: { limit: 32, lease: 30s } }, key: [principal] }
  gold-rate: { algorithm: { token_bucket: { rate: 10/s, capacity: 20 } }, key: [api_key] }
  claims:    { algorithm: { token_bucket: { rate: 10/s, capacity: 20 } }, key: [jwt.sub] }
plans:
  gold: { limits: [gold-rate] }
api_keys: [ { id: alice, sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, plan: gold } ]
gateway:
  listen: 127.0.0.1:8080
  routes:
    - { match: "GET /vips", limits: [per-user, claims], cache: { ttl: 5m }, mock: { body: hello } }
    - { match: "POST /login", limits: [logins], proxy: "https://127.0.0.1:9000" }
    - { match: "ANY /orders/{proxy+}", api_key: required, limits: [in-flight, gold-rate], mock: {} }
service: { grpc: 127.0.0.1:8081 }
"#,
    )]);
    insta::assert_snapshot!(said);
}

#[test]
fn lints_warn_and_fail_only_where_they_are_denied() {
    let cases = [
        (
            "TG-LINT-001",
            "limits:\n  otp:\n    description: at most 3 SMS per number per 10 minutes, with no burst beyond\n    algorithm: { token_bucket: { rate: 1/200s, capacity: 3, refill: interval } }\n",
        ),
        (
            "TG-LINT-002",
            "limits: { a: { algorithm: { token_bucket: { rate: 1/s, capacity: 5 } }, cost: 6 } }\n",
        ),
        (
            "TG-LINT-003",
            "limits:\n  burst: { algorithm: { token_bucket: { rate: 10/s, capacity: 200 } } }\n  day: { algorithm: { quota: { limit: 100, per: day } } }\ngateway: { listen: 127.0.0.1:8080, routes: [ { match: GET /, limits: [burst, day], mock: {} } ] }\n",
        ),
        (
            "TG-LINT-004",
            "limits: { a: { algorithm: { sliding_log: { limit: 1/s } } } }\ngateway: { listen: 127.0.0.1:8080 }\n",
        ),
        (
            "TG-LINT-005",
            "limits: { a: { algorithm: { sliding_window: { limit: 100/1m, mode: interpolated } } } }\n",
        ),
        (
            "TG-LINT-006",
            "identity: { client_ip: { trusted_proxies: [0.0.0.0/0] } }\n",
        ),
        (
            "TG-LINT-007",
            "limits: { a: { algorithm: { gcra: { rate: 0/s, burst: 5 } } } }\n",
        ),
        (
            "TG-LINT-008",
            "limits: { a: { algorithm: { token_bucket: { rate: 10/s, capacity: 5, refill: interval } } } }\n",
        ),
        ("TG-LINT-010", "admin: { listen: 0.0.0.0:9090 }\n"),
        ("TG-LINT-040", "service: { resp: 0.0.0.0:6380 }\n"),
        (
            "TG-LINT-011",
            "limits: { a: { algorithm: { leaky_bucket: { rate: 1/s, queue: 100 } } } }\ngateway: { listen: 127.0.0.1:8080, routes: [ { match: GET /, limits: [a], mock: {} } ] }\n",
        ),
        (
            "TG-LINT-012",
            "limits: { a: { algorithm: { sliding_log: { limit: 1/s } }, key: [header.x-forwarded-for] } }\n",
        ),
    ];
    for (code, _) in cases {
        let one: Vec<_> = cases
            .into_iter()
            .filter(|(name, _)| *name == code)
            .collect();
        let warned = said(&one, &[], 0);
        assert!(
            warned.contains(&format!("warning[{code}]")),
            "{code}: {warned}"
        );
    }
    said(&cases, &["--deny-warnings"], 1);
    let said = said(&cases, &[], 0);
    insta::assert_snapshot!(said);
}

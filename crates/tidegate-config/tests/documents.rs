//! Whole documents: what they become, and that each default is the one that is written down.

use std::time::Duration;

use tidegate_config::model::{
    Action, Atomicity, Compat, GrpcDenial, HeaderDialect, KeyPart, Mode, OnStoreFailure, Secret,
    Store, StoreKind, StoreUrl, Timeouts, WhenFull,
};
use tidegate_config::{Checked, Config, Purpose, Share, parse};
use tidegate_core::{Policy, Timestamp};

const WHOLE: &str = include_str!("documents/whole.yaml");

fn inspect(text: &str) -> Config {
    parse("test.yaml", text, Purpose::Inspect)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

#[test]
fn a_document_with_everything_is_read_as_it_is_written() {
    let Checked { config, warnings } =
        parse("whole.yaml", WHOLE, Purpose::Inspect).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(warnings.errors(), 0);
    let headers: Vec<String> = config
        .limits
        .iter()
        .map(|limit| format!("{}: {}", limit.name, limit.algorithm))
        .collect();
    assert_eq!(
        headers,
        [
            "stage: token_bucket rate 100/s capacity 200",
            "per-user: sliding_log limit 100/m",
            "logins: lockout failures 5/15m ban 15m factor 2 max_ban 1d",
            "in-flight: concurrency limit 32 lease 30s",
            "gold-rate: token_bucket rate 10/s capacity 20",
            "gold-day: quota limit 1000 per day",
            "interval: token_bucket rate 1/2s capacity 5 refill interval initial 0",
            "cells: gcra rate 1/87660h burst 1",
            "paced: leaky_bucket rate 3/10m queue 20 burst 5 max_wait 2s",
            "minute: fixed_window limit 700/m",
            "first: fixed_window limit 100/90m align first_use",
            "shanghai: fixed_window limit 100001/d align calendar time_zone Asia/Shanghai",
            "week: quota limit 5 per week time_zone America/New_York starts_on sunday",
            "month: quota limit 5 per month starts_on 15",
            "year: quota limit 5 per year starts_on 04-01",
            "strict: sliding_window limit 1000000/d cells 24",
            "estimate: sliding_window limit 100/m mode interpolated",
            "jobs: concurrency limit 3 lease 1m max_hold 10m queue 7 max_wait 5s",
            "guesses: lockout failures 5/15m ban 15m jitter 30s forget_after 2d long_cap 100/30d",
            "closed: token_bucket rate 0/s capacity 0",
        ]
    );
    let interval = config.limit("interval").unwrap();
    assert_eq!(
        interval.description.as_deref(),
        Some("Tokens come back together.\n")
    );
    let key: Vec<String> = interval.key.iter().map(ToString::to_string).collect();
    assert_eq!(
        key,
        [
            "header.x-tenant",
            "cookie.session",
            "path.proxy",
            "jwt.sub",
            "everyone"
        ]
    );
    assert_eq!((interval.cost, interval.mode), (2, Mode::Percent(10)));
    assert_eq!(
        (interval.max_keys, interval.when_full),
        (10_000, WhenFull::DenyNew)
    );
    assert_eq!(config.limit("minute").unwrap().mode, Mode::Off);
    assert_eq!(config.limit("per-user").unwrap().store, Some(0));
    assert_eq!(
        config.limit("logins").unwrap().on_store_failure,
        OnStoreFailure::Deny
    );
    assert_eq!(config.stores[0].deadline, Duration::from_millis(20));
    assert_eq!(config.identity.trusted_proxies.len(), 3);
    assert_eq!(config.plans[0].limits, [4, 5]);
    assert_eq!(config.plans[0].methods[0].0.as_str(), "GET /orders/{id}");
    assert_eq!(config.api_keys[0].sha256[..2], [0x9f, 0x86]);
    assert_eq!(
        config.service.unwrap().resp.unwrap().to_string(),
        "[::1]:6380"
    );
    assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:9090");
}

#[test]
fn the_routes_of_a_gateway_are_resolved() {
    let gateway = inspect(WHOLE).gateway.unwrap();
    assert_eq!(gateway.limit_headers, HeaderDialect::Draft03);
    assert_eq!((gateway.compat, gateway.access_log), (Compat::Aws, false));
    assert_eq!(gateway.grpc_denial, GrpcDenial::Unavailable);
    assert_eq!(gateway.max_connections, 500);
    assert_eq!(gateway.timeouts.connect, Duration::from_millis(250));
    assert_eq!(gateway.timeouts.drain, Duration::ZERO);
    assert_eq!(gateway.routes[0].limits, [0, 1]);
    assert_eq!(gateway.routes[2].limits, [3, 6]);
    assert!(gateway.routes[2].api_key_required);
    let cache = gateway.routes[0].cache.as_ref().unwrap();
    assert_eq!(
        cache.key.as_deref(),
        Some(&[KeyPart::Query("user_id".to_owned())][..])
    );
    let Action::Mock(mock) = &gateway.routes[0].action else {
        panic!("no mock")
    };
    assert_eq!(mock.headers[0].1, "application/json");
    let Action::Proxy(proxy) = &gateway.routes[1].action else {
        panic!("no proxy")
    };
    assert_eq!(
        (proxy.authority.as_str(), proxy.prefix.as_str()),
        ("127.0.0.1:9000", "/base")
    );
    assert_eq!(proxy.timeout, Duration::from_secs(20));
    let Action::Proxy(proxy) = &gateway.routes[2].action else {
        panic!("no proxy")
    };
    assert_eq!((proxy.timeout, proxy.tls), (Duration::from_secs(5), false));
    let Action::Mock(teapot) = &gateway.routes[3].action else {
        panic!("no mock")
    };
    assert_eq!(teapot.status, 418);
    let Action::Mock(again) = &gateway.routes[4].action else {
        panic!("no mock")
    };
    let headers: Vec<(&str, &[u8])> = again
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    assert_eq!(
        headers,
        [
            ("content-type", &b"text/html"[..]),
            ("x-served-by", b"again")
        ]
    );
}

#[test]
fn what_is_left_out_has_the_default_that_is_written_down() {
    let config = inspect(
        r#"
limits:
  rate: { algorithm: { gcra: { rate: 1/s, burst: 1 } } }
  work: { algorithm: { concurrency: { limit: 1, lease: 1s } } }
  guess: { algorithm: { lockout: { failures: 5/15m, ban: 15m } } }
gateway:
  listen: 127.0.0.1:0
  routes: [ { match: GET /, proxy: "http://a" }, { match: GET /b, mock: { body: hello } } ]
"#,
    );
    let rate = config.limit("rate").unwrap();
    assert_eq!((rate.cost, rate.mode, rate.store), (1, Mode::Enforce, None));
    assert_eq!(
        (rate.max_keys, rate.when_full),
        (1_000_000, WhenFull::Overflow)
    );
    assert_eq!(
        rate.on_store_failure,
        OnStoreFailure::LocalShare(Share::HALF)
    );
    assert_eq!(rate.key, []);
    for name in ["work", "guess"] {
        assert_eq!(
            config.limit(name).unwrap().on_store_failure,
            OnStoreFailure::Deny
        );
    }
    let Policy::Lockout(lockout) = config
        .limit("guess")
        .unwrap()
        .policy(Timestamp::EPOCH)
        .unwrap()
    else {
        panic!("no lockout")
    };
    let settings = lockout.settings();
    assert_eq!(
        (settings.factor, settings.jitter.0, settings.long_cap),
        (1, 0, None)
    );
    assert_eq!(
        (settings.max_ban.0, settings.forget_after.0),
        (86_400_000_000, 86_400_000_000)
    );
    assert_eq!(config.identity, tidegate_config::model::Identity::default());
    let gateway = config.gateway.unwrap();
    assert_eq!(gateway.timeouts, Timeouts::default());
    assert_eq!(gateway.limit_headers, HeaderDialect::Ietf);
    assert_eq!((gateway.compat, gateway.access_log), (Compat::Native, true));
    assert_eq!(gateway.grpc_denial, GrpcDenial::ResourceExhausted);
    assert_eq!(gateway.max_connections, 10_000);
    let Action::Proxy(proxy) = &gateway.routes[0].action else {
        panic!("no proxy")
    };
    assert_eq!(proxy.timeout, Duration::from_secs(29));
    let Action::Mock(mock) = &gateway.routes[1].action else {
        panic!("no mock")
    };
    assert_eq!((mock.status.as_u16(), mock.headers.len()), (200, 1));
    assert_eq!(mock.headers[0].1, "text/plain; charset=utf-8");
    assert!(config.admin.is_none() && config.service.is_none());
}

#[test]
fn a_store_with_everything_and_one_with_nothing_are_read_as_they_are_written() {
    let config = inspect(
        r#"
stores:
  plain: { valkey: { url: "redis://127.0.0.1" } }
  all:
    valkey:
      url: rediss+sentinel://10.0.0.1,10.0.0.2:26380/main/3
      deadline: 5ms
      user: tidegate
      password: { env: VALKEY_PASSWORD }
      sentinel_user: watcher
      sentinel_password: { file: /run/secrets/sentinel }
      tls: { ca: ca.pem, certificate: own.pem, key: own.key }
      key_prefix: prod
      key_secret: { file: secret }
      atomicity: cas
      connections: 4
      connect_timeout: 1s
      breaker: { failures: 3 }
"#,
    );
    let plain = Store::at("plain", StoreUrl::parse("redis://127.0.0.1").unwrap());
    assert_eq!(
        config.stores[0], plain,
        "every default is the one of the model"
    );
    let all = &config.stores[1];
    assert_eq!((all.url.kind(), all.url.tls()), (StoreKind::Sentinel, true));
    assert_eq!(all.deadline, Duration::from_millis(5));
    assert_eq!(all.user.as_deref(), Some("tidegate"));
    assert_eq!(
        all.password,
        Some(Secret::Env("VALKEY_PASSWORD".to_owned()))
    );
    assert_eq!(all.sentinel_user.as_deref(), Some("watcher"));
    assert_eq!(
        all.sentinel_password,
        Some(Secret::File("/run/secrets/sentinel".into()))
    );
    assert_eq!(all.tls.ca, Some("ca.pem".into()));
    assert_eq!(
        all.tls.certificate,
        Some(("own.pem".into(), "own.key".into()))
    );
    assert_eq!((all.key_prefix.as_str(), all.connections), ("prod", 4));
    assert_eq!(all.atomicity, Atomicity::CompareAndSwap);
    assert_eq!(all.key_secret, Some(Secret::File("secret".into())));
    assert_eq!(all.connect_timeout, Duration::from_secs(1));
    assert_eq!(all.breaker_failures, 3);
}

#[test]
fn no_message_and_no_drawing_shows_a_password() {
    let text = r#"
stores:
  a: { valkey: { url: "redis://bob:hunter2@cache.example", tls: {}, password: { env: X } } }
  b: { valkey: { url: "redis://bob:hunter2@cache.example:port" } }
  c: { valkey: { url: "http://bob:hunter2@cache.example" } }
  d: { valkey: { urll: "redis://bob:hunter2@cache.example" } }
  e: { valkey: { url: "redis://a", password: hunter2 } }
  f: { valkey: { url: "redis://a", key_secret: [hunter2] } }
"#;
    let report = parse("test.yaml", text, Purpose::Inspect).unwrap_err();
    assert!(report.errors() >= 6, "{report}");
    let shown = format!("{report} {report:?} {}", report.to_json());
    assert!(!shown.contains("hunter2"), "{shown}");
    let config = inspect("stores: { a: { valkey: { url: \"redis://bob:hunter2@a\" } } }");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn what_is_not_enforced_yet_may_be_inspected_and_not_run() {
    assert!(parse("whole.yaml", WHOLE, Purpose::Inspect).is_ok());
    let report = parse("whole.yaml", WHOLE, Purpose::Run).unwrap_err();
    assert!(
        report
            .problems()
            .iter()
            .all(|problem| problem.message.contains("not available"))
    );
    // A file without doors promises nothing, whatever its limits need.
    let alone = "stores: { shared: { valkey: { url: \"redis://a\" } } }
limits: { a: { algorithm: { concurrency: { limit: 1, lease: 1s } }, store: shared, key: [jwt.sub] } }";
    assert!(parse("alone.yaml", alone, Purpose::Run).is_ok());
}

#[test]
fn json_is_yaml_too() {
    let config = inspect(
        "{\"limits\": {\"a\": {\"algorithm\": {\"token_bucket\": {\"rate\": \"2/s\", \"capacity\": 10}}}}}",
    );
    assert_eq!(
        config.limits[0].algorithm.to_string(),
        "token_bucket rate 2/s capacity 10"
    );
}

#[test]
fn a_byte_order_mark_and_foreign_line_ends_do_not_move_the_caret() {
    let text = "\u{feff}limits:\r\n  a: { algorithm: { gcra: { rate: 5, burst: 1 } } }\r\n";
    let report = parse("test.yaml", text, Purpose::Inspect).unwrap_err();
    let span = report.problems()[0].span.unwrap();
    assert_eq!(&text[span.start..span.end], "5");
    assert_eq!(report.line_and_column(span), (2, 35));
}

//! Every kind of store, opened from a document as a reader writes it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate::{SharedLimiter, SharedLimiterBuilder, StoreWatch, Stores};
use tidegate_config::{Purpose, parse};
use tidegate_testkit::{Certificates, Cluster, Flavor, SentinelSet, Server, ServerOptions};

/// Longer than anything that is tested takes.
const LONG: Duration = Duration::from_secs(20);

/// The limit of a document whose store has these fields.
fn limiter(fields: &str) -> SharedLimiter {
    let text = format!(
        "stores: {{ s: {{ valkey: {{ deadline: 5s, connect_timeout: 5s, {fields} }} }} }}
limits: {{ a: {{ algorithm: {{ sliding_log: {{ limit: 3/h }} }}, store: s, on_store_failure: deny }} }}"
    );
    let config = parse("test.yaml", &text, Purpose::Run)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    let stores = Stores::open(&config.stores, &Stores::default(), &StoreWatch::default());
    let stores = stores.unwrap_or_else(|error| panic!("{error}"));
    SharedLimiterBuilder::from_config(&config.limits[0], stores.get(0).unwrap())
        .unwrap()
        .build()
}

/// Three pass and no more, whichever of two processes is asked, and none was decided blindly.
async fn counts(fields: &str) {
    let processes = [limiter(fields), limiter(fields)];
    for process in &processes {
        let ready = process.limit().store().client().ready(LONG).await;
        ready.unwrap_or_else(|error| panic!("{fields}: {error}"));
        let answers = process.limit().store().client().check(LONG).await;
        answers.unwrap_or_else(|error| panic!("{fields}: {error}"));
    }
    for n in 0..8 {
        let decision = processes[n % 2].try_take("k", 1).await.unwrap();
        assert_eq!(decision.is_allowed(), n < 3, "{fields}: {n}: {decision:?}");
    }
    assert!(
        processes
            .iter()
            .all(|process| process.stats().fallbacks == 0)
    );
}

fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn one_server_by_its_address_its_socket_and_in_another_database() {
    let server = Server::start(Flavor::Valkey9);
    counts(&format!("url: \"{}\", key_prefix: one", server.url())).await;
    counts(&format!("url: \"{}/3\", key_prefix: two", server.url())).await;
    counts(&format!(
        "url: \"{}/7\", key_prefix: four, atomicity: cas",
        server.url()
    ))
    .await;
    let socket = server.socket().display().to_string();
    counts(&format!(
        "url: \"redis+unix://{socket}?db=5\", key_prefix: three"
    ))
    .await;
    let keys = |database: u32| {
        let mut connection = server.connection();
        redis::cmd("SELECT")
            .arg(database)
            .exec(&mut connection)
            .unwrap();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        let prefix = |key: &Vec<u8>| {
            String::from_utf8_lossy(key)
                .split(':')
                .next()
                .map(str::to_owned)
        };
        keys.iter().filter_map(prefix).collect::<Vec<_>>()
    };
    assert_eq!(
        (keys(0), keys(3), keys(5)),
        (vec!["one".into()], vec!["two".into()], vec!["three".into()])
    );
}

#[tokio::test]
async fn a_server_with_users_and_tls_that_asks_for_a_certificate() {
    let certificates = Certificates::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| write(folder.path(), name, content);
    let tls = format!(
        "tls: {{ ca: {}, certificate: {}, key: {} }}",
        file("ca.pem", &certificates.authority),
        file("own.pem", &certificates.client),
        file("own.key", &certificates.client_key),
    );
    let server = ServerOptions::new(Flavor::Redis7)
        .tls(&certificates, true)
        .directive("user bob on >pass@word ~tg1:* &tg1:* +@all")
        .start();
    let password = file("password", "pass@word\n");
    counts(&format!(
        "url: \"{}\", user: bob, password: {{ file: {password} }}, {tls}",
        server.url()
    ))
    .await;

    let wrong = file("wrong", "another");
    let refused = limiter(&format!(
        "url: \"{}\", user: bob, password: {{ file: {wrong} }}, {tls}",
        server.url()
    ));
    let error = refused
        .limit()
        .store()
        .client()
        .ready(LONG)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "authentication");
    assert!(
        !refused.try_take("k", 1).await.unwrap().is_allowed(),
        "it fails closed"
    );
}

#[tokio::test]
async fn the_primary_that_sentinels_know() {
    let set = SentinelSet::start(Flavor::Valkey9);
    counts(&format!("url: \"{}\"", set.url())).await;
}

#[tokio::test]
async fn a_cluster_under_a_secret_of_its_own() {
    let cluster = Cluster::start(Flavor::Valkey9);
    let folder = tempfile::tempdir().unwrap();
    let secret = write(folder.path(), "secret", "hush");
    counts(&format!(
        "url: \"{}\", key_secret: {{ file: {secret} }}",
        cluster.url()
    ))
    .await;
}

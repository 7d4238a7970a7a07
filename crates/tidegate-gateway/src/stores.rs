//! What is counted and logged of stores, and whether they answer.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::valkey::{Event, StoreError};
use tidegate::{StoreWatch, Stores};
use tidegate_config::model::{self, Mode, OnStoreFailure};

use crate::limits::Limit;
use crate::metrics::{Metrics, Name, StoreRequestLabels, StoreSecondsLabels};

/// The same failure to connect is not logged again for so long.
const QUIET: Duration = Duration::from_secs(60);

/// How long a store may take to show that it answers. A deadline is for decisions; this is for those
/// who ask whether there will be any.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who counts and logs what happens at these stores.
pub(crate) fn watch(stores: &[model::Store], metrics: &Arc<Metrics>) -> StoreWatch {
    let names: HashMap<String, Name> = stores
        .iter()
        .map(|store| (store.name.clone(), Name::from(store.name.as_str())))
        .collect();
    let metrics = Arc::clone(metrics);
    let log = Log::default();
    StoreWatch::default()
        .calls(move |store, call| {
            let Some(store) = names.get(store) else {
                return;
            };
            let labels = StoreRequestLabels {
                store: store.clone(),
                op: call.operation,
                result: call.result,
            };
            metrics.store_requests.get_or_create(&labels).inc();
            let labels = StoreSecondsLabels {
                store: labels.store,
                op: labels.op,
            };
            let seconds = metrics.store_seconds.get_or_create(&labels);
            seconds.observe(call.took);
        })
        .events(move |store, event| log.tell(store, event))
}

/// Waits a moment for stores that are about to be there, and says which are not.
pub(crate) async fn greet(stores: &Stores) {
    let asked = stores.iter().map(|(name, store)| {
        let (name, client) = (name.to_owned(), store.client().clone());
        tokio::spawn(async move { (name, client.ready(PATIENCE).await) })
    });
    for asked in asked.collect::<Vec<_>>() {
        if let Ok((store, Err(error))) = asked.await {
            let error = chain(&error);
            tracing::warn!(
                store,
                error,
                "the store gives no answer; until it does, its limits do as `on_store_failure` says"
            );
        }
    }
}

/// What keeps limits from deciding as configured: a line for each of their stores that gives no
/// answer now. Limits that are off ask nobody.
pub(crate) async fn silent(stores: &Stores, limits: &[Arc<Limit>]) -> Option<String> {
    let mut concerned: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for limit in limits.iter().map(|limit| limit.config()) {
        if let (Some(store), false) = (limit.store, limit.mode == Mode::Off) {
            let without = match limit.on_store_failure {
                OnStoreFailure::Allow => "lets all pass".to_owned(),
                OnStoreFailure::Deny => "refuses all".to_owned(),
                OnStoreFailure::LocalShare(share) => {
                    format!("goes on with {} % by itself", share.0 / 10_000)
                }
            };
            let limits = concerned.entry(store).or_default();
            limits.push(format!("`{}` {without}", limit.name));
        }
    }
    let asked = concerned.into_iter().filter_map(|(position, limits)| {
        let (name, store) = stores.iter().nth(position)?;
        let (name, client) = (name.to_owned(), store.client().clone());
        Some((
            name,
            limits,
            tokio::spawn(async move { client.check(PATIENCE).await }),
        ))
    });
    let mut said = String::new();
    for (name, limits, asked) in asked.collect::<Vec<_>>() {
        if let Ok(Err(error)) = asked.await {
            let limits = limits.join(", ");
            let _ = writeln!(said, "store `{name}`: {}; {limits}", chain(&error));
        }
    }
    (!said.is_empty()).then_some(said)
}

/// An error with its causes, in one line.
fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Writes of events, and of the same failure to connect only now and then.
#[derive(Default)]
struct Log {
    failed: Mutex<HashMap<(String, String), (String, Instant)>>,
}

impl Log {
    fn tell(&self, store: &str, event: &Event) {
        match event {
            Event::Connected { server } => {
                self.forget(store, server);
                tracing::info!(store, server, "connected to the store");
            }
            Event::Disconnected { server } => {
                tracing::warn!(store, server, "a connection to the store ended");
            }
            Event::ConnectFailed { server, message } if self.is_news(store, server, message) => {
                tracing::warn!(
                    store,
                    server,
                    error = message,
                    "cannot connect to the store"
                );
            }
            Event::BreakerOpened { server } => tracing::warn!(
                store,
                server,
                "the store is not asked until it answers again; its limits do as `on_store_failure` says"
            ),
            Event::BreakerClosed { server } => {
                tracing::info!(store, server, "the store answers again");
            }
            Event::PrimaryChanged { server } => {
                tracing::info!(store, server, "the store has another primary");
            }
            Event::SlotsChanged { servers } => {
                tracing::info!(store, servers, "the slots of the store lie elsewhere");
            }
            _ => tracing::debug!(store, ?event),
        }
    }

    fn is_news(&self, store: &str, server: &str, message: &str) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (store.to_owned(), server.to_owned());
        let known = failed.get(&key);
        if known.is_some_and(|(known, at)| known == message && at.elapsed() < QUIET) {
            return false;
        }
        failed.insert(key, (message.to_owned(), Instant::now()));
        true
    }

    fn forget(&self, store: &str, server: &str) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.remove(&(store.to_owned(), server.to_owned()));
    }
}

//! The operators' side: `/healthz`, `/readyz` and `/metrics` of all doors on one listener.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::exposition::merge;

/// What writes one door's metrics.
type Page = Box<dyn Fn() -> String + Send + Sync>;

/// What says which limits of a door cannot decide as configured now; none where all can.
pub(super) type Readiness =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<String>> + Send>> + Send + Sync>;

/// The listener, open until it is dropped.
pub(super) struct Admin {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    pages: Vec<Page>,
    readiness: Vec<Readiness>,
    draining: AtomicBool,
}

impl Admin {
    /// Opens the listener.
    pub(super) async fn open(
        wanted: SocketAddr,
        pages: Vec<Page>,
        readiness: Vec<Readiness>,
    ) -> anyhow::Result<Self> {
        let failed = || {
            format!("cannot listen on {wanted}; choose another address, or stop what listens there")
        };
        let listener = TcpListener::bind(wanted).await.with_context(failed)?;
        let address = listener.local_addr().with_context(failed)?;
        let shared = Arc::new(Shared {
            pages,
            readiness,
            draining: AtomicBool::new(false),
        });
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the admin listener ended");
            }
        });
        Ok(Self {
            address,
            shared,
            _serving: serving,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says from now on that new calls are not welcome.
    pub(super) fn turn_away(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }
}

/// Whether new calls are welcome and every limit can decide as configured. Memory always can; a store
/// that gives no answer is named. Who asks for `?stores=ignore` hears of drains alone: where several
/// processes share a store, all would be taken out at once otherwise.
async fn ready(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> (StatusCode, String) {
    if shared.draining.load(Ordering::Acquire) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    let mut silent = String::new();
    if !query.is_some_and(|query| query.split('&').any(|part| part == "stores=ignore")) {
        for door in &shared.readiness {
            silent.extend(door().await);
        }
    }
    if silent.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, silent)
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let pages: Vec<String> = shared.pages.iter().map(|page| page()).collect();
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, media)], merge(&pages))
}

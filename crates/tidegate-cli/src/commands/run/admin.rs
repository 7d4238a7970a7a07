//! The operators' side: `/healthz`, `/readyz` and `/metrics` of all doors on one listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::exposition::merge;

/// What writes one door's metrics.
type Page = Box<dyn Fn() -> String + Send + Sync>;

/// The listener, open until it is dropped.
pub(super) struct Admin {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    pages: Vec<Page>,
    draining: AtomicBool,
}

impl Admin {
    /// Opens the listener.
    pub(super) async fn open(wanted: SocketAddr, pages: Vec<Page>) -> anyhow::Result<Self> {
        let failed = || {
            format!("cannot listen on {wanted}; choose another address, or stop what listens there")
        };
        let listener = TcpListener::bind(wanted).await.with_context(failed)?;
        let address = listener.local_addr().with_context(failed)?;
        let shared = Arc::new(Shared {
            pages,
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

/// Whether new calls are welcome. Memory always decides; only a drain turns clients away.
async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    if shared.draining.load(Ordering::Acquire) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let pages: Vec<String> = shared.pages.iter().map(|page| page()).collect();
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, media)], merge(&pages))
}

//! The operators' side: `/healthz`, `/readyz` and `/metrics` on a listener of its own.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::service::Gateway;

/// What the handlers share.
#[derive(Clone)]
struct Shared {
    gateway: Arc<Gateway>,
    stopping: watch::Receiver<bool>,
}

/// Serves operators until `ended`.
pub(crate) async fn serve(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    stopping: watch::Receiver<bool>,
) {
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Shared { gateway, stopping });
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the admin listener ended");
    }
}

/// Whether new requests are welcome and every limit can decide as configured. Memory always can; a
/// store that gives no answer is named. Who asks for `?stores=ignore` hears of drains alone: where
/// several gateways share a store, all would be taken out at once otherwise.
async fn ready(State(shared): State<Shared>, RawQuery(query): RawQuery) -> (StatusCode, String) {
    if *shared.stopping.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    let ignores = query.is_some_and(|query| query.split('&').any(|part| part == "stores=ignore"));
    if !ignores && let Some(silent) = shared.gateway.silent_stores().await {
        return (StatusCode::SERVICE_UNAVAILABLE, silent);
    }
    (StatusCode::OK, "ready\n".to_owned())
}

async fn metrics(State(shared): State<Shared>) -> impl IntoResponse {
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, media)],
        metrics_page(&shared.gateway),
    )
}

/// Everything that is counted, in the OpenMetrics text format.
pub(crate) fn metrics_page(gateway: &Gateway) -> String {
    let metrics = &gateway.metrics;
    metrics
        .in_flight
        .set(i64::try_from(gateway.in_flight()).unwrap_or(i64::MAX));
    let generation = gateway.current.load_full();
    let limits = generation.limits().iter();
    metrics.look_at_tables(limits.filter_map(|limit| {
        let limiter = limit.limiter().memory()?;
        Some((limit.config().name.as_str(), limiter.stats()))
    }));
    let stores = generation.stores().iter();
    metrics.look_at_stores(stores.map(|(name, store)| (name, store.client().stats())));
    metrics.text()
}

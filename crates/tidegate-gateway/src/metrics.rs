//! What is counted, for Prometheus.
//!
//! No label ever holds a client's value: routes, limits and upstreams are configured names, a
//! method is one of nine or `other`. A histogram here is a row of atomic counters, because the
//! library's locks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use tidegate::MemoryStats;
use tidegate::valkey::ClientStats;

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Decisions by limit and outcome.
    pub decisions: Family<DecisionLabels, Counter>,
    /// Allowed decisions that left less than a tenth of the limit.
    pub near_limit: Family<LimitLabels, Counter>,
    /// How long decisions take, by the slowest store that was asked.
    pub decision_seconds: Family<DurationLabels, Seconds>,
    /// What stores were asked for, and how it ended.
    pub store_requests: Family<StoreRequestLabels, Counter>,
    /// How long the steps of stores take.
    pub store_seconds: Family<StoreSecondsLabels, Seconds>,
    /// Whether stores are asked; set when the metrics are read.
    breakers: Family<StoreLabels, Gauge>,
    /// What the tables of the limits hold and have been through; set when the metrics are read.
    tables: Tables,
    /// Requests by route, method and status.
    pub requests: Family<RequestLabels, Counter>,
    /// From the head of a request to the end of its answer.
    pub seconds: Seconds,
    /// From a request to the head of an upstream's answer.
    pub upstream_seconds: Family<UpstreamLabels, Seconds>,
    /// Reloads by result.
    pub reloads: Family<ReloadLabels, Counter>,
    /// Requests in flight.
    pub in_flight: Gauge,
    /// Open connections of clients.
    pub connections: Gauge,
}

/// The metrics of the limits' tables.
#[derive(Clone, Debug, Default)]
struct Tables {
    keys: Family<LimitLabels, Gauge>,
    evicted: Family<EvictionLabels, Counter>,
    overflowed: Family<LimitLabels, Counter>,
    rebased: Family<LimitLabels, Counter>,
}

/// The labels of evictions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabels {
    limit: Name,
    reason: Eviction,
}

/// Why a key was forgotten that could still have denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Eviction {
    /// The table was full.
    Full,
}

/// The labels of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    /// Who asked.
    pub door: Door,
    /// The limit's name.
    pub limit: Name,
    /// What came of it.
    pub outcome: Outcome,
}

/// The doors of tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// The reverse proxy.
    Gateway,
}

/// What came of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Passed and charged.
    Allowed,
    /// Refused.
    Denied,
    /// Would have been refused.
    ShadowDenied,
    /// Passed without its store, which gave no answer.
    FallbackAllowed,
    /// Refused without its store, which gave no answer.
    FallbackDenied,
    /// There was no decision.
    Error,
}

/// The labels of a decision's length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DurationLabels {
    /// Who asked.
    pub door: Door,
    /// The store that was asked, or `memory`.
    pub store: Name,
}

/// The labels of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreLabels {
    /// The store's name.
    pub store: Name,
}

/// The labels of a step of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreRequestLabels {
    /// The store's name.
    pub store: Name,
    /// What it was asked for.
    pub op: &'static str,
    /// How that ended.
    pub result: &'static str,
}

/// The labels of a step's length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreSecondsLabels {
    /// The store's name.
    pub store: Name,
    /// What it was asked for.
    pub op: &'static str,
}

/// The labels of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LimitLabels {
    /// The limit's name.
    pub limit: Name,
}

/// The labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's pattern, or `unmatched`.
    pub route: Name,
    /// One of nine methods, or `other`.
    pub method: MethodName,
    /// The status.
    pub status: u16,
}

/// The labels of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UpstreamLabels {
    /// Its host and port as configured.
    pub upstream: Name,
}

/// The labels of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReloadLabels {
    /// Whether the new configuration is in force.
    pub result: ReloadResult,
}

/// How a reload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReloadResult {
    /// The new configuration is in force.
    Applied,
    /// The last good one stays in force.
    Refused,
}

/// A configured name. Cloning shares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(pub Arc<str>);

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// A method as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodName(&'static str);

impl From<&Method> for MethodName {
    fn from(method: &Method) -> Self {
        Self(match method.as_str() {
            "GET" => "GET",
            "HEAD" => "HEAD",
            "POST" => "POST",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            "CONNECT" => "CONNECT",
            "OPTIONS" => "OPTIONS",
            "TRACE" => "TRACE",
            "PATCH" => "PATCH",
            _ => "other",
        })
    }
}

macro_rules! label_values {
    ($($kind:ty, $value:ident => $text:expr;)*) => {$(
        impl EncodeLabelValue for $kind {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
                let $value = self;
                EncodeLabelValue::encode(&$text, encoder)
            }
        }
    )*};
}

label_values! {
    Name, name => &*name.0;
    MethodName, method => method.0;
    Door, _door => "gateway";
    Eviction, _reason => "full";
    Outcome, outcome => match outcome {
        Outcome::Allowed => "allowed",
        Outcome::Denied => "denied",
        Outcome::ShadowDenied => "shadow_denied",
        Outcome::FallbackAllowed => "fallback_allowed",
        Outcome::FallbackDenied => "fallback_denied",
        Outcome::Error => "error",
    };
    ReloadResult, result => match result {
        ReloadResult::Applied => "applied",
        ReloadResult::Refused => "refused",
    };
}

/// The upper ends of the buckets, in microseconds.
const BUCKETS: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000, 30_000_000,
];

/// A histogram of lengths of time. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Seconds(Arc<SecondsInner>);

#[derive(Debug, Default)]
struct SecondsInner {
    counts: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Seconds {
    /// Counts one length.
    pub fn observe(&self, length: Duration) {
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.partition_point(|end| *end < micros);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

impl TypedMetric for Seconds {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Seconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let ends = BUCKETS
            .iter()
            .map(|micros| *micros as f64 / 1e6)
            .chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = ends
            .zip(
                self.0
                    .counts
                    .iter()
                    .map(|count| count.load(Ordering::Relaxed)),
            )
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.micros.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl Tables {
    fn register(&self, registry: &mut Registry) {
        registry.register("keys", "Keys that a limit holds", Family::clone(&self.keys));
        registry.register(
            "keys_evicted",
            "Keys forgotten that could still have denied",
            Family::clone(&self.evicted),
        );
        registry.register(
            "keys_overflowed",
            "Calls of keys that found no place of their own",
            Family::clone(&self.overflowed),
        );
        registry.register(
            "clock_rebased",
            "Keys moved back because the clock had been corrected",
            Family::clone(&self.rebased),
        );
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        let decisions = Family::default();
        let near_limit = Family::default();
        let decision_seconds = Family::default();
        let store_requests = Family::default();
        let store_seconds = Family::default();
        let breakers = Family::default();
        let tables = Tables::default();
        let requests = Family::default();
        let seconds = Seconds::default();
        let upstream_seconds = Family::default();
        let reloads = Family::default();
        let in_flight = Gauge::default();
        let connections = Gauge::default();
        registry.register("decisions", "Decisions", Family::clone(&decisions));
        registry.register(
            "near_limit",
            "Allowed decisions that left less than a tenth of the limit",
            Family::clone(&near_limit),
        );
        registry.register(
            "decision_seconds",
            "How long decisions take",
            Family::clone(&decision_seconds),
        );
        registry.register(
            "store_requests",
            "What stores were asked for",
            Family::clone(&store_requests),
        );
        registry.register(
            "store_seconds",
            "How long the steps of stores take",
            Family::clone(&store_seconds),
        );
        registry.register(
            "store_breaker_state",
            "0 while a store is asked, 1 while a server of it is not, until it answers again",
            Family::clone(&breakers),
        );
        tables.register(&mut registry);
        registry.register(
            "http_requests",
            "Requests answered",
            Family::clone(&requests),
        );
        registry.register(
            "http_seconds",
            "From the head of a request to the end of its answer",
            seconds.clone(),
        );
        registry.register(
            "upstream_seconds",
            "From a request to the head of an upstream's answer",
            Family::clone(&upstream_seconds),
        );
        registry.register("config_reloads", "Reloads", Family::clone(&reloads));
        registry.register("http_in_flight", "Requests in flight", in_flight.clone());
        registry.register(
            "http_connections",
            "Open connections of clients",
            connections.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version that runs", build);
        Self {
            registry,
            decisions,
            near_limit,
            decision_seconds,
            store_requests,
            store_seconds,
            breakers,
            tables,
            requests,
            seconds,
            upstream_seconds,
            reloads,
            in_flight,
            connections,
        }
    }

    /// Takes over what the tables of the limits in force hold and have been through.
    pub fn look_at_tables<'a>(&self, limits: impl Iterator<Item = (&'a str, MemoryStats)>) {
        let tables = &self.tables;
        tables.keys.clear();
        for (name, stats) in limits {
            let labels = LimitLabels { limit: name.into() };
            let keys = i64::try_from(stats.keys).unwrap_or(i64::MAX);
            tables.keys.get_or_create(&labels).set(keys);
            let set = |counter: &Counter, value| counter.inner().store(value, Ordering::Relaxed);
            set(&tables.overflowed.get_or_create(&labels), stats.overflowed);
            set(&tables.rebased.get_or_create(&labels), stats.rebased);
            let labels = EvictionLabels {
                limit: labels.limit,
                reason: Eviction::Full,
            };
            set(&tables.evicted.get_or_create(&labels), stats.evicted);
        }
    }

    /// Takes over whether the stores in force are asked.
    pub fn look_at_stores<'a>(&self, stores: impl Iterator<Item = (&'a str, ClientStats)>) {
        self.breakers.clear();
        for (name, stats) in stores {
            let labels = StoreLabels { store: name.into() };
            let open = i64::from(stats.breakers_open > 0);
            self.breakers.get_or_create(&labels).set(open);
        }
    }

    /// Writes everything in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string never fails");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_falls_into_the_first_bucket_that_holds_it() {
        let metrics = Metrics::new();
        for micros in [500, 501, 40_000_000] {
            metrics.seconds.observe(Duration::from_micros(micros));
        }
        let text = metrics.text();
        for line in [
            "tidegate_http_seconds_bucket{le=\"0.0005\"} 1",
            "tidegate_http_seconds_bucket{le=\"0.001\"} 2",
            "tidegate_http_seconds_bucket{le=\"30.0\"} 2",
            "tidegate_http_seconds_bucket{le=\"+Inf\"} 3",
            "tidegate_http_seconds_count 3",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_method_that_a_client_made_up_is_no_label() {
        let metrics = Metrics::new();
        let method = Method::from_bytes(b"EVIL").unwrap();
        let labels = RequestLabels {
            route: "unmatched".into(),
            method: (&method).into(),
            status: 404,
        };
        metrics.requests.get_or_create(&labels).inc();
        let line =
            "tidegate_http_requests_total{route=\"unmatched\",method=\"other\",status=\"404\"} 1";
        assert!(metrics.text().contains(line), "{}", metrics.text());
    }
}

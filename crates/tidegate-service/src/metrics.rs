//! What is counted, for Prometheus.
//!
//! No label ever holds a client's value: a door is one of a few, a limit is a configured name.
//! Counters of limits are looked up once per configuration, so a decision costs one addition.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::{Decision, MemoryStats};

/// The limit label of `CL.THROTTLE`. No configured limit can have the name.
pub(crate) const THROTTLE: &str = "(cl.throttle)";

/// All metrics of the service.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    near_limit: Family<LimitLabels, Counter>,
    keys: Family<LimitLabels, Gauge>,
    evicted: Family<EvictionLabels, Counter>,
    overflowed: Family<LimitLabels, Counter>,
    rebased: Family<LimitLabels, Counter>,
    connections: Family<DoorLabels, Gauge>,
    refused: Family<RefusalLabels, Counter>,
}

/// The protocols of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Door {
    /// HTTP with JSON.
    Http,
    /// What Redis clients speak.
    Resp,
}

/// Why a connection was ended by the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// What was sent is no command.
    Malformed,
    /// Half a command, and not the rest in time; or answers that nobody reads.
    Slow,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    door: Door,
    limit: Name,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabels {
    limit: Name,
    reason: Full,
}

/// Why a key was forgotten that could still have denied: the table was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Full;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorLabels {
    door: Door,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    door: Door,
    reason: Refusal,
}

/// A configured name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name(Arc<str>);

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
    Full, _full => "full";
    Door, door => match door {
        Door::Http => "http",
        Door::Resp => "resp",
    };
    Refusal, refusal => match refusal {
        Refusal::Malformed => "malformed",
        Refusal::Slow => "slow",
    };
    Outcome, outcome => match outcome {
        Outcome::Allowed => "allowed",
        Outcome::Denied => "denied",
        Outcome::ShadowDenied => "shadow_denied",
    };
}

/// The counters of one limit at one door.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    allowed: Counter,
    denied: Counter,
    shadow_denied: Counter,
    near: Counter,
}

impl Counters {
    /// Counts a decision that has charged something, or would have.
    #[inline]
    pub(crate) fn note(&self, decision: &Decision) {
        if !decision.is_within_limit() {
            let counter = if decision.shadow {
                &self.shadow_denied
            } else {
                &self.denied
            };
            counter.inc();
            return;
        }
        self.allowed.inc();
        if u64::from(decision.remaining) * 10 < u64::from(decision.limit) {
            self.near.inc();
        }
    }
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix("tidegate"),
            decisions: Family::default(),
            near_limit: Family::default(),
            keys: Family::default(),
            evicted: Family::default(),
            overflowed: Family::default(),
            rebased: Family::default(),
            connections: Family::default(),
            refused: Family::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        macro_rules! register {
            ($($name:literal, $help:literal, $family:ident;)*) => {$(
                self.registry.register($name, $help, self.$family.clone());
            )*};
        }
        register! {
            "decisions", "Decisions", decisions;
            "near_limit", "Allowed decisions that left less than a tenth of the limit", near_limit;
            "keys", "Keys that a limit holds", keys;
            "keys_evicted", "Keys forgotten that could still have denied", evicted;
            "keys_overflowed", "Calls of keys that found no place of their own", overflowed;
            "clock_rebased", "Keys moved back because the clock had been corrected", rebased;
            "service_connections", "Open connections of clients", connections;
            "service_connections_refused", "Connections that the service has ended", refused;
        }
        self
    }

    /// The counters of a limit at a door.
    pub(crate) fn counters(&self, door: Door, limit: &str) -> Counters {
        let limit = Name(limit.into());
        let of = |outcome| {
            let labels = DecisionLabels {
                door,
                limit: limit.clone(),
                outcome,
            };
            self.decisions.get_or_create_owned(&labels)
        };
        Counters {
            allowed: of(Outcome::Allowed),
            denied: of(Outcome::Denied),
            shadow_denied: of(Outcome::ShadowDenied),
            near: self.near_limit.get_or_create_owned(&LimitLabels {
                limit: limit.clone(),
            }),
        }
    }

    /// How many connections a door has.
    pub(crate) fn connections(&self, door: Door) -> Gauge {
        self.connections.get_or_create_owned(&DoorLabels { door })
    }

    /// Counts a connection that the service has ended.
    pub(crate) fn refuse(&self, door: Door, reason: Refusal) {
        let labels = RefusalLabels { door, reason };
        self.refused.get_or_create(&labels).inc();
    }

    /// Takes over what the tables of the limits hold and have been through.
    pub(crate) fn look_at_tables<'a>(
        &self,
        throttle_keys: usize,
        limits: impl Iterator<Item = (&'a str, MemoryStats)>,
    ) {
        self.keys.clear();
        self.set_keys(THROTTLE, throttle_keys);
        for (name, stats) in limits {
            self.set_keys(name, stats.keys);
            let labels = LimitLabels {
                limit: Name(name.into()),
            };
            let set = |counter: &Counter, value| counter.inner().store(value, Ordering::Relaxed);
            set(&self.overflowed.get_or_create(&labels), stats.overflowed);
            set(&self.rebased.get_or_create(&labels), stats.rebased);
            let labels = EvictionLabels {
                limit: labels.limit,
                reason: Full,
            };
            set(&self.evicted.get_or_create(&labels), stats.evicted);
        }
    }

    fn set_keys(&self, limit: &str, keys: usize) {
        let labels = LimitLabels {
            limit: Name(limit.into()),
        };
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.keys.get_or_create(&labels).set(keys);
    }

    /// Writes everything in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string never fails");
        text
    }
}

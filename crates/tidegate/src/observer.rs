//! What a program wants to be told of: decisions, and what a table had to do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Decision;
use tidegate_store::MemoryEvents;

/// Something that a table had to do to a key, besides deciding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TableEvent {
    /// A key was forgotten although it could still have denied:
    /// [`WhenFull::Evict`](crate::WhenFull::Evict).
    Evicted,
    /// A call was decided on a state that keys share, or denied, for the table was full.
    Overflowed,
    /// A key's times moved back, for the clock had been corrected.
    Rebased,
}

impl TableEvent {
    /// The word for it in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Overflowed => "overflowed",
            Self::Rebased => "rebased",
        }
    }
}

/// What is told of a limit's decisions: for metrics and logs.
///
/// Set by [`LimiterBuilder::observer`](crate::LimiterBuilder::observer); a limit without one pays a
/// comparison. It is called by the thread that asked, after the decision, with no lock held. A
/// closure over a name and a decision is one.
///
/// Told are decisions that may charge something, enforced or in shadow; not a peek, nor what a
/// limit lets pass that is off. Where [`all_of`](crate::all_of) allows, each of its limits has; where
/// it denies, only those that denied have decided.
///
/// ```
/// use prometheus_client::metrics::{counter::Counter, family::Family};
/// use tidegate::{Decision, Limiter, Observer, Rate, TableEvent, TokenBucket};
///
/// #[derive(Clone, Default)]
/// struct Metrics {
///     decisions: Family<[(&'static str, String); 2], Counter>,
///     events: Family<[(&'static str, String); 2], Counter>,
/// }
///
/// impl Observer for Metrics {
///     fn decided(&self, limit: &str, decision: &Decision) {
///         let outcome = match (decision.is_within_limit(), decision.shadow) {
///             (true, _) => "allowed",
///             (false, false) => "denied",
///             (false, true) => "shadow_denied",
///         };
///         let labels = [("limit", limit.to_owned()), ("outcome", outcome.to_owned())];
///         self.decisions.get_or_create(&labels).inc();
///     }
///
///     fn happened(&self, limit: &str, event: TableEvent, times: u64) {
///         let labels = [("limit", limit.to_owned()), ("event", event.name().to_owned())];
///         self.events.get_or_create(&labels).inc_by(times);
///     }
/// }
///
/// let metrics = Metrics::default();
/// let mut registry = prometheus_client::registry::Registry::default();
/// registry.register("tidegate_decisions", "Decisions by outcome", metrics.decisions.clone());
/// registry.register("tidegate_events", "What tables did", metrics.events.clone());
///
/// let api = Limiter::builder(TokenBucket::new(Rate::per_second(1)?, 1)?)
///     .name("api")
///     .observer(metrics)
///     .build();
/// api.try_take("user-7", 1);
/// api.try_take("user-7", 1);
///
/// let mut text = String::new();
/// prometheus_client::encoding::text::encode(&mut text, &registry)?;
/// assert!(text.contains(r#"tidegate_decisions_total{limit="api",outcome="denied"} 1"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer: Send + Sync {
    /// The limit of this name has decided.
    fn decided(&self, limit: &str, decision: &Decision);

    /// Something has happened to keys of the limit of this name, so many times since it was told
    /// last. It is told with the next decision.
    fn happened(&self, limit: &str, event: TableEvent, times: u64) {
        let _ = (limit, event, times);
    }
}

impl<F: Fn(&str, &Decision) + Send + Sync> Observer for F {
    fn decided(&self, limit: &str, decision: &Decision) {
        self(limit, decision);
    }
}

impl<T: Observer + ?Sized> Observer for Arc<T> {
    fn decided(&self, limit: &str, decision: &Decision) {
        (**self).decided(limit, decision);
    }

    fn happened(&self, limit: &str, event: TableEvent, times: u64) {
        (**self).happened(limit, event, times);
    }
}

/// An observer, and what it has been told of its table.
pub(crate) struct Watch {
    observer: Arc<dyn Observer>,
    evicted: AtomicU64,
    overflowed: AtomicU64,
    rebased: AtomicU64,
}

impl Watch {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            evicted: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            rebased: AtomicU64::new(0),
        }
    }

    /// The same observer, for another table.
    pub(crate) fn afresh(&self) -> Self {
        Self::new(Arc::clone(&self.observer))
    }

    /// Tells of a decision, and of what has happened by now.
    pub(crate) fn tell(&self, limit: &str, decision: &Decision, events: MemoryEvents) {
        self.observer.decided(limit, decision);
        for (told, total, event) in [
            (&self.evicted, events.evicted, TableEvent::Evicted),
            (&self.overflowed, events.overflowed, TableEvent::Overflowed),
            (&self.rebased, events.rebased, TableEvent::Rebased),
        ] {
            // Most of the time nothing has: no write then.
            if told.load(Ordering::Relaxed) < total {
                let before = told.fetch_max(total, Ordering::Relaxed);
                if before < total {
                    self.observer.happened(limit, event, total - before);
                }
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        Demand, Key, Limiter, LimiterBuilder, Member, Mode, Rate, Timestamp, TokenBucket, WhenFull,
        all_of,
    };

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn taken(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl Observer for Log {
        fn decided(&self, limit: &str, decision: &Decision) {
            let (within, shadow) = (decision.is_within_limit(), decision.shadow);
            let line = format!("{limit} {within}{}", if shadow { " shadow" } else { "" });
            self.0.lock().unwrap().push(line);
        }

        fn happened(&self, limit: &str, event: TableEvent, times: u64) {
            let line = format!("{limit} {} {times}", event.name());
            self.0.lock().unwrap().push(line);
        }
    }

    fn limit(name: &str, capacity: u32, log: &Log) -> LimiterBuilder {
        let bucket = TokenBucket::new(Rate::per_second(0).unwrap(), capacity).unwrap();
        Limiter::builder(bucket).name(name).observer(log.clone())
    }

    #[test]
    fn decisions_are_told_once_and_peeks_are_not() {
        let log = Log::default();
        let limiter = limit("a", 3, &log).build();
        limiter.try_take("k", 1);
        limiter.peek("k", 1);
        limiter.key("k").take_up_to(5).unwrap();
        limiter.key("k").force(1).unwrap();
        limiter.key("k").reset();
        limiter.set_mode(Mode::Shadow);
        limiter.try_take("k", 9);
        limiter.set_mode(Mode::Off);
        limiter.try_take("k", 9);
        assert_eq!(
            log.taken(),
            ["a true", "a true", "a true", "a false shadow"]
        );
    }

    #[test]
    fn of_a_denied_call_over_several_limits_only_those_that_denied_are_told() {
        let log = Log::default();
        let (a, b) = (limit("a", 9, &log).build(), limit("b", 1, &log).build());
        let key = Key::new("k");
        let member = |limiter| Member {
            limiter,
            key: &key,
            demand: Demand::Take { cost: 1 },
        };
        for _ in 0..2 {
            all_of(&[member(&a), member(&b)], Timestamp::EPOCH).unwrap();
        }
        assert_eq!(log.taken(), ["a true", "b true", "b false"]);
    }

    #[test]
    fn what_a_table_does_is_told_with_the_next_decision() {
        let log = Log::default();
        let limiter = limit("a", 9, &log)
            .max_keys(1)
            .when_full(WhenFull::Evict)
            .build();
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        limiter.try_take_at("first", 1, at(9_000_000));
        limiter.try_take_at("first", 1, at(1_000_000));
        assert_eq!(log.taken(), ["a true", "a true", "a rebased 1"]);
        for n in 0..1_000 {
            limiter.try_take_at(n, 1, at(1_000_000));
        }
        let evictions = log
            .taken()
            .iter()
            .filter(|line| line.contains("evicted"))
            .count();
        assert_eq!(u64::try_from(evictions), Ok(limiter.evicted()));
        assert!(evictions > 0);
    }
}

//! Denials as `tracing` events.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, PolicyError, Rate, TokenBucket};

use crate::limiter::Limiter;
use crate::observer::{Observer, TableEvent};

/// Writes what a limit denies as `tracing` events, and no more of them than a log can take.
///
/// A denial is an event of level `debug`, in shadow too; a key that was evicted or found no place
/// one of level `warn`; a corrected clock one of level `info`. All have the target `tidegate` and the
/// name of the limit. Of each limit only so many a second are written; the next one says as
/// `suppressed` how many were not, of all limits together.
///
/// ```
/// use tidegate::{Limiter, Rate, TokenBucket, TracingObserver};
///
/// let api = Limiter::builder(TokenBucket::new(Rate::per_second(1)?, 1)?)
///     .name("api")
///     .observer(TracingObserver::default())
///     .build();
/// api.try_take("user-7", 1);
/// // DEBUG tidegate: denied limit="api" cost=1 retry_after=1s shadow=false suppressed=0
/// api.try_take("user-7", 1);
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
pub struct TracingObserver {
    events: Limiter,
    suppressed: AtomicU64,
}

impl TracingObserver {
    /// At most so many events a second for each limit; 0 writes none.
    ///
    /// # Errors
    /// More than 2^31 - 1.
    pub fn new(per_second: u32) -> Result<Self, PolicyError> {
        let rate = Rate::per_second(per_second)?;
        Ok(Self::from_bucket(TokenBucket::new(rate, per_second)?))
    }

    fn from_bucket(bucket: TokenBucket) -> Self {
        Self {
            events: Limiter::new(bucket),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Whether another event of this limit may be written: then, how many were not before it.
    fn may_write(&self, limit: &str) -> Option<u64> {
        if self.events.try_take(limit, 1).is_allowed() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Default for TracingObserver {
    /// Ten events a second for each limit.
    fn default() -> Self {
        Self::new(10).expect("ten is in range")
    }
}

impl Observer for TracingObserver {
    fn decided(&self, limit: &str, decision: &Decision) {
        if decision.is_within_limit()
            || !tracing::enabled!(target: "tidegate", tracing::Level::DEBUG)
        {
            return;
        }
        if let Some(suppressed) = self.may_write(limit) {
            tracing::debug!(
                target: "tidegate",
                limit,
                cost = decision.cost,
                retry_after = %decision.retry_after,
                shadow = decision.shadow,
                suppressed,
                "denied"
            );
        }
    }

    fn happened(&self, limit: &str, event: TableEvent, times: u64) {
        let Some(suppressed) = self.may_write(limit) else {
            return;
        };
        match event {
            TableEvent::Evicted => tracing::warn!(
                target: "tidegate", limit, times, suppressed,
                "keys were forgotten that could still have denied; raise max_keys"
            ),
            TableEvent::Overflowed => tracing::warn!(
                target: "tidegate", limit, times, suppressed,
                "calls found no place for their keys; raise max_keys"
            ),
            TableEvent::Rebased => tracing::info!(
                target: "tidegate", limit, times, suppressed,
                "the clock was corrected by more than a second"
            ),
        }
    }
}

impl fmt::Debug for TracingObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracingObserver")
            .field("suppressed", &self.suppressed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::Mode;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged while `run` runs.
    fn logged(run: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(subscriber, run);
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn never_again(capacity: u32) -> TokenBucket {
        TokenBucket::new(Rate::per_second(0).unwrap(), capacity).unwrap()
    }

    #[test]
    fn a_denial_is_written_and_a_flood_of_them_is_not() {
        let observer = TracingObserver::from_bucket(never_again(2));
        let limiter = Limiter::builder(never_again(1))
            .name("api")
            .observer(observer)
            .build();
        let text = logged(|| {
            for _ in 0..50 {
                limiter.try_take("k", 1);
            }
        });
        assert_eq!(
            text.lines().next(),
            Some(
                "DEBUG tidegate: denied limit=\"api\" cost=1 retry_after=never shadow=false \
                 suppressed=0"
            )
        );
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn what_was_suppressed_is_counted_for_the_next_one() {
        let observer = TracingObserver::from_bucket(never_again(1));
        let told = |limit: &str| {
            let denied = Limiter::new(never_again(0)).try_take("k", 1);
            logged(|| observer.decided(limit, &denied))
        };
        assert!(told("a").contains("suppressed=0"));
        assert_eq!((told("a"), told("a")), (String::new(), String::new()));
        assert!(told("b").contains("suppressed=2"));
    }

    #[test]
    fn a_denial_in_shadow_says_so_and_an_allowed_call_is_not_written() {
        let limiter = Limiter::builder(never_again(1))
            .mode(Mode::Shadow)
            .observer(TracingObserver::default())
            .build();
        assert_eq!(
            logged(|| assert!(limiter.try_take("k", 1).is_allowed())),
            ""
        );
        let text = logged(|| assert!(limiter.try_take("k", 1).is_allowed()));
        assert!(text.contains("shadow=true"), "{text}");
    }
}

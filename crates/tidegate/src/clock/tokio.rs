//! Tokio's time as a clock.

use std::task::Waker;

use tidegate_core::{Micros, Timestamp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::{Alarm, Clock, RuntimeSleep, system};

/// The time of a tokio runtime: of use in tests that pause it (`start_paused`), where limits and
/// leases then live in simulated time like everything else.
///
/// In a program that runs in real time a [`SystemClock`](crate::SystemClock) is the better one: it
/// reads faster and follows the wall clock.
#[derive(Clone, Debug)]
pub struct TokioClock {
    runtime: Handle,
    start: Instant,
    at_start: Timestamp,
}

impl TokioClock {
    /// A clock that reads the wall clock's time now, and from then on follows the runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_micros(system::wall()).unwrap_or(Timestamp::MAX))
    }

    /// A clock that reads `now` now, and from then on follows the runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn starting_at(now: Timestamp) -> Self {
        Self {
            runtime: Handle::current(),
            start: Instant::now(),
            at_start: now,
        }
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let after = at.as_micros().saturating_sub(self.at_start.as_micros());
        self.start + Micros(after).as_duration()
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let passed = Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX));
        self.at_start.checked_add(passed).unwrap_or(Timestamp::MAX)
    }

    fn wake_at(&self, at: Timestamp, waker: Waker) -> Alarm {
        let due = self.instant(at);
        let task = self.runtime.spawn(async move {
            sleep_until(due).await;
            waker.wake();
        });
        Alarm::new(Task(task))
    }

    fn runtime_sleep(&self, at: Timestamp) -> Option<RuntimeSleep> {
        Some(Box::pin(sleep_until(self.instant(at))))
    }
}

/// A task that ends with its guard.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

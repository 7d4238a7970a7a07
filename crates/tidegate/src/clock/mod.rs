//! Where time comes from, and how to wait for it.
//!
//! A [`Clock`] says what time it is and wakes whoever waits for a time. Both are one thing: a
//! limiter in simulated time must also wait in simulated time.
//!
//! Nobody trusts a wake-up: it may come early, and whoever is woken reads the clock again.

mod manual;
mod sleep;
mod system;
mod timer;
#[cfg(feature = "tokio")]
mod tokio;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Wake, Waker};

use tidegate_core::Timestamp;

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
pub use manual::ManualClock;
pub(crate) use sleep::Sleep;
pub use system::SystemClock;

use crate::sync::{Thread, current, park};

/// Where the time of decisions and of waiting comes from.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// Wakes `waker` once the clock reads `at` or later, or has been set back: at once if that is
    /// so already.
    ///
    /// It may be woken early as well, and reads the clock again. Wakers are called on the clock's
    /// own thread, with none of its locks held; they may set further alarms.
    fn wake_at(&self, at: Timestamp, waker: Waker) -> Alarm;

    /// A sleep until `at` by the timers of the async runtime that the caller is in; none where
    /// there is no such runtime, and then [`Self::wake_at`] serves. It may end early.
    fn runtime_sleep(&self, _at: Timestamp) -> Option<RuntimeSleep> {
        None
    }

    /// Parks the calling thread until the clock reads `at`, or until the thread is unparked; it
    /// may return early for no reason.
    fn park_until(&self, at: Timestamp) {
        let _alarm = self.wake_at(at, thread_waker());
        park();
    }
}

/// What [`Clock::runtime_sleep`] returns.
pub type RuntimeSleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A waker that a clock holds: dropped, it is given up.
#[must_use = "an alarm that is dropped does not go off"]
pub struct Alarm(#[expect(dead_code, reason = "it is held for its drop")] Box<dyn Send + Sync>);

impl Alarm {
    /// Holds what gives the waker up when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alarm")
    }
}

/// Unparks the thread that made it.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that unparks the calling thread.
pub(crate) fn thread_waker() -> Waker {
    Waker::from(Arc::new(Unpark(current())))
}

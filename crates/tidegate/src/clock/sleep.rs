//! A sleep by any clock, as a future.

use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_core::Timestamp;

use super::{Alarm, Clock, RuntimeSleep};

/// A sleep until a time. It may end early: the sleeper reads the clock again.
pub(crate) struct Sleep {
    at: Timestamp,
    by: By,
}

enum By {
    Runtime(RuntimeSleep),
    Alarm(Option<Alarm>),
}

impl Sleep {
    /// Must be called where it will be polled: it may take the timers of the runtime there.
    pub(crate) fn until(at: Timestamp, clock: &dyn Clock) -> Self {
        let by = clock.runtime_sleep(at).map_or(By::Alarm(None), By::Runtime);
        Self { at, by }
    }

    pub(crate) fn at(&self) -> Timestamp {
        self.at
    }

    pub(crate) fn poll(&mut self, clock: &Arc<dyn Clock>, context: &mut Context<'_>) -> Poll<()> {
        if clock.now() >= self.at {
            return Poll::Ready(());
        }
        match &mut self.by {
            By::Runtime(sleep) => sleep.as_mut().poll(context),
            By::Alarm(alarm) => {
                // The last one may have gone off early, and nobody can tell: set another.
                *alarm = Some(clock.wake_at(self.at, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

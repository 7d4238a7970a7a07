//! Waiting without a runtime: for a time, for the first of two, for the end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

use tidegate::{Clock, Timestamp};

/// Waits until the clock reads `at`.
pub(crate) async fn sleep_until(clock: &dyn Clock, at: Timestamp) {
    let mut alarm = None;
    poll_fn(|context| {
        if clock.now() >= at {
            return Poll::Ready(());
        }
        alarm = Some(clock.wake_at(at, context.waker().clone()));
        Poll::Pending
    })
    .await;
}

/// `at` and so many microseconds.
pub(crate) fn after(at: Timestamp, micros: u64) -> Timestamp {
    Timestamp::from_micros(at.as_micros().saturating_add(micros)).unwrap_or(Timestamp::MAX)
}

/// What the work came to, or none if `end` came first.
pub(crate) async fn unless<T>(
    work: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Option<T> {
    let (mut work, mut end) = (pin!(work), pin!(end));
    poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// A word that is given once.
#[derive(Debug, Default)]
pub(crate) struct Stop(Mutex<(bool, Vec<Waker>)>);

impl Stop {
    pub(crate) fn give(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        let waiting = std::mem::take(&mut state.1);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_given(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) async fn given(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 {
                return Poll::Ready(());
            }
            if !state.1.iter().any(|known| known.will_wake(context.waker())) {
                state.1.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

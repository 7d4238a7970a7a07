//! A lease while it is held: renewed in time, and told of when it is lost.
//!
//! It has one alarm with its clock at any time. When that goes off the lease renews itself, or finds
//! that it has expired. So all leases of a process are kept by the one thread of its alarms, and
//! in simulated time by whoever lets time pass.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tidegate_core::{LeaseGrant, LeaseId, Micros, Timestamp};

use super::lessor::{Lessor, Renewal};
use crate::clock::Alarm;
use crate::sync::{Mutex, lock};

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Its time ran out: it was held for as long as the limit allows at most, its renewals failed,
    /// or the process stood still for too long.
    Expired,
    /// The store does not know it any more: its key was reset, or it had expired by the store's
    /// clock.
    Revoked,
}

/// No renewal is closer to the end of a lease than this: what it would win is not worth a call.
const SHORTEST: u64 = 1_000;

pub(crate) struct Held {
    lease: LeaseId,
    lessor: Arc<dyn Lessor>,
    state: Mutex<State>,
}

struct State {
    expires_at: Timestamp,
    end: Option<End>,
    alarm: Option<Alarm>,
    /// Counts alarms: one that was set for an older state is not kept.
    turn: u64,
    watchers: Watchers,
}

#[derive(Clone, Copy)]
enum End {
    Released,
    Lost(Loss),
}

/// Who is told of a loss.
#[derive(Default)]
struct Watchers {
    tasks: Vec<(u64, Waker)>,
    next: u64,
    callbacks: Vec<Box<dyn FnOnce(Loss) + Send>>,
}

impl Watchers {
    fn tell(self, loss: Loss) {
        self.tasks.into_iter().for_each(|(_, waker)| waker.wake());
        for callback in self.callbacks {
            callback(loss);
        }
    }
}

impl Held {
    /// Begins to keep a lease that was granted this moment.
    pub(super) fn keep(grant: LeaseGrant, lessor: Arc<dyn Lessor>) -> Arc<Self> {
        let held = Arc::new(Self {
            lease: grant.lease,
            lessor,
            state: Mutex::new(State {
                expires_at: grant.expires_at,
                end: None,
                alarm: None,
                turn: 0,
                watchers: Watchers::default(),
            }),
        });
        let left = held.left(grant.expires_at);
        held.ring_in(Micros(left.0 / 3));
        held
    }

    pub(super) fn expires_at(&self) -> Timestamp {
        lock(&self.state).expires_at
    }

    /// Why it is lost, if it is. What the clock says counts also where nobody has noticed yet.
    pub(super) fn loss(&self) -> Option<Loss> {
        let state = lock(&self.state);
        match state.end {
            Some(End::Lost(loss)) => Some(loss),
            Some(End::Released) => None,
            None => (self.lessor.clock().now() >= state.expires_at).then_some(Loss::Expired),
        }
    }

    /// Waits for the loss. `number` is the watcher's, once it has one.
    pub(super) fn poll_lost(
        &self,
        number: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Loss> {
        if let Some(loss) = self.loss() {
            return Poll::Ready(loss);
        }
        let mut state = lock(&self.state);
        // It may have been lost between the two locks, and then nobody would wake this one.
        if let Some(End::Lost(loss)) = state.end {
            return Poll::Ready(loss);
        }
        let waker = context.waker().clone();
        let tasks = &mut state.watchers;
        match number.and_then(|number| tasks.tasks.iter_mut().find(|task| task.0 == number)) {
            Some(task) => task.1 = waker,
            None => {
                *number = Some(tasks.next);
                tasks.tasks.push((tasks.next, waker));
                tasks.next += 1;
            }
        }
        Poll::Pending
    }

    /// Tells a watcher no more.
    pub(super) fn forget(&self, number: u64) {
        lock(&self.state)
            .watchers
            .tasks
            .retain(|task| task.0 != number);
    }

    /// Calls back when it is lost: at once, if that is known already.
    pub(super) fn on_lost(&self, callback: Box<dyn FnOnce(Loss) + Send>) {
        let mut state = lock(&self.state);
        if let Some(End::Lost(loss)) = state.end {
            drop(state);
            return callback(loss);
        }
        state.watchers.callbacks.push(callback);
    }

    /// Ends it for its holder. Returns whether it was live until now.
    pub(super) fn release(&self) -> bool {
        let live = self.loss().is_none();
        let ended = self.end(End::Released);
        if ended {
            self.lessor.release(self.lease);
        }
        ended && live
    }

    pub(super) fn renewed(self: &Arc<Self>, grant: LeaseGrant) {
        let mut state = lock(&self.state);
        let grown = grant.expires_at > state.expires_at;
        state.expires_at = grant.expires_at;
        drop(state);
        let left = self.left(grant.expires_at);
        // A lease that did not grow is near the end of its longest hold, or longer than the limit
        // grants by now: it is renewed later, and not at all in its last moments.
        let next = if grown { left.0 / 3 } else { left.0 / 3 * 2 };
        if !grown && left.0 - next < SHORTEST {
            self.ring_in(left);
        } else {
            self.ring_in(Micros(next));
        }
    }

    pub(super) fn not_renewed(self: &Arc<Self>) {
        let left = self.left(self.expires_at());
        self.ring_in(if left.0 / 3 < SHORTEST {
            left
        } else {
            Micros(left.0 / 3)
        });
    }

    pub(super) fn revoked(&self) {
        let expired = self.lessor.clock().now() >= self.expires_at();
        self.lose(if expired {
            Loss::Expired
        } else {
            Loss::Revoked
        });
    }

    fn left(&self, expires_at: Timestamp) -> Micros {
        let now = self.lessor.clock().now();
        Micros(expires_at.as_micros().saturating_sub(now.as_micros()))
    }

    /// Sets the next alarm.
    fn ring_in(self: &Arc<Self>, wait: Micros) {
        let turn = {
            let mut state = lock(&self.state);
            state.turn += 1;
            state.turn
        };
        let clock = self.lessor.clock();
        let at = clock.now().checked_add(wait).unwrap_or(Timestamp::MAX);
        // It may go off at once, and then sets the next one itself: no lock is held meanwhile.
        let alarm = clock.wake_at(at, Waker::from(Arc::clone(self)));
        let mut state = lock(&self.state);
        let old = if state.turn == turn && state.end.is_none() {
            state.alarm.replace(alarm)
        } else {
            Some(alarm)
        };
        drop(state);
        drop(old);
    }

    fn lose(&self, loss: Loss) {
        self.end(End::Lost(loss));
    }

    /// Ends it, once. Returns whether this was the time.
    fn end(&self, end: End) -> bool {
        let mut state = lock(&self.state);
        if state.end.is_some() {
            return false;
        }
        state.end = Some(end);
        let alarm = state.alarm.take();
        let watchers = std::mem::take(&mut state.watchers);
        drop(state);
        // The alarm owns this lease, and watchers are anybody's code: both with the lock free.
        drop(alarm);
        if let End::Lost(loss) = end {
            watchers.tell(loss);
        }
        true
    }
}

impl Wake for Held {
    /// The alarm: renews the lease, or finds it lost.
    fn wake(self: Arc<Self>) {
        let (ended, expires_at) = {
            let state = lock(&self.state);
            (state.end.is_some(), state.expires_at)
        };
        if ended {
            return;
        }
        let left = self.left(expires_at);
        if left == Micros::ZERO {
            return self.lose(Loss::Expired);
        }
        // If no answer comes: the end is noticed all the same.
        self.ring_in(left);
        let renewal = Renewal::of(Arc::clone(&self));
        self.lessor.renew(self.lease, renewal);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

//! When a server is not asked: after several failures in succession, until it answers again.
//!
//! No call is spent on finding out whether a server is back: probes do that beside the calls. A
//! probe's answer lets one call through, and that call's answer lets the others.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
const HALF_OPEN: u8 = 2;

/// The breaker of one server.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: AtomicU8,
    failures: AtomicU32,
    threshold: u32,
    /// Whether the one call of a half-open breaker is under way.
    trial: AtomicBool,
}

/// What a failure or a success did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Opened,
    Closed,
}

/// The permission to ask the server. Dropped unsettled, it says nothing about the server.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    breaker: &'a Breaker,
    trial: bool,
}

impl Breaker {
    /// Opens after `threshold` failures in succession.
    pub(crate) fn new(threshold: u32) -> Self {
        Self {
            state: AtomicU8::new(CLOSED),
            failures: AtomicU32::new(0),
            threshold,
            trial: AtomicBool::new(false),
        }
    }

    /// Lets a call through, or not.
    pub(crate) fn admit(&self) -> Option<Admission<'_>> {
        match self.state.load(Relaxed) {
            CLOSED => Some(Admission {
                breaker: self,
                trial: false,
            }),
            HALF_OPEN if !self.trial.swap(true, SeqCst) => Some(Admission {
                breaker: self,
                trial: true,
            }),
            _ => None,
        }
    }

    /// Notes that the server answered a probe: an open breaker lets one call through.
    pub(crate) fn probe_succeeded(&self) {
        let _ = self
            .state
            .compare_exchange(OPEN, HALF_OPEN, SeqCst, Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Relaxed) == OPEN
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Relaxed) == CLOSED
    }
}

impl Admission<'_> {
    /// Notes that the server answered.
    pub(crate) fn succeed(self) -> Change {
        let breaker = self.breaker;
        // Read first: calls that succeed one after another share the line and write nothing.
        if breaker.failures.load(Relaxed) != 0 {
            breaker.failures.store(0, Relaxed);
        }
        let closes = self.trial
            && breaker
                .state
                .compare_exchange(HALF_OPEN, CLOSED, SeqCst, Relaxed)
                .is_ok();
        if closes { Change::Closed } else { Change::None }
    }

    /// Notes that the server cannot decide at the moment. A call that is tried again counts once,
    /// when it is given up; the one call of a half-open breaker has its answer.
    pub(crate) fn refuse(self) -> Change {
        if self.trial {
            self.fail()
        } else {
            Change::None
        }
    }

    /// Notes that no answer came, or none that is a decision.
    pub(crate) fn fail(self) -> Change {
        let breaker = self.breaker;
        // Calls that were let through before the breaker opened fail late; they are no news then.
        let opens = if self.trial {
            breaker
                .state
                .compare_exchange(HALF_OPEN, OPEN, SeqCst, Relaxed)
                .is_ok()
        } else {
            breaker.failures.fetch_add(1, Relaxed) + 1 >= breaker.threshold
                && breaker
                    .state
                    .compare_exchange(CLOSED, OPEN, SeqCst, Relaxed)
                    .is_ok()
        };
        if opens {
            breaker.failures.store(0, Relaxed);
            Change::Opened
        } else {
            Change::None
        }
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.trial {
            self.breaker.trial.store(false, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Breaker) -> Change {
        breaker.admit().unwrap().fail()
    }

    fn succeed(breaker: &Breaker) -> Change {
        breaker.admit().unwrap().succeed()
    }

    fn open(threshold: u32) -> Breaker {
        let breaker = Breaker::new(threshold);
        while fail(&breaker) != Change::Opened {}
        breaker
    }

    #[test]
    fn only_failures_in_succession_open_it() {
        let breaker = Breaker::new(3);
        for _ in 0..5 {
            assert_eq!(fail(&breaker), Change::None);
            assert_eq!(fail(&breaker), Change::None);
            assert_eq!(succeed(&breaker), Change::None);
        }
        fail(&breaker);
        fail(&breaker);
        assert_eq!(fail(&breaker), Change::Opened);
        assert!(breaker.admit().is_none());
    }

    #[test]
    fn a_probe_lets_one_call_through_and_its_answer_all() {
        let breaker = open(1);
        breaker.probe_succeeded();
        let trial = breaker.admit().unwrap();
        assert!(breaker.admit().is_none());
        assert_eq!(trial.succeed(), Change::Closed);
        let (_one, _other) = (breaker.admit().unwrap(), breaker.admit().unwrap());
    }

    #[test]
    fn a_failed_trial_opens_it_again() {
        let breaker = open(3);
        breaker.probe_succeeded();
        assert_eq!(fail(&breaker), Change::Opened);
        assert!(breaker.admit().is_none());
    }

    #[test]
    fn a_trial_that_was_given_up_leaves_room_for_the_next() {
        let breaker = open(1);
        breaker.probe_succeeded();
        drop(breaker.admit().unwrap());
        assert_eq!(succeed(&breaker), Change::Closed);
    }

    #[test]
    fn late_failures_of_earlier_calls_are_no_news() {
        let breaker = Breaker::new(2);
        let mut late: Vec<_> = (0..10).map(|_| breaker.admit().unwrap()).collect();
        assert_eq!(late.pop().unwrap().fail(), Change::None);
        assert_eq!(late.pop().unwrap().fail(), Change::Opened);
        breaker.probe_succeeded();
        for call in late.drain(..4) {
            assert_eq!(call.fail(), Change::None);
        }
        assert_eq!(succeed(&breaker), Change::Closed);
    }
}

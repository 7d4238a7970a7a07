//! One caller that waits: driven by its task or its thread, and by nothing else.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use smallvec::SmallVec;
use tidegate_core::{Decision, Micros, Timestamp};

use super::caller::{Caller, Settled};
use super::job::{Grant, Known, Part, Place, Refusal, Want, tell_members};
use super::line::{Number, Seen};
use super::options::WaitOptions;
use crate::clock::{Sleep, thread_waker};
use crate::limiter::Reach;
use crate::sync::park;

/// The next caller's number: one count for all limits, so that seniority holds across them.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// One caller that waits. Dropped at any moment, it leaves nothing behind.
pub(crate) struct Waiter {
    place: Place,
    want: Want,
    options: WaitOptions,
    number: Number,
    deadline: Option<Timestamp>,
    stage: Stage,
}

enum Stage {
    /// It has not asked yet.
    New,
    /// It stands in the line of its place.
    InLine,
    /// It has all it wants, and goes on at that time.
    Holding(Grant, Timestamp),
    Done,
}

enum Progress {
    Done(Result<Grant, Refusal>),
    /// To be asked again then, or when woken.
    Sleep(Option<Timestamp>),
}

impl Waiter {
    pub(crate) fn new(place: Place, want: Want, options: &WaitOptions) -> Self {
        Self {
            place,
            want,
            options: *options,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            deadline: None,
            stage: Stage::New,
        }
    }

    /// The units that it wants, if they are there and nobody waits for any.
    pub(crate) fn at_once(&self) -> Option<Decision> {
        let Want::Units(cost) = self.want else {
            return None;
        };
        let Place { limiter, hash } = &self.place;
        limiter.take_unless_waited_for(*hash, cost)
    }

    /// Waits without holding up the thread.
    pub(crate) async fn wait(mut self) -> Result<Grant, Refusal> {
        let clock = self.place.limiter.clock().clone();
        let mut sleep: Option<Sleep> = None;
        poll_fn(|context| {
            loop {
                let at = match self.step(context.waker()) {
                    Progress::Done(result) => return Poll::Ready(result),
                    Progress::Sleep(None) => return Poll::Pending,
                    Progress::Sleep(Some(at)) => at,
                };
                if sleep.as_ref().is_none_or(|sleep| sleep.at() != at) {
                    sleep = Some(Sleep::until(at, &*clock));
                }
                let Some(sleeping) = &mut sleep else { continue };
                if sleeping.poll(&clock, context).is_pending() {
                    return Poll::Pending;
                }
                sleep = None;
            }
        })
        .await
    }

    /// Waits with the thread.
    pub(crate) fn block(mut self) -> Result<Grant, Refusal> {
        let clock = self.place.limiter.clock().clone();
        let waker = thread_waker();
        loop {
            match self.step(&waker) {
                Progress::Done(result) => return result,
                Progress::Sleep(Some(at)) => clock.park_until(at),
                Progress::Sleep(None) => park(),
            }
        }
    }

    fn step(&mut self, waker: &Waker) -> Progress {
        let waiters = self.place.limiter.waiters();
        let mut settled = match &self.stage {
            Stage::New => {
                self.deadline = self.options.deadline(self.place.limiter.now());
                self.stand_where_others_wait();
                self.enter()
            }
            Stage::InLine => match waiters.look(&self.place, self.number, waker) {
                Seen::Sleep(at) => return Progress::Sleep(at),
                Seen::Settled(settled) => Some(settled),
            },
            Stage::Holding(_, until) => {
                let until = *until;
                return self.hold(until);
            }
            Stage::Done => return Progress::Sleep(None),
        };
        loop {
            let waited = matches!(self.stage, Stage::InLine);
            self.stage = Stage::Done;
            settled = match settled {
                Some(Settled::Granted(grant)) => return self.granted(grant, waited),
                Some(Settled::Refused(refusal)) => {
                    self.tell(refusal.known());
                    return Progress::Done(Err(refusal));
                }
                Some(Settled::Moved(member)) => {
                    if let Want::All(parts) = &self.want
                        && let Some(part) = parts.get(member)
                    {
                        self.place = part.place();
                    }
                    self.enter()
                }
                None => {
                    self.stage = Stage::InLine;
                    match self
                        .place
                        .limiter
                        .waiters()
                        .look(&self.place, self.number, waker)
                    {
                        Seen::Sleep(at) => return Progress::Sleep(at),
                        Seen::Settled(settled) => Some(settled),
                    }
                }
            };
        }
    }

    fn enter(&self) -> Option<Settled> {
        let caller = Caller::new(self.want.clone(), self.options.max_wait, self.deadline);
        let waiters = self.place.limiter.waiters();
        waiters.enter(&self.place, self.number, caller, &self.options)
    }

    /// Whoever wants several things does not pass those who wait for one of them.
    fn stand_where_others_wait(&mut self) {
        let Want::All(parts) = &self.want else { return };
        let mut parts: SmallVec<[&Part; 6]> = parts.iter().collect();
        parts.sort_by_key(|part| part.order());
        let is_busy = |part: &&&Part| {
            let waiters = part.limiter.waiters();
            waiters.is_busy(part.limiter.hash(&part.key))
        };
        if let Some(part) = parts.iter().find(is_busy).or(parts.first()) {
            self.place = part.place();
        }
    }

    fn granted(&mut self, grant: Grant, waited: bool) -> Progress {
        let now = self.place.limiter.now();
        let mut extra = grant.delay;
        if waited && matches!(self.want, Want::Units(_)) {
            let left = |deadline: Timestamp| deadline.as_micros().saturating_sub(now.as_micros());
            let jitter = self.options.draw_jitter();
            extra = jitter.min(
                self.deadline
                    .map_or(jitter, |deadline| Micros(left(deadline))),
            );
        }
        let until = now.checked_add(extra).unwrap_or(Timestamp::MAX);
        self.stage = Stage::Holding(grant, until);
        self.hold(until)
    }

    /// Tells who wants to know what has been decided in the end: not each time it was tried.
    fn tell(&self, known: Option<&Known>) {
        let Some(known) = known else { return };
        match &self.want {
            Want::All(parts) => tell_members(parts, known),
            _ if self.place.limiter.reach(self.place.hash).1 == Reach::Off => {}
            _ => self.place.limiter.latest().tell(&known.decision),
        }
    }

    /// Lets the caller go on once it is time.
    fn hold(&mut self, until: Timestamp) -> Progress {
        if self.place.limiter.now() < until {
            return Progress::Sleep(Some(until));
        }
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Holding(grant, _) => {
                self.tell(Some(&grant.known));
                Progress::Done(Ok(grant))
            }
            _ => Progress::Sleep(None),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::InLine => {
                let waiters = self.place.limiter.waiters();
                if let Some(Settled::Granted(grant)) = waiters.leave(&self.place, self.number) {
                    grant.give_back();
                }
            }
            Stage::Holding(grant, _) => grant.give_back(),
            Stage::New | Stage::Done => {}
        }
    }
}

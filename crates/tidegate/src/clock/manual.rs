//! A clock that stands still until it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tidegate_core::Timestamp;

use super::{Alarm, Clock};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// A clock that stands still until it is told: for tests and simulation.
///
/// Whoever waits by it, waits in its time: [`Self::advance`] wakes all whose time comes on the way,
/// each at its own moment, so a lease that is renewed every ten seconds is so also when an hour is
/// let pass in one call. [`Self::set`] jumps: what lies between has not been lived through, as
/// in a process that was paused.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock, Limiter, Rate, Timestamp, TokenBucket};
///
/// let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
/// let limiter = Limiter::builder(TokenBucket::new(Rate::per_second(1)?, 1)?)
///     .clock(clock.clone())
///     .build();
/// assert!(limiter.try_take("user-7", 1).is_allowed());
/// let waiting = std::thread::spawn(move || limiter.wait_blocking("user-7", 1).map(|taken| taken.at));
/// // The thread goes to sleep until the second token comes.
/// while clock.next_alarm().is_none() {
///     std::thread::yield_now();
/// }
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(waiting.join().ok(), Some(Ok(Timestamp::from_micros(1_000_000)?)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    now: AtomicU64,
    alarms: Arc<Mutex<Alarms>>,
}

/// Who waits for what. The time is only written with this locked.
#[derive(Debug, Default)]
struct Alarms {
    /// By time, and then in the order in which they were set.
    set: BTreeMap<(u64, u64), Waker>,
    next: u64,
    /// Where time is on its way to: a later call to let time pass adds to that.
    target: u64,
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            now: AtomicU64::new(now.as_micros()),
            alarms: Arc::default(),
        }
    }

    /// Puts the clock to `now`, forwards or back, in one jump. Wakes all whose time has come; and
    /// all there are when it goes back, since what they wait for may have moved with it.
    pub fn set(&self, now: Timestamp) {
        let mut alarms = lock(&self.alarms);
        let now = now.as_micros();
        let back = now < self.now.load(Ordering::Acquire);
        self.now.store(now, Ordering::Release);
        alarms.target = now;
        let due = if back {
            std::mem::take(&mut alarms.set)
        } else {
            let later = alarms.set.split_off(&(now + 1, 0));
            std::mem::replace(&mut alarms.set, later)
        };
        drop(alarms);
        due.into_values().for_each(Waker::wake);
    }

    /// Lets time pass, from one alarm to the next. It stops where valid time ends.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        let mut alarms = lock(&self.alarms);
        let from = alarms.target.max(self.now.load(Ordering::Acquire));
        let target = from.saturating_add(by).min(Timestamp::MAX.as_micros());
        alarms.target = target;
        loop {
            let now = self.now.load(Ordering::Acquire);
            let due = alarms
                .set
                .first_entry()
                .filter(|alarm| alarm.key().0 <= target);
            let Some(due) = due else {
                self.now.store(now.max(target), Ordering::Release);
                return;
            };
            self.now.store(now.max(due.key().0), Ordering::Release);
            let waker = due.remove();
            drop(alarms);
            waker.wake();
            alarms = lock(&self.alarms);
            if alarms.target < target {
                // The clock was set meanwhile: that is where it is to stand.
                return;
            }
        }
    }

    /// The earliest time that somebody waits for: how far a simulation may jump without missing
    /// anything.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Timestamp> {
        let alarms = lock(&self.alarms);
        let (at, _) = *alarms.set.first_key_value()?.0;
        Timestamp::from_micros(at).ok()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Acquire)).unwrap_or(Timestamp::MAX)
    }

    fn wake_at(&self, at: Timestamp, waker: Waker) -> Alarm {
        let mut alarms = lock(&self.alarms);
        if at.as_micros() <= self.now.load(Ordering::Acquire) {
            drop(alarms);
            waker.wake();
            return Alarm::new(());
        }
        let key = (at.as_micros(), alarms.next);
        alarms.next += 1;
        alarms.set.insert(key, waker);
        Alarm::new(Set {
            alarms: Arc::clone(&self.alarms),
            key,
        })
    }
}

/// An alarm that was set.
struct Set {
    alarms: Arc<Mutex<Alarms>>,
    key: (u64, u64),
}

impl Drop for Set {
    fn drop(&mut self) {
        let waker = lock(&self.alarms).set.remove(&self.key);
        // A waker may own what sets alarms: it goes with the lock free.
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64 as Counter;
    use std::task::Wake;

    use super::*;

    struct Seen(Arc<ManualClock>, Counter);

    impl Wake for Seen {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.now().as_micros(), Ordering::SeqCst);
        }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    fn watched(clock: &Arc<ManualClock>, time: u64) -> (Arc<Seen>, Alarm) {
        let seen = Arc::new(Seen(Arc::clone(clock), Counter::new(u64::MAX)));
        let alarm = clock.wake_at(at(time), Waker::from(Arc::clone(&seen)));
        (seen, alarm)
    }

    fn woken_at(watched: &(Arc<Seen>, Alarm)) -> Option<u64> {
        Some(watched.0.1.load(Ordering::SeqCst)).filter(|at| *at < u64::MAX)
    }

    #[test]
    fn passing_time_wakes_each_at_its_own_moment_and_a_jump_wakes_at_its_end() {
        let clock = Arc::new(ManualClock::new(at(10)));
        let (due, soon, late) = (
            watched(&clock, 10),
            watched(&clock, 20),
            watched(&clock, 500),
        );
        assert_eq!(woken_at(&due), Some(10));
        clock.advance(Duration::from_micros(100));
        assert_eq!((clock.now(), woken_at(&soon)), (at(110), Some(20)));
        assert_eq!(woken_at(&late), None);
        assert_eq!(clock.next_alarm(), Some(at(500)));
        clock.set(at(600));
        assert_eq!(woken_at(&late), Some(600));
    }

    #[test]
    fn a_clock_that_is_set_back_wakes_all() {
        let clock = Arc::new(ManualClock::new(at(1_000)));
        let waiting = watched(&clock, 5_000);
        clock.set(at(999));
        assert_eq!(woken_at(&waiting), Some(999));
    }

    #[test]
    fn an_alarm_that_is_dropped_does_not_go_off() {
        let clock = Arc::new(ManualClock::new(at(0)));
        let (seen, alarm) = watched(&clock, 5);
        drop(alarm);
        clock.advance(Duration::from_secs(1));
        assert_eq!(seen.1.load(Ordering::SeqCst), u64::MAX);
        assert_eq!(Arc::strong_count(&seen), 1);
    }

    #[test]
    fn time_that_two_threads_let_pass_adds_up() {
        let clock = ManualClock::new(at(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        clock.advance(Duration::from_micros(3));
                    }
                });
            }
        });
        assert_eq!(clock.now(), at(6_000));
    }
}

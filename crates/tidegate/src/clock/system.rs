//! The one real clock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Timestamp;

use super::{Alarm, Clock, timer};

/// The wall clock, made steady.
///
/// It runs on the processor's monotonic counter and never goes back. Once a minute it is compared
/// with the wall clock, and what it is off by is worked in at no more than a millisecond a
/// second: a step of the wall clock, or one machine's wrong time, opens or closes no window.
///
/// Whoever waits by it sleeps by the timers of the tokio runtime that it is in, or else is woken
/// by one thread for the whole process, which is there only while somebody waits.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// The counter's reading when the clock was made.
    start: u64,
    line: Line,
    next_check: AtomicU64,
    checking: Mutex<()>,
}

/// Time as a line through an anchor: read often, moved once a minute. Readers retry while
/// `version` is odd or changes.
#[derive(Debug, Default)]
struct Line {
    version: AtomicU64,
    /// Microseconds since the start of the counter.
    anchor: AtomicU64,
    /// The time at the anchor.
    time: AtomicU64,
    /// What is still to be worked in, in microseconds.
    slew: AtomicI64,
}

/// Microseconds between comparisons with the wall clock.
const CHECK_EVERY: u64 = 60_000_000;

/// One part in this many of the time that passes may be worked in.
const SLEW: u64 = 1_000;

/// Microseconds up to which a sleep is measured once: it ends at most a tenth of a millisecond late
/// for that.
const SHORT: u64 = 100_000;

impl Line {
    fn at(&self, elapsed: u64) -> u64 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let anchor = self.anchor.load(Ordering::Relaxed);
            let time = self.time.load(Ordering::Relaxed);
            let slew = self.slew.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                let passed = elapsed.saturating_sub(anchor);
                let worked_in = slew.unsigned_abs().min(passed / SLEW);
                let time = time + passed;
                return if slew < 0 {
                    time - worked_in
                } else {
                    time + worked_in
                };
            }
            std::hint::spin_loop();
        }
    }

    /// Bends the line at `elapsed` towards `wall`. One caller at a time.
    fn bend(&self, elapsed: u64, wall: u64) {
        let time = self.at(elapsed);
        let slew = i64::try_from(wall).unwrap_or(i64::MAX) - i64::try_from(time).unwrap_or(0);
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.anchor.store(elapsed, Ordering::Relaxed);
        self.time.store(time, Ordering::Relaxed);
        self.slew.store(slew, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl SystemClock {
    /// A clock anchored at the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        let line = Line {
            time: AtomicU64::new(wall()),
            ..Line::default()
        };
        let next_check = AtomicU64::new(CHECK_EVERY);
        Self {
            counter,
            start,
            line,
            next_check,
            checking: Mutex::new(()),
        }
    }

    /// How long to sleep until `at`, read by another clock than this one, which may run faster or
    /// slower: a long sleep ends a little early, and its rest is measured again.
    fn until(&self, at: Timestamp) -> Duration {
        let left = at.as_micros().saturating_sub(self.now().as_micros());
        let early = if left > SHORT { 2 * left / SLEW } else { 0 };
        // Rounded up, since this clock's reading is rounded down.
        Duration::from_micros((left - early).saturating_add(u64::from(left > 0)))
    }

    #[cold]
    fn check(&self, elapsed: u64) {
        if let Ok(_guard) = self.checking.try_lock()
            && elapsed >= self.next_check.load(Ordering::Relaxed)
        {
            self.line.bend(elapsed, wall());
            self.next_check
                .store(elapsed + CHECK_EVERY, Ordering::Relaxed);
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.counter.delta_as_nanos(self.start, self.counter.raw()) / 1_000;
        if elapsed >= self.next_check.load(Ordering::Relaxed) {
            self.check(elapsed);
        }
        Timestamp::from_micros(self.line.at(elapsed)).unwrap_or(Timestamp::MAX)
    }

    fn wake_at(&self, at: Timestamp, waker: Waker) -> Alarm {
        timer::wake_at(Instant::now() + self.until(at), waker)
    }

    #[cfg(feature = "tokio")]
    fn runtime_sleep(&self, at: Timestamp) -> Option<super::RuntimeSleep> {
        tokio::runtime::Handle::try_current().ok()?;
        Some(Box::pin(tokio::time::sleep(self.until(at))))
    }

    fn park_until(&self, at: Timestamp) {
        std::thread::park_timeout(self.until(at));
    }
}

/// Microseconds since the epoch by the wall clock; 0 if it stands before.
pub(super) fn wall() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_agrees_with_the_wall_and_never_goes_back() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(wall().abs_diff(last.as_micros()) < 1_000_000);
    }

    #[test]
    fn a_step_of_the_wall_clock_is_worked_in_at_a_millisecond_a_second() {
        for (step, after_a_second) in [
            (-3_600_000_000_i64, -1_000),
            (3_600_000_000, 1_000),
            (-10, -10),
        ] {
            let line = Line {
                time: AtomicU64::new(5_000_000_000),
                ..Line::default()
            };
            let wall = 5_010_000_000_u64.checked_add_signed(step).unwrap();
            line.bend(10_000_000, wall);
            assert_eq!(line.at(10_000_000), 5_010_000_000);
            let expected = 5_011_000_000_u64
                .checked_add_signed(after_a_second)
                .unwrap();
            assert_eq!(line.at(11_000_000), expected);
        }
    }
}

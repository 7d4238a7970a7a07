//! The one real clock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Timestamp;

use super::{Alarm, Clock, timer};

/// The wall clock, made steady.
///
/// It runs on the processor's monotonic counter and never goes back. Once a minute it is compared
/// with the wall clock, and what it is off by is worked in over the next minute, at no more than a
/// millisecond a second: a step of the wall clock, or one machine's wrong time, opens or closes no
/// window.
///
/// Whoever waits by it sleeps by the timers of the tokio runtime that it is in, or else is woken
/// by one thread for the whole process, which is there only while somebody waits.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    line: Line,
    checking: Mutex<()>,
}

/// Time as a line through an anchor: read often, moved once a minute. Readers retry while
/// `version` is odd or changes.
#[derive(Debug)]
struct Line {
    version: AtomicU64,
    /// The counter at the anchor.
    anchor: AtomicU64,
    /// The time at the anchor.
    time: AtomicU64,
    /// The slope up to the end of the stretch, in 2^-64 microseconds a tick: one multiplication
    /// is all that a reading costs.
    bent: AtomicU64,
    /// The slope of the counter itself, for what lies beyond.
    straight: u64,
    /// Ticks from one comparison with the wall clock to the next.
    stretch: u64,
}

/// Microseconds between comparisons with the wall clock.
const CHECK_EVERY: u64 = 60_000_000;

/// At most one part in this many of the time that passes is worked in.
const SLEW: u64 = 1_000;

/// Microseconds up to which a sleep is measured once: it ends at most a tenth of a millisecond late
/// for that.
const SHORT: u64 = 100_000;

/// What a reading of the counter gives.
enum Reading {
    /// The time.
    Time(u64),
    /// The time, and that a comparison with the wall clock is due.
    Due(u64),
}

impl Line {
    /// A line through `time` at `anchor`, for a counter of this slope.
    fn new(anchor: u64, time: u64, straight: u64) -> Self {
        let straight = straight.max(1);
        let ticks = (u128::from(CHECK_EVERY) << 64) / u128::from(straight);
        Self {
            version: AtomicU64::new(0),
            anchor: AtomicU64::new(anchor),
            time: AtomicU64::new(time),
            bent: AtomicU64::new(straight),
            straight,
            stretch: u64::try_from(ticks).unwrap_or(u64::MAX),
        }
    }

    #[inline]
    fn read(&self, counter: u64) -> Reading {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let anchor = self.anchor.load(Ordering::Relaxed);
            let time = self.time.load(Ordering::Relaxed);
            let bent = self.bent.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                let ticks = counter.saturating_sub(anchor);
                if ticks < self.stretch {
                    return Reading::Time(time + micros(ticks, bent));
                }
                let beyond = micros(ticks - self.stretch, self.straight);
                return Reading::Due(time + micros(self.stretch, bent) + beyond);
            }
            std::hint::spin_loop();
        }
    }

    /// Bends the line at `counter`, where it stands at `time`, towards `wall`. One caller at a
    /// time.
    fn bend(&self, counter: u64, time: u64, wall: u64) {
        let most = CHECK_EVERY / SLEW;
        let off = wall.abs_diff(time).min(most);
        let change = u128::from(self.straight) * u128::from(off) / u128::from(CHECK_EVERY);
        // A thousandth of the slope at most.
        let change = u64::try_from(change).unwrap_or(0);
        let bent = if wall < time {
            self.straight - change
        } else {
            self.straight.saturating_add(change)
        };
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.anchor.store(counter, Ordering::Relaxed);
        self.time.store(time, Ordering::Relaxed);
        self.bent.store(bent, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// So many ticks at so many 2^-64 microseconds each, rounded down.
#[inline(always)]
const fn micros(ticks: u64, slope: u64) -> u64 {
    ((ticks as u128 * slope as u128) >> 64) as u64
}

impl SystemClock {
    /// A clock anchored at the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        // Long enough to tell the counter's speed to twelve digits, short enough for a word.
        let long = 40;
        let nanos = u128::from(counter.delta_as_nanos(0, 1 << long));
        let slope = (nanos << (64 - long)) / 1_000;
        let line = Line::new(
            counter.raw(),
            wall(),
            u64::try_from(slope).unwrap_or(u64::MAX),
        );
        Self {
            counter,
            line,
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

    /// Compares with the wall clock, unless another thread is at it.
    #[cold]
    fn check(&self, counter: u64) {
        if let Ok(_guard) = self.checking.try_lock()
            && let Reading::Due(time) = self.line.read(counter)
        {
            self.line.bend(counter, time, wall());
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
        let counter = self.counter.raw();
        let time = match self.line.read(counter) {
            Reading::Time(time) => time,
            Reading::Due(time) => {
                self.check(counter);
                time
            }
        };
        Timestamp::from_micros(time).unwrap_or(Timestamp::MAX)
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

    /// A counter of four ticks a microsecond, as a slope.
    const SLOPE: u64 = 1 << 62;

    fn at(line: &Line, micros: u64) -> u64 {
        match line.read(micros * 4) {
            Reading::Time(time) | Reading::Due(time) => time,
        }
    }

    #[test]
    fn a_step_of_the_wall_clock_is_worked_in_at_a_millisecond_a_second() {
        // What the line is off by, and what of it is worked in after a second, a minute and ten.
        for (step, second, minute) in [
            (-3_600_000_000_i64, -1_000_i64, -60_000_i64),
            (3_600_000_000, 1_000, 60_000),
            (-30_000, -500, -30_000),
            (30_000, 500, 30_000),
            (0, 0, 0),
        ] {
            let line = Line::new(0, 5_000_000_000, SLOPE);
            let start = at(&line, 10_000_000);
            assert_eq!(start, 5_010_000_000);
            line.bend(40_000_000, start, start.checked_add_signed(step).unwrap());
            for (after, worked_in) in [
                (0, 0),
                (1_000_000, second),
                (60_000_000, minute),
                // The rest waits for the next comparison.
                (600_000_000, minute),
            ] {
                let expected = (start + after).checked_add_signed(worked_in).unwrap();
                let time = at(&line, 10_000_000 + after);
                assert!(time.abs_diff(expected) <= 1, "{step} {after}: {time}");
            }
        }
    }

    #[test]
    fn a_reading_beyond_the_stretch_asks_for_a_comparison() {
        let line = Line::new(400, 7, SLOPE);
        assert!(matches!(line.read(0), Reading::Time(7)));
        assert!(matches!(line.read(404), Reading::Time(8)));
        let due = 400 + 4 * CHECK_EVERY;
        assert!(matches!(line.read(due - 4), Reading::Time(_)));
        assert!(matches!(line.read(due + 8), Reading::Due(60_000_009)));
    }
}

//! A clock for tests: it stands still, creeps, leaps, meets borders and steps back.

use fastrand::Rng;

use super::ClockKind;
use crate::model::{Int, JITTER};

/// The time of a scenario.
#[derive(Debug)]
pub(super) struct TestClock {
    now: Int,
    /// The latest time so far.
    latest: Int,
    /// No later time is before this.
    earliest: Int,
    kind: ClockKind,
    /// The end of time.
    last: Int,
    /// Points in time at which something was said to happen.
    expected: Vec<Int>,
}

impl TestClock {
    pub(super) fn new(rng: &mut Rng, kind: ClockKind, last: Int) -> Self {
        let now = match rng.u32(..10) {
            0 => 0,
            1 => rng.u64(..10_000_000).into(),
            2 => last - Int::from(rng.u64(..100_000_000)),
            _ => 1_700_000_000_000_000 + Int::from(rng.u64(..100_000_000_000_000)),
        };
        Self {
            now,
            latest: now,
            earliest: if kind == ClockKind::Corrected { 0 } else { now },
            kind,
            last,
            expected: Vec::new(),
        }
    }

    pub(super) const fn now(&self) -> Int {
        self.now
    }

    /// Remembers a point in time that is worth meeting.
    pub(super) fn expect(&mut self, at: Int) {
        if self.expected.len() >= 8 {
            self.expected.remove(0);
        }
        self.expected.push(at);
    }

    /// Goes to the latest time so far, and never steps back behind it again. For a change of a
    /// limit while keys may be forgotten: a key that was kept has seen the change, and stands still
    /// there for a call whose clock is behind; one that was forgotten does not.
    pub(super) fn catch_up(&mut self) -> Int {
        if self.kind != ClockKind::Corrected {
            self.now = self.latest;
            self.earliest = self.latest;
        }
        self.now
    }

    /// Goes to a later time.
    pub(super) fn jump(&mut self, to: Int) {
        self.now = to.min(self.last);
        self.latest = self.latest.max(self.now);
    }

    /// Moves to the time of the next step.
    pub(super) fn advance(&mut self, rng: &mut Rng, scales: &[u64]) -> Int {
        let scale = *rng.choice(scales).expect("there is a scale");
        let earliest = match self.kind {
            ClockKind::Steady => self.latest,
            ClockKind::Jittery => self.latest - JITTER,
            ClockKind::Corrected => 0,
        };
        let to = self.somewhere(rng, scale);
        self.now = to.max(earliest).clamp(self.earliest, self.last);
        self.latest = self.latest.max(self.now);
        self.now
    }

    fn somewhere(&self, rng: &mut Rng, scale: u64) -> Int {
        let (now, long) = (self.now, Int::from(scale));
        let mut up_to = |most: u64| Int::from(rng.u64(..=most));
        match up_to(99) {
            0..35 => now,
            35..45 => now + 1 + up_to(9),
            45..60 => now + up_to(scale),
            60..64 => now + up_to(scale.saturating_mul(4)),
            64..67 => (now.div_euclid(long) + 1) * long + up_to(2) - 1,
            67..84 => self.meet(rng),
            84..86 => now + up_to(20_000_000_000),
            86 => now + up_to(400_000_000_000_000),
            87..92 => now - up_to(JITTER as u64),
            92 => now - JITTER - up_to(1),
            93 => now - up_to(scale.saturating_mul(2)),
            94..96 => now - up_to(5_000_000),
            96 => now - up_to(100_000_000_000),
            _ => self.latest,
        }
    }

    /// Goes to one of the expected points in time, or one microsecond beside it.
    fn meet(&self, rng: &mut Rng) -> Int {
        let later: Vec<Int> = self
            .expected
            .iter()
            .copied()
            .filter(|at| *at >= self.now)
            .collect();
        match rng.choice(later) {
            Some(at) => (at + Int::from(rng.u64(..4)) - 2).min(at).max(self.now),
            None => self.now + 1,
        }
    }
}

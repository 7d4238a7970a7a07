//! Calls in the order of time, though their lines are not.
//!
//! A server writes its line when a request ends, so lines are a little out of order. A call is
//! held back until a line was read that is later by the horizon; those of one time keep the order
//! of their lines. What is later than that comes out as it stands and is counted.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::{Micros, Timestamp};

/// How far lines were out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    /// Lines that came after a later one and were moved to their place.
    pub reordered: u64,
    /// Lines that came later than the horizon allows.
    pub overrun: u64,
    /// By how much the latest of all lines was late.
    pub latest: Micros,
}

/// Holds calls back until nothing earlier can come any more.
#[derive(Debug)]
pub(crate) struct Sorter<T> {
    horizon: u64,
    newest: u64,
    sequence: u64,
    /// Those that came in order: nearly all.
    orderly: VecDeque<Held<T>>,
    late: BinaryHeap<Held<T>>,
    disorder: Disorder,
}

#[derive(Debug)]
struct Held<T> {
    at: u64,
    sequence: u64,
    call: T,
}

impl<T> Held<T> {
    const fn rank(&self) -> (u64, u64) {
        (self.at, self.sequence)
    }
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<T> Eq for Held<T> {}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Held<T> {
    /// The heap yields its greatest: the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<T> Sorter<T> {
    pub fn new(horizon: Micros) -> Self {
        Self {
            horizon: horizon.0,
            newest: 0,
            sequence: 0,
            orderly: VecDeque::new(),
            late: BinaryHeap::new(),
            disorder: Disorder::default(),
        }
    }

    pub const fn disorder(&self) -> Disorder {
        self.disorder
    }

    /// Adds the next call of the file.
    pub fn push(&mut self, at: Timestamp, call: T) {
        let held = Held {
            at: at.as_micros(),
            sequence: self.sequence,
            call,
        };
        self.sequence += 1;
        if held.at >= self.newest {
            self.newest = held.at;
            self.orderly.push_back(held);
            return;
        }
        let lateness = self.newest - held.at;
        self.disorder.latest = self.disorder.latest.max(Micros(lateness));
        if lateness > self.horizon {
            self.disorder.overrun += 1;
        } else {
            self.disorder.reordered += 1;
        }
        self.late.push(held);
    }

    /// The earliest call, if no earlier one can come within the horizon.
    pub fn pop_ready(&mut self) -> Option<T> {
        let ready = self.newest.checked_sub(self.horizon)?;
        if self.earliest()? > ready {
            None
        } else {
            self.pop()
        }
    }

    /// The earliest call of those that are held.
    pub fn pop(&mut self) -> Option<T> {
        let late_first = match (self.orderly.front(), self.late.peek()) {
            (Some(orderly), Some(late)) => late.rank() < orderly.rank(),
            (front, _) => front.is_none(),
        };
        let held = if late_first {
            self.late.pop()
        } else {
            self.orderly.pop_front()
        };
        held.map(|held| held.call)
    }

    fn earliest(&self) -> Option<u64> {
        let fronts = [self.orderly.front(), self.late.peek()];
        fronts.into_iter().flatten().map(|held| held.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(times: &[u64], horizon: u64) -> (Vec<(u64, usize)>, Disorder) {
        let mut sorter = Sorter::new(Micros(horizon));
        let mut out = Vec::new();
        for (position, at) in times.iter().enumerate() {
            sorter.push(Timestamp::from_micros(*at).unwrap(), (*at, position));
            while let Some(call) = sorter.pop_ready() {
                out.push(call);
            }
        }
        while let Some(call) = sorter.pop() {
            out.push(call);
        }
        (out, sorter.disorder())
    }

    #[test]
    fn a_line_exactly_the_horizon_late_is_sorted_and_one_later_is_an_overrun() {
        let (calls, disorder) = sorted(&[100, 40, 39], 60);
        assert_eq!(
            calls.iter().map(|call| call.0).collect::<Vec<_>>(),
            [40, 39, 100]
        );
        assert_eq!(
            disorder,
            Disorder {
                reordered: 1,
                overrun: 1,
                latest: Micros(61)
            }
        );
        // What has been let go cannot be called back.
        let (calls, disorder) = sorted(&[0, 100, 200, 5], 60);
        assert_eq!(
            calls.iter().map(|call| call.0).collect::<Vec<_>>(),
            [0, 100, 5, 200]
        );
        assert_eq!(disorder.overrun, 1);
    }

    #[test]
    fn a_horizon_of_zero_keeps_the_order_of_the_file() {
        let times = [5, 3, 9, 9, 1];
        let (calls, disorder) = sorted(&times, 0);
        assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), times);
        assert_eq!(disorder.overrun, 2);
    }

    proptest! {
        #[test]
        fn within_the_horizon_the_result_is_a_stable_sort(
            steps in prop::collection::vec((0_u64..40, 0_u64..=60), 0..200),
        ) {
            let mut clock = 1_000;
            let mut times = Vec::new();
            for (forward, late) in steps {
                clock += forward;
                times.push(clock - late);
            }
            let (calls, disorder) = sorted(&times, 60);
            let mut expected: Vec<(u64, usize)> =
                times.iter().copied().zip(0..).collect();
            expected.sort_by_key(|call| call.0);
            prop_assert_eq!(disorder.overrun, 0);
            prop_assert_eq!(calls, expected);
        }
    }
}

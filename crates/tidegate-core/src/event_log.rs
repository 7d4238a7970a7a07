//! Costs in order of their time, with a running sum: what logs and strict windows keep.
//!
//! Events of one instant are one entry, which is exact: nothing ever tells them apart. A
//! correction of the clock moves all of them by one offset instead of rewriting them.

use alloc::collections::VecDeque;

/// Events, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    /// Stored times are `shift` later than the true ones.
    entries: VecDeque<(i64, u32)>,
    shift: i64,
    sum: u64,
}

/// Beyond this the offset is worked into the entries, so that it cannot overflow.
const MAX_SHIFT: i64 = 1 << 60;

impl EventLog {
    /// Moves all events back.
    pub(crate) fn shift_back(&mut self, by: i64) {
        if self.shift > MAX_SHIFT {
            for (at, _) in &mut self.entries {
                *at = at.saturating_sub(self.shift);
            }
            self.shift = 0;
        }
        self.shift = self.shift.saturating_add(by);
    }

    /// Drops all events at or before `cutoff`.
    pub(crate) fn trim(&mut self, cutoff: i64) {
        while let Some((at, cost)) = self.entries.front().copied() {
            if at.saturating_sub(self.shift) > cutoff {
                return;
            }
            self.entries.pop_front();
            self.sum = self.sum.saturating_sub(u64::from(cost));
        }
        self.shift = 0;
    }

    /// Events after `cutoff`, oldest first, at their true times.
    pub(crate) fn live(&self, cutoff: i64) -> impl DoubleEndedIterator<Item = (i64, u32)> + '_ {
        let expired = self.expired(cutoff).0;
        self.entries
            .range(expired..)
            .map(|(at, cost)| (at.saturating_sub(self.shift), *cost))
    }

    /// How many entries are at or before `cutoff`, and their cost.
    fn expired(&self, cutoff: i64) -> (usize, u64) {
        let mut expired = (0, 0);
        for (at, cost) in &self.entries {
            if at.saturating_sub(self.shift) > cutoff {
                break;
            }
            expired = (expired.0 + 1, expired.1 + u64::from(*cost));
        }
        expired
    }

    /// The cost of the events after `cutoff`.
    pub(crate) fn sum(&self, cutoff: i64) -> u64 {
        self.sum.saturating_sub(self.expired(cutoff).1)
    }

    /// The time of the newest event, if it is after `cutoff`.
    pub(crate) fn newest(&self, cutoff: i64) -> Option<i64> {
        let newest = self.entries.back()?.0.saturating_sub(self.shift);
        (newest > cutoff).then_some(newest)
    }

    /// The time of the event with which, counted from the oldest after `cutoff`, at least
    /// `units` have left.
    pub(crate) fn leaves(&self, cutoff: i64, units: u64) -> Option<i64> {
        let mut left = 0;
        for (at, cost) in self.live(cutoff) {
            left += u64::from(cost);
            if left >= units {
                return Some(at);
            }
        }
        None
    }

    /// Adds an event; where the clock stood still or stepped back it may not be the newest.
    pub(crate) fn add(&mut self, at: i64, cost: u32) {
        if cost == 0 {
            return;
        }
        let at = at.saturating_add(self.shift);
        self.sum += u64::from(cost);
        match self.entries.back_mut() {
            Some((newest, sum)) if *newest == at => *sum = sum.saturating_add(cost),
            Some((newest, _)) if *newest > at => {
                let place = self.entries.partition_point(|(other, _)| *other < at);
                match self.entries.get_mut(place) {
                    Some((other, sum)) if *other == at => *sum = sum.saturating_add(cost),
                    _ => self.entries.insert(place, (at, cost)),
                }
            }
            _ => self.entries.push_back((at, cost)),
        }
    }

    /// Takes up to `cost` back, newest events first. Returns how much.
    pub(crate) fn take_newest(&mut self, cost: u32) -> u32 {
        let mut back = 0;
        while back < cost {
            let Some((_, newest)) = self.entries.back_mut() else {
                break;
            };
            let part = (*newest).min(cost - back);
            *newest -= part;
            back += part;
            if *newest == 0 {
                self.entries.pop_back();
            }
        }
        self.sum = self.sum.saturating_sub(u64::from(back));
        back
    }

    /// Takes up to `cost` of the event at `at` back. Returns how much.
    pub(crate) fn take_at(&mut self, at: i64, cost: u32) -> u32 {
        let at = at.saturating_add(self.shift);
        let place = self.entries.partition_point(|(other, _)| *other < at);
        let Some((_, found)) = self
            .entries
            .get_mut(place)
            .filter(|(other, _)| *other == at)
        else {
            return 0;
        };
        let back = cost.min(*found);
        *found -= back;
        if *found == 0 {
            self.entries.remove(place);
        }
        self.sum = self.sum.saturating_sub(u64::from(back));
        back
    }

    /// Brings the sum to `units`: what goes, goes from the oldest; what comes, comes as new as
    /// `at`. Either way nothing leaves sooner than it would have.
    pub(crate) fn scale(&mut self, units: u64, at: i64) {
        while self.sum > units {
            let Some((_, oldest)) = self.entries.front_mut() else {
                break;
            };
            let part = u64::from(*oldest).min(self.sum - units);
            *oldest -= u32::try_from(part).unwrap_or(*oldest);
            self.sum -= part;
            if *oldest == 0 {
                self.entries.pop_front();
            }
        }
        let missing = units.saturating_sub(self.sum);
        self.add(at, u32::try_from(missing).unwrap_or(u32::MAX));
    }

    /// The single event, if there is just one and nothing is shifted.
    pub(crate) fn single(&self) -> Option<(i64, u32)> {
        match (self.entries.len(), self.shift) {
            (1, 0) => self.entries.front().copied(),
            _ => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl PartialEq for EventLog {
    /// Whether the same events stand at the same true times.
    fn eq(&self, other: &Self) -> bool {
        self.live(i64::MIN).eq(other.live(i64::MIN))
    }
}

/// A time as the signed number that logs count in; every valid time fits.
pub(crate) fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

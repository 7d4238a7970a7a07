//! The numbers of a limit as bytes: what every stored state begins with.
//!
//! A state says by itself under which numbers it was written. So a process that has other numbers
//! can tell, and can turn what was used into its own, without anybody keeping a history.

use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;
use tidegate_core::{Align, Micros, Policy, Rate, Timestamp};

/// A header: a letter for the form, the generation, and the numbers, all high byte first.
pub(crate) fn of(policy: &Policy, generation: u32) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(64));
    match policy {
        Policy::TokenBucket(bucket) => {
            let initial = bucket.initial();
            out.begin(if initial.is_some() { b'C' } else { b'B' }, generation);
            out.reduced(bucket.rate());
            out.count(bucket.capacity());
            out.initial(bucket.capacity(), initial);
        }
        Policy::IntervalBucket(bucket) => {
            let initial = bucket.initial();
            out.begin(if initial.is_some() { b'J' } else { b'I' }, generation);
            out.count(bucket.rate().count());
            out.length(bucket.rate().period());
            out.count(bucket.capacity());
            out.initial(bucket.capacity(), initial);
        }
        Policy::LeakyBucket(queue) => {
            out.begin(b'Q', generation);
            out.reduced(queue.rate());
            // Both were checked together: they are no more than a count.
            out.count(queue.burst().saturating_add(queue.queue()));
            out.count(queue.burst());
            out.optional(queue.max_wait());
        }
        Policy::FixedWindow(window) => {
            let letter = match window.align() {
                Align::Epoch => b'F',
                Align::FirstUse => b'U',
                Align::Calendar(_) => b'K',
            };
            out.begin(letter, generation);
            out.count(window.max());
            out.length(window.period());
            if let Align::Calendar(calendar) = window.align() {
                let mut hasher = SipHasher13::new();
                hasher.write(calendar.name().as_bytes());
                out.0.extend_from_slice(&hasher.finish().to_be_bytes());
            }
        }
        Policy::SlidingLog(window) => {
            out.begin(b'L', generation);
            out.count(window.max());
            out.length(window.period());
        }
        Policy::StrictWindow(window) => {
            out.begin(b'S', generation);
            out.count(window.max());
            out.length(window.period());
            // There are at most 3600.
            let cells = u16::try_from(window.cells()).unwrap_or(u16::MAX);
            out.0.extend_from_slice(&cells.to_be_bytes());
        }
        Policy::InterpolatedWindow(window) => {
            out.begin(b'W', generation);
            out.count(window.max());
            out.length(window.period());
        }
        Policy::Concurrency(permits) => {
            out.begin(b'P', generation);
            out.count(permits.permits());
            out.length(permits.lease());
            out.optional(permits.max_hold());
        }
        Policy::Lockout(lockout) => {
            let numbers = lockout.settings();
            let (cap, long) = match numbers.long_cap {
                Some((cap, long)) => (cap.saturating_add(1), long),
                None => (0, Micros::ZERO),
            };
            out.begin(b'X', generation);
            out.count(numbers.failures);
            out.length(numbers.period);
            out.length(numbers.ban);
            out.count(numbers.factor);
            out.length(numbers.max_ban);
            out.length(numbers.jitter);
            out.length(numbers.forget_after);
            out.count(cap);
            out.length(long);
        }
    }
    out.0
}

struct Writer(Vec<u8>);

impl Writer {
    fn begin(&mut self, letter: u8, generation: u32) {
        self.0.push(letter);
        self.count(generation);
    }

    fn count(&mut self, count: u32) {
        self.0.extend_from_slice(&count.to_be_bytes());
    }

    /// Seven bytes are enough for every length and every point in time.
    fn micros(&mut self, micros: u64) {
        self.0.extend_from_slice(&micros.to_be_bytes()[1..]);
    }

    fn length(&mut self, length: Micros) {
        self.micros(length.0);
    }

    /// One longer than it is, so that 0 stands for none.
    fn optional(&mut self, length: Option<Micros>) {
        self.micros(length.map_or(0, |length| length.0 + 1));
    }

    /// A reduced rate, and what it was reduced by: as much of another rate as another limit. Nothing
    /// per period is what it was written as; the scripts know that a token is then one unit.
    fn reduced(&mut self, rate: Rate) {
        let (count, period) = rate.reduced();
        self.count(u32::try_from(count).unwrap_or(u32::MAX));
        if count == 0 {
            self.length(rate.period());
            self.count(0);
        } else {
            self.micros(period);
            let divisor = rate.period().0 / period;
            self.count(u32::try_from(divisor).unwrap_or(u32::MAX));
        }
    }

    /// What keys lack that are first seen at a point in time.
    fn initial(&mut self, capacity: u32, initial: Option<(u32, Timestamp)>) {
        if let Some((tokens, since)) = initial {
            self.count(capacity.saturating_sub(tokens));
            self.micros(since.as_micros());
        }
    }
}

//! States and numbers as sequences of words, for stores that write them down.
//!
//! Reading takes whatever it is given: words that are no state are none, and a state that was read
//! never makes an operation overflow or panic, whoever wrote it. All stored times and counts are
//! held to the bounds that the engine keeps to itself.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::concurrency::Concurrency;
use crate::event_log::EventLog;
use crate::fixed_window::{Align, Calendar, FixedWindow};
use crate::interpolated_window::InterpolatedWindow;
use crate::interval_bucket::IntervalBucket;
use crate::leaky_bucket::LeakyBucket;
use crate::lockout::{Lockout, LockoutSettings};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::sliding_log::SlidingLog;
use crate::strict_window::StrictWindow;
use crate::time::{Micros, Timestamp};
use crate::token_bucket::TokenBucket;

/// The largest number that is ever stored: what a double holds exactly.
const MAX_WORD: u64 = (1 << 53) - 1;

/// The farthest that a signed time is ever from the epoch, corrections of clocks included.
const MAX_SIGNED: i64 = 1 << 60;

/// The most units that a log ever counts: what a limit lets through, and as much debt.
const MAX_SUM: u64 = 1 << 32;

/// A source of words; none at its end.
pub trait Words {
    /// The next word.
    fn next_word(&mut self) -> Option<u64>;
}

impl<F: FnMut() -> Option<u64>> Words for F {
    fn next_word(&mut self) -> Option<u64> {
        self()
    }
}

/// A number up to what is ever stored.
pub(crate) fn number(words: &mut impl Words) -> Option<u64> {
    words.next_word().filter(|word| *word <= MAX_WORD)
}

/// A valid point in time.
pub(crate) fn time(words: &mut impl Words) -> Option<u64> {
    let micros = words.next_word()?;
    Timestamp::from_micros(micros)
        .ok()
        .map(Timestamp::as_micros)
}

pub(crate) fn small(words: &mut impl Words) -> Option<u32> {
    u32::try_from(words.next_word()?).ok()
}

pub(crate) fn write_wide(value: u128, out: &mut Vec<u64>) {
    #[expect(clippy::cast_possible_truncation, reason = "the other half follows")]
    out.extend([value as u64, (value >> 64) as u64]);
}

pub(crate) fn wide(words: &mut impl Words) -> Option<u128> {
    let (low, high) = (words.next_word()?, words.next_word()?);
    Some(u128::from(low) | u128::from(high) << 64)
}

/// A signed number, small ones of either sign as small words.
pub(crate) const fn write_signed(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

pub(crate) fn signed(words: &mut impl Words) -> Option<i64> {
    let word = words.next_word()?;
    let value = (word >> 1).cast_signed() ^ -(word & 1).cast_signed();
    (value.unsigned_abs() <= MAX_SIGNED.unsigned_abs()).then_some(value)
}

impl EventLog {
    /// Appends the events: how many, then each one's time since the one before, and its cost.
    pub(crate) fn write(&self, out: &mut Vec<u64>) {
        out.push(self.live(i64::MIN).count() as u64);
        let mut last = 0;
        for (at, cost) in self.live(i64::MIN) {
            out.extend([write_signed(at.saturating_sub(last)), cost.into()]);
            last = at;
        }
    }

    pub(crate) fn read(words: &mut impl Words) -> Option<Self> {
        let mut log = Self::default();
        let (mut last, mut sum) = (0_i64, 0_u64);
        for index in 0..words.next_word()? {
            let (step, cost) = (signed(words)?, small(words)?);
            let at = last.checked_add(step)?;
            sum += u64::from(cost);
            let in_order = index == 0 || step > 0;
            if !in_order
                || cost == 0
                || sum > MAX_SUM
                || at.unsigned_abs() > MAX_SIGNED.unsigned_abs()
            {
                return None;
            }
            log.add(at, cost);
            last = at;
        }
        Some(log)
    }
}

impl Policy {
    /// The calendar of a quota: [`Self::write_words`] does not say what it is.
    #[must_use]
    pub fn calendar(&self) -> Option<&Arc<dyn Calendar>> {
        match self {
            Self::FixedWindow(window) => match window.align() {
                Align::Calendar(calendar) => Some(calendar),
                _ => None,
            },
            _ => None,
        }
    }

    /// Appends the numbers, for [`Self::read_words`].
    pub fn write_words(&self, out: &mut Vec<u64>) {
        let rate = |rate: Rate| [u64::from(rate.count()), rate.period().0];
        let optional = |length: Option<Micros>| length.map_or(0, |length| length.0 + 1);
        match self {
            Self::TokenBucket(bucket) => {
                let (initial, since) = bucket
                    .initial()
                    .unwrap_or((bucket.capacity(), Timestamp::EPOCH));
                out.push(0);
                out.extend(rate(bucket.rate()));
                out.extend([bucket.capacity().into(), initial.into(), since.as_micros()]);
            }
            Self::IntervalBucket(bucket) => {
                let (initial, since) = bucket
                    .initial()
                    .unwrap_or((bucket.capacity(), Timestamp::EPOCH));
                out.push(1);
                out.extend(rate(bucket.rate()));
                out.extend([bucket.capacity().into(), initial.into(), since.as_micros()]);
            }
            Self::LeakyBucket(queue) => {
                out.push(2);
                out.extend(rate(queue.rate()));
                let (places, wait) = (queue.queue().into(), optional(queue.max_wait()));
                out.extend([places, queue.burst().into(), wait]);
            }
            Self::FixedWindow(window) => {
                let align = match window.align() {
                    Align::Epoch => 0,
                    Align::FirstUse => 1,
                    Align::Calendar(_) => 2,
                };
                out.extend([3, window.max().into(), window.period().0, align]);
            }
            Self::SlidingLog(log) => out.extend([4, log.max().into(), log.period().0]),
            Self::StrictWindow(window) => {
                out.extend([
                    5,
                    window.max().into(),
                    window.period().0,
                    window.cells().into(),
                ]);
            }
            Self::InterpolatedWindow(window) => {
                out.extend([6, window.max().into(), window.period().0]);
            }
            Self::Concurrency(limit) => {
                out.extend([7, limit.permits().into(), limit.lease().0]);
                out.push(optional(limit.max_hold()));
            }
            Self::Lockout(lockout) => {
                let settings = lockout.settings();
                let (cap, long) = settings.long_cap.unwrap_or_default();
                out.extend([8, settings.failures.into(), settings.period.0]);
                out.extend([settings.ban.0, settings.factor.into(), settings.max_ban.0]);
                out.extend([settings.jitter.0, settings.forget_after.0]);
                out.extend([settings.long_cap.is_some().into(), cap.into(), long.0]);
            }
        }
    }

    /// The numbers that [`Self::write_words`] wrote; a quota is given its `calendar`. None for
    /// words that are no valid numbers.
    pub fn read_words(
        words: &mut impl Words,
        calendar: Option<&Arc<dyn Calendar>>,
    ) -> Option<Self> {
        let words = &mut *words;
        let kind = words.next_word()?;
        Some(match kind {
            0 | 1 => {
                let (rate, capacity, initial) = (read_rate(words)?, small(words)?, small(words)?);
                let since = Timestamp::from_micros(words.next_word()?).ok()?;
                if kind == 0 {
                    let bucket = TokenBucket::new(rate, capacity).ok()?;
                    bucket.with_initial(initial, since).ok()?.into()
                } else {
                    let bucket = IntervalBucket::new(rate, capacity).ok()?;
                    bucket.with_initial(initial, since).ok()?.into()
                }
            }
            2 => {
                let (rate, queue, burst) = (read_rate(words)?, small(words)?, small(words)?);
                LeakyBucket::new(rate, queue, burst, optional(words)?)
                    .ok()?
                    .into()
            }
            3 => {
                let (limit, period) = (small(words)?, Micros(words.next_word()?));
                match words.next_word()? {
                    0 => FixedWindow::new(limit, period, Align::Epoch),
                    1 => FixedWindow::new(limit, period, Align::FirstUse),
                    2 => FixedWindow::calendar(limit, Arc::clone(calendar?)),
                    _ => return None,
                }
                .ok()?
                .into()
            }
            4 => SlidingLog::new(small(words)?, Micros(words.next_word()?))
                .ok()?
                .into(),
            5 => {
                let (limit, period) = (small(words)?, Micros(words.next_word()?));
                StrictWindow::new(limit, period, small(words)?).ok()?.into()
            }
            6 => InterpolatedWindow::new(small(words)?, Micros(words.next_word()?))
                .ok()?
                .into(),
            7 => {
                let (limit, lease) = (small(words)?, Micros(words.next_word()?));
                Concurrency::new(limit, lease, optional(words)?)
                    .ok()?
                    .into()
            }
            8 => Lockout::new(read_settings(words)?).ok()?.into(),
            _ => return None,
        })
    }
}

fn read_rate(words: &mut impl Words) -> Option<Rate> {
    Rate::new(small(words)?, words.next_word()?).ok()
}

/// A length of time that need not be there.
fn optional(words: &mut impl Words) -> Option<Option<Micros>> {
    Some(words.next_word()?.checked_sub(1).map(Micros))
}

fn read_settings(words: &mut impl Words) -> Option<LockoutSettings> {
    let failures = small(words)?;
    let (period, ban) = (Micros(words.next_word()?), Micros(words.next_word()?));
    let factor = small(words)?;
    let (max_ban, jitter) = (Micros(words.next_word()?), Micros(words.next_word()?));
    let forget_after = Micros(words.next_word()?);
    let capped = words.next_word()? != 0;
    let cap = (small(words)?, Micros(words.next_word()?));
    Some(LockoutSettings {
        failures,
        period,
        ban,
        factor,
        max_ban,
        jitter,
        forget_after,
        long_cap: capped.then_some(cap),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, ChangeMode, Entry};
    use crate::concurrency::LeaseId;
    use crate::operation::{Demand, Operation};
    use crate::{engine, with_algorithm};
    use proptest::prelude::*;

    fn policies() -> impl Strategy<Value = Policy> {
        let rate = (0_u32..9, 1_u64..10_000_000).prop_map(|(n, t)| Rate::new(n, t).unwrap());
        let period = (1_u64..100_000_000).prop_map(Micros);
        (0_u32..9, rate, 0_u32..200, period, 1_u32..100).prop_map(|(kind, rate, n, period, m)| {
            let since = Timestamp::from_micros(u64::from(m)).unwrap();
            let align = if m % 2 == 0 {
                Align::Epoch
            } else {
                Align::FirstUse
            };
            match kind {
                0 => TokenBucket::new(rate, n + m)
                    .unwrap()
                    .with_initial(n, since)
                    .unwrap()
                    .into(),
                1 => IntervalBucket::new(rate, n + m)
                    .unwrap()
                    .with_initial(n, since)
                    .unwrap()
                    .into(),
                2 => LeakyBucket::new(rate, n, m, (n > 100).then_some(period))
                    .unwrap()
                    .into(),
                3 => FixedWindow::new(n, period, align).unwrap().into(),
                4 => SlidingLog::new(n, period).unwrap().into(),
                5 => StrictWindow::new(n, period, m).unwrap().into(),
                6 => InterpolatedWindow::new(n, period).unwrap().into(),
                7 => Concurrency::new(n, period, (n > 100).then_some(period))
                    .unwrap()
                    .into(),
                _ => Lockout::new(LockoutSettings {
                    failures: n,
                    period,
                    ban: period,
                    factor: m,
                    max_ban: Micros(period.0 * 8),
                    jitter: Micros(n.into()),
                    forget_after: period,
                    long_cap: (n > 100).then_some((m, period)),
                })
                .unwrap()
                .into(),
            }
        })
    }

    /// Stands for a step of the clock back, by more than jitter.
    const BACK: u64 = u64::MAX;

    fn operations() -> impl Strategy<Value = Vec<(u64, Operation)>> {
        let operation = (0_u8..9, 0_u32..300, 0_u128..4).prop_map(|(kind, n, lease)| {
            let lease = LeaseId(lease);
            match kind {
                0..3 => Operation::Take(Demand::Take { cost: n % 7 }),
                3 => Operation::Force { cost: n },
                4 => Operation::Take(Demand::Acquire {
                    lease,
                    weight: n % 7,
                }),
                5 => Operation::Release { lease },
                6 => Operation::Renew { lease },
                7 => Operation::Take(Demand::Attempt { seed: n.into() }),
                _ => Operation::Reset,
            }
        });
        // Also back in time, where states keep an offset.
        let step = (
            prop_oneof![9 => 0_u64..3_000_000, 1 => Just(BACK)],
            operation,
        );
        prop::collection::vec(step, 0..40)
    }

    /// Applies operations one after the other; those without a meaning change nothing.
    fn run<A: Algorithm>(
        algorithm: &A,
        entry: &mut Entry<A::State>,
        now: &mut u64,
        operations: &[(u64, Operation)],
    ) {
        for (step, operation) in operations {
            *now = if *step == BACK {
                now.saturating_sub(5_000_000)
            } else {
                *now + *step
            };
            let at = Timestamp::from_micros(*now).unwrap();
            let _ = engine::apply(algorithm, entry, at, operation);
        }
    }

    fn read_back<A: Algorithm>(algorithm: &A, state: &A::State) -> Option<A::State> {
        let mut out = Vec::new();
        A::write_state(state, &mut out);
        let mut words = out.into_iter();
        let read = algorithm.read_state(&mut || words.next());
        assert_eq!(words.next(), None, "all words are read");
        read
    }

    fn survives<A: Algorithm>(
        algorithm: &A,
        words: &[u64],
        operations: &[(u64, Operation)],
        modes: &[(A, ChangeMode)],
    ) {
        let mut source = words.iter().copied();
        let Some(state) = algorithm.read_state(&mut || source.next()) else {
            return;
        };
        let mut entry = Entry {
            state,
            blocked_until: 0,
        };
        let mut now = A::last(&entry.state);
        for (other, mode) in modes {
            let mut moved = entry.clone();
            let at = Timestamp::from_micros(now).unwrap();
            engine::reprice(algorithm, other, &mut moved, at, *mode);
        }
        now = now.min(1 << 51);
        run(algorithm, &mut entry, &mut now, operations);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn numbers_are_read_as_they_were_written(policy in policies()) {
            let mut out = Vec::new();
            policy.write_words(&mut out);
            let mut words = out.into_iter();
            let read = Policy::read_words(&mut || words.next(), None);
            prop_assert_eq!(read, Some(policy));
            prop_assert_eq!(words.next(), None);
        }

        #[test]
        fn a_state_is_read_as_it_was_written(policy in policies(), operations in operations()) {
            with_algorithm!(&policy, algorithm => {
                let mut now = 100_000_000;
                let mut entry = Entry::fresh(algorithm, Timestamp::from_micros(now).unwrap());
                run(algorithm, &mut entry, &mut now, &operations);
                let read = read_back(algorithm, &entry.state).map(|state| Entry {
                    state,
                    blocked_until: entry.blocked_until,
                });
                let at = Timestamp::from_micros(now).unwrap();
                let mut read = read.unwrap();
                prop_assert_eq!(
                    engine::apply(algorithm, &mut read, at, &Operation::State),
                    engine::apply(algorithm, &mut entry, at, &Operation::State)
                );
                // Offsets of corrected clocks are worked in, which only another step shows.
                run(algorithm, &mut read, &mut now.clone(), &operations);
                run(algorithm, &mut entry, &mut now, &operations);
                let at = Timestamp::from_micros(now).unwrap();
                prop_assert_eq!(
                    engine::apply(algorithm, &mut read, at, &Operation::State),
                    engine::apply(algorithm, &mut entry, at, &Operation::State)
                );
            });
        }

        #[test]
        fn no_words_make_a_state_that_panics(
            policy in policies(),
            other in policies(),
            words in prop::collection::vec(
                prop_oneof![
                    0_u64..10,
                    any::<u64>(),
                    (0_u32..64).prop_map(|bits| 1 << bits),
                    (0_u32..64).prop_map(|bits| (1 << bits) - 1),
                ],
                0..24,
            ),
            operations in operations(),
        ) {
            let _ = Policy::read_words(&mut { let mut w = words.iter().copied(); move || w.next() }, None);
            with_algorithm!(&policy, algorithm => {
                let all = [ChangeMode::KeepUsed, ChangeMode::Proportional, ChangeMode::KeepAvailable];
                let modes: Vec<_> = same(algorithm, &other)
                    .into_iter()
                    .flat_map(|other| all.map(|mode| (other.clone(), mode)))
                    .collect();
                survives(algorithm, &words, &operations, &modes);
            });
        }
    }

    /// The numbers in a policy, if they are for the same algorithm.
    fn same<A: Algorithm>(_: &A, policy: &Policy) -> Option<A> {
        with_algorithm!(policy, algorithm => {
            (algorithm as &dyn core::any::Any).downcast_ref::<A>().cloned()
        })
    }
}

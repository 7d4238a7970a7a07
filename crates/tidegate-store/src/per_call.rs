//! Token buckets whose numbers come with each call, as a client of `CL.THROTTLE` brings them.
//!
//! The numbers are no part of a key: a call with others finds what the key has used, re-priced. So
//! a slot holds the numbers that it was written under beside its level, 64 bytes in all. It also
//! knows from when on it equals a fresh key, so that a sweep needs no arithmetic. The surprise: a
//! full table refuses new keys, for keys with different numbers cannot share a state.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use tidegate_core::{
    Algorithm, ChangeMode, Decision, Denial, Entry, Operation, Rate, Reply, Timestamp, TokenBucket,
    Verdict, Wait, engine,
};

use crate::{KeyHash, Moment};

/// Parts of a table, each with a lock of its own. So many that growing one stops nobody for long.
const SHARDS: usize = 256;

/// What a client whose key found no place is told to wait: nobody knows when one will go.
const FULL_WAIT: Wait = Wait::micros(1_000_000);

/// Keys of any numbers, bounded.
#[derive(Debug)]
pub struct PerCallTable {
    shards: Box<[Mutex<Shard>]>,
    /// How many keys a shard holds at most.
    room: usize,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashTable<Slot>,
    /// Before this time no slot equals a fresh key, in microseconds.
    sweep_at: u64,
}

#[derive(Debug)]
struct Slot {
    hash: u64,
    numbers: Numbers,
    /// From when on the slot equals a fresh key, in microseconds.
    fresh_at: u64,
    level: Level,
}

type Level = <TokenBucket as Algorithm>::State;

/// What makes a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    period: u64,
    count: u32,
    capacity: u32,
}

impl Numbers {
    fn of(bucket: &TokenBucket) -> Self {
        let rate = bucket.rate();
        Self {
            period: rate.period().0,
            count: rate.count(),
            capacity: bucket.capacity(),
        }
    }

    fn bucket(self) -> TokenBucket {
        Rate::new(self.count, self.period)
            .and_then(|rate| TokenBucket::new(rate, self.capacity))
            .expect("they came from a bucket")
    }
}

impl PerCallTable {
    /// A table of at most `max_keys` keys, in hundreds.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            room: max_keys.div_ceil(SHARDS).max(1),
        }
    }

    /// Takes `cost` tokens of a key's bucket, which has these numbers from now on, or nothing.
    pub fn take<'a>(
        &self,
        key: KeyHash,
        bucket: &TokenBucket,
        now: impl Into<Moment<'a>>,
        cost: u32,
    ) -> Decision {
        let (hash, numbers) = (key.get(), Numbers::of(bucket));
        let now: Moment<'_> = now.into();
        let mut shard = self.shard(hash);
        if let Some(slot) = shard.slots.find_mut(hash, |slot| slot.hash == hash) {
            let now = now.against(TokenBucket::last(&slot.level));
            let mut entry = slot.entry();
            if slot.numbers != numbers {
                let before = slot.numbers.bucket();
                engine::reprice(&before, bucket, &mut entry, now, ChangeMode::KeepUsed);
            }
            let (decision, rebased) = decide(bucket, &mut entry, now, cost);
            if charges(&decision) {
                slot.numbers = numbers;
                slot.level = entry.state;
                slot.fresh_at = fresh_at(bucket, &slot.level, now);
                let fresh_at = slot.fresh_at;
                shard.sweep_at = shard.sweep_at.min(fresh_at);
            } else if rebased && slot.numbers == numbers {
                slot.level = entry.state;
            }
            return decision;
        }
        let now = now.anew().now();
        let mut entry = Entry::fresh(bucket, now);
        let (decision, _) = decide(bucket, &mut entry, now, cost);
        if !charges(&decision) {
            return decision;
        }
        if shard.slots.len() >= self.room && shard.sweep(now) == 0 {
            return no_place(decision);
        }
        let level = entry.state;
        let fresh_at = fresh_at(bucket, &level, now);
        shard.sweep_at = if shard.slots.is_empty() {
            fresh_at
        } else {
            shard.sweep_at.min(fresh_at)
        };
        let slot = Slot {
            hash,
            numbers,
            fresh_at,
            level,
        };
        shard.slots.insert_unique(hash, slot, |slot| slot.hash);
        decision
    }

    /// Forgets the keys of one part of the table that cannot be told from fresh ones; `step` picks
    /// the part. Returns how many went.
    pub fn maintain(&self, step: usize, now: Timestamp) -> usize {
        let mut shard = lock(&self.shards[step % SHARDS]);
        let gone = shard.sweep(now);
        // A part that has become far too large gives memory back.
        if shard.slots.capacity() > 64 && shard.slots.len() < shard.slots.capacity() / 4 {
            let room = shard.slots.len() * 2;
            shard.slots.shrink_to(room, |slot| slot.hash);
        }
        gone
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let sizes = self.shards.iter().map(|shard| lock(shard).slots.len());
        sizes.sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Neither the bits that pick a bucket of the shard's table nor those of its tags.
        let place = (hash >> 32) as usize % SHARDS;
        lock(&self.shards[place])
    }
}

impl Shard {
    /// Drops what equals a fresh key, unless it is known that nothing does. Returns how many went.
    fn sweep(&mut self, now: Timestamp) -> usize {
        let now = now.as_micros();
        if now < self.sweep_at {
            return 0;
        }
        let before = self.slots.len();
        let mut next = u64::MAX;
        self.slots.retain(|slot| {
            let keep = slot.fresh_at > now;
            if keep {
                next = next.min(slot.fresh_at);
            }
            keep
        });
        self.sweep_at = next;
        before - self.slots.len()
    }
}

impl Slot {
    fn entry(&self) -> Entry<Level> {
        Entry {
            state: self.level,
            blocked_until: 0,
        }
    }
}

/// A decision, and whether the key's times moved back because the clock had been corrected.
fn decide(
    bucket: &TokenBucket,
    entry: &mut Entry<Level>,
    now: Timestamp,
    cost: u32,
) -> (Decision, bool) {
    let applied = engine::execute(bucket, entry, now, &Operation::take(cost))
        .expect("a bucket has units to take");
    let Reply::Decision(decision) = applied.reply else {
        unreachable!("a take is answered by a decision");
    };
    (decision, applied.rebased)
}

const fn charges(decision: &Decision) -> bool {
    decision.is_within_limit() && decision.cost > 0
}

/// When a level will equal that of a fresh key, also to a caller whose clock is behind.
fn fresh_at(bucket: &TokenBucket, level: &Level, now: Timestamp) -> u64 {
    let entry = Entry {
        state: *level,
        blocked_until: 0,
    };
    let wait = engine::fresh_after(bucket, &entry, now).as_micros();
    wait.map_or(u64::MAX, |wait| now.as_micros().saturating_add(wait))
}

/// What a fresh key would be told, but denied for want of a place.
fn no_place(decision: Decision) -> Decision {
    Decision {
        verdict: Verdict::Deny(Denial::TableFull),
        remaining: 0,
        retry_after: FULL_WAIT,
        reset_after: FULL_WAIT,
        ..decision
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Nothing in here panics between two writes that belong together.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(count: u32, seconds: u64, capacity: u32) -> TokenBucket {
        let rate = Rate::new(count, seconds * 1_000_000).unwrap();
        TokenBucket::new(rate, capacity).unwrap()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000).unwrap()
    }

    const KEY: KeyHash = KeyHash::new(0x1234_5678_9abc_def0);

    #[test]
    fn a_key_obeys_the_numbers_of_each_call_and_keeps_what_it_has_used() {
        let table = PerCallTable::new(1000);
        let small = bucket(1, 1, 5);
        for left in (0..5).rev() {
            assert_eq!(table.take(KEY, &small, at(0), 1).remaining, left);
        }
        assert!(!table.take(KEY, &small, at(0), 1).is_allowed());
        let large = bucket(2, 1, 12);
        let decision = table.take(KEY, &large, at(0), 1);
        assert_eq!((decision.limit, decision.remaining), (12, 6));
        // A call that is denied under other numbers changes nothing.
        assert!(!table.take(KEY, &bucket(1, 1, 3), at(0), 3).is_allowed());
        assert_eq!(table.take(KEY, &large, at(0), 0).remaining, 6);
    }

    #[test]
    fn a_caller_that_stood_still_reads_the_clock_again() {
        let (table, numbers) = (PerCallTable::new(1000), bucket(1, 1, 5));
        let clock = crate::ReadClock::new(|| at(60_000));
        assert!(table.take(KEY, &numbers, at(60_000), 5).is_allowed());
        let stale = clock.moment(at(10_000));
        assert!(!table.take(KEY, &numbers, stale, 1).is_allowed());
        assert!(table.take(KEY, &numbers, at(61_000), 1).is_allowed());
        assert!(!table.take(KEY, &numbers, at(61_000), 1).is_allowed());
        // Of a key that may have been forgotten nobody knows; it is a key of now.
        let other = KeyHash::new(7);
        assert_eq!(table.take(other, &numbers, stale, 5).at, at(60_000));
    }

    #[test]
    fn it_decides_as_a_bucket_of_its_own_does() {
        let table = PerCallTable::new(1000);
        let numbers = bucket(7, 3, 11);
        let mut model = Entry::fresh(&numbers, at(0));
        for step in 0..5_000_u64 {
            let now = at(step * 7919 % 100_000 / 3 + step * 20);
            let cost = u32::try_from(step * 31 % 13).unwrap();
            let expected = engine::apply(&numbers, &mut model, now, &Operation::take(cost));
            let Ok(Reply::Decision(expected)) = expected else {
                unreachable!()
            };
            assert_eq!(table.take(KEY, &numbers, now, cost), expected, "{step}");
        }
    }

    #[test]
    fn a_full_table_forgets_only_what_is_fresh_and_refuses_what_is_new() {
        let table = PerCallTable::new(SHARDS);
        let numbers = bucket(1, 10, 2);
        let key = |n: u64| KeyHash::new(n << 8 | 1);
        assert!(table.take(key(1), &numbers, at(0), 2).is_allowed());
        let refused = table.take(key(2), &numbers, at(0), 1);
        assert_eq!(refused.verdict, Verdict::Deny(Denial::TableFull));
        assert!(!table.take(key(1), &numbers, at(9_999), 1).is_allowed());
        // Full after 20 s, and then until every clock has passed that.
        assert!(!table.take(key(2), &numbers, at(20_999), 1).is_allowed());
        assert!(table.take(key(2), &numbers, at(21_000), 1).is_allowed());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn keys_that_are_fresh_again_go_by_and_by() {
        let table = PerCallTable::new(100_000);
        let numbers = bucket(1, 1, 1);
        for n in 0..10_000_u64 {
            let hash = KeyHash::new(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            assert!(table.take(hash, &numbers, at(0), 1).is_allowed());
        }
        assert_eq!(table.len(), 10_000);
        for step in 0..SHARDS {
            table.maintain(step, at(1_000));
        }
        assert_eq!(table.len(), 10_000, "a clock may be a second behind");
        for step in 0..SHARDS {
            table.maintain(step, at(2_000));
        }
        assert!(table.is_empty());
    }

    #[test]
    fn asking_makes_no_key() {
        let table = PerCallTable::new(100);
        assert!(table.take(KEY, &bucket(1, 1, 1), at(0), 0).is_allowed());
        assert!(!table.take(KEY, &bucket(1, 1, 1), at(0), 2).is_allowed());
        assert!(table.is_empty());
    }
}

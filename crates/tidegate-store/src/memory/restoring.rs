//! Reading into a new table what [`saving`](super::saving) wrote.
//!
//! All of it is read twice: once to see that it is what it should be, and which keys there are, and
//! once to take it over. In between the table gets room for just these keys. So hostile bytes cost
//! a reading, and keys that were made to collide are found before any memory is spent on them.

use std::sync::Arc;

use tidegate_core::{Algorithm, ChangeMode, Entry, Policy, Timestamp, engine};

use super::Imported;
use super::overridden::algorithm_of;
use super::overrides::Numbers;
use super::saving::{END, FIRST_TIER, KEY, LIMIT, LIMITS, OWN, SHARED_STATE, TIER};
use super::segment::{GROUP, Segment};
use super::slot::{Head, Slot};
use super::table::{Boxed, SHARED, Table, keep, keep_boxed};
use crate::key::KeyHash;
use crate::snapshot::{BodyReader, SnapshotError};
use crate::sync::Ordering;

/// How many keys more than allowed a table may have: threads that bring new ones at the same
/// moment pass the bound by one each.
const RACING_KEYS: usize = 1_024;

/// How often the limit's numbers can have changed while one snapshot was written.
const MAX_CHANGES: usize = 64;

/// How many times the usual room keys may take that nobody chose.
const MAX_DOUBLINGS: u32 = 3;

/// What stands in a record.
enum Record<'a, A: Algorithm> {
    Limit(A),
    Tier(&'a str, A),
    Key(u64, NumbersOf<A>, Entry<A::State>),
    Shared(usize, NumbersOf<A>, Entry<A::State>),
}

/// Which numbers a state is under.
enum NumbersOf<A> {
    Limit,
    Own(A),
    /// Those of this tier, in the order of the records.
    Tier(usize),
}

/// Records, as they are read. What they say about numbers is needed to read states.
struct Records<'a, A> {
    body: BodyReader<'a>,
    like: Policy,
    limit: A,
    changes: usize,
    tiers: Vec<A>,
    states: u64,
}

impl<'a, A: Algorithm> Records<'a, A> {
    /// The next record; none after the last, where the body ends too.
    fn next(&mut self) -> Result<Option<Record<'a, A>>, SnapshotError> {
        let kind = self.word()?;
        match kind {
            END => {
                let complete = self.body.fixed() == Some(self.states) && self.body.0.is_empty();
                return if complete { Ok(None) } else { Err(DAMAGED) };
            }
            TIER => {
                let name = self.body.text().ok_or(DAMAGED)?;
                let numbers = self.numbers()?;
                self.tiers.push(numbers.clone());
                return Ok(Some(Record::Tier(name, numbers)));
            }
            LIMIT => {
                self.limit = self.numbers()?;
                self.changes += 1;
                if self.changes > MAX_CHANGES {
                    return Err(DAMAGED);
                }
                return Ok(Some(Record::Limit(self.limit.clone())));
            }
            KEY | SHARED_STATE => self.states += 1,
            _ => return Err(DAMAGED),
        }
        let place = if kind == KEY {
            self.body.fixed()
        } else {
            self.body.word()
        };
        let place = place.ok_or(DAMAGED)?;
        let numbers = match self.word()? {
            LIMITS => NumbersOf::Limit,
            OWN => NumbersOf::Own(self.numbers()?),
            tier => NumbersOf::Tier(usize::try_from(tier - FIRST_TIER).map_err(|_| DAMAGED)?),
        };
        let algorithm = match &numbers {
            NumbersOf::Limit => &self.limit,
            NumbersOf::Own(own) => own,
            NumbersOf::Tier(index) => self.tiers.get(*index).ok_or(DAMAGED)?,
        };
        let blocked_until = self.body.word().filter(|until| *until < 1 << 53);
        let entry = Entry {
            blocked_until: blocked_until.ok_or(DAMAGED)?,
            state: algorithm.read_state(&mut self.body).ok_or(DAMAGED)?,
        };
        Ok(Some(if kind == KEY {
            Record::Key(place, numbers, entry)
        } else {
            Record::Shared(usize::try_from(place).map_err(|_| DAMAGED)?, numbers, entry)
        }))
    }

    /// Whether a state need not be kept.
    fn is_fresh(&self, numbers: &NumbersOf<A>, entry: &Entry<A::State>, now: Timestamp) -> bool {
        matches!(numbers, NumbersOf::Limit) && engine::is_fresh(&self.limit, entry, now)
    }

    fn word(&mut self) -> Result<u64, SnapshotError> {
        self.body.word().ok_or(DAMAGED)
    }

    fn numbers(&mut self) -> Result<A, SnapshotError> {
        let policy = self.body.policy().ok_or(DAMAGED)?.resolve(&self.like)?;
        algorithm_of(&policy).map_err(|_| DAMAGED)
    }
}

const DAMAGED: SnapshotError = SnapshotError::Damaged;

impl<A: Algorithm> Table<A>
where
    Policy: From<A>,
{
    /// Reads states into this table, which is new and which nobody else knows yet.
    pub(super) fn import(
        &self,
        body: BodyReader<'_>,
        now: Timestamp,
    ) -> Result<Imported, SnapshotError> {
        let mut tags = Vec::new();
        let mut records = self.records(body);
        while let Some(record) = records.next()? {
            if let Record::Key(tag, numbers, entry) = record
                && !records.is_fresh(&numbers, &entry, now)
            {
                tags.push(tag);
            }
        }
        let max_keys = self.max_keys();
        if tags.len() > max_keys.saturating_add(RACING_KEYS) {
            let keys = tags.len();
            return Err(SnapshotError::TooManyKeys { keys, max_keys });
        }
        tags.sort_unstable();
        let distinct = tags.is_sorted_by(|a, b| a < b) && tags.first() != Some(&0);
        if !distinct || !self.make_room_for(&tags, 0, 0) {
            return Err(DAMAGED);
        }
        self.keys.store(tags.len(), Ordering::Relaxed);
        self.take_over(self.records(body), now)
    }

    fn records<'a>(&self, body: BodyReader<'a>) -> Records<'a, A> {
        Records {
            body,
            like: self.algorithm().into(),
            limit: self.algorithm(),
            changes: 0,
            tiers: Vec::new(),
            states: 0,
        }
    }

    /// Puts segments in place that have a slot for each of these keys, which are in order and
    /// agree with `prefix` in the leading `depth` bits. False if they cannot be hashes.
    fn make_room_for(&self, tags: &[u64], prefix: u64, depth: u64) -> bool {
        let full = self.directory.full_groups();
        let wanted = (tags.len() * 4 / 3).div_ceil(GROUP);
        if wanted > full && self.directory.may_split(depth) {
            let bit = 1 << (63 - depth);
            let half = tags.partition_point(|tag| tag & bit == 0);
            return self.make_room_for(&tags[..half], prefix, depth + 1)
                && self.make_room_for(&tags[half..], prefix | bit, depth + 1);
        }
        let groups = wanted.max(self.directory.first_groups());
        for doublings in 0..=MAX_DOUBLINGS {
            let segment = Segment::new(groups << doublings, depth);
            if tags.iter().all(|tag| segment.adopt(*tag, Head(0), 0)) {
                self.directory
                    .publish(KeyHash::new(prefix), Box::new(segment));
                return true;
            }
        }
        false
    }

    /// Fills the slots that were made for the keys.
    fn take_over(
        &self,
        mut records: Records<'_, A>,
        now: Timestamp,
    ) -> Result<Imported, SnapshotError> {
        let mut tiers: Vec<Arc<Numbers<A>>> = Vec::new();
        let mut imported = Imported::default();
        while let Some(record) = records.next()? {
            let (slot, tag, numbers, entry) = match record {
                Record::Limit(numbers) => {
                    self.change(numbers, ChangeMode::KeepUsed, now.into());
                    continue;
                }
                Record::Tier(name, numbers) => {
                    // One that was changed while it was written comes again.
                    self.tiers
                        .set(name, numbers, ChangeMode::KeepUsed, now.into());
                    tiers.push(self.tiers.get(name).ok_or(DAMAGED)?);
                    continue;
                }
                Record::Key(_, numbers, entry) if records.is_fresh(&numbers, &entry, now) => {
                    continue;
                }
                Record::Key(tag, numbers, entry) => {
                    let key = KeyHash::new(tag);
                    let slot = self.directory.segment(key).find(key).ok_or(DAMAGED)?;
                    imported.keys += 1;
                    (slot, tag, numbers, entry)
                }
                Record::Shared(index, numbers, entry) => {
                    let slot = self.overflow.numbered(index).ok_or(DAMAGED)?;
                    let used = slot.lock().tag() != 0;
                    if used || !matches!(numbers, NumbersOf::Limit) {
                        return Err(DAMAGED);
                    }
                    (slot, SHARED, numbers, entry)
                }
            };
            let numbers = match numbers {
                NumbersOf::Limit => None,
                NumbersOf::Own(own) => Some(Numbers::new(own, None)),
                NumbersOf::Tier(index) => Some(Arc::clone(tiers.get(index).ok_or(DAMAGED)?)),
            };
            imported.overridden += usize::from(numbers.is_some());
            self.fill(slot, tag, Boxed { entry, numbers });
        }
        Ok(imported)
    }

    fn fill(&self, slot: Slot<'_>, tag: u64, boxed: Boxed<A>) {
        let generation = self.generations.current();
        let mut locked = slot.lock();
        if boxed.numbers.is_some() {
            keep_boxed(&mut locked, generation, boxed);
        } else {
            keep(&mut locked, generation, boxed.entry);
        }
        locked.set_tag(tag);
    }
}

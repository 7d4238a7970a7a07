//! The purses of all keys of a limit in one process: bounded, and locked in parts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quanta::{Clock, Instant};
use tidegate_core::{Decision, Source};
use tidegate_store::Key;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::flight::{Flight, Waiting};
use super::purse::{Lots, Purse, Taken};
use super::{LeaseTokens, Lot};

/// Parts with a lock each.
const PARTS: usize = 64;

/// How many keys may have a purse at once. Others are asked for one call at a time.
const KEYS: usize = 100_000;

/// Whose purse it is: what a call about it names.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) key: Key,
    pub(crate) slot: Option<Key>,
    pub(crate) shadow: bool,
}

struct Kept {
    purse: Purse,
    owner: Arc<Owner>,
    /// The question under way, and the units that are waited for.
    flight: Option<Waiting>,
    waiting: u32,
    /// What the question under way brings is not to be spent: the state was set by hand meanwhile.
    is_void: bool,
}

type Part = HashMap<u64, Kept, BuildHasherDefault<Hashed>>;

/// Keys come hashed.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// What is at hand for a call.
pub(crate) enum Took {
    /// All: the decision, and whether it is time to ask for more.
    Spent(Decision, bool),
    /// So many too few.
    Short(u32),
}

/// What a call that lacks units does.
pub(crate) enum Asked {
    /// Nothing: there are enough by now.
    Spent(Decision),
    /// Waits for a question that is under way.
    Wait(Waiting),
    /// Asks for so many, on behalf of all who will wait.
    Fly {
        want: u32,
        /// Whether all of them are probably there.
        is_likely: bool,
        owner: Arc<Owner>,
        flight: Flight,
        waiting: Waiting,
    },
    /// Asks for itself alone, and takes this along.
    Straight(Lots),
}

/// The purses of a limit.
pub(crate) struct Purses {
    terms: LeaseTokens,
    parts: Box<[Mutex<Part>]>,
    clock: Clock,
    origin: Instant,
    closed: AtomicBool,
    swept: AtomicBool,
    /// Read by whoever asks for units or gives some back, written by whoever waits for that.
    busy: RwLock<()>,
}

impl Purses {
    pub(crate) fn new(terms: LeaseTokens, clock: Clock) -> Self {
        Self {
            terms,
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            origin: clock.now(),
            clock,
            closed: AtomicBool::new(false),
            swept: AtomicBool::new(false),
            busy: RwLock::new(()),
        }
    }

    pub(crate) const fn terms(&self) -> &LeaseTokens {
        &self.terms
    }

    /// Microseconds since the purses were made.
    pub(crate) fn now(&self) -> u64 {
        let elapsed = self.clock.now().saturating_duration_since(self.origin);
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether nothing is to be taken in advance any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether this is the first time that it is asked.
    pub(crate) fn is_unswept(&self) -> bool {
        !self.swept.load(Ordering::Relaxed) && !self.swept.swap(true, Ordering::Relaxed)
    }

    /// Spends `cost` units that are at hand, or nothing.
    pub(crate) fn take(&self, hash: u64, cost: u32) -> Took {
        let now = self.now();
        let mut part = self.part(hash);
        let Some(kept) = part.get_mut(&hash) else {
            return Took::Short(cost);
        };
        match kept.purse.take(&self.terms, now, cost) {
            Taken::Spent(decision, low) => Took::Spent(decision, low && kept.flight.is_none()),
            Taken::Short(missing) => Took::Short(missing),
        }
    }

    /// Says what a call of `cost` does that was short. `owner` is made for a new purse.
    pub(crate) fn ask(&self, hash: u64, cost: u32, owner: impl FnOnce() -> Owner) -> Asked {
        let now = self.now();
        let mut part = self.part(hash);
        let is_full = part.len() >= KEYS / PARTS;
        let kept = match part.entry(hash) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(_) if is_full => return Asked::Straight(Lots::new()),
            Entry::Vacant(place) => place.insert(Kept::new(owner())),
        };
        let missing = match kept.purse.take(&self.terms, now, cost) {
            Taken::Spent(decision, _) => return Asked::Spent(decision),
            Taken::Short(missing) => missing,
        };
        if cost > self.terms.batch() {
            return Asked::Straight(kept.purse.hold(now, cost));
        }
        if let Some(flight) = &kept.flight {
            kept.waiting = kept.waiting.saturating_add(cost);
            return Asked::Wait(flight.clone());
        }
        let waiting = std::mem::take(&mut kept.waiting);
        let want = kept.purse.ask(&self.terms, now, missing, waiting);
        if want <= missing {
            return Asked::Straight(kept.purse.hold(now, cost));
        }
        kept.fly(want)
    }

    /// Begins to ask for more before a purse is empty; none where that is done already.
    pub(crate) fn ask_ahead(&self, hash: u64) -> Option<Asked> {
        let now = self.now();
        let mut part = self.part(hash);
        let kept = part.get_mut(&hash).filter(|kept| kept.flight.is_none())?;
        let want = kept.purse.ask(&self.terms, now, 1, 0);
        Some(kept.fly(want))
    }

    /// Asks for more on behalf of the calls to come, where a call of several limits had to ask for
    /// itself; none where that is done already, or the key is asked seldom.
    pub(crate) fn ask_after(&self, hash: u64, owner: impl FnOnce() -> Owner) -> Option<Asked> {
        let now = self.now();
        let mut part = self.part(hash);
        let is_full = part.len() >= KEYS / PARTS;
        let kept = match part.entry(hash) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(place) => place.insert(Kept::new(owner())),
        };
        if kept.flight.is_some() {
            return None;
        }
        let want = kept.purse.ask(&self.terms, now, 0, 0);
        (want > 0).then(|| kept.fly(want))
    }

    /// Whether `cost` units are at hand, and what spending them would be answered.
    pub(crate) fn look(&self, hash: u64, cost: u32) -> Option<Decision> {
        let now = self.now();
        let part = self.part(hash);
        match part.get(&hash)?.purse.clone().take(&self.terms, now, cost) {
            Taken::Spent(decision, _) => Some(decision),
            Taken::Short(_) => None,
        }
    }

    /// Takes out what is at hand, up to `cost`, for a call that is not decided yet.
    pub(crate) fn hold(&self, hash: u64, cost: u32) -> Lots {
        let now = self.now();
        let mut part = self.part(hash);
        let kept = part.get_mut(&hash);
        kept.map_or_else(Lots::new, |kept| kept.purse.hold(now, cost))
    }

    /// Notes what the store said of a key.
    pub(crate) fn see(&self, hash: u64, sent: u64, decision: &Decision) {
        let mut part = self.part(hash);
        if let Some(kept) = part.get_mut(&hash)
            && decision.source == Source::State
        {
            kept.purse.see(sent, decision);
        }
    }

    /// What a call was charged that was sent at `sent`.
    pub(crate) fn lot(&self, sent: u64, decision: &Decision) -> Lot {
        Lot::new(&self.terms, sent, decision)
    }

    /// A question has ended: with what the store said to it, if anything. Returns what has grown
    /// old meanwhile, to be given back.
    pub(crate) fn land(&self, hash: u64, sent: u64, decision: Option<&Decision>) -> Lots {
        let now = self.now();
        let mut part = self.part(hash);
        let Some(kept) = part.get_mut(&hash) else {
            // Purses with a question under way are kept.
            return Lots::new();
        };
        kept.flight = None;
        if let Some(decision) = decision
            && !std::mem::take(&mut kept.is_void)
        {
            kept.purse.receive(&self.terms, sent, decision);
        }
        if self.is_closed() {
            return kept.purse.empty();
        }
        kept.purse.expired(now)
    }

    /// Puts back what a call held and did not need.
    pub(crate) fn put_back(&self, hash: u64, lots: impl IntoIterator<Item = Lot>) {
        let mut part = self.part(hash);
        if let Some(kept) = part.get_mut(&hash) {
            for lot in lots {
                kept.purse.put(lot);
            }
        }
    }

    /// Forgets what is held of a key, since its state was set by hand.
    pub(crate) fn discard(&self, hash: u64) {
        if let Some(kept) = self.part(hash).get_mut(&hash) {
            kept.purse.empty();
            kept.is_void = kept.flight.is_some();
        }
    }

    /// Takes out what is too old, and forgets purses that nobody uses.
    pub(crate) fn sweep(&self) -> Vec<(Arc<Owner>, Lot)> {
        let now = self.now();
        let mut old = Vec::new();
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.retain(|_, kept| {
                note(&mut old, &kept.owner, kept.purse.expired(now));
                kept.flight.is_some() || !kept.purse.is_idle(&self.terms, now)
            });
        }
        old
    }

    /// Takes out everything.
    pub(crate) fn empty(&self) -> Vec<(Arc<Owner>, Lot)> {
        let mut all = Vec::new();
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            for kept in part.values_mut() {
                note(&mut all, &kept.owner, kept.purse.empty());
            }
        }
        all
    }

    /// For the time in which units are neither here nor with the store.
    pub(crate) async fn busy(&self) -> RwLockReadGuard<'_, ()> {
        self.busy.read().await
    }

    /// Waits until all units are here or with the store.
    pub(crate) async fn idle(&self) -> RwLockWriteGuard<'_, ()> {
        self.busy.write().await
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, Part> {
        // Not the bits by which the map finds its places.
        let part = &self.parts[(hash >> 32) as usize % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn new(owner: Owner) -> Self {
        Self {
            purse: Purse::new(),
            owner: Arc::new(owner),
            flight: None,
            waiting: 0,
            is_void: false,
        }
    }

    fn fly(&mut self, want: u32) -> Asked {
        let (flight, waiting) = Flight::begin();
        self.flight = Some(waiting.clone());
        Asked::Fly {
            want,
            is_likely: self.purse.expects(want),
            owner: Arc::clone(&self.owner),
            flight,
            waiting,
        }
    }
}

fn note(all: &mut Vec<(Arc<Owner>, Lot)>, owner: &Arc<Owner>, lots: Lots) {
    all.extend(lots.into_iter().map(|lot| (Arc::clone(owner), lot)));
}

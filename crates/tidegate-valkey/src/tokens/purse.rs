//! What one process holds of one key. Times are microseconds of its own, which never go back.
//!
//! How much is asked for at once, the level, follows the demand: it doubles with each question that
//! comes within half of `max_age` after the last one, and falls to what was spent where tokens grow
//! old unspent. So a batch lasts for about half of its age.

use smallvec::SmallVec;
use tidegate_core::{Decision, Micros, Source, Timestamp, Verdict, Wait};

use super::LeaseTokens;

/// More is asked for when so small a part of a batch is left: one of this many.
pub(super) const LOW: u32 = 4;

/// Units that were charged in one call and may be spent until they are too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lot {
    pub(crate) left: u32,
    /// When they were charged, on the key's own time.
    pub(crate) at: Timestamp,
    /// The first of this process's times at which they are too old.
    pub(crate) expires: u64,
}

impl Lot {
    /// What was charged by a call that was sent at `sent`.
    pub(crate) const fn new(terms: &LeaseTokens, sent: u64, decision: &Decision) -> Self {
        Self {
            left: decision.cost,
            at: decision.at,
            expires: sent.saturating_add(terms.max_age().0),
        }
    }

    /// How old it is at `now`, counted from before it was asked for.
    pub(crate) const fn age(&self, terms: &LeaseTokens, now: u64) -> Micros {
        Micros(
            now.saturating_add(terms.max_age().0)
                .saturating_sub(self.expires),
        )
    }

    pub(crate) const fn is_live(&self, now: u64) -> bool {
        self.left > 0 && now < self.expires
    }
}

pub(crate) type Lots = SmallVec<[Lot; 2]>;

/// What the store said last, and when it was asked.
#[derive(Clone, Copy, Debug)]
struct Seen {
    decision: Decision,
    sent: u64,
}

/// What one process holds of one key.
#[derive(Clone, Debug)]
pub(crate) struct Purse {
    /// Oldest first.
    lots: Lots,
    seen: Option<Seen>,
    /// How much is asked for at once.
    level: u32,
    /// When more was asked for last; nothing before the first time.
    asked: Option<u64>,
}

/// What a purse has for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Taken {
    /// All of it: the decision, and whether it is time to ask for more.
    Spent(Decision, bool),
    /// So many too few. Nothing was spent.
    Short(u32),
}

impl Purse {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            lots: Lots::new(),
            seen: None,
            level: 1,
            asked: None,
        }
    }

    /// Spends `cost` units, or nothing. `cost` is not 0.
    pub(crate) fn take(&mut self, terms: &LeaseTokens, now: u64, cost: u32) -> Taken {
        let mut missing = cost;
        for lot in self.lots.iter().filter(|lot| lot.is_live(now)) {
            missing = missing.saturating_sub(lot.left);
        }
        let Some(seen) = self.seen.filter(|_| missing == 0) else {
            return Taken::Short(missing);
        };
        let mut left = cost;
        let mut rest: u32 = 0;
        for lot in self.lots.iter_mut().filter(|lot| lot.is_live(now)) {
            let part = lot.left.min(left);
            lot.left -= part;
            left -= part;
            rest = rest.saturating_add(lot.left);
        }
        let is_fast = self.since(now) <= terms.max_age().0 / 2;
        let is_low = self.level >= LOW && rest <= self.level / LOW;
        Taken::Spent(told(&seen, now, cost, rest), is_low && is_fast)
    }

    /// Takes out what is live, up to `cost`, for a call that asks the store for the rest.
    pub(crate) fn hold(&mut self, now: u64, cost: u32) -> Lots {
        let mut held = Lots::new();
        let mut left = cost;
        for lot in self.lots.iter_mut().filter(|lot| lot.is_live(now)) {
            let part = lot.left.min(left);
            if part > 0 {
                lot.left -= part;
                left -= part;
                held.push(Lot { left: part, ..*lot });
            }
        }
        held
    }

    /// Puts back what was held and not needed, or has arrived.
    pub(crate) fn put(&mut self, lot: Lot) {
        if lot.left == 0 {
            return;
        }
        self.lots.retain(|lot| lot.left > 0);
        let same = |other: &&mut Lot| other.at == lot.at && other.expires == lot.expires;
        if let Some(other) = self.lots.iter_mut().find(same) {
            other.left = other.left.saturating_add(lot.left);
            return;
        }
        let place = self.lots.iter().position(|o| o.expires > lot.expires);
        self.lots.insert(place.unwrap_or(self.lots.len()), lot);
    }

    /// Notes that the store is asked for `missing` units, and says how many to ask for, where
    /// callers of `waiting` more are waiting.
    pub(crate) fn ask(&mut self, terms: &LeaseTokens, now: u64, missing: u32, waiting: u32) -> u32 {
        let since = self.since(now);
        if since <= terms.max_age().0 / 2 {
            self.level = self.level.saturating_mul(2).min(terms.batch());
        } else if since > terms.max_age().0 {
            self.level = 1;
        }
        self.asked = Some(now);
        let want = if self.level > 1 {
            self.level.saturating_add(waiting).min(terms.batch())
        } else {
            0
        };
        want.max(missing)
    }

    /// Whether the store had so many left when it was asked last.
    pub(crate) fn expects(&self, want: u32) -> bool {
        self.seen
            .is_some_and(|seen| seen.decision.remaining >= want)
    }

    /// How long ago more was asked for.
    fn since(&self, now: u64) -> u64 {
        self.asked
            .map_or(u64::MAX, |asked| now.saturating_sub(asked))
    }

    /// Takes what has come of a question that was sent at `sent`.
    pub(crate) fn receive(&mut self, terms: &LeaseTokens, sent: u64, decision: &Decision) {
        self.see(sent, decision);
        if decision.is_within_limit() {
            self.put(Lot::new(terms, sent, decision));
        }
    }

    /// Notes what the store said.
    pub(crate) fn see(&mut self, sent: u64, decision: &Decision) {
        let decision = *decision;
        self.seen = Some(Seen { decision, sent });
    }

    /// Takes out what is too old to be spent: it is given back.
    pub(crate) fn expired(&mut self, now: u64) -> Lots {
        let mut old = Lots::new();
        self.lots.retain(|lot| {
            let is_old = lot.left > 0 && now >= lot.expires;
            if is_old {
                old.push(*lot);
            }
            lot.left > 0 && !is_old
        });
        let unspent = old
            .iter()
            .fold(0_u32, |sum, lot| sum.saturating_add(lot.left));
        if unspent > 0 {
            self.level = self.level.saturating_sub(unspent).max(1);
        }
        old
    }

    /// Takes out everything.
    pub(crate) fn empty(&mut self) -> Lots {
        let mut all = std::mem::take(&mut self.lots);
        all.retain(|lot| lot.left > 0);
        all
    }

    /// Whether nothing would be lost with it.
    pub(crate) fn is_idle(&self, terms: &LeaseTokens, now: u64) -> bool {
        self.since(now) > terms.max_age().0 && self.lots.iter().all(|lot| lot.left == 0)
    }
}

/// What a caller is told whose units were at hand: what was known last, as of now.
fn told(seen: &Seen, now: u64, cost: u32, rest: u32) -> Decision {
    let known = &seen.decision;
    let elapsed = now.saturating_sub(seen.sent);
    let shorter = |wait: Wait| match wait.as_micros() {
        Some(micros) => Wait::micros(micros.saturating_sub(elapsed)),
        None => Wait::NEVER,
    };
    Decision {
        verdict: Verdict::Allow,
        cost,
        remaining: known.remaining.saturating_add(rest).min(known.limit),
        delay: Wait::ZERO,
        retry_after: Wait::ZERO,
        reset_after: shorter(known.reset_after),
        at: known
            .at
            .checked_add(Micros(elapsed))
            .unwrap_or(Timestamp::MAX),
        source: Source::Leased,
        ..*known
    }
}

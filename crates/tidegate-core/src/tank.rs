//! A capacity that refills continuously: what token buckets and paced queues keep alike.
//!
//! A level is what is missing to full, and when that was true. Both algorithms differ only in how
//! far down they let a caller go, and in what a key begins with.

use alloc::vec::Vec;

use crate::algorithm::{Assessment, ChangeMode, Packed};
use crate::meter::Meter;
use crate::rate::Rate;
use crate::words::{self, Words};

/// A capacity and the rate at which it refills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tank {
    pub meter: Meter,
    pub capacity: u32,
    /// The capacity in the meter's units.
    pub full: u128,
    /// The same in a word, where twice of it fits one with a bit to spare.
    full_word: Option<u64>,
}

/// What is missing to full, in the meter's units, and when that was true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub(crate) last: u64,
    pub(crate) deficit: u128,
}

impl Level {
    /// The level in one word beside its time, if it fits.
    #[inline(always)]
    pub(crate) fn pack(self) -> Option<u64> {
        u64::try_from(self.deficit).ok()
    }

    #[inline(always)]
    pub(crate) fn unpack(last: u64, word: u64) -> Self {
        Self {
            last,
            deficit: u128::from(word),
        }
    }
}

impl Level {
    pub(crate) fn write(&self, out: &mut Vec<u64>) {
        out.push(self.last);
        words::write_wide(self.deficit, out);
    }
}

impl Tank {
    pub(crate) fn new(rate: Rate, capacity: u32) -> Self {
        let meter = Meter::new(rate);
        let full = meter.units(capacity);
        let full_word = u64::try_from(full)
            .ok()
            .filter(|full| *full <= 1 << 61 && meter.fills());
        Self {
            meter,
            capacity,
            full,
            full_word,
        }
    }

    /// A level that was written: missing no more than all of the capacity and as much debt.
    pub(crate) fn read(&self, words: &mut impl Words) -> Option<Level> {
        let (last, deficit) = (words::time(words)?, words::wide(words)?);
        (deficit <= 2 * self.full).then_some(Level { last, deficit })
    }

    /// What is missing at `n`.
    #[inline(always)]
    pub(crate) fn deficit(&self, level: &Level, n: u64) -> u128 {
        self.meter
            .drained(level.deficit, n.saturating_sub(level.last))
    }

    /// Lets time pass up to `n`.
    pub(crate) fn advance(&self, level: &mut Level, n: u64) {
        level.deficit = self.deficit(level, n);
        level.last = n;
    }

    /// Takes `cost` tokens that were found to be there.
    #[inline(always)]
    pub(crate) fn charge(&self, level: &mut Level, n: u64, cost: u32) {
        level.deficit = self.deficit(level, n) + self.meter.units(cost);
        level.last = n;
    }

    /// What [`Self::deficit`] and [`Self::charge`] do, in 64 bits: for a capacity that leaves room
    /// there for all its debt, as those that people write do. None for others, and for a cost
    /// above the capacity.
    #[inline(always)]
    pub(crate) fn take_word(
        &self,
        packed: Packed,
        n: u64,
        cost: u32,
    ) -> Option<(Assessment, Packed)> {
        let full = self.full_word?;
        if cost > self.capacity {
            return None;
        }
        let deficit = self
            .meter
            .drained_word(packed.word, n.saturating_sub(packed.last));
        // Both summands are at most twice the capacity.
        let charged = deficit.saturating_add(self.meter.units_word(cost));
        if charged > full {
            let remaining = self.meter.tokens_word(full.saturating_sub(deficit));
            let retry = self.meter.wait_word(charged - full);
            let reset = self.meter.wait_word(deficit);
            return Some((Assessment::limited(remaining, retry, reset), packed));
        }
        let remaining = self.meter.tokens_word(full - charged);
        let assessment = Assessment::fits(remaining, self.meter.wait_word(charged));
        if cost == 0 {
            return Some((assessment, packed));
        }
        let charged = Packed {
            last: n,
            word: charged,
        };
        Some((assessment, charged))
    }

    /// Takes `cost` tokens whatever is there, down to one capacity of debt.
    pub(crate) fn force(&self, level: &mut Level, n: u64, cost: u32) {
        self.advance(level, n);
        let debt = (level.deficit + self.meter.units(cost)).min(2 * self.full);
        level.deficit = level.deficit.max(debt);
    }

    /// Gives up to `cost` tokens back; returns how many. Nothing changes where none is missing.
    pub(crate) fn refund(&self, level: &mut Level, n: u64, cost: u32) -> u32 {
        let deficit = self.deficit(level, n);
        let back = cost.min(self.meter.tokens_up(deficit));
        if back > 0 {
            let deficit = deficit.saturating_sub(self.meter.units(cost));
            *level = Level { last: n, deficit };
        }
        back
    }

    /// A deficit that was kept in tank `old`, as it is in this one: at most all of it.
    pub(crate) fn adopt(&self, old: &Self, deficit: u128, mode: ChangeMode, fresh: u128) -> u128 {
        let deficit = match mode {
            ChangeMode::KeepUsed => self.meter.convert_up(old.meter, deficit),
            ChangeMode::Proportional => {
                self.meter
                    .proportional_up(old.meter, deficit, old.capacity, self.capacity)
            }
            ChangeMode::KeepAvailable => {
                let available = old.full.saturating_sub(deficit);
                self.full
                    .saturating_sub(self.meter.convert_down(old.meter, available))
            }
            ChangeMode::Reset => fresh,
        };
        deficit.min(self.full)
    }
}

//! The arithmetic of everything that refills continuously.
//!
//! A deficit counts what is missing to full in units of 1/`t` of a token, so that a microsecond
//! brings exactly `r` units back and no fraction is ever lost. It needs 81 bits at the extremes (2^31 tokens at 1 per 10
//! years, in full debt) and fits one machine word for the limits that people write; each division
//! takes the short way there.

use crate::divisor::Divisor;
use crate::rate::Rate;
use crate::time::{MAX_WAIT, Wait};

/// A reduced rate: `r` units come back each microsecond, a token is `t` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    r: Divisor,
    t: Divisor,
}

impl Meter {
    pub(crate) const fn new(rate: Rate) -> Self {
        let (r, t) = rate.reduced();
        Self {
            r: Divisor::new(r),
            t: Divisor::new(t),
        }
    }

    /// So many tokens in units.
    pub(crate) fn units(self, tokens: u32) -> u128 {
        u128::from(tokens) * u128::from(self.t.get())
    }

    /// What comes back within `micros`.
    pub(crate) fn refill(self, micros: u64) -> u128 {
        u128::from(self.r.get()) * u128::from(micros)
    }

    /// A deficit after `elapsed` microseconds.
    #[inline(always)]
    pub(crate) fn drained(self, deficit: u128, elapsed: u64) -> u128 {
        match (u64::try_from(deficit), self.r.get().checked_mul(elapsed)) {
            (Ok(deficit), Some(refill)) => u128::from(deficit.saturating_sub(refill)),
            (Ok(_), None) => 0,
            (Err(_), _) => deficit.saturating_sub(self.refill(elapsed)),
        }
    }

    /// Whether anything ever comes back.
    pub(crate) const fn fills(self) -> bool {
        self.r.get() > 0
    }

    /// [`Self::units`] where the product is known to fit.
    #[inline(always)]
    pub(crate) const fn units_word(self, tokens: u32) -> u64 {
        (tokens as u64).wrapping_mul(self.t.get())
    }

    /// [`Self::drained`] of a deficit that fits a word.
    #[inline(always)]
    pub(crate) const fn drained_word(self, deficit: u64, elapsed: u64) -> u64 {
        // A product that does not fit is more than any deficit that does.
        deficit.saturating_sub(self.r.get().saturating_mul(elapsed))
    }

    /// [`Self::tokens`] of units that fit a word.
    #[inline(always)]
    pub(crate) fn tokens_word(self, units: u64) -> u32 {
        u32::try_from(self.t.divide(units)).unwrap_or(u32::MAX)
    }

    /// [`Self::wait`] for units that fit a word, at a rate that is not 0.
    #[inline(always)]
    pub(crate) const fn wait_word(self, units: u64) -> Wait {
        wait_of(self.r.divide_up(units))
    }

    /// Whole tokens in so many units, rounded down.
    #[inline(always)]
    pub(crate) fn tokens(self, units: u128) -> u32 {
        let tokens = match u64::try_from(units) {
            Ok(units) => self.t.divide(units),
            Err(_) => u64::try_from(units / u128::from(self.t.get())).unwrap_or(u64::MAX),
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Whole tokens in so many units, rounded up.
    pub(crate) fn tokens_up(self, units: u128) -> u32 {
        u32::try_from(units.div_ceil(u128::from(self.t.get()))).unwrap_or(u32::MAX)
    }

    /// How long until so many units have come back, rounded up.
    #[inline(always)]
    pub(crate) fn wait(self, units: u128) -> Wait {
        if units == 0 {
            return Wait::ZERO;
        }
        if self.r.get() == 0 {
            return Wait::NEVER;
        }
        match u64::try_from(units) {
            Ok(units) => wait_of(self.r.divide_up(units)),
            Err(_) => wait(units.div_ceil(u128::from(self.r.get()))),
        }
    }

    /// A deficit kept under `old`, in units of this meter, rounded up.
    ///
    /// Whole tokens and the fraction are converted apart, so that nothing can overflow.
    pub(crate) fn convert_up(self, old: Self, units: u128) -> u128 {
        let (old_t, new_t) = (u128::from(old.t.get()), u128::from(self.t.get()));
        (units / old_t) * new_t + ((units % old_t) * new_t).div_ceil(old_t)
    }

    /// An amount kept under `old`, in units of this meter, rounded down.
    pub(crate) fn convert_down(self, old: Self, units: u128) -> u128 {
        let (old_t, new_t) = (u128::from(old.t.get()), u128::from(self.t.get()));
        (units / old_t) * new_t + ((units % old_t) * new_t) / old_t
    }

    /// The same share of `new_full` as `units` is of `old_full`, in units of this meter, rounded
    /// up. Both fulls are whole tokens; a share of nothing is nothing.
    pub(crate) fn proportional_up(
        self,
        old: Self,
        units: u128,
        old_capacity: u32,
        new_capacity: u32,
    ) -> u128 {
        if old_capacity == 0 {
            return 0;
        }
        // units * new_capacity * new_t / (old_capacity * old_t), one factor at a time: the
        // remainder of the first division is carried into the second, so the result is exact.
        let divisor = u128::from(old_capacity) * u128::from(old.t.get());
        let factor = u128::from(new_capacity) * u128::from(self.t.get());
        mul_div_ceil(units, factor, divisor)
    }
}

/// A wait of so many microseconds; never, beyond what has a number.
pub(crate) fn wait(micros: u128) -> Wait {
    u64::try_from(micros).map_or(Wait::NEVER, wait_of)
}

#[inline(always)]
const fn wait_of(micros: u64) -> Wait {
    if micros > MAX_WAIT {
        Wait::NEVER
    } else {
        Wait::micros(micros)
    }
}

/// `a * b / c` rounded up, through a product of 256 bits; saturates where the result has more
/// than 128. Only changes of limits come here, so it is written to be read.
fn mul_div_ceil(a: u128, b: u128, c: u128) -> u128 {
    let (high, low) = wide_mul(a, b);
    if high >= c {
        return u128::MAX;
    }
    // Long division, bit by bit; the remainder stays below c, and c below 2^127 here (2^80).
    let (mut remainder, mut quotient) = (high, 0_u128);
    for bit in (0..128).rev() {
        remainder = (remainder << 1) | ((low >> bit) & 1);
        quotient <<= 1;
        if remainder >= c {
            remainder -= c;
            quotient |= 1;
        }
    }
    quotient.saturating_add(u128::from(remainder > 0))
}

/// The product of two 128-bit numbers, as its high and low halves.
fn wide_mul(a: u128, b: u128) -> (u128, u128) {
    const MASK: u128 = u64::MAX as u128;
    let (a1, a0, b1, b0) = (a >> 64, a & MASK, b >> 64, b & MASK);
    let low = a0 * b0;
    let (cross, carry) = (a1 * b0).overflowing_add(a0 * b1);
    let (low, carry_low) = low.overflowing_add(cross << 64);
    let high = a1 * b1 + (cross >> 64) + (u128::from(carry) << 64) + u128::from(carry_low);
    (high, low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_microsecond_of_the_slowest_rate_is_not_lost() {
        let meter = Meter::new(Rate::new(1, 315_576_000_000_000).unwrap());
        let token = meter.units(1);
        assert_eq!(meter.drained(token, 1), token - 1);
        assert_eq!(meter.wait(token), Wait::micros(315_576_000_000_000));
        assert_eq!(meter.wait(meter.units(u32::MAX >> 1)), Wait::NEVER);
    }

    proptest! {
        #[test]
        fn the_long_product_agrees_with_the_short_one(
            a in 0_u128..1 << 60, b in 0_u128..1 << 60, c in 1_u128..1 << 100,
        ) {
            prop_assert_eq!(mul_div_ceil(a, b, c), (a * b).div_ceil(c));
        }

        #[test]
        fn the_long_product_undoes_a_multiplication(
            a in 0_u128..1 << 120, c in 1_u128..1 << 100,
        ) {
            prop_assert_eq!(mul_div_ceil(a, c, c), a);
        }
    }
}

//! Division by a number that is known long before: one multiplication instead.
//!
//! A limit divides by the same two numbers at every decision. The machine's own division would be
//! the most expensive instruction of the hot path.

/// A divisor, with what replaces the division by it.
///
/// Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication, theorem
/// 4.2 with N = 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    value: u64,
    /// `floor(2^(63 + shift) / value) + 1`; 0 where there is none.
    factor: u64,
    /// `ceil(log2(value))`.
    shift: u32,
}

impl Divisor {
    /// Division by zero is not defined; a zero divisor gives zero everywhere.
    pub(crate) const fn new(value: u64) -> Self {
        if value == 0 || value > 1 << 63 {
            // No limit has such numbers; they take the long way.
            return Self {
                value,
                factor: 0,
                shift: 0,
            };
        }
        let shift = u64::BITS - (value - 1).leading_zeros();
        let factor = (1_u128 << (63 + shift)) / value as u128 + 1;
        Self {
            value,
            // Below 2^64: `value` is above 2^(shift - 1).
            factor: factor as u64,
            shift,
        }
    }

    /// The divisor itself.
    pub(crate) const fn get(self) -> u64 {
        self.value
    }

    /// `dividend / value`, rounded down.
    #[inline(always)]
    pub(crate) const fn divide(self, dividend: u64) -> u64 {
        if dividend >> 63 != 0 || self.factor == 0 {
            return match dividend.checked_div(self.value) {
                Some(quotient) => quotient,
                None => 0,
            };
        }
        let high = ((dividend as u128 * self.factor as u128) >> 63) as u64;
        high >> self.shift
    }

    /// `dividend / value`, rounded up.
    #[inline(always)]
    pub(crate) const fn divide_up(self, dividend: u64) -> u64 {
        if dividend == 0 {
            0
        } else {
            self.divide(dividend - 1) + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn agrees(value: u64, dividend: u64) {
        let divisor = Divisor::new(value);
        assert_eq!(
            divisor.divide(dividend),
            dividend / value,
            "{dividend} / {value}"
        );
        assert_eq!(
            divisor.divide_up(dividend),
            dividend.div_ceil(value),
            "{dividend} / {value}"
        );
    }

    #[test]
    fn the_ends_of_every_power_of_two_divide_exactly() {
        let ends = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power.wrapping_sub(1), power, power.saturating_add(1)]
        });
        let ends: Vec<u64> = ends.chain([u64::MAX]).collect();
        for &value in ends.iter().filter(|value| **value > 0) {
            for &dividend in &ends {
                agrees(value, dividend);
            }
            // Around every multiple, where a quotient that is off by one shows.
            for multiple in [1, 2, 3, 1_000, u64::MAX / value] {
                let Some(product) = value.checked_mul(multiple) else {
                    continue;
                };
                agrees(value, product);
                agrees(value, product.saturating_sub(1));
                agrees(value, product.saturating_add(1));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn it_divides_as_the_machine_does(value in 1_u64.., dividend: u64, narrow in 0_u32..64) {
            agrees(value >> narrow.min(value.ilog2()), dividend);
            agrees((value >> narrow).max(1), dividend >> narrow);
        }
    }
}

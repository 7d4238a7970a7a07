//! A rate: two integers, never a fraction.

use core::fmt;

use crate::policy::{MAX_COUNT, PolicyError};
use crate::time::{MAX_PERIOD, Micros};

/// So many per period: `3/10m` is 3 per 600 000 000 us.
///
/// The two numbers as written are kept beside their reduced form: an interval refill brings
/// `count` at once every `period`, while a continuous one only needs the ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    period: Micros,
}

impl Rate {
    /// Takes a count from 0 to 2^31 - 1 and a period from 1 us to 10 years.
    ///
    /// A count of 0 is legal: nothing comes back.
    ///
    /// # Errors
    /// A count or a period outside its range.
    pub const fn new(count: u32, period_us: u64) -> Result<Self, PolicyError> {
        if count > MAX_COUNT {
            return Err(PolicyError::CountOutOfRange(count));
        }
        if period_us == 0 || period_us > MAX_PERIOD.0 {
            return Err(PolicyError::PeriodOutOfRange(Micros(period_us)));
        }
        Ok(Self {
            count,
            period: Micros(period_us),
        })
    }

    /// So many per second.
    ///
    /// # Errors
    /// A count above 2^31 - 1.
    pub const fn per_second(count: u32) -> Result<Self, PolicyError> {
        Self::new(count, 1_000_000)
    }

    /// So many per minute.
    ///
    /// # Errors
    /// A count above 2^31 - 1.
    pub const fn per_minute(count: u32) -> Result<Self, PolicyError> {
        Self::new(count, 60_000_000)
    }

    /// How many come per period, as written.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The period, as written.
    #[must_use]
    pub const fn period(self) -> Micros {
        self.period
    }

    /// Count and period in microseconds, divided by what they have in common.
    #[must_use]
    pub const fn reduced(self) -> (u64, u64) {
        let divisor = gcd(self.count as u64, self.period.0);
        (self.count as u64 / divisor, self.period.0 / divisor)
    }
}

impl fmt::Display for Rate {
    /// Writes `100/s`, `3/10m`: the unit stands alone where the period is one of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (size, unit) in [
            (86_400_000_000, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
        ] {
            if self.period.0 == size {
                return write!(f, "{}/{unit}", self.count);
            }
        }
        write!(f, "{}/{}", self.count, self.period)
    }
}

/// The greatest common divisor; `b` where `a` is 0. The period is never 0, so neither is this.
const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_rate_reduces_and_keeps_what_was_written() {
        let rate = Rate::new(3, 600_000_000).unwrap();
        assert_eq!(rate.reduced(), (1, 200_000_000));
        assert_eq!(rate.to_string(), "3/10m");
        assert_eq!(Rate::new(0, 7).unwrap().reduced(), (0, 1));
        assert_eq!(Rate::per_second(100).unwrap().to_string(), "100/s");
    }

    #[test]
    fn a_period_of_zero_and_one_beyond_ten_years_are_errors() {
        assert!(Rate::new(1, 0).is_err());
        assert!(Rate::new(1, MAX_PERIOD.0).is_ok());
        assert!(Rate::new(1, MAX_PERIOD.0 + 1).is_err());
        assert!(Rate::new(MAX_COUNT + 1, 1).is_err());
    }
}

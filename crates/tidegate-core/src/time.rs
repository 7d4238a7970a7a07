//! Points in time, lengths of time and waits, all in whole microseconds.
//!
//! Every value stays at or below 2^53 - 1, so that a store whose numbers are doubles computes the
//! same; the valid range of time, up to 2^52, ends in the year 2112.

use core::fmt;
use core::time::Duration;

/// The longest period that a limit may have: 10 years of 365.25 days, in microseconds.
pub const MAX_PERIOD: Micros = Micros(315_576_000_000_000);

/// The last valid point in time, in microseconds since the Unix epoch.
const MAX_TIME: u64 = 1 << 52;

/// The longest wait that has a number, some 285 years: beyond it, it is never.
pub(crate) const MAX_WAIT: u64 = (1 << 53) - 1;

/// The longest delay that a caller is given, some 285 years: seen by a clock that is a second behind,
/// it is still a wait that has a number.
pub const MAX_DELAY: Micros = Micros(MAX_WAIT - JITTER);

/// How far a clock may step back before it counts as corrected rather than as jitter.
pub(crate) const JITTER: u64 = 1_000_000;

/// A point in time: microseconds since the Unix epoch, from 0 to 2^52.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A time that the engine does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time {0} us is outside 0..=2^52 us since the Unix epoch")]
pub struct TimeError(pub u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last valid point in time, in the year 2112.
    pub const MAX: Self = Self(MAX_TIME);

    /// Takes microseconds since the Unix epoch.
    ///
    /// # Errors
    /// Above 2^52. Time never wraps.
    pub const fn from_micros(micros: u64) -> Result<Self, TimeError> {
        if micros <= MAX_TIME {
            Ok(Self(micros))
        } else {
            Err(TimeError(micros))
        }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The point `length` later, or none where valid time ends.
    #[must_use]
    pub fn checked_add(self, length: Micros) -> Option<Self> {
        self.0
            .checked_add(length.0)
            .filter(|micros| *micros <= MAX_TIME)
            .map(Self)
    }
}

/// A length of time in whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Takes a duration, rounded up to whole microseconds.
    #[must_use]
    pub fn from_duration(duration: Duration) -> Self {
        let micros = duration.as_nanos().div_ceil(1_000);
        Self(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The same length as a duration.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl fmt::Display for Micros {
    /// Writes the length in the largest unit that divides it: `1500ms`, `2s`, `10m`, `1d`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (86_400_000_000, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
            (1_000, "ms"),
        ];
        if self.0 == 0 {
            return f.write_str("0ms");
        }
        for (size, unit) in UNITS {
            if self.0.is_multiple_of(size) {
                return write!(f, "{}{unit}", self.0 / size);
            }
        }
        write!(f, "{}us", self.0)
    }
}

/// How long to wait, or that waiting cannot help.
///
/// Waits are rounded up: who obeys one is never early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait(u64);

impl Wait {
    /// No wait.
    pub const ZERO: Self = Self(0);
    /// Waiting cannot help.
    pub const NEVER: Self = Self(u64::MAX);

    /// A wait of so many microseconds.
    #[must_use]
    pub const fn micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The microseconds to wait, or none if waiting cannot help.
    #[must_use]
    pub const fn as_micros(self) -> Option<u64> {
        if self.0 == u64::MAX {
            None
        } else {
            Some(self.0)
        }
    }

    /// The wait as a duration, or none if waiting cannot help.
    #[must_use]
    pub const fn as_duration(self) -> Option<Duration> {
        match self.as_micros() {
            Some(micros) => Some(Duration::from_micros(micros)),
            None => None,
        }
    }

    /// Whether waiting cannot help.
    #[must_use]
    pub const fn is_never(self) -> bool {
        self.0 == u64::MAX
    }

    /// The same wait, `micros` longer; never stays never, and so is what no number can tell.
    #[must_use]
    pub(crate) const fn plus(self, micros: u64) -> Self {
        let longer = self.0.saturating_add(micros);
        if longer > MAX_WAIT {
            Self::NEVER
        } else {
            Self(longer)
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_micros() {
            Some(micros) => Micros(micros).fmt(f),
            None => f.write_str("never"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_time_beyond_the_range_is_an_error_and_never_wraps() {
        assert!(Timestamp::from_micros(MAX_TIME).is_ok());
        assert_eq!(
            Timestamp::from_micros(MAX_TIME + 1),
            Err(TimeError(MAX_TIME + 1))
        );
        assert_eq!(Timestamp::MAX.checked_add(Micros(1)), None);
    }

    #[test]
    fn lengths_print_in_the_largest_unit_that_divides_them() {
        for (micros, text) in [
            (0, "0ms"),
            (1, "1us"),
            (1_500_000, "1500ms"),
            (2_000_000, "2s"),
            (86_400_000_000, "1d"),
        ] {
            assert_eq!(Micros(micros).to_string(), text);
        }
        assert_eq!(Wait::NEVER.to_string(), "never");
    }

    #[test]
    fn a_duration_rounds_up_to_a_microsecond() {
        assert_eq!(Micros::from_duration(Duration::from_nanos(1)), Micros(1));
        assert_eq!(Micros::from_duration(Duration::MAX), Micros(u64::MAX));
    }
}

//! How long callers would have had to wait, as a distribution.

use tidegate_core::Wait;

/// Waits by their length: in steps that double from one millisecond on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    steps: Vec<u64>,
    never: u64,
    longest: u64,
}

impl Waits {
    /// Adds a wait.
    pub fn add(&mut self, wait: Wait) {
        let Some(micros) = wait.as_micros() else {
            self.never += 1;
            return;
        };
        self.longest = self.longest.max(micros);
        // Step n holds what is at most 2^n ms: 1 ms, 2 ms, 4 ms and so on.
        let step = micros.div_ceil(1_000).max(1).next_power_of_two().ilog2() as usize;
        if self.steps.len() <= step {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
    }

    /// The longest wait that ends, in microseconds.
    #[must_use]
    pub const fn longest(&self) -> u64 {
        self.longest
    }

    /// How many would have waited in vain.
    #[must_use]
    pub const fn never(&self) -> u64 {
        self.never
    }

    /// How many waited up to so many microseconds, and longer than the step before.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = (0..).map(|step| 1_000_u64 << step);
        bounds.zip(self.steps.iter().copied())
    }

    /// The least bound of a step that this share of all waits, in thousandths, does not pass; none
    /// where nobody waited, or where it ends among those who wait in vain.
    #[must_use]
    pub fn at_most(&self, thousandths: u64) -> Option<u64> {
        let all = self.steps.iter().sum::<u64>() + self.never;
        let wanted = (all * thousandths).div_ceil(1_000).max(1);
        let mut seen = 0;
        self.steps()
            .find(|(_, count)| {
                seen += count;
                seen >= wanted
            })
            .map(|(bound, _)| bound.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_fall_into_steps_that_double() {
        let mut waits = Waits::default();
        for micros in [0, 1, 1_000, 1_001, 2_000, 2_001, 4_000, 4_001] {
            waits.add(Wait::micros(micros));
        }
        waits.add(Wait::NEVER);
        assert_eq!(
            waits.steps().collect::<Vec<_>>(),
            [(1_000, 3), (2_000, 2), (4_000, 2), (8_000, 1)]
        );
        assert_eq!((waits.longest(), waits.never()), (4_001, 1));
        assert_eq!(waits.at_most(500), Some(2_000));
        assert_eq!(waits.at_most(880), Some(4_001));
        assert_eq!(waits.at_most(1_000), None);
        assert_eq!(Waits::default().at_most(500), None);
    }
}

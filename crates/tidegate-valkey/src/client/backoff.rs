//! Waits that grow and are spread, so that clients which lost a server together do not come back
//! together.

use std::time::Duration;

/// Waits between tries of one thing.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Backoff {
    /// The first wait is up to `first`; each is up to twice the one before, and up to `last`.
    pub(crate) fn new(first: Duration, last: Duration) -> Self {
        Self {
            first,
            last,
            next: first,
        }
    }

    /// The next wait: between half of what it may be and all of it.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.last);
        whole.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// Begins anew after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_last_and_begin_anew() {
        let (first, last) = (Duration::from_millis(10), Duration::from_millis(50));
        let mut backoff = Backoff::new(first, last);
        for whole in [10, 20, 40, 50, 50] {
            let whole = Duration::from_millis(whole);
            let wait = backoff.next();
            assert!(whole / 2 <= wait && wait <= whole, "{wait:?} of {whole:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= first);
    }
}

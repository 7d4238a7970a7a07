//! What a key takes up in the memory store.
//!
//! The figures follow from the store's layout and are held to it by a test that counts what is
//! allocated.

use tidegate_core::Policy;

/// A slot of 24 bytes, in a table that is filled to a little more than half while it grows.
const SLOT: u64 = 40;

/// What a state that does not fit its slot takes besides its entries.
const STATE: u64 = 64;

/// An instant and what was charged at it.
const LOG_ENTRY: u64 = 16;

/// A lease with its id, weight, fencing token and times.
const LEASE: u64 = 48;

/// The bytes of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPerKey {
    /// Of a key that is hardly used.
    pub least: u64,
    /// Of a key that uses all it has, about.
    pub most: u64,
}

pub(super) fn per_key(policy: &Policy) -> MemoryPerKey {
    let entries = |count: u64| grown(count, LOG_ENTRY);
    let (least, most) = match policy {
        Policy::TokenBucket(_)
        | Policy::IntervalBucket(_)
        | Policy::LeakyBucket(_)
        | Policy::FixedWindow(_)
        | Policy::InterpolatedWindow(_) => (SLOT, SLOT),
        Policy::SlidingLog(log) => {
            let at_most = u64::from(log.max()).min(log.period().0);
            (SLOT, SLOT + STATE + entries(at_most))
        }
        Policy::StrictWindow(window) => {
            let cells = u64::from(window.cells()) + 1;
            (
                SLOT,
                SLOT + STATE + entries(cells.min(u64::from(window.max()))),
            )
        }
        Policy::Concurrency(concurrency) => {
            let leases = grown(u64::from(concurrency.permits()), LEASE);
            (SLOT + STATE + grown(1, LEASE), SLOT + STATE + leases)
        }
        Policy::Lockout(lockout) => {
            let settings = lockout.settings();
            // The failure that begins a ban clears the others.
            let failures = u64::from(settings.failures.saturating_sub(1));
            let cap = settings.long_cap.map_or(0, |(cap, _)| u64::from(cap));
            let state = SLOT + 2 * STATE;
            (
                state + entries(failures.min(1)) + entries(cap.min(1)),
                state + entries(failures) + entries(cap),
            )
        }
    };
    MemoryPerKey {
        least: least.min(most),
        most,
    }
}

/// The size of a list that doubles as it grows.
fn grown(count: u64, entry: u64) -> u64 {
    if count == 0 {
        0
    } else {
        count.max(4).next_power_of_two() * entry
    }
}

//! Holds the memory that `explain` promises per key to what is really allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::explain::explain;
use tidegate::{Demand, Key, LeaseId, Limiter, Operation, Policy, Timestamp};
use tidegate_config::{Purpose, parse};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: hands everything to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes per key in the table and outside of it, after `calls` calls of each of `keys`, a
/// millisecond apart. What an empty table takes is left out.
fn measured(policy: &Policy, keys: u64, calls: u64) -> (u64, u64) {
    let limiter = Limiter::builder(policy.clone()).hash_seed((1, 2)).build();
    let empty = limiter.stats().table_bytes;
    let before = ALLOCATED.load(Ordering::Relaxed);
    for key in 0..keys {
        let name = Key::new(key.to_le_bytes());
        for call in 0..calls {
            let now = Timestamp::from_micros(1_000_000_000 + call * 1_000).unwrap();
            let demand = match policy {
                Policy::Concurrency(_) => {
                    let lease = LeaseId(u128::from(key * 10_000 + call));
                    Demand::Acquire { lease, weight: 1 }
                }
                Policy::Lockout(_) => Demand::Attempt { seed: 0 },
                _ => Demand::Take { cost: 1 },
            };
            limiter.apply(&name, now, &Operation::Take(demand)).unwrap();
        }
    }
    let table = limiter.stats().table_bytes - empty;
    let outside = ALLOCATED.load(Ordering::Relaxed) - before - table;
    (table as u64 / keys, outside as u64 / keys)
}

#[test]
fn a_key_takes_about_what_is_promised() {
    for (algorithm, calls) in [
        ("token_bucket: { rate: 100/s, capacity: 200 }", 200),
        ("fixed_window: { limit: 100/1m }", 100),
        ("sliding_log: { limit: 3/10m }", 3),
        ("sliding_log: { limit: 100/1m }", 100),
        ("sliding_log: { limit: 1000/1h }", 1000),
        ("sliding_window: { limit: 100/50ms, cells: 50 }", 100),
        ("concurrency: { limit: 32, lease: 30s }", 32),
        ("lockout: { failures: 5/15m, ban: 15m }", 4),
        (
            "lockout: { failures: 50/15m, ban: 15m, long_cap: 50/1d }",
            49,
        ),
    ] {
        let text = format!("limits: {{ a: {{ algorithm: {{ {algorithm} }} }} }}");
        let checked = parse("test.yaml", &text, Purpose::Inspect).unwrap();
        let limit = &checked.config.limits[0];
        let promised = explain(limit, &[]).unwrap().memory;
        let policy = limit.policy(Timestamp::EPOCH).unwrap();
        let (table, one) = measured(&policy, 50_000, 1);
        let (_, all) = measured(&policy, 1_000, calls);
        let (one, all) = (table + one, table + all);
        println!("{algorithm}: promised {promised:?}, one call {one}, {calls} calls {all}");
        for (found, promised) in [(one, promised.least), (all, promised.most)] {
            assert!(
                found * 2 <= promised * 3,
                "{algorithm}: {found}, promised {promised}"
            );
            assert!(
                found * 3 >= promised * 2,
                "{algorithm}: {found}, promised {promised}"
            );
        }
    }
}

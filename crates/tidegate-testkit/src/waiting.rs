//! Waiting for what real servers do in their own time.

use std::time::{Duration, Instant};

/// Waits until something holds, looking every few milliseconds.
///
/// # Panics
///
/// If it does not hold `within` a time.
pub fn wait_until(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < within, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! The locks, atomics and thread handles of the waiting queues: the standard ones, or shuttle's in
//! the interleaving tests.

#[cfg(not(feature = "shuttle"))]
mod chosen {
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current, park};
}

#[cfg(feature = "shuttle")]
mod chosen {
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use shuttle::thread::{Thread, current, park};
}

pub(crate) use chosen::*;

/// Locks, also after a thread has panicked with the lock held: what these locks guard is never
/// left half-way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

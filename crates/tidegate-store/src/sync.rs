//! The atomics and locks of the concurrent parts: the standard ones, or shuttle's in the
//! interleaving tests.

#[cfg(not(feature = "shuttle"))]
mod chosen {
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// Waits a little for another thread's few instructions: by spinning at first, then by
    /// letting that thread have the processor, in case it was interrupted half-way.
    #[inline]
    pub(crate) fn pause(round: u32) {
        if round < 64 {
            std::hint::spin_loop()
        } else {
            std::thread::yield_now()
        }
    }
}

#[cfg(feature = "shuttle")]
mod chosen {
    pub(crate) use shuttle::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) fn pause(_round: u32) {
        shuttle::thread::yield_now();
    }
}

pub(crate) use chosen::*;

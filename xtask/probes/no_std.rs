//! A program for a machine without an operating system that decides by the engine.
//!
//! It does not build if the engine, or anything below it, needs the standard library: that brings a
//! panic handler of its own, and there can be only one.
#![no_std]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};

use tidegate_core::{Entry, Operation, Rate, Timestamp, TokenBucket, engine};

struct NoMemory;

// SAFETY: it never gives any memory out.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _pointer: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static MEMORY: NoMemory = NoMemory;

#[panic_handler]
fn stop(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Whether a call at `micros` passes.
pub fn passes(micros: u64) -> Option<bool> {
    let bucket = TokenBucket::new(Rate::per_second(10).ok()?, 20).ok()?;
    let now = Timestamp::from_micros(micros).ok()?;
    let mut entry = Entry::fresh(&bucket, now);
    let reply = engine::apply(&bucket, &mut entry, now, &Operation::take(1)).ok()?;
    Some(reply.decision()?.is_allowed())
}

//! What the documentation promises, tried from outside: random calls through the public interface
//! only, judged by naive counting that shares nothing with the engine.
//!
//! Each test prints its seed. `TIDEGATE_SEED` repeats one; the order in which threads run is not
//! part of it.

mod admitted;
mod changes;
mod exact;
mod leases;
mod snapshots;
mod support;
mod waiting;

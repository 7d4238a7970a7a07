//! Waiting for limits, leases and admissions, through the public interface.

mod admissions;
mod cases;
mod leases;
mod line;
mod random;
mod reference;
mod simulation;
mod threads;

//! Calls that wait their turn, and hosts that are heeded.

mod clients;
mod turns;

//! The scripts on real servers, at times that the tests choose.

mod differential;
mod engine;
mod live;
mod numbers;
mod store;
mod timelines;

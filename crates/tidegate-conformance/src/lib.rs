//! What every store of tidegate must do.
//!
//! [`model`] says what is right, slowly; [`generator`] makes up limits, calls and clocks that go
//! wrong; [`differential`] lets a store and the model answer the same calls and compares each
//! field of each answer. A store takes part by being a [`Subject`].

pub mod differential;
pub mod generator;
pub mod model;
pub mod subject;

pub use subject::{Joint, Memory, Subject};

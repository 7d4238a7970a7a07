//! The configuration of tidegate: what a document may say, whether it makes sense, and what is
//! probably not meant.
//!
//! A document is YAML. Its shape is , as serde structs that are also the JSON Schema.
mod algorithm;
mod calendar;
mod decode;
mod header;
mod node;
mod report;
mod scalar;
mod suggest;
pub mod text;

pub use algorithm::*;
pub use calendar::*;
pub use decode::Tried;
pub use header::{AlgorithmError, algorithm_from_json, algorithm_from_pairs};
pub use report::{Problem, Report, Severity, Span};
pub use scalar::{Count, Length, Period, Rate};

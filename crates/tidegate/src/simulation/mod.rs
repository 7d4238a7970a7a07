//! Limits in simulated time: real or written traffic is replayed, with no clock and no server.
//!
//! A [`Simulation`] holds limits, [`Traces`] reads calls from timelines, JSON, CSV and access
//! logs, [`Simulation::answer`] answers them, and [`output`] and [`Summary`] tell what came of
//! it. [`check`] runs a timeline as a test. The timeline format is described in [`timeline`].
//!
//! The one surprise: every key that a trace names is kept by number until the simulation ends, so
//! that a call is a few words; memory grows with the keys, never with the lines.

pub mod output;
pub mod timeline;

mod access_log;
mod aws_log;
mod call;
mod check;
mod csv;
mod fields;
mod format;
mod gateway_log;
mod jsonl;
mod keys;
mod lines;
mod play;
mod problem;
mod replay;
mod request;
mod routes;
mod sorter;
mod status;
mod suggest;
mod summary;
mod time;
mod trace;
mod waits;
mod what_if;

pub use call::{Action, Call, Change, LimitNumber, Reserve, Served, Settle, Target};
pub use check::{CheckError, check, differences, expects_no_answer};
pub use format::Format;
pub use keys::KeyNumber;
pub use problem::Problem;
pub use replay::{
    Answer, CallError, DuplicateLimit, LimitSettings, Scope, Simulation, VariantNumber,
};
pub use request::KeySource;
pub use routes::{FindRoute, Found, RouteLimit, Routes};
pub use sorter::Disorder;
pub use status::StatusSet;
pub use suggest::{Dial, KeyShare, Needs, SortedNeeds};
pub use summary::{Summary, Totals, aligned};
pub use time::parse_time;
pub use trace::{Tally, TraceError, TraceOptions, Traces};
pub use waits::Waits;
pub use what_if::{Alternative, AlternativeError, Verdicts, WhatIf};

//! Limits that hold over many processes: states kept in Valkey or Redis.
//!
//! Every decision is one script, run by the server in one step and on the server's clock, so that
//! any number of processes share a limit exactly and no process's clock matters.

mod client;
mod error;
mod script;

pub use client::{
    Client, ClientError, ClientOptions, ClientStats, Event, Notifications, UrlError, Wake,
};
pub use error::{Certainty, StoreError};
pub use script::Script;

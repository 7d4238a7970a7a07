//! Limits that hold over many processes: states kept in Valkey or Redis.
//!
//! Every decision is one script, run by the server in one step and on the server's clock, so that
//! any number of processes share a limit exactly and no process's clock matters.

mod acl;
mod client;
mod decode;
mod denied;
mod encode;
mod error;
mod failure;
mod header;
mod key;
mod limit;
mod script;
mod scripts;
mod shared;
mod store;

pub use client::{
    Client, ClientError, ClientOptions, ClientStats, Event, Notifications, UrlError, Wake,
};
pub use decode::{Answer, ReplyError, outcome_from, reply_from};
pub use encode::{Argument, JointCall, ScriptCall, SharedMember, call_for, joint_call_for};
pub use error::{Certainty, StoreError};
pub use failure::FailureMode;
pub use key::KeySpace;
pub use limit::LimitSpec;
pub use script::Script;
pub use shared::{SharedCall, SharedLimit, SharedStats, all_of};
pub use store::ValkeyStore;

#[cfg(test)]
mod tests;

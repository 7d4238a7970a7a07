//! Limits over HTTP requests, without a server: whose state a request counts against, what it
//! costs, and what its answer says.
//!
//! [`Rules`] are the limits of a request. They decide over a [`RequestHead`] as one
//! [`all_of`](crate::all_of()), with one reading of the clock: those in memory first, and those that
//! other processes share in one step more. [`Answers`] turn the
//! [`Ruling`] into response fields, a refusal that the client can read, or a gRPC status. The
//! tower layer and the gateway are both made of these parts, so a client cannot tell which of
//! them it talks to.

mod after;
mod answers;
mod client_address;
mod fields;
#[cfg(feature = "grpc")]
mod grpc;
mod head;
mod pending;
mod policy_field;
mod problem;
mod rule;
mod rule_limiter;
mod rules;
mod source;

pub use after::After;
pub use answers::{Answers, GrpcCode, Refusal};
pub use client_address::{AddressKey, Caller, ClientAddress};
pub use fields::{
    FieldDialect, Standing, quoted_name, retry_after_seconds, window_seconds, write_retry_after,
    write_standings,
};
#[cfg(feature = "axum")]
pub(crate) use head::PathParameters;
pub use head::{Peer, RequestHead, VerifiedClaims};
pub use ipnet::IpNet;
pub use problem::{BodyStyle, Problem};
pub use rule::{Missing, Rule, RuleError};
pub use rule_limiter::RuleLimiter;
pub use rules::{Rules, Ruling, Undecided};
pub use source::{KeySource, PartFault};
#[cfg(feature = "tower")]
pub(crate) use {pending::Pending, rules::Begun};

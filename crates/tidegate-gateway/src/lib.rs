//! The reverse proxy of tidegate.
#![forbid(unsafe_code)]

pub mod body;
pub mod canonical;
pub mod framing;
pub mod headers;
pub mod identity;
pub mod keys;
pub mod problem;
pub mod ratelimit_fields;
pub mod route;
pub mod wire;

//! The reverse proxy of tidegate: limits in front of mock routes and HTTP/1.1 upstreams.
//!
//! A request goes through the same steps in the same order: its framing is read strictly
//! ([`framing`], [`wire`]), its host and path are made canonical ([`host`], [`canonical`]), its
//! caller is found, its route ([`route`]), then all its limits decide at once, and
//! only then is it answered. The surprise: an `Upgrade` is not passed on yet, the request goes to
//! the upstream as a plain one.
#![forbid(unsafe_code)]

pub mod body;
pub mod canonical;
pub mod framing;
pub mod generation;
pub mod headers;
pub mod host;
pub mod keys;
pub mod limits;
pub mod metrics;
pub mod route;
pub mod tls;
pub mod transport;
pub mod trust;
pub mod upstream;
pub mod watch;
pub mod wire;

mod admin;
mod pools;
mod running;
mod server;
mod service;
mod stores;

pub use running::{Drained, ReloadError, Running, StartError};
pub use service::Gateway;

//! The decision service of tidegate: limits that other programs ask, over protocols that they
//! speak already.
//!
//! [`http`] is for programs that speak JSON, [`resp`] for Redis clients. Every protocol decides through [`served`], which holds the named
//! limits of the configuration in force; nothing else in this crate knows how a limit decides.
#![forbid(unsafe_code)]

mod accept;
mod http;
mod metrics;
mod resp;
mod running;
mod served;

pub use running::{Service, StartError};

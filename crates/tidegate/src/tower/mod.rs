//! Limits as layers for any tower service over HTTP.
//!
//! [`RateLimitLayer`] decides over the head of a request and answers a refused one itself, exactly
//! as the gateway does. [`ConcurrencyLayer`] bounds how many are at work at once, each to the end
//! of its answer's body.

mod body;
mod concurrency;
mod known;
mod peer;
mod permit;
mod rate_limit;

pub use body::ResponseBody;
pub use concurrency::{ConcurrencyFuture, ConcurrencyLayer, ConcurrencyLimit};
pub use permit::{PermitBody, RequestPermit};
pub use rate_limit::{RateLimit, RateLimitFuture, RateLimitLayer};

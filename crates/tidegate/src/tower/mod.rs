//! Limits as layers for any tower service over HTTP.
//!
//! [`RateLimitLayer`] decides over the head of a request and answers a refused one itself, exactly
//! as the gateway does.

mod body;
mod peer;
mod rate_limit;

pub use body::ResponseBody;
pub use rate_limit::{RateLimit, RateLimitFuture, RateLimitLayer};

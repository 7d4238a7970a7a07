//! Limits on the calls that a program makes: a layer for HTTP clients.
//!
//! [`OutboundLayer`] keeps two promises to every host that is called. It never sends more than the
//! local limit allows, and it does what the host itself asks for: after a 429 or 503 that names a
//! time, or an answer that says nothing is left, the host is not called before that time. Calls
//! wait their turn, up to a time of the caller's choosing. Nothing is sent twice: whether a call
//! may be repeated is for the caller to know.

mod advice;
mod call;
mod layer;
mod waiting;

pub use call::{Answer, Call, Origin};
pub use layer::{Outbound, OutboundFuture, OutboundLayer};
pub use waiting::OutboundError;

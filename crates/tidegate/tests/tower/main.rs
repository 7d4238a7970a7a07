//! The layers in front of real services.

mod concurrency;
mod grpc;
mod keys;
mod settling;
mod support;
mod telling;
mod wire;

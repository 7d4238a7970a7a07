//! Real servers for tests: each is started on free ports of 127.0.0.1 in a directory of its own and
//! ended by its process id.
//!
//! ```no_run
//! use tidegate_testkit::{Flavor, Server};
//!
//! let server = Server::start(Flavor::Valkey9);
//! let mut connection = server.connection();
//! let pong: String = redis::cmd("PING").query(&mut connection).unwrap();
//! assert_eq!(pong, "PONG");
//! ```
//!
//! What is started here ends when its value is dropped, and also when the test's process is killed.
//! Everything panics with a message that says what to do, for a test has no other use for an error.

mod binaries;
mod certificates;
mod cluster;
mod places;
mod process;
mod relay;
mod sentinels;
mod server;
mod waiting;

pub use binaries::Flavor;
pub use certificates::Certificates;
pub use cluster::Cluster;
pub use relay::Relay;
pub use sentinels::SentinelSet;
pub use server::{Server, ServerOptions};
pub use waiting::wait_until;

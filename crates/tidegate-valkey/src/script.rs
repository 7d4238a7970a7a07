//! Scripts: their text and the digest that the server knows them by.

/// A script that runs on the server.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// What it is called in messages and metrics.
    pub name: &'static str,
    /// Its text, as it is sent.
    pub source: &'static str,
}

//! Scripts: their text and the digest that the server knows them by.

use std::fmt;
use std::sync::OnceLock;

/// A script that runs on the server.
///
/// ```
/// use tidegate_valkey::Script;
///
/// static COUNT: Script = Script::new("count", "return redis.call('INCR', KEYS[1])");
/// assert_eq!(COUNT.sha1(), "61636018f4e6b5817b89791bbed242f93fa089e3");
/// ```
pub struct Script {
    /// What it is called in messages and metrics.
    pub name: &'static str,
    /// Its text, as it is sent.
    pub source: &'static str,
    sha1: OnceLock<String>,
}

impl Script {
    /// Takes a script's name and text.
    #[must_use]
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self {
            name,
            source,
            sha1: OnceLock::new(),
        }
    }

    /// The digest that `EVALSHA` takes, in hexadecimal. Computed once.
    #[must_use]
    pub fn sha1(&self) -> &str {
        self.sha1
            .get_or_init(|| sha1_smol::Sha1::from(self.source).hexdigest())
    }
}

/// The text is left out: it is long and says nothing that the name does not.
impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

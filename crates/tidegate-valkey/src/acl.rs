//! What a server's user must be allowed to do: no more than this.

use crate::client::Layout;
use crate::{ClientOptions, KeySpace};

/// What decisions, and waiting for permits, need on every server.
const COMMANDS: &str = "+ping +evalsha +script|load +time +get +getrange +set +setrange +del \
                        +pexpire +persist +publish +subscribe +unsubscribe";

/// The same where no scripts are allowed.
const WITHOUT_SCRIPTS: &str = "+ping +time +get +mget +set +watch +unwatch +multi +exec +publish \
                               +subscribe +unsubscribe";

impl ClientOptions {
    /// The rules of a user that can do what this crate does, and nothing else: no other keys, no
    /// other channels, no configuration, no listing of keys.
    ///
    /// They stand between the name and the password in `ACL SETUSER NAME on >PASSWORD RULES`.
    /// Sentinels have users of their own, who need `+ping +sentinel|get-master-addr-by-name`.
    ///
    /// ```
    /// use tidegate_valkey::{ClientOptions, KeySpace};
    ///
    /// let options = ClientOptions::from_url("redis://localhost")?;
    /// let rules = options.acl_rules(&KeySpace::default());
    /// assert!(rules.starts_with("resetkeys ~tg1:* resetchannels &tg1:* -@all +ping +evalsha "));
    /// # Ok::<_, tidegate_valkey::UrlError>(())
    /// ```
    #[must_use]
    pub fn acl_rules(&self, space: &KeySpace) -> String {
        self.rules(space, COMMANDS)
    }

    /// As [`acl_rules`](Self::acl_rules), for a store that decides by
    /// [`Atomicity::CompareAndSwap`](crate::Atomicity::CompareAndSwap): its user may run no script.
    #[must_use]
    pub fn acl_rules_without_scripts(&self, space: &KeySpace) -> String {
        self.rules(space, WITHOUT_SCRIPTS)
    }

    fn rules(&self, space: &KeySpace, commands: &str) -> String {
        let prefix = space.prefix();
        let mut rules = format!("resetkeys ~{prefix}:* resetchannels &{prefix}:* -@all {commands}");
        if matches!(self.place.layout, Layout::Cluster(_)) {
            rules.push_str(" +cluster|slots +asking");
        }
        if self.place.database != 0 {
            rules.push_str(" +select");
        }
        rules
    }
}

//! Why a store gave no decision.

use std::time::Duration;

use tidegate_core::OperationError;

use crate::ReplyError;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why the shared store gave no decision.
///
/// The variants tell what may have happened to the state, because failing open or closed hangs on
/// it: [`was_counted`](Self::was_counted). No message contains a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The call was sent and no answer came in time.
    #[error("no answer from {server} within {deadline:?}")]
    Timeout {
        /// Which server, as it was configured or found.
        server: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// The connection broke after the call was handed to it.
    #[error("the connection to {server} broke before its answer")]
    Broken {
        /// Which server, as it was configured or found.
        server: String,
        /// What the connection said.
        #[source]
        source: Source,
    },
    /// There was no connection to send the call on.
    #[error("cannot reach {server}")]
    Unreachable {
        /// Which server, as it was configured or found.
        server: String,
        /// What the system said.
        #[source]
        source: Source,
    },
    /// The last calls to this server failed, so this one was not tried: the breaker is open.
    #[error("{server} failed several calls in succession and is not asked until it answers again")]
    BreakerOpen {
        /// Which server, as it was configured or found.
        server: String,
    },
    /// The server cannot run scripts at the moment: it loads its data, runs a slow script, has
    /// lost its primary, or its cluster is down or moving the key. Tried until the deadline.
    #[error("{server} cannot decide at the moment: {message}")]
    Unavailable {
        /// Which server, as it was configured or found.
        server: String,
        /// The server's words.
        message: String,
    },
    /// The server's memory is full and nothing may be evicted.
    #[error(
        "the memory of {server} is full; raise its maxmemory, or give states a server of their own: {message}"
    )]
    OutOfMemory {
        /// Which server, as it was configured or found.
        server: String,
        /// The server's words.
        message: String,
    },
    /// The server's user may not do what a decision needs.
    #[error("the user at {server} lacks a permission, grant it with ACL SETUSER: {message}")]
    NoPermission {
        /// Which server, as it was configured or found.
        server: String,
        /// The server's words, which name the command, key or channel.
        message: String,
        /// Whether the script itself was refused, and not a command within it.
        before_start: bool,
    },
    /// The server does not accept the user name or the password.
    #[error("{server} refuses the user name or the password: {message}")]
    Authentication {
        /// Which server, as it was configured or found.
        server: String,
        /// The server's words.
        message: String,
    },
    /// The server is not of the kind that the configuration says.
    #[error("{server} cannot keep states: {message}")]
    Unsupported {
        /// Which server, as it was configured or found.
        server: String,
        /// What is wrong and what to write instead.
        message: String,
    },
    /// Without scripts: others wrote the key each time between its being read and written.
    #[error(
        "others changed the key at {server} {attempts} times before it could be written; take tokens in \
         batches, allow scripts, or give calls a longer deadline"
    )]
    Contended {
        /// Which server, as it was configured.
        server: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// Without scripts: what is kept under the key is nothing that this version writes.
    #[error("{server} has a value under the key that is none of this version's; remove the key")]
    Unreadable {
        /// Which server, as it was configured.
        server: String,
    },
    /// The operation has no meaning on the limit's algorithm, or its numbers are out of range.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The script's reply is none of this version's.
    #[error("{server} answered what no script of this version answers")]
    Reply {
        /// Which server, as it was configured.
        server: String,
        /// What came.
        #[source]
        source: ReplyError,
    },
    /// A script ended with an error.
    #[error("script {script} failed at {server}: {message}")]
    Server {
        /// Which server, as it was configured or found.
        server: String,
        /// Which script.
        script: &'static str,
        /// The server's words.
        message: String,
    },
}

/// What is known about the state after a call that gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The call was not counted: another try counts it once.
    NotCounted,
    /// The call may have been counted: another try may count it twice.
    Unknown,
}

impl StoreError {
    /// Whether the call may have been counted although no decision came.
    #[must_use]
    pub const fn was_counted(&self) -> Certainty {
        match self {
            Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::Server { .. }
            | Self::Reply { .. }
            | Self::NoPermission {
                before_start: false,
                ..
            } => Certainty::Unknown,
            Self::Unreachable { .. }
            | Self::BreakerOpen { .. }
            | Self::Unavailable { .. }
            | Self::OutOfMemory { .. }
            | Self::NoPermission { .. }
            | Self::Authentication { .. }
            | Self::Unsupported { .. }
            | Self::Contended { .. }
            | Self::Unreadable { .. }
            | Self::Operation(_) => Certainty::NotCounted,
        }
    }

    /// Whether the error says that the server is not well, rather than that the call is wrong.
    pub(crate) const fn blames_server(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. }
                | Self::Broken { .. }
                | Self::Unreachable { .. }
                | Self::BreakerOpen { .. }
        )
    }

    /// A word for the kind of error, as a label of metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            Self::Broken { .. } => "broken",
            Self::Unreachable { .. } => "unreachable",
            Self::BreakerOpen { .. } => "breaker_open",
            Self::Unavailable { .. } => "unavailable",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::NoPermission { .. } => "no_permission",
            Self::Authentication { .. } => "authentication",
            Self::Unsupported { .. } => "unsupported",
            Self::Contended { .. } => "contended",
            Self::Unreadable { .. } => "unreadable",
            Self::Operation(_) => "operation",
            Self::Reply { .. } => "reply",
            Self::Server { .. } => "server",
        }
    }
}

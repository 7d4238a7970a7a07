//! What servers' errors mean for a call.

use redis::{ServerError, ServerErrorKind};

use super::address::Address;
use crate::StoreError;

/// A server did not run a script, and says so: nothing was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It does not know the script.
    NoScript,
    /// The key is another server's.
    Moved(Address),
    /// The key is on its way to another server, which has to be told so.
    Ask(Address),
    /// It is no primary.
    ReadOnly(String),
    /// It cannot decide about these keys at this moment: they are on their way.
    Moving(String),
    /// It cannot decide anything at this moment.
    Later(String),
}

impl Refusal {
    /// Reads an error that promises that nothing was done.
    pub(crate) fn of(error: &ServerError) -> Option<Self> {
        let text = || words(error);
        match (error.kind(), error.code()) {
            (Some(ServerErrorKind::NoScript), _) => Some(Self::NoScript),
            (Some(ServerErrorKind::Moved), _) => Some(redirection(error).map_or_else(|| Self::Later(text()), Self::Moved)),
            (Some(ServerErrorKind::Ask), _) => Some(redirection(error).map_or_else(|| Self::Later(text()), Self::Ask)),
            (Some(ServerErrorKind::ReadOnly), _) => Some(Self::ReadOnly(text())),
            (Some(ServerErrorKind::TryAgain), _) => Some(Self::Moving(text())),
            (
                Some(
                    ServerErrorKind::ClusterDown
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown,
                ),
                _,
            )
            // A slow script runs; the disk is full; too few replicas are in step.
            | (_, "BUSY" | "MISCONF" | "NOREPLICAS") => Some(Self::Later(text())),
            _ => None,
        }
    }

    /// With the server's own host where it named none.
    pub(crate) fn seen_from(self, server: &Address) -> Self {
        match self {
            Self::Moved(address) => Self::Moved(address.seen_from(server)),
            Self::Ask(address) => Self::Ask(address.seen_from(server)),
            other => other,
        }
    }

    /// The server's words, for the error of a call that ran out of time.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::NoScript => "it forgets the script again and again".into(),
            Self::Moved(address) | Self::Ask(address) => format!("it sends calls on to {address}"),
            Self::ReadOnly(message) | Self::Moving(message) | Self::Later(message) => {
                message.clone()
            }
        }
    }

    /// Whether the server is not well, rather than the wrong one to ask.
    pub(crate) const fn blames_server(&self) -> bool {
        matches!(self, Self::ReadOnly(_) | Self::Later(_))
    }
}

/// `SLOT HOST:PORT`.
fn redirection(error: &ServerError) -> Option<Address> {
    let (_slot, address) = error.details()?.split_once(' ')?;
    Address::from_redirection(address.trim())
}

/// What a call is told of an error that another try does not mend.
pub(crate) fn final_error(server: String, script: &'static str, error: &ServerError) -> StoreError {
    let message = words(error);
    match error.code() {
        "OOM" => StoreError::OutOfMemory { server, message },
        "NOPERM" => StoreError::NoPermission {
            server,
            message,
            before_start: true,
        },
        "NOAUTH" | "WRONGPASS" => StoreError::Authentication { server, message },
        // What a script's own command is refused with, since Redis 7 and before.
        _ if message.contains("ACL failure in script")
            || message.contains("user executing the script") =>
        {
            StoreError::NoPermission {
                server,
                message,
                before_start: false,
            }
        }
        _ if message.contains("unknown command") => StoreError::Unsupported { server, message },
        _ => StoreError::Server {
            server,
            script,
            message,
        },
    }
}

/// The error as the server wrote it.
fn words(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

//! Making connections, and making sure that what answers can keep states.

use std::fmt;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo as _, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisError, Value,
};

use super::address::{Address, Credentials};
use super::options::ClientOptions;
use crate::StoreError;

/// How many calls may wait within the connection for their bytes to be taken.
const QUEUE: usize = 1024;

/// Bytes that are gathered before they are written, where calls come faster than that.
const WRITE_BUFFER: usize = 64 * 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Connect(#[source] RedisError),
    #[error("{0}")]
    Authentication(String),
    #[error("it is a replica, and decisions need the primary")]
    Replica,
    #[error("{0}")]
    Unsupported(String),
}

impl DialError {
    pub(crate) fn timed_out() -> Self {
        Self::Connect(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    }

    /// What a call that needed the connection is told.
    pub(crate) fn to_store_error(&self, server: String) -> StoreError {
        match self {
            Self::Authentication(message) => StoreError::Authentication {
                server,
                message: message.clone(),
            },
            Self::Unsupported(message) => StoreError::Unsupported {
                server,
                message: message.clone(),
            },
            Self::Connect(error) => StoreError::Unreachable {
                server,
                source: Box::new(error.clone()),
            },
            Self::Replica => StoreError::Unreachable {
                server,
                source: Box::new(Self::Replica),
            },
        }
    }
}

/// What a server has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A primary that stands alone, or with replicas.
    Primary,
    /// A primary of a cluster.
    ClusterPrimary,
    /// Any node of a cluster.
    ClusterNode,
    /// A sentinel.
    Sentinel,
}

/// What connections are made to, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    address: Address,
    client: redis::Client,
    expect: Expect,
    connect_timeout: std::time::Duration,
}

impl Dialer {
    /// Prepares connections to a server that keeps states.
    ///
    /// # Errors
    /// If a certificate or a key cannot be read.
    pub(crate) fn new(
        address: Address,
        expect: Expect,
        options: &ClientOptions,
    ) -> Result<Self, RedisError> {
        let sentinel = expect == Expect::Sentinel;
        let credentials = if sentinel {
            options.sentinel_credentials.as_ref()
        } else {
            options.place.credentials.as_ref()
        };
        let database = if sentinel { 0 } else { options.place.database };
        let info = ("", 0)
            .into_connection_info()?
            .set_addr(connection_address(&address, options.place.tls))
            .set_redis_settings(handshake(credentials, database));
        let client = if options.place.tls {
            // Another provider that the program chose is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
            redis::Client::build_with_tls(info, options.certificates.clone())?
        } else {
            redis::Client::open(info)?
        };
        Ok(Self {
            address,
            client,
            expect,
            connect_timeout: options.connect_timeout,
        })
    }

    /// Connects, and makes sure that the server is of the right kind. `pushed` is given everything
    /// that comes unasked, and the end of the connection.
    pub(crate) async fn dial<F>(&self, pushed: F) -> Result<MultiplexedConnection, DialError>
    where
        F: Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static,
    {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            // Every call has its own deadline.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_write_backpressure_boundary(WRITE_BUFFER)
            .set_push_sender(pushed);
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(refusal)?;
        let check = self.check(&mut connection);
        tokio::time::timeout(self.connect_timeout, check)
            .await
            .map_err(|_| DialError::timed_out())??;
        Ok(connection)
    }

    /// Asks a server what it is. `HELLO` needs no permission, and is answered while data is loaded.
    pub(crate) async fn check(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), DialError> {
        let reply = connection
            .send_packed_command(&redis::cmd("HELLO"))
            .await
            .and_then(Value::extract_error)
            .map_err(refusal)?;
        let replica = matches!(field(&reply, "role"), Some(b"replica" | b"slave"));
        let wrong = match (field(&reply, "mode"), self.expect) {
            (Some(b"sentinel"), Expect::Sentinel) | (Some(b"cluster"), Expect::ClusterNode) => {
                return Ok(());
            }
            (Some(b"cluster"), Expect::ClusterPrimary) | (Some(b"standalone"), Expect::Primary) => {
                return if replica {
                    Err(DialError::Replica)
                } else {
                    Ok(())
                };
            }
            (Some(b"sentinel"), _) => "it is a sentinel; use redis+sentinel://HOST:PORT/NAME",
            (_, Expect::Sentinel) => "it is no sentinel; use redis:// or redis+cluster://",
            (Some(b"cluster"), _) => "it is a node of a cluster; use redis+cluster://",
            _ => "it is no node of a cluster; use redis:// without cluster",
        };
        Err(DialError::Unsupported(wrong.into()))
    }

    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }
}

impl fmt::Display for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

fn connection_address(address: &Address, tls: bool) -> ConnectionAddr {
    match address {
        Address::Tcp(host, port) if tls => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
    }
}

fn handshake(credentials: Option<&Credentials>, database: u32) -> RedisConnectionInfo {
    let mut handshake = RedisConnectionInfo::default()
        // Version 3 tells at once when a connection ends, and carries messages beside replies.
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(database.into())
        // It needs a permission of its own and serves nobody here.
        .set_skip_set_lib_name();
    if let Some(credentials) = credentials {
        handshake = handshake.set_password(&credentials.password);
        if let Some(user) = &credentials.user {
            handshake = handshake.set_username(user);
        }
    }
    handshake
}

fn refusal(error: RedisError) -> DialError {
    let refused = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"));
    if refused {
        DialError::Authentication(error.to_string())
    } else if error.kind() == ErrorKind::RESP3NotSupported {
        DialError::Unsupported("it speaks no RESP3; use Valkey, or Redis 6.2 or later".into())
    } else {
        DialError::Connect(error)
    }
}

fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a [u8]> {
    let Value::Map(fields) = reply else {
        return None;
    };
    fields
        .iter()
        .find(|(key, _)| bytes(key) == Some(name.as_bytes()))
        .and_then(|(_, value)| bytes(value))
}

/// The bytes of a string, in whichever form it was sent.
pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

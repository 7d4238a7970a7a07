//! What a client is told: where servers are, how long it waits, when it gives up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::address::{Credentials, Place, UrlError};
use super::metrics::Event;

/// How to reach the servers and how long to wait for them.
///
/// `Debug` shows no password and no key.
#[derive(Clone)]
pub struct ClientOptions {
    pub(crate) place: Place,
    pub(crate) sentinel_credentials: Option<Credentials>,
    pub(crate) certificates: redis::TlsCertificates,
    pub(crate) connections: usize,
    pub(crate) deadline: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) failures: u32,
    pub(crate) observer: Option<Observer>,
}

pub(crate) type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

impl ClientOptions {
    /// Reads a URL; everything else has its default.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one server |
    /// | `redis+unix:///PATH[?db=0&user=USER&password=PASSWORD]` | one server on a unix socket |
    /// | `redis+cluster://HOST:PORT,HOST:PORT` | a cluster: any of its nodes |
    /// | `redis+sentinel://HOST:PORT,HOST:PORT/NAME[/DB]` | the primary that sentinels know as `NAME` |
    ///
    /// `rediss` instead of `redis` uses TLS, and `valkey` means the same as `redis`. `%XX` in a name or
    /// password is decoded.
    ///
    /// # Errors
    /// If the URL names no store.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_valkey::ClientOptions;
    ///
    /// let options = ClientOptions::from_url("redis+cluster://10.0.0.1:7000,10.0.0.2:7000")?
    ///     .deadline(Duration::from_millis(10));
    /// # Ok::<_, tidegate_valkey::UrlError>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        Ok(Self {
            place: Place::parse(url)?,
            sentinel_credentials: None,
            certificates: redis::TlsCertificates {
                client_tls: None,
                root_cert: None,
            },
            connections: 2,
            deadline: Duration::from_millis(20),
            connect_timeout: Duration::from_millis(500),
            failures: 5,
            observer: None,
        })
    }

    /// The user and the password, instead of the URL's. Without a user the server's default user.
    #[must_use]
    pub fn credentials(mut self, user: Option<&str>, password: &str) -> Self {
        self.place.credentials = Some(Credentials {
            user: user.map(str::to_owned),
            password: password.to_owned(),
        });
        self
    }

    /// The user and the password for sentinels, which have their own. Default: none.
    #[must_use]
    pub fn sentinel_credentials(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_credentials = Some(Credentials {
            user: user.map(str::to_owned),
            password: password.to_owned(),
        });
        self
    }

    /// The authorities, as PEM, that sign the servers' certificates. Default: those that the system
    /// trusts.
    #[must_use]
    pub fn certificate_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(pem.into());
        self
    }

    /// A certificate and its key, as PEM, that the servers want to see. Default: none.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client_tls = Some(redis::ClientTlsConfig {
            client_cert: certificate.into(),
            client_key: key.into(),
        });
        self
    }

    /// How many connections to each server share the calls; at least one. Default: 2.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a call may take, with everything: waiting for its turn, redirections, loading the
    /// script. Timers tick in milliseconds. Default: 20 ms.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long one attempt to connect may take, with TLS and the password. Default: 500 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// After how many failed calls in succession a server is no longer asked until it answers
    /// again; at least one. Default: 5.
    #[must_use]
    pub fn failures_until_open(mut self, failures: u32) -> Self {
        self.failures = failures.max(1);
        self
    }

    /// Calls `observer` at every change that an operator wants to read of. It runs within the
    /// client's work and must not block.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("place", &self.place)
            .field("connections", &self.connections)
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

//! The pools of connections to upstreams: one for each way to speak to them.
//!
//! A reload hands a pool over to the next configuration as long as nothing about the way changes,
//! so that connections outlive it.

use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tidegate_config::model::Proxy;

use crate::body::RequestBody;
use crate::tls::TlsError;
use crate::trust::Trust;

/// How long a pooled connection may be idle: below what most servers allow, so that a request
/// seldom meets one that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(55);

/// Idle connections that are kept for each upstream.
const POOL_SIZE: usize = 256;

/// The largest head of an answer.
const MAX_HEAD: usize = 64 * 1024;

/// What is on its way of one answer over HTTP/2 before the client must have taken it.
const WINDOW: u32 = 1024 * 1024;

pub(crate) type Pool = legacy::Client<HttpsConnector<HttpConnector>, RequestBody>;

/// A way to speak to upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    connect: Duration,
    /// None without TLS.
    trust: Option<Trust>,
    http2: bool,
}

impl Way {
    fn to(proxy: &Proxy, connect: Duration) -> Result<Self, TlsError> {
        let trust = match (&proxy.ca, proxy.tls) {
            (_, false) => None,
            (None, true) => Some(Trust::System),
            (Some(file), true) => Some(Trust::read(&file.path)?),
        };
        Ok(Self {
            connect,
            trust,
            http2: proxy.http2,
        })
    }

    fn open(&self) -> Result<Pool, TlsError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.connect));
        connector.set_keepalive(Some(Duration::from_secs(60)));
        connector.enforce_http(false);
        let config = match &self.trust {
            Some(trust) => trust.client_config()?,
            // Never shakes hands: nobody is believed.
            None => Trust::nobody()?,
        };
        let builder = HttpsConnectorBuilder::new().with_tls_config(config);
        let builder = builder.https_or_http();
        let connector = if self.http2 {
            builder.enable_all_versions().wrap_connector(connector)
        } else {
            builder.enable_http1().wrap_connector(connector)
        };
        Ok(legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_SIZE)
            .http1_max_buf_size(MAX_HEAD)
            .timer(TokioTimer::new())
            .http2_max_header_list_size(MAX_HEAD as u32)
            .http2_initial_stream_window_size(WINDOW)
            .http2_initial_connection_window_size(4 * WINDOW)
            // Over TLS the handshake settles the version.
            .http2_only(self.http2 && self.trust.is_none())
            .set_host(false)
            .build(connector))
    }
}

/// All ways that a configuration needs.
#[derive(Debug, Default)]
pub(crate) struct Pools(Vec<(Way, Pool)>);

impl Pools {
    /// The pool of an upstream: one that is there already or was there before, else a new one.
    ///
    /// # Errors
    /// A file of authorities that cannot be used, or a system without any.
    pub(crate) fn pool(
        &mut self,
        proxy: &Proxy,
        connect: Duration,
        before: Option<&Self>,
    ) -> Result<Pool, TlsError> {
        let way = Way::to(proxy, connect)?;
        if let Some((_, pool)) = self.0.iter().find(|(known, _)| *known == way) {
            return Ok(pool.clone());
        }
        let known = before.and_then(|before| before.0.iter().find(|(known, _)| *known == way));
        let pool = match known {
            Some((_, pool)) => pool.clone(),
            None => way.open()?,
        };
        self.0.push((way, pool.clone()));
        Ok(pool)
    }
}

//! A gateway that runs: opened, reloaded, drained.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::http::RuleLimiter;
use tidegate::{Clock, NamedLimit, SystemClock};
use tidegate_config::Config;
use tidegate_config::model;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::generation::{BuildError, Generation};
use crate::metrics::{Metrics, ReloadLabels, ReloadResult};
use crate::service::Gateway;
use crate::tls::{self, Certificates, TlsError};
use crate::{admin, server, stores};

/// Between two steps of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// Between two looks at the files of certificates. A change counts at the second look.
const CERTIFICATES: Duration = Duration::from_millis(500);

/// Slots of a limit's table that one step looks at.
const HOUSEKEEPING_SLOTS: usize = 4096;

/// Why a gateway cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be put in force.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The certificates cannot be used.
    #[error("cannot speak TLS")]
    Tls(#[from] TlsError),
    /// The address is taken, or may not be used.
    #[error("cannot listen on {0}; choose another address, or stop what listens there")]
    Listen(SocketAddr, #[source] io::Error),
}

/// Why a gateway stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration cannot be put in force.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The certificates cannot be used.
    #[error("cannot speak TLS")]
    Tls(#[from] TlsError),
}

/// A gateway that runs.
#[derive(Debug)]
pub struct Running {
    gateway: Arc<Gateway>,
    settings: model::Gateway,
    wanted_admin: Option<SocketAddr>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    certificates: Option<Arc<Certificates>>,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<JoinSet<()>>,
    beside: JoinSet<()>,
}

/// What a drain left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were cut off when the time was up.
    pub cancelled: usize,
}

impl Running {
    /// Opens the listeners and begins to serve.
    ///
    /// # Errors
    /// A configuration that cannot be put in force, or an address that cannot be had.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new());
        let clock = SystemClock::new();
        let generation = Generation::draft(config, &metrics, None, clock.now())?.generation;
        stores::greet(generation.stores()).await;
        let settings = config.gateway.clone().ok_or(BuildError::NoGateway)?;
        let certificates = match &settings.tls {
            Some(files) => Some(Arc::new(Certificates::new(tls::load(files)?))),
            None => None,
        };
        let listener = server::listen(settings.listen)
            .map_err(|error| StartError::Listen(settings.listen, error))?;
        let address = listener
            .local_addr()
            .map_err(|error| StartError::Listen(settings.listen, error))?;
        let gateway = Arc::new(Gateway::new(generation, metrics, clock));
        let (stop, stopping) = watch::channel(false);
        let mut beside = JoinSet::new();
        let mut admin = None;
        if let Some(wanted) = config.admin {
            let failed = |error| StartError::Listen(wanted, error);
            let listener = server::listen(wanted).map_err(failed)?;
            admin = Some(listener.local_addr().map_err(failed)?);
            beside.spawn(admin::serve(
                listener,
                Arc::clone(&gateway),
                stopping.clone(),
            ));
        }
        beside.spawn(keep_house(Arc::clone(&gateway)));
        if let Some(certificates) = &certificates {
            beside.spawn(watch_certificates(Arc::clone(certificates)));
        }
        let accepting = tokio::spawn(server::accept(
            listener,
            Arc::clone(&gateway),
            certificates.clone(),
            usize::try_from(settings.max_connections).unwrap_or(usize::MAX),
            stopping,
        ));
        Ok(Self {
            gateway,
            settings,
            wanted_admin: config.admin,
            address,
            admin,
            certificates,
            stop,
            accepting,
            beside,
        })
    }

    /// Where clients connect: the real port where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether clients connect by TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.certificates.is_some()
    }

    /// Where operators connect, if they do.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// The gateway itself, which lives on while it drains.
    #[must_use]
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// The metrics of the process.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.gateway.metrics
    }

    /// The limits of routes that count in memory, for other doors of the process to spend as well.
    #[must_use]
    pub fn named_limits(&self) -> Vec<NamedLimit> {
        let generation = self.gateway.current.load_full();
        let limits = generation.limits().iter();
        let named = limits.filter_map(|limit| match limit.limiter() {
            RuleLimiter::Memory(limiter) => {
                Some(NamedLimit::new(limit.config().clone(), limiter.clone()))
            }
            _ => None,
        });
        named.collect()
    }

    /// What writes the metrics, for as long as anybody wants to read them.
    pub fn metrics_page(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let gateway = Arc::clone(&self.gateway);
        move || admin::metrics_page(&gateway)
    }

    /// Requests whose answer is not complete.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.gateway.in_flight()
    }

    /// Puts another configuration in force in one step. No connection is dropped, and no counter
    /// of a limit that stays.
    ///
    /// What only a restart can change is named in the answer and stays as it was.
    ///
    /// # Errors
    /// A configuration that cannot be put in force: the one before stays.
    pub fn reload(&mut self, config: &Config) -> Result<Vec<&'static str>, ReloadError> {
        let before = self.gateway.current.load_full();
        let now = self.gateway.clock.now();
        let drafted = Generation::draft(config, &self.gateway.metrics, Some(&before), now);
        let (mut draft, settings) = match (drafted, &config.gateway) {
            (Ok(draft), Some(settings)) => (draft, settings.clone()),
            (drafted, _) => {
                self.count_reload(ReloadResult::Refused);
                return Err(drafted.err().unwrap_or(BuildError::NoGateway).into());
            }
        };
        let mut fixed = Vec::new();
        match (&self.certificates, &settings.tls) {
            (Some(certificates), Some(files)) => match tls::load(files) {
                Ok(loaded) => certificates.replace(loaded),
                Err(error) => {
                    self.count_reload(ReloadResult::Refused);
                    return Err(error.into());
                }
            },
            (None, None) => {}
            _ => fixed.push("gateway.tls"),
        }
        draft.apply_changes();
        self.gateway.current.store(Arc::new(draft.generation));
        self.count_reload(ReloadResult::Applied);
        if settings.listen != self.settings.listen {
            fixed.push("gateway.listen");
        }
        if config.admin != self.wanted_admin {
            fixed.push("admin.listen");
        }
        if settings.max_connections != self.settings.max_connections {
            fixed.push("gateway.max_connections");
        }
        let (listen, max_connections) = (self.settings.listen, self.settings.max_connections);
        self.settings = model::Gateway {
            listen,
            max_connections,
            ..settings
        };
        Ok(fixed)
    }

    /// Counts a reload that failed because the file gave no configuration.
    pub fn count_refused_reload(&self) {
        self.count_reload(ReloadResult::Refused);
    }

    fn count_reload(&self, result: ReloadResult) {
        self.gateway
            .metrics
            .reloads
            .get_or_create(&ReloadLabels { result })
            .inc();
    }

    /// Stops accepting, lets requests in flight finish within the drain time-out, then ends.
    pub async fn drain(mut self) -> Drained {
        let patience = self.settings.timeouts.drain;
        let _ = self.stop.send(true);
        let mut connections = match self.accepting.await {
            Ok(connections) => connections,
            Err(error) => {
                tracing::error!(%error, "the accept loop ended early");
                JoinSet::new()
            }
        };
        let all = async { while connections.join_next().await.is_some() {} };
        let in_time = tokio::time::timeout(patience, all).await.is_ok();
        let cancelled = if in_time { 0 } else { self.gateway.in_flight() };
        connections.shutdown().await;
        self.beside.shutdown().await;
        self.gateway.return_tokens().await;
        Drained { cancelled }
    }
}

impl Gateway {
    /// Gives back what was taken from stores in advance and not spent. A store that gives no answer
    /// is not waited for: what it has charged is refilled, or its window passes.
    async fn return_tokens(&self) {
        let generation = self.current.load_full();
        let mut returning = JoinSet::new();
        for limit in generation.limits() {
            if let RuleLimiter::Shared(limiter) = limit.limiter() {
                let limiter = limiter.clone();
                returning.spawn(async move { limiter.return_tokens().await });
            }
        }
        let all = async { while returning.join_next().await.is_some() {} };
        if tokio::time::timeout(PATIENCE_WITH_STORES, all)
            .await
            .is_err()
        {
            tracing::warn!("a store did not take unspent tokens back in time");
        }
    }
}

/// Takes over certificates as their files change.
async fn watch_certificates(certificates: Arc<Certificates>) {
    let mut ticks = tokio::time::interval(CERTIFICATES);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let certificates = Arc::clone(&certificates);
        let looked = tokio::task::spawn_blocking(move || certificates.look()).await;
        if let Err(error) = looked {
            tracing::error!(%error, "looking at the certificates failed");
        }
    }
}

/// How long a drain waits for stores to take unspent tokens back.
const PATIENCE_WITH_STORES: Duration = Duration::from_secs(1);

/// Lets idle keys go, a few at a time.
async fn keep_house(gateway: Arc<Gateway>) {
    let mut ticks = tokio::time::interval(HOUSEKEEPING);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let generation = gateway.current.load_full();
        for limit in generation.limits() {
            if let Some(limiter) = limit.limiter().memory() {
                limiter.maintain(gateway.clock.now(), HOUSEKEEPING_SLOTS);
            }
            tokio::task::yield_now().await;
        }
    }
}

//! A service that runs: opened, reloaded, drained.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{ChangeMode, ConfigError, Limits, NamedLimit, PerCallLimiter, SystemClock};
use tidegate_config::{Checked, model};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::accept;
use crate::http::HttpDoor;
use crate::metrics::{Door, Metrics};
use crate::resp::RespDoor;
use crate::served::Served;

/// Between two steps of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// Slots of a limit's table that one step looks at.
const HOUSEKEEPING_SLOTS: usize = 4096;

/// Parts of the table of `CL.THROTTLE`, of 256, that one step looks at.
const HOUSEKEEPING_PARTS: usize = 4;

/// Why a service cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The limits cannot be put in force.
    #[error(transparent)]
    Limits(#[from] ConfigError),
    /// There is no service to open.
    #[error("the configuration has no `service`; add one with an address for `http` or `resp`")]
    NoService,
    /// The address is taken, or may not be used.
    #[error("cannot listen on {0}; choose another address, or stop what listens there")]
    Listen(SocketAddr, #[source] io::Error),
}

/// A service that runs.
pub struct Service {
    settings: model::Service,
    parts: Arc<Parts>,
    http: Option<(SocketAddr, Arc<HttpDoor>)>,
    resp: Option<(SocketAddr, Arc<RespDoor>)>,
    stop: watch::Sender<Option<Instant>>,
    doors: JoinSet<usize>,
    beside: JoinSet<()>,
}

/// What outlives a reload.
struct Parts {
    limits: Mutex<Arc<Limits>>,
    throttle: PerCallLimiter,
    metrics: Arc<Metrics>,
}

impl Service {
    /// Opens the listeners and begins to serve. Limits that another door of the process counts already
    /// are `shared`: what one lets through, the other has less of.
    ///
    /// # Errors
    /// Limits that cannot be put in force, or an address that cannot be had.
    pub async fn start(checked: &Checked, shared: &[NamedLimit]) -> Result<Self, StartError> {
        let settings = checked.config.service.ok_or(StartError::NoService)?;
        let clock = Arc::new(SystemClock::new());
        let limits = Limits::from_checked_beside(checked, clock.clone(), shared)?;
        let most = usize::try_from(settings.max_throttle_keys).unwrap_or(usize::MAX);
        let parts = Arc::new(Parts {
            limits: Mutex::new(Arc::new(limits)),
            throttle: PerCallLimiter::with_clock(most, clock.clone()),
            metrics: Arc::new(Metrics::new()),
        });
        let (stop, stopping) = watch::channel(None);
        let mut doors = JoinSet::new();
        let room = accept::Limits {
            connections: usize::try_from(settings.max_connections).unwrap_or(usize::MAX),
        };
        let mut http = None;
        if let Some(wanted) = settings.http {
            let (listener, address) = listen(wanted)?;
            let door = Arc::new(HttpDoor::new(
                parts.served(Door::Http),
                clock.clone(),
                settings.secret_sha256,
                &parts.metrics,
            ));
            doors.spawn(Arc::clone(&door).serve(listener, room, stopping.clone()));
            http = Some((address, door));
        }
        let mut resp = None;
        if let Some(wanted) = settings.resp {
            let (listener, address) = listen(wanted)?;
            let door = Arc::new(RespDoor::new(
                parts.served(Door::Resp),
                clock,
                address,
                settings.secret_sha256,
                Arc::clone(&parts.metrics),
            ));
            doors.spawn(Arc::clone(&door).serve(listener, room, stopping));
            resp = Some((address, door));
        }
        let mut beside = JoinSet::new();
        beside.spawn(keep_house(Arc::clone(&parts)));
        Ok(Self {
            settings,
            parts,
            http,
            resp,
            stop,
            doors,
            beside,
        })
    }

    /// Where clients that speak HTTP connect, if they do.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(address, _)| *address)
    }

    /// Where Redis clients connect, if they do: the real port where 0 was asked for.
    #[must_use]
    pub fn resp_address(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|(address, _)| *address)
    }

    /// What writes the metrics, for as long as anybody wants to read them.
    pub fn metrics_page(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let parts = Arc::clone(&self.parts);
        move || {
            let limits = parts.limits();
            let tables = limits
                .named()
                .map(|limit| (limit.name(), limit.limiter().stats()));
            parts.metrics.look_at_tables(parts.throttle.len(), tables);
            parts.metrics.text()
        }
    }

    /// Puts other limits in force in one step. No connection is dropped, and no counter of a limit
    /// that stays.
    ///
    /// Limits that another door counts are `shared`, and have been reloaded by it.
    ///
    /// What only a restart can change is named in the answer and stays as it was.
    ///
    /// # Errors
    /// Limits that cannot be put in force: those before stay.
    pub fn reload(
        &mut self,
        checked: &Checked,
        shared: &[NamedLimit],
    ) -> Result<Vec<&'static str>, StartError> {
        let wanted = checked.config.service.ok_or(StartError::NoService)?;
        let before = self.parts.limits();
        let next = before.reload_checked_beside(checked, ChangeMode::KeepUsed, shared)?;
        self.parts.put(next);
        if let Some((_, door)) = &self.http {
            door.replace(self.parts.served(Door::Http));
        }
        if let Some((_, door)) = &self.resp {
            door.replace(self.parts.served(Door::Resp));
        }
        let settings = &mut self.settings;
        let fixed = [
            ("service.http", settings.http != wanted.http),
            ("service.resp", settings.resp != wanted.resp),
            (
                "service.secret_sha256",
                settings.secret_sha256 != wanted.secret_sha256,
            ),
            (
                "service.max_connections",
                settings.max_connections != wanted.max_connections,
            ),
            (
                "service.max_throttle_keys",
                settings.max_throttle_keys != wanted.max_throttle_keys,
            ),
        ];
        settings.drain = wanted.drain;
        let changed = fixed.into_iter().filter(|(_, changed)| *changed);
        Ok(changed.map(|(field, _)| field).collect())
    }

    /// Stops accepting and lets clients that are at work finish within the drain time-out. Returns
    /// how many connections were cut off.
    pub async fn drain(mut self) -> usize {
        let until = Instant::now() + self.settings.drain;
        self.stop.send_replace(Some(until));
        let mut cut_off = 0;
        while let Some(door) = self.doors.join_next().await {
            cut_off += door.unwrap_or_else(|error| {
                tracing::error!(%error, "a door ended early");
                0
            });
        }
        self.beside.shutdown().await;
        cut_off
    }
}

impl Parts {
    fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    fn served(&self, door: Door) -> Served {
        Served::new(&self.limits(), self.throttle.clone(), door, &self.metrics)
    }
}

/// Opens a listening socket, and says on which port.
fn listen(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |error| StartError::Listen(wanted, error);
    let listener = accept::listen(wanted).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Forgets keys that cannot be told from fresh ones, a few at a time.
async fn keep_house(parts: Arc<Parts>) {
    let mut step: usize = 0;
    loop {
        tokio::time::sleep(HOUSEKEEPING).await;
        let limits = parts.limits();
        let now = limits.clock().now();
        for limit in limits.iter() {
            limit.maintain(now, HOUSEKEEPING_SLOTS);
        }
        for _ in 0..HOUSEKEEPING_PARTS {
            step = step.wrapping_add(1);
            parts.throttle.maintain(step, now);
        }
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("http", &self.http_address())
            .field("resp", &self.resp_address())
            .finish_non_exhaustive()
    }
}

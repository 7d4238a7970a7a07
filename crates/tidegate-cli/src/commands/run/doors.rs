//! The doors of a configuration: opened, reloaded and drained together.

use std::fmt::Write as _;
use std::net::SocketAddr;

use tidegate::NamedLimit;
use tidegate_config::{Checked, Config};
use tidegate_gateway::Running;
use tidegate_service::Service;

use super::admin::{Admin, Readiness};

/// The doors that are open.
pub(super) struct Doors {
    gateway: Option<Running>,
    service: Option<Service>,
    admin: Option<Admin>,
    wanted_admin: Option<SocketAddr>,
    /// Which sections the file had at the start: others need a restart.
    opened: (bool, bool),
}

impl Doors {
    /// Opens what the file configures.
    pub(super) async fn open(checked: &Checked) -> anyhow::Result<Self> {
        let config = &checked.config;
        if config.gateway.is_none() && config.service.is_none() {
            anyhow::bail!(
                "the configuration has no `gateway` and no `service`: add the first with `listen` and \
                 `routes`, or the second with an address for `http` or \
                 `resp`"
            );
        }
        let gateway = match config.gateway {
            Some(_) => Some(Running::start(&without_admin(config)).await?),
            None => None,
        };
        let service = match config.service {
            Some(_) => Some(Service::start(checked, &counted(gateway.as_ref())).await?),
            None => None,
        };
        let admin = match config.admin {
            Some(address) => {
                let mut pages: Vec<Box<dyn Fn() -> String + Send + Sync>> = Vec::new();
                let mut readiness: Vec<Readiness> = Vec::new();
                if let Some(gateway) = &gateway {
                    pages.push(Box::new(gateway.metrics_page()));
                    let door = gateway.gateway().clone();
                    readiness.push(Box::new(move || {
                        let door = door.clone();
                        Box::pin(async move { door.silent_stores().await })
                    }));
                }
                if let Some(service) = &service {
                    pages.push(Box::new(service.metrics_page()));
                }
                Some(Admin::open(address, pages, readiness).await?)
            }
            None => None,
        };
        Ok(Self {
            opened: (gateway.is_some(), service.is_some()),
            gateway,
            service,
            admin,
            wanted_admin: config.admin,
        })
    }

    /// A line for each address that is listened on.
    pub(super) fn addresses(&self) -> String {
        let service = self.service.as_ref();
        let is_secure = self.gateway.as_ref().is_some_and(Running::is_secure);
        let mut lines = String::new();
        for (name, scheme, address) in [
            (
                "gateway",
                if is_secure { "https" } else { "http" },
                self.gateway.as_ref().map(Running::address),
            ),
            ("service", "http", service.and_then(Service::http_address)),
            ("resp", "redis", service.and_then(Service::resp_address)),
            ("admin", "http", self.admin.as_ref().map(Admin::address)),
        ] {
            if let Some(address) = address {
                // Writing to a string does not fail.
                let _ = writeln!(lines, "{name}: {scheme}://{address}");
            }
        }
        lines
    }

    /// What tells how many calls are being answered, also while the doors are drained.
    pub(super) fn in_flight(&self) -> impl Fn() -> usize + 'static {
        let gateway = self
            .gateway
            .as_ref()
            .map(|gateway| gateway.gateway().clone());
        move || gateway.as_ref().map_or(0, |gateway| gateway.in_flight())
    }

    /// Puts another configuration in force. Returns what needs a restart to change.
    pub(super) fn reload(&mut self, checked: &Checked) -> anyhow::Result<Vec<&'static str>> {
        let config = &checked.config;
        let mut fixed = Vec::new();
        match (&mut self.gateway, &config.gateway) {
            (Some(gateway), Some(_)) => fixed.extend(gateway.reload(&without_admin(config))?),
            (Some(gateway), None) => {
                gateway.count_refused_reload();
                anyhow::bail!("the configuration has no `gateway` any more; restart to close it");
            }
            (None, _) => {}
        }
        match (&mut self.service, &config.service) {
            (Some(service), Some(_)) => {
                // After the gateway: what both apply has its new numbers by now.
                let shared = counted(self.gateway.as_ref());
                fixed.extend(service.reload(checked, &shared)?);
            }
            (Some(_), None) => fixed.push("service"),
            (None, _) => {}
        }
        let wanted = (config.gateway.is_some(), config.service.is_some());
        if wanted.0 && !self.opened.0 {
            fixed.push("gateway");
        }
        if wanted.1 && !self.opened.1 {
            fixed.push("service");
        }
        if config.admin != self.wanted_admin {
            fixed.push("admin.listen");
        }
        Ok(fixed)
    }

    /// Counts a reload that failed because the file gave no configuration.
    pub(super) fn count_refused_reload(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.count_refused_reload();
        }
    }

    /// Drains all doors at once. Returns how many calls were cut off.
    pub(super) async fn drain(self) -> usize {
        if let Some(admin) = &self.admin {
            admin.turn_away();
        }
        let gateway = async {
            match self.gateway {
                Some(gateway) => gateway.drain().await.cancelled,
                None => 0,
            }
        };
        let service = async {
            match self.service {
                Some(service) => service.drain().await,
                None => 0,
            }
        };
        let (gateway, service) = tokio::join!(gateway, service);
        gateway + service
    }
}

/// The limits that the gateway counts: all doors of a process spend the same ones.
fn counted(gateway: Option<&Running>) -> Vec<NamedLimit> {
    gateway.map(Running::named_limits).unwrap_or_default()
}

/// The configuration for the gateway: operators connect to one listener for all doors.
fn without_admin(config: &Config) -> Config {
    Config {
        admin: None,
        ..config.clone()
    }
}

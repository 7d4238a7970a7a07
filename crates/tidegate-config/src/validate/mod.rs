//! Checks a document against itself and makes the model of it.
//!
//! Everything is looked at, also after the first mistake: each part is made as far as it can be,
//! and the whole is handed out only if nothing was wrong.

mod doors;
mod limits;
mod plans;
mod routes;
mod stores;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::cursor::Cursor;
use crate::decode::Tried;
use crate::model::{Config, Limit};
use crate::node::Node;
use crate::report::{Problem, Span};
use crate::shape::{Document, Named};
use crate::suggest;
use crate::support::{Feature, not_yet};
use crate::text::TextError;

/// What a document is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To open its doors: what this version cannot enforce is an error.
    Run,
    /// To look at its limits, in simulation or explanation.
    Inspect,
}

/// What is known while a document is checked.
pub(crate) struct Checker<'n> {
    pub problems: Vec<Problem>,
    root: Cursor<'n>,
    purpose: Purpose,
    /// The positions of the limits by name, broken ones included.
    limit_names: HashMap<String, usize>,
    /// The limits that could be made.
    limits: Vec<Option<Limit>>,
    /// For each limit, whether a door applies it.
    applied: Vec<bool>,
    /// The addresses that are listened on, and where the file says so.
    addresses: Vec<(SocketAddr, Option<Span>)>,
}

/// Makes the model. None if anything was wrong, which is then in the problems.
pub(crate) fn validate(
    document: &Document,
    node: &Node,
    purpose: Purpose,
    problems: Vec<Problem>,
) -> (Option<Config>, Vec<Problem>) {
    let mut checker = Checker {
        problems,
        root: Cursor::new(node),
        purpose,
        limit_names: positions(&document.limits),
        limits: Vec::new(),
        applied: vec![false; document.limits.0.len()],
        addresses: Vec::new(),
    };
    let config = checker.config(document);
    (config, checker.problems)
}

impl Checker<'_> {
    fn config(&mut self, document: &Document) -> Option<Config> {
        let stores = self.stores(&document.stores);
        let identity = self.identity(document.identity.0.as_ref());
        self.limits = self.all_limits(&document.limits, &document.stores);
        let plans = self.plans(&document.plans);
        let api_keys = self.api_keys(&document.api_keys, &document.plans);
        let gateway = match &document.gateway {
            Some(Tried(Some(shape))) => self.gateway(shape).map(Some),
            Some(Tried(None)) => None,
            None => Some(None),
        };
        let service = match &document.service {
            Some(Tried(Some(shape))) => Some(self.service(shape)),
            _ => None,
        };
        let admin = match &document.admin {
            Some(Tried(Some(shape))) => {
                let at = self.root.get("admin").get("listen");
                self.address(&shape.listen, at).map(Some)
            }
            Some(Tried(None)) => None,
            None => Some(None),
        };
        if self
            .problems
            .iter()
            .any(|problem| problem.severity == crate::Severity::Error)
        {
            return None;
        }
        Some(Config {
            limits: std::mem::take(&mut self.limits)
                .into_iter()
                .collect::<Option<_>>()?,
            identity,
            stores,
            plans,
            api_keys,
            gateway: gateway?,
            service,
            admin: admin?,
        })
    }

    /// Notes an error at a place.
    fn wrong(&mut self, error: TextError, at: Cursor<'_>) {
        let problem = Problem::error(error.message).at(at.span()).help(error.help);
        self.problems.push(problem);
    }

    /// The value, or none after noting the error at a place.
    fn take<T>(&mut self, result: Result<T, TextError>, at: Cursor<'_>) -> Option<T> {
        result.map_err(|error| self.wrong(error, at)).ok()
    }

    /// Notes that a feature is missing, where doors are to be opened.
    fn needs(&mut self, feature: Feature, what: &str, span: Option<Span>) {
        if self.purpose == Purpose::Run {
            self.problems.extend(not_yet(feature, what, span));
        }
    }

    /// The position of the limit of this name, which a door now applies.
    fn limit_position(&mut self, name: &str, at: Cursor<'_>) -> Option<usize> {
        let Some(position) = self.limit_names.get(name).copied() else {
            let mut known: Vec<&str> = self.limit_names.keys().map(String::as_str).collect();
            known.sort_unstable();
            let help = match known.as_slice() {
                [] => format!("add `{name}` under `limits`, which has none"),
                _ => suggest::instead(name, known),
            };
            self.wrong(TextError::new(format!("unknown limit `{name}`"), help), at);
            return None;
        };
        self.applied[position] = true;
        Some(position)
    }

    /// The positions of limits by name, each once.
    fn limit_positions(&mut self, names: &[String], at: Cursor<'_>) -> Vec<usize> {
        let mut found = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                self.wrong(
                    TextError::new(
                        format!("limit `{name}` is there twice"),
                        "a call is charged once per limit; raise the limit's `cost` to charge more",
                    ),
                    at.at(index),
                );
                continue;
            }
            found.extend(self.limit_position(name, at.at(index)));
        }
        found
    }

    /// An address to listen on, which nothing else in the file listens on.
    fn address(&mut self, text: &str, at: Cursor<'_>) -> Option<SocketAddr> {
        let address = self.take(read_address(text), at)?;
        let taken = self
            .addresses
            .iter()
            .find(|(other, _)| overlap(*other, address));
        if let Some((_, first)) = taken {
            let problem = Problem::error(format!("two doors listen on `{address}`"))
                .at(at.span())
                .see(*first, "the first one")
                .help("give each its own port");
            self.problems.push(problem);
            return None;
        }
        self.addresses.push((address, at.span()));
        Some(address)
    }
}

/// The positions of the entries by name; of the first, where a name is there twice.
fn positions<T>(named: &Named<T>) -> HashMap<String, usize> {
    let mut positions = HashMap::new();
    for (position, (name, _)) in named.0.iter().enumerate() {
        positions.entry(name.clone()).or_insert(position);
    }
    positions
}

/// Whether two listeners get in each other's way. Port 0 is a free one each time.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() != 0
        && a.port() == b.port()
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn read_address(text: &str) -> Result<SocketAddr, TextError> {
    if let Ok(address) = SocketAddr::from_str(text.trim()) {
        return Ok(address);
    }
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port).trim();
    let help = match port.parse::<u16>() {
        Ok(port) => format!(
            "write an address and a port: `127.0.0.1:{port}` for this machine only, \
             `0.0.0.0:{port}` for all who can reach it"
        ),
        Err(_) => "write an address and a port from 0 to 65535, such as `127.0.0.1:8080`".into(),
    };
    Err(TextError::new(
        format!("`{text}` is no address to listen on"),
        help,
    ))
}

/// Checks the name of a limit, store or plan, which stands in headers, metrics and keys.
fn check_name(kind: &str, name: &str) -> Result<(), TextError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(TextError::new(
        format!("`{name}` cannot be the name of a {kind}"),
        "write 1 to 64 letters, digits, `-`, `_` and `.`",
    ))
}

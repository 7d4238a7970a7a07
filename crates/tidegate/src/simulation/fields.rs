//! A call as named fields: what a line of JSON and a row of CSV have in common.

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};
use tidegate_config::AlgorithmConfig;
use tidegate_core::{ChangeMode, MAX_COUNT, Micros, Timestamp};

use super::call::{
    ACTIONS, Action, CHANGE_MODES, Call, Change, LimitNumber, Reserve, Served, Settle, Target,
};
use super::problem::{Fault, nearest};
use super::replay::Simulation;
use super::request::{Request, key_of};
use crate::Key;

/// The names of the fields, as JSON and CSV write them.
pub(crate) const FIELDS: [&str; 22] = [
    "at_ms",
    "at_us",
    "key",
    "limit",
    "limits",
    "cost",
    "op",
    "permit",
    "algorithm",
    "mode",
    "for",
    "max_wait",
    "reservation",
    "actual",
    "method",
    "path",
    "client_ip",
    "status",
    "headers",
    "duration_ms",
    "duration_us",
    "user",
];

/// The fields of one call; none where the line has no such field.
#[derive(Debug, Default)]
pub(crate) struct Fields<'a> {
    /// Microseconds since the epoch.
    pub at: Option<u64>,
    pub key: Option<Key>,
    pub limit: Option<Cow<'a, str>>,
    pub limits: Vec<(Cow<'a, str>, Key)>,
    pub cost: Option<u64>,
    pub op: Option<Cow<'a, str>>,
    pub permit: Option<Cow<'a, str>>,
    pub algorithm: Option<AlgorithmConfig>,
    pub mode: Option<Cow<'a, str>>,
    pub period: Option<Micros>,
    pub max_wait: Option<Micros>,
    pub reservation: Option<Cow<'a, str>>,
    pub actual: Option<u64>,
    pub method: Option<Cow<'a, str>>,
    pub path: Option<Cow<'a, str>>,
    pub client_ip: Option<Cow<'a, str>>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub status: Option<u16>,
    /// How long the request took, in microseconds.
    pub took: Option<u64>,
    pub user: Option<Cow<'a, str>>,
}

impl Fields<'_> {
    /// The call that the fields describe.
    ///
    /// # Errors
    /// Fields that are missing, or limits and operations that do not exist.
    pub fn call(
        &self,
        trace: u32,
        line: u64,
        simulation: &mut Simulation,
    ) -> Result<Option<Call>, Fault> {
        let at = self
            .at
            .ok_or_else(|| missing("at_ms", "when the call was made"))?;
        let at = Timestamp::from_micros(at).map_err(|error| Fault::line(error.to_string()))?;
        if !self.is_kept(simulation) {
            return Ok(None);
        }
        let action = self.action(simulation)?;
        let targets = match action {
            Action::SetPolicy(_) => smallvec![],
            _ => self.targets(simulation)?,
        };
        if targets.len() > 1 && !action.combines() {
            return Err(
                Fault::line(format!("{} works on one limit at a time", action.name()))
                    .help("write one line for each limit"),
            );
        }
        Ok(Some(Call {
            at,
            trace,
            line,
            action,
            targets,
            written: None,
        }))
    }

    /// Whether the caller is in the sample.
    fn is_kept(&self, simulation: &mut Simulation) -> bool {
        let first = self.limits.first().map(|(_, key)| key);
        match (self.key.as_ref().or(first), &self.client_ip) {
            (Some(key), _) => simulation.keeps(key.as_bytes()),
            (None, Some(client)) => simulation.keeps(client.as_bytes()),
            // A change of a limit is for all.
            (None, None) => true,
        }
    }

    fn action(&self, simulation: &Simulation) -> Result<Action, Fault> {
        Ok(match self.op.as_deref().unwrap_or("take") {
            "take" if self.cost.is_none() => Action::Request(self.served()?),
            "take" => Action::Take(self.cost()?),
            "peek" => Action::Peek(self.cost()?),
            "take_up_to" => Action::TakeUpTo(self.cost()?),
            "refund" => Action::Refund(self.cost()?),
            "force" => Action::Force(self.cost()?),
            "attempt" => Action::Attempt,
            "success" => Action::Success,
            "reset" => Action::Reset,
            "unblock" => Action::Unblock,
            "state" => Action::State,
            "block" => Action::Block(
                self.period
                    .ok_or_else(|| missing("for", "how long to block"))?,
            ),
            "acquire" => Action::Acquire {
                permit: self.permit()?,
                weight: self.cost()?,
            },
            "renew" => Action::Renew(self.permit()?),
            "release" => Action::Release(self.permit()?),
            "reserve" => Action::Reserve(Box::new(Reserve {
                cost: self.cost()?,
                max_wait: self
                    .max_wait
                    .ok_or_else(|| missing("max_wait", "the longest delay to accept"))?,
                name: self.reservation.as_deref().map(Into::into),
            })),
            "settle" => Action::Settle(Box::new(Settle {
                name: self.reservation()?,
                actual: count(
                    self.actual
                        .ok_or_else(|| missing("actual", "what was used"))?,
                )?,
            })),
            "cancel" => Action::Cancel(self.reservation()?),
            "set_policy" => Action::SetPolicy(Box::new(self.change(simulation)?)),
            other => {
                let fault = Fault::line(format!("{other} is no operation"));
                return Err(match nearest(other, ACTIONS) {
                    Some(known) => fault.help(format!("is {known} meant?")),
                    None => fault.help(format!("known are {}", ACTIONS.join(", "))),
                });
            }
        })
    }

    fn served(&self) -> Result<Served, Fault> {
        Ok(Served {
            took: self.took.map(took).transpose()?,
            status: self.status,
        })
    }

    fn cost(&self) -> Result<u32, Fault> {
        count(self.cost.unwrap_or(1))
    }

    fn permit(&self) -> Result<Box<str>, Fault> {
        self.permit
            .as_deref()
            .map(Into::into)
            .ok_or_else(|| missing("permit", "whose lease it is"))
    }

    fn reservation(&self) -> Result<Box<str>, Fault> {
        self.reservation
            .as_deref()
            .map(Into::into)
            .ok_or_else(|| missing("reservation", "the name given when it was made"))
    }

    fn change(&self, simulation: &Simulation) -> Result<Change, Fault> {
        let algorithm = self
            .algorithm
            .as_ref()
            .ok_or_else(|| missing("algorithm", "what the limit becomes"))?;
        let policy = algorithm.policy(Timestamp::EPOCH).map_err(|problem| {
            let fault = Fault::line(problem.to_string());
            fault.help(problem.help)
        })?;
        let mode = match self.mode.as_deref() {
            None => ChangeMode::KeepUsed,
            Some(name) => CHANGE_MODES
                .into_iter()
                .find(|(known, _)| *known == name)
                .map(|(_, mode)| mode)
                .ok_or_else(|| {
                    Fault::line(format!("{name} is no mode of a change"))
                        .help("known are keep_used, proportional, keep_available, reset")
                })?,
        };
        let limit = self.limit(simulation)?;
        Ok(Change {
            limit,
            policy,
            mode,
            header: algorithm.to_string().into(),
        })
    }

    /// The limit that the line names, or the only one.
    fn limit(&self, simulation: &Simulation) -> Result<LimitNumber, Fault> {
        match &self.limit {
            Some(name) => find(name, simulation),
            None => simulation.only().map_err(|count| match count {
                0 => Fault::line("there is no limit to ask").help("add one to the configuration"),
                _ => missing("limit", "which of the limits is meant"),
            }),
        }
    }

    fn targets(&self, simulation: &mut Simulation) -> Result<SmallVec<[Target; 1]>, Fault> {
        if !self.limits.is_empty() {
            if self.key.is_some() || self.limit.is_some() {
                return Err(Fault::line("limits stands beside limit or key")
                    .help("limits names both: {\"limits\": {\"per-user\": \"asha\"}}"));
            }
            return self
                .limits
                .iter()
                .map(|(name, key)| {
                    let limit = find(name, simulation)?;
                    Ok(Target {
                        limit,
                        key: simulation.key_number(limit, key),
                    })
                })
                .collect();
        }
        if let Some(key) = &self.key {
            let limit = self.limit(simulation)?;
            return Ok(smallvec![Target {
                limit,
                key: simulation.key_number(limit, key)
            }]);
        }
        let request = self.request();
        if request == Request::default() {
            return Err(missing("key", "whose call it is"));
        }
        let Some(name) = &self.limit else {
            return Ok(simulation.targets(&request));
        };
        let limit = find(name, simulation)?;
        let key = key_of(simulation.keyed_by(limit), &request);
        Ok(smallvec![Target {
            limit,
            key: simulation.key_number(limit, &key)
        }])
    }

    fn request(&self) -> Request<'_> {
        Request {
            client: self.client_ip.as_deref().map(str::as_bytes),
            user: self.user.as_deref().map(str::as_bytes),
            method: self.method.as_deref().map(str::as_bytes),
            target: self.path.as_deref().map(str::as_bytes),
            headers: &self.headers,
            ..Request::default()
        }
    }
}

/// How long a request took.
///
/// # Errors
/// It is longer than any request takes: a slip in the unit, most likely.
pub(crate) fn took(micros: u64) -> Result<Micros, Fault> {
    const LONGEST: Micros = Micros::from_secs(7 * 86_400);
    let took = Micros(micros);
    if took > LONGEST {
        return Err(
            Fault::line(format!("a request that took {took} is not believed"))
                .help("the longest that is counted is 7d; is the unit right?"),
        );
    }
    Ok(took)
}

fn find(name: &str, simulation: &Simulation) -> Result<LimitNumber, Fault> {
    simulation.find(name).ok_or_else(|| {
        let fault = Fault::line(format!("no limit is called {name}"));
        match nearest(name, simulation.names()) {
            Some(known) => fault.help(format!("is {known} meant?")),
            None => fault,
        }
    })
}

fn missing(field: &str, meaning: &str) -> Fault {
    Fault::line(format!("{field} is missing: {meaning}"))
}

fn count(units: u64) -> Result<u32, Fault> {
    u32::try_from(units)
        .ok()
        .filter(|units| *units <= MAX_COUNT)
        .ok_or_else(|| Fault::line(format!("{units} is above 2147483647, the largest count")))
}

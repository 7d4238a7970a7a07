//! The formats of traces: which one a file is of, and how a line of it becomes a call.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate_core::{Policy, Timestamp};

use super::access_log::{self, LogLine, unescaped};
use super::aws_log::{self, AwsLine, EdgeColumns};
use super::call::{Action, Call, Served};
use super::csv::{self, Columns};
use super::gateway_log::{self, GatewayLine};
use super::lines::Line;
use super::problem::Fault;
use super::replay::Simulation;
use super::request::{KeySource, Request};
use super::trace::{Tally, TraceError};
use super::{jsonl, timeline};

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The project's own text form.
    Timeline,
    /// One JSON object a line.
    Jsonl,
    /// CSV with a header.
    Csv,
    /// The common or combined format of web servers.
    AccessLog,
    /// The access log of an AWS Application Load Balancer.
    LoadBalancer,
    /// The standard log of AWS CloudFront.
    CloudFront,
    /// The gateway's own log, as JSON.
    Gateway,
}

/// A format, with what its reader keeps between two lines.
pub(crate) enum Kind {
    Timeline,
    Jsonl,
    Csv(Option<Box<Columns>>),
    /// What of its lines is read, once the limits are known to fit.
    AccessLog(Option<Extras>),
    LoadBalancer {
        /// Whether the limits are known to fit.
        fitted: bool,
    },
    CloudFront(Option<Box<EdgeColumns>>),
    Gateway {
        /// Whether the limits are known to fit.
        fitted: bool,
    },
}

/// Where a line stands.
#[derive(Clone, Copy)]
struct Place {
    trace: u32,
    line: u64,
}

impl Kind {
    /// The reader of a format, at the beginning of a file.
    pub fn new(format: Format) -> Self {
        match format {
            Format::Timeline => Self::Timeline,
            Format::Jsonl => Self::Jsonl,
            Format::Csv => Self::Csv(None),
            Format::AccessLog => Self::AccessLog(None),
            Format::LoadBalancer => Self::LoadBalancer { fitted: false },
            Format::CloudFront => Self::CloudFront(None),
            Format::Gateway => Self::Gateway { fitted: false },
        }
    }

    /// Reads one line; none where it holds no call.
    pub fn read(
        &mut self,
        name: &Arc<str>,
        line: Line<'_>,
        trace: u32,
        tally: &mut Tally,
        simulation: &mut Simulation,
    ) -> Result<Result<Option<Call>, Fault>, TraceError> {
        let place = Place {
            trace,
            line: line.number,
        };
        let read = match self {
            Self::Timeline => match std::str::from_utf8(line.text) {
                Ok(text) => timeline::read_line(text, trace, line.number, simulation),
                Err(error) => Err(Fault::new(error.valid_up_to(), 1, "this byte is no UTF-8")),
            },
            Self::Jsonl => {
                let mut unknown = |field: &str| tally.unknown(field);
                jsonl::read(line.text, &mut unknown)
                    .and_then(|fields| fields.call(trace, line.number, simulation))
            }
            Self::Csv(columns @ None) => Columns::read_header(line.text).map(|read| {
                *columns = Some(Box::new(read));
                None
            }),
            Self::Csv(Some(columns)) => columns
                .read_row(line.text)
                .and_then(|fields| fields.call(trace, line.number, simulation)),
            Self::AccessLog(extras) => match access_log::read(line.text) {
                Err(fault) => Err(fault),
                Ok(read) => {
                    let extras = match extras {
                        Some(extras) => *extras,
                        None => {
                            fit(name, simulation, Holds::access_log(&read))?;
                            *extras.insert(Extras::of(&read, simulation))
                        }
                    };
                    call_of_log(&read, extras, place, simulation)
                }
            },
            Self::LoadBalancer { fitted } => {
                if !std::mem::replace(fitted, true) {
                    fit(name, simulation, Holds::LOAD_BALANCER)?;
                }
                aws_log::read_balancer(line.text)
                    .and_then(|read| call_of_aws(&read, place, simulation))
            }
            Self::CloudFront(columns) if line.text.starts_with(b"#") => {
                // Joined files bring their headers along, and columns may have been added.
                if line.text.starts_with(b"#Fields:") {
                    let read = EdgeColumns::read(line.text);
                    if let Ok(read) = &read {
                        fit(name, simulation, Holds::cloud_front(read))?;
                    }
                    read.map(|read| {
                        *columns = Some(Box::new(read));
                        None
                    })
                } else {
                    Ok(None)
                }
            }
            Self::Gateway { fitted } => {
                if !std::mem::replace(fitted, true) {
                    fit(name, simulation, Holds::GATEWAY)?;
                }
                match gateway_log::read(line.text) {
                    Ok(Some(read)) => call_of_gateway(&read, place, simulation),
                    Ok(None) => Ok(None),
                    Err(fault) => Err(fault),
                }
            }
            Self::CloudFront(None) => Err(Fault::line("a line with #Fields: has to come first")),
            Self::CloudFront(Some(columns)) => columns
                .read_line(line.text)
                .and_then(|read| call_of_aws(&read, place, simulation)),
        };
        Ok(read.map(|read| read.filter(|call| tally.is_limited(call))))
    }
}

/// What a line of an access log may hold behind its bytes, and a run may need: most need nothing.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    durations: bool,
    forwarded_for: bool,
    agents: bool,
}

impl Extras {
    /// A format is the same on all lines; the first one that can be read tells it.
    fn of(first: &LogLine<'_>, simulation: &Simulation) -> Self {
        let met = simulation.met_by_requests();
        let mut sources = met.iter().flat_map(|(_, keyed_by)| keyed_by.iter());
        Self {
            durations: first.took().is_some(),
            // A first request that came without a chain says nothing of the others.
            forwarded_for: simulation.finds_clients(),
            agents: sources.any(|source| matches!(source, KeySource::Header(_))),
        }
    }
}

/// The call of a line of an access log: all limits that it meets, together or not at all.
fn call_of_log(
    line: &LogLine<'_>,
    extras: Extras,
    place: Place,
    simulation: &mut Simulation,
) -> Result<Option<Call>, Fault> {
    let took = extras.durations.then(|| line.took()).flatten();
    // Only nginx writes `rt=`, and its lines have the time at which the request was over.
    let began = line.at.saturating_sub(took.unwrap_or(0));
    let target = line.target.map(unescaped);
    let (referer, agent) = match extras.agents {
        true => line.referer_and_agent(),
        false => (None, None),
    };
    let (referer, agent) = (referer.map(unescaped), agent.map(unescaped));
    let request = Request {
        client: Some(line.client),
        user: line.user,
        method: line.method,
        target: target.as_deref(),
        referer: referer.as_deref(),
        user_agent: agent.as_deref(),
        forwarded_for: (extras.forwarded_for || extras.agents)
            .then(|| line.forwarded_for())
            .flatten(),
        ..Request::default()
    };
    request_call(began, took, line.status, &request, place, simulation)
}

/// The call of a line of an AWS log.
fn call_of_aws(
    line: &AwsLine<'_>,
    place: Place,
    simulation: &mut Simulation,
) -> Result<Option<Call>, Fault> {
    let target = match (line.target, line.query) {
        (Some(path), Some(query)) => Some(Cow::Owned([path, b"?", query].concat())),
        (target, _) => target.map(unescaped),
    };
    let agent = line.agent.map(unescaped);
    let request = Request {
        client: Some(line.client),
        method: line.method,
        target: target.as_deref(),
        referer: line.referer,
        user_agent: agent.as_deref(),
        host: line.host,
        cookies: line.cookies,
        forwarded_for: line.forwarded_for,
        ..Request::default()
    };
    request_call(line.at, line.took, line.status, &request, place, simulation)
}

/// The call of a line of the gateway's own log, whose client was found behind its proxies already.
fn call_of_gateway(
    line: &GatewayLine<'_>,
    place: Place,
    simulation: &mut Simulation,
) -> Result<Option<Call>, Fault> {
    let request = Request {
        client: Some(line.client.as_bytes()),
        method: Some(line.method.as_bytes()),
        target: Some(line.target.as_bytes()),
        ..Request::default()
    };
    let status = Some(line.status);
    request_call(
        line.at,
        Some(line.took),
        status,
        &request,
        place,
        simulation,
    )
}

fn request_call(
    at: u64,
    took: Option<u64>,
    status: Option<u16>,
    request: &Request<'_>,
    place: Place,
    simulation: &mut Simulation,
) -> Result<Option<Call>, Fault> {
    let at = Timestamp::from_micros(at).map_err(|error| Fault::line(error.to_string()))?;
    if !simulation.keeps(request.client.unwrap_or_default()) {
        return Ok(None);
    }
    let took = took.map(super::fields::took).transpose()?;
    let targets = simulation.targets(request);
    Ok(Some(Call {
        at,
        trace: place.trace,
        line: place.line,
        action: Action::Request(Served { took, status }),
        targets,
        written: None,
    }))
}

/// What the lines of a log hold beside client, method, path, query and status.
#[derive(Clone, Copy)]
struct Holds {
    durations: bool,
    users: bool,
    /// The header fields.
    headers: &'static [&'static str],
}

impl Holds {
    const LOAD_BALANCER: Self = Self {
        durations: true,
        users: false,
        headers: &["user-agent", "host"],
    };

    const GATEWAY: Self = Self {
        durations: true,
        users: false,
        headers: &[],
    };

    fn access_log(line: &LogLine<'_>) -> Self {
        Self {
            durations: line.took().is_some(),
            users: true,
            headers: if line.forwarded_for().is_some() {
                &["referer", "user-agent", "x-forwarded-for"]
            } else {
                &["referer", "user-agent"]
            },
        }
    }

    const fn cloud_front(columns: &EdgeColumns) -> Self {
        Self {
            durations: columns.have_durations(),
            users: false,
            headers: &["referer", "user-agent", "host", "cookie", "x-forwarded-for"],
        }
    }

    /// What of a key no line holds, in the words of the configuration.
    fn lacks(&self, source: &KeySource) -> Option<String> {
        match source {
            KeySource::Absent(name) => Some(name.to_string()),
            KeySource::Principal if !self.users => Some("principal".to_owned()),
            KeySource::Cookie(name) if !self.headers.contains(&"cookie") => {
                Some(format!("cookie.{name}"))
            }
            KeySource::Header(name) if !self.headers.contains(&&**name) => {
                Some(format!("header.{name}"))
            }
            _ => None,
        }
    }

    /// All that a key may be made of, in words.
    fn words(&self) -> String {
        let mut words = vec!["client_ip".to_owned()];
        words.extend(self.users.then(|| "principal".to_owned()));
        words.extend(["method_and_route", "query.NAME"].map(str::to_owned));
        for header in self.headers {
            words.push(match *header {
                "cookie" => "cookie.NAME".to_owned(),
                header => format!("header.{header}"),
            });
        }
        words.join(", ")
    }
}

/// Whether a log holds what all limits ask for.
fn fit(trace: &str, simulation: &Simulation, holds: Holds) -> Result<(), TraceError> {
    let unfit = |limit: &str, reason: String| {
        Err(TraceError::Unfit {
            trace: trace.to_owned(),
            limit: limit.to_owned(),
            reason,
        })
    };
    for (limit, keyed_by) in simulation.met_by_requests() {
        let name = simulation.name(limit);
        match simulation.limiter(limit).policy() {
            Policy::Concurrency(_) if !holds.durations => {
                return unfit(
                    name,
                    "this log has no field for how long a request took, so nothing tells when its \
                     permit came back; have nginx write rt=$request_time at the end of a line, or \
                     bring duration_ms as JSON lines or CSV"
                        .to_owned(),
                );
            }
            Policy::Lockout(_) if !simulation.settings(limit).asks_for_status() => {
                return unfit(
                    name,
                    "nothing tells whether a guess was right; give the limit a reset_when such as \
                     \"status == 200\""
                        .to_owned(),
                );
            }
            _ => {}
        }
        if let Some(missing) = keyed_by.iter().find_map(|source| holds.lacks(source)) {
            return unfit(
                name,
                format!(
                    "its key has the part {missing}, which this log does not hold; it holds {}",
                    holds.words()
                ),
            );
        }
    }
    Ok(())
}

impl Format {
    /// The format that a file is of, by its first lines; none if it is of no known one.
    #[must_use]
    pub fn of(beginning: &[u8]) -> Option<Self> {
        detect(beginning)
    }
}

fn detect(beginning: &[u8]) -> Option<Format> {
    const LOOKED_AT: usize = 100;
    let lines = beginning.split(|byte| *byte == b'\n').take(LOOKED_AT);
    for line in lines {
        let line = line.trim_ascii();
        if aws_log::looks_like_edge(line) {
            return Some(Format::CloudFront);
        }
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if line.starts_with(b"{") {
            return Some(match gateway_log::looks_like(line) {
                true => Format::Gateway,
                false => Format::Jsonl,
            });
        }
        if access_log::looks_like(line) {
            return Some(Format::AccessLog);
        }
        if aws_log::looks_like_balancer(line) {
            return Some(Format::LoadBalancer);
        }
        let Ok(text) = std::str::from_utf8(line) else {
            continue;
        };
        if timeline::looks_like(text) {
            return Some(Format::Timeline);
        }
        if csv::looks_like(text) {
            return Some(Format::Csv);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_shows_in_the_first_line_that_is_of_one() {
        for (text, format) in [
            (
                "\n# a comment\nlimit a: gcra rate 1/s burst 1\n",
                Some(Format::Timeline),
            ),
            ("0ms asha take", Some(Format::Timeline)),
            (" {\"at_ms\": 1}", Some(Format::Jsonl)),
            ("key,at_ms\nk,1", Some(Format::Csv)),
            (
                "garbage\nh - - [01/Aug/1995:09:30:03 -0400] \"-\" 400 -",
                Some(Format::AccessLog),
            ),
            (
                "#Version: 1.0\n#Fields: date time c-ip\n",
                Some(Format::CloudFront),
            ),
            (
                "h2 2026-05-01T10:00:00.9Z app/front 192.0.2.7:41234",
                Some(Format::LoadBalancer),
            ),
            ("limits:\n  login: {}\n", None),
            ("", None),
        ] {
            assert_eq!(detect(text.as_bytes()), format, "{text}");
        }
    }
}

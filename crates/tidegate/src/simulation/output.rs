//! Answers as text, as JSON, and as a page of HTTP statuses.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use serde::{Serialize, Serializer};
use tidegate_core::{Decision, Reply, Wait};

use super::call::{Action, Call};
use super::keys::KeyText;
use super::replay::{Answer, Simulation};
use super::timeline;
use crate::{Key, KeyPart};

/// Writes the headers of all limits but the first `skipped`, and returns how many it wrote.
///
/// A timeline can bring further limits at any line.
pub fn write_headers(out: &mut String, simulation: &Simulation, skipped: usize) -> usize {
    let mut written = 0;
    for limit in simulation.limits().skip(skipped) {
        out.push_str(&timeline::header_line(simulation, limit));
        out.push('\n');
        written += 1;
    }
    written
}

/// Writes a call and its answer as a line of a timeline, which can be replayed.
pub fn write_timeline(out: &mut String, simulation: &Simulation, call: &Call, answer: &Answer) {
    timeline::write_line(out, simulation, call, Some(answer));
}

/// Writes a call that its algorithm has no answer to as a line of a timeline.
pub fn write_unsupported(out: &mut String, simulation: &Simulation, call: &Call) {
    timeline::write_line(out, simulation, call, None);
}

/// Writes a call and its answer as a line of HTTP statuses; nothing for an operation that is not
/// answered by a decision.
pub fn write_http(out: &mut String, simulation: &Simulation, call: &Call, answer: &Answer) {
    let (Some(decision), Some(target)) = (answer.reply.decision(), answer.target) else {
        return;
    };
    let status = if decision.is_allowed() || decision.shadow {
        "200 OK"
    } else {
        "429 Too Many Requests"
    };
    let millis = call.at.as_micros() / 1_000;
    let _ = writeln!(
        out,
        "t={millis:>4} ms  {} -> {status}",
        KeyText(simulation.key(target))
    );
}

/// Writes an answer as one JSON object and a line end.
///
/// # Errors
/// `out` cannot be written.
pub fn write_json(
    out: &mut dyn io::Write,
    simulation: &Simulation,
    call: &Call,
    answer: &Answer,
) -> io::Result<()> {
    let limit = match &call.action {
        Action::SetPolicy(change) => simulation.name(change.limit),
        _ => answer.limit(simulation),
    };
    let line = JsonLine {
        at_us: call.at.as_micros(),
        key: answer.target.map(|target| JsonKey(simulation.key(target))),
        limit,
        answer: JsonAnswer::of(call, answer),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct JsonLine<'a> {
    at_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<JsonKey<'a>>,
    limit: &'a str,
    #[serde(flatten)]
    answer: JsonAnswer<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonAnswer<'a> {
    Decision {
        decision: &'static str,
        remaining: u32,
        retry_after_us: Option<u64>,
        reset_after_us: Option<u64>,
        delay_us: Option<u64>,
        lease: Option<&'a str>,
        fencing_token: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        took: Option<u32>,
    },
    Released {
        released: bool,
    },
    Renewed {
        renewed: bool,
    },
    Refunded {
        refunded: u32,
    },
    State {
        used: u32,
        remaining: u32,
        reset_after_us: Option<u64>,
        blocked_for_us: u64,
        leases: usize,
    },
    Done {
        done: bool,
    },
}

impl<'a> JsonAnswer<'a> {
    fn of(call: &'a Call, answer: &Answer) -> Self {
        match &answer.reply {
            Reply::Decision(decision)
            | Reply::Reserved(decision, _)
            | Reply::Leased(decision, _) => Self::of_decision(call, answer, decision),
            Reply::Released(released) => Self::Released {
                released: *released,
            },
            Reply::Renewed(grant) => Self::Renewed {
                renewed: grant.is_some(),
            },
            Reply::Refunded(refunded) => Self::Refunded {
                refunded: *refunded,
            },
            Reply::State(state) => Self::State {
                used: state.used,
                remaining: state.remaining,
                reset_after_us: state.reset_after.as_micros(),
                blocked_for_us: state.blocked_for.0,
                leases: state.leases.len(),
            },
            _ => Self::Done { done: true },
        }
    }

    fn of_decision(call: &'a Call, answer: &Answer, decision: &Decision) -> Self {
        // In shadow a limit denies nobody.
        let allowed = decision.is_allowed() || decision.shadow;
        let grant = answer.grant();
        Self::Decision {
            decision: if allowed { "allow" } else { "deny" },
            remaining: decision.remaining,
            retry_after_us: if allowed {
                Some(0)
            } else {
                decision.retry_after.as_micros()
            },
            reset_after_us: decision.reset_after.as_micros(),
            delay_us: if allowed { decision.delay } else { Wait::ZERO }.as_micros(),
            lease: match &call.action {
                Action::Acquire { permit, .. } if allowed => Some(permit),
                _ => None,
            },
            fencing_token: grant.map(|grant| grant.fencing_token),
            took: match call.action {
                Action::TakeUpTo(_) => Some(if allowed { decision.cost } else { 0 }),
                _ => None,
            },
        }
    }
}

/// A key as JSON: the text of its only part, or an array where there are several or one is
/// missing. What is no UTF-8 is shown with replacement characters.
pub(crate) struct JsonKey<'a>(pub &'a Key);

impl Serialize for JsonKey<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut parts = self.0.parts();
        if let (Some(part), None) = (parts.next(), parts.next()) {
            return text(part).serialize(serializer);
        }
        serializer.collect_seq(self.0.parts().map(text))
    }
}

fn text(part: KeyPart<'_>) -> Option<Cow<'_, str>> {
    match part {
        KeyPart::Missing => None,
        KeyPart::Text(part) => Some(String::from_utf8_lossy(part)),
    }
}

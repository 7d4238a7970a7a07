//! What a line says about its answer: one fact each, the same in expectations and in output.

use std::fmt;

use tidegate_core::{Decision, Denial, Micros, Reply, Verdict, Wait};

use super::scan::{Cursor, Word};
use crate::simulation::call::{Action, Call};
use crate::simulation::problem::{Fault, nearest};
use crate::simulation::replay::{Answer, Simulation};
use crate::simulation::time::parse_length;

/// One fact about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clause {
    /// `allow`
    Allow,
    /// `deny`, for whatever reason.
    Deny,
    /// `limited`, `blocked`, `impossible`, `table_full`: denied for this reason.
    Because(Reason),
    /// `remaining 4`
    Remaining(u32),
    /// `retry after 1500ms`
    RetryAfter(Wait),
    /// `reset after 2s`
    ResetAfter(Wait),
    /// `delay 200ms`
    Delay(Wait),
    /// `by stage`: the limit that decided.
    By(Box<str>),
    /// `took 3`: what a take_up_to got.
    Took(u32),
    /// `fencing 7`
    Fencing(u64),
    /// `shadow`: decided, not enforced.
    Shadow,
    /// `released true`
    Released(bool),
    /// `renewed true`
    Renewed(bool),
    /// `refunded 2`
    Refunded(u32),
    /// `used 3`
    Used(u32),
    /// `blocked for 10s`
    BlockedFor(Micros),
    /// `leases 2`
    Leases(u32),
    /// `done`
    Done,
    /// `unsupported`: the algorithm has no such operation.
    Unsupported,
}

/// Why a call was denied, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Limited,
    Blocked,
    Impossible,
    TableFull,
    Other,
}

impl Reason {
    const ALL: [Self; 4] = [
        Self::Limited,
        Self::Blocked,
        Self::Impossible,
        Self::TableFull,
    ];

    const fn of(denial: Denial) -> Self {
        match denial {
            Denial::Limited => Self::Limited,
            Denial::Blocked => Self::Blocked,
            Denial::Impossible => Self::Impossible,
            Denial::TableFull => Self::TableFull,
            _ => Self::Other,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Blocked => "blocked",
            Self::Impossible => "impossible",
            Self::TableFull => "table_full",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
            Self::Deny => f.write_str("deny"),
            Self::Because(reason) => f.write_str(reason.word()),
            Self::Remaining(units) => write!(f, "remaining {units}"),
            Self::RetryAfter(Wait::NEVER) => f.write_str("retry never"),
            Self::RetryAfter(wait) => write!(f, "retry after {wait}"),
            Self::ResetAfter(Wait::NEVER) => f.write_str("reset never"),
            Self::ResetAfter(wait) => write!(f, "reset after {wait}"),
            Self::Delay(wait) => write!(f, "delay {wait}"),
            Self::By(limit) => write!(f, "by {limit}"),
            Self::Took(units) => write!(f, "took {units}"),
            Self::Fencing(token) => write!(f, "fencing {token}"),
            Self::Shadow => f.write_str("shadow"),
            Self::Released(live) => write!(f, "released {live}"),
            Self::Renewed(live) => write!(f, "renewed {live}"),
            Self::Refunded(units) => write!(f, "refunded {units}"),
            Self::Used(units) => write!(f, "used {units}"),
            Self::BlockedFor(period) => write!(f, "blocked for {period}"),
            Self::Leases(count) => write!(f, "leases {count}"),
            Self::Done => f.write_str("done"),
            Self::Unsupported => f.write_str("unsupported"),
        }
    }
}

/// The first words of all clauses.
const WORDS: [&str; 21] = [
    "allow",
    "deny",
    "limited",
    "blocked",
    "impossible",
    "table_full",
    "remaining",
    "retry",
    "reset",
    "delay",
    "by",
    "took",
    "fencing",
    "shadow",
    "released",
    "renewed",
    "refunded",
    "used",
    "leases",
    "done",
    "unsupported",
];

impl Clause {
    /// Reads the next clause.
    ///
    /// # Errors
    /// A word that begins no clause, or one without its value.
    pub fn read(first: Word<'_>, cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        Ok(match first.text {
            "allow" => Self::Allow,
            "deny" => Self::Deny,
            "blocked" if cursor.accept("for") => Self::BlockedFor(length(cursor)?),
            "remaining" => Self::Remaining(count(cursor, "a number")?),
            "retry" => Self::RetryAfter(wait_after(cursor)?),
            "reset" => Self::ResetAfter(wait_after(cursor)?),
            "delay" => Self::Delay(wait(cursor)?),
            "by" => Self::By(cursor.expect("the name of a limit")?.text.into()),
            "took" => Self::Took(count(cursor, "a number")?),
            "fencing" => Self::Fencing(number(cursor, "a number")?),
            "shadow" => Self::Shadow,
            "released" => Self::Released(truth(cursor)?),
            "renewed" => Self::Renewed(truth(cursor)?),
            "refunded" => Self::Refunded(count(cursor, "a number")?),
            "used" => Self::Used(count(cursor, "a number")?),
            "leases" => Self::Leases(count(cursor, "a number")?),
            "done" => Self::Done,
            "unsupported" => Self::Unsupported,
            word => match Reason::ALL.into_iter().find(|reason| reason.word() == word) {
                Some(reason) => Self::Because(reason),
                None => {
                    let fault = first.fault(format!("{word} begins no expectation"));
                    return Err(match nearest(word, WORDS) {
                        Some(known) => fault.help(format!("is {known} meant?")),
                        None => fault.help(format!("known are {}", WORDS.join(", "))),
                    });
                }
            },
        })
    }

    /// The fact of the same kind that the answer holds; none if it holds no such fact.
    pub fn actual(&self, answer: &Answer, simulation: &Simulation) -> Option<Self> {
        let decision = answer.reply.decision();
        let verdict = || {
            decision.map(|decision| match decision.verdict {
                Verdict::Allow => Self::Allow,
                Verdict::Deny(_) => Self::Deny,
            })
        };
        match self {
            Self::Allow | Self::Deny => verdict(),
            Self::Because(_) => decision.map(|decision| match decision.verdict {
                Verdict::Allow => Self::Allow,
                Verdict::Deny(denial) => Self::Because(Reason::of(denial)),
            }),
            Self::Shadow => decision.and_then(|decision| {
                if decision.shadow {
                    Some(Self::Shadow)
                } else {
                    verdict()
                }
            }),
            Self::By(_) => decision.map(|_| Self::By(answer.limit(simulation).into())),
            Self::RetryAfter(_) => decision.map(|decision| Self::RetryAfter(decision.retry_after)),
            Self::Delay(_) => decision.map(|decision| Self::Delay(decision.delay)),
            Self::Took(_) => decision.map(|decision| {
                Self::Took(if decision.is_allowed() {
                    decision.cost
                } else {
                    0
                })
            }),
            Self::Remaining(_) => match &answer.reply {
                Reply::State(state) => Some(Self::Remaining(state.remaining)),
                _ => decision.map(|decision| Self::Remaining(decision.remaining)),
            },
            Self::ResetAfter(_) => match &answer.reply {
                Reply::State(state) => Some(Self::ResetAfter(state.reset_after)),
                _ => decision.map(|decision| Self::ResetAfter(decision.reset_after)),
            },
            Self::Fencing(_) => answer
                .grant()
                .map(|grant| Self::Fencing(grant.fencing_token)),
            Self::Released(_) => match answer.reply {
                Reply::Released(live) => Some(Self::Released(live)),
                _ => None,
            },
            Self::Renewed(_) => match &answer.reply {
                Reply::Renewed(grant) => Some(Self::Renewed(grant.is_some())),
                _ => None,
            },
            Self::Refunded(_) => match answer.reply {
                Reply::Refunded(units) => Some(Self::Refunded(units)),
                _ => None,
            },
            Self::Used(_) => match &answer.reply {
                Reply::State(state) => Some(Self::Used(state.used)),
                _ => None,
            },
            Self::BlockedFor(_) => match &answer.reply {
                Reply::State(state) => Some(Self::BlockedFor(state.blocked_for)),
                _ => None,
            },
            Self::Leases(_) => match &answer.reply {
                Reply::State(state) => Some(Self::Leases(
                    u32::try_from(state.leases.len()).unwrap_or(u32::MAX),
                )),
                _ => None,
            },
            Self::Done => match answer.reply {
                Reply::Done => Some(Self::Done),
                _ => None,
            },
            Self::Unsupported => None,
        }
    }

    /// What a line of output says about an answer: enough to replay it, no more than a person
    /// wants to read.
    pub fn of(call: &Call, answer: &Answer, simulation: &Simulation) -> Vec<Self> {
        let mut clauses = Vec::new();
        match &answer.reply {
            Reply::Decision(decision)
            | Reply::Reserved(decision, _)
            | Reply::Leased(decision, _) => {
                Self::of_decision(decision, &mut clauses);
                if decision.is_allowed() && matches!(call.action, Action::TakeUpTo(_)) {
                    clauses.push(Self::Took(decision.cost));
                }
                if let Some(grant) = answer.grant() {
                    clauses.push(Self::Fencing(grant.fencing_token));
                }
                if answer.members.len() > 1 {
                    clauses.push(Self::By(answer.limit(simulation).into()));
                }
            }
            Reply::Refunded(units) => clauses.push(Self::Refunded(*units)),
            Reply::Renewed(grant) => {
                clauses.push(Self::Renewed(grant.is_some()));
            }
            Reply::Released(live) => clauses.push(Self::Released(*live)),
            Reply::State(state) => {
                clauses.push(Self::Used(state.used));
                clauses.push(Self::Remaining(state.remaining));
                clauses.push(Self::ResetAfter(state.reset_after));
                if state.blocked_for > Micros::ZERO {
                    clauses.push(Self::BlockedFor(state.blocked_for));
                }
                if !state.leases.is_empty() {
                    clauses.push(Self::Leases(
                        u32::try_from(state.leases.len()).unwrap_or(u32::MAX),
                    ));
                }
            }
            _ if matches!(call.action, Action::SetPolicy(_)) => {}
            _ => clauses.push(Self::Done),
        }
        clauses
    }

    fn of_decision(decision: &Decision, clauses: &mut Vec<Self>) {
        match decision.verdict {
            Verdict::Allow => {
                clauses.push(Self::Allow);
                clauses.push(Self::Remaining(decision.remaining));
                if decision.delay > Wait::ZERO {
                    clauses.push(Self::Delay(decision.delay));
                }
            }
            Verdict::Deny(denial) => {
                clauses.push(Self::Deny);
                if decision.remaining > 0 {
                    clauses.push(Self::Remaining(decision.remaining));
                }
                clauses.push(Self::RetryAfter(decision.retry_after));
                if denial != Denial::Limited {
                    clauses.push(Self::Because(Reason::of(denial)));
                }
            }
        }
        if decision.shadow {
            clauses.push(Self::Shadow);
        }
    }
}

/// Whether a word begins a clause.
pub(crate) fn begins_clause(word: &str) -> bool {
    WORDS.contains(&word)
}

/// Reads a number up to 2^31 - 1: a cost, a count.
pub(crate) fn count(cursor: &mut Cursor<'_>, what: &str) -> Result<u32, Fault> {
    let word = cursor.expect(what)?;
    let value = parse_number(word, what)?;
    u32::try_from(value)
        .ok()
        .filter(|value| *value <= tidegate_core::MAX_COUNT)
        .ok_or_else(|| word.fault(format!("{value} is above 2147483647, the largest count")))
}

fn number(cursor: &mut Cursor<'_>, what: &str) -> Result<u64, Fault> {
    let word = cursor.expect(what)?;
    parse_number(word, what)
}

fn parse_number(word: Word<'_>, what: &str) -> Result<u64, Fault> {
    word.text.parse().map_err(|_| {
        word.fault(format!("{} is not {what}", word.text))
            .help("write it in digits")
    })
}

/// Reads a length of time.
pub(crate) fn length(cursor: &mut Cursor<'_>) -> Result<Micros, Fault> {
    let word = cursor.expect("a length of time")?;
    parse_length(word.text).map_err(|(message, remedy)| {
        let mut fault = word.fault(message);
        fault.remedy = remedy;
        fault
    })
}

fn wait(cursor: &mut Cursor<'_>) -> Result<Wait, Fault> {
    if cursor.accept("never") {
        return Ok(Wait::NEVER);
    }
    Ok(Wait::micros(length(cursor)?.0))
}

/// Reads `after T`, or `never` with or without `after`.
fn wait_after(cursor: &mut Cursor<'_>) -> Result<Wait, Fault> {
    if cursor.accept("never") {
        return Ok(Wait::NEVER);
    }
    if !cursor.accept("after") {
        let word = cursor.expect("the word after")?;
        return Err(word
            .fault("the word after is missing before this")
            .help("as in retry after 2s"));
    }
    wait(cursor)
}

fn truth(cursor: &mut Cursor<'_>) -> Result<bool, Fault> {
    let word = cursor.expect("true or false")?;
    word.text
        .parse()
        .map_err(|_| word.fault("neither true nor false"))
}

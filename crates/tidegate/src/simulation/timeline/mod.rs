//! The timeline format: one syntax for tests, documents, bug reports and output.
//!
//! ```text
//! # One token every two seconds, five at most.
//! limit login: token_bucket rate 1/2s capacity 5 refill interval
//!      0ms asha        take 1  allow  remaining 4
//!    500ms asha        take 5  deny   remaining 4  retry after 1500ms
//! ```
//!
//! **A header** is `limit NAME: ALGORITHM` and the configuration's fields as `name value` pairs.
//! After a comma stand settings of the limit itself, each pair after a comma of its own:
//! `mode shadow`, `key client_ip query.user_id`, `max_keys 1000`, `when_full deny_new`.
//!
//! **A line** is `TIME KEY OPERATION [ARGUMENTS] [EXPECTATIONS]`.
//! - `TIME` is a length since the epoch whose unit touches the number (`500ms`, `1h30m`; us, ms,
//!   s, m, h, d), or an instant of RFC 3339 (`1995-08-01T13:30:03Z`). Lines are obeyed in the
//!   order in which they stand, also where time steps back.
//! - `KEY` is a word (`asha`), or quoted (`"GET /vips"`, with `\"`, `\\`, `\n`, `\t`, `\xNN`), or
//!   the parts of a key in brackets (`[198.18.0.2,/login]`, where `-` is a part that is missing).
//! - With several limits, `LIMIT=KEY` says which: `per-user=asha take 1`. Several such pairs on
//!   one line pass together or not at all: `per-user=asha stage="GET /vips" take 1`.
//! - `#` at the beginning of a word begins a comment.
//!
//! | operation | arguments |
//! |---|---|
//! | `take`, `peek`, `refund`, `force` | `[COST]`, 1 if absent |
//! | `take_up_to` | `COST` |
//! | `reserve` | `COST MAX_WAIT [as NAME]`; then `settle NAME ACTUAL` or `cancel NAME` |
//! | `acquire` | `PERMIT [WEIGHT]`; then `renew PERMIT`, `release PERMIT` |
//! | `attempt`, `success`, `reset`, `unblock`, `state` | |
//! | `block` | `FOR` |
//! | `set_policy` | `ALGORITHM name value …[, mode keep_used\|proportional\|keep_available\|reset]`; the limit's name stands where the key would |
//!
//! **Expectations** that are present are compared, in any order: `allow`, `deny`, `limited`,
//! `blocked`, `impossible`, `table_full`, `remaining N`, `retry after T`, `retry never`,
//! `reset after T`, `delay T`, `by LIMIT` (which limit decided), `took N`,
//! `fencing N`, `shadow`, `released true`, `renewed true`, `refunded N`, `used N`, `leases N`,
//! `blocked for T`, `done`, and `unsupported` for an operation that the algorithm does not have.
//!
//! The one surprise: output is a timeline too, so what was printed can be replayed as a test.

mod clause;
mod header;
mod scan;

use std::fmt::Write as _;

use smallvec::{SmallVec, smallvec};

use self::clause::{begins_clause, count, length};
use self::scan::{Cursor, Word, words};
use super::call::{
    ACTIONS, Action, CHANGE_MODES, Call, Change, LimitNumber, Reserve, Settle, Target,
};
use super::keys::{self, KeyText};
use super::problem::{Fault, nearest};
use super::replay::{Answer, Simulation};
use super::time::{Written as WrittenTime, parse_time};

pub(crate) use self::clause::Clause;

/// A line as a person wrote it, with what was expected of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The whole line.
    pub text: Box<str>,
    /// Where the word of the operation begins, and its length.
    pub operation: (usize, usize),
    /// The expectations, each with its offset and length.
    pub clauses: Vec<(Clause, usize, usize)>,
}

/// Whether a line can only be one of a timeline.
pub(crate) fn looks_like(line: &str) -> bool {
    let Ok(words) = words(line) else { return false };
    match words.as_slice() {
        [first, name, _, ..] if first.text == "limit" => name.text.ends_with(':'),
        [time, _, rest @ ..] => {
            parse_time(time.text).is_ok() && rest.iter().any(|word| ACTIONS.contains(&word.text))
        }
        _ => false,
    }
}

/// Reads one line: a header adds its limit to the simulation, a call is returned.
pub(crate) fn read_line(
    text: &str,
    trace: u32,
    line: u64,
    simulation: &mut Simulation,
) -> Result<Option<Call>, Fault> {
    let words = words(text)?;
    let mut cursor = Cursor::new(&words);
    let Some(first) = cursor.take() else {
        return Ok(None);
    };
    if first.text == "limit" {
        header::read(&mut cursor, simulation)?;
        return Ok(None);
    }
    let at = parse_time(first.text).map_err(|(message, remedy)| {
        let mut fault = first.fault(message);
        fault.remedy = remedy.or_else(|| Some("a line begins with its time".to_owned()));
        fault
    })?;
    let (subject, operation) = subject(&mut cursor)?;
    let (action, targets) = match operation.text {
        "set_policy" => (
            Action::SetPolicy(Box::new(change(&subject, &mut cursor, simulation)?)),
            smallvec![],
        ),
        _ => {
            let action = action(operation, &mut cursor)?;
            let targets = targets(&subject, simulation)?;
            if targets.len() > 1 && !action.combines() {
                return Err(operation
                    .fault(format!("{} works on one limit at a time", operation.text))
                    .help("write one line for each limit"));
            }
            (action, targets)
        }
    };
    let mut clauses = Vec::new();
    while let Some(word) = cursor.take() {
        let clause = Clause::read(word, &mut cursor)?;
        let end = cursor.peek().map_or(text.len(), |next| next.start);
        let length = text[word.start..end].trim_end().len();
        clauses.push((clause, word.start, length));
    }
    let written = Written {
        text: text.into(),
        operation: (operation.start, operation.text.len()),
        clauses,
    };
    Ok(Some(Call {
        at,
        trace,
        line,
        action,
        targets,
        written: Some(Box::new(written)),
    }))
}

/// What stands between the time and the operation: a key, or pairs of limit and key.
fn subject<'a>(cursor: &mut Cursor<'a>) -> Result<(Vec<Word<'a>>, Word<'a>), Fault> {
    let mut subject = vec![cursor.expect("a key")?];
    loop {
        let word = cursor.expect("an operation, such as take,")?;
        if ACTIONS.contains(&word.text) {
            return Ok((subject, word));
        }
        if split_pair(word).is_none() || split_pair(subject[0]).is_none() {
            let fault = word.fault(format!("{} is no operation", word.text));
            return Err(match nearest(word.text, ACTIONS) {
                Some(known) => fault.help(format!("is {known} meant?")),
                None => fault.help(format!("known are {}", ACTIONS.join(", "))),
            });
        }
        subject.push(word);
    }
}

/// A word that reads `LIMIT=KEY`, as its two halves.
fn split_pair(word: Word<'_>) -> Option<(&str, &str)> {
    let (name, key) = word.text.split_once('=')?;
    let plain = !name.is_empty() && !name.contains(['"', '[']);
    if plain { Some((name, key)) } else { None }
}

fn targets(
    subject: &[Word<'_>],
    simulation: &mut Simulation,
) -> Result<SmallVec<[Target; 1]>, Fault> {
    let mut targets = SmallVec::new();
    for word in subject {
        let (limit, key, offset) = match split_pair(*word) {
            Some((name, key)) => {
                let Some(limit) = simulation.find(name) else {
                    return Err(unknown_limit(*word, name, simulation).help_if_none(format!(
                        "a key with = in it needs quotes: \"{}\"",
                        word.text
                    )));
                };
                (limit, key, name.len() + 1)
            }
            None => (only_limit(*word, simulation)?, word.text, 0),
        };
        let key = keys::parse(key)
            .map_err(|(at, message)| Fault::new(word.start + offset + at, 1, message))?;
        targets.push(Target {
            limit,
            key: simulation.key_number(limit, &key),
        });
    }
    Ok(targets)
}

/// The limit of a line that names none.
fn only_limit(word: Word<'_>, simulation: &Simulation) -> Result<LimitNumber, Fault> {
    match simulation.only() {
        Ok(limit) => Ok(limit),
        Err(0) => Err(word
            .fault("there is no limit to ask")
            .help("begin with a header such as: limit login: token_bucket rate 1/2s capacity 5")),
        Err(count) => {
            let first = simulation.names().next().unwrap_or("login");
            Err(word
                .fault(format!(
                    "there are {count} limits, and this line does not say which it means"
                ))
                .help(format!("write {first}={}", word.text)))
        }
    }
}

fn unknown_limit(word: Word<'_>, name: &str, simulation: &Simulation) -> Fault {
    let fault = Fault::new(word.start, name.len(), format!("no limit is called {name}"));
    match nearest(name, simulation.names()) {
        Some(known) => fault.help(format!("is {known} meant?")),
        None => fault,
    }
}

fn action(word: Word<'_>, cursor: &mut Cursor<'_>) -> Result<Action, Fault> {
    Ok(match word.text {
        "take" => Action::Take(cost(cursor)?),
        "peek" => Action::Peek(cost(cursor)?),
        "refund" => Action::Refund(cost(cursor)?),
        "force" => Action::Force(cost(cursor)?),
        "take_up_to" => Action::TakeUpTo(count(cursor, "a cost")?),
        "attempt" => Action::Attempt,
        "success" => Action::Success,
        "reset" => Action::Reset,
        "unblock" => Action::Unblock,
        "state" => Action::State,
        "block" => Action::Block(length(cursor)?),
        "acquire" => {
            let permit = name(cursor, "the name of a permit")?;
            Action::Acquire {
                permit,
                weight: cost(cursor)?,
            }
        }
        "renew" => Action::Renew(name(cursor, "the name of a permit")?),
        "release" => Action::Release(name(cursor, "the name of a permit")?),
        "reserve" => {
            let cost = count(cursor, "a cost")?;
            let max_wait = length(cursor)?;
            let name = if cursor.accept("as") {
                Some(name(cursor, "a name")?)
            } else {
                None
            };
            Action::Reserve(Box::new(Reserve {
                cost,
                max_wait,
                name,
            }))
        }
        "settle" => {
            let name = name(cursor, "the name of a reservation")?;
            Action::Settle(Box::new(Settle {
                name,
                actual: count(cursor, "what was used")?,
            }))
        }
        "cancel" => Action::Cancel(name(cursor, "the name of a reservation")?),
        other => return Err(word.fault(format!("{other} is no operation"))),
    })
}

/// A cost if one is there, else 1.
fn cost(cursor: &mut Cursor<'_>) -> Result<u32, Fault> {
    match cursor.peek() {
        Some(word) if !begins_clause(word.text) => count(cursor, "a cost"),
        _ => Ok(1),
    }
}

fn name(cursor: &mut Cursor<'_>, what: &str) -> Result<Box<str>, Fault> {
    Ok(cursor.expect(what)?.text.into())
}

/// `LIMIT set_policy ALGORITHM name value …[, mode MODE]`
fn change(
    subject: &[Word<'_>],
    cursor: &mut Cursor<'_>,
    simulation: &Simulation,
) -> Result<Change, Fault> {
    let word = subject[0];
    let limit = match simulation.find(word.text) {
        Some(limit) if subject.len() == 1 => limit,
        _ => {
            return Err(unknown_limit(word, word.text, simulation).help_if_none(
                "set_policy follows the name of the limit that it changes".to_owned(),
            ));
        }
    };
    let algorithm = header::algorithm(cursor)?;
    let mut mode = tidegate_core::ChangeMode::KeepUsed;
    for setting in algorithm.settings {
        let [field, value] = setting.as_slice() else {
            let word = setting.first().copied().unwrap_or(word);
            return Err(word.fault("after the comma stands mode and its value"));
        };
        let known = CHANGE_MODES
            .into_iter()
            .find(|(name, _)| *name == value.text);
        match known {
            Some((_, found)) if field.text == "mode" => mode = found,
            _ if field.text != "mode" => {
                return Err(field
                    .fault(format!("{} is no setting of a change", field.text))
                    .help("only mode is"));
            }
            _ => {
                return Err(value
                    .fault(format!("{} is no mode of a change", value.text))
                    .help("known are keep_used, proportional, keep_available, reset"));
            }
        }
    }
    Ok(Change {
        limit,
        policy: algorithm.policy,
        mode,
        header: algorithm.text.into(),
    })
}

impl Fault {
    fn help_if_none(self, remedy: String) -> Self {
        if self.remedy.is_some() {
            self
        } else {
            self.help(remedy)
        }
    }
}

/// Writes a call and its answer as a line that could be replayed; none where the algorithm has
/// no such operation.
pub(crate) fn write_line(
    out: &mut String,
    simulation: &Simulation,
    call: &Call,
    answer: Option<&Answer>,
) {
    let _ = write!(
        out,
        "{:>8} {:<11} {:<6}",
        WrittenTime(call.at),
        Subject(simulation, call),
        Asked(simulation, call).to_string()
    );
    let clauses = match answer {
        Some(answer) => Clause::of(call, answer, simulation),
        None => vec![Clause::Unsupported],
    };
    for (position, clause) in clauses.iter().enumerate() {
        let _ = match position {
            // The column of what follows the verdict is the same for both.
            0 if clauses.len() > 1 => write!(out, "  {:<5}", clause.to_string()),
            _ => write!(out, "  {clause}"),
        };
    }
    out.push('\n');
}

/// The header of a limit, as a line without its end.
pub(crate) fn header_line(simulation: &Simulation, limit: LimitNumber) -> String {
    format!(
        "limit {}: {}{}",
        simulation.name(limit),
        simulation.header(limit),
        header::Settings(simulation.settings(limit))
    )
}

struct Subject<'a>(&'a Simulation, &'a Call);

impl std::fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(simulation, call) = self;
        let mut text = String::new();
        if let Action::SetPolicy(change) = &call.action {
            return f.pad(simulation.name(change.limit));
        }
        let named = simulation.only().is_err();
        for (position, target) in call.targets.iter().enumerate() {
            if position > 0 {
                text.push(' ');
            }
            if named {
                let _ = write!(text, "{}=", simulation.name(target.limit));
            }
            let _ = write!(text, "{}", KeyText(simulation.key(*target)));
        }
        f.pad(&text)
    }
}

struct Asked<'a>(&'a Simulation, &'a Call);

impl std::fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(simulation, call) = self;
        f.write_str(call.action.name())?;
        match &call.action {
            Action::Request => {
                let cost = call
                    .targets
                    .first()
                    .map_or(1, |target| simulation.cost(target.limit));
                write!(f, " {cost}")
            }
            Action::Take(cost)
            | Action::Peek(cost)
            | Action::TakeUpTo(cost)
            | Action::Refund(cost)
            | Action::Force(cost) => write!(f, " {cost}"),
            Action::Attempt | Action::Success | Action::Reset | Action::Unblock | Action::State => {
                Ok(())
            }
            Action::Block(period) => write!(f, " {period}"),
            Action::Acquire { permit, weight: 1 } => write!(f, " {permit}"),
            Action::Acquire { permit, weight } => write!(f, " {permit} {weight}"),
            Action::Renew(permit) | Action::Release(permit) => write!(f, " {permit}"),
            Action::Reserve(reserve) => {
                write!(f, " {} {}", reserve.cost, reserve.max_wait)?;
                reserve
                    .name
                    .as_ref()
                    .map_or(Ok(()), |name| write!(f, " as {name}"))
            }
            Action::Settle(settle) => write!(f, " {} {}", settle.name, settle.actual),
            Action::Cancel(name) => write!(f, " {name}"),
            Action::SetPolicy(change) => {
                write!(f, " {}", change.header)?;
                let mode = CHANGE_MODES
                    .into_iter()
                    .find(|(_, mode)| *mode == change.mode);
                match mode {
                    Some((name, mode)) if mode != tidegate_core::ChangeMode::KeepUsed => {
                        write!(f, ", mode {name}")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

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
mod print;
mod scan;

use smallvec::{SmallVec, smallvec};

use self::clause::{begins_clause, count, length};
use self::scan::{Cursor, Word, words};
use super::call::{
    ACTIONS, Action, CHANGE_MODES, Call, Change, LimitNumber, Reserve, Settle, Target,
};
use super::keys;
use super::problem::{Fault, nearest};
use super::replay::Simulation;
use super::time::parse_time;

pub(crate) use self::clause::Clause;
pub(crate) use self::print::{header_line, write_line};

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

#[cfg(test)]
mod tests {
    use crate::simulation::check;

    /// What is said to a timeline, without the place.
    fn refused(text: &str) -> String {
        check("timeline", text).unwrap_err().to_string()
    }

    #[test]
    fn every_part_of_a_line_is_read() {
        check(
            "all",
            "
            limit a: token_bucket rate 1/s capacity 5 # a comment
            limit b: concurrency limit 1 lease 30s

            1h30m a=\"x y\" b=[p,-] acquire j1  allow remaining 0 by b  # all at once
            5400s a=\"x y\" take 5  deny limited remaining 4  retry after 1s
            5400s b=[p,-]  release j1  released true
            1970-01-01T01:30:01+00:00 a=\"x y\" take 5  allow
            ",
        )
        .unwrap();
    }

    #[test]
    fn a_faulty_line_is_refused_with_its_place_and_a_remedy() {
        const ONE: &str = "limit login: gcra rate 1/s burst 5\n";
        const TWO: &str =
            "limit login: gcra rate 1/s burst 5\nlimit jobs: concurrency limit 1 lease 1s\n";
        for (header, line, place, words) in [
            ("", "0ms asha take", ":1:5", "begin with a header"),
            (
                ONE,
                "0 asha take",
                ":2:1",
                "write 0ms if milliseconds are meant",
            ),
            (ONE, "0ms asha tke 1", ":2:10", "is take meant?"),
            (
                ONE,
                "0ms asha",
                ":2:9",
                "an operation, such as take, is missing here",
            ),
            (ONE, "0ms", ":2:4", "a key is missing here"),
            (ONE, "0ms asha take x", ":2:15", "x is not a cost"),
            (ONE, "0ms asha take 2147483648", ":2:15", "above 2147483647"),
            (ONE, "0ms asha take 1 alow", ":2:17", "is allow meant?"),
            (
                ONE,
                "0ms asha take 1 retry 5s",
                ":2:23",
                "as in retry after 2s",
            ),
            (
                ONE,
                "0ms asha take 1 remaining",
                ":2:26",
                "a number is missing here",
            ),
            (
                ONE,
                "0ms asha block",
                ":2:15",
                "a length of time is missing here",
            ),
            (ONE, "0ms logn=asha take", ":2:5", "is login meant?"),
            (ONE, "0ms id=7 take", ":2:5", "quotes: \"id=7\""),
            (ONE, "0ms \"asha take", ":2:5", "never closed"),
            (ONE, "0ms [asha take", ":2:10", "ends with ]"),
            (ONE, "0ms login set_policy gcra rate 1/s", ":2:22", "burst"),
            (
                ONE,
                "0ms asha set_policy gcra rate 1/s burst 1",
                ":2:5",
                "name of the limit",
            ),
            (
                ONE,
                "0ms login set_policy gcra rate 1/s burst 1, mode keep",
                ":2:50",
                "keep_used",
            ),
            (ONE, "0ms asha release p1", ":2:10", "use"),
            (TWO, "0ms asha take", ":3:5", "write login=asha"),
            (
                TWO,
                "0ms login=asha jobs=k refund",
                ":3:23",
                "one line for each limit",
            ),
            (ONE, "limit login: gcra rate 1/s burst 5", ":2:7", "already"),
            (
                "",
                "limit login gcra rate 1/s burst 5",
                ":1:7",
                "ends with a colon",
            ),
            (
                "",
                "limit login: gcra rate 1/s burst",
                ":1:28",
                "burst has no value",
            ),
            ("", "limit login: gcrb rate 1/s burst 5", ":1:14", "gcra"),
            (
                "",
                "limit a: gcra rate 1/s burst 5, mode dark",
                ":1:38",
                "enforce, shadow, off",
            ),
            (
                "",
                "limit a: gcra rate 1/s burst 5, key querry.id",
                ":1:37",
                "query",
            ),
            (
                "",
                "limit a: gcra rate 1/s burst 5, cost 5",
                ":1:33",
                "known are mode",
            ),
            ("", "limit a: gcra rate 1/s burst 5,", ":1:7", "last comma"),
        ] {
            let error = refused(&format!("{header}{line}\n"));
            assert!(
                error.contains(&format!("timeline{place}\n")),
                "{line}\n{error}"
            );
            assert!(error.contains(words), "{line}\n{error}");
        }
    }

    #[test]
    fn a_timeline_that_expects_nothing_is_no_test() {
        let error = refused("limit login: gcra rate 1/s burst 5\n0ms asha take\n");
        assert!(error.contains("expects nothing"), "{error}");
    }
}

//! `COMMAND`: what the door has, for clients that ask before they send.

use super::frame::Command;
use super::reply::{Replies, quote};

/// A command as clients see it.
struct Entry {
    name: &'static str,
    /// How many arguments, the name included; negative where that is the least.
    arity: i64,
    /// Whether it changes something.
    writes: bool,
    /// Where its key stands; 0 for none.
    key: i64,
}

const fn entry(name: &'static str, arity: i64, writes: bool, key: i64) -> Entry {
    Entry {
        name,
        arity,
        writes,
        key,
    }
}

const COMMANDS: [Entry; 18] = [
    entry("auth", -2, false, 0),
    entry("cl.throttle", -5, true, 1),
    entry("client", -2, false, 0),
    entry("command", -1, false, 0),
    entry("echo", 2, false, 0),
    entry("hello", -1, false, 0),
    entry("info", -1, false, 0),
    entry("ping", -1, false, 0),
    entry("quit", 1, false, 0),
    entry("reset", 1, false, 0),
    entry("select", 2, false, 0),
    entry("tg.acquire", -4, true, 2),
    entry("tg.explain", -2, false, 2),
    entry("tg.peek", -3, false, 2),
    entry("tg.refund", -3, true, 2),
    entry("tg.release", 4, true, 2),
    entry("tg.renew", 4, true, 2),
    entry("tg.take", -3, true, 2),
];

/// Answers `COMMAND` and its sub-commands.
pub(crate) fn answer(command: Command<'_>, replies: &mut Replies<'_>) {
    let asked = command.get(1).unwrap_or_default().to_ascii_uppercase();
    match asked.as_slice() {
        b"" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|entry| write(entry, replies));
        }
        b"COUNT" => replies.int(COMMANDS.len() as i64),
        b"LIST" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|entry| replies.text(entry.name));
        }
        b"INFO" => {
            replies.array(command.len() - 2);
            for place in 2..command.len() {
                let name = command.get(place).unwrap_or_default();
                let known = COMMANDS
                    .iter()
                    .find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name));
                match known {
                    Some(entry) => write(entry, replies),
                    None => replies.null(),
                }
            }
        }
        // There is nothing to read there: an empty book is what an interactive client needs.
        b"DOCS" => replies.map(0),
        other => replies.error(&format!("ERR unknown subcommand {}", quote(other))),
    }
}

fn write(entry: &Entry, replies: &mut Replies<'_>) {
    replies.array(6);
    replies.text(entry.name);
    replies.int(entry.arity);
    let flags = [if entry.writes { "write" } else { "readonly" }, "fast"];
    replies.array(flags.len());
    flags.iter().for_each(|flag| replies.simple(flag));
    let step = i64::from(entry.key > 0);
    replies.int(entry.key);
    replies.int(entry.key);
    replies.int(step);
}

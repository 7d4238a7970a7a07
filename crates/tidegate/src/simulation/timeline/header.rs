//! A header: one limit with its algorithm and settings.

use std::fmt;

use tidegate_config::algorithm_from_pairs;
use tidegate_core::{Policy, Timestamp};

use super::scan::{Cursor, Word};
use crate::simulation::problem::Fault;
use crate::simulation::replay::{LimitSettings, Simulation};
use crate::simulation::request::KeySource;
use crate::{Mode, WhenFull};

/// An algorithm as words, read.
pub(super) struct Algorithm<'a> {
    pub policy: Policy,
    /// Its text form.
    pub text: String,
    /// What stands after each comma.
    pub settings: Vec<Vec<Word<'a>>>,
}

/// Reads what follows the word `limit` and adds the limit to the simulation.
pub(super) fn read(cursor: &mut Cursor<'_>, simulation: &mut Simulation) -> Result<(), Fault> {
    let name = cursor.expect("the name of the limit")?;
    let Some(text) = name.text.strip_suffix(':').filter(|text| !text.is_empty()) else {
        return Err(name
            .fault("a limit's name ends with a colon")
            .help("as in: limit login: token_bucket rate 1/2s capacity 5"));
    };
    if let Some(at) = text.find(['=', '"', '[', ',']) {
        return Err(Fault::new(
            name.start + at,
            1,
            "a limit's name has no such character here",
        )
        .help("use letters, digits, - and _"));
    }
    let algorithm = algorithm(cursor)?;
    let mut settings = LimitSettings::default();
    for words in &algorithm.settings {
        setting(words, &mut settings, name)?;
    }
    simulation
        .add(text, algorithm.policy, algorithm.text, settings)
        .map(|_| ())
        .map_err(|error| {
            name.fault(error.to_string())
                .help("remove this header or rename it")
        })
}

/// Reads `ALGORITHM name value …` and what stands after commas.
pub(super) fn algorithm<'a>(cursor: &mut Cursor<'a>) -> Result<Algorithm<'a>, Fault> {
    let name = cursor.expect("the name of an algorithm")?;
    let mut groups = groups(cursor.rest());
    let fields = groups.remove(0);
    let end = fields.last().map_or(name.end(), Word::end);
    let mut pairs = Vec::with_capacity(fields.len() / 2);
    for pair in fields.chunks(2) {
        match pair {
            [field, value] => pairs.push((field.text, value.text)),
            _ => {
                return Err(pair[0]
                    .fault(format!("{} has no value", pair[0].text))
                    .help("fields stand as name value pairs, as in: rate 1/2s capacity 5"));
            }
        }
    }
    let whole = Fault::new(name.start, end - name.start, "");
    let config = algorithm_from_pairs(name.text, &pairs).map_err(|error| Fault {
        message: error.to_string(),
        ..whole.clone()
    })?;
    let policy = config.policy(Timestamp::EPOCH).map_err(|problem| Fault {
        message: problem.to_string(),
        remedy: Some(problem.help),
        ..whole
    })?;
    Ok(Algorithm {
        policy,
        text: config.to_string(),
        settings: groups,
    })
}

/// Words between commas; a comma touches the word before it or stands alone.
fn groups<'a>(words: &[Word<'a>]) -> Vec<Vec<Word<'a>>> {
    let mut groups = vec![Vec::new()];
    for word in words {
        let text = word.text.trim_end_matches(',');
        if !text.is_empty() {
            groups.last_mut().expect("never empty").push(Word {
                text,
                start: word.start,
            });
        }
        if text.len() < word.text.len() {
            groups.push(Vec::new());
        }
    }
    groups
}

fn setting(words: &[Word<'_>], settings: &mut LimitSettings, name: Word<'_>) -> Result<(), Fault> {
    let Some((field, values)) = words.split_first() else {
        return Err(name.fault("nothing follows the last comma of this limit"));
    };
    let one = || match values {
        [value] => Ok(*value),
        _ => Err(field.fault(format!("{} takes one value", field.text))),
    };
    match field.text {
        "mode" => {
            let value = one()?;
            settings.mode = mode(value.text).ok_or_else(|| {
                value
                    .fault(format!("{} is no mode of a limit", value.text))
                    .help("known are enforce, shadow, off, and a percentage such as 10%")
            })?;
        }
        "max_keys" => {
            let value = one()?;
            settings.max_keys = value
                .text
                .parse()
                .map_err(|_| value.fault(format!("{} is no number of keys", value.text)))?;
        }
        "when_full" => {
            let value = one()?;
            settings.when_full = match value.text {
                "overflow" => WhenFull::Overflow,
                "deny_new" => WhenFull::DenyNew,
                "evict" => WhenFull::Evict,
                other => {
                    return Err(value
                        .fault(format!("{other} is no behaviour of a full table"))
                        .help("known are overflow, deny_new, evict"));
                }
            };
        }
        "key" => {
            for value in values {
                let source = KeySource::parse(value.text)
                    .map_err(|(message, help)| value.fault(message).help(help))?;
                settings.keyed_by.push(source);
            }
        }
        other => {
            return Err(field
                .fault(format!("{other} is no setting of a limit"))
                .help("known are mode, key, max_keys, when_full"));
        }
    }
    Ok(())
}

/// The settings that change answers, as a header writes them: none that has its default.
pub(super) struct Settings<'a>(pub &'a LimitSettings);

impl fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = LimitSettings::default();
        match self.0.mode {
            Mode::Enforce => {}
            Mode::Shadow => f.write_str(", mode shadow")?,
            Mode::Off => f.write_str(", mode off")?,
            Mode::Percent(share) => write!(f, ", mode {share}%")?,
        }
        if self.0.max_keys != default.max_keys {
            write!(f, ", max_keys {}", self.0.max_keys)?;
        }
        match self.0.when_full {
            WhenFull::Overflow => Ok(()),
            WhenFull::DenyNew => f.write_str(", when_full deny_new"),
            WhenFull::Evict => f.write_str(", when_full evict"),
        }
    }
}

/// Reads a mode: `enforce`, `shadow`, `off` or a percentage.
pub(super) fn mode(text: &str) -> Option<Mode> {
    Some(match text {
        "enforce" => Mode::Enforce,
        "shadow" => Mode::Shadow,
        "off" => Mode::Off,
        _ => {
            let percent: u8 = text.strip_suffix('%')?.parse().ok()?;
            if percent > 100 {
                return None;
            }
            Mode::Percent(percent)
        }
    })
}

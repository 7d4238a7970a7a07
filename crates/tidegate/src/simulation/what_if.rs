//! Other numbers for a limit, tried on the same calls in the same pass.
//!
//! `per-user.limit=50/1m,100/1m` gives one field of a configured algorithm other values, and
//! `per-user=sliding_log limit 100/1m,token_bucket rate 100/1m capacity 20` puts other algorithms
//! in its place, as the header of a timeline writes them.

use tidegate_config::algorithm_from_pairs;
use tidegate_core::{Policy, Timestamp, Wait};

use super::call::{Call, LimitNumber, Target};
use super::keys::{KeyNumber, KeyText};
use super::output::JsonKey;
use super::problem::nearest;
use super::replay::{CallError, Scope, Simulation, VariantNumber};
use super::waits::Waits;

/// Other numbers for a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Which limit.
    pub limit: LimitNumber,
    /// What is other, in a word or two: the value of the field, or the whole algorithm.
    pub label: String,
    /// The algorithm as a timeline's header writes it.
    pub header: String,
    /// The numbers for the engine.
    pub policy: Policy,
}

/// Why a text names no alternatives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {message}")]
pub struct AlternativeError {
    text: String,
    message: String,
}

impl Alternative {
    /// Reads `LIMIT.FIELD=VALUE,…` or `LIMIT=ALGORITHM FIELD VALUE …,…`.
    ///
    /// # Errors
    /// There is no such limit or field, or the numbers do not make an algorithm; with the remedy.
    pub fn parse(text: &str, simulation: &Simulation) -> Result<Vec<Self>, AlternativeError> {
        let error = |message: String| AlternativeError {
            text: text.to_owned(),
            message,
        };
        let Some((place, values)) = text.split_once('=') else {
            return Err(error(
                "write LIMIT.FIELD=VALUE,… as in per-user.limit=50/1m,100/1m, or \
                 LIMIT=ALGORITHM FIELD VALUE … for another algorithm"
                    .to_owned(),
            ));
        };
        let place = place.trim();
        let (limit, field) = match (simulation.find(place), place.rsplit_once('.')) {
            (Some(limit), _) => (limit, None),
            (None, Some((name, field))) => match simulation.find(name) {
                Some(limit) => (limit, Some(field)),
                None => return Err(error(unknown(name, simulation))),
            },
            (None, None) => return Err(error(unknown(place, simulation))),
        };
        let values = values.split(',').map(str::trim);
        values
            .map(|value| {
                let (label, header) = match field {
                    None => (value.to_owned(), value.to_owned()),
                    Some(field) => (
                        format!("{field} {value}"),
                        with_field(simulation.header(limit), field, value),
                    ),
                };
                let mut alternative = Self::of_header(limit, &header).map_err(error)?;
                alternative.label = label;
                Ok(alternative)
            })
            .collect()
    }

    /// The numbers that a limit has already.
    #[must_use]
    pub fn configured(limit: LimitNumber, simulation: &Simulation) -> Self {
        Self {
            limit,
            label: "as configured".to_owned(),
            header: simulation.header(limit).to_owned(),
            policy: simulation.limiter(limit).policy(),
        }
    }

    /// Reads an algorithm as the header of a timeline writes it.
    ///
    /// # Errors
    /// It is none, with the remedy.
    pub(crate) fn of_header(limit: LimitNumber, header: &str) -> Result<Self, String> {
        let mut words = header.split_whitespace();
        let Some(algorithm) = words.next() else {
            return Err("a value is missing between two commas".to_owned());
        };
        let words: Vec<&str> = words.collect();
        let pairs = words.chunks(2).map(|pair| match pair {
            [name, value] => Ok((*name, *value)),
            _ => Err(format!("{} has no value", pair.join(" "))),
        });
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let config = algorithm_from_pairs(algorithm, &pairs).map_err(|error| error.to_string())?;
        let policy = config
            .policy(Timestamp::EPOCH)
            .map_err(|problem| format!("{problem}; {}", problem.help))?;
        let header = config.to_string();
        Ok(Self {
            limit,
            label: header.clone(),
            header,
            policy,
        })
    }
}

fn unknown(name: &str, simulation: &Simulation) -> String {
    let known: Vec<&str> = simulation.names().collect();
    match nearest(name, known.iter().copied()) {
        Some(meant) => format!("no limit is called {name}; is {meant} meant?"),
        None => format!("no limit is called {name}; there are {}", known.join(", ")),
    }
}

/// A header with another value for one of its fields.
pub(crate) fn with_field(header: &str, field: &str, value: &str) -> String {
    let mut words: Vec<&str> = header.split_whitespace().collect();
    let found = (1..words.len()).step_by(2).find(|at| words[*at] == field);
    match found {
        Some(at) if at + 1 < words.len() => words[at + 1] = value,
        _ => words.extend([field, value]),
    }
    words.join(" ")
}

/// What alternatives would have done, gathered call by call.
#[derive(Debug, Default)]
pub struct WhatIf {
    trials: Vec<Trial>,
}

#[derive(Debug)]
struct Trial {
    variant: VariantNumber,
    alternative: Alternative,
    asked: u64,
    denied: u64,
    denied_elsewhere: u64,
    waits: Waits,
    keys: Vec<KeyOutcome>,
}

/// What came of the calls of a key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyOutcome {
    asked: u64,
    denied: u64,
    streak: u32,
    longest_streak: u32,
}

/// What an alternative would have done.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdicts<'a> {
    /// What was tried.
    pub alternative: &'a Alternative,
    /// Calls that met the limit.
    pub asked: u64,
    /// Of those, how many it would have denied.
    pub denied: u64,
    /// Of those, how many it would have let pass and another limit denied.
    pub denied_elsewhere: u64,
    /// How many keys called.
    pub keys: u64,
    /// How many of them it would have denied at least once.
    pub keys_denied: u64,
    /// The most denials of one key without a call that passed between them.
    pub longest_denial_streak: u32,
    /// How long the denied would have had to wait.
    pub waits: &'a Waits,
}

impl WhatIf {
    /// Nothing tried yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tries an alternative beside the configured numbers from now on.
    pub fn add(&mut self, simulation: &mut Simulation, alternative: Alternative, scope: Scope) {
        let Alternative {
            limit,
            header,
            policy,
            ..
        } = &alternative;
        let variant = simulation.add_variant(*limit, policy.clone(), header.as_str(), scope);
        self.trials.push(Trial {
            variant,
            alternative,
            asked: 0,
            denied: 0,
            denied_elsewhere: 0,
            waits: Waits::default(),
            keys: Vec::new(),
        });
    }

    /// Whether nothing is tried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trials.is_empty()
    }

    /// Answers a call under each of the alternatives.
    ///
    /// # Errors
    /// The call has no meaning for a limit. Those before it have answered then.
    pub fn observe(&mut self, simulation: &mut Simulation, call: &Call) -> Result<(), CallError> {
        for trial in &mut self.trials {
            trial.observe(simulation, call)?;
        }
        Ok(())
    }

    /// What came of each of the alternatives, in the order in which they were added.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdicts<'_>> {
        self.trials.iter().map(Trial::verdicts)
    }

    /// The keys that an alternative denied most, with how often they asked and were denied.
    #[must_use]
    pub fn most_denied(&self, trial: usize, most: usize) -> Vec<(KeyNumber, u64, u64)> {
        let Some(trial) = self.trials.get(trial) else {
            return Vec::new();
        };
        let mut keys: Vec<(KeyNumber, u64, u64)> = (0..)
            .zip(&trial.keys)
            .filter(|(_, key)| key.denied > 0)
            .map(|(number, key)| (KeyNumber::new(number), key.asked, key.denied))
            .collect();
        let rank = |(key, asked, denied): &(KeyNumber, u64, u64)| {
            std::cmp::Reverse((*denied, *asked, std::cmp::Reverse(key.index())))
        };
        if most < keys.len() {
            keys.select_nth_unstable_by_key(most, rank);
            keys.truncate(most);
        }
        keys.sort_unstable_by_key(rank);
        keys
    }
}

impl Trial {
    fn observe(&mut self, simulation: &mut Simulation, call: &Call) -> Result<(), CallError> {
        let Some(answer) = simulation.answer_as(self.variant, call)? else {
            return Ok(());
        };
        let limit = self.alternative.limit;
        let Some(decision) = answer.reply.decision().filter(|_| call.action.charges()) else {
            return Ok(());
        };
        // A key that stands twice in a call is summed there, and counted once here.
        let mut targets = call.targets.iter().enumerate();
        let Some((position, target)) = targets.find(|(_, target)| target.limit == limit) else {
            return Ok(());
        };
        let own = answer.members.get(position).unwrap_or(decision);
        let index = target.key.index();
        if self.keys.len() <= index {
            self.keys.resize(index + 1, KeyOutcome::default());
        }
        let key = &mut self.keys[index];
        self.asked += 1;
        key.asked += 1;
        if !own.is_within_limit() {
            self.denied += 1;
            key.denied += 1;
            key.streak += 1;
            key.longest_streak = key.longest_streak.max(key.streak);
            self.waits.add(own.retry_after);
        } else if decision.is_allowed() {
            key.streak = 0;
            if own.delay != Wait::ZERO {
                self.waits.add(own.delay);
            }
        } else {
            self.denied_elsewhere += 1;
        }
        Ok(())
    }

    fn verdicts(&self) -> Verdicts<'_> {
        let asking = self.keys.iter().filter(|key| key.asked > 0);
        let denied = self.keys.iter().filter(|key| key.denied > 0);
        let streaks = self.keys.iter().map(|key| key.longest_streak);
        Verdicts {
            alternative: &self.alternative,
            asked: self.asked,
            denied: self.denied,
            denied_elsewhere: self.denied_elsewhere,
            keys: asking.count() as u64,
            keys_denied: denied.count() as u64,
            longest_denial_streak: streaks.max().unwrap_or(0),
            waits: &self.waits,
        }
    }
}

impl Simulation {
    /// A key of a limit in its text form.
    ///
    /// # Panics
    /// The numbers are of another simulation.
    #[must_use]
    pub fn key_text(&self, limit: LimitNumber, key: KeyNumber) -> String {
        KeyText(self.key(Target { limit, key })).to_string()
    }

    /// A key of a limit as JSON: the text of its only part, or an array of its parts.
    ///
    /// # Panics
    /// The numbers are of another simulation.
    #[must_use]
    pub fn key_json(&self, limit: LimitNumber, key: KeyNumber) -> serde_json::Value {
        serde_json::to_value(JsonKey(self.key(Target { limit, key }))).unwrap_or_default()
    }
}

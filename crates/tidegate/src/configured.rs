//! Limits from a configuration document.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_config::model::{self, Config};
use tidegate_config::{
    AlgorithmConfig, AlgorithmProblem, Checked, LoadError, Purpose, Report, parse,
};
use tidegate_core::{ChangeMode, Decision, Timestamp};
use tidegate_store::WhenFull;

use crate::clock::{Clock, SystemClock};
use crate::limiter::{Limiter, LimiterBuilder, Mode};
use crate::named::NamedLimit;
use crate::to_key::ToKey;

/// The limits of a configuration document, by name.
///
/// The document is the one that the `tidegate` command reads: numbers, modes, `max_keys` and
/// costs are taken from it. What a limit's `key` says is for doors, which see requests; here the
/// program says whose state is counted.
///
/// ```
/// use tidegate::Limits;
///
/// let limits = Limits::from_yaml("limits.yaml", "
/// limits:
///   stage:
///     algorithm: { token_bucket: { rate: 100/s, capacity: 200 } }
///   export:
///     algorithm: { sliding_log: { limit: 10/h } }
///     cost: 5
/// ")?;
/// assert_eq!(limits.try_take("stage", ())?.remaining, 199);
/// assert_eq!(limits.try_take("export", "acme")?.remaining, 5);
/// // Everything else goes through the limiter itself.
/// limits.get("export")?.key("acme").reset();
///
/// let misspelled = limits.get("exports").unwrap_err();
/// assert_eq!(misspelled.to_string(), "there is no limit `exports`; the document has: stage, export");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limits {
    limits: Vec<NamedLimit>,
    warnings: Report,
    clock: Arc<dyn Clock>,
}

/// Why a document gave no limits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The document is wrong: every mistake in it, with its line.
    #[error("{0}")]
    Invalid(Report),
    /// A limit counts in a shared store.
    #[error("limit `{0}` counts in a shared store; leave `store` out to count in this process")]
    SharedStore(String),
    /// A limit looks at responses.
    #[error(
        "limit `{0}` looks at responses by `{1}`, which only a door sees; leave it out and refund \
         or reset in the program"
    )]
    Condition(String, &'static str),
    /// Fields of a limit do not go together.
    #[error("limit `{0}`: {1}; {help}", help = .1.help)]
    Numbers(String, AlgorithmProblem),
}

/// A name that no limit of the document has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no limit `{name}`; the document has: {}", .known.join(", "))]
pub struct UnknownLimit {
    /// The name.
    pub name: String,
    /// Those that there are.
    pub known: Vec<String>,
}

impl Limits {
    /// Reads a document; `name` stands for it in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it; or a limit that needs more than this process has.
    pub fn from_yaml(name: &str, text: &str) -> Result<Self, ConfigError> {
        Self::with_clock(name, text, Arc::new(SystemClock::new()))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read; and as [`Self::from_yaml`].
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let checked =
            tidegate_config::load(path, Purpose::Inspect).map_err(|error| match error {
                LoadError::Read(path, error) => ConfigError::Read(path, error),
                LoadError::Invalid(report) => ConfigError::Invalid(report),
            })?;
        Self::of(
            &checked.config,
            checked.warnings,
            Arc::new(SystemClock::new()),
            &[],
        )
    }

    /// Reads a document whose limits take the time from `clock`.
    ///
    /// # Errors
    /// As [`Self::from_yaml`].
    pub fn with_clock(name: &str, text: &str, clock: Arc<dyn Clock>) -> Result<Self, ConfigError> {
        let checked = parse(name, text, Purpose::Inspect).map_err(ConfigError::Invalid)?;
        Self::of(&checked.config, checked.warnings, clock, &[])
    }

    /// The limits of a document that was read already.
    ///
    /// # Errors
    /// A limit needs more than this process has.
    pub fn from_checked(checked: &Checked, clock: Arc<dyn Clock>) -> Result<Self, ConfigError> {
        Self::from_checked_beside(checked, clock, &[])
    }

    /// The same where some limits count already: those of the same names, algorithms and table
    /// settings are taken over as they are.
    ///
    /// # Errors
    /// A limit needs more than this process has.
    pub fn from_checked_beside(
        checked: &Checked,
        clock: Arc<dyn Clock>,
        others: &[NamedLimit],
    ) -> Result<Self, ConfigError> {
        Self::of(&checked.config, checked.warnings.clone(), clock, others)
    }

    /// Reads a newer document. Limits whose names, algorithms and table settings stay are the same
    /// limiters: they keep their counters, and adopt the new numbers and modes now, whoever holds
    /// them. Others begin afresh.
    ///
    /// # Errors
    /// As [`Self::from_yaml`]. Nothing has changed then.
    pub fn reload(&self, name: &str, text: &str, mode: ChangeMode) -> Result<Self, ConfigError> {
        let checked = parse(name, text, Purpose::Inspect).map_err(ConfigError::Invalid)?;
        self.reload_checked(&checked, mode)
    }

    /// [`Self::reload`] of a document that was read already.
    ///
    /// # Errors
    /// A limit needs more than this process has. Nothing has changed then.
    pub fn reload_checked(&self, checked: &Checked, mode: ChangeMode) -> Result<Self, ConfigError> {
        self.reload_checked_beside(checked, mode, &[])
    }

    /// [`Self::reload_checked`] where some limits have been reloaded already: those are taken over
    /// first, as in [`Self::from_checked_beside`].
    ///
    /// # Errors
    /// A limit needs more than this process has. Nothing has changed then.
    pub fn reload_checked_beside(
        &self,
        checked: &Checked,
        mode: ChangeMode,
        others: &[NamedLimit],
    ) -> Result<Self, ConfigError> {
        let clock = Arc::clone(&self.clock);
        let warnings = checked.warnings.clone();
        let before = [others, &self.limits].concat();
        let next = Self::of(&checked.config, warnings, clock, &before)?;
        let now = self.clock.now();
        for limit in &next.limits {
            let before = before
                .iter()
                .find(|before| before.config.name == limit.config.name);
            if let Some(before) = before
                && before.config.algorithm != limit.config.algorithm
                && let Ok(policy) = limit.config.policy(now)
            {
                let limiter = &limit.limiter;
                limiter.change(policy, mode, limiter.moment());
            }
            limit.limiter.set_mode(limit.config.mode.into());
        }
        Ok(next)
    }

    /// The limiter of this name.
    ///
    /// # Errors
    /// No limit has the name.
    pub fn get(&self, name: &str) -> Result<&Limiter, UnknownLimit> {
        self.find(name).map(|limit| &limit.limiter)
    }

    /// Takes the configured cost of a call for a key, or nothing.
    ///
    /// # Errors
    /// No limit has the name.
    pub fn try_take(&self, name: &str, key: impl ToKey) -> Result<Decision, UnknownLimit> {
        let limit = self.find(name)?;
        Ok(limit.limiter.try_take(key, limit.config.cost))
    }

    /// All limiters, in the order of the document.
    pub fn iter(&self) -> impl Iterator<Item = &Limiter> {
        self.limits.iter().map(|limit| &limit.limiter)
    }

    /// All limits with what the document says of them, in its order.
    pub fn named(&self) -> impl Iterator<Item = &NamedLimit> {
        self.limits.iter()
    }

    /// The clock that all limits take the time from.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What in the document is probably not meant.
    #[must_use]
    pub const fn warnings(&self) -> &Report {
        &self.warnings
    }

    fn find(&self, name: &str) -> Result<&NamedLimit, UnknownLimit> {
        let limit = self.limits.iter().find(|limit| limit.config.name == name);
        limit.ok_or_else(|| UnknownLimit {
            name: name.to_owned(),
            known: self
                .limits
                .iter()
                .map(|limit| limit.config.name.clone())
                .collect(),
        })
    }

    /// Makes the limits of a document, or takes them from those before. Changes none of these.
    fn of(
        config: &Config,
        warnings: Report,
        clock: Arc<dyn Clock>,
        before: &[NamedLimit],
    ) -> Result<Self, ConfigError> {
        let limit = |config: &model::Limit| {
            let kept = before.iter().find(|limit| keeps(&limit.config, config));
            let limiter = match kept {
                Some(kept) => {
                    needs_nothing_else(config)?;
                    kept.limiter.clone()
                }
                None => LimiterBuilder::from_config(config, clock.now())?
                    .clock(Arc::clone(&clock))
                    .build(),
            };
            let config = Arc::new(config.clone());
            Ok(NamedLimit { limiter, config })
        };
        let limits = config.limits.iter().map(limit);
        Ok(Self {
            limits: limits.collect::<Result<_, ConfigError>>()?,
            warnings,
            clock,
        })
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl LimiterBuilder {
    /// The numbers and settings of a configured limit. `since` is when it begins to count: a
    /// bucket whose `initial` is below its capacity fills from then on.
    ///
    /// # Errors
    /// The limit counts in a shared store, or looks at responses.
    pub fn from_config(config: &model::Limit, since: Timestamp) -> Result<Self, ConfigError> {
        needs_nothing_else(config)?;
        let policy = config
            .policy(since)
            .map_err(|problem| ConfigError::Numbers(config.name.clone(), problem))?;
        Ok(Limiter::builder(policy)
            .name(config.name.as_str())
            .max_keys(usize::try_from(config.max_keys).unwrap_or(usize::MAX))
            .when_full(match config.when_full {
                model::WhenFull::Overflow => WhenFull::Overflow,
                model::WhenFull::DenyNew => WhenFull::DenyNew,
                model::WhenFull::Evict => WhenFull::Evict,
            })
            .charge_denied(config.charge_denied)
            .mode(config.mode.into()))
    }
}

impl From<model::Mode> for Mode {
    fn from(mode: model::Mode) -> Self {
        match mode {
            model::Mode::Enforce => Self::Enforce,
            model::Mode::Shadow => Self::Shadow,
            model::Mode::Off => Self::Off,
            model::Mode::Percent(share) => Self::Percent(share),
        }
    }
}

/// Nobody shall believe in a limit that is not enforced.
fn needs_nothing_else(config: &model::Limit) -> Result<(), ConfigError> {
    let name = || config.name.clone();
    if config.store.is_some() {
        return Err(ConfigError::SharedStore(name()));
    }
    for (condition, field) in [
        (&config.count_when, "count_when"),
        (&config.reset_when, "reset_when"),
    ] {
        if condition.is_some() {
            return Err(ConfigError::Condition(name(), field));
        }
    }
    Ok(())
}

/// Whether a limit is the same but for its numbers and its mode.
fn keeps(before: &model::Limit, now: &model::Limit) -> bool {
    let kind = |limit: &model::Limit| std::mem::discriminant::<AlgorithmConfig>(&limit.algorithm);
    before.name == now.name
        && kind(before) == kind(now)
        && before.max_keys == now.max_keys
        && before.when_full == now.when_full
        && before.charge_denied == now.charge_denied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    fn read(text: &str) -> Result<Limits, ConfigError> {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        Limits::with_clock("limits.yaml", text, clock)
    }

    const ONE: &str = "limits: { a: { algorithm: { token_bucket: { rate: 1/h, capacity: 5 } } } }";

    #[test]
    fn a_mistake_is_shown_where_it_is() {
        let error = read(&ONE.replace("capacity", "capacitty")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("limits.yaml:1:"), "{text}");
        assert!(text.contains("did you mean `capacity`"), "{text}");
    }

    #[test]
    fn what_only_a_door_can_do_is_refused_by_name() {
        let shared = "
stores: { valkey: { valkey: { url: 'redis://localhost' } } }
limits: { a: { algorithm: { sliding_log: { limit: 1/s } }, store: valkey } }";
        let error = read(shared).unwrap_err();
        assert!(
            matches!(&error, ConfigError::SharedStore(name) if name == "a"),
            "{error}"
        );
        let condition = "limits: { a: { algorithm: { sliding_log: { limit: 1/s } }, count_when: 'response.code == 401' } }";
        let error = read(condition).unwrap_err();
        assert!(
            matches!(error, ConfigError::Condition(_, "count_when")),
            "{error}"
        );
    }

    #[test]
    fn a_reload_keeps_counters_where_it_can_and_changes_nothing_where_it_fails() {
        let limits = read(ONE).unwrap();
        let held = limits.get("a").unwrap().clone();
        held.try_take("k", 4);
        assert!(
            limits
                .reload("limits.yaml", "limits: []", ChangeMode::KeepUsed)
                .is_err()
        );
        assert_eq!(held.peek("k", 0).limit, 5);

        let larger = ONE.replace("capacity: 5", "capacity: 10");
        let next = limits
            .reload("limits.yaml", &larger, ChangeMode::KeepUsed)
            .unwrap();
        assert_eq!(next.get("a").unwrap().peek("k", 0).remaining, 6);
        assert_eq!(held.peek("k", 0).limit, 10, "whoever holds the limiter");

        let bounded = larger.replace("} } } }", "} }, max_keys: 7 } }");
        let next = next
            .reload("limits.yaml", &bounded, ChangeMode::KeepUsed)
            .unwrap();
        assert_eq!(next.get("a").unwrap().peek("k", 0).remaining, 10);
    }

    #[test]
    fn the_mode_and_the_cost_are_those_of_the_document() {
        let text = "
limits: { a: { algorithm: { sliding_log: { limit: 10/s } }, cost: 11, mode: shadow } }";
        let limits = read(text).unwrap();
        let decision = limits.try_take("a", "k").unwrap();
        assert_eq!((decision.cost, decision.shadow), (11, true));
        assert!(!decision.is_within_limit());
    }
}

//! Checks limits.

use super::{Checker, check_name};
use crate::algorithm::AlgorithmConfig;
use crate::cursor::Cursor;
use crate::decode::Tried;
use crate::model::{KeyPart, Limit, Mode, OnStoreFailure};
use crate::report::Problem;
use crate::scalar::Share;
use crate::shape::{LimitShape, Named, StoreFailureShape, StoreShape};
use crate::suggest;
use crate::text::TextError;
use tidegate_core::Timestamp;

/// The store that is always there.
pub(super) const MEMORY: &str = "memory";

const DEFAULT_MAX_KEYS: u32 = 1_000_000;

impl Checker<'_> {
    pub(super) fn all_limits(
        &mut self,
        shapes: &Named<Tried<LimitShape>>,
        stores: &Named<Tried<StoreShape>>,
    ) -> Vec<Option<Limit>> {
        let mut limits = Vec::with_capacity(shapes.0.len());
        for (position, (name, shape)) in shapes.0.iter().enumerate() {
            let at = self.root.get("limits").at(position);
            if let Err(error) = check_name("limit", name) {
                let problem = Problem::error(error.message)
                    .at(at.key_span())
                    .help(error.help);
                self.problems.push(problem);
            }
            limits.push(
                shape
                    .0
                    .as_ref()
                    .and_then(|shape| self.limit(name, shape, at, stores)),
            );
        }
        limits
    }

    /// Makes one limit. What is wrong is noted and stood in for by its default, except for the
    /// algorithm.
    fn limit(
        &mut self,
        name: &str,
        shape: &LimitShape,
        at: Cursor<'_>,
        stores: &Named<Tried<StoreShape>>,
    ) -> Option<Limit> {
        let key = self.key_parts(&shape.key, at.get("key"));
        let mode = match &shape.mode {
            Some(text) => self
                .take(read_mode(text), at.get("mode"))
                .unwrap_or(Mode::Enforce),
            None => Mode::Enforce,
        };
        let store = shape.store.as_ref().filter(|store| *store != MEMORY);
        let store = store.and_then(|store| {
            let position = stores.0.iter().position(|(name, _)| name == store);
            if position.is_none() {
                let known = stores
                    .0
                    .iter()
                    .map(|(name, _)| name.as_str())
                    .chain([MEMORY]);
                let help = suggest::instead(store, known);
                let error = TextError::new(format!("unknown store `{store}`"), help);
                self.wrong(error, at.get("store"));
            }
            position
        });
        for (field, condition) in [
            ("count_when", &shape.count_when),
            ("reset_when", &shape.reset_when),
        ] {
            if condition
                .as_ref()
                .is_some_and(|text| text.trim().is_empty())
            {
                let error = TextError::new(
                    format!("`{field}` is empty"),
                    format!("write a condition such as `status == 200`, or leave `{field}` out"),
                );
                self.wrong(error, at.get(field));
            }
        }
        let max_keys = shape.max_keys.map_or(DEFAULT_MAX_KEYS, |count| count.0);
        if max_keys == 0 {
            let error = TextError::new(
                "a limit that keeps no key cannot count",
                "write at least 1, or leave `max_keys` out for a million",
            );
            self.wrong(error, at.get("max_keys"));
        }
        let algorithm = shape.algorithm.0.clone()?;
        self.algorithm(&algorithm, at);
        Some(Limit {
            name: name.to_owned(),
            description: shape.description.clone(),
            on_store_failure: store_failure(shape, &algorithm),
            algorithm,
            key,
            cost: shape.cost.map_or(1, |cost| cost.0),
            mode,
            store,
            count_when: shape.count_when.clone(),
            reset_when: shape.reset_when.clone(),
            charge_denied: shape.charge_denied,
            max_keys,
            when_full: shape.when_full,
        })
    }

    fn algorithm(&mut self, algorithm: &AlgorithmConfig, at: Cursor<'_>) {
        let Err(problem) = algorithm.policy(Timestamp::EPOCH) else {
            return;
        };
        let mut place = at.get("algorithm").get(algorithm.name());
        if let Some(field) = problem.field {
            place = place.get(field);
        }
        self.wrong(TextError::new(problem.message, problem.help), place);
    }

    /// Reads key parts; those that are wrong are noted and left out.
    pub(super) fn key_parts(&mut self, texts: &[String], at: Cursor<'_>) -> Vec<KeyPart> {
        let mut parts = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            parts.extend(self.take(KeyPart::parse(text), at.at(index)));
        }
        parts
    }
}

fn store_failure(shape: &LimitShape, algorithm: &AlgorithmConfig) -> OnStoreFailure {
    match shape.on_store_failure {
        Some(StoreFailureShape::Allow) => OnStoreFailure::Allow,
        Some(StoreFailureShape::Deny) => OnStoreFailure::Deny,
        Some(StoreFailureShape::LocalShare(share)) => OnStoreFailure::LocalShare(share),
        // Guesses at secrets and work in progress are what a limit must not let through blindly.
        None => match algorithm {
            AlgorithmConfig::Lockout(_) | AlgorithmConfig::Concurrency(_) => OnStoreFailure::Deny,
            _ => OnStoreFailure::LocalShare(Share::HALF),
        },
    }
}

fn read_mode(text: &str) -> Result<Mode, TextError> {
    let trimmed = text.trim();
    match trimmed {
        "enforce" => return Ok(Mode::Enforce),
        "shadow" => return Ok(Mode::Shadow),
        "off" => return Ok(Mode::Off),
        _ => {}
    }
    let percent = trimmed
        .strip_suffix('%')
        .and_then(|number| number.trim_end().parse::<u8>().ok());
    match percent {
        Some(0) => Ok(Mode::Shadow),
        Some(100) => Ok(Mode::Enforce),
        Some(percent) if percent < 100 => Ok(Mode::Percent(percent)),
        _ if trimmed.ends_with('%') => Err(TextError::new(
            format!("`{trimmed}` is no percentage of keys"),
            "write a whole number from 0 to 100: `10%`",
        )),
        _ => Err(TextError::new(
            format!("`{trimmed}` is no mode"),
            format!(
                "{}; or write a share of the keys such as `10%`",
                suggest::instead(trimmed, ["enforce", "shadow", "off"])
            ),
        )),
    }
}

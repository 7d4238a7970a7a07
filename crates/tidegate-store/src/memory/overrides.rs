//! Numbers of their own for chosen keys.
//!
//! Such a key's state lies in a box with a reference to its numbers, in the slot that the key has
//! anyway: other keys pay nothing for it, a move from one set of numbers to another happens while
//! the slot is held, and everything that works on slots works on it unchanged. It is never
//! forgotten or evicted, or its numbers would be.
//!
//! Numbers that change are replaced by linking the new ones to the old: each key takes the steps
//! that it has missed when it is used next, as the keys of a limit do between generations.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError};

use tidegate_core::{Algorithm, ChangeMode, Entry, Policy, engine};

use super::moment::{ChangedAt, Moment};
use crate::sync::Mutex;

/// Which numbers a key is to have.
#[derive(Clone, Copy, Debug)]
pub enum Override<'a> {
    /// Those of a tier, and what they are changed to later.
    Tier(&'a str),
    /// These.
    Numbers(&'a Policy),
}

/// The numbers that a key has instead of its limit's.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyOverride {
    /// The tier that they belong to; none for numbers of the key's own.
    pub tier: Option<Arc<str>>,
    /// The numbers.
    pub policy: Policy,
}

/// Why a key or a tier got no numbers of its own. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The numbers are for another algorithm than the limit's.
    #[error(
        "numbers for {given} cannot stand on a limit of {limit}; make another limit for these keys"
    )]
    OtherAlgorithm {
        /// What the numbers are for.
        given: &'static str,
        /// What the limit is.
        limit: &'static str,
    },
    /// No tier has this name.
    #[error("there is no tier {0:?}; define it first")]
    UnknownTier(String),
    /// As many keys as allowed have numbers of their own.
    #[error("{0} keys have numbers of their own already; raise max_overrides")]
    TooMany(usize),
    /// The table holds as many keys as it may, and none can go.
    #[error("the table is full of keys that could still deny; raise max_keys")]
    TableFull,
}

/// One set of numbers, and what replaced it.
pub(super) struct Numbers<A> {
    pub algorithm: A,
    pub tier: Option<Arc<str>>,
    next: OnceLock<Step<A>>,
}

/// A change from one set of numbers to the next.
struct Step<A> {
    to: Arc<Numbers<A>>,
    at: ChangedAt,
    mode: ChangeMode,
}

impl<A: Algorithm> Numbers<A> {
    pub(super) fn new(algorithm: A, tier: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self {
            algorithm,
            tier,
            next: OnceLock::new(),
        })
    }

    /// Takes all steps to the current numbers, for an entry kept under `numbers`.
    pub(super) fn bring_up(numbers: &mut Arc<Self>, entry: &mut Entry<A::State>) {
        while let Some(step) = numbers.next.get() {
            let (old, new) = (&numbers.algorithm, &step.to.algorithm);
            let changed_at = step.at.for_key(A::last(&entry.state));
            engine::reprice(old, new, entry, changed_at, step.mode);
            *numbers = Arc::clone(&step.to);
        }
    }
}

impl<A> Drop for Numbers<A> {
    /// Drops the steps one after the other: a tier may have been changed any number of times since
    /// the last of its keys was used.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(step) = next {
            next = Arc::into_inner(step.to).and_then(|mut numbers| numbers.next.take());
        }
    }
}

/// The tiers of a limit, by name: each with its current numbers.
pub(super) struct Tiers<A>(Mutex<BTreeMap<Arc<str>, Arc<Numbers<A>>>>);

impl<A: Algorithm> Tiers<A> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Numbers<A>>> {
        self.locked().get(name).cloned()
    }

    /// Defines a tier, or changes its numbers for all of its keys as of `now`.
    pub(super) fn set(&self, name: &str, algorithm: A, mode: ChangeMode, now: Moment<'_>) {
        let mut tiers = self.locked();
        let Some((name, old)) = tiers.get_key_value(name) else {
            let name: Arc<str> = name.into();
            let numbers = Numbers::new(algorithm, Some(Arc::clone(&name)));
            tiers.insert(name, numbers);
            return;
        };
        if old.algorithm == algorithm {
            return;
        }
        let (name, old) = (Arc::clone(name), Arc::clone(old));
        let to = Numbers::new(algorithm, Some(Arc::clone(&name)));
        tiers.insert(name, Arc::clone(&to));
        // Only here are steps linked, and under the lock: the current numbers have none yet.
        let _ = old.next.set(Step {
            to,
            at: now.of_change(),
            mode,
        });
    }

    /// All tiers, in the order of their names.
    pub(super) fn all(&self) -> Vec<Arc<Numbers<A>>> {
        self.locked().values().cloned().collect()
    }

    fn locked(&self) -> crate::sync::MutexGuard<'_, BTreeMap<Arc<str>, Arc<Numbers<A>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

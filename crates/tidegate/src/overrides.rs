//! Numbers of their own for chosen keys: tiers, and single exceptions.

use std::sync::{Arc, MutexGuard, PoisonError};

use tidegate_core::{ChangeMode, Policy};
use tidegate_store::{KeyOverride, Moment, Override, OverrideError};

use crate::limiter::{Inner, Limiter, LimiterBuilder, shadow_of};
use crate::one_key::OneKey;

impl LimiterBuilder {
    /// Defines a tier: numbers that keys may be given instead of the limit's, by
    /// [`OneKey::set_tier`].
    ///
    /// ```
    /// use tidegate::{ChangeMode, Limiter, Rate, TokenBucket};
    ///
    /// let api = Limiter::builder(TokenBucket::new(Rate::per_second(10)?, 20)?)
    ///     .tier("gold", TokenBucket::new(Rate::per_second(100)?, 200)?)?
    ///     .build();
    /// api.key("acme").set_tier("gold", ChangeMode::KeepUsed)?;
    /// assert_eq!(api.try_take("acme", 1).limit, 200);
    /// assert_eq!(api.try_take("other", 1).limit, 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The numbers are for another algorithm than the limit's.
    pub fn tier(
        mut self,
        name: impl Into<String>,
        policy: impl Into<Policy>,
    ) -> Result<Self, OverrideError> {
        let policy = policy.into();
        if std::mem::discriminant(&policy) != std::mem::discriminant(&self.policy) {
            return Err(OverrideError::OtherAlgorithm {
                given: policy.algorithm_name(),
                limit: self.policy.algorithm_name(),
            });
        }
        self.tiers.push((name.into(), policy));
        Ok(self)
    }
}

impl Limiter {
    /// Defines a tier, or changes the numbers of one for all of its keys as of `now`: each is
    /// brought up to date when it is used next.
    ///
    /// # Errors
    /// The numbers are for another algorithm than the limit's.
    pub fn set_tier_policy<'a>(
        &self,
        name: &str,
        policy: impl Into<Policy>,
        mode: ChangeMode,
        now: impl Into<Moment<'a>>,
    ) -> Result<(), OverrideError> {
        let now = now.into();
        let mut set = Ok(());
        self.waiters().around_all(self, || {
            set = self.table().set_tier(name, &policy.into(), mode, now);
        });
        set
    }

    /// The tiers and their current numbers, by name.
    #[must_use]
    pub fn tiers(&self) -> Vec<(Arc<str>, Policy)> {
        self.table().tiers()
    }

    /// How many keys have numbers of their own, from tiers included.
    #[must_use]
    pub fn overrides(&self) -> usize {
        *count(self.latest())
    }
}

impl OneKey<'_> {
    /// Puts the key into a tier. `mode` says what becomes of what it has used.
    ///
    /// It stays there until it is put elsewhere: it is never forgotten or evicted, and no change
    /// of the limit's own numbers reaches it. Its decisions take the way of states that do not
    /// fit a slot, some tens of nanoseconds; those of other keys are as fast as without.
    ///
    /// # Errors
    /// No tier has the name; as many keys as allowed have numbers of their own; or the table is
    /// full.
    pub fn set_tier(&self, name: &str, mode: ChangeMode) -> Result<(), OverrideError> {
        self.around(|| self.give(Override::Tier(name), mode))
    }

    /// Gives the key numbers of its own, as [`Self::set_tier`] gives it those of a tier.
    ///
    /// # Errors
    /// The numbers are for another algorithm than the limit's; as many keys as allowed have
    /// numbers of their own; or the table is full.
    pub fn set_override(
        &self,
        policy: impl Into<Policy>,
        mode: ChangeMode,
    ) -> Result<(), OverrideError> {
        let policy = policy.into();
        self.around(|| self.give(Override::Numbers(&policy), mode))
    }

    /// Puts the key back under the limit's own numbers. False if it was under them.
    pub fn clear_override(&self, mode: ChangeMode) -> bool {
        self.around(|| self.take_back(mode))
    }

    /// Changes the key's numbers; whoever waits for it takes notice.
    fn around<T>(&self, change: impl FnOnce() -> T) -> T {
        let waiters = self.limiter.waiters();
        waiters.around(self.limiter, self.hash, change)
    }

    fn take_back(&self, mode: ChangeMode) -> bool {
        let (inner, now) = (self.limiter.latest(), self.moment());
        let mut count = count(inner);
        let cleared = inner.table.clear_override(self.hash, mode, now);
        inner.table.clear_override(shadow_of(self.hash), mode, now);
        *count -= usize::from(cleared);
        cleared
    }

    /// What the key has instead of the limit's own numbers.
    #[must_use]
    pub fn own_numbers(&self) -> Option<KeyOverride> {
        self.limiter.table().override_of(self.hash)
    }

    fn give(&self, numbers: Override<'_>, mode: ChangeMode) -> Result<(), OverrideError> {
        let (inner, now) = (self.limiter.latest(), self.moment());
        let mut count = count(inner);
        let new = inner.table.override_of(self.hash).is_none();
        if new && *count >= inner.max_overrides {
            return Err(OverrideError::TooMany(inner.max_overrides));
        }
        // In shadow too, so that a change of the limit's mode needs no second look.
        let shadow = shadow_of(self.hash);
        inner.table.set_override(shadow, numbers, mode, now)?;
        let given = inner.table.set_override(self.hash, numbers, mode, now);
        if given.is_err() && new {
            inner.table.clear_override(shadow, mode, now);
        }
        *count += usize::from(given.is_ok() && new);
        given
    }
}

/// How many keys have numbers of their own, held until that is true again.
fn count(inner: &Inner) -> MutexGuard<'_, usize> {
    inner
        .overrides
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

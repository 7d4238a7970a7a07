//! One limit of a document, as every protocol asks it.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use tidegate_config::model;
use tidegate_core::{
    Algorithm, Decision, Demand, LeaseGrant, LeaseId, Operation, OperationError, Policy, Reply,
    Timestamp, with_algorithm,
};
use tidegate_store::Key;

use crate::composition::{Member, all_of};
use crate::lease::random_id;
use crate::limiter::Limiter;
use crate::to_key::ToKey;

/// One limit of a document: what it says of the limit, and what decides.
///
/// All protocols that decide on named limits do so through this and nothing else. Clones share
/// everything.
#[derive(Clone, Debug)]
pub struct NamedLimit {
    pub(crate) limiter: Limiter,
    pub(crate) config: Arc<model::Limit>,
}

impl NamedLimit {
    /// A limit that counts already, so that another protocol of the process spends the same.
    #[must_use]
    pub fn new(config: model::Limit, limiter: Limiter) -> Self {
        Self {
            limiter,
            config: Arc::new(config),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What the document says of it.
    #[must_use]
    pub fn config(&self) -> &model::Limit {
        &self.config
    }

    /// The limiter, for what is to be known of the limit as a whole.
    #[must_use]
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Takes `cost` units for a key, or nothing. `now` is a reading of the document's clock.
    ///
    /// # Errors
    /// The limit counts no units: it is a concurrency limit or a lockout.
    #[inline]
    pub fn take(
        &self,
        key: impl ToKey,
        cost: u32,
        now: Timestamp,
    ) -> Result<Decision, OperationError> {
        let decision = {
            let hash = self.limiter.hash(&key);
            self.limiter
                .take_hashed(hash, cost, self.limiter.as_of(now))
        };
        if decision.retry_after.is_never() && !decision.is_within_limit() {
            // More than the limit holds, or a limit of no units at all: this tells which.
            self.check_takes()?;
        }
        Ok(decision)
    }

    /// Whether there are units to take.
    ///
    /// # Errors
    /// The limit is a concurrency limit or a lockout.
    pub fn check_takes(&self) -> Result<(), OperationError> {
        let take = Operation::take(1);
        with_algorithm!(&self.limiter.policy(), algorithm => check(algorithm, &take))
    }

    /// Takes from several limits at one moment: all are charged, or none. What each said, in order.
    ///
    /// # Errors
    /// One of them counts no units. Nothing was charged then.
    pub fn take_all(
        calls: &[(&Self, &Key, u32)],
        now: Timestamp,
    ) -> Result<Vec<Decision>, OperationError> {
        let members: Vec<Member<'_>> = calls
            .iter()
            .map(|(limit, key, cost)| Member::take(&limit.limiter, key, *cost))
            .collect();
        let Some((first, _, _)) = calls.first() else {
            return Ok(Vec::new());
        };
        let outcome = all_of(&members, first.limiter.as_of(now))?;
        Ok(outcome.map_or_else(Vec::new, |outcome| outcome.members.into_vec()))
    }

    /// Applies an operation to a key.
    ///
    /// # Errors
    /// The operation has no meaning on the limit's algorithm, or its numbers are out of range.
    pub fn apply(
        &self,
        key: impl ToKey,
        operation: &Operation,
        now: Timestamp,
    ) -> Result<Reply, OperationError> {
        let hash = self.limiter.hash(&key);
        self.limiter
            .apply_hashed(hash, self.limiter.as_of(now), operation)
    }

    /// Takes a lease of so many permits under a fresh id that nobody can guess. The lease is there
    /// whenever the call passes: where the limit is not enforced, nothing counts it.
    ///
    /// # Errors
    /// The limit is no concurrency limit.
    pub fn acquire(
        &self,
        key: impl ToKey,
        weight: u32,
        now: Timestamp,
    ) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        let lease = random_id();
        let acquire = Operation::Take(Demand::Acquire { lease, weight });
        let Reply::Leased(decision, grant) = self.apply(key, &acquire, now)? else {
            unreachable!("an acquisition is answered by a lease");
        };
        let uncounted = || self.uncounted(lease, weight, now);
        let grant = grant.or_else(|| decision.is_allowed().then(uncounted));
        Ok((decision, grant))
    }

    /// Extends a live lease to its full length from now; none if it was lost. Where the limit is not
    /// enforced no lease is ever lost.
    ///
    /// # Errors
    /// The limit is no concurrency limit.
    pub fn renew(
        &self,
        key: impl ToKey,
        lease: LeaseId,
        now: Timestamp,
    ) -> Result<Option<LeaseGrant>, OperationError> {
        let Reply::Renewed(grant) = self.apply(&key, &Operation::Renew { lease }, now)? else {
            unreachable!("a renewal is answered by a lease");
        };
        if grant.is_some() {
            return Ok(grant);
        }
        let ask = Operation::Peek(Demand::Acquire { lease, weight: 0 });
        let asked = self.apply(&key, &ask, now)?;
        let enforced = asked.decision().is_some_and(|decision| !decision.shadow);
        Ok((!enforced).then(|| self.uncounted(lease, 1, now)))
    }

    /// Gives a lease back; false if it was lost before.
    ///
    /// # Errors
    /// The limit is no concurrency limit.
    pub fn release(
        &self,
        key: impl ToKey,
        lease: LeaseId,
        now: Timestamp,
    ) -> Result<bool, OperationError> {
        match self.apply(key, &Operation::Release { lease }, now)? {
            Reply::Released(was_live) => Ok(was_live),
            other => unreachable!("a release is answered by {other:?}"),
        }
    }

    /// Takes one guess at a secret: its failure is charged in advance.
    ///
    /// # Errors
    /// The limit is no lockout.
    pub fn attempt(&self, key: impl ToKey, now: Timestamp) -> Result<Decision, OperationError> {
        // The standard library draws this from the operating system: nobody foresees a ban's end.
        let seed = std::collections::hash_map::RandomState::new().hash_one(());
        match self.apply(key, &Operation::Take(Demand::Attempt { seed }), now)? {
            Reply::Decision(decision) => Ok(decision),
            other => unreachable!("an attempt is answered by {other:?}"),
        }
    }

    /// A lease that nothing counts, for the limit is not enforced.
    fn uncounted(&self, lease: LeaseId, weight: u32, now: Timestamp) -> LeaseGrant {
        let expires_at = match self.limiter.policy() {
            Policy::Concurrency(limit) => now.checked_add(limit.lease()),
            _ => None,
        };
        LeaseGrant {
            lease,
            weight,
            fencing_token: now.as_micros(),
            expires_at: expires_at.unwrap_or(Timestamp::MAX),
        }
    }
}

fn check<A: Algorithm>(_algorithm: &A, operation: &Operation) -> Result<(), OperationError> {
    operation.check::<A>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, ManualClock, Micros};

    fn limits(text: &str) -> Limits {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        Limits::with_clock("limits.yaml", text, clock).unwrap()
    }

    #[test]
    fn a_limit_of_no_units_is_an_error_and_no_denial() {
        let text = "
limits:
  rate: { algorithm: { sliding_log: { limit: 2/s } } }
  jobs: { algorithm: { concurrency: { limit: 1, lease: 10s } } }
  logins: { algorithm: { lockout: { failures: 2/1m, ban: 1m } } }";
        let limits = limits(text);
        let now = Timestamp::EPOCH;
        let [rate, jobs, logins] = ["rate", "jobs", "logins"]
            .map(|name| limits.named().find(|limit| limit.name() == name).unwrap());
        assert!(!rate.take("k", 3, now).unwrap().is_allowed());
        assert!(jobs.take("k", 1, now).is_err());
        assert!(logins.take("k", 1, now).is_err());
        assert!(rate.acquire("k", 1, now).is_err());
        assert!(logins.attempt("k", now).unwrap().is_allowed());
        assert!(rate.attempt("k", now).is_err());
    }

    #[test]
    fn a_lease_lives_as_long_as_it_is_renewed() {
        let text = "limits: { jobs: { algorithm: { concurrency: { limit: 1, lease: 10s } } } }";
        let limits = limits(text);
        let jobs = limits.named().next().unwrap();
        let at = |seconds| {
            Timestamp::EPOCH
                .checked_add(Micros::from_secs(seconds))
                .unwrap()
        };
        let (_, first) = jobs.acquire("k", 1, at(0)).unwrap();
        let lease = first.unwrap().lease;
        let (denied, none) = jobs.acquire("k", 1, at(9)).unwrap();
        assert!(!denied.is_allowed() && none.is_none());
        assert_eq!(
            jobs.renew("k", lease, at(9)).unwrap().unwrap().expires_at,
            at(19)
        );
        assert_eq!(jobs.renew("k", lease, at(19)).unwrap(), None);
        assert!(!jobs.release("k", lease, at(19)).unwrap());
        let (_, second) = jobs.acquire("k", 1, at(19)).unwrap();
        assert!(jobs.release("k", second.unwrap().lease, at(20)).unwrap());
    }

    #[test]
    fn leases_of_a_limit_that_is_not_enforced_are_granted_and_never_lost() {
        for mode in ["shadow", "off"] {
            let text = format!(
                "limits: {{ jobs: {{ algorithm: {{ concurrency: {{ limit: 0, lease: 10s }} }}, mode: {mode} }} }}"
            );
            let limits = limits(&text);
            let jobs = limits.named().next().unwrap();
            let (decision, grant) = jobs.acquire("k", 1, Timestamp::EPOCH).unwrap();
            assert!(decision.is_allowed(), "{mode}");
            let lease = grant.unwrap().lease;
            let later = Timestamp::EPOCH.checked_add(Micros::from_secs(60)).unwrap();
            assert!(jobs.renew("k", lease, later).unwrap().is_some(), "{mode}");
        }
    }
}

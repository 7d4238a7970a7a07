//! The limits in force, as all protocols of the service ask them.

use std::collections::HashMap;

use tidegate::{
    Decision, Key, LeaseGrant, Limits, NamedLimit, Operation, OperationError, PerCallLimiter,
    Reply, Timestamp, ToKey, TokenBucket,
};

use crate::metrics::{Counters, Door, Metrics, THROTTLE};

/// The limits of one configuration at one door.
#[derive(Debug)]
pub(crate) struct Served {
    limits: HashMap<Box<[u8]>, ServedLimit>,
    throttle: PerCallLimiter,
    throttled: Counters,
}

/// A limit at one door.
#[derive(Debug)]
pub(crate) struct ServedLimit {
    named: NamedLimit,
    counters: Counters,
}

impl Served {
    pub(crate) fn new(
        limits: &Limits,
        throttle: PerCallLimiter,
        door: Door,
        metrics: &Metrics,
    ) -> Self {
        let served = limits.named().map(|named| {
            let limit = ServedLimit {
                named: named.clone(),
                counters: metrics.counters(door, named.name()),
            };
            (named.name().as_bytes().into(), limit)
        });
        Self {
            limits: served.collect(),
            throttle,
            throttled: metrics.counters(door, THROTTLE),
        }
    }

    /// The limit of this name.
    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<&ServedLimit> {
        self.limits.get(name)
    }

    /// The names of all limits, sorted.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .limits
            .values()
            .map(|limit| limit.named.name())
            .collect();
        names.sort_unstable();
        names
    }

    /// Takes from several limits at one moment: all are charged, or none. What each said, in order.
    pub(crate) fn all_of(
        &self,
        calls: &[(&ServedLimit, &Key, u32)],
        now: Timestamp,
    ) -> Result<Vec<Decision>, OperationError> {
        let asked: Vec<_> = calls
            .iter()
            .map(|(limit, key, cost)| (&limit.named, *key, *cost))
            .collect();
        let decisions = NamedLimit::take_all(&asked, now)?;
        let allowed = decisions.iter().all(Decision::is_allowed);
        for ((limit, _, _), decision) in calls.iter().zip(&decisions) {
            // What would have allowed a call that others denied has decided nothing.
            if allowed || !decision.is_within_limit() {
                limit.counters.note(decision);
            }
        }
        Ok(decisions)
    }

    /// Takes from a bucket whose numbers come with the call.
    #[inline]
    pub(crate) fn throttle(
        &self,
        key: &[u8],
        bucket: &TokenBucket,
        cost: u32,
        now: Timestamp,
    ) -> Decision {
        let decision = self.throttle.try_take_as_of(key, bucket, cost, now);
        if cost > 0 {
            self.throttled.note(&decision);
        }
        decision
    }
}

impl ServedLimit {
    pub(crate) fn named(&self) -> &NamedLimit {
        &self.named
    }

    /// Takes `cost` units, the configured cost if none is given, or nothing.
    #[inline]
    pub(crate) fn take(
        &self,
        key: impl ToKey,
        cost: Option<u32>,
        now: Timestamp,
    ) -> Result<Decision, OperationError> {
        let cost = cost.unwrap_or(self.named.config().cost);
        let decision = self.named.take(key, cost, now)?;
        self.counters.note(&decision);
        Ok(decision)
    }

    /// Takes a lease of so many permits.
    pub(crate) fn acquire(
        &self,
        key: impl ToKey,
        weight: u32,
        now: Timestamp,
    ) -> Result<(Decision, Option<LeaseGrant>), OperationError> {
        let acquired = self.named.acquire(key, weight, now)?;
        self.counters.note(&acquired.0);
        Ok(acquired)
    }

    /// Takes one guess at a secret.
    pub(crate) fn attempt(
        &self,
        key: impl ToKey,
        now: Timestamp,
    ) -> Result<Decision, OperationError> {
        let decision = self.named.attempt(key, now)?;
        self.counters.note(&decision);
        Ok(decision)
    }

    /// Applies any operation.
    pub(crate) fn apply(
        &self,
        key: impl ToKey,
        operation: &Operation,
        now: Timestamp,
    ) -> Result<Reply, OperationError> {
        let reply = self.named.apply(key, operation, now)?;
        if let Some(decision) = reply.decision()
            && !matches!(operation, Operation::Peek(_))
        {
            self.counters.note(decision);
        }
        Ok(reply)
    }
}

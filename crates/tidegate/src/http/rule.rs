//! One limit over requests: whose state it counts, and what a request costs.

use std::fmt;

use http::response;
use tidegate_core::Policy;

use super::after::After;
use super::fields::quoted_name;
use super::head::RequestHead;
use super::rule_limiter::RuleLimiter;
use super::source::{KeySource, PartFault};
use crate::{Key, KeyPart};

/// One limit over requests.
///
/// ```
/// use tidegate::http::{After, KeySource, Missing, Rule};
/// use tidegate::{Limiter, Rate, TokenBucket};
///
/// let limiter = Limiter::builder(TokenBucket::new(Rate::per_second(10)?, 20)?).name("per-user");
/// let rule = Rule::new(limiter.build())?
///     .key([KeySource::header(http::header::AUTHORIZATION)])
///     .missing(Missing::Refuse)
///     .cost_by(|head| if head.method() == http::Method::GET { 1 } else { 5 })
///     .after(|answer| {
///         if answer.status.is_server_error() { After::Refund } else { After::Keep }
///     });
/// # let _ = rule;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rule {
    pub(super) limiter: RuleLimiter,
    pub(super) key: Vec<KeySource>,
    missing: Missing,
    cost: Cost,
    after: Option<Box<AfterFn>>,
    unanswered: After,
    pub(super) quoted: String,
}

type AfterFn = dyn Fn(&response::Parts) -> After + Send + Sync;

enum Cost {
    Fixed(u32),
    By(Box<dyn Fn(RequestHead<'_>) -> u32 + Send + Sync>),
}

/// What a rule does with a request that lacks a part of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// All requests without the part share one key, which no value of the part can be.
    #[default]
    Share,
    /// The rule does not apply to the request. Who can leave the part out escapes the limit.
    Skip,
    /// The request is refused with 400.
    Refuse,
}

/// Why a limiter makes no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// It holds no permits.
    #[error("limit `{limit}` holds no permits; make it of a `Concurrency` policy")]
    NoPermits {
        /// The limit.
        limit: String,
    },
    /// It does not count units.
    #[error("limit `{limit}` is a {algorithm}, which counts no requests; {help}")]
    Algorithm {
        /// The limit.
        limit: String,
        /// Its algorithm.
        algorithm: &'static str,
        /// What to use instead.
        help: &'static str,
    },
}

impl Rule {
    /// A limit on all requests together, at a cost of 1, in memory or shared. Clients are told its
    /// name.
    ///
    /// # Errors
    /// A concurrency limit, which holds permits, or a lockout, which counts failures.
    pub fn new(limiter: impl Into<RuleLimiter>) -> Result<Self, RuleError> {
        let limiter = limiter.into();
        let (algorithm, help) = match limiter.policy() {
            Policy::Concurrency(_) => ("concurrency limit", "put it into a `ConcurrencyLayer`"),
            Policy::Lockout(_) => ("lockout", "apply its attempts where secrets are checked"),
            _ => return Ok(Self::counting(limiter)),
        };
        Err(RuleError::Algorithm {
            limit: limiter.name().to_owned(),
            algorithm,
            help,
        })
    }

    /// A rule over a limiter of any algorithm.
    pub(crate) fn counting(limiter: impl Into<RuleLimiter>) -> Self {
        let limiter = limiter.into();
        Self {
            quoted: quoted_name(limiter.name()),
            limiter,
            key: Vec::new(),
            missing: Missing::default(),
            cost: Cost::Fixed(1),
            after: None,
            unanswered: After::Keep,
        }
    }

    /// Counts requests apart by these parts together. Default: none, one key for all.
    #[must_use]
    pub fn key(mut self, parts: impl IntoIterator<Item = KeySource>) -> Self {
        self.key = parts.into_iter().collect();
        self
    }

    /// What becomes of a request that lacks a part of the key. Default: [`Missing::Share`].
    #[must_use]
    pub const fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// What every request costs. Default: 1. At 0 a request only asks.
    #[must_use]
    pub fn cost(mut self, units: u32) -> Self {
        self.cost = Cost::Fixed(units);
        self
    }

    /// What a request costs, by its head. A cost above what the limit can hold is refused for
    /// good, so bound what you read from a client.
    #[must_use]
    pub fn cost_by(
        mut self,
        units: impl Fn(RequestHead<'_>) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.cost = Cost::By(Box::new(units));
        self
    }

    /// What becomes of the charge once the head of the answer is there: called once for each
    /// request that was charged. Default: [`After::Keep`].
    #[must_use]
    pub fn after(
        mut self,
        settle: impl Fn(&response::Parts) -> After + Send + Sync + 'static,
    ) -> Self {
        self.after = Some(Box::new(settle));
        self
    }

    /// What becomes of the charge where no answer comes: the service failed or panicked, or the
    /// caller left. Default: [`After::Keep`], since a client must not get its calls for nothing by
    /// hanging up.
    #[must_use]
    pub const fn unanswered(mut self, after: After) -> Self {
        self.unanswered = after;
        self
    }

    /// The limit.
    #[must_use]
    pub const fn limiter(&self) -> &RuleLimiter {
        &self.limiter
    }

    /// Whose state a request counts against; none where the rule does not apply to it.
    pub(crate) fn key_of(&self, head: RequestHead<'_>) -> Result<Option<Key>, PartFault> {
        let mut key = Key::from_parts([]);
        for source in &self.key {
            match (source.read(head)?, self.missing) {
                (Some(bytes), _) => key.push(KeyPart::Text(&bytes)),
                (None, Missing::Share) => key.push(KeyPart::Missing),
                (None, Missing::Skip) => return Ok(None),
                (None, Missing::Refuse) => return Err(PartFault::Missing(source.to_string())),
            }
        }
        Ok(Some(key))
    }

    pub(crate) fn cost_of(&self, head: RequestHead<'_>) -> u32 {
        match &self.cost {
            Cost::Fixed(units) => *units,
            Cost::By(units) => units(head),
        }
    }

    /// Whether a charge may change once the answer is known.
    pub(super) fn settles(&self) -> bool {
        self.after.is_some() || self.unanswered != After::Keep
    }

    pub(super) fn after_of(&self, answer: Option<&response::Parts>) -> After {
        match (answer, &self.after) {
            (Some(answer), Some(after)) => after(answer),
            (Some(_), None) => After::Keep,
            (None, _) => self.unanswered,
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("limiter", &self.limiter)
            .field("key", &self.key)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

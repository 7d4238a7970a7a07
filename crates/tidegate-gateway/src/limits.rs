//! The limits of a request: one atomic decision over all of them, and what the client is told.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use prometheus_client::metrics::counter::Counter;
use smallvec::SmallVec;
use tidegate::{Key, KeyPart, Limiter, Member, Mode, WhenFull, all_of};
use tidegate_config::model::{self, HeaderDialect};
use tidegate_config::{AlgorithmProblem, RoutePattern};
use tidegate_core::{Decision, Demand, Denial, OperationError, Policy, Timestamp, Verdict};

use crate::keys::{Facts, Source};
use crate::metrics::{DecisionLabels, Door, LimitLabels, Metrics, Name, Outcome};
use crate::problem::Problem;
use crate::ratelimit_fields::{
    Standing, quoted_name, retry_after_seconds, write_retry_after, write_standings,
};

/// One limit at work.
#[derive(Debug)]
pub struct Limit {
    config: model::Limit,
    limiter: Limiter,
    quoted: String,
    window: Option<u64>,
    counters: Counters,
}

/// The counters of one limit, looked up once.
#[derive(Debug)]
struct Counters {
    allowed: Counter,
    denied: Counter,
    shadow_denied: Counter,
    error: Counter,
    near: Counter,
}

/// Why a limit cannot work on a route, or at all.
///
/// A configuration that was read to be run has none of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Requests to the route never have what the limit counts by.
    #[error("limit `{limit}` counts by `{part}`, which the gateway cannot read on route `{route}`")]
    Key {
        /// The limit.
        limit: String,
        /// The part of its key.
        part: String,
        /// The route.
        route: String,
    },
    /// The algorithm needs steps that the gateway does not have yet.
    #[error("limit `{limit}` is a {algorithm}, which the gateway of this version cannot apply")]
    Algorithm {
        /// The limit.
        limit: String,
        /// Its algorithm.
        algorithm: &'static str,
    },
    /// Numbers that do not go together.
    #[error("limit `{0}`: {1}; {help}", help = .1.help)]
    Numbers(String, AlgorithmProblem),
}

impl Limit {
    /// Puts a limit to work: with the states of `limiter` if it is given, else afresh.
    ///
    /// # Errors
    /// An algorithm that the gateway cannot apply.
    pub fn new(
        config: model::Limit,
        policy: Policy,
        limiter: Option<Limiter>,
        metrics: &Metrics,
    ) -> Result<Self, LimitError> {
        if matches!(policy, Policy::Concurrency(_) | Policy::Lockout(_)) {
            let algorithm = config.algorithm.name();
            return Err(LimitError::Algorithm {
                limit: config.name,
                algorithm,
            });
        }
        let window = window_seconds(&policy);
        let limiter = limiter.unwrap_or_else(|| {
            Limiter::builder(policy)
                .name(config.name.as_str())
                .max_keys(usize::try_from(config.max_keys).unwrap_or(usize::MAX))
                .when_full(when_full(config.when_full))
                .charge_denied(config.charge_denied)
                .charge_denied(config.charge_denied)
                .mode(mode(config.mode))
                .build()
        });
        Ok(Self {
            quoted: quoted_name(&config.name),
            window,
            counters: Counters::new(&config.name, metrics),
            limiter,
            config,
        })
    }

    /// What the limit was made of.
    #[must_use]
    pub fn config(&self) -> &model::Limit {
        &self.config
    }

    /// The counters themselves.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

/// The library's word for a configured mode.
pub(crate) const fn mode(mode: model::Mode) -> Mode {
    match mode {
        model::Mode::Enforce => Mode::Enforce,
        model::Mode::Shadow => Mode::Shadow,
        model::Mode::Off => Mode::Off,
        model::Mode::Percent(share) => Mode::Percent(share),
    }
}

const fn when_full(when_full: model::WhenFull) -> WhenFull {
    match when_full {
        model::WhenFull::Overflow => WhenFull::Overflow,
        model::WhenFull::DenyNew => WhenFull::DenyNew,
        model::WhenFull::Evict => WhenFull::Evict,
    }
}

impl Counters {
    fn new(name: &str, metrics: &Metrics) -> Self {
        let limit = Name::from(name);
        let decisions = |outcome| {
            let labels = DecisionLabels {
                door: Door::Gateway,
                limit: limit.clone(),
                outcome,
            };
            metrics.decisions.get_or_create_owned(&labels)
        };
        Self {
            allowed: decisions(Outcome::Allowed),
            denied: decisions(Outcome::Denied),
            shadow_denied: decisions(Outcome::ShadowDenied),
            error: decisions(Outcome::Error),
            near: metrics.near_limit.get_or_create_owned(&LimitLabels {
                limit: limit.clone(),
            }),
        }
    }

    /// Counts one member's part in a decision. A limit that would have allowed what another one
    /// denied has decided nothing.
    fn note(&self, member: &Decision, allowed: bool) {
        match (member.is_within_limit(), member.shadow) {
            (false, true) => {
                self.shadow_denied.inc();
            }
            (false, false) => {
                self.denied.inc();
            }
            (true, _) if allowed => {
                self.allowed.inc();
                if u64::from(member.remaining) * 10 < u64::from(member.limit) {
                    self.near.inc();
                }
            }
            (true, _) => {}
        }
    }
}

/// The seconds that a policy's quota is for, rounded up: what it takes to refill a bucket, or the
/// length of a window. None where no time brings the quota back, or the policy is for no time.
fn window_seconds(policy: &Policy) -> Option<u64> {
    let refill = |rate: tidegate_core::Rate, capacity: u32| {
        let micros = u128::from(capacity) * u128::from(rate.period().0);
        u64::try_from(
            micros
                .checked_div(u128::from(rate.count()))?
                .div_ceil(1_000_000),
        )
        .ok()
    };
    let seconds = match policy {
        Policy::TokenBucket(bucket) => refill(bucket.rate(), bucket.capacity())?,
        Policy::IntervalBucket(bucket) => refill(bucket.rate(), bucket.capacity())?,
        Policy::LeakyBucket(bucket) => {
            refill(bucket.rate(), bucket.queue().saturating_add(bucket.burst()))?
        }
        Policy::FixedWindow(window) => window.period().0.div_ceil(1_000_000),
        Policy::SlidingLog(log) => log.period().0.div_ceil(1_000_000),
        Policy::StrictWindow(window) => window.period().0.div_ceil(1_000_000),
        Policy::InterpolatedWindow(window) => window.period().0.div_ceil(1_000_000),
        Policy::Lockout(lockout) => lockout.settings().period.0.div_ceil(1_000_000),
        Policy::Concurrency(_) => return None,
    };
    Some(seconds.max(1))
}

/// A limit on one route: where its key comes from there.
#[derive(Debug)]
pub struct RouteLimit {
    limit: Arc<Limit>,
    sources: Vec<Source>,
}

impl RouteLimit {
    /// Makes a limit ready for a route.
    ///
    /// # Errors
    /// A key part that the route's path does not have.
    pub fn new(limit: Arc<Limit>, route: &RoutePattern) -> Result<Self, LimitError> {
        let sources = limit.config.key.iter().map(|part| {
            Source::new(part, route).ok_or_else(|| LimitError::Key {
                limit: limit.config.name.clone(),
                part: part.to_string(),
                route: route.as_str().to_owned(),
            })
        });
        let sources = sources.collect::<Result<_, _>>()?;
        Ok(Self { limit, sources })
    }

    /// The first part of the key that a request has twice, with different values.
    #[must_use]
    pub fn ambiguous_part(&self, facts: &Facts<'_>) -> Option<String> {
        let place = self
            .sources
            .iter()
            .position(|source| source.is_ambiguous(facts))?;
        self.limit.config.key.get(place).map(ToString::to_string)
    }

    fn key(&self, facts: &Facts<'_>) -> Key {
        let mut key = Key::from_parts([]);
        for source in &self.sources {
            match source.read(facts) {
                Some(bytes) => key.push(KeyPart::Text(&bytes)),
                None => key.push(KeyPart::Missing),
            }
        }
        key
    }
}

/// What the limits of one request decided.
#[derive(Debug)]
pub struct Ruling {
    /// Over all.
    pub decision: Decision,
    members: SmallVec<[Decision; 6]>,
}

/// Asks all limits of a request at once: all are charged, or none.
///
/// None where there are no limits.
///
/// # Errors
/// There is no decision.
pub fn rule(
    limits: &[RouteLimit],
    facts: &Facts<'_>,
    now: Timestamp,
) -> Result<Option<Ruling>, OperationError> {
    let keys: SmallVec<[Key; 4]> = limits.iter().map(|limit| limit.key(facts)).collect();
    let members: SmallVec<[Member<'_>; 4]> = limits
        .iter()
        .zip(&keys)
        .map(|(limit, key)| Member {
            limiter: &limit.limit.limiter,
            key,
            demand: Demand::Take {
                cost: limit.limit.config.cost,
            },
        })
        .collect();
    let outcome = match all_of(&members, now) {
        Ok(Some(outcome)) => outcome,
        Ok(None) => return Ok(None),
        Err(error) => {
            for limit in limits {
                limit.limit.counters.error.inc();
            }
            return Err(error);
        }
    };
    let allowed = outcome.decision.is_allowed();
    for (limit, member) in limits.iter().zip(&outcome.members) {
        if limit.limit.config.mode != model::Mode::Off {
            limit.limit.counters.note(member, allowed);
        }
    }
    Ok(Some(Ruling {
        decision: outcome.decision,
        members: outcome.members,
    }))
}

impl Ruling {
    /// Adds the fields that tell the client about its limits, nearest first.
    pub fn write_standings(
        &self,
        limits: &[RouteLimit],
        headers: &mut HeaderMap,
        dialect: HeaderDialect,
        now: Timestamp,
    ) {
        if dialect == HeaderDialect::None {
            return;
        }
        let mut shown: SmallVec<[(&RouteLimit, &Decision); 4]> = limits
            .iter()
            .zip(&self.members)
            .filter(|(_, member)| !member.shadow)
            .collect();
        // Those that refused come first, the longest wait before the others.
        shown.sort_by_key(|(_, member)| {
            (
                member.is_allowed(),
                std::cmp::Reverse(member.retry_after),
                member.remaining,
            )
        });
        let standings: SmallVec<[Standing<'_>; 4]> = shown
            .iter()
            .map(|(limit, member)| Standing {
                name: &limit.limit.quoted,
                quota: member.limit,
                window: limit.limit.window,
                remaining: member.remaining,
                reset_after: member.reset_after,
            })
            .collect();
        write_standings(headers, dialect, &standings, now);
    }

    /// Sets `Retry-After` on a refusal, where waiting can help.
    pub fn write_retry_after(&self, headers: &mut HeaderMap) {
        write_retry_after(headers, self.decision.retry_after);
    }

    /// What a refused client reads.
    ///
    /// Source: draft-ietf-httpapi-ratelimit-headers-10, section 5.
    #[must_use]
    pub fn problem(&self, limits: &[RouteLimit]) -> Problem {
        let violated: Vec<String> = limits
            .iter()
            .zip(&self.members)
            .filter(|(_, member)| !member.shadow && !member.is_allowed())
            .map(|(limit, _)| limit.limit.config.name.clone())
            .collect();
        let wait = match retry_after_seconds(self.decision.retry_after) {
            None => "waiting does not help".to_owned(),
            Some(1) => "try again in 1 second".to_owned(),
            Some(seconds) => format!("try again in {seconds} seconds"),
        };
        let names = violated.join(", ");
        if self.decision.verdict == Verdict::Deny(Denial::TableFull) {
            let detail = format!("{names}: too many clients at once; {wait}");
            return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
                .typed(
                    TEMPORARY,
                    "Request cannot be satisfied due to temporary server capacity constraints",
                )
                .violated(violated);
        }
        let problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("over the limit {names}; {wait}"),
        )
        .typed(
            QUOTA,
            "Request cannot be satisfied as assigned quota has been exceeded",
        )
        .aws("Too Many Requests")
        .violated(violated);
        if self.decision.retry_after.is_never() {
            problem.never()
        } else {
            problem
        }
    }
}

const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const TEMPORARY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

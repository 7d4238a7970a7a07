//! The limits of a request, made of a configuration: what decides is the library's, and so is
//! what the client is told.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tidegate::http::{
    BodyStyle, ClientAddress, FieldDialect, GrpcCode, RequestHead, Rule, RuleError, RuleLimiter,
    Rules, Ruling, Undecided,
};
use tidegate::{Clock, Limiter, Mode, SharedLimiterBuilder, Stores, SystemClock, WhenFull};
use tidegate_config::model::{self, Compat, GrpcDenial, HeaderDialect, Identity};
use tidegate_config::{AlgorithmProblem, RoutePattern};
use tidegate_core::{Decision, Policy, Source};

use crate::keys::source;
use crate::metrics::{
    DecisionLabels, Door, DurationLabels, LimitLabels, Metrics, Name, Outcome, Seconds,
};

/// One limit at work.
#[derive(Debug)]
pub struct Limit {
    config: model::Limit,
    limiter: RuleLimiter,
    counters: Counters,
}

/// The counters of one limit, looked up once.
#[derive(Debug)]
struct Counters {
    allowed: Counter,
    denied: Counter,
    shadow_denied: Counter,
    fallback_allowed: Counter,
    fallback_denied: Counter,
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
    /// The limit counts no requests.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// Numbers that do not go together.
    #[error("limit `{0}`: {1}; {help}", help = .1.help)]
    Numbers(String, AlgorithmProblem),
}

impl Limit {
    /// Puts a limit to work: with the states of `limiter` if it is given, else afresh.
    ///
    /// # Errors
    /// An algorithm that the gateway cannot apply, or numbers that do not go together.
    pub fn new(
        config: model::Limit,
        policy: Policy,
        limiter: Option<RuleLimiter>,
        stores: &Stores,
        metrics: &Metrics,
    ) -> Result<Self, LimitError> {
        // A limiter that is taken over gets its new numbers later.
        if matches!(policy, Policy::Concurrency(_) | Policy::Lockout(_)) {
            let algorithm = config.algorithm.name();
            return Err(LimitError::Algorithm {
                limit: config.name,
                algorithm,
            });
        }
        let store = config.store.and_then(|position| stores.get(position));
        let limiter = match (limiter, store) {
            (Some(limiter), _) => limiter,
            (None, Some(store)) => SharedLimiterBuilder::from_config(&config, store)
                .map_err(|problem| LimitError::Numbers(config.name.clone(), problem))?
                .build()
                .into(),
            (None, None) => in_memory(&config, policy).into(),
        };
        Ok(Self {
            counters: Counters::new(&config.name, metrics),
            limiter,
            config,
        })
    }

    /// The limit on one route: where its key comes from there.
    fn rule_on(&self, route: &RoutePattern) -> Result<Rule, LimitError> {
        let sources = self.config.key.iter().map(|part| {
            source(part, route).ok_or_else(|| LimitError::Key {
                limit: self.config.name.clone(),
                part: part.to_string(),
                route: route.as_str().to_owned(),
            })
        });
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        Ok(Rule::new(self.limiter.clone())?
            .key(sources)
            .cost(self.config.cost))
    }

    /// What the limit was made of.
    #[must_use]
    pub fn config(&self) -> &model::Limit {
        &self.config
    }

    /// The counters themselves.
    #[must_use]
    pub fn limiter(&self) -> &RuleLimiter {
        &self.limiter
    }
}

fn in_memory(config: &model::Limit, policy: Policy) -> Limiter {
    Limiter::builder(policy)
        .name(config.name.as_str())
        .max_keys(usize::try_from(config.max_keys).unwrap_or(usize::MAX))
        .when_full(when_full(config.when_full))
        .charge_denied(config.charge_denied)
        .mode(mode(config.mode))
        .build()
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

/// The library's word for configured response fields.
pub(crate) const fn fields(dialect: HeaderDialect) -> FieldDialect {
    match dialect {
        HeaderDialect::Ietf => FieldDialect::Ietf,
        HeaderDialect::Draft03 => FieldDialect::Draft03,
        HeaderDialect::Github => FieldDialect::Github,
        HeaderDialect::None => FieldDialect::None,
    }
}

/// The library's word for configured bodies.
pub(crate) const fn bodies(compat: Compat) -> BodyStyle {
    match compat {
        Compat::Native => BodyStyle::Problem,
        Compat::Aws => BodyStyle::Aws,
    }
}

/// The library's word for the configured end of a limited gRPC call.
pub(crate) const fn grpc_code(denial: GrpcDenial) -> GrpcCode {
    match denial {
        GrpcDenial::ResourceExhausted => GrpcCode::ResourceExhausted,
        GrpcDenial::Unavailable => GrpcCode::Unavailable,
    }
}

/// The library's word for how callers are told apart.
pub(crate) fn client_address(identity: &Identity) -> ClientAddress {
    ClientAddress::behind(identity.trusted_proxies.iter().copied())
        .headers(identity.headers.iter().cloned())
        .ipv4_prefix(identity.ipv4_prefix)
        .ipv6_prefix(identity.ipv6_prefix)
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
            fallback_allowed: decisions(Outcome::FallbackAllowed),
            fallback_denied: decisions(Outcome::FallbackDenied),
            error: decisions(Outcome::Error),
            near: metrics.near_limit.get_or_create_owned(&LimitLabels {
                limit: limit.clone(),
            }),
        }
    }

    /// Counts one member's part in a decision. A limit that would have allowed what another one
    /// denied has decided nothing.
    fn note(&self, member: &Decision, allowed: bool) {
        let is_fallback = member.source == Source::Fallback;
        match (member.is_within_limit(), member.shadow) {
            (false, true) => {
                self.shadow_denied.inc();
            }
            (false, false) if is_fallback => {
                self.fallback_denied.inc();
            }
            (false, false) => {
                self.denied.inc();
            }
            (true, _) if allowed && is_fallback => {
                self.fallback_allowed.inc();
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

/// The limits of a route: the rules that decide, and what is counted of each.
#[derive(Debug)]
pub struct RouteLimits {
    rules: Rules,
    limits: Vec<Arc<Limit>>,
    seconds: Seconds,
}

impl RouteLimits {
    /// Makes limits ready for a route.
    ///
    /// # Errors
    /// A key part that the route's path does not have, or a limit that counts no requests.
    pub fn new(
        limits: Vec<Arc<Limit>>,
        route: &RoutePattern,
        stores: &Stores,
        metrics: &Metrics,
    ) -> Result<Self, LimitError> {
        let rules = limits.iter().map(|limit| limit.rule_on(route));
        // What a decision takes is what the slowest of its steps takes.
        let store = limits.iter().find_map(|limit| limit.config.store);
        let store = store.and_then(|position| stores.iter().nth(position));
        let seconds = metrics
            .decision_seconds
            .get_or_create_owned(&DurationLabels {
                door: Door::Gateway,
                store: store.map_or("memory", |(name, _)| name).into(),
            });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            limits,
            seconds,
        })
    }

    /// The rules, as the answers need them.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Asks all limits of a request, those in memory at once and the others in one step more, and
    /// counts what they say and how long it took.
    ///
    /// # Errors
    /// There is no decision.
    pub async fn decide(
        &self,
        head: RequestHead<'_>,
        clock: &SystemClock,
    ) -> Result<Ruling, Undecided> {
        let begun = clock.now();
        let now = self.rules.moment().unwrap_or_else(|| begun.into());
        let decided = self.rules.decide_shared(head, now).await;
        if !self.limits.is_empty() {
            let took = clock.now().as_micros().saturating_sub(begun.as_micros());
            self.seconds.observe(Duration::from_micros(took));
        }
        match &decided {
            Ok(ruling) => {
                for (place, member) in ruling.members() {
                    let limit = &self.limits[place];
                    if limit.config.mode != model::Mode::Off {
                        limit.counters.note(member, ruling.is_allowed());
                    }
                }
            }
            Err(Undecided::Part(_)) => {}
            Err(_) => {
                for limit in &self.limits {
                    limit.counters.error.inc();
                }
            }
        }
        decided
    }
}

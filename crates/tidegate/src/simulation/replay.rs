//! The limits of a simulation and the answers that they give.

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use tidegate_core::{Decision, OperationError, Policy, Reply};

use super::call::{Action, Call, LimitNumber, Target};
use super::keys::{KeyNumber, KeyTable};
use super::play::Play;
use super::request::{KeySource, Request, key_of, split_target};
use super::routes::Routes;
use super::status::StatusSet;
use super::suggest::KeyShare;
use crate::http::ClientAddress;
use crate::{Key, Limiter, Mode, WhenFull};

/// What is known of a limit beside its numbers.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// What a request costs, where the call does not say.
    pub cost: u32,
    /// Whether it is enforced.
    pub mode: Mode,
    /// The most keys that its table holds.
    pub max_keys: usize,
    /// What happens when the table is full.
    pub when_full: WhenFull,
    /// Whether denied calls are charged all the same.
    pub charge_denied: bool,
    /// What makes the key of a request.
    pub keyed_by: Vec<KeySource>,
    /// The statuses under which a request stays charged; none where all do.
    pub count_when: Option<StatusSet>,
    /// The statuses that make the key start afresh.
    pub reset_when: Option<StatusSet>,
}

impl LimitSettings {
    /// Whether a request can only be counted where its status is known.
    pub(crate) const fn asks_for_status(&self) -> bool {
        self.count_when.is_some() || self.reset_when.is_some()
    }
}

impl Default for LimitSettings {
    /// Enforced, with the library's table, and no way to find the key of a request.
    fn default() -> Self {
        Self {
            cost: 1,
            mode: Mode::Enforce,
            max_keys: 1_000_000,
            when_full: WhenFull::Overflow,
            charge_denied: false,
            keyed_by: Vec::new(),
            count_when: None,
            reset_when: None,
        }
    }
}

/// Why a limit could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there already is a limit called {0}")]
pub struct DuplicateLimit(pub String);

/// Why a call got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The engine has no answer to it.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A settlement or cancellation of what was never reserved.
    #[error("nothing is reserved under the name {0}")]
    NotReserved(Box<str>),
    /// The call names no limit.
    #[error("there is no limit to ask")]
    NoTarget,
    /// Several limits for an operation that works on one.
    #[error("{0} works on one limit at a time")]
    OneAtATime(&'static str),
    /// A request whose permit has no end.
    #[error(
        "duration_ms is missing: how long the request took, so that limit {0} gets its permit back"
    )]
    NoDuration(Box<str>),
    /// A request whose outcome decides whether it counts.
    #[error("status is missing: limit {0} counts by the status of the answer")]
    NoStatus(Box<str>),
}

/// Limits in simulated time: no clock, no server, the very engine of the doors.
#[derive(Debug, Default)]
pub struct Simulation {
    limits: Vec<Limit>,
    routes: Option<Routes>,
    /// How clients behind proxies are found; none where every peer is a client.
    clients: Option<ClientAddress>,
    play: Play,
    variants: Vec<Variant>,
    sample: Option<KeyShare>,
    /// Calls of callers that are not in the sample.
    left_out: u64,
}

/// A limit, without the states of its keys.
#[derive(Debug)]
pub(super) struct Limit {
    name: Box<str>,
    header: Box<str>,
    keys: KeyTable,
    settings: LimitSettings,
}

impl Limit {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn settings(&self) -> &LimitSettings {
        &self.settings
    }

    /// The key of a target that is of this limit.
    pub(super) fn key(&self, target: Target) -> &Key {
        self.keys.key(target.key)
    }
}

/// The number of a set of numbers that is tried beside the configured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariantNumber(u32);

/// One limit with other numbers, and all others as they are, with states of their own.
#[derive(Debug)]
struct Variant {
    limit: LimitNumber,
    header: Box<str>,
    scope: Scope,
    play: Play,
}

/// Which limits decide in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that a call meets, as configured, beside the one that is varied.
    All,
    /// The varied limit alone.
    Alone,
}

/// What came of a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The answer; of the limit that decided, where several were asked.
    pub reply: Reply,
    /// Which limit and key decided; none for a change of a limit.
    pub target: Option<Target>,
    /// What each limit said, where several were asked.
    pub members: SmallVec<[Decision; 6]>,
}

impl Answer {
    /// The answer to a change of a limit.
    fn done() -> Self {
        Self {
            reply: Reply::Done,
            target: None,
            members: SmallVec::new(),
        }
    }

    /// The name of the limit that decided; empty for a change of a limit.
    pub(crate) fn limit<'a>(&self, simulation: &'a Simulation) -> &'a str {
        self.target
            .map_or("", |target| simulation.name(target.limit))
    }
}

impl Simulation {
    /// A simulation without limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a limit; `header` is its algorithm as a timeline's header writes it.
    ///
    /// # Errors
    /// Another limit has the name already.
    pub fn add(
        &mut self,
        name: &str,
        policy: Policy,
        header: impl Into<Box<str>>,
        settings: LimitSettings,
    ) -> Result<LimitNumber, DuplicateLimit> {
        if self.find(name).is_some() {
            return Err(DuplicateLimit(name.to_owned()));
        }
        for variant in &mut self.variants {
            variant
                .play
                .add(name, policy.clone(), settings.mode, &settings);
        }
        self.play.add(name, policy, settings.mode, &settings);
        self.limits.push(Limit {
            name: name.into(),
            header: header.into(),
            keys: KeyTable::default(),
            settings,
        });
        Ok(LimitNumber(
            u32::try_from(self.limits.len() - 1).expect("limits fit into memory"),
        ))
    }

    /// The limit of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<LimitNumber> {
        let index = self.limits.iter().position(|limit| &*limit.name == name)?;
        u32::try_from(index).ok().map(LimitNumber)
    }

    /// All limits, in the order in which they were added.
    pub fn limits(&self) -> impl Iterator<Item = LimitNumber> + use<> {
        (0..u32::try_from(self.limits.len()).unwrap_or(u32::MAX)).map(LimitNumber)
    }

    /// The names of all limits, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|limit| &*limit.name)
    }

    /// The only limit there is.
    ///
    /// # Errors
    /// How many there are instead.
    pub(crate) fn only(&self) -> Result<LimitNumber, usize> {
        match self.limits.len() {
            1 => Ok(LimitNumber(0)),
            count => Err(count),
        }
    }

    /// The name of a limit.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn name(&self, limit: LimitNumber) -> &str {
        &self.limits[limit.index()].name
    }

    /// The algorithm of a limit, as a timeline's header writes it.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn header(&self, limit: LimitNumber) -> &str {
        &self.limits[limit.index()].header
    }

    /// What is known of a limit beside its numbers.
    pub(crate) fn settings(&self, limit: LimitNumber) -> &LimitSettings {
        &self.limits[limit.index()].settings
    }

    /// The limiter behind a limit.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn limiter(&self, limit: LimitNumber) -> &Limiter {
        self.play.limiter(limit.index())
    }

    /// Tries a limit with other numbers beside the configured ones, on the same calls: with fresh
    /// states of its own for all limits, and enforced whatever its mode. `header` is the
    /// algorithm as a timeline's header writes it.
    ///
    /// # Panics
    /// The number is of another simulation.
    pub fn add_variant(
        &mut self,
        limit: LimitNumber,
        policy: Policy,
        header: impl Into<Box<str>>,
        scope: Scope,
    ) -> VariantNumber {
        let mut play = Play::default();
        for (other, known) in self.limits.iter().enumerate() {
            if other == limit.index() {
                play.add(&known.name, policy.clone(), Mode::Enforce, &known.settings);
            } else {
                let own = self.play.limiter(other).policy();
                play.add(&known.name, own, known.settings.mode, &known.settings);
            }
        }
        self.variants.push(Variant {
            limit,
            header: header.into(),
            scope,
            play,
        });
        VariantNumber(u32::try_from(self.variants.len() - 1).expect("variants fit into memory"))
    }

    /// All variants, in the order in which they were added.
    pub fn variants(&self) -> impl Iterator<Item = VariantNumber> + use<> {
        (0..u32::try_from(self.variants.len()).unwrap_or(u32::MAX)).map(VariantNumber)
    }

    /// The limit that a variant varies, and its algorithm there as a timeline's header writes it.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn variant(&self, variant: VariantNumber) -> (LimitNumber, &str) {
        let variant = &self.variants[variant.0 as usize];
        (variant.limit, &variant.header)
    }

    /// How many distinct keys of a limit the traces have named.
    ///
    /// # Panics
    /// The number is of another simulation.
    #[must_use]
    pub fn keys_seen(&self, limit: LimitNumber) -> usize {
        self.limits[limit.index()].keys.len()
    }

    /// Lets requests meet the limits of their route only. Default: all limits.
    pub fn set_routes(&mut self, routes: Routes) {
        self.routes = Some(routes);
    }

    /// Finds clients behind these proxies, as the doors do. Default: every peer is a client.
    pub fn set_clients(&mut self, clients: ClientAddress) {
        self.clients = Some(clients);
    }

    /// Plays only the calls of a share of the callers, always the same ones: by client where a line
    /// tells one, else by key. A limit that counts many callers together sees only their share.
    pub fn set_sample(&mut self, share: KeyShare) {
        self.sample = Some(share);
    }

    /// How many calls were left out, as their callers are not in the sample.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether a caller is in the sample.
    pub(crate) fn keeps(&mut self, caller: &[u8]) -> bool {
        let Some(share) = self.sample else {
            return true;
        };
        let kept = share.holds(SipHasher13::new().hash(caller));
        self.left_out += u64::from(!kept);
        kept
    }

    /// Whether clients are looked for behind proxies.
    pub(crate) const fn finds_clients(&self) -> bool {
        self.clients.is_some()
    }

    /// The limits that requests can meet, each with what makes its key.
    pub(crate) fn met_by_requests(&self) -> Vec<(LimitNumber, &[KeySource])> {
        match &self.routes {
            None => self
                .limits()
                .map(|limit| (limit, self.keyed_by(limit)))
                .collect(),
            Some(routes) => routes
                .all()
                .map(|met| (met.limit, &*met.keyed_by))
                .collect(),
        }
    }

    /// The limits that a request meets, with its keys; none where no route serves it.
    pub(crate) fn targets(&mut self, request: &Request<'_>) -> SmallVec<[Target; 1]> {
        let Self {
            limits,
            routes,
            clients,
            ..
        } = self;
        let client = clients
            .as_ref()
            .and_then(|clients| request.behind_proxies(clients));
        let request = &Request {
            client: client.as_ref().map(String::as_bytes).or(request.client),
            ..*request
        };
        let Some(routes) = routes else {
            return limits
                .iter_mut()
                .zip(0..)
                .map(|(limit, number)| {
                    let key = key_of(&limit.settings.keyed_by, request);
                    Target {
                        limit: LimitNumber(number),
                        key: limit.keys.number(&key),
                    }
                })
                .collect();
        };
        let (Some(method), Some(target)) = (request.method, request.target) else {
            return SmallVec::new();
        };
        let Some((met, path)) = routes.of(method, split_target(target).0) else {
            return SmallVec::new();
        };
        let request = Request {
            path: Some(&path),
            ..*request
        };
        met.iter()
            .map(|met| {
                let key = key_of(&met.keyed_by, &request);
                Target {
                    limit: met.limit,
                    key: limits[met.limit.index()].keys.number(&key),
                }
            })
            .collect()
    }

    /// What makes the key of a request under this limit.
    pub(crate) fn keyed_by(&self, limit: LimitNumber) -> &[KeySource] {
        &self.limits[limit.index()].settings.keyed_by
    }

    /// What a request costs under this limit, where nothing else is said.
    pub(crate) fn cost(&self, limit: LimitNumber) -> u32 {
        self.limits[limit.index()].settings.cost
    }

    /// The number of a key of a limit.
    pub(crate) fn key_number(&mut self, limit: LimitNumber, key: &Key) -> KeyNumber {
        self.limits[limit.index()].keys.number(key)
    }

    /// A key by its number.
    pub(crate) fn key(&self, target: Target) -> &Key {
        self.limits[target.limit.index()].keys.key(target.key)
    }

    /// Answers a call.
    ///
    /// # Errors
    /// The call has no meaning for its limit; nothing was changed then.
    pub fn answer(&mut self, call: &Call) -> Result<Answer, CallError> {
        if let Action::SetPolicy(change) = &call.action {
            self.play.change(change, call.at);
            self.limits[change.limit.index()].header = change.header.clone();
            return Ok(Answer::done());
        }
        self.play.answer(&self.limits, call, &call.targets)
    }

    /// Answers a call as a variant would; none where its limit has no part in the call.
    ///
    /// A change of the varied limit is not obeyed there: the variant stands for all of the time.
    ///
    /// # Errors
    /// The call has no meaning for its limit; nothing was changed then.
    ///
    /// # Panics
    /// The number is of another simulation.
    pub fn answer_as(
        &mut self,
        variant: VariantNumber,
        call: &Call,
    ) -> Result<Option<Answer>, CallError> {
        let Variant {
            limit, scope, play, ..
        } = &mut self.variants[variant.0 as usize];
        if let Action::SetPolicy(change) = &call.action {
            if change.limit != *limit {
                play.change(change, call.at);
            }
            return Ok(None);
        }
        let position = call
            .targets
            .iter()
            .position(|target| target.limit == *limit);
        let targets = match (*scope, position) {
            (Scope::Alone, Some(at)) => &call.targets[at..=at],
            (Scope::Alone, None) => return Ok(None),
            (Scope::All, _) => &call.targets,
        };
        play.answer(&self.limits, call, targets).map(Some)
    }
}

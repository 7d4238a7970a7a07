//! All limits of a request, decided at once.

use std::time::Duration;

use http::response;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{Decision, Denial, OperationError, Source, Timestamp, Verdict};
use tidegate_store::Moment;

use super::after::Owed;
use super::head::RequestHead;
use super::pending::Pending;
use super::policy_field::PolicyField;
use super::rule::Rule;
use super::source::PartFault;
use crate::composition::alone;
use crate::{Key, Member, Outcome, all_of};

/// The limits of a request: all are charged for it, or none.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Box<[Rule]>,
    /// The position of the first rule that asks a store.
    first_shared: Option<usize>,
    #[cfg(feature = "axum")]
    reads_the_path: bool,
    policy_field: PolicyField,
}

/// What the limits of one request decided.
///
/// It lies apart, since a request's future carries it from step to step.
#[derive(Debug)]
pub struct Ruling(Box<Ruled>);

#[derive(Debug)]
struct Ruled {
    decision: Option<Decision>,
    members: SmallVec<[Decision; 6]>,
    /// Which rule each member is of: a rule that does not apply to the request is no member.
    places: SmallVec<[usize; 6]>,
    owed: Vec<Owed>,
    now: Timestamp,
    sheds: bool,
}

/// Why there is no ruling. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// The request has a part of a key in a way that must not be counted by.
    #[error(transparent)]
    Part(#[from] PartFault),
    /// A limit was made one that counts no requests.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A limit counts in a store, which has to be asked.
    #[error("limit `{0}` is shared and has to ask its store; decide by `decide_shared`")]
    Shared(String),
}

impl FromIterator<Rule> for Rules {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let rules: Box<[Rule]> = rules.into_iter().collect();
        Self {
            #[cfg(feature = "axum")]
            reads_the_path: rules
                .iter()
                .flat_map(|rule| &rule.key)
                .any(|source| source.is_of_the_path()),
            first_shared: rules
                .iter()
                .position(|rule| rule.limiter.memory().is_none()),
            policy_field: PolicyField::default(),
            rules,
        }
    }
}

impl std::ops::Deref for Rules {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        &self.rules
    }
}

impl Rules {
    /// Asks all limits of a request at once. A request to which none applies is allowed.
    ///
    /// # Errors
    /// There is no decision; nothing was charged. [`Undecided::Shared`] where a limit has to ask a
    /// store: then [`Self::decide_shared`] decides.
    pub fn decide<'a>(
        &self,
        head: RequestHead<'_>,
        now: impl Into<Moment<'a>>,
    ) -> Result<Ruling, Undecided> {
        if let Some(rule) = self.first_shared() {
            return Err(Undecided::Shared(rule.limiter.name().to_owned()));
        }
        let wanted = self.wanted(head)?;
        self.decide_in_memory(&wanted, now.into())
            .map(|ruling| self.owing(ruling, wanted))
    }

    /// Asks all limits of a request, those that other processes share too: first those in memory,
    /// then, if they allow, all others in one step. If these deny, what was charged in memory is
    /// given back; so between the two others may be denied by a charge that does not last, and
    /// nothing ever passes too much. One thing stays: the grid that a call began on a bucket which
    /// refills at intervals.
    ///
    /// Where no shared limit applies it decides at once, as [`Self::decide`] does. A future that is
    /// dropped before its end leaves its charges, as a request does whose client hangs up.
    ///
    /// # Errors
    /// There is no decision; nothing was charged.
    pub async fn decide_shared<'a>(
        &self,
        head: RequestHead<'_>,
        now: impl Into<Moment<'a>>,
    ) -> Result<Ruling, Undecided> {
        match self.begin(head, now.into())? {
            Begun::Decided(ruling) => Ok(ruling),
            // Apart, so that a request which asks no store does not carry the room for it.
            Begun::Asking(pending) => Box::pin(pending.finish(self)).await,
        }
    }

    /// The moment to decide at: by the clock of the first limit in memory, or of the first one. None
    /// where there are no limits.
    #[must_use]
    pub fn moment(&self) -> Option<Moment<'_>> {
        let mut in_memory = self.rules.iter().filter_map(|rule| rule.limiter.memory());
        match (in_memory.next(), self.rules.first()) {
            (Some(limiter), _) => Some(limiter.moment()),
            (None, first) => first.map(|rule| rule.limiter.now().into()),
        }
    }

    /// Takes the step in memory, and says what is left to ask.
    pub(crate) fn begin(&self, head: RequestHead<'_>, now: Moment<'_>) -> Result<Begun, Undecided> {
        let wanted = self.wanted(head)?;
        let ruling = self.decide_in_memory(&wanted, now)?;
        if ruling.is_allowed() && self.asks_store(&wanted) {
            return Ok(Begun::Asking(Box::new(Pending::new(wanted, ruling))));
        }
        Ok(Begun::Decided(self.owing(ruling, wanted)))
    }

    /// What a request wants of each rule that applies to it.
    fn wanted(&self, head: RequestHead<'_>) -> Result<Wanted, PartFault> {
        let mut wanted = Wanted::default();
        for (place, rule) in self.rules.iter().enumerate() {
            if let Some(key) = rule.key_of(head)? {
                wanted.push(Want {
                    place,
                    key,
                    cost: rule.cost_of(head),
                });
            }
        }
        Ok(wanted)
    }

    /// What answers say of the limits' numbers.
    pub(super) const fn policy_field(&self) -> &PolicyField {
        &self.policy_field
    }

    fn asks_store(&self, wanted: &Wanted) -> bool {
        self.first_shared().is_some()
            && wanted
                .iter()
                .any(|want| self.rules[want.place].limiter.memory().is_none())
    }

    fn first_shared(&self) -> Option<&Rule> {
        self.first_shared.map(|place| &self.rules[place])
    }

    /// What the limits in memory say: the whole ruling where there are no others.
    fn decide_in_memory(&self, wanted: &Wanted, now: Moment<'_>) -> Result<Ruling, Undecided> {
        let mut places: SmallVec<[usize; 6]> = SmallVec::new();
        let mut members: SmallVec<[Member<'_>; 4]> = SmallVec::new();
        for want in wanted {
            if let Some(limiter) = self.rules[want.place].limiter.memory() {
                places.push(want.place);
                members.push(Member::take(limiter, &want.key, want.cost));
            }
        }
        let quick = match &members[..] {
            [member] => alone(member, now),
            _ => None,
        };
        let mut ruling = match quick {
            Some(decision) => Ruling::single(decision, now.of(&decision)),
            None => Ruling::of(all_of(&members, now)?, now),
        };
        ruling.0.places = places;
        Ok(ruling)
    }

    /// The ruling, with what it owes once the answer is known.
    pub(super) fn owing(&self, mut ruling: Ruling, wanted: Wanted) -> Ruling {
        if !ruling.is_allowed() {
            return ruling;
        }
        let ruled = &mut *ruling.0;
        let mut told = ruled.places.iter().zip(&ruled.members);
        for want in wanted {
            let Some((_, member)) = told.find(|(place, _)| **place == want.place) else {
                break;
            };
            // A member in shadow that would have refused was not charged, and what a store did not
            // count it is not to give back.
            let is_charged = member.is_within_limit() && member.source != Source::Fallback;
            if is_charged && self.rules[want.place].settles() {
                ruled.owed.push(Owed {
                    rule: want.place,
                    key: want.key,
                    cost: member.cost,
                });
            }
        }
        ruling
    }

    /// Settles what a request was charged, by its answer or for want of one. A second time does
    /// nothing.
    pub fn settle(&self, ruling: &mut Ruling, answer: Option<&response::Parts>) {
        // Taken out first: should a closure panic, no charge is settled twice on the way out.
        for owed in std::mem::take(&mut ruling.0.owed) {
            let rule = &self.rules[owed.rule];
            owed.settle(&rule.limiter, rule.after_of(answer));
        }
    }

    /// Whether a rule goes by a parameter of the path.
    #[cfg(feature = "axum")]
    pub(crate) const fn reads_the_path(&self) -> bool {
        self.reads_the_path
    }
}

/// What a limit says that refuses for want of its store.
pub(super) const NO_STORE: Verdict = Verdict::Deny(Denial::Fallback);

/// What a request wants of one rule.
#[derive(Debug)]
pub(crate) struct Want {
    /// The position of the rule.
    pub place: usize,
    pub key: Key,
    pub cost: u32,
}

pub(crate) type Wanted = SmallVec<[Want; 4]>;

/// How far a decision is after its step in memory.
pub(crate) enum Begun {
    Decided(Ruling),
    Asking(Box<Pending>),
}

impl Ruling {
    /// The ruling of the one rule that there is.
    pub(crate) fn single(decision: Decision, now: Timestamp) -> Self {
        let (members, places) = (smallvec![decision], smallvec![0]);
        Self::new(Some(decision), members, places, now)
    }

    /// Adds what the shared limits said to what those in memory did.
    #[cfg(feature = "valkey")]
    pub(super) fn merge(&mut self, said: impl IntoIterator<Item = (usize, Decision)>) {
        let ruled = &mut *self.0;
        for (place, decision) in said {
            let at = ruled.places.partition_point(|other| *other < place);
            ruled.places.insert(at, place);
            ruled.members.insert(at, decision);
        }
        ruled.decision = tidegate_core::all_of::combine(&ruled.members);
    }

    /// The ruling of several rules, whose places are still to be said.
    fn of(outcome: Option<Outcome>, now: Moment<'_>) -> Self {
        let at = |outcome: &Outcome| now.of(&outcome.decision);
        let now = outcome.as_ref().map_or(now.now(), at);
        let (decision, members) = match outcome {
            Some(outcome) => (Some(outcome.decision), outcome.members),
            None => (None, SmallVec::new()),
        };
        Self::new(decision, members, SmallVec::new(), now)
    }

    fn new(
        decision: Option<Decision>,
        members: SmallVec<[Decision; 6]>,
        places: SmallVec<[usize; 6]>,
        now: Timestamp,
    ) -> Self {
        Self(Box::new(Ruled {
            decision,
            members,
            places,
            owed: Vec::new(),
            now,
            sheds: false,
        }))
    }

    /// Whether a denial is for the service's own sake.
    pub(crate) const fn sheds(&self) -> bool {
        self.0.sheds
    }

    /// Says that a denial is for the service's own sake, or not.
    #[cfg(feature = "tower")]
    pub(crate) fn set_sheds(&mut self, sheds: bool) {
        self.0.sheds = sheds;
    }

    /// Over all; none where no limit applies to the request.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        self.0.decision.as_ref()
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.0.decision.as_ref().is_none_or(Decision::is_allowed)
    }

    /// How long an allowed request has to wait before it goes on, if it has to: in a paced queue.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        let delay = self.0.decision.as_ref()?.delay.as_duration();
        delay.filter(|delay| !delay.is_zero())
    }

    /// What each limit said, with the position of its rule. Those in shadow are marked, and have
    /// no part in the decision.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (usize, &Decision)> {
        self.0.places.iter().copied().zip(&self.0.members)
    }

    /// Whether it is a refusal for want of a store.
    pub(super) fn lacks_store(&self) -> bool {
        let decision = self.0.decision.as_ref();
        decision.is_some_and(|decision| decision.verdict == NO_STORE)
    }

    /// Whether a limit decided without its store, which gave no answer.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        let mut members = self.0.members.iter();
        members.any(|member| member.source == Source::Fallback)
    }

    /// When it was decided.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.0.now
    }
}

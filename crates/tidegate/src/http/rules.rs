//! All limits of a request, decided at once.

use std::time::Duration;

use http::response;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{Decision, Demand, OperationError, Timestamp};
use tidegate_store::Moment;

use super::after::Owed;
use super::head::RequestHead;
use super::rule::Rule;
use super::source::PartFault;
use crate::composition::alone;
use crate::{Key, Member, Outcome, all_of};

/// The limits of a request: all are charged for it, or none.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Box<[Rule]>,
    #[cfg(feature = "axum")]
    reads_the_path: bool,
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
    /// There is no decision; nothing was charged.
    pub fn decide<'a>(
        &self,
        head: RequestHead<'_>,
        now: impl Into<Moment<'a>>,
    ) -> Result<Ruling, Undecided> {
        let now = now.into();
        let mut keys: SmallVec<[Key; 4]> = SmallVec::new();
        let mut places: SmallVec<[usize; 6]> = SmallVec::new();
        for (place, rule) in self.rules.iter().enumerate() {
            if let Some(key) = rule.key_of(head)? {
                keys.push(key);
                places.push(place);
            }
        }
        let members: SmallVec<[Member<'_>; 4]> = keys
            .iter()
            .zip(&places)
            .map(|(key, place)| Member {
                limiter: &self.rules[*place].limiter,
                key,
                demand: Demand::Take {
                    cost: self.rules[*place].cost_of(head),
                },
            })
            .collect();
        let quick = match &members[..] {
            [member] => alone(member, now),
            _ => None,
        };
        let mut ruling = match quick {
            Some(decision) => Ruling::single(decision, now.of(&decision)),
            None => Ruling::of(all_of(&members, now)?, now),
        };
        drop(members);
        ruling.0.places = places;
        if ruling.is_allowed() {
            self.note_what_is_owed(&mut ruling.0, keys);
        }
        Ok(ruling)
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

    fn note_what_is_owed(&self, ruled: &mut Ruled, keys: SmallVec<[Key; 4]>) {
        for ((key, place), member) in keys.into_iter().zip(&ruled.places).zip(&ruled.members) {
            // A member in shadow that would have refused was not charged.
            if self.rules[*place].settles() && member.is_within_limit() {
                ruled.owed.push(Owed {
                    rule: *place,
                    key,
                    cost: member.cost,
                });
            }
        }
    }
}

impl Ruling {
    /// The ruling of the one rule that there is.
    pub(crate) fn single(decision: Decision, now: Timestamp) -> Self {
        let (members, places) = (smallvec![decision], smallvec![0]);
        Self::new(Some(decision), members, places, now)
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

    /// When it was decided.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.0.now
    }
}

//! A decision whose step in memory is done, and whose shared limits are still to be asked.

#[cfg(feature = "valkey")]
use smallvec::SmallVec;
#[cfg(feature = "valkey")]
use tidegate_core::Reservation;

use super::rules::{Rules, Ruling, Undecided, Wanted};
#[cfg(feature = "valkey")]
use crate::Mode;
#[cfg(feature = "valkey")]
use crate::shared::{SharedMember, all_of};

/// What a request wants, and what the limits in memory said: they have allowed it.
pub(crate) struct Pending {
    wanted: Wanted,
    ruling: Ruling,
}

impl Pending {
    pub(super) const fn new(wanted: Wanted, ruling: Ruling) -> Self {
        Self { wanted, ruling }
    }

    /// Nothing is shared in a build without stores.
    #[cfg(not(feature = "valkey"))]
    #[expect(
        clippy::unused_async,
        reason = "it is what asks where there are stores"
    )]
    pub(crate) async fn finish(self, rules: &Rules) -> Result<Ruling, Undecided> {
        Ok(rules.owing(self.ruling, self.wanted))
    }

    /// Asks the shared limits in one step. If they deny, what was charged in memory is given back.
    #[cfg(feature = "valkey")]
    pub(crate) async fn finish(mut self, rules: &Rules) -> Result<Ruling, Undecided> {
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        let mut members: SmallVec<[SharedMember<'_>; 4]> = SmallVec::new();
        for want in &self.wanted {
            if let Some(limiter) = rules[want.place].limiter.shared() {
                places.push(want.place);
                members.push(SharedMember::take(limiter, &want.key, want.cost));
            }
        }
        let outcome = match all_of(&members).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.give_back(rules);
                return Err(error.into());
            }
        };
        drop(members);
        if let Some(outcome) = outcome {
            if !outcome.decision.is_allowed() {
                self.give_back(rules);
            }
            self.ruling.merge(places.into_iter().zip(outcome.members));
        }
        Ok(rules.owing(self.ruling, self.wanted))
    }

    /// Gives back what the limits in memory charged: the request is as if they had not been asked.
    #[cfg(feature = "valkey")]
    fn give_back(&self, rules: &Rules) {
        for (place, member) in self.ruling.members() {
            let Some(limiter) = rules[place].limiter.memory() else {
                continue;
            };
            let want = self.wanted.iter().find(|want| want.place == place);
            if let Some(want) = want
                && member.is_within_limit()
                && limiter.mode() != Mode::Off
            {
                let reservation = Reservation {
                    cost: want.cost,
                    at: member.at,
                };
                // The limit had units to take a moment ago. Should it have become another algorithm
                // since, its keys are fresh and there is nothing to give back.
                let _ = limiter.key(&want.key).cancel(reservation);
            }
        }
    }
}

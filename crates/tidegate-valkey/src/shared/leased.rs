//! Spending units that were taken in advance, asking for more, and giving back what is left.
//!
//! The question for more is a task of its own: callers may give up, and what it brings is kept all
//! the same. All who lack units of a key meanwhile wait for that one answer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::{
    Algorithm, Decision, Demand, Operation, OperationError, Reply, Reservation, Source,
    with_algorithm,
};
use tidegate_store::Key;
use tokio::runtime::Handle;

use super::{Inner, Memory, SharedCall, SharedLimit};
use crate::StoreError;
use crate::tokens::{Asked, Ended, Flight, Lot, Owner, Purses, Took, returnable};

/// How often a caller waits for others' questions before it asks by itself.
const WAITS: u32 = 16;

/// Purses are not looked through more often.
const OFTEN: Duration = Duration::from_millis(10);

type Answer = Result<Decision, OperationError>;

impl SharedCall<'_> {
    /// Spends units that are at hand in this process, if they are enough: no store is asked, and
    /// there is nothing to wait for. None where the limit leases no tokens, or they do not suffice.
    #[must_use]
    pub fn spend(&self) -> Option<Decision> {
        let Demand::Take { cost: 1.. } = self.demand else {
            return None;
        };
        let purses = self.limit.0.open_purses()?;
        let hash = self.hash();
        match purses.take(hash, self.cost()) {
            Took::Spent(decision, is_low) => {
                if is_low {
                    ask_ahead(self.limit, purses, hash);
                }
                let decision = self.told(decision);
                self.limit.count(&decision);
                Some(decision)
            }
            Took::Short(_) => None,
        }
    }

    /// Where units for this call may be taken in advance.
    pub(super) fn purses(&self) -> Option<&Arc<Purses>> {
        let most = self.limit.most();
        match self.demand {
            // What can never fit is for the store to refuse.
            Demand::Take { cost } if cost > 0 && cost <= most => self.limit.0.open_purses(),
            _ => None,
        }
    }

    /// Holds what the call wants, if all of it is at hand.
    pub(super) fn at_hand(&self) -> Option<AtHand<'_>> {
        let purses = self.purses()?;
        let hash = self.hash();
        let decision = self.told(purses.look(hash, self.cost())?);
        let held = Held::new(purses, hash, purses.hold(hash, self.cost()));
        // Another caller may have been quicker in between.
        (held.units() == self.cost()).then_some(AtHand { held, decision })
    }

    /// Has units ready for the next call, if the key is asked often.
    pub(super) fn ask_after(&self) {
        if let Some(purses) = self.purses()
            && let Some(asked) = purses.ask_after(self.hash(), || self.owner())
        {
            fly_ahead(self.limit, purses, self.hash(), asked);
        }
    }

    /// Decides over units that are not all at hand.
    pub(super) async fn decide_leased(&self, purses: &Arc<Purses>) -> Answer {
        let (hash, cost) = (self.hash(), self.cost());
        for _ in 0..WAITS {
            let missing = match purses.take(hash, cost) {
                Took::Spent(decision, _) => return Ok(self.counted(decision)),
                Took::Short(missing) => missing,
            };
            if let Some(denied) = self.for_units(missing).recalled() {
                return Ok(self.counted(Decision { cost, ..denied }));
            }
            let waiting = match purses.ask(hash, cost, || self.owner()) {
                Asked::Spent(decision) => return Ok(self.counted(decision)),
                Asked::Straight(held) => return self.straight(purses, held).await,
                Asked::Wait(waiting) => waiting,
                Asked::Fly {
                    want,
                    is_likely,
                    owner,
                    flight,
                    waiting,
                } => {
                    let mission = Mission {
                        limit: self.limit.clone(),
                        purses: Arc::clone(purses),
                        hash,
                        owner,
                        want,
                        is_likely,
                        missing,
                    };
                    tokio::spawn(mission.fly(flight));
                    waiting
                }
            };
            match waiting.ended().await {
                Ended::Brought => {}
                Ended::Denied(enough, decision) => match purses.take(hash, cost) {
                    Took::Spent(decision, _) => return Ok(self.counted(decision)),
                    Took::Short(missing) if missing >= enough => {
                        return Ok(self.counted(Decision { cost, ..decision }));
                    }
                    Took::Short(_) => {}
                },
                Ended::Failed => return self.decide_without_store().map(|(decision, _)| decision),
            }
        }
        // Others were quicker each time.
        self.straight(purses, purses.hold(hash, cost)).await
    }

    /// Asks the store for what is not `held`.
    async fn straight(&self, purses: &Arc<Purses>, held: impl IntoIterator<Item = Lot>) -> Answer {
        let mut held = Held::new(purses, self.hash(), held);
        let units = held.units();
        let rest = self.for_units(self.cost().saturating_sub(units));
        let sent = purses.now();
        let (decision, _) = rest.decide_at_store().await?;
        purses.see(held.hash, sent, &decision);
        if units == 0 {
            return Ok(decision);
        }
        let now = purses.now();
        let is_fresh = held.lots.iter().all(|lot| lot.is_live(now));
        if decision.is_within_limit() && !is_fresh {
            // The answer took so long that what was held must not be spent any more.
            if decision.source == Source::State {
                let lot = purses.lot(sent, &decision);
                give_back(self.limit, purses, &self.owner(), lot).await;
            }
            drop(held);
            return self.decide_at_store().await.map(|(decision, _)| decision);
        }
        if decision.is_within_limit() {
            held.lots.clear();
        }
        let cost = self.cost();
        Ok(Decision { cost, ..decision })
    }

    /// The same call for another number of units.
    const fn for_units(&self, cost: u32) -> Self {
        Self {
            demand: Demand::Take { cost },
            ..*self
        }
    }

    const fn cost(&self) -> u32 {
        match self.demand {
            Demand::Take { cost } => cost,
            _ => 0,
        }
    }

    fn hash(&self) -> u64 {
        let limit = &self.limit.0;
        limit
            .store
            .hash(&limit.spec, self.key, self.slot, self.shadow)
    }

    fn owner(&self) -> Owner {
        Owner {
            key: self.key.clone(),
            slot: self.slot.cloned(),
            shadow: self.shadow,
        }
    }

    fn told(&self, decision: Decision) -> Decision {
        Decision {
            shadow: self.shadow,
            ..decision
        }
    }

    fn counted(&self, decision: Decision) -> Decision {
        let decision = self.told(decision);
        self.limit.count(&decision);
        decision
    }

    /// A denial of this call that is remembered.
    fn recalled(&self) -> Option<Decision> {
        let denied = self.memory()?.recall().ok()?;
        Some(denied.decision)
    }
}

/// What was taken out for a call that asks for the rest; it goes back unless it is used.
struct Held<'a> {
    purses: &'a Purses,
    hash: u64,
    lots: Vec<Lot>,
}

impl<'a> Held<'a> {
    fn new(purses: &'a Purses, hash: u64, lots: impl IntoIterator<Item = Lot>) -> Self {
        let lots = lots.into_iter().collect();
        Self { purses, hash, lots }
    }

    fn units(&self) -> u32 {
        self.lots.iter().map(|lot| lot.left).sum()
    }
}

/// What a member of a call over several limits holds until all have decided.
pub(super) struct AtHand<'a> {
    held: Held<'a>,
    decision: Decision,
}

impl AtHand<'_> {
    pub(super) const fn decision(&self) -> Decision {
        self.decision
    }

    /// It is not put back.
    pub(super) fn spend(mut self) {
        self.held.lots.clear();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.purses.put_back(self.hash, self.lots.drain(..));
    }
}

fn ask_ahead(limit: &SharedLimit, purses: &Arc<Purses>, hash: u64) {
    // Outside of a runtime whoever lacks units asks.
    if Handle::try_current().is_ok()
        && let Some(asked) = purses.ask_ahead(hash)
    {
        fly_ahead(limit, purses, hash, asked);
    }
}

/// Asks without anybody waiting for it.
fn fly_ahead(limit: &SharedLimit, purses: &Arc<Purses>, hash: u64, asked: Asked) {
    if let Asked::Fly {
        want,
        is_likely,
        owner,
        flight,
        ..
    } = asked
    {
        let mission = Mission {
            limit: limit.clone(),
            purses: Arc::clone(purses),
            hash,
            owner,
            want,
            is_likely,
            missing: 1,
        };
        tokio::spawn(mission.fly(flight));
    }
}

/// A question for more.
struct Mission {
    limit: SharedLimit,
    purses: Arc<Purses>,
    hash: u64,
    owner: Arc<Owner>,
    want: u32,
    is_likely: bool,
    /// How many the caller that began it lacks.
    missing: u32,
}

impl Mission {
    async fn fly(self, flight: Flight) {
        sweep(&self.limit, &self.purses);
        let _busy = self.purses.busy().await;
        let landing = Landing(Some(&self));
        let sent = self.purses.now();
        let one = self.call(1);
        let memory = one.memory();
        let recalled = memory.as_ref().map(Memory::recall);
        let asked = self.take().await;
        let (old, ended) = match asked {
            Some(decision) => {
                if let (Some(memory), Some(Err(pending))) = (&memory, recalled) {
                    memory.remember(pending, decision, &[]);
                }
                let got = if decision.is_within_limit() {
                    decision.cost
                } else {
                    0
                };
                let old = landing.land(sent, Some(&decision));
                let lacking = self.missing.saturating_sub(got);
                let ended = match lacking {
                    0 => Ended::Brought,
                    1 if got == 0 => Ended::Denied(1, decision),
                    lacking => self.look(lacking).await,
                };
                (old, ended)
            }
            None => (landing.land(sent, None), Ended::Failed),
        };
        flight.end(ended);
        for lot in old {
            give_back(&self.limit, &self.purses, &self.owner, lot).await;
        }
    }

    /// Takes as many as fit. Where all of them probably do, a plain take has the
    /// short way through its script.
    async fn take(&self) -> Option<Decision> {
        if self.is_likely {
            let taken = self.ask(&Operation::take(self.want)).await?;
            if taken.is_within_limit() {
                return Some(taken);
            }
        }
        self.ask(&Operation::TakeUpTo { cost: self.want }).await
    }

    /// When so many units would be there: what was brought is less than somebody lacks.
    async fn look(&self, lacking: u32) -> Ended {
        let call = self.call(lacking);
        let memory = call.memory();
        let recalled = memory.as_ref().map(Memory::recall);
        match self.ask(&Operation::peek(lacking)).await {
            Some(decision) if decision.is_within_limit() => Ended::Brought,
            Some(decision) => {
                if let (Some(memory), Some(Err(pending))) = (&memory, recalled) {
                    memory.remember(pending, decision, &[]);
                }
                Ended::Denied(lacking, decision)
            }
            None => Ended::Failed,
        }
    }

    async fn ask(&self, operation: &Operation) -> Option<Decision> {
        let Inner { store, spec, .. } = &*self.limit.0;
        let Owner { key, slot, shadow } = &*self.owner;
        let asked = store.apply(spec, key, slot.as_ref(), *shadow, operation);
        match asked.await {
            Ok(Reply::Decision(decision)) => Some(decision),
            Ok(_) | Err(_) => None,
        }
    }

    fn call(&self, cost: u32) -> SharedCall<'_> {
        SharedCall {
            limit: &self.limit,
            key: &self.owner.key,
            slot: self.owner.slot.as_ref(),
            demand: Demand::Take { cost },
            shadow: self.owner.shadow,
        }
    }
}

/// Sees to it that a question ends, even with its runtime.
struct Landing<'a>(Option<&'a Mission>);

impl Landing<'_> {
    fn land(mut self, sent: u64, decision: Option<&Decision>) -> Vec<Lot> {
        self.0.take().map_or_else(Vec::new, |mission| {
            let old = mission.purses.land(mission.hash, sent, decision);
            old.into_iter().collect()
        })
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if let Some(mission) = self.0 {
            mission.purses.land(mission.hash, 0, None);
        }
    }
}

/// Gives back what was not spent, as far as it may be. What fails stays charged.
async fn give_back(limit: &SharedLimit, purses: &Purses, owner: &Owner, lot: Lot) {
    let Inner { store, spec, .. } = &*limit.0;
    // It is carried out before its deadline.
    let longest = u64::try_from(store.client().patience().as_micros()).unwrap_or(u64::MAX);
    let age = lot.age(purses.terms(), purses.now().saturating_add(longest));
    let cost = returnable(spec.policy(), lot.left, age);
    if cost == 0 {
        return;
    }
    let reservation = Reservation { cost, at: lot.at };
    let Owner { key, slot, shadow } = owner;
    let cancel = Operation::Cancel { reservation };
    let given = store.apply(spec, key, slot.as_ref(), *shadow, &cancel);
    let _: Result<Reply, StoreError> = given.await;
}

/// Begins to look after what grows old, once.
fn sweep(limit: &SharedLimit, purses: &Arc<Purses>) {
    if !purses.is_unswept() {
        return;
    }
    let (limit, purses) = (Arc::downgrade(&limit.0), Arc::downgrade(purses));
    tokio::spawn(sweep_until_gone(limit, purses));
}

async fn sweep_until_gone(limit: Weak<Inner>, purses: Weak<Purses>) {
    loop {
        let Some(pause) = purses.upgrade().map(|purses| purses.terms().max_age()) else {
            return;
        };
        tokio::time::sleep((Duration::from_micros(pause.0) / 2).max(OFTEN)).await;
        let (Some(limit), Some(purses)) = (limit.upgrade(), purses.upgrade()) else {
            return;
        };
        let limit = SharedLimit(limit);
        let _busy = purses.busy().await;
        for (owner, lot) in purses.sweep() {
            give_back(&limit, &purses, &owner, lot).await;
        }
    }
}

impl SharedLimit {
    /// Gives back what this process has taken in advance and not spent, and takes nothing in advance
    /// any more: for the end of a process. Nothing to do where the limit leases no tokens.
    pub async fn return_tokens(&self) {
        let Some(purses) = &self.0.purses else {
            return;
        };
        purses.close();
        let _idle = purses.idle().await;
        for (owner, lot) in purses.empty() {
            give_back(self, purses, &owner, lot).await;
        }
    }

    /// What units at hand answer to an operation by itself. Where one sets a state by hand, they
    /// are forgotten.
    pub(super) fn at_hand(&self, key: &Key, shadow: bool, operation: &Operation) -> Option<Reply> {
        let purses = self.0.open_purses()?;
        let hash = self.0.store.hash(&self.0.spec, key, None, shadow);
        match *operation {
            Operation::Peek(Demand::Take { cost: cost @ 1.. }) => {
                let decision = purses.look(hash, cost)?;
                return Some(Reply::Decision(Decision { shadow, ..decision }));
            }
            Operation::Reset | Operation::Block { .. } => purses.discard(hash),
            _ => {}
        }
        None
    }

    /// The most that can ever be taken at once.
    fn most(&self) -> u32 {
        fn most<A: Algorithm>(algorithm: &A) -> u32 {
            algorithm.limit()
        }
        with_algorithm!(self.0.spec.policy(), algorithm => most(algorithm))
    }
}

impl Drop for Inner {
    /// Gives back what is at hand, if there is a runtime to do it.
    fn drop(&mut self) {
        let Some(purses) = self.purses.take() else {
            return;
        };
        let left = purses.empty();
        let (false, Ok(runtime)) = (left.is_empty(), Handle::try_current()) else {
            return;
        };
        let limit = SharedLimit::new(self.store.clone(), self.spec.clone());
        runtime.spawn(async move {
            for (owner, lot) in left {
                give_back(&limit, &purses, &owner, lot).await;
            }
        });
    }
}

impl Inner {
    /// The purses, if units are taken in advance.
    pub(super) fn open_purses(&self) -> Option<&Arc<Purses>> {
        self.purses.as_ref().filter(|purses| !purses.is_closed())
    }
}

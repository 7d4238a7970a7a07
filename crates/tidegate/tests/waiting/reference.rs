//! A naive line of callers over the naive model of a limit: who is served when.
//!
//! It books nothing and foresees nothing. The first in line asks at once, is told when to ask
//! again, and asks then. To see into the future it plays its whole history over again.

use std::collections::{BTreeMap, VecDeque};

use tidegate::{ChangeMode, Micros, Operation, Reservation};
use tidegate_conformance::model::{Answer, AnyLimit, Refusal, Rule, Ruling};

use super::simulation::at;

/// What becomes of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Served,
    Impossible,
    TooLong,
    Elapsed,
}

#[derive(Clone)]
enum Past {
    Operation(u64, Operation),
    Change(Rule, ChangeMode, u64),
}

#[derive(Clone, Copy)]
struct Caller {
    id: usize,
    cost: u32,
    deadline: Option<u64>,
}

#[derive(Clone, Copy)]
enum Turn {
    AskAt(u64),
    /// It has its place in a paced queue.
    GoesAt(u64, Reservation),
}

pub struct Reference {
    rule: Rule,
    model: Box<dyn AnyLimit>,
    past: Vec<Past>,
    front: Option<(Caller, Turn)>,
    queue: VecDeque<Caller>,
    now: u64,
    pub fates: BTreeMap<usize, (Fate, u64)>,
}

const KEY: u64 = 7;

impl Clone for Reference {
    fn clone(&self) -> Self {
        let mut model = self.rule.model();
        for past in &self.past {
            match past {
                Past::Operation(now, operation) => {
                    model.apply(KEY, i128::from(*now), operation);
                }
                Past::Change(rule, mode, now) => {
                    model.change(rule, *mode, i128::from(*now));
                }
            }
        }
        Self {
            rule: self.rule.clone(),
            model,
            past: self.past.clone(),
            front: self.front,
            queue: self.queue.clone(),
            now: self.now,
            fates: self.fates.clone(),
        }
    }
}

impl Reference {
    pub fn new(rule: Rule, now: u64) -> Self {
        Self {
            model: rule.model(),
            rule,
            past: Vec::new(),
            front: None,
            queue: VecDeque::new(),
            now,
            fates: BTreeMap::new(),
        }
    }

    fn apply(&mut self, operation: Operation) -> Answer {
        self.past.push(Past::Operation(self.now, operation));
        self.model.apply(KEY, i128::from(self.now), &operation)
    }

    fn ask(&mut self, operation: Operation) -> Ruling {
        match self.apply(operation) {
            Answer::Ruling(ruling) | Answer::Reserved(ruling, _) => ruling,
            other => panic!("{other:?} to a take"),
        }
    }

    pub fn arrive(&mut self, id: usize, cost: u32, max_wait: Option<u64>) {
        let deadline = max_wait.map(|wait| self.now + wait);
        let caller = Caller { id, cost, deadline };
        let seen = self.ask(Operation::peek(cost));
        if seen.refusal == Some(Refusal::Impossible) {
            self.fates.insert(id, (Fate::Impossible, self.now));
            return;
        }
        if let Some(deadline) = deadline {
            let mut future = self.clone();
            future.queue.push_back(Caller {
                deadline: None,
                ..caller
            });
            while !future.fates.contains_key(&id) {
                let next = future
                    .next()
                    .expect("whoever waits has something to wait for");
                future.pass_to(next);
            }
            if future.fates[&id].0 == Fate::Served && future.fates[&id].1 > deadline {
                self.fates.insert(id, (Fate::TooLong, self.now));
                return;
            }
        }
        self.queue.push_back(caller);
        self.pass_to(self.now);
    }

    /// The next moment at which something happens.
    fn next(&self) -> Option<u64> {
        let turn = match self.front {
            Some((_, Turn::AskAt(at) | Turn::GoesAt(at, _))) => Some(at),
            None if self.queue.is_empty() => None,
            None => Some(self.now),
        };
        let waiting = self
            .front
            .iter()
            .map(|(caller, _)| caller)
            .chain(&self.queue);
        waiting
            .filter_map(|caller| caller.deadline)
            .chain(turn)
            .min()
    }

    pub fn pass_to(&mut self, time: u64) {
        while let Some(next) = self.next().filter(|next| *next <= time) {
            self.now = self.now.max(next);
            self.move_on();
            self.let_deadlines_pass();
        }
        self.now = time;
    }

    fn let_deadlines_pass(&mut self) {
        let now = self.now;
        let is_late = |caller: &Caller| caller.deadline.is_some_and(|deadline| deadline <= now);
        if let Some((caller, _)) = self.front.filter(|(caller, _)| is_late(caller)) {
            self.unsettle();
            self.front = None;
            self.fates.insert(caller.id, (Fate::Elapsed, now));
            self.move_on();
        }
        let late: Vec<Caller> = self.queue.iter().copied().filter(is_late).collect();
        for caller in late {
            self.queue.retain(|other| other.id != caller.id);
            self.fates.insert(caller.id, (Fate::Elapsed, now));
        }
    }

    /// Serves everybody whose turn it is.
    fn move_on(&mut self) {
        loop {
            let Some((caller, turn)) = self
                .front
                .or_else(|| Some((self.queue.pop_front()?, Turn::AskAt(self.now))))
            else {
                return;
            };
            self.front = Some((caller, turn));
            let fate = match turn {
                Turn::AskAt(at) | Turn::GoesAt(at, _) if at > self.now => return,
                Turn::GoesAt(..) => Some(Fate::Served),
                Turn::AskAt(_) => self.first_asks(caller),
            };
            let Some(fate) = fate else { continue };
            self.front = None;
            self.fates.insert(caller.id, (fate, self.now));
        }
    }

    fn first_asks(&mut self, caller: Caller) -> Option<Fate> {
        let ruling = self.ask(Operation::take(caller.cost));
        let in_time = |at: u64| caller.deadline.is_none_or(|deadline| at <= deadline);
        let wait = |wait: i128| self.now + u64::try_from(wait).unwrap();
        if ruling.refusal == Some(Refusal::Impossible) {
            return Some(Fate::Impossible);
        }
        if ruling.refusal.is_some() {
            let Some(retry) = ruling.retry_after else {
                return Some(Fate::Impossible);
            };
            let ask_at = wait(retry);
            let mut future = self.clone();
            future.queue.clear();
            future.front = Some((
                Caller {
                    deadline: None,
                    ..caller
                },
                Turn::AskAt(ask_at),
            ));
            while !future.fates.contains_key(&caller.id) && caller.deadline.is_some() {
                let next = future.next().unwrap();
                future.pass_to(next);
            }
            if caller.deadline.is_some() && !in_time(future.fates[&caller.id].1) {
                return Some(Fate::TooLong);
            }
            self.front = Some((caller, Turn::AskAt(ask_at)));
            return None;
        }
        let goes_at = wait(ruling.delay.expect("a turn comes"));
        let reservation = Reservation {
            cost: caller.cost,
            at: at(u64::try_from(ruling.at).unwrap()),
        };
        if !in_time(goes_at) {
            self.apply(Operation::Cancel { reservation });
            return Some(Fate::TooLong);
        }
        self.front = Some((caller, Turn::GoesAt(goes_at, reservation)));
        None
    }

    /// Takes the place in a paced queue back.
    fn unsettle(&mut self) {
        if let Some((caller, Turn::GoesAt(_, reservation))) = self.front {
            self.apply(Operation::Cancel { reservation });
            self.front = Some((caller, Turn::AskAt(self.now)));
        }
    }

    pub fn give_up(&mut self, id: usize) {
        if self.front.is_some_and(|(caller, _)| caller.id == id) {
            self.unsettle();
            self.front = None;
        }
        self.queue.retain(|caller| caller.id != id);
        self.move_on();
    }

    /// Does something to the key, or to the limit, that all take notice of.
    pub fn disturb(&mut self, disturbance: Disturbance) {
        self.unsettle();
        if let Some((_, turn)) = &mut self.front {
            *turn = Turn::AskAt(self.now);
        }
        match disturbance {
            Disturbance::Reset => drop(self.apply(Operation::Reset)),
            Disturbance::Block(period) => {
                let period = Micros(period);
                drop(self.apply(Operation::Block { period }));
            }
            Disturbance::Unblock => drop(self.apply(Operation::Unblock)),
            Disturbance::Refund(cost) => drop(self.apply(Operation::Refund { cost })),
            Disturbance::Change(rule, mode) => {
                assert!(self.model.change(&rule, mode, i128::from(self.now)));
                self.past.push(Past::Change(rule, mode, self.now));
            }
        }
        self.move_on();
    }
}

#[derive(Clone, Debug)]
pub enum Disturbance {
    Reset,
    Block(u64),
    Unblock,
    Refund(u32),
    Change(Rule, ChangeMode),
}

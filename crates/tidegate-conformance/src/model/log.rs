//! The exact sliding window.

use tidegate_core::ChangeMode;

use super::Rule;
use super::numbers::Int;
use super::units::{Units, converted};

/// Never more than so many in any window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The most in a window.
    pub limit: Int,
    /// The length of a window.
    pub period: Int,
}

/// Something that happened at a time (or in a cell) and counts so many units.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When, or in which cell.
    pub at: Int,
    /// How many units.
    pub units: Int,
}

/// Units of all events.
pub fn total(events: &[Event]) -> Int {
    events.iter().map(|event| event.units).sum()
}

/// Takes back up to `units`, from the newest events first. Returns how many came back.
pub fn take_from_newest(
    events: &mut Vec<Event>,
    units: Int,
    eligible: impl Fn(&Event) -> bool,
) -> Int {
    events.sort_by_key(|event| event.at);
    let mut left = units;
    for event in events.iter_mut().rev().filter(|event| eligible(event)) {
        let taken = left.min(event.units);
        event.units -= taken;
        left -= taken;
    }
    events.retain(|event| event.units > 0);
    units - left
}

/// Brings the sum of all events to `target`: takes from the oldest, or adds one at `at`.
pub fn scale(events: &mut Vec<Event>, target: Int, at: Int) {
    events.sort_by_key(|event| event.at);
    let mut surplus = total(events) - target;
    if surplus < 0 {
        events.push(Event {
            at,
            units: -surplus,
        });
    }
    for event in events.iter_mut() {
        let taken = surplus.max(0).min(event.units);
        event.units -= taken;
        surplus -= taken;
    }
    events.retain(|event| event.units > 0);
}

impl Units for Log {
    type Count = Vec<Event>;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Log(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn capacity(&self) -> Int {
        self.limit
    }

    fn fresh(&self, _: Int) -> Vec<Event> {
        Vec::new()
    }

    fn age(&self, events: &mut Vec<Event>, _: Int, to: Int) {
        events.retain(|event| event.at > to - self.period);
    }

    fn rebase(&self, events: &mut Vec<Event>, from: Int, to: Int) {
        for event in events {
            event.at -= from - to;
        }
    }

    fn change(&self, new: &Self, events: &mut Vec<Event>, n: Int, mode: ChangeMode) {
        let target = converted(mode, total(events), self.limit, new.limit);
        scale(events, target, n);
        Units::age(new, events, n, n);
    }

    fn used(&self, events: &Vec<Event>, _: Int, t: Int) -> Int {
        let in_window = events.iter().filter(|event| event.at > t - self.period);
        in_window.map(|event| event.units).sum()
    }

    fn charge(&self, events: &mut Vec<Event>, n: Int, units: Int) {
        events.push(Event { at: n, units });
    }

    fn give_back(&self, events: &mut Vec<Event>, _: Int, units: Int, at: Option<Int>) -> Int {
        take_from_newest(events, units, |event| at.is_none_or(|at| event.at == at))
    }
}

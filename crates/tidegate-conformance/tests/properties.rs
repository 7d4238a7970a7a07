//! What every limit promises, on random calls: DESIGN's invariants 1, 2, 3 and 5. The fourth, that
//! a store answers as the model, is `differential.rs`.
//!
//! A failure names its seed and family; `TIDEGATE_SEED` runs that seed alone.

mod support;

use std::cell::Cell;
use std::collections::HashMap;

use support::{Bench, FAMILIES, STEPS, hold};
use tidegate_conformance::generator::{Family, Options, Step, scales};
use tidegate_conformance::model::{Answer, Border, Int, JITTER, Rule, Standing, timestamp};
use tidegate_conformance::{Joint, Memory, Subject};
use tidegate_core::{Demand, Micros, Operation, Timestamp, bounds};

fn is_valid(time: Int) -> bool {
    time <= Timestamp::MAX.as_micros().into()
}

/// What one key was allowed, on its own time: only what moves it forward counts.
#[derive(Default)]
struct Passed {
    last: Option<Int>,
    own: Int,
    /// When, and how many units.
    events: Vec<(Int, Int)>,
}

impl Passed {
    /// Takes note of the time of a call, and of what it was charged. A correction of the clock
    /// allows for `moved` units more.
    fn note(&mut self, at: Int, charged: Int, delay: Option<Int>, moved: Int) {
        let last = self.last.unwrap_or(at);
        if at < last {
            self.last = Some(at);
            self.events.push((self.own, -moved));
        }
        if charged > 0 {
            self.own += (at - last).max(0);
            self.last = Some(at);
            self.events
                .extend(delay.map(|delay| (self.own + delay, charged)));
        }
    }

    /// The most in any half-open window of a length.
    fn most_within(&mut self, length: Int) -> Int {
        self.events.sort_by_key(|(at, _)| *at);
        let mut most = 0;
        for (index, (start, _)) in self.events.iter().enumerate() {
            let inside = self.events[index..]
                .iter()
                .take_while(|(at, _)| *at < start + length);
            let mut sum = 0;
            for (_, units) in inside {
                sum += units;
                most = most.max(sum);
            }
        }
        most
    }
}

/// What a correction of the clock may let through beside the bound. Where windows lie on the clock
/// it may come before a border again, and the count moves into the window there: one more window's
/// worth each time.
fn moved_with_the_clock(rule: &Rule) -> Int {
    match rule {
        Rule::TwoCells(rule) => rule.limit,
        Rule::Fixed(rule) if rule.border != Border::FirstUse => rule.limit,
        _ => 0,
    }
}

/// Makes only calls that ask and take, and `reserve` if so chosen, and compares what passed with what
/// may.
fn admits_no_more(
    seed: u64,
    family: Family,
    options: Options,
    reserves: bool,
) -> Result<(), String> {
    let bound = if reserves {
        bounds::admitted_with_reservations
    } else {
        bounds::admitted
    };
    let mut bench = Bench::new(seed, &[family], options);
    let policy = bench.rules[0].policy().unwrap();
    let moved = moved_with_the_clock(&bench.rules[0]);
    let mut keys: HashMap<u64, Passed> = HashMap::new();
    for _ in 0..STEPS {
        let (now, key, operation) = bench.next_call();
        // Of a queue the units of one caller leave at once: only callers of one unit are apart.
        let operation = match operation {
            Operation::Take(Demand::Take { .. }) if family == Family::Paced => Operation::take(1),
            Operation::TakeUpTo { .. } if family == Family::Paced => Operation::take(1),
            Operation::Reserve { max_wait, .. } if family == Family::Paced => {
                Operation::Reserve { cost: 1, max_wait }
            }
            other => other,
        };
        let takes = match operation {
            Operation::Take(_) | Operation::TakeUpTo { .. } => true,
            Operation::Reserve { .. } => reserves,
            _ => false,
        };
        if !takes && !matches!(operation, Operation::Peek(_)) {
            continue;
        }
        let answer = bench.ask(now, key, &operation);
        let Some(ruling) = answer.ruling() else {
            continue;
        };
        let charged = if takes && ruling.refusal.is_none() {
            ruling.cost
        } else {
            0
        };
        // A queue is bounded by who leaves it, if ever.
        let behind = ruling.at - now;
        let delay = match ruling.delay {
            Some(0) => Some(0),
            delay => delay.map(|delay| delay - behind),
        };
        let passed = keys.entry(key).or_default();
        // A key that was charged nothing yet has no time of its own.
        if passed.last.is_some() || charged > 0 {
            passed.note(ruling.at, charged, delay, moved);
        }
    }
    let mut lengths = vec![1, 2, 3];
    for scale in scales(&bench.rules[0]) {
        let scale = Int::from(scale);
        lengths.extend([
            scale / 2,
            scale - 1,
            scale,
            scale + 1,
            2 * scale,
            3 * scale + 1,
        ]);
    }
    lengths.retain(|length| *length > 0);
    for (key, passed) in &mut keys {
        for length in &lengths {
            let most = passed.most_within(*length);
            let window = Micros(*length as u64);
            let Some(may) = bound(&policy, window) else {
                continue;
            };
            if most > may.into() {
                return Err(format!(
                    "{policy:?} admitted {most} to key {key} in {length} us, {may} may pass; {:?}",
                    passed.events
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn no_window_admits_more_than_its_limit_says() {
    hold(&FAMILIES, |seed, family| {
        let options = Options {
            changes: 0,
            ..Options::JITTERY
        };
        admits_no_more(seed, family, options, false)
    });
}

#[test]
fn no_window_lets_more_of_what_was_reserved_go_than_its_limit_says() {
    hold(&FAMILIES, |seed, family| {
        let options = Options {
            changes: 0,
            ..Options::JITTERY
        };
        admits_no_more(seed, family, options, true)
    });
}

#[test]
fn no_window_admits_more_on_the_keys_own_time_when_the_clock_is_corrected() {
    hold(&FAMILIES, |seed, family| {
        let options = Options {
            changes: 0,
            ..Options::CORRECTED
        };
        admits_no_more(seed, family, options, false)
    });
}

/// The same call again when it is said to pass, and a microsecond before.
#[test]
fn a_denied_call_passes_exactly_when_it_was_told_and_not_a_microsecond_before() {
    for family in FAMILIES {
        let checked = Cell::new(0);
        hold(&[family], |seed, family| {
            passes_when_told(seed, family).map(|count| checked.set(checked.get() + count))
        });
        assert!(checked.get() > 1_000, "{family:?}: only {checked:?} waits");
    }
}

fn passes_when_told(seed: u64, family: Family) -> Result<usize, String> {
    let mut bench = Bench::new(seed, &[family], Options::JITTERY);
    let mut checked = 0;
    for _ in 0..STEPS {
        let (now, key, operation) = bench.next_call();
        // What takes as much as fits asks for more once there is more.
        if matches!(operation, Operation::TakeUpTo { .. }) {
            continue;
        }
        let answer = bench.ask(now, key, &operation);
        let Some(ruling) = answer.ruling().filter(|ruling| ruling.refusal.is_some()) else {
            continue;
        };
        let Some(wait) = ruling.retry_after else {
            let end = Timestamp::MAX.as_micros().into();
            let last = bench.ask(end, key, &asking(&operation));
            if last.ruling().is_some_and(|ruling| ruling.refusal.is_none()) {
                return Err(format!("{operation:?} never passes, but then: {last:?}"));
            }
            continue;
        };
        if wait == 0 {
            return Err(format!("{operation:?} was denied with no wait: {ruling:?}"));
        }
        if !is_valid(now + wait) {
            continue;
        }
        let early = bench.ask(now + wait - 1, key, &operation);
        let early = early.ruling().expect("the same call has the same answer");
        if early.refusal.is_none() || early.retry_after != Some(1) {
            return Err(format!(
                "{operation:?} at {now}: {ruling:?}, early {early:?}"
            ));
        }
        // Mostly the call itself; but a long wait would leave the scenario little time.
        let soon = wait < 60_000_000;
        let again = if soon { operation } else { asking(&operation) };
        let due = bench.ask(now + wait, key, &again);
        let due = due.ruling().expect("the same call has the same answer");
        if due.refusal.is_some() {
            return Err(format!(
                "{operation:?} at {now}: {ruling:?}, when due {due:?}"
            ));
        }
        if soon {
            bench.generator.jump(now + wait);
        }
        checked += 1;
    }
    Ok(checked)
}

/// An operation that only asks, where there is one.
fn asking(operation: &Operation) -> Operation {
    match operation {
        Operation::Take(demand) => Operation::Peek(*demand),
        other => *other,
    }
}

#[test]
fn a_limit_is_full_exactly_when_it_was_told_and_not_a_microsecond_before() {
    hold(&FAMILIES, |seed, family| {
        let mut bench = Bench::new(seed, &[family], Options::JITTERY);
        for _ in 0..STEPS {
            let (now, key, operation) = bench.next_call();
            bench.ask(now, key, &operation);
            let standing = bench.standing(now, key);
            let Some(wait) = standing.reset_after else {
                let end = Timestamp::MAX.as_micros().into();
                if is_full(&bench.standing(end, key)) {
                    return Err(format!("never full, but then it is: {standing:?} at {now}"));
                }
                continue;
            };
            if !is_valid(now + wait) {
                continue;
            }
            if wait > 0 && is_full(&bench.standing(now + wait - 1, key)) {
                return Err(format!(
                    "{operation:?} at {now}: full too early: {standing:?}"
                ));
            }
            let due = bench.standing(now + wait, key);
            if !is_full(&due) {
                return Err(format!(
                    "{operation:?} at {now}: {standing:?}, when due {due:?}"
                ));
            }
        }
        Ok(())
    });
}

fn is_full(standing: &Standing) -> bool {
    standing.used == 0 && standing.blocked_for == 0 && standing.reset_after == Some(0)
}

/// A twin of the store is spared every call that is denied or only asks.
#[test]
fn what_is_denied_or_only_asks_changes_nothing() {
    hold(&FAMILIES, |seed, family| {
        let mut bench = Bench::new(
            seed,
            &[family],
            Options {
                changes: 0,
                ..Options::JITTERY
            },
        );
        let policies: Vec<_> = bench
            .rules
            .iter()
            .map(|rule| rule.policy().unwrap())
            .collect();
        let mut twin = Memory::open(&policies);
        for _ in 0..STEPS {
            let (now, key, operation) = bench.next_call();
            let time = timestamp(now);
            if spares(&operation) {
                bench.ask(now, key, &operation);
                continue;
            }
            let before = bench.store.keys(0);
            let mut answer = bench.ask(now, key, &operation);
            if answer
                .ruling()
                .is_some_and(|ruling| ruling.refusal.is_some())
            {
                if bench.store.keys(0) > before {
                    return Err(format!("{operation:?} was denied and made a key"));
                }
                continue;
            }
            let mut spared = Answer::of(&twin.apply(0, key, time, &operation));
            for answer in [&mut answer, &mut spared] {
                if let Answer::Standing(standing) = answer {
                    // One of the two may have forgotten the key.
                    standing.last = 0;
                }
            }
            if answer != spared {
                return Err(format!(
                    "{operation:?} at {now}: {answer:?}, twin {spared:?}"
                ));
            }
        }
        Ok(())
    });
}

/// Whether the operation only asks: a twin need not see it.
fn spares(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Peek(_)
            | Operation::Take(Demand::Take { cost: 0 } | Demand::Acquire { weight: 0, .. })
            | Operation::TakeUpTo { cost: 0 }
            | Operation::Reserve { cost: 0, .. }
            | Operation::Force { cost: 0 }
            | Operation::Refund { cost: 0 }
            | Operation::Block { period: Micros(0) }
    )
}

/// Beside the model, which forgets nothing, a store that forgets all it may at every step.
#[test]
fn a_key_is_forgotten_only_when_no_call_can_tell() {
    hold(&FAMILIES, |seed, family| {
        let options = Options {
            keys: 12,
            forgets: false,
            ..Options::JITTERY
        };
        let mut bench = Bench::new(seed, &[family], options);
        let mut model = bench.rules[0].model();
        let mut latest = 0;
        for _ in 0..STEPS {
            let (now, step) = bench.generator.step();
            latest = latest.max(now);
            match step {
                Step::Call { key, operation, .. } => {
                    let mut expected = model.apply(key, now, &operation);
                    let mut found = bench.ask(now, key, &operation);
                    for answer in [&mut expected, &mut found] {
                        if let Answer::Standing(standing) = answer {
                            standing.last = 0;
                        }
                    }
                    if expected != found {
                        return Err(format!("{operation:?}: {found:?} instead of {expected:?}"));
                    }
                }
                Step::Change { rule, mode, .. } => {
                    let policy = rule.policy().unwrap();
                    model.change(&rule, mode, now);
                    bench.store.change(0, &policy, mode, timestamp(now));
                }
                Step::AllOf(_) | Step::Forget => unreachable!("neither was asked for"),
            }
            bench.store.forget(timestamp(now));
            let needed = (0..options.keys)
                .filter(|key| model.could_deny(*key, now))
                .count();
            if bench.store.keys(0) < needed {
                return Err(format!("{} of {needed} keys at {now}", bench.store.keys(0)));
            }
        }
        // And what no call can tell does go.
        let end = Timestamp::MAX.as_micros().into();
        if latest + JITTER < end {
            bench.store.forget(Timestamp::MAX);
            let needed = (0..options.keys)
                .filter(|key| model.could_deny(*key, end - JITTER))
                .count();
            if bench.store.keys(0) > needed {
                return Err(format!("{} keys stay of {needed}", bench.store.keys(0)));
            }
        }
        Ok(())
    });
}

#[test]
fn no_more_permits_are_held_than_there_are_and_fencing_tokens_only_rise() {
    hold(&[Family::Concurrency], |seed, family| {
        let mut bench = Bench::new(
            seed,
            &[family],
            Options {
                changes: 0,
                ..Options::JITTERY
            },
        );
        let mut tokens: HashMap<u64, Int> = HashMap::new();
        let mut ids: HashMap<(u64, u128), Int> = HashMap::new();
        for _ in 0..STEPS {
            let (now, key, operation) = bench.next_call();
            if let Answer::Leased(_, Some(grant)) = bench.ask(now, key, &operation) {
                let latest = tokens.entry(key).or_default();
                let again = ids.get(&(key, grant.lease)) == Some(&grant.token);
                if !again && grant.token <= *latest {
                    return Err(format!("token {} after {latest}", grant.token));
                }
                *latest = grant.token.max(*latest);
                ids.insert((key, grant.lease), grant.token);
            }
            let standing = bench.standing(now, key);
            let held: Int = standing.leases.iter().map(|lease| lease.weight).sum();
            if held > standing.limit || held != standing.used {
                return Err(format!("{held} permits are held: {standing:?}"));
            }
        }
        Ok(())
    });
}

/// What can be taken in one call, without leases: one that is asked for again passes now, but may
/// have expired when the others would let it pass.
const COMBINED: [Family; 6] = [
    Family::Continuous,
    Family::Interval,
    Family::FirstUse,
    Family::Log,
    Family::Strict,
    Family::Lockout,
];

#[test]
fn a_call_over_several_limits_charges_all_of_them_or_none_and_passes_when_told() {
    let checked = Cell::new(0);
    hold(&[Family::AnyWindow], |seed, _| {
        all_or_none(seed).map(|count| checked.set(checked.get() + count))
    });
    assert!(checked.get() > 500, "only {checked:?} waits");
}

/// A twin is spared every denied call. Both get the rest, and must answer the same.
fn all_or_none(seed: u64) -> Result<usize, String> {
    let options = Options {
        changes: 0,
        all_of: true,
        ..Options::JITTERY
    };
    let mut bench = Bench::new(seed, &COMBINED, options);
    let policies: Vec<_> = bench
        .rules
        .iter()
        .map(|rule| rule.policy().unwrap())
        .collect();
    let mut twin = Memory::open(&policies);
    let mut checked = 0;
    for _ in 0..STEPS {
        let (mut now, step) = bench.generator.step();
        let Step::AllOf(members) = step else {
            continue;
        };
        let joint = |answer: &Joint| (answer.decision, answer.members.clone());
        let ask = |store: &mut Memory, now: Int| {
            let answer = store.all_of(&members, timestamp(now));
            answer.expect("every demand is one of its limit")
        };
        let Some(mut answer) = ask(&mut bench.store, now) else {
            continue;
        };
        let told = answer.decision.retry_after.as_micros().map(Int::from);
        if !answer.decision.is_allowed() {
            let Some(wait) = told.filter(|wait| *wait < 60_000_000 && is_valid(now + wait)) else {
                continue;
            };
            let early = ask(&mut bench.store, now + wait - 1);
            if early.is_none_or(|early| early.decision.is_allowed()) {
                return Err(format!("{members:?} at {now}: {wait} us was too long"));
            }
            now += wait;
            answer = ask(&mut bench.store, now).expect("there are members");
            if !answer.decision.is_allowed() {
                return Err(format!("{members:?} at {now}: {wait} us was too short"));
            }
            bench.generator.jump(now);
            checked += 1;
        }
        let spared = ask(&mut twin, now).expect("there are members");
        if joint(&spared) != joint(&answer) {
            return Err(format!("{members:?} at {now}: {answer:?}, twin {spared:?}"));
        }
    }
    Ok(checked)
}

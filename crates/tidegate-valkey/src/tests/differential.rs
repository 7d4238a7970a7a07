//! Random calls on a real server, each answered as by the model.
//!
//! The scenarios are those of the memory store. Many of them are under way at once, so that one
//! round trip carries a step of each.

use std::collections::BTreeSet;

use fastrand::Rng;
use redis::Value;
use tidegate_conformance::Joint;
use tidegate_conformance::differential::{Course, EVERY_ALGORITHM, Found, Tally, options};
use tidegate_conformance::generator::{ClockKind, Family, Options, Step};
use tidegate_conformance::model::ModelMember;
use tidegate_core::{ChangeMode, Operation, Policy, Timestamp};
use tidegate_store::Key;
use tidegate_testkit::Flavor;

use super::store::{Store, Timed};
use crate::cas::{self, Write};
use crate::{
    Answer, JointCall, KeySpace, LimitSpec, SharedMember, call_for, joint_call_for, outcome_from,
    reply_from,
};

/// How many answers are compared per algorithm; `TIDEGATE_CALLS` makes it more or fewer.
const CALLS: usize = 20_000;

/// How many are on each of the older servers: their scripts are the same.
const CALLS_ON_OLD: usize = 1_000;

/// Steps of a scenario, and how many scenarios are under way at once.
const STEPS: usize = 500;
const AT_ONCE: usize = 64;

/// Where a key's state is: the limit, the key, and whether the limit is only watched.
type Place = (usize, u64, bool);

/// Who decides: the scripts, the engine over values that are read and written, or both in turns on
/// the same keys.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Scripts,
    Engine,
    Both,
}

/// A scenario under way on the server.
struct Run {
    by: By,
    turns: Rng,
    course: Course,
    /// Makes the names of its limits its own.
    seed: u64,
    limits: Vec<LimitSpec>,
    places: BTreeSet<Place>,
    forgets: bool,
    steps_left: usize,
    now: Timestamp,
    /// The step under way: what it asks, and what the store found so far.
    asked: Vec<Asked>,
    found: Found,
}

/// A call under way, and the windows that it brings along.
struct Asked {
    what: What,
    times: Vec<Timestamp>,
}

enum What {
    /// What the step asks.
    Operation(Place, Operation),
    /// Looks at a key so that it sees a change of its limit, or is forgotten.
    Look(Place),
    AllOf(Vec<ModelMember>, Option<Box<JointCall>>),
}

impl Run {
    fn new(seed: u64, families: &[Family], options: Options, by: By) -> Self {
        let course = Course::new(seed, families, options);
        let policies = course.policies();
        let limits = policies.into_iter().enumerate();
        Self {
            by,
            turns: Rng::with_seed(seed),
            seed,
            limits: limits.map(|(n, policy)| spec(seed, n, policy, 0)).collect(),
            course,
            places: BTreeSet::new(),
            forgets: options.clock != ClockKind::Corrected,
            steps_left: STEPS,
            now: Timestamp::EPOCH,
            asked: Vec::new(),
            found: Found::Nothing,
        }
    }

    /// Begins the next step; false if there is none.
    fn begin(&mut self) -> bool {
        if self.steps_left == 0 {
            return false;
        }
        self.steps_left -= 1;
        let (now, step) = self.course.step();
        self.now = now;
        let look = |place: &Place| What::Look(*place);
        let asked: Vec<What> = match step {
            Step::Call {
                limit,
                key,
                operation,
            } => vec![What::Operation((limit, key, false), operation)],
            Step::Change { limit, rule, mode } => {
                let policy = rule.policy().expect("the generator draws valid rules");
                self.found = Found::Changed(true);
                if policy == *self.limits[limit].policy() {
                    Vec::new()
                } else {
                    self.change(limit, policy, mode);
                    let same = self.places.iter().filter(|place| place.0 == limit);
                    same.map(look).collect()
                }
            }
            Step::AllOf(members) if members.is_empty() => {
                self.found = Found::Joint(None);
                Vec::new()
            }
            Step::AllOf(members) => vec![What::AllOf(members, None)],
            Step::Forget => {
                self.found = Found::Nothing;
                self.places.iter().map(look).collect()
            }
        };
        let with_times = |what| Asked {
            what,
            times: vec![now],
        };
        self.asked = asked.into_iter().map(with_times).collect();
        true
    }

    fn change(&mut self, limit: usize, policy: Policy, mode: ChangeMode) {
        // Half of them leave the order of the numbers open.
        let generation = self.limits[limit].generation() + (self.seed % 2) as u32;
        let new = spec(self.seed, limit, policy, generation);
        self.limits[limit] = new.with_change(mode);
    }

    /// The calls of the step under way. What is refused before it is sent is answered here.
    fn calls(&mut self, out: &mut Vec<Timed>, store: &mut Store) {
        if match self.by {
            By::Scripts => false,
            By::Engine => true,
            By::Both => self.turns.bool(),
        } {
            return self.decide_here(store);
        }
        let space = KeySpace::default();
        let (limits, now, forgets) = (&self.limits, self.now, self.forgets);
        let (places, found) = (&mut self.places, &mut self.found);
        self.asked.retain_mut(|Asked { what, times }| {
            let call = match what {
                What::Operation((limit, key, shadow), operation) => {
                    let limit = &limits[*limit];
                    let key = key_of(*key);
                    match call_for(&space, limit, &key, None, *shadow, operation, times) {
                        Ok(call) => call,
                        Err(error) => {
                            *found = Found::Reply(Err(error));
                            return false;
                        }
                    }
                }
                What::Look((limit, key, shadow)) => {
                    let (limit, key) = (&limits[*limit], key_of(*key));
                    let state = Operation::State;
                    call_for(&space, limit, &key, None, *shadow, &state, times)
                        .expect("every limit has a state")
                }
                What::AllOf(members, joint) => {
                    let keys: Vec<Key> = members.iter().map(|m| key_of(m.key)).collect();
                    let shared: Vec<SharedMember<'_>> = members
                        .iter()
                        .zip(&keys)
                        .map(|(member, key)| SharedMember {
                            limit: &limits[member.limit],
                            key,
                            slot: None,
                            demand: member.demand,
                            shadow: member.shadow,
                        })
                        .collect();
                    let made = joint_call_for(&space, &shared, times)
                        .expect("every demand is one of its limit")
                        .expect("there are members");
                    let call = made.call.clone();
                    *joint = Some(Box::new(made));
                    for member in members {
                        places.insert((member.limit, member.key, member.shadow));
                    }
                    call
                }
            };
            if let What::Operation(place, _) = what {
                places.insert(*place);
            }
            out.push(Timed { call, now, forgets });
            true
        });
    }

    /// Decides the step under way by the engine.
    fn decide_here(&mut self, store: &mut Store) {
        let space = KeySpace::default();
        let (now, forgets) = (self.now, self.forgets);
        for Asked { what, .. } in std::mem::take(&mut self.asked) {
            let one = |place: Place, operation: &Operation, store: &mut Store| {
                let (limit, key, shadow) = place;
                let limit = &self.limits[limit];
                let name = space.name(limit.name(), limit.letter(), shadow, &key_of(key), None);
                store.compare_and_swap(&[name], now, forgets, |values| {
                    let value = values[0].as_deref();
                    match cas::apply(limit, value, now, operation, shadow) {
                        Ok((reply, _, write)) => (Ok(reply), vec![write]),
                        Err(cas::Failure::Operation(error)) => (Err(error), vec![Write::None]),
                        Err(cas::Failure::Unreadable) => panic!("{value:?} cannot be read"),
                    }
                })
            };
            match what {
                What::Operation(place, operation) => {
                    self.found = Found::Reply(one(place, &operation, store));
                    self.places.insert(place);
                }
                What::Look(place) => {
                    one(place, &Operation::State, store).expect("every limit has a state");
                }
                What::AllOf(members, _) => {
                    let keys: Vec<Key> = members.iter().map(|m| key_of(m.key)).collect();
                    let shared: Vec<SharedMember<'_>> = members
                        .iter()
                        .zip(&keys)
                        .map(|(member, key)| SharedMember {
                            limit: &self.limits[member.limit],
                            key,
                            slot: None,
                            demand: member.demand,
                            shadow: member.shadow,
                        })
                        .collect();
                    let joint = joint_call_for(&space, &shared, &[])
                        .expect("every demand is one of its limit")
                        .expect("there are members");
                    let outcome =
                        store.compare_and_swap(&joint.call.keys, now, forgets, |values| {
                            cas::decide_joint(&shared, &joint, values, now).expect("values of ours")
                        });
                    self.found = Found::Joint(Some(Joint {
                        decision: outcome.0.decision,
                        members: outcome.0.members.to_vec(),
                        grants: outcome.0.grants.to_vec(),
                    }));
                    for member in &members {
                        self.places
                            .insert((member.limit, member.key, member.shadow));
                    }
                }
            }
        }
    }

    /// Takes the answers to [`Self::calls`], in order. False if something is to be asked again.
    fn take(&mut self, answers: &mut impl Iterator<Item = Value>) -> bool {
        let found = &mut self.found;
        self.asked.retain_mut(|Asked { what, times }| {
            let value = answers.next().expect("an answer to every call");
            let needed = match what {
                What::Operation((.., shadow), operation) => {
                    match reply_from(operation, *shadow, &value).unwrap() {
                        Answer::Reply { reply, .. } => {
                            *found = Found::Reply(Ok(reply));
                            None
                        }
                        Answer::NeedsWindow(at) => Some(at),
                    }
                }
                What::Look(_) => match reply_from(&Operation::State, false, &value).unwrap() {
                    Answer::Reply { .. } => None,
                    Answer::NeedsWindow(at) => Some(at),
                },
                What::AllOf(_, joint) => {
                    let joint = joint.as_ref().expect("it was sent");
                    match outcome_from(joint, &value).unwrap() {
                        Answer::Reply { reply, .. } => {
                            *found = Found::Joint(Some(Joint {
                                decision: reply.decision,
                                members: reply.members.to_vec(),
                                grants: reply.grants.to_vec(),
                            }));
                            None
                        }
                        Answer::NeedsWindow(at) => Some(at),
                    }
                }
            };
            times.extend(needed);
            assert!(
                times.len() < 8,
                "the server is never content with the windows"
            );
            needed.is_some()
        });
        self.asked.is_empty()
    }
}

fn spec(seed: u64, limit: usize, policy: Policy, generation: u32) -> LimitSpec {
    LimitSpec::new(&format!("{seed}/{limit}"), policy).with_generation(generation)
}

fn key_of(key: u64) -> Key {
    Key::new(key.to_be_bytes())
}

fn compare(families: &[Family], options: impl Fn(u64) -> Options) -> Tally {
    let calls = std::env::var("TIDEGATE_CALLS").map_or(CALLS, |calls| {
        calls.parse().expect("TIDEGATE_CALLS is a number")
    });
    compare_on(
        &mut Store::start(Flavor::Valkey9),
        families,
        options,
        calls,
        By::Scripts,
    )
}

fn compare_on(
    store: &mut Store,
    families: &[Family],
    options: impl Fn(u64) -> Options,
    calls: usize,
    by: By,
) -> Tally {
    let only = std::env::var("TIDEGATE_SEED").ok();
    let mut seeds = match only.map(|seed| seed.parse().expect("TIDEGATE_SEED is a number")) {
        Some(seed) => seed..seed + 1,
        None => 0..u64::MAX,
    };
    let mut tally = Tally::default();
    let mut runs: Vec<Run> = Vec::new();
    loop {
        // All that are under way go to their end: so the same seeds are run each time.
        while runs.len() < AT_ONCE
            && tally.answers + runs.len() * STEPS < calls
            && let Some(seed) = seeds.next()
        {
            let mut run = Run::new(seed, families, options(seed), by);
            run.begin();
            runs.push(run);
        }
        if runs.is_empty() {
            eprintln!("{families:?}: {tally:?}");
            return tally;
        }
        let mut calls = Vec::new();
        for run in &mut runs {
            run.calls(&mut calls, store);
        }
        let mut answers = store.ask(&calls).into_iter();
        runs.retain_mut(|run| {
            if run.take(&mut answers) {
                if let Err(difference) = run.course.check(&run.found) {
                    panic!("{difference}");
                }
                if !run.begin() {
                    tally.add(run.course.tally());
                    return false;
                }
            }
            true
        });
    }
}

fn compare_one(family: Family) {
    let tally = compare(&[family], options);
    let decided = tally.allowed + tally.refused;
    assert!(tally.allowed > decided / 5, "too little passes: {tally:?}");
    assert!(
        tally.refused > decided / 5,
        "too little is refused: {tally:?}"
    );
}

macro_rules! answers_as_the_model {
    ($($name:ident: $family:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                compare_one(Family::$family);
            }
        )*
    };
}

answers_as_the_model! {
    a_continuous_bucket_answers_as_the_model: Continuous,
    a_continuous_bucket_with_initial_tokens_answers_as_the_model: ContinuousInitial,
    an_interval_bucket_answers_as_the_model: Interval,
    an_interval_bucket_with_initial_tokens_answers_as_the_model: IntervalInitial,
    a_paced_queue_answers_as_the_model: Paced,
    a_window_of_the_clock_answers_as_the_model: Epoch,
    a_window_from_first_use_answers_as_the_model: FirstUse,
    a_calendar_window_answers_as_the_model: Calendar,
    a_window_whose_borders_change_answers_as_the_model: AnyWindow,
    a_sliding_log_answers_as_the_model: Log,
    a_strict_window_answers_as_the_model: Strict,
    an_interpolated_window_answers_as_the_model: Interpolated,
    a_concurrency_limit_answers_as_the_model: Concurrency,
    a_lockout_answers_as_the_model: Lockout,
}

#[test]
fn a_call_over_several_limits_answers_as_the_model() {
    compare(&EVERY_ALGORITHM, |_| Options {
        all_of: true,
        ..Options::JITTERY
    });
}

#[test]
fn a_call_over_several_usual_limits_answers_as_the_model() {
    let families = [Family::Continuous, Family::Epoch, Family::Log];
    compare(&families, |seed| Options {
        all_of: true,
        changes: if seed % 4 == 0 { 3 } else { 0 },
        ..Options::JITTERY
    });
}

/// Everything that is kept over a change, and all algorithms.
const FAMILIES: [Family; 12] = [
    Family::ContinuousInitial,
    Family::Continuous,
    Family::IntervalInitial,
    Family::Paced,
    Family::Epoch,
    Family::FirstUse,
    Family::Calendar,
    Family::Log,
    Family::Strict,
    Family::Interpolated,
    Family::Concurrency,
    Family::Lockout,
];

#[test]
fn older_servers_answer_as_the_model() {
    for flavor in [Flavor::Redis7, Flavor::Redis6] {
        let mut store = Store::start(flavor);
        for family in FAMILIES {
            // The names of limits are the seeds': no family may find another's states.
            store.command::<()>(&[b"FLUSHALL"]);
            compare_on(&mut store, &[family], options, CALLS_ON_OLD, By::Both);
        }
        compare_on(
            &mut store,
            &EVERY_ALGORITHM,
            |_| Options {
                all_of: true,
                ..Options::JITTERY
            },
            CALLS_ON_OLD,
            By::Both,
        );
    }
}

/// How many calls without scripts are compared per algorithm: each takes several round trips.
const CALLS_HERE: usize = 4_000;

#[test]
fn without_scripts_the_engine_answers_as_the_model_and_shares_keys_with_the_scripts() {
    let mut store = Store::start(Flavor::Valkey9);
    for by in [By::Engine, By::Both] {
        for family in FAMILIES {
            store.command::<()>(&[b"FLUSHALL"]);
            compare_on(&mut store, &[family], options, CALLS_HERE, by);
        }
        store.command::<()>(&[b"FLUSHALL"]);
        let jointly = |_| Options {
            all_of: true,
            ..Options::JITTERY
        };
        compare_on(&mut store, &EVERY_ALGORITHM, jointly, CALLS_HERE, by);
    }
}

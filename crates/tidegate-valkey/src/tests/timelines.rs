//! The library's timelines on a server: every call is answered as in memory, by the scripts and
//! without them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use tidegate::Mode;
use tidegate::simulation::{
    Action, Answer as Expected, Call, CallError, LimitNumber, Simulation, Target, TraceOptions,
    Traces,
};
use tidegate_core::{
    Decision, Demand, LeaseId, Operation, OperationError, Policy, Reply, Reservation, Timestamp,
};
use tidegate_store::{Key, Outcome};
use tidegate_testkit::Flavor;

use super::store::Store;
use crate::cas::{self, Write};
use crate::{
    Answer, KeySpace, LimitSpec, SharedMember, call_for, joint_call_for, outcome_from, reply_from,
};

/// A timeline under way on a server.
struct Played<'a> {
    store: &'a mut Store,
    /// Makes the names of its limits its own.
    name: &'a str,
    with_scripts: bool,
    limits: BTreeMap<LimitNumber, LimitSpec>,
    reserved: HashMap<(Target, Box<str>), Reservation>,
    places: BTreeSet<(LimitNumber, Vec<u8>)>,
}

fn key_of(target: Target) -> Key {
    Key::new(format!("{:?}", target.key))
}

fn lease_of(name: &str) -> LeaseId {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    LeaseId(hasher.finish().into())
}

fn demand(policy: &Policy, action: &Action) -> Demand {
    let cost = match action {
        Action::Take(cost) | Action::Peek(cost) => *cost,
        Action::Acquire { weight, .. } => *weight,
        _ => 1,
    };
    match (policy, action) {
        (Policy::Concurrency(_), Action::Acquire { permit, .. }) => Demand::Acquire {
            lease: lease_of(permit),
            weight: cost,
        },
        (Policy::Concurrency(_), Action::Peek(_)) => Demand::Acquire {
            lease: LeaseId(0),
            weight: cost,
        },
        (Policy::Lockout(_), Action::Peek(_) | Action::Attempt) => Demand::Attempt { seed: 0 },
        _ => Demand::Take { cost },
    }
}

impl Played<'_> {
    fn spec(&mut self, simulation: &Simulation, limit: LimitNumber) -> LimitSpec {
        let name = format!("{}/{}", self.name, simulation.name(limit));
        let policy = || simulation.limiter(limit).policy();
        let spec = self.limits.entry(limit);
        spec.or_insert_with(|| LimitSpec::new(&name, policy()))
            .clone()
    }

    fn operation(&mut self, spec: &LimitSpec, call: &Call, target: Target) -> Option<Operation> {
        let mut reserved = |name: &str| self.reserved.remove(&(target, name.into()));
        Some(match &call.action {
            // What the algorithm does not have is refused as in memory.
            Action::Acquire { permit, weight } => Operation::Take(Demand::Acquire {
                lease: lease_of(permit),
                weight: *weight,
            }),
            Action::Attempt => Operation::Take(Demand::Attempt { seed: 0 }),
            Action::Take(cost) => Operation::take(*cost),
            Action::Peek(_) => Operation::Peek(demand(spec.policy(), &call.action)),
            Action::TakeUpTo(cost) => Operation::TakeUpTo { cost: *cost },
            Action::Refund(cost) => Operation::Refund { cost: *cost },
            Action::Force(cost) => Operation::Force { cost: *cost },
            Action::Success => Operation::Success,
            Action::Reset => Operation::Reset,
            Action::Block(period) => Operation::Block { period: *period },
            Action::Unblock => Operation::Unblock,
            Action::State => Operation::State,
            Action::Renew(permit) => Operation::Renew {
                lease: lease_of(permit),
            },
            Action::Release(permit) => Operation::Release {
                lease: lease_of(permit),
            },
            Action::Reserve(reserve) => Operation::Reserve {
                cost: reserve.cost,
                max_wait: reserve.max_wait,
            },
            Action::Settle(settle) => Operation::Settle {
                reservation: reserved(&settle.name)?,
                actual: settle.actual,
            },
            Action::Cancel(name) => Operation::Cancel {
                reservation: reserved(name)?,
            },
            other => panic!("{} is not played", other.name()),
        })
    }

    fn apply(
        &mut self,
        spec: &LimitSpec,
        key: &Key,
        shadow: bool,
        now: Timestamp,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        let space = KeySpace::default();
        if !self.with_scripts {
            let name = space.name(spec.name(), spec.letter(), shadow, key, None);
            return self.store.compare_and_swap(&[name], now, true, |values| {
                match cas::apply(spec, values[0].as_deref(), now, operation, shadow) {
                    Ok((reply, _, write)) => (Ok(reply), vec![write]),
                    Err(cas::Failure::Operation(error)) => (Err(error), vec![Write::None]),
                    Err(cas::Failure::Unreadable) => panic!("it cannot be read"),
                }
            });
        }
        let mut times = vec![now];
        loop {
            let call = call_for(&space, spec, key, None, shadow, operation, &times)?;
            let value = self.store.ask_one(call, now);
            match reply_from(operation, shadow, &value).unwrap() {
                Answer::Reply { reply, .. } => return Ok(reply),
                Answer::NeedsWindow(at) => times.push(at),
            }
        }
    }

    fn apply_to_all(&mut self, members: &[SharedMember<'_>], now: Timestamp) -> Outcome {
        let space = KeySpace::default();
        let mut times = vec![now];
        loop {
            let joint = joint_call_for(&space, members, &times).unwrap().unwrap();
            if !self.with_scripts {
                let keys = &joint.call.keys;
                let decided = self.store.compare_and_swap(keys, now, true, |values| {
                    cas::decide_joint(members, &joint, values, now).expect("values of ours")
                });
                return decided.0;
            }
            let value = self.store.ask_one(joint.call.clone(), now);
            match outcome_from(&joint, &value).unwrap() {
                Answer::Reply { reply, .. } => return reply,
                Answer::NeedsWindow(at) => times.push(at),
            }
        }
    }

    /// Makes a call and says how its answer differs from the one of the memory.
    fn differs(
        &mut self,
        simulation: &Simulation,
        call: &Call,
        expected: &Result<Expected, CallError>,
    ) -> Option<String> {
        if let Action::SetPolicy(change) = &call.action {
            let spec = self.spec(simulation, change.limit);
            let new = LimitSpec::new(spec.name(), change.policy.clone())
                .with_generation(spec.generation() + 1)
                .with_change(change.mode);
            self.limits.insert(change.limit, new.clone());
            // A change applies at the next use; here it applies at its moment, as in memory.
            for (limit, key) in self.places.clone() {
                if limit == change.limit {
                    let key = Key::new(key);
                    self.apply(&new, &key, false, call.at, &Operation::State)
                        .unwrap();
                }
            }
            return None;
        }
        let specs: Vec<LimitSpec> = call
            .targets
            .iter()
            .map(|target| self.spec(simulation, target.limit))
            .collect();
        for target in &call.targets {
            let key = format!("{:?}", target.key).into_bytes();
            self.places.insert((target.limit, key));
        }
        let is_watched = |target: &Target| simulation.limiter(target.limit).mode() == Mode::Shadow;
        let different =
            |what: &str, found: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
                Some(format!("{what}\n  server {found:?}\n  memory {expected:?}"))
            };
        if let [target] = call.targets[..] {
            let operation = self.operation(&specs[0], call, target)?;
            let shadow = is_watched(&target);
            let found = self.apply(&specs[0], &key_of(target), shadow, call.at, &operation);
            if let (Action::Reserve(reserve), Ok(Reply::Reserved(_, Some(made)))) =
                (&call.action, &found)
                && let Some(name) = &reserve.name
            {
                self.reserved.insert((target, name.clone()), *made);
            }
            return match (&found, expected) {
                (Ok(found), Ok(expected)) if same(found, &expected.reply) => None,
                (Err(_), Err(CallError::Operation(_))) => None,
                _ => different("one limit", &found, expected),
            };
        }
        let keys: Vec<Key> = call.targets.iter().map(|target| key_of(*target)).collect();
        if matches!(call.action, Action::Peek(_)) {
            for ((target, spec), key) in call.targets.iter().zip(&specs).zip(&keys) {
                let peek = Operation::Peek(demand(spec.policy(), &call.action));
                self.apply(spec, key, is_watched(target), call.at, &peek)
                    .unwrap();
            }
            return None;
        }
        let members: Vec<SharedMember<'_>> = call
            .targets
            .iter()
            .zip(specs.iter().zip(&keys))
            .map(|(target, (limit, key))| SharedMember {
                limit,
                key,
                slot: None,
                demand: demand(limit.policy(), &call.action),
                shadow: is_watched(target),
            })
            .collect();
        let found = self.apply_to_all(&members, call.at);
        match expected {
            Ok(answer)
                if answer.reply.decision().map(Decision::is_allowed)
                    == Some(found.decision.is_allowed())
                    && answer.members == found.members =>
            {
                None
            }
            _ => different("several limits", &found, expected),
        }
    }
}

/// Whether two replies are the same but for the ids of leases.
fn same(found: &Reply, expected: &Reply) -> bool {
    match (found, expected) {
        (Reply::Leased(a, held), Reply::Leased(b, other)) => {
            let of = |held: &Option<tidegate_core::LeaseGrant>| {
                held.map(|held| (held.weight, held.fencing_token, held.expires_at))
            };
            a == b && of(held) == of(other)
        }
        (Reply::Renewed(held), Reply::Renewed(other)) => {
            held.map(|held| held.expires_at) == other.map(|other| other.expires_at)
        }
        (Reply::State(a), Reply::State(b)) => {
            (
                a.limit,
                a.used,
                a.remaining,
                a.reset_after,
                a.blocked_for,
                a.leases.len(),
            ) == (
                b.limit,
                b.used,
                b.remaining,
                b.reset_after,
                b.blocked_for,
                b.leases.len(),
            )
        }
        _ => found == expected,
    }
}

#[test]
fn every_timeline_is_answered_on_a_server_as_in_memory() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tidegate/tests/timelines");
    let mut store = Store::start(Flavor::Valkey9);
    let (mut timelines, mut calls, mut faults) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // How many keys a table holds has no meaning on a server.
        if text.contains("max_keys") {
            continue;
        }
        timelines += 1;
        for with_scripts in [true, false] {
            store.command::<()>(&[b"FLUSHALL"]);
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let mut played = Played {
                store: &mut store,
                name: &name,
                with_scripts,
                limits: BTreeMap::new(),
                reserved: HashMap::new(),
                places: BTreeSet::new(),
            };
            let mut simulation = Simulation::new();
            let mut traces = Traces::new(TraceOptions::default());
            let input = Box::new(std::io::Cursor::new(text.clone()));
            traces.open("timeline", input).unwrap();
            while let Some(call) = traces.next(&mut simulation).unwrap() {
                // Before a change is made, so that it is known what is changed.
                for limit in simulation.limits() {
                    played.spec(&simulation, limit);
                }
                let expected = simulation.answer(&call);
                if let Some(fault) = played.differs(&simulation, &call, &expected) {
                    let line = call.line;
                    faults.push(format!("{name}:{line}, scripts {with_scripts}: {fault}"));
                }
                calls += 1;
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(
        timelines >= 60 && calls > 500,
        "{timelines} timelines, {calls} calls"
    );
}

//! The scripts beside the engine, where the scenarios of the model do not reach: long logs, limits
//! that punish, and processes that do not have the same numbers.

use fastrand::Rng;
use tidegate_core::{
    Align, ChangeMode, Entry, FixedWindow, KeyState, Micros, Operation, Policy, Rate, Reply,
    Reservation, SlidingLog, StrictWindow, Timestamp, TokenBucket, engine, with_algorithm,
};
use tidegate_store::{Key, KeyHash, MemoryOptions, memory_limit};
use tidegate_testkit::Flavor;

use super::store::Store;
use crate::{Answer, KeySpace, LimitSpec, call_for, reply_from};

const START: u64 = 1_700_000_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(START + micros).unwrap()
}

/// What the scripts answer to one operation.
fn ask(store: &mut Store, limit: &LimitSpec, now: Timestamp, operation: &Operation) -> Reply {
    let (space, key) = (KeySpace::default(), Key::new("bob"));
    let call = call_for(&space, limit, &key, None, false, operation, &[now]).unwrap();
    let value = store.ask_one(call, now);
    match reply_from(operation, false, &value).unwrap() {
        Answer::Reply { reply, .. } => reply,
        Answer::NeedsWindow(at) => panic!("no window at {at:?} was needed"),
    }
}

fn state(store: &mut Store, limit: &LimitSpec, now: Timestamp) -> KeyState {
    match ask(store, limit, now, &Operation::State) {
        Reply::State(state) => state,
        other => panic!("{other:?}"),
    }
}

/// Random operations on one key, each answered as by the engine.
fn as_the_engine(policy: Policy, calls: u32, longest_step: u64) {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut store = Store::start(Flavor::Valkey9);
    let limit = LimitSpec::new("long", policy.clone());
    let (mut now, mut longest) = (0, 0);
    let mut reservations: Vec<Reservation> = Vec::new();
    with_algorithm!(&policy, algorithm => {
        let mut entry = Entry::fresh(algorithm, at(0));
        for number in 0..calls {
            now += if rng.u32(..3000) == 0 {
                longest_step * 2000
            } else {
                rng.u64(..=longest_step)
            };
            if rng.u32(..500) == 0 {
                now -= rng.u64(..now.clamp(1, 3_000_000));
            }
            let cost = if rng.u32(..50) == 0 { rng.u32(..100) } else { 1 };
            let operation = match rng.u32(..1000) {
                0 => Operation::Force { cost },
                1..4 => Operation::Refund { cost },
                4..20 if !reservations.is_empty() => Operation::Settle {
                    reservation: reservations.swap_remove(rng.usize(..reservations.len())),
                    actual: 0,
                },
                20..50 => Operation::Reserve { cost, max_wait: Micros(0) },
                50..60 => Operation::State,
                60 => Operation::Block { period: Micros(5) },
                61 => Operation::Unblock,
                _ => Operation::take(cost),
            };
            let expected = engine::apply(algorithm, &mut entry, at(now), &operation).unwrap();
            let found = ask(&mut store, &limit, at(now), &operation);
            if let (Reply::State(a), Reply::State(b)) = (&expected, &found) {
                longest = longest.max(a.used);
                // The engine's entry is never forgotten.
                assert_eq!((a.used, a.remaining, a.reset_after), (b.used, b.remaining, b.reset_after));
            } else if found != expected {
                panic!("seed {seed}, call {number}: {operation:?}\n engine {expected:?}\n script {found:?}");
            }
            if let Reply::Reserved(_, Some(made)) = found {
                reservations.push(made);
            }
        }
    });
    assert!(longest > 1000, "the log was never long: {longest}");
}

#[test]
fn a_log_of_thousands_of_charges_answers_as_the_engine() {
    let log = SlidingLog::new(5_000, Micros::from_secs(1)).unwrap();
    as_the_engine(log.into(), 20_000, 500);
}

#[test]
fn a_window_of_thousands_of_cells_answers_as_the_engine() {
    let window = StrictWindow::new(5_000, Micros::from_secs(1), 3_600).unwrap();
    as_the_engine(window.into(), 20_000, 500);
}

#[test]
fn a_limit_that_charges_denied_calls_answers_as_in_memory() {
    let second = Micros::from_secs(1);
    let policies: [Policy; 3] = [
        TokenBucket::new(Rate::per_second(3).unwrap(), 5)
            .unwrap()
            .into(),
        FixedWindow::new(5, second, Align::Epoch).unwrap().into(),
        SlidingLog::new(5, second).unwrap().into(),
    ];
    for policy in policies {
        let options = MemoryOptions {
            charge_denied: true,
            ..MemoryOptions::default()
        };
        let memory = memory_limit(policy.clone(), options);
        let limit = LimitSpec::new("punitive", policy).with_charge_denied(true);
        let mut store = Store::start(Flavor::Valkey9);
        let mut denied = 0;
        for step in 0..2_000_u64 {
            let now = at(step * 37_000 + step * step % 90_001);
            let operation = Operation::take((step % 3) as u32);
            let expected = memory
                .apply(KeyHash::new(1), now.into(), &operation)
                .unwrap();
            let found = ask(&mut store, &limit, now, &operation);
            assert_eq!(found, expected, "step {step} of {:?}", limit.policy());
            denied += u32::from(!found.decision().unwrap().is_allowed());
        }
        assert!(denied > 100, "only {denied} were denied");
    }
}

#[test]
fn a_process_with_older_numbers_decides_by_the_newer_ones_it_finds() {
    let bucket = |capacity| TokenBucket::new(Rate::per_second(1).unwrap(), capacity).unwrap();
    let old = LimitSpec::new("login", bucket(10)).with_generation(7);
    let new = LimitSpec::new("login", bucket(2))
        .with_generation(8)
        .with_change(ChangeMode::Reset);
    let mut store = Store::start(Flavor::Valkey9);
    let mut allowed = 0;
    for turn in 0..20 {
        let limit = if turn % 2 == 0 { &old } else { &new };
        let reply = ask(&mut store, limit, at(turn), &Operation::take(1));
        allowed += u32::from(reply.decision().unwrap().is_allowed());
    }
    // One under the old numbers, then a reset, once, to the new ones.
    assert_eq!(allowed, 3);
    assert_eq!(state(&mut store, &old, at(20)).limit, 2);
}

#[test]
fn among_equal_generations_the_last_caller_wins_and_what_was_used_stays_used() {
    let bucket = |capacity| TokenBucket::new(Rate::new(0, 1).unwrap(), capacity).unwrap();
    let (wide, narrow) = (
        LimitSpec::new("a", bucket(10)),
        LimitSpec::new("a", bucket(5)),
    );
    let mut store = Store::start(Flavor::Valkey9);
    ask(&mut store, &wide, at(0), &Operation::take(3));
    let seen = [&narrow, &wide, &narrow].map(|limit| {
        let seen = state(&mut store, limit, at(0));
        (seen.limit, seen.used, seen.remaining)
    });
    assert_eq!(seen, [(5, 3, 2), (10, 3, 7), (5, 3, 2)]);
}

#[test]
fn another_algorithm_starts_afresh() {
    let second = Micros::from_secs(1);
    let window = LimitSpec::new("a", FixedWindow::new(5, second, Align::Epoch).unwrap());
    let log = LimitSpec::new("a", SlidingLog::new(5, second).unwrap());
    let mut store = Store::start(Flavor::Valkey9);
    ask(&mut store, &window, at(0), &Operation::take(5));
    assert_eq!(state(&mut store, &log, at(0)).used, 0);
    assert_eq!(state(&mut store, &window, at(0)).used, 5);
}

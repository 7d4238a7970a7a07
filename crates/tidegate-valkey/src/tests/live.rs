//! The scripts as they are sent, on the server's own clock.

use std::sync::Arc;

use redis::{Connection, Value};
use tidegate_core::{
    Align, Calendar, Concurrency, Demand, FixedWindow, InterpolatedWindow, IntervalBucket,
    LeakyBucket, LeaseId, Lockout, LockoutSettings, Micros, Operation, Policy, Rate, Reply,
    SlidingLog, StrictWindow, Timestamp, TokenBucket, Window,
};
use tidegate_store::Key;
use tidegate_testkit::{Flavor, Server};

use crate::{Answer, KeySpace, LimitSpec, ScriptCall, call_for, reply_from};

const FLAVORS: [Flavor; 3] = [Flavor::Valkey9, Flavor::Redis7, Flavor::Redis6];

/// Windows of an hour.
#[derive(Debug)]
struct Hours;

impl Calendar for Hours {
    fn window(&self, at: Timestamp) -> Window {
        let hour = self.longest().0;
        let start = at.as_micros() / hour * hour;
        Window {
            start: Timestamp::from_micros(start).unwrap(),
            end: Timestamp::from_micros(start + hour).unwrap(),
        }
    }

    fn longest(&self) -> Micros {
        Micros::from_secs(3_600)
    }

    fn shortest(&self) -> Micros {
        self.longest()
    }

    fn name(&self) -> &str {
        "hours"
    }
}

/// A limit of 2 of every algorithm, that nothing comes back to for a while.
fn policies() -> Vec<Policy> {
    let day = Micros::from_secs(86_400);
    let slow = Rate::new(1, day.0).unwrap();
    let lockout = LockoutSettings {
        failures: 2,
        period: day,
        ban: day,
        factor: 2,
        max_ban: day,
        jitter: Micros::ZERO,
        forget_after: day,
        long_cap: None,
    };
    vec![
        TokenBucket::new(slow, 2).unwrap().into(),
        IntervalBucket::new(slow, 2).unwrap().into(),
        LeakyBucket::new(slow, 1, 1, None).unwrap().into(),
        FixedWindow::new(2, Micros(day.0 * 3000), Align::Epoch)
            .unwrap()
            .into(),
        FixedWindow::new(2, day, Align::FirstUse).unwrap().into(),
        FixedWindow::calendar(2, Arc::new(Hours)).unwrap().into(),
        SlidingLog::new(2, day).unwrap().into(),
        StrictWindow::new(2, day, 60).unwrap().into(),
        InterpolatedWindow::new(2, Micros(day.0 * 3000))
            .unwrap()
            .into(),
        Concurrency::new(2, day, None).unwrap().into(),
        Lockout::new(lockout).unwrap().into(),
    ]
}

fn demand(policy: &Policy, number: u32) -> Demand {
    match policy {
        Policy::Concurrency(_) => Demand::Acquire {
            lease: LeaseId(number.into()),
            weight: 1,
        },
        Policy::Lockout(_) => Demand::Attempt { seed: 0 },
        _ => Demand::Take { cost: 1 },
    }
}

fn call(limit: &LimitSpec, operation: &Operation, times: &[Timestamp]) -> ScriptCall {
    let key = Key::new("bob");
    call_for(
        &KeySpace::default(),
        limit,
        &key,
        None,
        false,
        operation,
        times,
    )
    .unwrap()
}

fn send(connection: &mut Connection, call: &ScriptCall) -> Value {
    let mut command = redis::cmd("EVAL");
    command.arg(call.script.source).arg(call.keys.len());
    for key in &call.keys {
        command.arg(key.as_slice());
    }
    for argument in &call.arguments {
        command.arg(argument.as_slice());
    }
    command.query(connection).unwrap()
}

fn ask(connection: &mut Connection, limit: &LimitSpec, operation: &Operation) -> Reply {
    let mut times = Vec::new();
    loop {
        let value = send(connection, &call(limit, operation, &times));
        match reply_from(operation, false, &value).unwrap() {
            Answer::Reply { reply, rebased } => {
                assert_eq!(rebased, 0);
                return reply;
            }
            Answer::NeedsWindow(at) => times.push(at),
        }
        assert!(
            times.len() < 4,
            "the server is never content with the windows"
        );
    }
}

fn dump(connection: &mut Connection, call: &ScriptCall) -> (Option<Vec<u8>>, i64) {
    let (value, expires) = redis::pipe()
        .cmd("GET")
        .arg(&call.keys[0])
        .cmd("PTTL")
        .arg(&call.keys[0])
        .query(connection)
        .unwrap();
    (value, expires)
}

#[test]
fn only_a_charge_writes_and_what_is_written_expires() {
    for flavor in FLAVORS {
        let server = Server::start(flavor);
        let mut connection = server.connection();
        for policy in policies() {
            let demand = |number| demand(&policy, number);
            let limit = LimitSpec::new("two", policy.clone());
            let key = call(&limit, &Operation::State, &[]);
            let passes = |connection: &mut Connection, operation| {
                let reply = ask(connection, &limit, &operation);
                reply.decision().expect("a decision").is_allowed()
            };
            assert!(passes(&mut connection, Operation::Peek(demand(0))));
            assert_eq!(
                dump(&mut connection, &key),
                (None, -2),
                "a peek wrote {policy:?}"
            );

            for number in 0..2 {
                assert!(passes(&mut connection, Operation::Take(demand(number))));
                let (value, expires) = dump(&mut connection, &key);
                assert!(
                    value.is_some() && expires > 1_000,
                    "{expires} for {policy:?}"
                );
            }
            let (before, expires) = dump(&mut connection, &key);
            for operation in [Operation::Take(demand(3)), Operation::Peek(demand(3))] {
                assert!(!passes(&mut connection, operation), "{policy:?}");
            }
            ask(&mut connection, &limit, &Operation::State);
            let (after, still) = dump(&mut connection, &key);
            assert_eq!(after, before, "a denial wrote {policy:?}");
            assert!(still <= expires, "a denial prolonged {policy:?}");

            ask(
                &mut connection,
                &limit,
                &Operation::Block {
                    period: Micros::from_secs(60),
                },
            );
            assert!(dump(&mut connection, &key).1 > 1_000);
            ask(&mut connection, &limit, &Operation::Reset);
            let (left, expires) = dump(&mut connection, &key);
            match policy {
                // The fencing token goes on rising.
                Policy::Concurrency(_) => assert!(left.is_some() && expires <= 1_001),
                _ => assert_eq!(left, None, "{policy:?}"),
            }
        }
    }
}

#[test]
fn a_fast_bucket_is_stored_for_a_second_and_one_without_a_rate_for_ever() {
    let server = Server::start(Flavor::Valkey9);
    let mut connection = server.connection();
    let bucket = |rate| LimitSpec::new("a", TokenBucket::new(rate, 5).unwrap());
    let fast = bucket(Rate::per_second(1_000_000_000).unwrap());
    ask(&mut connection, &fast, &Operation::take(5));
    let (_, expires) = dump(&mut connection, &call(&fast, &Operation::State, &[]));
    assert!((900..=1_002).contains(&expires), "{expires} ms");

    let none = bucket(Rate::new(0, 1).unwrap());
    ask(&mut connection, &none, &Operation::Reset);
    ask(&mut connection, &none, &Operation::take(5));
    let (value, expires) = dump(&mut connection, &call(&none, &Operation::State, &[]));
    assert!(value.is_some());
    assert_eq!(expires, -1, "what never refills never expires");
}

#[test]
fn the_scripts_are_clean_of_globals() {
    // A global that a script sets is an error of the server: so running every operation is enough.
    let server = Server::start(Flavor::Valkey9);
    let mut connection = server.connection();
    for policy in policies() {
        let limit = LimitSpec::new("all", policy.clone());
        let lease = LeaseId(1);
        let reservation = tidegate_core::Reservation {
            cost: 1,
            at: Timestamp::EPOCH,
        };
        let operations = [
            Operation::Take(demand(&policy, 1)),
            Operation::TakeUpTo { cost: 3 },
            Operation::Reserve {
                cost: 1,
                max_wait: Micros::from_secs(1),
            },
            Operation::Settle {
                reservation,
                actual: 2,
            },
            Operation::Cancel { reservation },
            Operation::Refund { cost: 1 },
            Operation::Force { cost: 1 },
            Operation::Block { period: Micros(1) },
            Operation::Unblock,
            Operation::State,
            Operation::Renew { lease },
            Operation::Release { lease },
            Operation::Success,
            Operation::Reset,
        ];
        for operation in operations {
            let key = Key::new("bob");
            let space = KeySpace::default();
            if call_for(&space, &limit, &key, None, false, &operation, &[]).is_ok() {
                ask(&mut connection, &limit, &operation);
            }
        }
    }
}

//! What a decision costs the server: processor time per call and bytes per key.
//!
//! `cargo run --release -p tidegate-valkey --example server_cost` starts a Valkey of its own and
//! prints a table. Times are those of the machine that it runs on; compare them with the last
//! line, the server's own `GET` through the same pipe.

use std::time::Duration;

use redis::Value;
use tidegate_core::{
    Align, Concurrency, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket, LeaseId,
    Lockout, LockoutSettings, Micros, Operation, OperationError, Policy, PolicyError, Rate,
    SlidingLog, StrictWindow, Timestamp, TokenBucket,
};
use tidegate_store::Key;
use tidegate_testkit::{Flavor, Server};
use tidegate_valkey::{KeySpace, LimitSpec, ScriptCall, SharedMember, call_for, joint_call_for};

const CALLS: usize = 200_000;
const BATCH: usize = 100;
const KEYS: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start(Flavor::Valkey9);
    let mut connection = server.connection();
    connection.set_read_timeout(Some(Duration::from_secs(60)))?;
    println!(
        "{:<34} {:>10} {:>10} {:>8}",
        "", "us/call", "inside us", "bytes"
    );
    for (name, policy) in policies()? {
        let limit = LimitSpec::new(name, policy);
        let calls = calls(&limit, KEYS)?;
        let cost = measure(&server, &mut connection, &calls)?;
        let bytes = memory_usage(&mut connection, &calls[0])?;
        println!("{name:<34} {:>10.2} {:>10.2} {bytes:>8}", cost.0, cost.1);
        redis::cmd("FLUSHALL").exec(&mut connection)?;
    }
    let hour = Micros::from_secs(3_600);
    let long = LimitSpec::new("long", SlidingLog::new(100_000, hour)?);
    let calls = calls(&long, 1)?;
    let (grows, full) = calls.split_at(CALLS / 2);
    for (name, calls) in [
        ("sliding_log grows to 100 000", grows),
        ("and is full", full),
    ] {
        let cost = measure(&server, &mut connection, calls)?;
        let bytes = memory_usage(&mut connection, &calls[0])?;
        println!("{name:<34} {:>10.2} {:>10.2} {bytes:>8}", cost.0, cost.1);
    }
    let cost = measure(&server, &mut connection, &joint_calls()?)?;
    println!(
        "{:<34} {:>10.2} {:>10.2}",
        "all_of, five buckets", cost.0, cost.1
    );
    let cost = measure_get(&server, &mut connection)?;
    println!("{:<34} {cost:>10.2}", "GET");
    Ok(())
}

fn policies() -> Result<Vec<(&'static str, Policy)>, PolicyError> {
    let minute = Micros::from_secs(60);
    let lockout = LockoutSettings {
        failures: 5,
        period: minute,
        ban: minute,
        factor: 2,
        max_ban: Micros::from_secs(3600),
        jitter: Micros::ZERO,
        forget_after: Micros::from_secs(86_400),
        long_cap: None,
    };
    Ok(vec![
        (
            "token_bucket, allowed",
            TokenBucket::new(Rate::per_second(100)?, 200)?.into(),
        ),
        (
            "token_bucket, denied",
            TokenBucket::new(Rate::new(1, 60_000_000)?, 1)?.into(),
        ),
        (
            "interval_bucket",
            IntervalBucket::new(Rate::per_second(100)?, 200)?.into(),
        ),
        (
            "leaky_bucket",
            LeakyBucket::new(Rate::per_second(100)?, 200, 1, None)?.into(),
        ),
        (
            "fixed_window, allowed",
            FixedWindow::new(1_000_000, minute, Align::Epoch)?.into(),
        ),
        (
            "fixed_window, denied",
            FixedWindow::new(1, minute, Align::Epoch)?.into(),
        ),
        (
            "fixed_window, first use",
            FixedWindow::new(100, minute, Align::FirstUse)?.into(),
        ),
        (
            "sliding_log of 100, 20 in use",
            SlidingLog::new(100, minute)?.into(),
        ),
        (
            "sliding_log of 20, denied",
            SlidingLog::new(20, minute)?.into(),
        ),
        (
            "sliding_log of 100, full",
            SlidingLog::new(100, Micros::from_millis(1))?.into(),
        ),
        (
            "strict_window, 60 cells",
            StrictWindow::new(1000, minute, 60)?.into(),
        ),
        (
            "interpolated_window",
            InterpolatedWindow::new(1000, minute)?.into(),
        ),
        (
            "concurrency of 10, 10 in use",
            Concurrency::new(10, minute, None)?.into(),
        ),
        ("lockout", Lockout::new(lockout)?.into()),
    ])
}

/// Bytes that a call's first key takes on the server.
fn memory_usage(connection: &mut redis::Connection, call: &ScriptCall) -> redis::RedisResult<i64> {
    redis::cmd("MEMORY")
        .arg("USAGE")
        .arg(&call.keys[0])
        .arg("SAMPLES")
        .arg(0)
        .query::<Option<i64>>(connection)
        .map(Option::unwrap_or_default)
}

/// Calls over so many keys in turn.
fn calls(limit: &LimitSpec, keys: usize) -> Result<Vec<ScriptCall>, OperationError> {
    let space = KeySpace::default();
    let mut calls = Vec::with_capacity(CALLS);
    for n in 0..CALLS {
        let key = Key::new(format!("user-{}", n % keys));
        let operation = match limit.policy() {
            Policy::Concurrency(_) => Operation::Take(tidegate_core::Demand::Acquire {
                lease: LeaseId(n as u128),
                weight: 1,
            }),
            Policy::Lockout(_) => Operation::Take(tidegate_core::Demand::Attempt { seed: 0 }),
            _ => Operation::take(1),
        };
        let times: [Timestamp; 0] = [];
        calls.push(call_for(
            &space, limit, &key, None, false, &operation, &times,
        )?);
    }
    Ok(calls)
}

fn joint_calls() -> Result<Vec<ScriptCall>, Box<dyn std::error::Error>> {
    let space = KeySpace::default();
    let bucket = TokenBucket::new(Rate::per_second(100)?, 200)?;
    let names = ["a", "b", "c", "d", "e"];
    let limits = names.map(|name| LimitSpec::new(name, bucket.clone()));
    let mut calls = Vec::new();
    for n in 0..CALLS / 4 {
        let key = Key::new(format!("user-{}", n % KEYS));
        let members: Vec<SharedMember<'_>> = limits
            .iter()
            .map(|limit| SharedMember {
                limit,
                key: &key,
                slot: None,
                demand: tidegate_core::Demand::Take { cost: 1 },
                shadow: false,
            })
            .collect();
        calls.extend(joint_call_for(&space, &members, &[])?.map(|joint| joint.call));
    }
    Ok(calls)
}

/// Processor time of the server per call, and what its own count of the time in scripts says.
fn measure(
    server: &Server,
    connection: &mut redis::Connection,
    calls: &[ScriptCall],
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(calls[0].script.source)
        .exec(connection)?;
    redis::cmd("CONFIG").arg("RESETSTAT").exec(connection)?;
    let before = processor_time(server)?;
    for batch in calls.chunks(BATCH) {
        let mut pipe = redis::pipe();
        for call in batch {
            pipe.cmd("EVALSHA")
                .arg(call.script.sha1())
                .arg(call.keys.len());
            for key in &call.keys {
                pipe.arg(key.as_slice());
            }
            for argument in &call.arguments {
                pipe.arg(argument.as_slice());
            }
        }
        let _: Vec<Value> = pipe.query(connection)?;
    }
    let per_call = (processor_time(server)? - before) / calls.len() as f64;
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    let inside = stats
        .split_once("cmdstat_evalsha:")
        .and_then(|(_, rest)| rest.split_once("usec_per_call="))
        .and_then(|(_, rest)| rest.split(',').next())
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::NAN);
    Ok((per_call, inside))
}

fn measure_get(
    server: &Server,
    connection: &mut redis::Connection,
) -> Result<f64, Box<dyn std::error::Error>> {
    let before = processor_time(server)?;
    for _ in 0..CALLS / BATCH {
        let mut pipe = redis::pipe();
        for _ in 0..BATCH {
            pipe.cmd("GET").arg("some key of usual length");
        }
        let _: Vec<Value> = pipe.query(connection)?;
    }
    Ok((processor_time(server)? - before) / CALLS as f64)
}

/// Microseconds that the server has run.
fn processor_time(server: &Server) -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", server.process_id()))?;
    let nanos = stat.split_ascii_whitespace().next().unwrap_or("0");
    Ok(nanos.parse::<f64>()? / 1000.0)
}

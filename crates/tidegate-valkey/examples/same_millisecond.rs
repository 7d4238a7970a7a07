//! Why a log of calls must not be keyed by their time: 5,000 calls of one millisecond at a limit of 100
//! a minute, counted by a sorted set as many programs keep it, and by tidegate's script.
//!
//! `cargo run --release -p tidegate-valkey --example same_millisecond` starts a Valkey of its own. It
//! prints how many pass, and fails if ours are not exactly 100.
//!
//! The sorted set has each call's time stamp, which the caller brings, as member and as score. Calls
//! of one millisecond are then one member: the set hardly grows, and nearly all pass. And a caller
//! whose clock is a minute ahead removes what all others have done.

use redis::Connection;
use tidegate_core::{Micros, Operation, SlidingLog};
use tidegate_store::Key;
use tidegate_testkit::{Flavor, Server};
use tidegate_valkey::{KeySpace, LimitSpec, call_for};

const CALLS: usize = 5_000;
const LIMIT: u32 = 100;

/// What to avoid: the member is the caller's time stamp.
const BY_TIME_STAMP: &str = "
    local stamp, length, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', stamp - length)
    if redis.call('ZCARD', KEYS[1]) >= most then
      return 0
    end
    redis.call('ZADD', KEYS[1], stamp, stamp)
    redis.call('PEXPIRE', KEYS[1], length)
    return 1
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start(Flavor::Valkey9);
    let mut connection = server.connection();
    let now = 1_700_000_000_000_u64;
    let passed = |connection: &mut Connection, stamp: u64| -> redis::RedisResult<usize> {
        let mut call = redis::cmd("EVAL");
        call.arg(BY_TIME_STAMP).arg(1).arg("log");
        call.arg(stamp).arg(60_000).arg(LIMIT).query(connection)
    };
    let mut same = 0;
    for _ in 0..CALLS {
        same += passed(&mut connection, now)?;
    }
    let mut apart = 0;
    for call in 0..CALLS as u64 {
        apart += passed(&mut connection, now + 60_001 + call)?;
    }
    // One caller is a minute ahead, once.
    let ahead = passed(&mut connection, now + 200_000)? + passed(&mut connection, now + 66_000)?;

    let limit = LimitSpec::new("log", SlidingLog::new(LIMIT, Micros::from_secs(60))?);
    let (space, key) = (KeySpace::default(), Key::new("bob"));
    let take = call_for(&space, &limit, &key, None, false, &Operation::take(1), &[])?;
    let mut ours = 0;
    let load = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(take.script.source)
        .exec(&mut connection);
    load?;
    let mut pipe = redis::pipe();
    for _ in 0..CALLS {
        let call = pipe
            .cmd("EVALSHA")
            .arg(take.script.sha1())
            .arg(1)
            .arg(&take.keys[0]);
        for argument in &take.arguments {
            call.arg(argument.as_slice());
        }
    }
    let answers: Vec<Vec<u8>> = pipe.query(&mut connection)?;
    // The first byte of an answer is 0 if the call passes.
    ours += answers.iter().filter(|answer| answer[0] == 0).count();

    println!("of {CALLS} calls at a limit of {LIMIT} a minute:");
    println!("  a sorted set keyed by time, all in one millisecond    {same:>5} pass");
    println!("  the same, a millisecond apart                         {apart:>5} pass");
    println!("  of two calls at its full limit, one a minute ahead    {ahead:>5} pass");
    println!("  tidegate's sliding log, as fast as they come          {ours:>5} pass");
    if ours != LIMIT as usize {
        return Err(format!("{ours} passed").into());
    }
    Ok(())
}

//! Limits that a server keeps: the way through the client beside the server's own limit, batches of
//! tokens beside one call a decision, and compare-and-swap beside scripts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tidegate::shared::LeaseTokens;
use tidegate::valkey::{
    Atomicity, Client, ClientOptions, KeySpace, LimitSpec, ScriptCall, ValkeyStore, call_for,
};
use tidegate::{Key, Operation, Rate, SharedLimiter, TokenBucket};
use tidegate_testkit::{Flavor, Server};
use tokio::runtime::Runtime;

use crate::measure::median;

/// Connections, and how many calls are on their way on each.
const CONNECTIONS: usize = 2;
const DEPTH: usize = 32;

/// Keys that calls are spread over, where it is not one: a multiple of the depth.
const KEYS: usize = 312 * DEPTH;

/// How long one measurement takes.
const LENGTH: Duration = Duration::from_millis(700);

/// What was done within a time, and what it cost the server.
struct Measured {
    per_second: f64,
    server_micros: f64,
}

/// One way to decide.
struct Way {
    work: &'static str,
    name: &'static str,
    run: Run,
}

/// Decides for a while, and says how often.
type Run = Box<dyn Fn(&Setting) -> Result<u64>>;

struct Setting {
    server: Server,
    runtime: Runtime,
}

/// Measures and prints a table.
pub fn run(rounds: u32) -> Result<()> {
    let setting = Setting {
        server: Server::start(Flavor::Valkey9),
        runtime: tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?,
    };
    let ways = ways();
    let mut found: Vec<Vec<Measured>> = ways.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (way, found) in ways.iter().zip(&mut found) {
            found.push(measure(&setting, way)?);
        }
    }
    println!(
        "\nMedians of {rounds} interleaved rounds. The ratio is to the first line of the same work.\n"
    );
    println!(
        "| work | way | decisions/s | ratio | server us per decision |\n|---|---|---:|---:|---:|"
    );
    let mut first: (&str, f64) = ("", 0.0);
    for (way, found) in ways.iter().zip(found) {
        let per_second = median(found.iter().map(|one| one.per_second).collect());
        let server = median(found.iter().map(|one| one.server_micros).collect());
        if first.0 != way.work {
            first = (way.work, per_second);
        }
        println!(
            "| {} | {} | {per_second:.0} | {:.2} | {server:.2} |",
            way.work,
            way.name,
            per_second / first.1
        );
    }
    Ok(())
}

fn way(
    work: &'static str,
    name: &'static str,
    run: impl Fn(&Setting) -> Result<u64> + 'static,
) -> Way {
    let run = Box::new(run);
    Way { work, name, run }
}

fn ways() -> Vec<Way> {
    let spread = "token bucket, 9,984 keys, 2 connections, 64 calls on their way";
    let hot = "token bucket, one hot key, 64 callers";
    let alone = "token bucket, one key, 1 caller";
    let crowd = "token bucket, one key, 400 callers";
    let by =
        |atomicity, callers| move |setting: &Setting| callers_of(setting, atomicity, callers, 1);
    vec![
        way(
            spread,
            "the server's limit: bytes made beforehand, answers not read",
            raw,
        ),
        way(spread, "tidegate", |setting| {
            callers_of(setting, Atomicity::Scripts, CONNECTIONS * DEPTH, KEYS)
        }),
        way(hot, "one call a decision", by(Atomicity::Scripts, 64)),
        way(hot, "batches of 1,000 tokens", |setting| {
            leased(setting, 64)
        }),
        way(alone, "scripts", by(Atomicity::Scripts, 1)),
        way(alone, "compare-and-swap", by(Atomicity::CompareAndSwap, 1)),
        way(alone, "batches of 1,000 tokens", |setting| {
            leased(setting, 1)
        }),
        way(crowd, "scripts", by(Atomicity::Scripts, 400)),
        way(
            crowd,
            "compare-and-swap",
            by(Atomicity::CompareAndSwap, 400),
        ),
    ]
}

fn measure(setting: &Setting, way: &Way) -> Result<Measured> {
    setting.server.command("FLUSHALL");
    let (before, started) = (processor_time(&setting.server)?, Instant::now());
    let decisions = (way.run)(setting)?;
    let elapsed = started.elapsed();
    let spent = processor_time(&setting.server)? - before;
    Ok(Measured {
        per_second: decisions as f64 / elapsed.as_secs_f64(),
        server_micros: spent / decisions as f64,
    })
}

fn bucket() -> Result<TokenBucket> {
    // So much that nothing is ever denied.
    let most = i32::MAX as u32;
    Ok(TokenBucket::new(Rate::per_second(1_000_000_000)?, most)?)
}

async fn store(url: &str, atomicity: Atomicity) -> Result<ValkeyStore> {
    let options = ClientOptions::from_url(url)?
        .connections(CONNECTIONS)
        .deadline(Duration::from_secs(10));
    let client = Client::connect(options)?;
    client.ready(Duration::from_secs(10)).await?;
    Ok(ValkeyStore::with_atomicity(
        client,
        KeySpace::default(),
        atomicity,
    ))
}

/// So many callers, each with the next call as soon as it has an answer.
fn callers_of(setting: &Setting, atomicity: Atomicity, callers: usize, keys: usize) -> Result<u64> {
    setting.runtime.block_on(async {
        let store = store(&setting.server.url(), atomicity).await?;
        let limit = Arc::new(LimitSpec::new("bench", bucket()?));
        let keys: Arc<Vec<Key>> =
            Arc::new((0..keys).map(|n| Key::new(format!("user-{n}"))).collect());
        let (decided, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + LENGTH);
        let mut tasks = Vec::new();
        for caller in 0..callers {
            let (store, limit, keys) = (store.clone(), Arc::clone(&limit), Arc::clone(&keys));
            let decided = Arc::clone(&decided);
            tasks.push(tokio::spawn(async move {
                let take = Operation::take(1);
                let mut next = caller;
                while Instant::now() < end {
                    let key = &keys[next % keys.len()];
                    next += callers;
                    store.apply(&limit, key, None, false, &take).await?;
                    decided.fetch_add(1, Relaxed);
                }
                anyhow::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(decided.load(Relaxed))
    })
}

/// The same callers of a limiter that takes batches.
fn leased(setting: &Setting, callers: usize) -> Result<u64> {
    setting.runtime.block_on(async {
        let store = store(&setting.server.url(), Atomicity::Scripts).await?;
        let leases = LeaseTokens::new(1_000, LeaseTokens::MAX_AGE)?;
        let limiter =
            SharedLimiter::builder(store, "bench", bucket()?).build_with_leased_tokens(leases)?;
        let (decided, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + LENGTH);
        let mut tasks = Vec::new();
        for _ in 0..callers {
            let (limiter, decided) = (limiter.clone(), Arc::clone(&decided));
            tasks.push(tokio::spawn(async move {
                let mut own = 0;
                while Instant::now() < end {
                    for _ in 0..64 {
                        limiter.try_take("user-0", 1).await?;
                    }
                    own += 64;
                    // Others want to run as well: most calls end without waiting for anything.
                    tokio::task::yield_now().await;
                }
                decided.fetch_add(own, Relaxed);
                anyhow::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        limiter.return_tokens().await;
        Ok(decided.load(Relaxed))
    })
}

/// What the server does with bytes that were made beforehand and answers that are only counted: what
/// its own benchmark program does, which cannot be given arguments with bytes of 0.
fn raw(setting: &Setting) -> Result<u64> {
    let limit = LimitSpec::new("bench", bucket()?);
    let space = KeySpace::default();
    let mut calls = Vec::new();
    for n in 0..KEYS {
        let key = Key::new(format!("user-{n}"));
        calls.push(call_for(
            &space,
            &limit,
            &key,
            None,
            false,
            &Operation::take(1),
            &[],
        )?);
    }
    let mut connection = setting.server.connection();
    let script = calls.first().context("there are keys")?.script;
    let load = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script.source)
        .query::<String>(&mut connection);
    load?;
    let batches: Vec<Vec<u8>> = calls.chunks(DEPTH).map(packed).collect();
    let end = Instant::now() + LENGTH;
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|first| {
                scope.spawn({
                    let batches = &batches;
                    move || pipelined(&setting.server.address(), batches, first, end)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect::<Result<Vec<u64>>>()
    })?;
    Ok(counts.iter().sum())
}

/// Sends one batch after the other on a connection, each when the last is answered.
fn pipelined(address: &str, batches: &[Vec<u8>], first: usize, end: Instant) -> Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (mut buffer, mut decided, mut next) = (vec![0; 64 * 1024], 0, first);
    while Instant::now() < end {
        let batch = &batches[next % batches.len()];
        next += CONNECTIONS;
        stream.write_all(batch)?;
        let mut left = DEPTH * ANSWER;
        while left > 0 {
            let read = stream.read(&mut buffer)?;
            anyhow::ensure!(read > 0 && read <= left, "an answer is of another length");
            left -= read;
        }
        decided += DEPTH as u64;
    }
    Ok(decided)
}

/// `$41` and an answer, each with its line end.
const ANSWER: usize = 5 + 41 + 2;

fn packed(calls: &[ScriptCall]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for call in calls {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(call.script.sha1())
            .arg(1)
            .arg(call.keys[0].as_slice());
        for argument in &call.arguments {
            command.arg(argument.as_slice());
        }
        bytes.extend_from_slice(&command.get_packed_command());
    }
    bytes
}

/// Microseconds that the server has run.
fn processor_time(server: &Server) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", server.process_id()))?;
    let nanos = stat.split_ascii_whitespace().next().context("a number")?;
    Ok(nanos.parse::<f64>()? / 1000.0)
}

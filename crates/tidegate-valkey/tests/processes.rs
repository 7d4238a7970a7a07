//! Limits that real processes share: they are started, raced, given wrong clocks and killed.
//!
//! The other processes are this test binary again, told by their environment what to do.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use support::{LONG, options, ready};
use tidegate_core::{
    Align, Concurrency, Demand, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket,
    LeaseId, Lockout, LockoutSettings, Micros, Operation, Policy, Rate, Reply, SlidingLog,
    StrictWindow, TokenBucket,
};
use tidegate_store::Key;
use tidegate_testkit::{Flavor, Relay, Server};
use tidegate_valkey::{
    Atomicity, FailureMode, KeySpace, LeaseTokens, LimitSpec, SharedLimit, StoreError, ValkeyStore,
};

/// What a process is to do: a task, the server's URL, the name of a limit, and a number.
const TASK: &str = "TIDEGATE_TASK";

const LIMIT: u32 = 100;
const AGE: Micros = Micros(60_000_000);
const BATCH: u32 = 100;
const TO_SPEND: u32 = 30_000;

/// A limit of a hundred that nothing comes back of while a test runs.
fn policy(name: &str) -> Policy {
    let hour = Micros::from_secs(3600);
    let decade = Micros::from_secs(3600 * 24 * 3652);
    let seldom = Rate::new(1, hour.0).unwrap();
    match name {
        "token_bucket" => TokenBucket::new(seldom, LIMIT).unwrap().into(),
        "interval_bucket" => IntervalBucket::new(seldom, LIMIT).unwrap().into(),
        "leaky_bucket" => LeakyBucket::new(seldom, LIMIT - 1, 1, None).unwrap().into(),
        "fixed_window" => FixedWindow::new(LIMIT, decade, Align::Epoch)
            .unwrap()
            .into(),
        "first_use" => FixedWindow::new(LIMIT, hour, Align::FirstUse)
            .unwrap()
            .into(),
        "sliding_log" => SlidingLog::new(LIMIT, hour).unwrap().into(),
        "per_minute" => SlidingLog::new(LIMIT, Micros::from_secs(60))
            .unwrap()
            .into(),
        "strict_window" => StrictWindow::new(LIMIT, hour, 60).unwrap().into(),
        "interpolated" => InterpolatedWindow::new(LIMIT, decade).unwrap().into(),
        "concurrency" => Concurrency::new(LIMIT, hour, None).unwrap().into(),
        "lockout" => Lockout::new(LockoutSettings {
            failures: LIMIT,
            period: hour,
            ban: hour,
            factor: 1,
            max_ban: hour,
            jitter: Micros::ZERO,
            forget_after: hour,
            long_cap: None,
        })
        .unwrap()
        .into(),
        "short_leases" => Concurrency::new(10, Micros::from_secs(1), None)
            .unwrap()
            .into(),
        "to_spend" => SlidingLog::new(TO_SPEND, hour).unwrap().into(),
        other => panic!("no limit is called {other}"),
    }
}

/// What one call wants of a limit.
fn demand(policy: &Policy, call: u128) -> Demand {
    match policy {
        Policy::Concurrency(_) => Demand::Acquire {
            lease: LeaseId(u128::from(std::process::id()) << 64 | call),
            weight: 1,
        },
        Policy::Lockout(_) => Demand::Attempt { seed: 0 },
        _ => Demand::Take { cost: 1 },
    }
}

/// Another process.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(task: &str, url: &str, limit: &str, number: u32) -> Self {
        Self::start_at("+0s", task, url, limit, number)
    }

    /// With a clock that is off.
    fn start_at(clock: &str, task: &str, url: &str, limit: &str, number: u32) -> Self {
        // It ends with the thread that started it, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if clock != "+0s" {
            command.args(["faketime", "-f", clock]);
        }
        let mut child = command
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "one_of_the_processes",
                "--ignored",
                "--nocapture",
            ])
            .env(TASK, format!("{task} {url} {limit} {number}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv, of util-linux, and faketime; `cargo xtask tools` installs them");
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Waits for a line that begins with `word`, and returns the number behind it.
    fn expect(&mut self, word: &str) -> u64 {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the process ended before it said {word}");
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.trim().parse().unwrap_or(0);
            }
        }
    }

    fn go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// How many dots it has printed in all, once it has ended.
    fn dots(mut self) -> usize {
        let mut printed = Vec::new();
        self.output.read_to_end(&mut printed).unwrap();
        self.child.wait().unwrap();
        printed.iter().filter(|byte| **byte == b'.').count()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
}

fn wait_for_go() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other tests start it as a process"]
async fn one_of_the_processes() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let words: Vec<&str> = task.split(' ').collect();
    let [task, url, name, number] = words[..] else {
        panic!("{task}");
    };
    let number: u32 = number.parse().unwrap();
    let client = ready(options(url).deadline(LONG).connections(2)).await;
    let atomicity = if task == "swap" {
        Atomicity::CompareAndSwap
    } else {
        Atomicity::Scripts
    };
    let store = ValkeyStore::with_atomicity(client, KeySpace::default(), atomicity);
    let spec = LimitSpec::new(name, policy(name));
    match task {
        "swap" => burst(store, spec, number).await,
        "burst" => burst(store, spec, number).await,
        "spend" => spend(store, spec).await,
        "hold" => hold(store, spec, number).await,
        other => panic!("no task is called {other}"),
    }
    // Nobody reads what the test runner would say.
    std::process::exit(0);
}

/// So many calls at once, each sent to the store.
async fn burst(store: ValkeyStore, spec: LimitSpec, calls: u32) {
    say("ready");
    wait_for_go();
    let mut tasks = Vec::new();
    for call in 0..calls {
        let (store, spec) = (store.clone(), spec.clone());
        tasks.push(tokio::spawn(async move {
            let take = Operation::Take(demand(spec.policy(), call.into()));
            store
                .apply(&spec, &Key::new("bob"), None, false, &take)
                .await
        }));
    }
    let (mut passed, mut unknown) = (0, 0);
    for task in tasks {
        match task.await.unwrap() {
            Ok(reply) => passed += u32::from(reply.decision().unwrap().is_allowed()),
            Err(StoreError::Operation(error)) => panic!("{error}"),
            Err(_) => unknown += 1,
        }
    }
    say(&format!("passed {passed}"));
    say(&format!("unknown {unknown}"));
}

/// Spends batches until the limit denies; prints a dot for whatever passed.
async fn spend(store: ValkeyStore, spec: LimitSpec) {
    let leases = LeaseTokens::new(BATCH, AGE).unwrap();
    let limit = SharedLimit::with_leased_tokens(store, spec, FailureMode::Deny, leases).unwrap();
    say("ready");
    wait_for_go();
    let mut output = std::io::stdout();
    let key = Key::new("bob");
    while limit.take(&key, 1).await.unwrap().is_allowed() {
        output.write_all(b".").unwrap();
        output.flush().unwrap();
    }
    limit.return_tokens().await;
}

/// Takes so many permits, renews them for a while and then only holds them.
async fn hold(store: ValkeyStore, spec: LimitSpec, permits: u32) {
    let key = Key::new("bob");
    for call in 0..permits {
        let take = Operation::Take(demand(spec.policy(), call.into()));
        let reply = store.apply(&spec, &key, None, false, &take).await.unwrap();
        assert!(reply.decision().unwrap().is_allowed());
    }
    say("ready");
    loop {
        for call in 0..permits {
            if let Demand::Acquire { lease, .. } = demand(spec.policy(), call.into()) {
                let renew = Operation::Renew { lease };
                store.apply(&spec, &key, None, false, &renew).await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Starts processes, lets all go at once, and adds up what passed and what got no answer.
fn race(workers: Vec<Worker>) -> (u64, u64) {
    let mut workers = workers;
    for worker in &mut workers {
        worker.expect("ready");
    }
    for worker in &mut workers {
        worker.go();
    }
    workers
        .iter_mut()
        .fold((0, 0), |(passed, unknown), worker| {
            let own = worker.expect("passed");
            (passed + own, unknown + worker.expect("unknown"))
        })
}

async fn state_of(server: &Server, name: &str) -> tidegate_core::KeyState {
    let client = ready(options(&server.url()).deadline(LONG)).await;
    let store = ValkeyStore::new(client, KeySpace::default());
    let (spec, key) = (LimitSpec::new(name, policy(name)), Key::new("bob"));
    match store
        .apply(&spec, &key, None, false, &Operation::State)
        .await
        .unwrap()
    {
        Reply::State(state) => state,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_five_thousand_calls_at_once_from_four_processes_exactly_the_limit_passes() {
    let server = Server::start(Flavor::Valkey9);
    for name in ALL {
        let workers = (0..4).map(|_| Worker::start("burst", &server.url(), name, 1_250));
        let (passed, unknown) = race(workers.collect());
        assert_eq!((passed, unknown), (LIMIT.into(), 0), "{name}");
    }
    // And where every other process does without scripts.
    server.command("FLUSHALL");
    for name in ALL {
        let tasks = ["swap", "burst", "swap", "burst"];
        let start = |task| Worker::start(task, &server.url(), name, 1_250);
        let (passed, unknown) = race(tasks.map(start).into());
        assert_eq!(
            (passed, unknown),
            (LIMIT.into(), 0),
            "{name} without scripts"
        );
    }
}

const ALL: [&str; 11] = [
    "per_minute",
    "token_bucket",
    "interval_bucket",
    "leaky_bucket",
    "fixed_window",
    "first_use",
    "sliding_log",
    "strict_window",
    "interpolated",
    "concurrency",
    "lockout",
];

#[test]
fn a_process_whose_clock_is_an_hour_off_changes_nothing() {
    let server = Server::start(Flavor::Valkey9);
    for name in ["sliding_log", "token_bucket", "first_use"] {
        let clocks = ["+3600s", "-3600s", "+0s"];
        let start = |clock| Worker::start_at(clock, "burst", &server.url(), name, 90);
        let (passed, unknown) = race(clocks.map(start).into());
        assert_eq!((passed, unknown), (LIMIT.into(), 0), "{name}");
        // And one after the other: no window is emptied, nothing is refilled.
        for clock in ["+7200s", "+0s"] {
            let late = Worker::start_at(clock, "burst", &server.url(), name, 10);
            assert_eq!(race(vec![late]), (0, 0), "{name} at {clock}");
        }
    }
}

#[tokio::test]
async fn permits_of_a_killed_process_are_free_again_when_its_leases_end() {
    let server = Server::start(Flavor::Valkey9);
    let mut worker = Worker::start("hold", &server.url(), "short_leases", 10);
    worker.expect("ready");
    // It lives on longer than a lease does: it renews.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(state_of(&server, "short_leases").await.remaining, 0);
    worker.kill();
    let state = state_of(&server, "short_leases").await;
    let lease = Duration::from_secs(1);
    assert!(
        state.reset_after.as_duration().unwrap() <= lease,
        "{state:?}"
    );
    tokio::time::sleep(lease).await;
    assert_eq!(state_of(&server, "short_leases").await.remaining, 10);
}

#[test]
fn a_network_that_is_cut_again_and_again_lets_nothing_too_much_pass() {
    let server = Server::start(Flavor::Valkey9);
    let relays = [(); 3].map(|()| Relay::to(server.port()));
    let start = |relay: &Relay| Worker::start("burst", &relay.url(), "sliding_log", 400);
    let mut workers: Vec<Worker> = relays.iter().map(start).collect();
    for worker in &mut workers {
        worker.expect("ready");
    }
    for relay in &relays {
        relay.delay(Duration::from_millis(5));
    }
    for worker in &mut workers {
        worker.go();
    }
    for _ in 0..10 {
        for relay in &relays {
            relay.cut();
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    let (passed, unknown) = workers.iter_mut().fold((0, 0), |sum, worker| {
        let own = worker.expect("passed");
        (sum.0 + own, sum.1 + worker.expect("unknown"))
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let used = u64::from(runtime.block_on(state_of(&server, "sliding_log")).used);
    // What was counted without its caller being told is what got no answer, and at most that.
    assert!(passed <= used && used <= LIMIT.into(), "{passed} {used}");
    assert!(used - passed <= unknown, "{passed} {used} {unknown}");
    let (late, _) = race(vec![Worker::start(
        "burst",
        &server.url(),
        "sliding_log",
        400,
    )]);
    assert_eq!(late, u64::from(LIMIT) - used);
}

#[test]
fn of_killed_processes_that_held_batches_only_those_are_unused_and_nothing_is_too_much() {
    let server = Server::start(Flavor::Valkey9);
    let start = || Worker::start("spend", &server.url(), "to_spend", 0);
    let mut workers = [start(), start(), start()];
    for worker in &mut workers {
        worker.expect("ready");
    }
    for worker in &mut workers {
        worker.go();
    }
    let [mut one, mut other, survivor] = workers;
    // They are in the midst of it.
    for worker in [&mut one, &mut other] {
        worker.output.read_exact(&mut [0; 2_000]).unwrap();
        worker.kill();
    }
    let dots = 4_000 + one.dots() + other.dots() + survivor.dots();
    // Whoever was denied while others held batches leaves the rest to be asked for.
    let rest = Worker::start("spend", &server.url(), "to_spend", 0);
    let mut rest = rest;
    rest.expect("ready");
    rest.go();
    let dots = dots + rest.dots();
    let held = LeaseTokens::new(BATCH, AGE).unwrap().held();
    // A kill may come between a decision and its dot.
    assert!(dots <= TO_SPEND as usize, "{dots} passed");
    let unused = TO_SPEND as usize - dots;
    assert!(unused <= 2 * held as usize + 2, "{unused} are unused");
    eprintln!(
        "{unused} of {TO_SPEND} unused after two kills; the bound is {}",
        2 * held
    );
}

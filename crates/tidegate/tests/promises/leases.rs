//! Never more leases than there are permits, whatever their holders do to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    Admission, Concurrency, Key, Lease, Limiter, ManualClock, Member, Micros, TokenBucket,
    WaitOptions, admit_with, try_admit,
};

use super::support::{at, rate, seeded};

const THREADS: usize = 8;
const LEASE: u64 = 30_000_000;
const HOLD: u64 = 100_000_000;
const PERMITS: u32 = 7;

/// Fails where a test does not end, instead of standing still.
fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let running = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if ended.recv_timeout(Duration::from_secs(60))
        == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
    {
        panic!("a deadlock: the threads did not end");
    }
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Permits that are surely held: counted after they were granted, and no longer before they are
/// given back.
#[derive(Default)]
struct Held(AtomicU64);

impl Held {
    fn took(&self, weight: u32) {
        let before = self.0.fetch_add(u64::from(weight), Ordering::SeqCst);
        let held = before + u64::from(weight);
        assert!(held <= u64::from(PERMITS), "{held} permits of {PERMITS}");
    }

    fn gives_back(&self, weight: u32) {
        self.0.fetch_sub(u64::from(weight), Ordering::SeqCst);
    }
}

fn permits(clock: &Arc<ManualClock>) -> Limiter {
    let policy = Concurrency::new(PERMITS, Micros(LEASE), Some(Micros(HOLD))).unwrap();
    Limiter::builder(policy).clock(clock.clone()).build()
}

/// What one thread does with the permits of one key.
struct Worker<'a> {
    limiter: &'a Limiter,
    held: &'a Held,
    latest_token: &'a AtomicU64,
    may_forget: bool,
}

impl Worker<'_> {
    fn acquire(&self, rng: &mut Rng) -> Option<Lease> {
        let before = self.latest_token.load(Ordering::SeqCst);
        let weight = rng.u32(1..4);
        let lease = if rng.bool() {
            self.limiter.try_acquire("key", weight).ok()?
        } else {
            let options = WaitOptions::new().max_wait(Duration::from_micros(rng.u64(..5_000)));
            let acquired = self.limiter.acquire_blocking_with("key", weight, &options);
            acquired.ok()?
        };
        self.held.took(weight);
        let token = lease.fencing_token();
        assert!(token > before, "{token} after {before} was seen");
        self.latest_token.fetch_max(token, Ordering::SeqCst);
        assert_eq!(lease.weight(), weight);
        Some(lease)
    }

    /// Returns the tokens seen.
    fn work(&self, rng: &mut Rng) -> Vec<u64> {
        let mut tokens = Vec::new();
        let mut mine = Vec::new();
        for _ in 0..60 {
            if let Some(lease) = self.acquire(rng) {
                tokens.push(lease.fencing_token());
                mine.push(lease);
            }
            if mine.len() > 1 || rng.bool() {
                self.end(mine.pop(), rng);
            }
        }
        while let Some(lease) = mine.pop() {
            self.end(Some(lease), rng);
        }
        tokens
    }

    fn end(&self, lease: Option<Lease>, rng: &mut Rng) {
        let Some(lease) = lease else { return };
        match rng.u32(..40) {
            0 if self.may_forget => std::mem::forget(lease),
            choice => {
                assert!(lease.is_live(), "{lease:?}");
                self.held.gives_back(lease.weight());
                if choice % 2 == 0 {
                    assert!(lease.release());
                } else {
                    drop(lease);
                }
            }
        }
    }
}

/// Lets time pass, less than the longest hold in all, until `running` is 0.
fn let_time_pass(clock: &ManualClock, running: &AtomicUsize) {
    let mut passed = 0;
    while running.load(Ordering::SeqCst) > 0 {
        // Small steps once the time is used up: nobody must wait for ever.
        let by = if passed < HOLD / 2 { 5_000 } else { 5 };
        passed += by;
        assert!(passed < HOLD, "the threads take too long");
        clock.advance(Duration::from_micros(by));
        thread::yield_now();
    }
}

fn race(rng: &mut Rng) {
    let clock = Arc::new(ManualClock::new(at(1_000_000_000)));
    let limiter = permits(&clock);
    let latest_token = AtomicU64::new(0);
    let mut tokens = Vec::new();
    for round in 0..12 {
        let held = Held::default();
        let worker = Worker {
            limiter: &limiter,
            held: &held,
            latest_token: &latest_token,
            may_forget: round % 2 == 1,
        };
        let running = AtomicUsize::new(THREADS);
        let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = seeds
                .iter()
                .map(|&seed| {
                    let (worker, running) = (&worker, &running);
                    scope.spawn(move || {
                        let ended = Ended(running);
                        let tokens = worker.work(&mut Rng::with_seed(seed));
                        drop(ended);
                        tokens
                    })
                })
                .collect();
            let_time_pass(&clock, &running);
            for thread in threads {
                let seen = thread.join().unwrap();
                assert!(seen.is_sorted_by(|one, next| one < next));
                tokens.extend(seen);
            }
        });
        let forgotten = held.0.load(Ordering::SeqCst);
        let state = limiter.key("key").state();
        assert_eq!(
            u64::from(state.used),
            forgotten,
            "what is held, and nothing else"
        );
        assert_eq!(state.leases.is_empty(), forgotten == 0);
        if worker.may_forget {
            // They go on renewing themselves, but not beyond the longest hold.
            clock.advance(Duration::from_micros(LEASE + HOLD));
        }
        assert_eq!(limiter.key("key").state().used, 0);
        let all = limiter.try_acquire("key", PERMITS).unwrap();
        latest_token.fetch_max(all.fencing_token(), Ordering::SeqCst);
        tokens.push(all.fencing_token());
    }
    let granted = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), granted, "no token was given twice");
    assert!(granted > 500, "{granted} grants are worth looking at");
}

/// Counts a thread down, also where it fails.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn permits_are_never_held_by_too_many_and_all_come_back() {
    let mut rng = seeded("permits");
    within_a_minute(move || race(&mut rng));
}

#[test]
fn a_lease_that_was_forgotten_ends_with_the_longest_hold_to_the_microsecond() {
    let clock = Arc::new(ManualClock::new(at(1_000_000_000)));
    let limiter = permits(&clock);
    std::mem::forget(limiter.try_acquire("key", PERMITS).unwrap());
    clock.advance(Duration::from_micros(HOLD - 1));
    assert!(limiter.try_acquire("key", 1).is_err());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.try_acquire("key", PERMITS).is_ok());
}

/// Two limits on what is at work, and a rate that never refills: what it has used is how many were
/// admitted.
struct Doors {
    first: Limiter,
    second: Limiter,
    rate: Limiter,
}

impl Doors {
    /// Asks for a place behind both doors, in any order.
    fn admit(&self, places: [Place; 2], rng: &mut Rng) -> Option<Admission> {
        let keys = KEYS.map(Key::new);
        let [one, other] = places;
        let mut members = [
            Member::acquire(&self.first, &keys[one.key], one.weight),
            Member::acquire(&self.second, &keys[other.key], other.weight),
            Member::take(&self.rate, &keys[0], 1),
        ];
        rng.shuffle(&mut members);
        if rng.bool() {
            return try_admit(&members).ok();
        }
        let wait = Duration::from_micros(rng.u64(..20_000));
        let options = WaitOptions::new().max_wait(wait);
        let waiting = admit_with(&members, &options);
        if rng.u32(..4) == 0 {
            // Given up at once, if it does not come through at once.
            return once(waiting)?.ok();
        }
        block_on(waiting).ok()
    }
}

const KEYS: [&str; 2] = ["a", "b"];

/// What is asked of one door.
#[derive(Clone, Copy)]
struct Place {
    key: usize,
    weight: u32,
}

/// Polls once, and gives up.
fn once<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(work).poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut context) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

fn race_through_doors(rng: &mut Rng) {
    let clock = Arc::new(ManualClock::new(at(1_000_000_000)));
    let never_refills = TokenBucket::new(rate(0, 1), 1_000_000).unwrap();
    let doors = Doors {
        first: permits(&clock),
        second: permits(&clock),
        rate: Limiter::builder(never_refills).clock(clock.clone()).build(),
    };
    // By door and key.
    let held: [[Held; 2]; 2] = Default::default();
    let admitted = AtomicU64::new(0);
    let running = AtomicUsize::new(THREADS);
    let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
    thread::scope(|scope| {
        for &seed in &seeds {
            let (doors, running, admitted, held) = (&doors, &running, &admitted, &held);
            scope.spawn(move || {
                let _ended = Ended(running);
                let mut rng = Rng::with_seed(seed);
                for _ in 0..300 {
                    let places = [(); 2].map(|()| Place {
                        key: rng.usize(..2),
                        weight: rng.u32(1..4),
                    });
                    let Some(admission) = doors.admit(places, &mut rng) else {
                        continue;
                    };
                    for (held, place) in held.iter().zip(places) {
                        held[place.key].took(place.weight);
                    }
                    admitted.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(admission.leases().count(), 2);
                    assert!(admission.is_live());
                    if rng.bool() {
                        thread::yield_now();
                    }
                    for (held, place) in held.iter().zip(places) {
                        held[place.key].gives_back(place.weight);
                    }
                    drop(admission);
                }
            });
        }
        let_time_pass(&clock, &running);
    });
    let admitted = admitted.load(Ordering::SeqCst);
    assert!(admitted > 100, "{admitted} admissions are worth looking at");
    let used = doors.rate.key(&Key::new("a")).state().used;
    assert_eq!(
        u64::from(used),
        admitted,
        "the rate is charged for them only"
    );
    for key in KEYS {
        for door in [&doors.first, &doors.second] {
            assert_eq!(door.key(&Key::new(key)).state().used, 0);
            assert_eq!(door.waiting(), 0);
        }
    }
}

#[test]
fn admissions_in_any_order_never_deadlock_and_never_charge_a_rate_for_nothing() {
    let mut rng = seeded("doors");
    within_a_minute(move || race_through_doors(&mut rng));
}

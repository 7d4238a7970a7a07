//! A pool of workers that runs jobs under a rate and a concurrency limit.
//!
//! Every job takes one unit of the rate and holds one of three places while it works; whatever its
//! turn is kept by, it holds nothing meanwhile. A job that loses its place stops. All of it runs in
//! simulated time here, so the minutes of work take no time: `cargo run --example job_worker`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{
    AdmitError, Clock, Concurrency, Key, Limiter, ManualClock, Member, Micros, Rate, Timestamp,
    TokenBucket, WaitOptions, admit_with,
};

/// How many jobs may be at work at once.
const AT_ONCE: usize = 3;

/// How long a job works.
const WORK: Duration = Duration::from_secs(7);

struct Pool {
    /// Two jobs a second may begin.
    rate: Limiter,
    places: Limiter,
    clock: Arc<ManualClock>,
    at_work: AtomicUsize,
    most_at_work: AtomicUsize,
}

impl Pool {
    fn new(clock: &Arc<ManualClock>) -> Result<Self, tidegate::PolicyError> {
        let bucket = TokenBucket::new(Rate::per_second(2)?, 2)?;
        let places = u32::try_from(AT_ONCE).unwrap_or(u32::MAX);
        let leases = Concurrency::new(places, Micros::from_secs(5), None)?;
        Ok(Self {
            rate: Limiter::builder(bucket).clock(clock.clone()).build(),
            places: Limiter::builder(leases).clock(clock.clone()).build(),
            clock: Arc::clone(clock),
            at_work: AtomicUsize::new(0),
            most_at_work: AtomicUsize::new(0),
        })
    }

    /// Runs one job when its turn comes. Returns when it began.
    async fn run(&self) -> Result<Timestamp, AdmitError> {
        let key = Key::new("thumbnails");
        let needs = [
            Member::take(&self.rate, &key, 1),
            Member::acquire(&self.places, &key, 1),
        ];
        let patience = WaitOptions::new().max_wait(Duration::from_secs(3_600));
        let admission = admit_with(&needs, &patience).await?;
        let began = self.clock.now();
        let now = self.at_work.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_work.fetch_max(now, Ordering::SeqCst);
        // The job takes longer than a lease lives: it is renewed meanwhile.
        sleep(&self.clock, WORK).await;
        self.at_work.fetch_sub(1, Ordering::SeqCst);
        assert!(admission.is_live(), "nobody else had this place");
        Ok(began)
    }
}

/// A sleep by the same clock.
async fn sleep(clock: &ManualClock, length: Duration) {
    let end = clock.now().checked_add(Micros::from_duration(length));
    let end = end.unwrap_or(Timestamp::MAX);
    let mut alarm = None;
    std::future::poll_fn(|context| {
        if clock.now() >= end {
            return std::task::Poll::Ready(());
        }
        alarm = Some(clock.wake_at(end, context.waker().clone()));
        std::task::Poll::Pending
    })
    .await;
    drop(alarm);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
    let pool = Arc::new(Pool::new(&clock)?);
    let mut jobs = tokio::task::JoinSet::new();
    for number in 0..30 {
        let pool = Arc::clone(&pool);
        jobs.spawn(async move { (number, pool.run().await) });
    }
    let mut began = Vec::new();
    while began.len() < 30 {
        // Everybody does what can be done now; then time goes on to the next thing to happen.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        while let Some(done) = jobs.try_join_next() {
            let (number, result) = done?;
            began.push((result?, number));
        }
        if let Some(next) = clock.next_alarm() {
            clock.set(next);
        }
    }
    began.sort_unstable();
    let order: Vec<i32> = began.iter().map(|(_, number)| *number).collect();
    assert_eq!(
        order,
        (0..30).collect::<Vec<_>>(),
        "first come, first served"
    );
    assert_eq!(pool.most_at_work.load(Ordering::SeqCst), AT_ONCE);
    for (number, (when, _)) in began.iter().enumerate() {
        let micros = when.as_micros();
        println!("job {number:2} began at {:6.1} s", micros as f64 / 1e6);
    }
    // Three at once, seven seconds each: ten rounds, of which the last begins after nine.
    let last = began.last().map(|(when, _)| when.as_micros());
    assert!(last.is_some_and(|last| (63_000_000..65_000_000).contains(&last)));
    assert_eq!((pool.rate.waiting(), pool.places.waiting()), (0, 0));
    Ok(())
}

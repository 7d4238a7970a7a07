//! What it costs to wait for what is there already: beside `leaky-bucket`
//! and `governor`.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::Result;
use governor::{Quota, RateLimiter};
use tidegate::{Limiter, Rate, TokenBucket};

use crate::measure::{Bench, Contender};
use crate::table::{self, Cell};

/// So much that nobody ever has to wait.
const BURST: u32 = i32::MAX as u32;

/// Measures and prints a table.
pub fn run(bench: &mut Bench) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let _inside = runtime.enter();
    let rate = Rate::per_second(1)?;
    let tidegate = Limiter::new(TokenBucket::new(rate, BURST)?);
    let one = NonZeroU32::new(1).expect("it is not zero");
    let burst = NonZeroU32::new(BURST).expect("it is not zero");
    let governor = RateLimiter::direct(Quota::per_second(one).allow_burst(burst));
    let leaky = leaky_bucket::RateLimiter::builder()
        .max(BURST as usize)
        .initial(BURST as usize)
        .refill(1)
        .interval(Duration::from_secs(1))
        .build();
    let names = ["tidegate", "leaky-bucket", "governor direct"];
    let contenders = [
        Contender::new(names[0], |calls| {
            runtime.block_on(timed(calls, async || {
                tidegate.until_ready("k", 1).await.expect("it is there");
            }))
        }),
        Contender::new(names[1], |calls| {
            runtime.block_on(timed(calls, async || leaky.acquire(1).await))
        }),
        Contender::new(names[2], |calls| {
            runtime.block_on(timed(calls, async || governor.until_ready().await))
        }),
    ];
    let work = "waiting for what is there";
    let times = bench.medians(work, &contenders)?;
    let cells = names.into_iter().zip(times);
    let cells = cells.map(|(name, time)| Cell::new(name, time, None));
    table::print("ns per call", &[(work, cells.collect())], bench.rounds());
    Ok(())
}

async fn timed(calls: u64, call: impl AsyncFn()) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        call().await;
    }
    start.elapsed()
}

//! What the machine allows: the pieces that no decision can do without.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use tidegate::{Clock as _, SystemClock};
use tidegate_store::KeyHasher;

use crate::keys::Random;
use crate::measure::{Bench, Contender};

/// Measures them and prints a table.
pub fn run(bench: &mut Bench) -> Result<()> {
    let clock = SystemClock::new();
    let hasher = KeyHasher::random();
    let word = AtomicU64::new(0);
    let sizes = [33_usize, 390].map(|megabytes| (megabytes, ring(megabytes)));
    let names = sizes
        .each_ref()
        .map(|(megabytes, _)| format!("a read that waits for the one before, in {megabytes} MB"));
    let mut contenders = vec![
        repeated("reading the system clock (tidegate)", |_| {
            clock.now().as_micros()
        }),
        repeated("reading the system clock (std)", |_| {
            std::time::SystemTime::now()
                .elapsed()
                .map_or(0, |gone| u64::from(gone.subsec_nanos()))
        }),
        repeated("hashing eight bytes (SipHash-1-3)", |call| {
            hasher.hash_part(&call.to_le_bytes()).get()
        }),
        repeated("an uncontended compare-and-swap", |_| {
            let old = word.load(Ordering::Relaxed);
            word.compare_exchange(old, old + 1, Ordering::AcqRel, Ordering::Relaxed)
                .unwrap_or(0)
        }),
    ];
    for ((_, ring), name) in sizes.iter().zip(&names) {
        contenders.push(Contender::new(name, move |calls| {
            let start = Instant::now();
            let mut place = 0;
            for _ in 0..calls {
                place = ring[place as usize][0];
            }
            std::hint::black_box(place);
            start.elapsed()
        }));
    }
    let medians = bench.medians("machine", &contenders)?;
    println!("\n| what the machine allows | ns |\n|---|---:|");
    for (contender, nanoseconds) in contenders.iter().zip(medians) {
        println!("| {} | {nanoseconds:.1} |", contender.name);
    }
    Ok(())
}

fn repeated<'a>(name: &'a str, call: impl Fn(u64) -> u64 + 'a) -> Contender<'a> {
    Contender::new(name, move |calls| {
        let start = Instant::now();
        for number in 0..calls {
            std::hint::black_box(call(number));
        }
        start.elapsed()
    })
}

/// Cache lines that lead from one to the next in no order, through all of them.
fn ring(megabytes: usize) -> Vec<[u32; 16]> {
    let lines = megabytes * 1_000_000 / 64;
    let mut order: Vec<u32> = (0..).take(lines).collect();
    // Sattolo's shuffle: one cycle through everything.
    let mut random = Random::new(0);
    for place in (1..lines).rev() {
        let other = ((u128::from(random.next()) * place as u128) >> 64) as usize;
        order.swap(place, other);
    }
    order
        .into_iter()
        .map(|next| {
            let mut line = [0; 16];
            line[0] = next;
            line
        })
        .collect()
}

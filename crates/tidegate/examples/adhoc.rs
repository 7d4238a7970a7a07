use std::hint::black_box;
use std::time::Instant;
use tidegate::*;
fn main() {
    let now0 = SystemClock::new();
    let n = 10_000_000u64;
    let t = Instant::now();
    let mut x = 0;
    for _ in 0..n {
        x ^= now0.now().as_micros();
    }
    black_box(x);
    println!("clock {:.1} ns", t.elapsed().as_nanos() as f64 / n as f64);
    let l = Limiter::new(
        TokenBucket::new(Rate::new(1_000_000_000, 1_000_000).unwrap(), 1_000_000_000).unwrap(),
    );
    let t = Instant::now();
    for _ in 0..n {
        black_box(l.try_take("user-7", 1));
    }
    println!("one key {:.1} ns", t.elapsed().as_nanos() as f64 / n as f64);
    let k = Key::new("user-7");
    let now = l.now();
    let t = Instant::now();
    for _ in 0..n {
        black_box(l.try_take_at(&k, 1, now));
    }
    println!(
        "one key, no clock {:.1} ns",
        t.elapsed().as_nanos() as f64 / n as f64
    );
    let l0 = Limiter::new(TokenBucket::new(Rate::new(1, 1_000_000_000).unwrap(), 1).unwrap());
    l0.try_take("user-7", 1);
    let t = Instant::now();
    for _ in 0..n {
        black_box(l0.try_take("user-7", 1));
    }
    println!(
        "one key denied {:.1} ns",
        t.elapsed().as_nanos() as f64 / n as f64
    );
    for threads in [2] {
        let t = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| {
                    for _ in 0..n {
                        black_box(l.try_take("user-7", 1));
                    }
                });
            }
        });
        println!(
            "hot key, {threads} threads {:.1} ns per op wall/ops",
            t.elapsed().as_nanos() as f64 / (n * threads) as f64
        );
    }
    for keys in [1_000u64, 1_000_000, 10_000_000] {
        let l = Limiter::builder(
            TokenBucket::new(Rate::new(100, 3_600_000_000).unwrap(), 1_000).unwrap(),
        )
        .max_keys(keys as usize * 2)
        .build();
        let mut worst = 0;
        let start = Instant::now();
        for i in 0..keys {
            let t = Instant::now();
            l.try_take(i.to_le_bytes(), 1);
            worst = worst.max(t.elapsed().as_nanos());
        }
        println!(
            "{keys} keys: fill {:.1} ns/op worst {} us, bytes/key {:.1}",
            start.elapsed().as_nanos() as f64 / keys as f64,
            worst / 1000,
            l.stats().table_bytes as f64 / l.len() as f64
        );
        let m = 5_000_000u64;
        let mut r = 88172645463325252u64;
        let t = Instant::now();
        for _ in 0..m {
            r ^= r << 13;
            r ^= r >> 7;
            r ^= r << 17;
            black_box(l.try_take((r % keys).to_le_bytes(), 1));
        }
        println!(
            "   uniform {:.1} ns",
            t.elapsed().as_nanos() as f64 / m as f64
        );
        let t = Instant::now();
        std::thread::scope(|s| {
            for th in 0..2u64 {
                let l = &l;
                s.spawn(move || {
                    let mut r = 88172645463325252u64 ^ (th * 7919);
                    for _ in 0..m {
                        r ^= r << 13;
                        r ^= r >> 7;
                        r ^= r << 17;
                        black_box(l.try_take((r % keys).to_le_bytes(), 1));
                    }
                });
            }
        });
        println!(
            "   2 threads {:.1} ns",
            t.elapsed().as_nanos() as f64 / (m * 2) as f64
        );
    }
}

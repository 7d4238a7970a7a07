//! The blocking methods, with real threads and real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{
    Clock as _, Concurrency, Key, Limiter, ManualClock, Member, Micros, Rate, SlidingLog,
    Timestamp, TokenBucket, WaitError, WaitOptions, admit_blocking,
};

#[test]
fn threads_that_wait_are_paced_and_all_are_served() {
    let limiter = Limiter::new(TokenBucket::new(Rate::per_second(1_000).unwrap(), 1).unwrap());
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    limiter.wait_blocking("key", 1).unwrap();
                }
            });
        }
    });
    assert!(start.elapsed() >= Duration::from_micros(38_999));
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn charges_of_waiting_threads_obey_the_window_to_the_microsecond() {
    let limiter = Limiter::new(SlidingLog::new(3, Micros::from_millis(5)).unwrap());
    let mut charged: Vec<Timestamp> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    (0..6)
                        .map(|_| limiter.wait_blocking("key", 1).unwrap().at)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    charged.sort_unstable();
    for four in charged.windows(4) {
        assert!(
            four[3].as_micros() - four[0].as_micros() >= 5_000,
            "{four:?}"
        );
    }
}

#[test]
fn blocked_threads_live_in_simulated_time_too() {
    let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
    let bucket = TokenBucket::new(Rate::new(1, 3_600_000_000).unwrap(), 1).unwrap();
    let limiter = Limiter::builder(bucket).clock(clock.clone()).build();
    let served = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                limiter.wait_blocking("key", 1).unwrap();
                served.fetch_add(1, Ordering::SeqCst);
            });
        }
        // One need not wait. Four hours go by in no time for the others.
        while limiter.waiting() < 4 {
            thread::yield_now();
        }
        for already in 1..5 {
            clock.set(clock.next_alarm().unwrap());
            // Whoever is woken gets to run before time goes on.
            while served.load(Ordering::SeqCst) == already {
                thread::yield_now();
            }
        }
    });
    assert_eq!(clock.now().as_micros(), 4 * 3_600_000_000);
}

#[test]
fn never_more_threads_at_work_than_there_are_leases() {
    let limiter = Limiter::new(Concurrency::new(3, Micros::from_secs(60), None).unwrap());
    let (at_work, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for thread in 0..8_u32 {
            let (limiter, at_work, most) = (&limiter, &at_work, &most);
            scope.spawn(move || {
                for round in 0..200 {
                    let weight = 1 + (thread + round) % 3;
                    let lease = limiter.acquire_blocking("key", weight).unwrap();
                    let weight = usize::try_from(lease.weight()).unwrap();
                    let now = at_work.fetch_add(weight, Ordering::SeqCst) + weight;
                    most.fetch_max(now, Ordering::SeqCst);
                    thread::yield_now();
                    at_work.fetch_sub(weight, Ordering::SeqCst);
                    assert!(lease.release());
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3);
    let state = limiter.key("key").state();
    assert_eq!((state.used, limiter.waiting()), (0, 0));
}

#[test]
fn threads_that_want_the_same_things_in_another_order_all_get_them() {
    let lease = || Limiter::new(Concurrency::new(1, Micros::from_secs(60), None).unwrap());
    let (left, right) = (lease(), lease());
    let rate = Limiter::new(TokenBucket::new(Rate::per_second(1_000_000).unwrap(), 2).unwrap());
    let key = Key::new("key");
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (left, right, rate, key, inside) = (&left, &right, &rate, &key, &inside);
            scope.spawn(move || {
                let mut members = [
                    Member::acquire(left, key, 1),
                    Member::take(rate, key, 1),
                    Member::acquire(right, key, 1),
                ];
                if thread % 2 == 0 {
                    members.reverse();
                }
                for _ in 0..100 {
                    let admission = admit_blocking(&members, &WaitOptions::new()).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(admission);
                }
            });
        }
    });
    assert_eq!((left.waiting(), right.waiting(), rate.waiting()), (0, 0, 0));
}

#[test]
fn a_thread_waits_no_longer_than_it_said() {
    let limiter = Limiter::new(Concurrency::new(1, Micros::from_secs(60), None).unwrap());
    let _held = limiter.try_acquire("key", 1).unwrap();
    let options = WaitOptions::new().max_wait(Duration::from_millis(20));
    let start = Instant::now();
    let waited = limiter.acquire_blocking_with("key", 1, &options);
    assert!(matches!(waited, Err(WaitError::Elapsed { .. })));
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(limiter.waiting(), 0);
}

//! The queues of waiting callers under shuttle: thousands of schedules of a few threads, switched
//! at every lock. A wake-up that got lost would leave a thread parked for ever, which shuttle
//! reports as a deadlock. `cargo test -p tidegate --features shuttle --test waiting_interleavings`.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use tidegate::{
    ChangeMode, Clock as _, Concurrency, Key, Limiter, ManualClock, Member, Micros, Policy, Rate,
    SlidingLog, Timestamp, TokenBucket, WaitError, WaitOptions, admit_blocking,
};

const SCHEDULES: usize = 1_500;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(
        Timestamp::from_micros(10_000_000).unwrap(),
    ))
}

fn limiter(policy: impl Into<Policy>, clock: &Arc<ManualClock>) -> Limiter {
    Limiter::builder(policy)
        .clock(clock.clone())
        .hash_seed((1, 2))
        .build()
}

fn leases(limit: u32) -> Policy {
    // So long that no renewal gets in the way.
    Concurrency::new(limit, Micros::from_secs(1_000_000), None)
        .unwrap()
        .into()
}

fn bucket() -> Policy {
    let rate = Rate::new(1, 1_000).unwrap();
    TokenBucket::new(rate, 1).unwrap().into()
}

fn log() -> Policy {
    SlidingLog::new(1, Micros(1_000)).unwrap().into()
}

/// Lets time pass, alarm by alarm, while others wait.
fn let_time_pass(clock: &ManualClock, until: impl Fn() -> bool) {
    while !until() {
        if let Some(next) = clock.next_alarm() {
            clock.set(next);
        }
        thread::yield_now();
    }
}

/// Polls once, and then never again.
fn poll_once<T>(work: impl Future<Output = T>) -> Option<T> {
    struct Nobody;
    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }
    let waker = Waker::from(Arc::new(Nobody));
    match pin!(work).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// `booked` says whether the limit lends: then the times are exact however late a thread is woken.
fn units_wait_for_each_other(policy: fn() -> Policy, booked: bool) {
    shuttle::check_random(
        move || {
            let clock = clock();
            let limiter = limiter(policy(), &clock);
            let served = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (limiter, served) = (limiter.clone(), Arc::clone(&served));
                    thread::spawn(move || {
                        let decision = limiter.wait_blocking("key", 1).unwrap();
                        served.fetch_add(1, Ordering::SeqCst);
                        decision.at.as_micros()
                    })
                })
                .collect();
            let_time_pass(&clock, || served.load(Ordering::SeqCst) == 3);
            let mut times: Vec<u64> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            times.sort_unstable();
            if booked {
                assert_eq!(times, [10_000_000, 10_001_000, 10_002_000]);
            }
            for two in times.windows(2) {
                assert!(two[1] - two[0] >= 1_000, "{times:?}");
            }
            assert_eq!(limiter.waiting(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn threads_at_a_bucket_are_all_served_in_time() {
    units_wait_for_each_other(bucket, true);
}

#[test]
fn threads_at_a_window_are_all_served_and_none_too_early() {
    units_wait_for_each_other(log, false);
}

#[test]
fn leases_go_from_hand_to_hand_and_no_wake_up_is_lost() {
    shuttle::check_random(
        || {
            let clock = clock();
            let limiter = limiter(leases(1), &clock);
            let inside = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (limiter, inside) = (limiter.clone(), Arc::clone(&inside));
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let lease = limiter.acquire_blocking("key", 1).unwrap();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            assert!(lease.release());
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(limiter.waiting(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn who_gives_up_at_any_moment_passes_the_wake_up_on() {
    shuttle::check_random(
        || {
            let clock = clock();
            let limiter = limiter(leases(1), &clock);
            let held = limiter.try_acquire("key", 1).unwrap();
            let quitter = {
                let limiter = limiter.clone();
                // It looks once and goes: before, while or after the lease is given back.
                thread::spawn(move || drop(poll_once(limiter.acquire("key", 1))))
            };
            let waiting = {
                let limiter = limiter.clone();
                thread::spawn(move || drop(limiter.acquire_blocking("key", 1).unwrap()))
            };
            drop(held);
            quitter.join().unwrap();
            waiting.join().unwrap();
            assert_eq!(limiter.waiting(), 0);
            let state = limiter.key("key").state();
            assert_eq!(state.used, 0);
        },
        SCHEDULES,
    );
}

#[test]
fn a_change_reaches_a_caller_that_is_just_going_to_wait() {
    shuttle::check_random(
        || {
            let clock = clock();
            let never = TokenBucket::new(Rate::new(1, 1_000_000_000_000).unwrap(), 1).unwrap();
            let limiter = limiter(never, &clock);
            assert!(limiter.try_take("key", 1).is_allowed());
            let waiting = {
                let limiter = limiter.clone();
                thread::spawn(move || limiter.wait_blocking("key", 1).unwrap())
            };
            // Whatever comes first, the caller passes without time going on.
            let wide = TokenBucket::new(Rate::new(1, 1_000_000_000_000).unwrap(), 2).unwrap();
            limiter.change(wide.into(), ChangeMode::KeepUsed, clock.now());
            assert!(waiting.join().unwrap().is_allowed());
        },
        SCHEDULES,
    );
}

#[test]
fn admissions_in_either_order_never_stand_still() {
    shuttle::check_random(
        || {
            let clock = clock();
            let (left, right) = (limiter(leases(1), &clock), limiter(leases(1), &clock));
            let threads: Vec<_> = [false, true, false]
                .into_iter()
                .map(|reversed| {
                    let (left, right) = (left.clone(), right.clone());
                    thread::spawn(move || {
                        let key = Key::new("key");
                        let mut members = [
                            Member::acquire(&left, &key, 1),
                            Member::acquire(&right, &key, 1),
                        ];
                        if reversed {
                            members.reverse();
                        }
                        drop(admit_blocking(&members, &WaitOptions::new()).unwrap());
                    })
                })
                .collect();
            // Somebody wants one of them alone.
            drop(right.acquire_blocking("key", 1).unwrap());
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!((left.waiting(), right.waiting()), (0, 0));
        },
        SCHEDULES,
    );
}

#[test]
fn a_deadline_and_a_release_at_the_same_moment_leave_no_lease_behind() {
    shuttle::check_random(
        || {
            let clock = clock();
            let limiter = limiter(leases(1), &clock);
            let held = limiter.try_acquire("key", 1).unwrap();
            let waiting = {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    let options = WaitOptions::new().max_wait(Duration::from_millis(1));
                    match limiter.acquire_blocking_with("key", 1, &options) {
                        Ok(lease) => drop(lease),
                        Err(error) => assert!(matches!(error, WaitError::Elapsed { .. })),
                    }
                })
            };
            let timer = {
                let clock = clock.clone();
                thread::spawn(move || clock.advance(Duration::from_millis(1)))
            };
            drop(held);
            timer.join().unwrap();
            // If it came after that millisecond it waits for the next one.
            clock.advance(Duration::from_millis(1));
            waiting.join().unwrap();
            let state = limiter.key("key").state();
            assert_eq!((state.used, limiter.waiting()), (0, 0));
        },
        SCHEDULES,
    );
}

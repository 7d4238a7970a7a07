//! Those who wait are served in turn, at the microsecond that a naive queue says, and leave the
//! key as if only they who were served had ever been there.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    Align, Clock as _, Decision, FixedWindow, IntervalBucket, Limiter, ManualClock, Micros, Policy,
    SlidingLog, StrictWindow, Timestamp, TokenBucket, WaitError, WaitOptions,
};

use super::support::{at, most_within, rate, seeded};

const PERIOD: u64 = 9_973;
const START: u64 = 1_000_000_000;

type Answer = Result<Decision, WaitError>;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A caller that waits; it is polled only when it was woken, so a lost wake-up leaves it for ever.
struct Caller {
    number: usize,
    woken: Arc<Woken>,
    work: Pin<Box<dyn Future<Output = Answer>>>,
}

/// What a caller asks for, and when.
#[derive(Clone, Copy, Debug)]
struct Ask {
    at: u64,
    cost: u32,
    max_wait: Option<u64>,
    /// When it gives up, if it is not through by then.
    gives_up: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Served(u64),
    Refused,
    GaveUp,
}

fn policies(rng: &mut Rng) -> Vec<Policy> {
    let (n, capacity) = (rng.u32(1..7), rng.u32(4..9));
    let period = Micros(PERIOD);
    vec![
        TokenBucket::new(rate(n, PERIOD), capacity).unwrap().into(),
        IntervalBucket::new(rate(n, PERIOD), capacity)
            .unwrap()
            .into(),
        SlidingLog::new(capacity, period).unwrap().into(),
        StrictWindow::new(capacity, period, 9).unwrap().into(),
        FixedWindow::new(capacity, period, Align::Epoch)
            .unwrap()
            .into(),
        FixedWindow::new(capacity, period, Align::FirstUse)
            .unwrap()
            .into(),
    ]
}

/// Callers in the order in which they come, up to ten of them at once.
fn asks(rng: &mut Rng, patient: bool, drops: bool) -> Vec<Ask> {
    let mut now = START;
    (0..60)
        .map(|_| {
            if rng.u32(..3) > 0 {
                now += rng.u64(..PERIOD);
            }
            Ask {
                at: now,
                cost: if rng.u32(..5) == 0 { 4 } else { rng.u32(..3) },
                max_wait: (!patient && rng.bool()).then(|| rng.u64(..PERIOD * 4)),
                gives_up: (drops && rng.u32(..3) == 0).then(|| now + rng.u64(..PERIOD * 4)),
            }
        })
        .collect()
}

/// What became of each, and the time at the end.
fn run(limiter: &Limiter, clock: &ManualClock, asks: &[Ask], rng: &mut Rng) -> (Vec<Fate>, u64) {
    let mut fates: Vec<Option<Fate>> = vec![None; asks.len()];
    let mut callers: Vec<Caller> = Vec::new();
    let mut coming: VecDeque<usize> = (0..asks.len()).collect();
    loop {
        let mut progress = true;
        while progress {
            progress = false;
            rng.shuffle(&mut callers);
            callers.retain_mut(|caller| {
                if !caller.woken.0.swap(false, Ordering::SeqCst) {
                    return true;
                }
                progress = true;
                let waker = Waker::from(Arc::clone(&caller.woken));
                match caller.work.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => true,
                    Poll::Ready(answer) => {
                        fates[caller.number] = Some(answer.map_or(Fate::Refused, |decision| {
                            Fate::Served(decision.at.as_micros())
                        }));
                        false
                    }
                }
            });
        }
        let now = clock.now().as_micros();
        let giving_up = |caller: &Caller| asks[caller.number].gives_up;
        if let Some(index) = callers
            .iter()
            .position(|caller| giving_up(caller).is_some_and(|end| end <= now))
        {
            let caller = callers.swap_remove(index);
            fates[caller.number] = Some(Fate::GaveUp);
            continue;
        }
        if let Some(number) = coming.pop_front_if(|number| asks[*number].at <= now) {
            let ask = &asks[number];
            let options = ask.max_wait.map_or_else(WaitOptions::new, |wait| {
                WaitOptions::new().max_wait(Duration::from_micros(wait))
            });
            let woken = Arc::new(Woken(AtomicBool::new(true)));
            let work = Box::pin(limiter.until_ready_with("key", ask.cost, &options));
            callers.push(Caller {
                number,
                woken,
                work,
            });
            continue;
        }
        let arrival = coming.front().map(|number| asks[*number].at);
        let alarm = clock.next_alarm().map(Timestamp::as_micros);
        let quitting = callers.iter().filter_map(giving_up).min();
        let Some(next) = [arrival, alarm, quitting].into_iter().flatten().min() else {
            break;
        };
        clock.advance(Duration::from_micros(next - now));
    }
    assert!(callers.is_empty(), "a caller is left that nobody will wake");
    assert_eq!(limiter.waiting(), 0);
    let fates = fates.into_iter().map(Option::unwrap).collect();
    (fates, clock.now().as_micros())
}

/// A queue in which nobody gives up: each is served at the first moment after the one before at
/// which a limiter of the same numbers lets it pass.
fn naive(policy: &Policy, asks: &[Ask]) -> Vec<Fate> {
    let limiter = Limiter::new(policy.clone());
    let mut free = 0;
    asks.iter()
        .map(|ask| {
            let mut turn = ask.at.max(free);
            let wait = limiter.key("key").at(at(turn)).peek(ask.cost).retry_after;
            turn += wait.as_micros().expect("all costs are possible");
            if ask.max_wait.is_some_and(|most| turn - ask.at > most) {
                return Fate::Refused;
            }
            free = turn;
            assert!(limiter.try_take_at("key", ask.cost, at(turn)).is_allowed());
            Fate::Served(turn)
        })
        .collect()
}

fn simulated(policy: &Policy) -> (Limiter, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(at(START)));
    let builder = Limiter::builder(policy.clone()).clock(clock.clone());
    (builder.build(), clock)
}

/// Whether the key stands as if only those who were served had taken, at their times.
fn check_twin(limiter: &Limiter, served: &mut [(u64, u64)], now: u64) {
    served.sort_by_key(|(time, _)| *time);
    let twin = Limiter::new(limiter.policy());
    for &(time, cost) in served.iter() {
        let cost = u32::try_from(cost).unwrap();
        let taken = twin.try_take_at("key", cost, at(time));
        assert!(taken.is_allowed(), "{served:?} {:?}", limiter.policy());
    }
    let state = limiter.key("key").at(at(now)).state();
    let expected = twin.key("key").at(at(now)).state();
    let seen = |state: &tidegate::KeyState| (state.used, state.remaining, state.reset_after);
    assert_eq!(
        seen(&state),
        seen(&expected),
        "{served:?} {:?}",
        limiter.policy()
    );
}

fn served(asks: &[Ask], fates: &[Fate]) -> Vec<(u64, u64)> {
    let both = asks.iter().zip(fates);
    both.filter_map(|(ask, fate)| match fate {
        Fate::Served(time) => Some((*time, u64::from(ask.cost))),
        Fate::Refused | Fate::GaveUp => None,
    })
    .collect()
}

fn check_bound(policy: &Policy, calls: &[(u64, u64)]) {
    let p = PERIOD;
    for window in [1, p / 2, p, p + 1, 3 * p] {
        let (most, over) = (most_within(calls, window), (window - 1).div_ceil(p));
        let allowed = match policy {
            Policy::TokenBucket(bucket) => {
                u64::from(bucket.capacity()) + (window - 1) * u64::from(bucket.rate().count()) / p
            }
            Policy::IntervalBucket(bucket) => {
                let refill = bucket.rate().count().min(bucket.capacity());
                u64::from(bucket.capacity()) + u64::from(refill) * over
            }
            Policy::SlidingLog(log) => u64::from(log.max()) * window.div_ceil(p),
            Policy::StrictWindow(strict) => u64::from(strict.max()) * window.div_ceil(p),
            Policy::FixedWindow(fixed) => u64::from(fixed.max()) * (over + 1),
            other => unreachable!("{other:?} is not among these"),
        };
        assert!(most <= allowed, "{most} in {window} us by {policy:?}");
    }
}

#[test]
fn everybody_is_served_at_the_moment_that_a_naive_queue_says() {
    let mut rng = seeded("naive queue");
    for round in 0..40 {
        for policy in policies(&mut rng) {
            let asks = asks(&mut rng, round % 2 == 0, false);
            let (limiter, clock) = simulated(&policy);
            let (fates, end) = run(&limiter, &clock, &asks, &mut rng);
            for ((ask, seen), expected) in asks.iter().zip(&fates).zip(naive(&policy, &asks)) {
                assert_eq!(*seen, expected, "{ask:?} by {policy:?}");
            }
            let mut served = served(&asks, &fates);
            check_bound(&policy, &served);
            check_twin(&limiter, &mut served, end);
        }
    }
}

#[test]
fn who_gives_up_is_forgotten_and_nobody_else_is_lost() {
    let mut rng = seeded("giving up");
    let mut gave_up = 0;
    for round in 0..40 {
        for policy in policies(&mut rng) {
            let patient = round % 2 == 0;
            let asks = asks(&mut rng, patient, true);
            let (limiter, clock) = simulated(&policy);
            let (fates, end) = run(&limiter, &clock, &asks, &mut rng);
            gave_up += fates.iter().filter(|fate| **fate == Fate::GaveUp).count();
            let mut last = 0;
            for (ask, fate) in asks.iter().zip(&fates) {
                if let Fate::Served(time) = fate {
                    assert!(*time >= last, "{ask:?} passed somebody by {policy:?}");
                    assert!(ask.max_wait.is_none_or(|most| time - ask.at <= most));
                    last = *time;
                }
                assert!(*fate != Fate::Refused || ask.max_wait.is_some());
            }
            // Whom others make room for is served no later.
            if patient && matches!(policy, Policy::TokenBucket(_) | Policy::SlidingLog(_)) {
                for (seen, without) in fates.iter().zip(naive(&policy, &asks)) {
                    if let (Fate::Served(seen), Fate::Served(without)) = (seen, without) {
                        assert!(*seen <= without, "{policy:?}");
                    }
                }
            }
            let mut served = served(&asks, &fates);
            check_bound(&policy, &served);
            check_twin(&limiter, &mut served, end);
        }
    }
    assert!(gave_up > 100, "{gave_up} that gave up are worth looking at");
}

#[test]
fn a_large_cost_among_many_small_ones_is_served_in_turn() {
    for policy in policies(&mut seeded("large cost")) {
        let asks: Vec<Ask> = (0..200)
            .map(|number| Ask {
                at: START + number * PERIOD / 40,
                cost: if number == 20 { 4 } else { 1 },
                max_wait: None,
                gives_up: None,
            })
            .collect();
        let (limiter, clock) = simulated(&policy);
        let (fates, _) = run(&limiter, &clock, &asks, &mut Rng::with_seed(1));
        let times: Vec<u64> = served(&asks, &fates).iter().map(|call| call.0).collect();
        assert_eq!(times.len(), asks.len());
        assert!(times.is_sorted(), "{times:?} by {policy:?}");
    }
}

#[test]
fn threads_that_wait_all_end_and_leave_what_they_took() {
    const THREADS: usize = 8;
    let mut rng = seeded("waiting threads");
    for policy in policies(&mut rng) {
        let (limiter, clock) = simulated(&policy);
        let running = AtomicUsize::new(THREADS);
        let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
        let mut served: Vec<(u64, u64)> = thread::scope(|scope| {
            let threads: Vec<_> = seeds
                .iter()
                .map(|&seed| {
                    let (limiter, running) = (&limiter, &running);
                    scope.spawn(move || {
                        let mut rng = Rng::with_seed(seed);
                        let mut served = Vec::new();
                        // All in less than a second: a thread that is not run for longer than that
                        // would come with a time that is taken for a correction of the clock.
                        for _ in 0..4 {
                            let cost = rng.u32(1..4);
                            let options = match rng.u32(..3) {
                                0 => WaitOptions::new()
                                    .max_wait(Duration::from_micros(rng.u64(..PERIOD * 6))),
                                _ => WaitOptions::new(),
                            };
                            let answer = limiter.wait_blocking_with("key", cost, &options);
                            if let Ok(decision) = answer {
                                served.push((decision.at.as_micros(), u64::from(cost)));
                            }
                        }
                        running.fetch_sub(1, Ordering::SeqCst);
                        served
                    })
                })
                .collect();
            while running.load(Ordering::SeqCst) > 0 {
                let now = clock.now();
                match clock.next_alarm() {
                    Some(next) if rng.bool() => {
                        let by = next.as_micros().saturating_sub(now.as_micros());
                        clock.advance(Duration::from_micros(by));
                    }
                    Some(_) => clock.advance(Duration::from_micros(rng.u64(..PERIOD / 5))),
                    None => thread::yield_now(),
                }
            }
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!((limiter.waiting(), limiter.rebased()), (0, 0));
        check_bound(&policy, &served);
        check_twin(&limiter, &mut served, clock.now().as_micros());
    }
}

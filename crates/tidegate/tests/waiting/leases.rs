//! Leases as guards: renewed, lost, given back, waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tidegate::{
    ChangeMode, Clock as _, Concurrency, Key, Lease, LeaseGrant, LeaseId, Lessor, Limiter, Loss,
    ManualClock, Micros, Mode, Operation, Renewal, TokenBucket, WaitError, WaitOptions,
};

use super::simulation::{Simulation, at};

type Waited = Result<Lease, WaitError>;

const START: u64 = 50_000_000;
const SECOND: u64 = 1_000_000;

fn leases(limit: u32, seconds: u64, max_hold: Option<u64>) -> Concurrency {
    let max_hold = max_hold.map(Micros::from_secs);
    Concurrency::new(limit, Micros::from_secs(seconds), max_hold).unwrap()
}

fn limiter(limit: Concurrency, clock: &Arc<ManualClock>) -> Limiter {
    Limiter::builder(limit).clock(clock.clone()).build()
}

fn standing(limit: Concurrency) -> (Arc<ManualClock>, Limiter) {
    let clock = Arc::new(ManualClock::new(at(START)));
    let limiter = limiter(limit, &clock);
    (clock, limiter)
}

fn live(limiter: &Limiter) -> Vec<LeaseGrant> {
    limiter.key("key").state().leases
}

fn acquire(limiter: &Limiter, weight: u32) -> impl Future<Output = Waited> + 'static {
    let limiter = limiter.clone();
    async move { limiter.acquire("key", weight).await }
}

fn acquired(simulation: &Simulation<'_, Waited>, task: usize) -> bool {
    matches!(simulation.done(task), Some((Ok(_), _)))
}

fn is_lost(lease: &Lease) -> Option<Loss> {
    let mut simulation = Simulation::new(0, 0);
    let task = simulation.spawn(lease.lost());
    simulation.done(task).map(|(loss, _)| *loss)
}

#[test]
fn a_lease_lives_as_long_as_it_is_held_and_is_free_the_moment_it_is_dropped() {
    let (clock, limiter) = standing(leases(1, 30, None));
    let lease = limiter.try_acquire("key", 1).unwrap();
    assert_eq!(lease.expires_at(), at(START + 30 * SECOND));
    for _ in 0..100 {
        clock.advance(Duration::from_secs(3_600));
        assert!(lease.is_live());
        assert!(matches!(
            limiter.try_acquire("key", 1),
            Err(WaitError::Denied(_))
        ));
    }
    let left = lease.expires_at().as_micros() - clock.now().as_micros();
    assert!(left > 20 * SECOND - 1, "renewed at a third: {left} us left");
    drop(lease);
    assert_eq!(limiter.key("key").state().used, 0);
    assert_eq!(clock.next_alarm(), None, "nobody keeps what is given back");
}

#[test]
fn a_lease_is_renewed_at_a_third_of_its_time() {
    let (clock, limiter) = standing(leases(1, 30, None));
    let lease = limiter.try_acquire("key", 1).unwrap();
    assert_eq!(clock.next_alarm(), Some(at(START + 10 * SECOND)));
    clock.advance(Duration::from_secs(10));
    assert_eq!(lease.expires_at(), at(START + 40 * SECOND));
    assert_eq!(live(&limiter)[0].expires_at, lease.expires_at());
    assert_eq!(clock.next_alarm(), Some(at(START + 20 * SECOND)));
}

#[test]
fn a_process_that_was_paused_has_lost_its_leases_and_is_told() {
    let (clock, limiter) = standing(leases(1, 30, None));
    let lease = limiter.try_acquire("key", 1).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    lease.on_lost(move |loss| {
        assert_eq!(loss, Loss::Expired);
        count.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!((lease.loss(), is_lost(&lease)), (None, None));
    clock.set(at(START + 30 * SECOND));
    assert!(!lease.is_live());
    assert_eq!(is_lost(&lease), Some(Loss::Expired));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    // Another one has it by now; the late release takes nothing from that one.
    let other = limiter.try_acquire("key", 1).unwrap();
    assert!(other.fencing_token() > lease.fencing_token());
    assert!(!lease.release());
    assert!(other.is_live());
    assert_eq!(live(&limiter).len(), 1);
    // Who asks after the fact is told at once.
    clock.set(at(START + 100 * SECOND));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    other.on_lost(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_lease_expires_by_the_clock_before_anybody_has_noticed() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let silent = Arc::new(Scripted {
        clock: clock.clone(),
        renewals: AtomicUsize::new(0),
        released: AtomicUsize::new(0),
    });
    let lease = Lease::new(grant(30), silent.clone());
    // Its renewals are never answered, and it still ends in time.
    clock.advance(Duration::from_micros(30 * SECOND - 1));
    assert!(lease.is_live());
    clock.advance(Duration::from_micros(1));
    assert_eq!(lease.loss(), Some(Loss::Expired));
    let tries = silent.renewals.load(Ordering::SeqCst);
    assert!((5..40).contains(&tries), "{tries} renewals");
    drop(lease);
    assert_eq!(
        silent.released.load(Ordering::SeqCst),
        0,
        "it has nothing to release"
    );
}

/// A store whose answers fail, of which nothing is known but its calls.
struct Scripted {
    clock: Arc<dyn tidegate::Clock>,
    renewals: AtomicUsize,
    released: AtomicUsize,
}

fn grant(seconds: u64) -> LeaseGrant {
    LeaseGrant {
        lease: LeaseId(7),
        weight: 1,
        fencing_token: 1,
        expires_at: at(START + seconds * SECOND),
    }
}

impl Lessor for Scripted {
    fn clock(&self) -> &Arc<dyn tidegate::Clock> {
        &self.clock
    }

    fn renew(&self, lease: LeaseId, renewal: Renewal) {
        assert_eq!(lease, LeaseId(7));
        self.renewals.fetch_add(1, Ordering::SeqCst);
        drop(renewal);
    }

    fn release(&self, _lease: LeaseId) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_lease_of_any_store_is_released_once() {
    let clock = Arc::new(ManualClock::new(at(START)));
    let store = Arc::new(Scripted {
        clock,
        renewals: AtomicUsize::new(0),
        released: AtomicUsize::new(0),
    });
    assert!(Lease::new(grant(30), store.clone()).release());
    drop(Lease::new(grant(30), store.clone()));
    assert_eq!(store.released.load(Ordering::SeqCst), 2);
}

#[test]
fn the_longest_hold_ends_every_lease() {
    let (clock, limiter) = standing(leases(1, 30, Some(100)));
    let lease = limiter.try_acquire("key", 1).unwrap();
    clock.advance(Duration::from_micros(100 * SECOND - 1));
    assert!(lease.is_live());
    assert_eq!(lease.expires_at(), at(START + 100 * SECOND));
    clock.advance(Duration::from_micros(1));
    assert_eq!(lease.loss(), Some(Loss::Expired));
    assert!(limiter.try_acquire("key", 1).is_ok());
}

#[test]
fn a_reset_is_noticed_with_the_next_renewal() {
    let (clock, limiter) = standing(leases(1, 30, None));
    let lease = limiter.try_acquire("key", 1).unwrap();
    let now = clock.now();
    limiter
        .apply(&Key::new("key"), now, &Operation::Reset)
        .unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(lease.loss(), Some(Loss::Revoked));
    assert_eq!(is_lost(&lease), Some(Loss::Revoked));
}

#[test]
fn a_change_of_the_limit_takes_no_lease_away() {
    let (clock, limiter) = standing(leases(3, 60, None));
    let held: Vec<Lease> = (0..3)
        .map(|_| limiter.try_acquire("key", 1).unwrap())
        .collect();
    limiter.change(leases(1, 9, None).into(), ChangeMode::KeepUsed, clock.now());
    clock.advance(Duration::from_secs(3_600));
    assert!(held.iter().all(Lease::is_live));
    // The new length counts from the next renewal on.
    let left = held[0].expires_at().as_micros() - clock.now().as_micros();
    assert!(left <= 9 * SECOND);
    // Another algorithm knows none of them.
    let bucket = TokenBucket::new(tidegate::Rate::per_second(1).unwrap(), 1).unwrap();
    limiter.change(bucket.into(), ChangeMode::KeepUsed, clock.now());
    clock.advance(Duration::from_secs(3));
    assert!(held.iter().all(|lease| lease.loss() == Some(Loss::Revoked)));
}

#[test]
fn a_clock_that_is_set_back_ends_no_lease_and_prolongs_none() {
    let (clock, limiter) = standing(leases(1, 30, None));
    let lease = limiter.try_acquire("key", 1).unwrap();
    clock.set(at(START - 20 * SECOND));
    clock.advance(Duration::from_secs(3_600));
    assert!(lease.is_live());
    let left = lease.expires_at().as_micros() - clock.now().as_micros();
    assert!((20 * SECOND - 1..=30 * SECOND).contains(&left), "{left}");
}

#[test]
fn who_waits_is_served_in_order_when_a_lease_is_given_back() {
    let mut simulation = Simulation::new(START, 1);
    let limiter = limiter(leases(3, 30, None), &simulation.clock);
    let first = limiter.try_acquire("key", 2).unwrap();
    let second = limiter.try_acquire("key", 1).unwrap();
    let large = simulation.spawn(acquire(&limiter, 3));
    let small = simulation.spawn(acquire(&limiter, 1));
    drop(second);
    simulation.run();
    // One is free, but the large one came first; nobody passes it, waiting or not.
    assert!(simulation.is_waiting(large) && simulation.is_waiting(small));
    assert!(matches!(
        limiter.try_acquire("key", 1),
        Err(WaitError::Denied(_))
    ));
    drop(first);
    simulation.run();
    assert!(acquired(&simulation, large) && simulation.is_waiting(small));
    drop(simulation.take(large));
    simulation.run();
    assert!(acquired(&simulation, small));
}

#[test]
fn who_waits_is_served_the_moment_a_dead_holders_lease_expires() {
    let mut simulation = Simulation::new(START, 2);
    let limiter = limiter(leases(1, 30, None), &simulation.clock);
    let killed = Operation::Take(tidegate::Demand::Acquire {
        lease: LeaseId(1),
        weight: 1,
    });
    limiter.apply(&Key::new("key"), at(START), &killed).unwrap();
    let waiting = simulation.spawn(acquire(&limiter, 1));
    simulation.pass_to(START + 30 * SECOND - 1);
    assert!(simulation.is_waiting(waiting));
    simulation.pass_to(START + 30 * SECOND);
    assert!(acquired(&simulation, waiting));
}

#[test]
fn who_waits_for_a_lease_waits_no_longer_than_it_said() {
    let mut simulation = Simulation::new(START, 3);
    let limiter = limiter(leases(1, 30, None), &simulation.clock);
    let _held = limiter.try_acquire("key", 1).unwrap();
    let options = WaitOptions::new().max_wait(Duration::from_secs(5));
    let impatient = limiter.clone();
    let impatient = simulation.spawn(async move {
        let key = Key::new("key");
        impatient.acquire_with(&key, 1, &options).await
    });
    let behind = simulation.spawn(acquire(&limiter, 1));
    simulation.pass_to(START + 5 * SECOND);
    assert!(matches!(
        simulation.done(impatient),
        Some((Err(WaitError::Elapsed { .. }), when)) if when == START + 5 * SECOND
    ));
    assert!(simulation.is_waiting(behind));
    let above = simulation.spawn(acquire(&limiter, 2));
    assert!(matches!(
        simulation.done(above),
        Some((Err(WaitError::Impossible(_)), _))
    ));
}

#[test]
fn a_lease_that_nobody_came_for_goes_to_the_next_one() {
    let mut simulation = Simulation::new(START, 4);
    let limiter = limiter(leases(1, 30, None), &simulation.clock);
    let held = limiter.try_acquire("key", 1).unwrap();
    let gone = simulation.spawn_idle(acquire(&limiter, 1));
    let next = simulation.spawn(acquire(&limiter, 1));
    drop(held);
    // It has the lease and does not know it, and goes away.
    assert!(simulation.is_woken(gone) && simulation.is_waiting(gone));
    assert_eq!(live(&limiter).len(), 1);
    simulation.give_up(gone);
    assert!(acquired(&simulation, next));
    assert_eq!(live(&limiter).len(), 1);
}

#[test]
fn a_limit_that_is_not_enforced_gives_leases_that_hold_nothing() {
    for mode in [Mode::Off, Mode::Shadow] {
        let (clock, limiter) = standing(leases(1, 30, None));
        limiter.set_mode(mode);
        let held: Vec<Lease> = (0..3)
            .map(|_| limiter.try_acquire("key", 1).unwrap())
            .collect();
        clock.advance(Duration::from_secs(3_600));
        assert!(held.iter().all(Lease::is_live));
        drop(held);
        limiter.set_mode(Mode::Enforce);
        assert!(live(&limiter).is_empty());
    }
}

#[test]
fn ids_of_leases_differ_and_say_nothing() {
    let (_clock, limiter) = standing(leases(1_000, 30, None));
    let held: Vec<Lease> = (0..1_000)
        .map(|_| limiter.try_acquire("key", 1).unwrap())
        .collect();
    let mut ids: Vec<u128> = held.iter().map(|lease| lease.id().0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1_000);
    assert!(!format!("{:?}", held[0]).contains(&held[0].id().0.to_string()));
}

/// Random holders and waiters, of which many give up: never more live than the limit, first come
/// first served, and nothing left in the end.
#[test]
fn random_holders_never_hold_more_than_there_is() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let limit = rng.u32(1..6);
        let mut simulation = Simulation::new(START, seed);
        let limiter = limiter(leases(limit, 3, Some(20)), &simulation.clock);
        let mut asked: Vec<(usize, bool)> = Vec::new();
        let mut held: Vec<Lease> = Vec::new();
        for _ in 0..80 {
            match rng.u32(..6) {
                0 | 1 => {
                    let weight = rng.u32(1..=limit);
                    asked.push((simulation.spawn(acquire(&limiter, weight)), false));
                }
                2 if !held.is_empty() => drop(held.swap_remove(rng.usize(..held.len()))),
                3 if !asked.is_empty() => {
                    let place = rng.usize(..asked.len());
                    let woken = simulation.is_woken(asked[place].0);
                    assert!(!woken);
                    asked[place].1 |= simulation.is_waiting(asked[place].0);
                    simulation.give_up(asked[place].0);
                }
                _ => {
                    let until = simulation.now() + rng.u64(..4 * SECOND);
                    simulation.pass_to(until);
                }
            }
            simulation.run();
            let done: Vec<usize> = asked
                .iter()
                .map(|(task, _)| *task)
                .filter(|task| simulation.done(*task).is_some())
                .collect();
            for task in done {
                asked.retain(|(other, _)| *other != task);
                held.push(simulation.take(task).unwrap());
            }
            asked.retain(|(_, gone)| !gone);
            let live = live(&limiter);
            let weights: u32 = live.iter().map(|grant| grant.weight).sum();
            assert!(weights <= limit, "seed {seed}");
            // What a holder believes and what the limit knows are the same.
            for lease in &held {
                let known = live.iter().find(|grant| grant.lease == lease.id());
                assert_eq!(known.is_some(), lease.is_live(), "seed {seed}");
                assert!(known.is_none_or(|grant| grant.expires_at == lease.expires_at()));
            }
            // Whoever still waits does not fit, or is behind one that does not.
            assert_eq!(limiter.waiting(), asked.len(), "seed {seed}");
        }
        held.clear();
        simulation.finish();
        drop(simulation);
        assert!(live(&limiter).is_empty(), "seed {seed}");
        assert_eq!(limiter.waiting(), 0);
    }
}

#[cfg(feature = "tokio")]
mod in_tokio {
    use std::time::Duration;

    use tidegate::{Limiter, Loss, Micros, TokioClock};

    use super::*;

    fn on_tokio_time(limit: Concurrency) -> Limiter {
        let clock = TokioClock::starting_at(at(START));
        Limiter::builder(limit).clock(Arc::new(clock)).build()
    }

    #[tokio::test(start_paused = true)]
    async fn leases_are_renewed_in_paused_time() {
        let limiter = on_tokio_time(leases(1, 30, Some(7_200)));
        let lease = limiter.acquire("key", 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(lease.is_live());
        assert_eq!(lease.lost().await, Loss::Expired);
        assert_eq!(limiter.now(), at(START + 7_200 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_take_turns_in_paused_time() {
        let limiter = on_tokio_time(leases(2, 30, None));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let lease = limiter.acquire("key", 1).await.unwrap();
                tokio::time::sleep(Duration::from_secs(100)).await;
                assert!(lease.release());
            });
        }
        tasks.join_all().await;
        let took = limiter.now().as_micros() - START;
        // Tokio's timers count in milliseconds.
        assert_eq!(took / 1_000_000, 500);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_tasks_on_many_threads_never_hold_more_than_there_is() {
        let limiter = Limiter::new(leases(3, 60, None));
        let at_work = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..64_u32 {
            let (limiter, at_work) = (limiter.clone(), Arc::clone(&at_work));
            tasks.spawn(async move {
                for _ in 0..20 {
                    let patience = WaitOptions::new().max_wait(Duration::from_micros(50));
                    let key = Key::new("key");
                    // Some give up at once, whatever they were given by then.
                    if task % 4 == 0 {
                        drop(limiter.acquire_with(&key, 1, &patience).await);
                        continue;
                    }
                    let lease = limiter.acquire("key", 1).await.unwrap();
                    assert!(at_work.fetch_add(1, Ordering::SeqCst) < 3);
                    tokio::task::yield_now().await;
                    at_work.fetch_sub(1, Ordering::SeqCst);
                    drop(lease);
                }
            });
        }
        tasks.join_all().await;
        assert!(live(&limiter).is_empty());
        assert_eq!(limiter.waiting(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn short_leases_are_renewed_in_real_time() {
        // Long enough for a busy machine, short enough to be renewed a few times.
        let lease = Concurrency::new(1, Micros::from_millis(900), None).unwrap();
        let limiter = Limiter::new(lease);
        let lease = limiter.acquire("key", 1).await.unwrap();
        let first = lease.expires_at();
        while lease.expires_at().as_micros() < first.as_micros() + 500_000 {
            assert!(lease.is_live());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

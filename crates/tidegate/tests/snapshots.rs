//! States over a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    Align, ChangeMode, Clock as _, Concurrency, Demand, FixedWindow, InterpolatedWindow,
    IntervalBucket, LeakyBucket, LeaseId, Limiter, Lockout, LockoutSettings, ManualClock, Micros,
    Mode, Operation, Policy, Rate, Reply, SlidingLog, Snapshot, SnapshotError, StrictWindow,
    Timestamp, TokenBucket, WhenFull,
};
use tidegate_store::snapshot::{BodyReader, BodyWriter, read_framed, write_framed};

const START: u64 = 1_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn bucket(count: u32, capacity: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_second(count).unwrap(), capacity).unwrap()
}

fn policy(kind: usize, n: u32) -> Policy {
    let rate = Rate::new(n % 5 + 1, 700_000).unwrap();
    let period = Micros::from_millis(1_000 + u64::from(n) * 100);
    match kind {
        0 => TokenBucket::new(rate, n).unwrap().into(),
        1 => IntervalBucket::new(rate, n).unwrap().into(),
        2 => LeakyBucket::new(rate, n, 2, None).unwrap().into(),
        3 => FixedWindow::new(n, period, Align::FirstUse).unwrap().into(),
        4 => FixedWindow::new(n, period, Align::Epoch).unwrap().into(),
        5 => SlidingLog::new(n, period).unwrap().into(),
        6 => StrictWindow::new(n, period, 10).unwrap().into(),
        7 => InterpolatedWindow::new(n, period).unwrap().into(),
        8 => Concurrency::new(n, period, None).unwrap().into(),
        _ => Lockout::new(LockoutSettings {
            failures: n,
            period,
            ban: period,
            factor: 2,
            max_ban: Micros::from_secs(100),
            jitter: Micros(n.into()),
            forget_after: period,
            long_cap: n.is_multiple_of(2).then_some((20, Micros::from_secs(50))),
        })
        .unwrap()
        .into(),
    }
}

const KINDS: usize = 10;

/// An operation of those that the `kind`-th algorithm has.
fn operation(kind: usize, choice: u8, n: u32) -> Operation {
    let lease = LeaseId(n.into());
    match (choice, kind) {
        (0, _) => Operation::Block {
            period: Micros::from_millis(u64::from(n) * 100),
        },
        (1, 8) => Operation::Release { lease },
        (_, 8) => Operation::Take(Demand::Acquire { lease, weight: 2 }),
        (1, 9) => Operation::Success,
        (_, 9) => Operation::Take(Demand::Attempt { seed: n.into() }),
        (1, _) => Operation::Refund { cost: n },
        (2, _) => Operation::Force { cost: n },
        _ => Operation::take(n),
    }
}

fn calls() -> impl Strategy<Value = Vec<(u64, u8, u8, u32)>> {
    // Now and then the clock was corrected.
    let step = prop_oneof![30 => 0_u64..300_000, 1 => Just(u64::MAX)];
    prop::collection::vec((step, 0_u8..6, 0_u8..12, 0_u32..6), 0..60)
}

fn modes() -> impl Strategy<Value = ChangeMode> {
    prop_oneof![
        Just(ChangeMode::KeepUsed),
        Just(ChangeMode::Proportional),
        Just(ChangeMode::KeepAvailable),
        Just(ChangeMode::Reset),
    ]
}

fn passes(now: &mut u64, step: u64) -> Timestamp {
    *now = if step == u64::MAX {
        *now - 3_000_000
    } else {
        *now + step
    };
    at(*now)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_key_decides_as_if_there_had_been_no_restart(
        kind in 0..KINDS,
        shadow in any::<bool>(),
        before in calls(),
        after in calls(),
        numbers in prop_oneof![2 => Just(10), 1 => 1_u32..20],
        mode in modes(),
        own in 0_u8..6,
    ) {
        let enforced = if shadow { Mode::Shadow } else { Mode::Enforce };
        let original = Limiter::builder(policy(kind, 10))
            .mode(enforced)
            .tier("gold", policy(kind, 15))
            .unwrap()
            .build();
        original.key(0).at(at(START)).set_tier("gold", ChangeMode::KeepUsed).unwrap();
        original.key(own).at(at(START)).set_override(policy(kind, 7), ChangeMode::KeepUsed).unwrap();
        let mut now = START;
        for (step, key, choice, n) in before {
            let at = passes(&mut now, step);
            let _ = original.key(key).at(at).apply(&operation(kind, choice, n));
        }

        let mut file = Vec::new();
        original.write_snapshot(at(now), &mut file).unwrap();
        let snapshot = Snapshot::read(&mut file.as_slice()).unwrap();
        // What is not in the snapshot is what may be forgotten at any time.
        original.maintain(at(now), usize::MAX);
        let clock = Arc::new(ManualClock::new(at(now)));
        let restored = Limiter::builder(policy(kind, numbers))
            .mode(enforced)
            .clock(clock)
            .restore(&snapshot, mode)
            .unwrap();
        original.change(policy(kind, numbers), mode, at(now));

        prop_assert_eq!(restored.overrides(), original.overrides());
        for (step, key, choice, n) in after {
            // A correction tells a key that may be forgotten from one that was.
            let at = passes(&mut now, if step == u64::MAX { 0 } else { step });
            let (a, b) = (original.key(key).at(at), restored.key(key).at(at));
            prop_assert_eq!(a.own_numbers(), b.own_numbers());
            let operation = operation(kind, choice, n);
            prop_assert_eq!(a.apply(&operation), b.apply(&operation), "{:?}", operation);
        }
    }

    /// Hostile bytes behind a right checksum.
    #[test]
    fn what_was_changed_by_someone_who_knows_the_checksum_is_refused_or_harmless(
        kind in 0..KINDS,
        before in calls(),
        after in calls(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let original = Limiter::new(policy(kind, 10));
        original.key(1).at(at(START)).set_override(policy(kind, 7), ChangeMode::KeepUsed).unwrap();
        let mut now = START;
        for (step, key, choice, n) in before {
            let at = passes(&mut now, step);
            let _ = original.key(key).at(at).apply(&operation(kind, choice, n));
        }
        let mut file = Vec::new();
        original.write_snapshot(at(now), &mut file).unwrap();
        let mut body = read_framed(&mut file.as_slice()).unwrap();
        for (index, byte) in changes {
            let index = index.index(body.len());
            body[index] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        let mut forged = Vec::new();
        write_framed(&mut forged, |frame| frame.write_all(&body)).unwrap();

        let Ok(snapshot) = Snapshot::read(&mut forged.as_slice()) else { return Ok(()) };
        let clock = Arc::new(ManualClock::new(at(now)));
        let builder = Limiter::builder(policy(kind, 10)).clock(clock);
        let Ok(restored) = builder.restore(&snapshot, ChangeMode::Proportional) else { return Ok(()) };
        for (step, key, choice, n) in after {
            let at = passes(&mut now, step);
            let _ = restored.key(key).at(at).apply(&operation(kind, choice, n));
        }
    }
}

fn taken(limiter: &Limiter, now: u64) -> Snapshot {
    let mut file = Vec::new();
    limiter.write_snapshot(at(now), &mut file).unwrap();
    Snapshot::read(&mut file.as_slice()).unwrap()
}

#[test]
fn a_snapshot_says_whose_it_is_and_hides_the_seed() {
    let limiter = Limiter::builder(bucket(1, 10)).name("per-user").build();
    let snapshot = taken(&limiter, START);
    assert_eq!(snapshot.name(), "per-user");
    assert_eq!(snapshot.taken_at(), at(START));
    assert!(format!("{snapshot:?}").starts_with("Snapshot { name: \"per-user\", taken_at"));
    let mut again = Vec::new();
    snapshot.write(&mut again).unwrap();
    assert!(Snapshot::read(&mut again.as_slice()).is_ok());
}

#[test]
fn many_keys_find_their_places_again_and_only_those_that_matter_are_kept() {
    const KEYS: u32 = 150_000;
    let limiter = Limiter::builder(bucket(1, 10))
        .max_keys(KEYS as usize)
        .build();
    for key in 0..KEYS {
        // Those that took one are full again after a second, and fresh after another.
        limiter.try_take_at(key, 1 + key % 2 * 4, at(START));
    }
    let later = START + 2_500_000;
    let snapshot = taken(&limiter, later);
    let clock = Arc::new(ManualClock::new(at(later)));
    let restored = Limiter::builder(bucket(1, 10))
        .max_keys(KEYS as usize / 2)
        .clock(clock)
        .restore(&snapshot, ChangeMode::KeepUsed)
        .unwrap();
    assert_eq!(restored.len(), KEYS as usize / 2);
    let per_key = restored.stats().table_bytes / restored.len();
    assert!(per_key < 50, "{per_key} bytes a key");
    for key in 0..KEYS {
        let (a, b) = (
            limiter.key(key).at(at(later)),
            restored.key(key).at(at(later)),
        );
        assert_eq!(a.peek(1), b.peek(1), "key {key}");
    }
}

#[test]
fn more_keys_than_the_limit_may_hold_are_refused() {
    let limiter = Limiter::new(bucket(0, 10));
    for key in 0..3_000 {
        limiter.try_take(key, 1);
    }
    let snapshot = limiter.snapshot(limiter.now());
    let error = Limiter::builder(bucket(0, 10))
        .max_keys(1_000)
        .restore(&snapshot, ChangeMode::KeepUsed)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the snapshot has 3000 keys, above max_keys 1000; raise it"
    );
}

#[test]
fn what_keys_shared_while_the_table_was_full_is_restored() {
    let builder = || {
        Limiter::builder(bucket(0, 10))
            .max_keys(4)
            .when_full(WhenFull::Overflow)
    };
    let limiter = builder().build();
    for key in 0..50 {
        limiter.try_take_at(key, 7, at(START));
    }
    assert!(limiter.stats().overflowed > 0);
    let restored = builder()
        .restore(&taken(&limiter, START), ChangeMode::KeepUsed)
        .unwrap();
    for key in 0..50 {
        assert!(!restored.try_take(key, 4).is_allowed(), "key {key}");
    }
}

#[test]
fn a_lease_ends_at_its_time_however_long_the_restart_took() {
    let policy = || Concurrency::new(1, Micros::from_secs(60), None).unwrap();
    let limiter = Limiter::new(policy());
    let acquire = |id| {
        Operation::Take(Demand::Acquire {
            lease: LeaseId(id),
            weight: 1,
        })
    };
    let reply = limiter.key("job").at(at(START)).apply(&acquire(1)).unwrap();
    let Reply::Leased(_, Some(first)) = reply else {
        panic!("{reply:?}")
    };
    let snapshot = taken(&limiter, START);
    for (later, free) in [(59_999_999, false), (60_000_000, true)] {
        let clock = Arc::new(ManualClock::new(at(START + later)));
        let restored = Limiter::builder(policy())
            .clock(clock)
            .restore(&snapshot, ChangeMode::KeepUsed)
            .unwrap();
        let job = restored.key("job");
        let Reply::Renewed(renewed) = job.apply(&Operation::Renew { lease: first.lease }).unwrap()
        else {
            panic!("a renewal is answered by one")
        };
        assert_eq!(renewed.is_none(), free);
        let reply = job.apply(&acquire(2)).unwrap();
        let Reply::Leased(decision, grant) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(decision.is_allowed(), free);
        assert!(grant.is_none_or(|grant| grant.fencing_token > first.fencing_token));
    }
}

#[test]
fn a_limit_of_another_algorithm_starts_afresh() {
    let limiter = Limiter::new(bucket(0, 1));
    limiter.try_take("k", 1);
    let log = SlidingLog::new(1, Micros::from_secs(1)).unwrap();
    let restored = Limiter::builder(log)
        .restore(&limiter.snapshot(limiter.now()), ChangeMode::KeepUsed)
        .unwrap();
    assert!(restored.try_take("k", 1).is_allowed());
}

#[test]
fn another_file_and_a_later_version_are_named() {
    let read = |bytes: &[u8]| Snapshot::read(&mut &*bytes).unwrap_err().to_string();
    assert_eq!(read(b"{\"limits\": []}"), "this is no snapshot of a limit");
    assert_eq!(
        read(b"tidegate\x07\x00"),
        "the snapshot has version 7 and this program reads up to 1; update it"
    );
    assert_eq!(
        read(b"tidegate\x01\x00\x05"),
        "the snapshot ends too early; restore one that was written to its end"
    );
}

#[test]
fn keys_that_were_made_to_collide_are_refused_before_they_cost_memory() {
    let limiter = Limiter::new(bucket(0, 10));
    limiter.try_take("k", 1);
    let mut file = Vec::new();
    limiter.write_snapshot(at(START), &mut file).unwrap();
    let body = read_framed(&mut file.as_slice()).unwrap();
    let mut reader = BodyReader(&body);
    let head = reader.head().unwrap();
    let mut forged = BodyWriter::default();
    forged.head(&head);
    // Both groups of a key are chosen by its low half and by its product with a constant: these
    // agree in both, in any table.
    let inverse = 0xF1DE_83E1_9937_733D_u64;
    let mut states = 0;
    for n in 1..=64_u64 {
        let tag = inverse.wrapping_mul(n << 32);
        forged.word(1);
        forged.fixed(tag);
        forged.words(&[0, 0, START, 5, 0]);
        states += 1;
    }
    forged.word(0);
    forged.fixed(states);
    let mut file = Vec::new();
    write_framed(&mut file, |frame| frame.write_all(&forged.0)).unwrap();
    let snapshot = Snapshot::read(&mut file.as_slice()).unwrap();
    let restored = Limiter::builder(bucket(0, 10)).restore(&snapshot, ChangeMode::KeepUsed);
    assert!(matches!(restored, Err(SnapshotError::Damaged)));
}

#[test]
fn a_snapshot_under_load_has_each_key_as_it_was_at_one_moment() {
    const KEYS: u32 = 2_000;
    let limiter = Arc::new(Limiter::new(
        SlidingLog::new(100_000, Micros::from_secs(3_600)).unwrap(),
    ));
    let clock = Arc::new(ManualClock::new(at(START)));
    let (stop, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let worker = {
        let (limiter, clock) = (Arc::clone(&limiter), Arc::clone(&clock));
        let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for key in 0..KEYS {
                    // Three at a time: no other number may ever be seen.
                    limiter.try_take_at(key, 3, clock.now());
                }
                clock.advance(Duration::from_micros(10));
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    while rounds.load(Ordering::Relaxed) < 2 {
        std::hint::spin_loop();
    }
    for _ in 0..6 {
        let least = rounds.load(Ordering::Relaxed);
        let snapshot = limiter.snapshot(clock.now());
        let most = rounds.load(Ordering::Relaxed) + 1;
        let restored = Limiter::builder(limiter.policy())
            .clock(Arc::clone(&clock) as Arc<dyn tidegate::Clock>)
            .restore(&snapshot, ChangeMode::KeepUsed)
            .unwrap();
        for key in 0..KEYS {
            let used = restored.key(key).state().used;
            assert!(used.is_multiple_of(3), "torn: {used}");
            assert!(
                used >= least * 3 && used <= most * 3,
                "{least} {used} {most}"
            );
        }
    }
    stop.store(true, Ordering::Relaxed);
    worker.join().unwrap();
}

//! The worst cases of `bounds`, searched for exhaustively on small numbers.
//!
//! Every reachable state is a possible beginning, and at every microsecond any number of units
//! may be asked for: nothing that traffic can do is left out within the horizon.

use std::collections::{BTreeMap, HashMap};

use tidegate_core::{
    Algorithm, Align, Demand, Entry, FixedWindow, InterpolatedWindow, IntervalBucket, Lockout,
    LockoutSettings, Micros, Operation, Policy, Rate, Reply, SlidingLog, StrictWindow, Timestamp,
    TokenBucket, bounds, engine, with_algorithm,
};

/// How long traffic may have gone on before the window: more than two of the longest periods here.
const HISTORY: u64 = 9;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Takes `cost` units if they fit.
fn take<A: Algorithm>(algorithm: &A, entry: &mut Entry<A::State>, now: u64, cost: u32) -> bool {
    let reply = engine::apply(algorithm, entry, at(now), &Operation::take(cost)).unwrap();
    matches!(reply, Reply::Decision(decision) if decision.is_allowed())
}

/// All states that traffic before `start` can lead to, by their text.
fn reachable<A: Algorithm>(algorithm: &A, start: u64) -> BTreeMap<String, Entry<A::State>> {
    let first = Entry::fresh(algorithm, at(0));
    let mut states = BTreeMap::from([(format!("{first:?}"), first)]);
    for now in 0..start {
        for entry in states.clone().into_values() {
            for cost in 1..=algorithm.limit() {
                let mut entry = entry.clone();
                if take(algorithm, &mut entry, now, cost) {
                    states.insert(format!("{entry:?}"), entry);
                }
            }
        }
    }
    states
}

/// The most that can be taken from `now` until before `end`.
fn most<A: Algorithm>(
    algorithm: &A,
    entry: &Entry<A::State>,
    now: u64,
    end: u64,
    known: &mut HashMap<(u64, String), u64>,
) -> u64 {
    if now == end {
        return 0;
    }
    let key = (now, format!("{entry:?}"));
    if let Some(most) = known.get(&key) {
        return *most;
    }
    let mut best = 0;
    for cost in 0..=algorithm.limit() {
        let mut entry = entry.clone();
        if take(algorithm, &mut entry, now, cost) {
            best = best.max(u64::from(cost) + most(algorithm, &entry, now + 1, end, known));
        }
    }
    known.insert(key, best);
    best
}

/// The most that any traffic gets in a window of `length` that begins at `start` or before.
fn searched<A: Algorithm>(algorithm: &A, length: u64, history: u64) -> u64 {
    (0..=history)
        .flat_map(|start| {
            let mut known = HashMap::new();
            reachable(algorithm, start)
                .into_values()
                .map(|entry| most(algorithm, &entry, start, start + length, &mut known))
                .collect::<Vec<_>>()
        })
        .max()
        .unwrap()
}

/// Compares the bound with the search: equal if `tight`, never exceeded in any case.
fn verify(policy: impl Into<Policy>, lengths: std::ops::RangeInclusive<u64>, tight: bool) {
    let policy = policy.into();
    for length in lengths {
        let bound = bounds::admitted(&policy, Micros(length)).unwrap();
        let found = with_algorithm!(&policy, algorithm => searched(algorithm, length, HISTORY));
        if tight {
            assert_eq!(found, bound, "{policy:?} in {length} us");
        } else {
            assert!(
                found <= bound,
                "{policy:?} admits {found} > {bound} in {length} us"
            );
        }
    }
}

#[test]
fn a_continuous_bucket_admits_its_capacity_and_what_comes_back() {
    for (count, period, capacity) in [(1, 2, 2), (2, 3, 3), (3, 1, 2), (1, 3, 1), (0, 1, 2)] {
        let rate = Rate::new(count, period).unwrap();
        verify(TokenBucket::new(rate, capacity).unwrap(), 1..=7, true);
    }
}

#[test]
fn an_interval_bucket_admits_a_refill_more_per_interval_begun() {
    for (count, period, capacity) in [(1, 2, 2), (2, 3, 2), (3, 3, 2), (1, 4, 3)] {
        let rate = Rate::new(count, period).unwrap();
        verify(IntervalBucket::new(rate, capacity).unwrap(), 1..=7, true);
    }
}

#[test]
fn an_aligned_window_admits_twice_its_number_within_two_microseconds() {
    for (limit, period) in [(2, 3), (3, 2), (1, 4)] {
        let window = FixedWindow::new(limit, Micros(period), Align::Epoch).unwrap();
        assert_eq!(
            bounds::admitted(&window.clone().into(), Micros(2)).unwrap(),
            2 * u64::from(limit)
        );
        verify(window, 1..=7, true);
    }
}

#[test]
fn a_window_from_first_use_admits_one_less_than_twice_its_number_in_its_period() {
    for (limit, period) in [(2, 3), (3, 4), (1, 3)] {
        let window = FixedWindow::new(limit, Micros(period), Align::FirstUse).unwrap();
        let in_period = bounds::admitted(&window.clone().into(), Micros(period)).unwrap();
        assert_eq!(in_period, u64::from(2 * limit - 1));
        verify(window, 1..=7, true);
    }
}

#[test]
fn a_sliding_log_never_admits_more_than_its_number_in_any_period() {
    for (limit, period) in [(2, 3), (3, 2), (1, 4)] {
        verify(SlidingLog::new(limit, Micros(period)).unwrap(), 1..=7, true);
    }
}

#[test]
fn a_strict_window_never_admits_more_than_its_number_in_any_period() {
    for (limit, period, cells) in [(2, 4, 2), (3, 4, 4), (2, 5, 2), (2, 3, 60)] {
        verify(
            StrictWindow::new(limit, Micros(period), cells).unwrap(),
            1..=9,
            false,
        );
        // The promise itself is reached: all at one moment.
        verify(
            StrictWindow::new(limit, Micros(period), cells).unwrap(),
            1..=1,
            true,
        );
    }
}

#[test]
fn an_interpolated_window_admits_nearly_twice_its_number_in_its_period() {
    for (limit, period) in [(2, 4), (3, 3), (2, 3), (4, 4)] {
        verify(
            InterpolatedWindow::new(limit, Micros(period)).unwrap(),
            1..=9,
            false,
        );
    }
    // Reached where a microsecond fades whole units, so that nothing is lost to rounding.
    for (limit, period) in [(3, 3), (4, 4)] {
        let window = InterpolatedWindow::new(limit, Micros(period)).unwrap();
        let in_period = bounds::admitted(&window.clone().into(), Micros(period)).unwrap();
        assert!(in_period < u64::from(2 * limit));
        verify(window, 1..=period, true);
    }
}

#[test]
fn the_one_time_password_exercise_admits_six_where_three_are_promised() {
    let ten_minutes = Micros::from_secs(600);
    let answer = IntervalBucket::new(Rate::new(1, 200_000_000).unwrap(), 3).unwrap();
    assert_eq!(bounds::admitted(&answer.into(), ten_minutes), Some(6));
    let right = SlidingLog::new(3, ten_minutes).unwrap();
    assert_eq!(bounds::admitted(&right.into(), ten_minutes), Some(3));
}

#[test]
fn a_lockout_admits_no_more_guesses_than_its_bound() {
    let settings = LockoutSettings {
        failures: 2,
        period: Micros(3),
        ban: Micros(2),
        factor: 2,
        max_ban: Micros(5),
        jitter: Micros(0),
        forget_after: Micros(4),
        long_cap: None,
    };
    for long_cap in [None, Some((3, Micros(6)))] {
        let lockout = Lockout::new(LockoutSettings {
            long_cap,
            ..settings
        })
        .unwrap();
        let policy = Policy::from(lockout.clone());
        for length in 1..=9 {
            let bound = bounds::admitted(&policy, Micros(length)).unwrap();
            let found = guesses(&lockout, &Entry::fresh(&lockout, at(0)), 0, length);
            assert!(found <= bound, "{found} > {bound} in {length} us");
        }
    }
}

/// The most attempts from `now` until before `end`, all of them failures.
fn guesses(
    lockout: &Lockout,
    entry: &Entry<<Lockout as Algorithm>::State>,
    now: u64,
    end: u64,
) -> u64 {
    if now == end {
        return 0;
    }
    let mut best = guesses(lockout, entry, now + 1, end);
    let mut entry = entry.clone();
    let attempt = Operation::Take(Demand::Attempt { seed: 0 });
    for made in 1.. {
        let reply = engine::apply(lockout, &mut entry, at(now), &attempt).unwrap();
        if !reply.decision().unwrap().is_allowed() {
            break;
        }
        best = best.max(made + guesses(lockout, &entry, now + 1, end));
    }
    best
}

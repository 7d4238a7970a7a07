//! A million random calls per algorithm on the memory store, each answered as by the model.

use tidegate_conformance::Memory;
use tidegate_conformance::differential::{EVERY_ALGORITHM, Tally, options, scenario};
use tidegate_conformance::generator::{Family, Options};

const CALLS: usize = 1_000_000;
const STEPS: usize = 500;

/// Runs scenarios until a million answers have been compared. A failing seed can be run alone by
/// setting `TIDEGATE_SEED`; `TIDEGATE_CALLS` makes the tests longer or shorter.
fn compare(family: Family) {
    let tally = run(&[family], options);
    if let Some(tally) = tally {
        let decided = tally.allowed + tally.refused;
        assert!(tally.allowed > decided / 5, "too little passes: {tally:?}");
        assert!(
            tally.refused > decided / 5,
            "too little is refused: {tally:?}"
        );
    }
}

fn run(families: &[Family], options: impl Fn(u64) -> Options) -> Option<Tally> {
    let run = |seed| match scenario(seed, families, options(seed), STEPS, Memory::open) {
        Ok(tally) => tally,
        Err(difference) => panic!("{difference}"),
    };
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        run(seed.parse().expect("TIDEGATE_SEED is a number"));
        return None;
    }
    let calls = std::env::var("TIDEGATE_CALLS").map_or(CALLS, |calls| {
        calls.parse().expect("TIDEGATE_CALLS is a number")
    });
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.answers < calls {
        tally.add(run(seed));
        seed += 1;
    }
    eprintln!("{families:?}: {tally:?}");
    Some(tally)
}

#[test]
fn a_continuous_bucket_answers_as_the_model() {
    compare(Family::Continuous);
}

#[test]
fn a_continuous_bucket_with_initial_tokens_answers_as_the_model() {
    compare(Family::ContinuousInitial);
}

#[test]
fn an_interval_bucket_answers_as_the_model() {
    compare(Family::Interval);
}

#[test]
fn an_interval_bucket_with_initial_tokens_answers_as_the_model() {
    compare(Family::IntervalInitial);
}

#[test]
fn a_paced_queue_answers_as_the_model() {
    compare(Family::Paced);
}

#[test]
fn a_window_of_the_clock_answers_as_the_model() {
    compare(Family::Epoch);
}

#[test]
fn a_window_from_first_use_answers_as_the_model() {
    compare(Family::FirstUse);
}

#[test]
fn a_calendar_window_answers_as_the_model() {
    compare(Family::Calendar);
}

#[test]
fn a_window_whose_borders_change_answers_as_the_model() {
    compare(Family::AnyWindow);
}

#[test]
fn a_sliding_log_answers_as_the_model() {
    compare(Family::Log);
}

#[test]
fn a_strict_window_answers_as_the_model() {
    compare(Family::Strict);
}

#[test]
fn an_interpolated_window_answers_as_the_model() {
    compare(Family::Interpolated);
}

#[test]
fn a_concurrency_limit_answers_as_the_model() {
    compare(Family::Concurrency);
}

#[test]
fn a_lockout_answers_as_the_model() {
    compare(Family::Lockout);
}

#[test]
fn a_call_over_several_limits_answers_as_the_model() {
    run(&EVERY_ALGORITHM, |_| Options {
        all_of: true,
        ..Options::JITTERY
    });
}

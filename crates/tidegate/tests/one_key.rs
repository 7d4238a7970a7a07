//! What can be done to one key, and what an operation says where it has no meaning.

use std::time::Duration;

use tidegate::{
    ChangeMode, Concurrency, Limiter, Lockout, LockoutSettings, Micros, Mode, OperationError, Rate,
    SlidingLog, Timestamp, TokenBucket,
};

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn bucket() -> Limiter {
    Limiter::new(TokenBucket::new(Rate::per_second(1).unwrap(), 10).unwrap())
}

fn lockout() -> Limiter {
    let minute = Micros::from_secs(60);
    Limiter::new(
        Lockout::new(LockoutSettings {
            failures: 3,
            period: minute,
            ban: minute,
            factor: 2,
            max_ban: Micros::from_secs(3_600),
            jitter: Micros::ZERO,
            forget_after: minute,
            long_cap: None,
        })
        .unwrap(),
    )
}

#[test]
fn what_has_no_meaning_on_an_algorithm_is_an_error_that_names_the_remedy() {
    let jobs = Limiter::new(Concurrency::new(1, Micros::from_secs(60), None).unwrap());
    let error = jobs.key("k").force(1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "concurrency has no operation force; use acquire, renew and release"
    );
    assert!(bucket().key("k").attempt().is_err());
    assert!(bucket().key("k").success().is_err());
    assert!(lockout().key("k").take_up_to(1).is_err());
    assert!(lockout().key("k").reserve(1, Duration::ZERO).is_err());
    assert!(!lockout().key("k").try_take(1).is_allowed());
    let too_long = Duration::from_secs(400 * 86_400 * 10);
    let error = bucket().key("k").block(too_long).unwrap_err();
    assert!(matches!(error, OperationError::PeriodOutOfRange(_)));
    assert!(bucket().is_empty());
}

#[test]
fn a_reservation_lends_from_the_future_and_gives_back_what_was_not_used() {
    let limit = bucket();
    let key = limit.key("k").at(at(0));
    assert_eq!(key.take_up_to(4).unwrap().cost, 4);
    assert_eq!(key.take_up_to(40).unwrap().cost, 6);
    assert!(!key.take_up_to(1).unwrap().is_allowed());

    let soon = key.reserve(3, Duration::from_secs(3)).unwrap();
    assert_eq!(soon.delay(), Some(Duration::from_secs(3)));
    let late = key.reserve(1, Duration::from_secs(3)).unwrap();
    assert_eq!((late.delay(), late.reservation), (None, None));
    assert_eq!(late.decision.retry_after.as_micros(), Some(1_000_000));

    assert_eq!(key.settle(soon.reservation.unwrap(), 1).unwrap(), 2);
    assert_eq!(key.state().used, 11);
    let again = key.reserve(1, Duration::from_secs(3)).unwrap();
    assert_eq!(key.cancel(again.reservation.unwrap()).unwrap(), 1);
    assert_eq!(key.refund(100).unwrap(), 11);
    assert_eq!(key.state().used, 0);
}

#[test]
fn a_limit_that_is_only_watched_lets_a_reservation_go_on_at_once() {
    let limit = bucket();
    limit.set_mode(Mode::Shadow);
    let reserved = limit.key("k").reserve(11, Duration::ZERO).unwrap();
    assert_eq!(reserved.delay(), Some(Duration::ZERO));
    assert_eq!(reserved.reservation, None);
}

#[test]
fn a_window_reserves_what_it_has_now_or_denies() {
    let limit = Limiter::new(SlidingLog::new(2, Micros::from_secs(1)).unwrap());
    let key = limit.key("k").at(at(0));
    let now = key.reserve(2, Duration::from_secs(9)).unwrap();
    assert_eq!(now.delay(), Some(Duration::ZERO));
    let later = key.reserve(1, Duration::from_secs(9)).unwrap();
    assert_eq!(later.delay(), None);
}

#[test]
fn a_block_holds_until_it_ends_or_is_lifted() {
    let limit = bucket();
    let key = limit.key("k").at(at(0));
    key.block(Duration::from_secs(5)).unwrap();
    assert_eq!(key.state().blocked_for, Micros::from_secs(5));
    assert!(!key.at(at(4_999_999)).try_take(1).is_allowed());
    assert!(key.at(at(5_000_000)).try_take(1).is_allowed());
    key.at(at(5_000_000)).block(Duration::from_secs(5)).unwrap();
    key.at(at(5_000_000)).unblock();
    assert!(key.at(at(5_000_000)).try_take(1).is_allowed());
}

#[test]
fn a_right_guess_takes_its_failure_back_also_when_it_was_the_last_one() {
    let limit = lockout();
    let asha = limit.key("asha").at(at(0));
    for _ in 0..2 {
        assert!(asha.attempt().unwrap().is_allowed());
    }
    assert_eq!(asha.attempt().unwrap().remaining, 0);
    assert!(!asha.attempt().unwrap().is_allowed());
    asha.success().unwrap();
    assert!(asha.attempt().unwrap().is_allowed());
}

#[test]
fn a_key_outlives_a_change_of_the_algorithm() {
    let limit = bucket();
    let key = limit.key("k").at(at(0));
    key.try_take(10);
    let log = SlidingLog::new(2, Micros::from_secs(1)).unwrap();
    limit.change(log.into(), ChangeMode::KeepUsed, at(0));
    assert_eq!(key.try_take(1).limit, 2);
    assert_eq!(limit.key("k").at(at(0)).state().used, 1);
}

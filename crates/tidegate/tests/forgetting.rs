//! A limit that sees a million callers once does not keep a million keys.
//!
//! Guards against state that is kept for every caller ever seen, as in
//! <https://github.com/kent8192/reinhardt-web/issues/368>, and against its opposite: forgetting
//! a key that could still deny.

use tidegate::{Key, Limiter, Micros, SlidingLog, Timestamp};

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

#[test]
fn keys_that_equal_fresh_ones_go_and_those_still_limited_stay() {
    let limiter = Limiter::builder(SlidingLog::new(1, Micros::from_secs(1)).unwrap())
        .max_keys(2_000_000)
        .hash_seed((1, 2))
        .build();
    let key = |number: u64| Key::new(number.to_be_bytes());
    // A million callers within ten seconds: 100 000 of them are within the last second.
    for number in 0..1_000_000 {
        let now = at(number * 10);
        assert!(limiter.try_take_at(key(number), 1, now).is_allowed());
        if number % 1_000 == 999 {
            // A caller of half a second ago is still limited, exactly.
            let recent = number.saturating_sub(50_000);
            let decision = limiter.try_take_at(key(recent), 1, now);
            let age = (number - recent) * 10;
            assert_eq!(
                decision.retry_after.as_micros(),
                Some(1_000_000 - age),
                "{number}"
            );
        }
    }
    let kept = limiter.len();
    assert!(kept < 400_000, "{kept} keys are kept of 100 000 that count");

    // Three quiet seconds with a few calls, which take a look around: a key goes a second after it
    // became fresh, since a clock may be that far behind.
    for step in 0..3_000 {
        let now = at(10_000_000 + step * 1_000);
        limiter.try_take_at(key(step % 5), 1, now);
        limiter.maintain(now, 4_096);
    }
    let kept = limiter.len();
    assert!(kept <= 10, "{kept} keys are kept of 5 that count");
    assert_eq!(limiter.evicted(), 0);
}

//! Waits are exact from both sides, and what does not charge changes nothing.

use fastrand::Rng;
use tidegate::{
    Align, Decision, Denial, FixedWindow, InterpolatedWindow, IntervalBucket, LeakyBucket, Limiter,
    Micros, OneKey, Policy, SlidingLog, StrictWindow, Timestamp, TokenBucket, Verdict, Wait,
};

use super::support::{at, rate, seeded};

const TEN_YEARS: u64 = 315_576_000_000_000;
const MAX_COUNT: u32 = (1 << 31) - 1;
const KINDS: usize = 8;

fn count(rng: &mut Rng) -> u32 {
    match rng.u32(..8) {
        0 => 0,
        1 => 1,
        2 => MAX_COUNT,
        3 => 1_000_000_000,
        4 => 100_001,
        5 => rng.u32(..=MAX_COUNT),
        _ => rng.u32(1..20),
    }
}

fn period(rng: &mut Rng) -> u64 {
    match rng.u32(..8) {
        0 => 1,
        1 => TEN_YEARS,
        2 => 86_400_000_000,
        3 => rng.u64(1..=TEN_YEARS),
        4 => rng.u64(1..100),
        _ => 1_000_000,
    }
}

fn policy(rng: &mut Rng, kind: usize) -> Policy {
    let (n, p) = (count(rng), period(rng));
    match kind {
        0 => TokenBucket::new(rate(n, p), count(rng)).unwrap().into(),
        1 => IntervalBucket::new(rate(n, p), count(rng)).unwrap().into(),
        2 => {
            let burst = count(rng).clamp(1, MAX_COUNT / 2);
            let queue = count(rng) / 2;
            let patience = rng.bool().then(|| Micros(period(rng)));
            LeakyBucket::new(rate(n, p), queue, burst, patience)
                .unwrap()
                .into()
        }
        3 => FixedWindow::new(n, Micros(p), Align::Epoch).unwrap().into(),
        4 => FixedWindow::new(n, Micros(p), Align::FirstUse)
            .unwrap()
            .into(),
        5 => SlidingLog::new(n.min(100_000), Micros(p)).unwrap().into(),
        6 => StrictWindow::new(n, Micros(p), rng.u32(1..=3_600))
            .unwrap()
            .into(),
        _ => InterpolatedWindow::new(n, Micros(p)).unwrap().into(),
    }
}

fn after(now: Timestamp, wait: Wait) -> Option<Timestamp> {
    now.checked_add(Micros(wait.as_micros()?))
}

fn before(moment: Timestamp) -> Timestamp {
    at(moment.as_micros() - 1)
}

/// Looks at a decision of this moment from both sides of all that it says.
fn check(key: OneKey<'_>, decision: &Decision, now: Timestamp) {
    let shown = || format!("{:?} at {now:?}: {decision:?}", key);
    let later = |moment| key.at(moment);
    if decision.is_allowed() {
        assert_eq!(decision.retry_after, Wait::ZERO, "{}", shown());
    } else {
        assert_ne!(decision.retry_after, Wait::ZERO, "{}", shown());
        if let Some(due) = after(now, decision.retry_after) {
            let cost = decision.cost;
            assert!(later(due).peek(cost).is_allowed(), "{}", shown());
            assert!(!later(before(due)).peek(cost).is_allowed(), "{}", shown());
        }
        if decision.verdict == Verdict::Deny(Denial::Impossible) {
            assert!(decision.retry_after.is_never(), "{}", shown());
        }
    }
    let state = later(now).state();
    assert_eq!(decision.remaining, state.remaining, "{}", shown());
    if decision.remaining > 0 {
        let rest = later(now).peek(decision.remaining);
        assert!(rest.is_allowed(), "{}: {rest:?}", shown());
    }
    if let Some(more) = decision.remaining.checked_add(1) {
        assert!(!later(now).peek(more).is_allowed(), "{}", shown());
    }
    if state.used > 0
        && let Some(full) = after(now, decision.reset_after)
    {
        assert_eq!(later(full).state().used, 0, "{}", shown());
        assert!(later(before(full)).state().used > 0, "{}", shown());
    }
}

#[test]
fn waits_are_exact_from_both_sides_for_any_numbers() {
    let mut rng = seeded("exact waits");
    let mut denied = 0;
    for round in 0..4_000 {
        let policy = policy(&mut rng, round % KINDS);
        let limiter = Limiter::new(policy.clone());
        let key = limiter.key(round as u64);
        let mut now = at(rng.u64(2_000_000..TEN_YEARS * 6));
        for _ in 0..12 {
            let key = key.at(now);
            let cost = match rng.u32(..6) {
                0 => key.peek(0).remaining,
                1 => key.peek(0).remaining.saturating_add(1),
                2 => rng.u32(..=MAX_COUNT),
                3 => key.peek(0).remaining / 2,
                _ => rng.u32(1..10),
            };
            let unchanged = key.state();
            let seen = key.peek(cost);
            assert_eq!(key.state(), unchanged, "a peek");
            let decision = key.try_take(cost);
            if cost > 0 && decision.is_allowed() {
                assert_eq!(seen.verdict, decision.verdict);
            } else {
                assert_eq!(
                    seen, decision,
                    "a peek answers as the call does: {policy:?}"
                );
                assert_eq!(key.state(), unchanged, "{decision:?} by {policy:?}");
                denied += usize::from(!decision.is_allowed());
            }
            check(key, &decision, now);
            let wait = decision.retry_after.as_micros().unwrap_or(0);
            now = match rng.u32(..8) {
                0 => at(now.as_micros() - rng.u64(..=1_000_000)),
                1 => after(now, decision.retry_after).unwrap_or(now),
                2 => after(now, Wait::micros(wait.saturating_sub(1))).unwrap_or(now),
                3 => after(now, Wait::micros(rng.u64(..=wait))).unwrap_or(now),
                4 => after(now, Wait::micros(period(&mut rng))).unwrap_or(now),
                5 => after(now, Wait::micros(1)).unwrap_or(now),
                _ => now,
            };
        }
    }
    assert!(denied > 1_000, "{denied} denials are worth looking at");
}

#[test]
fn what_does_not_charge_creates_no_key() {
    let mut rng = seeded("no key");
    for round in 0..2_000 {
        let policy = policy(&mut rng, round % KINDS);
        let limiter = Limiter::new(policy);
        let key = limiter.key("key").at(at(rng.u64(..TEN_YEARS)));
        let free = key.peek(0);
        let _ = (key.try_take(0), key.state(), limiter.key("other").peek(1));
        let most = free.remaining;
        assert!(!key.try_take(most.saturating_add(1)).is_allowed());
        assert!(!key.try_take(u32::MAX).is_allowed());
        assert_eq!(limiter.len(), 0, "{:?}", limiter.policy());
    }
}

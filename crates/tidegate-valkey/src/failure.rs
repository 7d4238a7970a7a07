//! What a limit does when its store gives no answer.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

use tidegate_core::{
    Align, Concurrency, Decision, Demand, Denial, FixedWindow, InterpolatedWindow, IntervalBucket,
    LeakyBucket, Lockout, LockoutSettings, Operation, OperationError, Policy, PolicyError, Rate,
    Reply, SlidingLog, Source, StrictWindow, Timestamp, TokenBucket, Verdict, Wait, with_algorithm,
};
use tidegate_store::{Key, KeyHash, KeyHasher, MemoryLimit, MemoryOptions, memory_limit};

use crate::LimitSpec;

/// What a limit does when its store gives no answer.
///
/// Every decision that is made so has [`Source::Fallback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureMode {
    /// Calls pass.
    Allow,
    /// Calls are refused, with the hint to come back in a second.
    Deny,
    /// A limit of a share of the numbers decides in memory: counts are rounded down, to 1 at
    /// least unless they are 0. So k processes admit up to k times the share of the limit, and
    /// what a process admitted in one outage still counts in the next.
    LocalShare {
        /// The share in millionths: 500000 is one half. Above a million it is the whole.
        millionths: u32,
    },
}

impl FailureMode {
    /// Half of the limit.
    pub const HALF: Self = Self::LocalShare {
        millionths: WHOLE / 2,
    };

    /// What fits a limit if nothing is said: half of it for rates and windows; refusal where a call
    /// too many does harm, for lockouts and leases.
    #[must_use]
    pub const fn default_for(policy: &Policy) -> Self {
        match policy {
            Policy::Lockout(_) | Policy::Concurrency(_) => Self::Deny,
            _ => Self::HALF,
        }
    }
}

const WHOLE: u32 = 1_000_000;

/// How long a caller is told to wait whom a missing store refused: by then it is asked again.
const COME_BACK: Wait = Wait::micros(1_000_000);

/// A failure mode at work.
pub(crate) enum Fallback {
    Allow,
    Deny,
    Local(Box<Local>),
}

/// A share of a limit, in memory.
pub(crate) struct Local {
    pub(crate) table: Box<dyn MemoryLimit>,
    hasher: KeyHasher,
    /// For states of a limit that is only watched: they are apart.
    shadow_hasher: KeyHasher,
}

impl Local {
    pub(crate) fn hash(&self, key: &Key, shadow: bool) -> KeyHash {
        if shadow {
            self.shadow_hasher.hash(key)
        } else {
            self.hasher.hash(key)
        }
    }

    pub(crate) fn apply(
        &self,
        key: &Key,
        shadow: bool,
        operation: &Operation,
    ) -> Result<Reply, OperationError> {
        self.table
            .apply(self.hash(key, shadow), local_now().into(), operation)
    }
}

impl Fallback {
    /// Prepares a mode. A share that cannot be had, since a number would leave its range, refuses.
    pub(crate) fn new(mode: FailureMode, limit: &LimitSpec, max_keys: usize) -> Self {
        let share = match mode {
            FailureMode::Allow => return Self::Allow,
            FailureMode::Deny => return Self::Deny,
            FailureMode::LocalShare { millionths } => {
                share_of(limit.policy(), millionths.min(WHOLE))
            }
        };
        let options = MemoryOptions {
            max_keys,
            charge_denied: limit.charges_denied(),
            ..MemoryOptions::default()
        };
        match share {
            Ok(policy) => Self::Local(Box::new(Local {
                table: memory_limit(policy, options),
                hasher: KeyHasher::random(),
                shadow_hasher: KeyHasher::random(),
            })),
            Err(_) => Self::Deny,
        }
    }

    /// The table of a local share.
    pub(crate) fn local(&self) -> Option<&Local> {
        match self {
            Self::Local(local) => Some(local),
            Self::Allow | Self::Deny => None,
        }
    }
}

/// A decision without any state.
pub(crate) fn blind(limit: &LimitSpec, allow: bool, demand: &Demand, shadow: bool) -> Decision {
    let (verdict, retry_after) = if allow {
        (Verdict::Allow, Wait::ZERO)
    } else {
        (Verdict::Deny(Denial::Fallback), COME_BACK)
    };
    let policy = limit.policy();
    Decision {
        verdict,
        limit: with_algorithm!(policy, algorithm => limit_of(algorithm)),
        // Nothing is known, so nothing is promised.
        remaining: 0,
        cost: units(demand),
        delay: Wait::ZERO,
        retry_after,
        reset_after: retry_after,
        at: wall_clock(),
        binding: 0,
        shadow,
        source: Source::Fallback,
    }
}

fn limit_of<A: tidegate_core::Algorithm>(algorithm: &A) -> u32 {
    algorithm.limit()
}

const fn units(demand: &Demand) -> u32 {
    match demand {
        Demand::Take { cost } => *cost,
        Demand::Acquire { weight, .. } => *weight,
        Demand::Attempt { .. } => 1,
    }
}

/// The machine's clock.
pub(crate) fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    });
    Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX)
}

/// The time for local shares: the machine's clock as it was when first asked, and never back.
pub(crate) fn local_now() -> Timestamp {
    static SET: LazyLock<(Instant, Timestamp)> = LazyLock::new(|| (Instant::now(), wall_clock()));
    let (set, to) = *SET;
    let elapsed = u64::try_from(set.elapsed().as_micros()).unwrap_or(u64::MAX);
    let micros = to.as_micros().saturating_add(elapsed);
    Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX)
}

/// A limit of a share of another's numbers. Periods stay.
fn share_of(policy: &Policy, millionths: u32) -> Result<Policy, PolicyError> {
    let of = |count: u32| -> u32 {
        let share = u64::from(count) * u64::from(millionths) / u64::from(WHOLE);
        // It is at most what it is a share of.
        let share = u32::try_from(share).unwrap_or(count);
        share.max(u32::from(count > 0))
    };
    Ok(match policy {
        Policy::TokenBucket(bucket) => TokenBucket::new(
            rate_share(bucket.rate(), millionths)?,
            of(bucket.capacity()),
        )?
        .into(),
        Policy::IntervalBucket(bucket) => {
            let rate = bucket.rate();
            let rate = Rate::new(of(rate.count()), rate.period().0)?;
            IntervalBucket::new(rate, of(bucket.capacity()))?.into()
        }
        Policy::LeakyBucket(queue) => {
            let rate = rate_share(queue.rate(), millionths)?;
            let (waiting, burst) = (of(queue.queue()), of(queue.burst()));
            LeakyBucket::new(rate, waiting, burst, queue.max_wait())?.into()
        }
        Policy::FixedWindow(window) => match window.align() {
            Align::Calendar(calendar) => {
                FixedWindow::calendar(of(window.max()), std::sync::Arc::clone(calendar))?.into()
            }
            align => FixedWindow::new(of(window.max()), window.period(), align.clone())?.into(),
        },
        Policy::SlidingLog(log) => SlidingLog::new(of(log.max()), log.period())?.into(),
        Policy::StrictWindow(window) => {
            StrictWindow::new(of(window.max()), window.period(), window.cells())?.into()
        }
        Policy::InterpolatedWindow(window) => {
            InterpolatedWindow::new(of(window.max()), window.period())?.into()
        }
        Policy::Concurrency(permits) => {
            Concurrency::new(of(permits.permits()), permits.lease(), permits.max_hold())?.into()
        }
        Policy::Lockout(lockout) => Lockout::new(LockoutSettings {
            failures: of(lockout.settings().failures),
            ..*lockout.settings()
        })?
        .into(),
    })
}

/// A share of a rate: exact where that is in range, so that one token a minute becomes one in two
/// minutes.
fn rate_share(rate: Rate, millionths: u32) -> Result<Rate, PolicyError> {
    let count = u128::from(rate.count()) * u128::from(millionths);
    let period = u128::from(rate.period().0) * u128::from(WHOLE);
    let divisor = greatest_common_divisor(count, period);
    let exact = (
        u32::try_from(count / divisor),
        u64::try_from(period / divisor),
    );
    if let (Ok(count), Ok(period)) = exact
        && let Ok(rate) = Rate::new(count, period)
    {
        return Ok(rate);
    }
    let count = u32::try_from(count / u128::from(WHOLE)).unwrap_or(rate.count());
    Rate::new(count, rate.period().0)
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    // Periods are never 0.
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Micros;

    fn half(policy: impl Into<Policy>) -> Policy {
        share_of(&policy.into(), WHOLE / 2).unwrap()
    }

    #[test]
    fn counts_are_rounded_down_to_one_at_least_and_nothing_stays_nothing() {
        let limits = [(0, 0), (1, 1), (2, 1), (3, 1), (100, 50), (100_000, 50_000)];
        for (whole, expected) in limits {
            let Policy::SlidingLog(log) = half(SlidingLog::new(whole, Micros(7)).unwrap()) else {
                panic!("another algorithm");
            };
            assert_eq!((log.max(), log.period()), (expected, Micros(7)));
        }
    }

    #[test]
    fn a_share_of_a_rate_is_exact_where_it_can_be() {
        let check = |count, period, millionths, expected_count: u32, expected_period: u128| {
            let share = rate_share(Rate::new(count, period).unwrap(), millionths).unwrap();
            assert_eq!(
                u128::from(share.count()) * expected_period,
                u128::from(expected_count) * u128::from(share.period().0),
                "{share:?}"
            );
        };
        check(100, 1_000_000, 500_000, 50, 1_000_000);
        check(1, 60_000_000, 500_000, 1, 120_000_000);
        check(3, 600_000_000, 333_333, 999_999, 600_000_000_000_000);
        check(7, 1_000, 0, 0, 1_000);
        // Exactly, it would be less than one in ten years.
        let rare = Rate::new(1, tidegate_core::MAX_PERIOD.0).unwrap();
        assert_eq!(rate_share(rare, 500_000).unwrap().count(), 0);
    }

    #[test]
    fn every_algorithm_has_a_share() {
        let second = Micros::from_secs(1);
        let rate = Rate::per_second(10).unwrap();
        let policies: [Policy; 9] = [
            TokenBucket::new(rate, 20).unwrap().into(),
            IntervalBucket::new(rate, 20).unwrap().into(),
            LeakyBucket::new(rate, 20, 2, None).unwrap().into(),
            FixedWindow::new(10, second, Align::FirstUse)
                .unwrap()
                .into(),
            SlidingLog::new(10, second).unwrap().into(),
            StrictWindow::new(10, second, 60).unwrap().into(),
            InterpolatedWindow::new(10, second).unwrap().into(),
            Concurrency::new(10, second, None).unwrap().into(),
            Lockout::new(LockoutSettings {
                failures: 10,
                period: second,
                ban: second,
                factor: 2,
                max_ban: second,
                jitter: Micros::ZERO,
                forget_after: second,
                long_cap: None,
            })
            .unwrap()
            .into(),
        ];
        for policy in &policies {
            let limit = |policy: &Policy| with_algorithm!(policy, algorithm => limit_of(algorithm));
            let share = share_of(policy, WHOLE / 2).unwrap();
            assert_eq!(share.algorithm_name(), policy.algorithm_name());
            assert_eq!(
                limit(&share),
                limit(policy) / 2,
                "{}",
                policy.algorithm_name()
            );
        }
    }
}

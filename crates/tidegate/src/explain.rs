//! What a configured limit admits, in words and figures: for people who choose numbers.
//!
//! All figures are per key, on the key's own time, and hold whatever the traffic. The figures come
//! from [`tidegate_core::bounds`], the words from here.

mod memory;
mod sharing;
mod warnings;
mod words;

use tidegate_config::AlgorithmProblem;
use tidegate_config::model::{Limit, Mode};
use tidegate_core::{Align, LockoutSettings, Micros, Policy, Rate, Timestamp, Wait, bounds};

pub use memory::MemoryPerKey;
pub use sharing::{Sharing, sharing};
pub use warnings::Warning;

/// Everything that there is to say about one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The limit's name.
    pub name: String,
    /// The algorithm and its numbers in one line, as the header of a timeline has them.
    pub algorithm: String,
    /// What it does, in a sentence.
    pub sentence: String,
    /// Whose calls are counted together, in words.
    pub counted_by: String,
    /// How far it is enforced.
    pub mode: Mode,
    /// What a call costs.
    pub cost: u32,
    /// What passes in the long run; none where no rate bounds it.
    pub sustained: Option<Rate>,
    /// The same in words.
    pub sustained_words: String,
    /// The most that passes at one moment.
    pub burst: u32,
    /// The most that passes within some windows, the shortest first.
    pub admits: Vec<Admission>,
    /// How long a refused call waits at most until it fits, if nothing else happens.
    pub longest_wait: LongestWait,
    /// What a key takes up in memory.
    pub memory: MemoryPerKey,
    /// The traffic that reaches the figures.
    pub worst_traffic: String,
    /// What to think about before relying on it.
    pub warnings: Vec<Warning>,
}

/// The most that passes in any window of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The length of the window.
    pub window: Micros,
    /// Units of cost; none where the limit does not bound what passes.
    pub most: Option<u64>,
    /// Why this window is shown.
    pub reason: WindowReason,
}

/// Why a window is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WindowReason {
    /// It was asked for.
    Asked,
    /// It is the limit's own: that of a window or quota, or the time in which a bucket fills.
    Own,
    /// One second, for comparison.
    Second,
}

/// How long a refused call waits at most until it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongestWait {
    /// So long.
    Exactly(Micros),
    /// Until somebody else is done, or so long after a holder died.
    UntilReleased(Micros),
    /// Waiting cannot help.
    Never,
}

/// Explains a limit, and what it admits in some more windows.
///
/// # Errors
/// None for a limit that came from a document and was not changed since.
pub fn explain(limit: &Limit, windows: &[Micros]) -> Result<Explanation, AlgorithmProblem> {
    let policy = limit.policy(Timestamp::EPOCH)?;
    let admits = admissions(&policy, own_period(&policy), windows);
    Ok(Explanation {
        name: limit.name.clone(),
        algorithm: limit.algorithm.to_string(),
        sentence: words::sentence(&limit.algorithm, &policy),
        counted_by: words::counted_by(&limit.key),
        mode: limit.mode,
        cost: limit.cost,
        sustained: sustained(&policy),
        sustained_words: words::sustained(&limit.algorithm, sustained(&policy)),
        burst: burst(&policy),
        longest_wait: longest_wait(&policy, limit.cost),
        memory: memory::per_key(&policy),
        worst_traffic: words::worst_traffic(&policy),
        warnings: warnings::warnings(limit, &policy),
        admits,
    })
}

/// Windows for a plot of what limits admit: evenly spread over the powers from a thousandth of the
/// shortest period of the limits to ten times the longest, with the steps of the limits among them.
///
/// Limits without a period of their own count as one second. The windows rise.
///
/// # Errors
/// As [`explain`].
pub fn plot_windows(limits: &[&Limit], points: u32) -> Result<Vec<Micros>, AlgorithmProblem> {
    let mut periods = Vec::new();
    for limit in limits {
        let policy = limit.policy(Timestamp::EPOCH)?;
        periods.push(own_period(&policy).unwrap_or(Micros::from_secs(1)).0.max(1));
    }
    let shortest = periods.iter().min().copied().unwrap_or(1_000_000);
    let longest = periods.iter().max().copied().unwrap_or(1_000_000);
    let (from, to) = ((shortest / 1_000).max(1), longest.saturating_mul(10));
    let factor = (to as f64 / from as f64).powf(1.0 / f64::from(points.max(2) - 1));
    let mut windows: Vec<u64> = (0..points)
        .map(|point| {
            let window = from as f64 * factor.powf(f64::from(point));
            // Periods are at most ten years, so ten of them stay within what 53 bits hold.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let window = window.round() as u64;
            window.clamp(from, to)
        })
        .collect();
    for period in periods {
        // Steps lie at whole periods, and one microsecond after.
        let whole = (1..=10).map(|times| period.saturating_mul(times));
        windows.extend(whole.flat_map(|window| [window, window.saturating_add(1)]));
    }
    windows.retain(|window| (from..=to).contains(window));
    windows.sort_unstable();
    windows.dedup();
    Ok(windows.into_iter().map(Micros).collect())
}

/// The window that a limit is about: its period, or the time in which a bucket fills. None for
/// concurrency.
///
/// # Errors
/// As [`explain`].
pub fn own_window(limit: &Limit) -> Result<Option<Micros>, AlgorithmProblem> {
    Ok(own_period(&limit.policy(Timestamp::EPOCH)?))
}

/// The most that a limit admits within each of some windows; none where nothing bounds it.
///
/// # Errors
/// As [`explain`].
pub fn admitted_within(
    limit: &Limit,
    windows: &[Micros],
) -> Result<Vec<Option<u64>>, AlgorithmProblem> {
    let policy = limit.policy(Timestamp::EPOCH)?;
    let most = windows
        .iter()
        .map(|window| bounds::admitted(&policy, *window));
    Ok(most.collect())
}

fn admissions(policy: &Policy, own: Option<Micros>, asked: &[Micros]) -> Vec<Admission> {
    let asked = asked.iter().map(|window| (*window, WindowReason::Asked));
    let own = own.map(|window| (window, WindowReason::Own));
    let second = (Micros::from_secs(1), WindowReason::Second);
    let mut windows: Vec<_> = asked.chain(own).chain([second]).collect();
    windows.sort();
    windows.dedup_by_key(|(window, _)| *window);
    windows
        .into_iter()
        .map(|(window, reason)| Admission {
            window,
            most: bounds::admitted(policy, window),
            reason,
        })
        .collect()
}

/// The window that a limit is about; none for concurrency.
fn own_period(policy: &Policy) -> Option<Micros> {
    match policy {
        Policy::TokenBucket(bucket) => {
            Some(time_for(bucket.rate(), bucket.capacity()).unwrap_or(bucket.rate().period()))
        }
        Policy::IntervalBucket(bucket) => {
            Some(intervals_for(bucket.rate(), bucket.capacity()).unwrap_or(bucket.rate().period()))
        }
        Policy::LeakyBucket(bucket) => Some(bucket.rate().period()),
        Policy::FixedWindow(window) => Some(match window.align() {
            Align::Calendar(calendar) => calendar.shortest(),
            _ => window.period(),
        }),
        Policy::SlidingLog(log) => Some(log.period()),
        Policy::StrictWindow(window) => Some(window.period()),
        Policy::InterpolatedWindow(window) => Some(window.period()),
        Policy::Concurrency(_) => None,
        Policy::Lockout(lockout) => Some(lockout.settings().period),
    }
}

/// How long a rate takes to bring so much, rounded up; none if it never does, or takes no time.
fn time_for(rate: Rate, amount: u32) -> Option<Micros> {
    let all = u128::from(amount) * u128::from(rate.period().0);
    let time = all.div_ceil(u128::from(rate.count()).max(1));
    (rate.count() > 0 && amount > 0).then(|| Micros(u64::try_from(time).unwrap_or(u64::MAX)))
}

/// The same where all of a period's tokens come at its end.
fn intervals_for(rate: Rate, amount: u32) -> Option<Micros> {
    let intervals = u64::from(amount.div_ceil(rate.count().max(1)));
    let time = Micros(intervals.saturating_mul(rate.period().0));
    (rate.count() > 0 && amount > 0).then_some(time)
}

fn sustained(policy: &Policy) -> Option<Rate> {
    let rate = |count: u32, period: Micros| Rate::new(count, period.0).ok();
    match policy {
        Policy::TokenBucket(bucket) if bucket.capacity() > 0 => Some(bucket.rate()),
        Policy::IntervalBucket(bucket) => rate(
            bucket.rate().count().min(bucket.capacity()),
            bucket.rate().period(),
        ),
        Policy::TokenBucket(bucket) => rate(0, bucket.rate().period()),
        Policy::LeakyBucket(bucket) => Some(bucket.rate()),
        Policy::FixedWindow(window) => rate(window.max(), window.period()),
        Policy::SlidingLog(log) => rate(log.max(), log.period()),
        // Steady traffic meets the longest window that is ever looked back over.
        Policy::StrictWindow(window) => rate(window.max(), window.longest_window()),
        Policy::InterpolatedWindow(window) => rate(window.max(), window.period()),
        Policy::Concurrency(_) => None,
        // Who stays one failure short of a ban guesses like this for ever, unless a cap ends it.
        Policy::Lockout(lockout) => {
            let settings = lockout.settings();
            let patient = rate(settings.failures.saturating_sub(1), settings.period);
            let capped = settings
                .long_cap
                .and_then(|(cap, period)| rate(cap, period));
            [patient, capped].into_iter().flatten().min_by(|a, b| {
                let product = |a: &Rate, b: &Rate| u128::from(a.count()) * u128::from(b.period().0);
                product(a, b).cmp(&product(b, a))
            })
        }
    }
}

fn burst(policy: &Policy) -> u32 {
    match policy {
        Policy::TokenBucket(bucket) => bucket.capacity(),
        Policy::IntervalBucket(bucket) => bucket.capacity(),
        Policy::LeakyBucket(bucket) => bucket.burst(),
        Policy::FixedWindow(window) => window.max(),
        Policy::SlidingLog(log) => log.max(),
        Policy::StrictWindow(window) => window.max(),
        Policy::InterpolatedWindow(window) => window.max(),
        Policy::Concurrency(concurrency) => concurrency.permits(),
        Policy::Lockout(lockout) => lockout.settings().failures,
    }
}

/// The most that the limit can ever hold, beyond which a cost is impossible.
fn most(policy: &Policy) -> u32 {
    match policy {
        Policy::LeakyBucket(bucket) => bucket.queue().saturating_add(bucket.burst()),
        _ => burst(policy),
    }
}

/// Whether a call of this cost passes on a fresh key.
fn can_pass(policy: &Policy, cost: u32) -> bool {
    if cost > most(policy) {
        return false;
    }
    match policy {
        // What goes beyond the burst has to wait even then.
        Policy::LeakyBucket(bucket) if cost > bucket.burst() => {
            let delay = time_for(bucket.rate(), cost - bucket.burst());
            delay.is_some_and(|delay| bucket.max_wait().is_none_or(|most| delay <= most))
        }
        _ => true,
    }
}

fn longest_wait(policy: &Policy, cost: u32) -> LongestWait {
    if cost == 0 {
        return LongestWait::Exactly(Micros::ZERO);
    }
    if !can_pass(policy, cost) {
        return LongestWait::Never;
    }
    let wait = match policy {
        Policy::TokenBucket(bucket) => time_for(bucket.rate(), cost),
        Policy::IntervalBucket(bucket) => intervals_for(bucket.rate(), cost),
        Policy::LeakyBucket(bucket) => time_for(bucket.rate(), cost),
        Policy::FixedWindow(window) => Some(window.period()),
        Policy::SlidingLog(log) => Some(log.period()),
        Policy::StrictWindow(window) => Some(window.longest_window()),
        // All at the start of a window: it has to end, and to fade from the next one.
        Policy::InterpolatedWindow(window) => {
            let fade = Rate::new(window.max(), window.period().0).ok();
            let fade = fade.and_then(|rate| time_for(rate, cost));
            fade.map(|fade| Micros(fade.0.saturating_add(window.period().0)))
        }
        Policy::Concurrency(concurrency) => {
            return LongestWait::UntilReleased(concurrency.lease());
        }
        Policy::Lockout(lockout) => {
            let settings = lockout.settings();
            let ban = longest_ban(settings).0.saturating_add(settings.jitter.0);
            let cap = settings.long_cap.map_or(0, |(_, period)| period.0);
            Some(Micros(ban.max(cap)))
        }
    };
    wait.map_or(LongestWait::Never, LongestWait::Exactly)
}

/// The ban that bans grow to, without jitter.
fn longest_ban(settings: &LockoutSettings) -> Micros {
    if settings.factor > 1 {
        settings.max_ban
    } else {
        settings.ban.min(settings.max_ban)
    }
}

impl From<LongestWait> for Wait {
    /// The figure alone, for machines.
    fn from(wait: LongestWait) -> Self {
        match wait {
            LongestWait::Exactly(length) | LongestWait::UntilReleased(length) => {
                Self::micros(length.0)
            }
            LongestWait::Never => Self::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Limiter, Operation, Reply};
    use proptest::prelude::*;
    use tidegate_config::{Purpose, algorithm_from_pairs, parse};
    use tidegate_core::Demand;

    fn policy(header: &str) -> Policy {
        let words: Vec<&str> = header.split_whitespace().collect();
        let pairs: Vec<(&str, &str)> = words[1..]
            .chunks(2)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        let algorithm = algorithm_from_pairs(words[0], &pairs).unwrap();
        algorithm.policy(Timestamp::EPOCH).unwrap()
    }

    fn explained(limits: &str, windows: &[Micros]) -> Vec<Explanation> {
        let checked = parse("test.yaml", limits, Purpose::Inspect).unwrap();
        checked
            .config
            .limits
            .iter()
            .map(|limit| explain(limit, windows).unwrap())
            .collect()
    }

    fn within(explanation: &Explanation, window: Micros) -> Option<u64> {
        let found = explanation
            .admits
            .iter()
            .find(|admission| admission.window == window);
        found.unwrap().most
    }

    #[test]
    fn the_bucket_for_one_time_passwords_admits_six_and_the_log_three() {
        let explained = explained(
            "limits:
               bucket: { algorithm: { token_bucket: { rate: 1/200s, capacity: 3, refill: interval } } }
               smooth: { algorithm: { token_bucket: { rate: 1/200s, capacity: 3 } } }
               log: { algorithm: { sliding_log: { limit: 3/10m } } }",
            &[Micros::from_secs(600)],
        );
        let ten_minutes = Micros::from_secs(600);
        assert_eq!(within(&explained[0], ten_minutes), Some(6));
        assert_eq!(within(&explained[1], ten_minutes), Some(5));
        assert_eq!(within(&explained[2], ten_minutes), Some(3));
        let warning = &explained[0].warnings[0];
        assert!(
            warning.message.contains("admits 6 within 10m"),
            "{}",
            warning.message
        );
        assert!(
            warning
                .help
                .as_ref()
                .unwrap()
                .contains("sliding_log: { limit: 3/10m }")
        );
        assert_eq!(explained[2].warnings, []);
    }

    #[test]
    fn a_bucket_against_load_is_not_warned_about() {
        let explained = explained(
            "limits: { stage: { algorithm: { token_bucket: { rate: 100/s, capacity: 200 } } } }",
            &[],
        );
        assert_eq!(explained[0].warnings, []);
        assert_eq!(explained[0].burst, 200);
        assert_eq!(explained[0].sustained_words, "100 per second");
        assert_eq!(within(&explained[0], Micros::from_secs(2)), Some(399));
    }

    #[test]
    fn what_denies_everything_or_nothing_says_so() {
        let explained = explained(
            "limits:
               closed: { algorithm: { sliding_log: { limit: 0/1m } } }
               dear: { algorithm: { gcra: { rate: 1/s, burst: 2 } }, cost: 3 }
               watched: { algorithm: { sliding_log: { limit: 5/1m } }, mode: shadow }
               partly: { algorithm: { sliding_log: { limit: 5/1m } }, mode: 10% }
               leases: { algorithm: { concurrency: { limit: 5, lease: 30s } } }",
            &[],
        );
        let said = |index: usize| explained[index].warnings[0].message.as_str();
        assert_eq!(said(0), "denies everything");
        assert_eq!(
            said(1),
            "denies everything: a call costs 3, which does not fit into 2"
        );
        assert!(said(2).contains("shadow"), "{}", said(2));
        assert!(said(3).contains("10 %"), "{}", said(3));
        assert!(said(4).contains("at once"), "{}", said(4));
        assert_eq!(explained[0].longest_wait, LongestWait::Never);
        assert_eq!(explained[1].longest_wait, LongestWait::Never);
        assert_eq!(within(&explained[4], Micros::from_secs(1)), None);
    }

    /// The longest wait of a denial under some traffic, and whether all were finite.
    fn longest_denial(policy: &Policy, steps: &[(u64, u32)]) -> Option<u64> {
        let limiter = Limiter::builder(policy.clone()).build();
        let key = Key::new(b"k");
        let mut now = 1_000_000_000_000;
        let mut longest = 0;
        for (step, repeat) in steps {
            now += step;
            for seed in 0..*repeat {
                let demand = match policy {
                    Policy::Lockout(_) => Demand::Attempt {
                        seed: u64::from(seed) * 77,
                    },
                    _ => Demand::Take { cost: 1 },
                };
                let now = Timestamp::from_micros(now).unwrap();
                let reply = limiter.apply(&key, now, &Operation::Take(demand)).unwrap();
                let Reply::Decision(decision) = reply else {
                    panic!("no decision")
                };
                if !decision.is_allowed() {
                    longest = longest.max(decision.retry_after.as_micros()?);
                }
            }
        }
        Some(longest)
    }

    #[test]
    fn a_call_that_fits_no_fresh_key_never_passes_and_a_free_one_never_waits() {
        for (header, cost, expected) in [
            (
                "leaky_bucket rate 1/1s queue 9 burst 2 max_wait 2s",
                4,
                true,
            ),
            (
                "leaky_bucket rate 1/1s queue 9 burst 2 max_wait 2s",
                5,
                false,
            ),
            ("leaky_bucket rate 1/1s queue 9 burst 2", 11, true),
            ("leaky_bucket rate 1/1s queue 9 burst 2", 12, false),
            ("leaky_bucket rate 0/1s queue 9 burst 2", 2, true),
            ("sliding_log limit 3/1s", 3, true),
            ("sliding_log limit 3/1s", 4, false),
        ] {
            let policy = policy(header);
            let limiter = Limiter::builder(policy.clone()).build();
            let now = Timestamp::from_micros(1_000_000).unwrap();
            let decision = limiter.try_take_at("k", cost, now);
            assert_eq!(decision.is_allowed(), expected, "{header}, cost {cost}");
            assert_eq!(can_pass(&policy, cost), expected, "{header}, cost {cost}");
            assert_eq!(longest_wait(&policy, 0), LongestWait::Exactly(Micros::ZERO));
        }
    }

    const HEADERS: [&str; 15] = [
        "token_bucket rate 3/1s capacity 5",
        "token_bucket rate 3/1s capacity 5 refill interval",
        "token_bucket rate 7/1s capacity 3 refill interval",
        "gcra rate 1/7ms burst 1",
        "leaky_bucket rate 3/1s queue 4",
        "leaky_bucket rate 3/1s queue 9 burst 3 max_wait 500ms",
        "fixed_window limit 3/1s",
        "fixed_window limit 3/1s align first_use",
        "quota limit 3 per day time_zone America/New_York",
        "sliding_log limit 3/1s",
        "sliding_window limit 3/1s cells 4",
        "sliding_window limit 3/1s mode interpolated",
        "lockout failures 3/1s ban 500ms",
        "lockout failures 3/1s ban 2s factor 3 max_ban 9s jitter 1s",
        "lockout failures 3/1s ban 2s long_cap 7/1m",
    ];

    #[test]
    fn the_longest_wait_is_reached() {
        // Everything at one moment, at the start of a window where there is one.
        for header in HEADERS {
            let policy = policy(header);
            let LongestWait::Exactly(longest) = longest_wait(&policy, 1) else {
                panic!("{header}: no longest wait")
            };
            let mut reached = 0;
            for step in [0, 1, 1_000_000, 13 * 3_600_000_000] {
                let mut steps = vec![(step, 40)];
                // Bans that grow, and failures after short bans up to a long cap.
                for pause in [longest.0, 2_000_000] {
                    steps.extend([(pause, 40); 3]);
                    reached = reached.max(longest_denial(&policy, &steps).unwrap());
                }
            }
            let exact = !matches!(policy, Policy::FixedWindow(_) | Policy::Lockout(_))
                && !header.contains("max_wait");
            assert!(reached <= longest.0, "{header}: {reached} above {longest}");
            assert!(
                reached * 2 >= longest.0,
                "{header}: {reached} far below {longest}"
            );
            if exact {
                assert_eq!(reached, longest.0, "{header}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_denial_waits_longer_than_the_longest_wait(
            header in prop::sample::select(HEADERS.to_vec()),
            steps in prop::collection::vec((0_u64..3_000_000, 0_u32..6), 1..60),
        ) {
            let policy = policy(header);
            let LongestWait::Exactly(longest) = longest_wait(&policy, 1) else {
                panic!("{header}: no longest wait")
            };
            let waited = longest_denial(&policy, &steps);
            prop_assert!(waited.is_some_and(|waited| waited <= longest.0), "{header}: {waited:?}");
        }

        #[test]
        fn any_numbers_can_be_explained(
            count in 0..=tidegate_core::MAX_COUNT,
            period in 1..=tidegate_core::MAX_PERIOD.0,
            capacity in 0..=tidegate_core::MAX_COUNT,
            cost in 0..=tidegate_core::MAX_COUNT,
            shape in 0..6,
        ) {
            let algorithm = match shape {
                0 => format!("token_bucket: {{ rate: {count}/{period}us, capacity: {capacity} }}"),
                1 => format!(
                    "token_bucket: {{ rate: {count}/{period}us, capacity: {capacity}, refill: interval }}"
                ),
                2 => format!("leaky_bucket: {{ rate: {count}/{period}us, queue: {} }}", capacity / 2),
                3 => format!("fixed_window: {{ limit: {count}/{period}us }}"),
                4 => format!("sliding_window: {{ limit: {count}/{period}us }}"),
                _ => format!("sliding_window: {{ limit: {count}/{period}us, mode: interpolated }}"),
            };
            let text = format!("limits: {{ a: {{ algorithm: {{ {algorithm} }}, cost: {cost} }} }}");
            let explained = explained(&text, &[Micros(period)]);
            prop_assert_eq!(explained.len(), 1);
        }
    }
}

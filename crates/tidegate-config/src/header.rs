//! An algorithm in one line, as the header of a timeline writes it, and back.
//!
//! `token_bucket rate 1/2s capacity 5 refill interval` is the document's
//! `{ token_bucket: { rate: 1/2s, capacity: 5, refill: interval } }`. Defaults are left out, and
//! no value contains a space.

use std::fmt;

use crate::algorithm::{
    AlgorithmConfig, Align, ConcurrencyConfig, FixedWindowConfig, LeakyBucketConfig, LockoutConfig,
    QuotaConfig, Refill, SlidingWindowConfig, TokenBucketConfig, WindowMode,
};
use crate::decode::decode;
use crate::node::Node;
use crate::report::Problem;
use crate::zone::Zone;

/// Why something is no algorithm, with the remedy in the same line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AlgorithmError(String);

impl AlgorithmError {
    fn from_problems(problems: &[Problem]) -> Self {
        let lines = problems.iter().map(|problem| {
            let mut line = problem.message.clone();
            for help in &problem.help {
                line.push_str("; ");
                line.push_str(help);
            }
            line
        });
        Self(lines.collect::<Vec<_>>().join("; "))
    }
}

/// Reads an algorithm from its JSON form: `{"token_bucket": {"rate": "2/s", "capacity": 10}}`.
///
/// # Errors
/// An unknown algorithm or field, a value that is none, or fields that do not go together.
///
/// ```
/// let json = serde_json::json!({ "token_bucket": { "rate": "2/s", "capacity": 10 } });
/// let algorithm = tidegate_config::algorithm_from_json(&json)?;
/// assert_eq!(algorithm.to_string(), "token_bucket rate 2/s capacity 10");
/// # Ok::<(), tidegate_config::AlgorithmError>(())
/// ```
pub fn algorithm_from_json(value: &serde_json::Value) -> Result<AlgorithmConfig, AlgorithmError> {
    from_node(&Node::from_json(value))
}

/// Reads an algorithm from the pairs of a timeline's header.
///
/// # Errors
/// An unknown algorithm or field, a field that is there twice, a value that is none, or fields
/// that do not go together.
///
/// ```
/// let pairs = [("rate", "1/2s"), ("capacity", "5"), ("refill", "interval")];
/// let algorithm = tidegate_config::algorithm_from_pairs("token_bucket", &pairs)?;
/// assert_eq!(algorithm.to_string(), "token_bucket rate 1/2s capacity 5 refill interval");
/// # Ok::<(), tidegate_config::AlgorithmError>(())
/// ```
pub fn algorithm_from_pairs(
    algorithm: &str,
    pairs: &[(&str, &str)],
) -> Result<AlgorithmConfig, AlgorithmError> {
    for (at, (name, _)) in pairs.iter().enumerate() {
        if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(AlgorithmError(format!(
                "`{name}` is there twice; keep one of them"
            )));
        }
    }
    let fields = Node::map(
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Node::scalar(*value))),
    );
    from_node(&Node::map([(algorithm.to_owned(), fields)]))
}

fn from_node(node: &Node) -> Result<AlgorithmConfig, AlgorithmError> {
    let mut problems = Vec::new();
    let algorithm: Option<AlgorithmConfig> = decode(node, &mut problems);
    let algorithm = match algorithm {
        Some(algorithm) if problems.is_empty() => algorithm,
        _ => return Err(AlgorithmError::from_problems(&problems)),
    };
    match algorithm.policy(tidegate_core::Timestamp::EPOCH) {
        Ok(_) => Ok(algorithm),
        Err(problem) => Err(AlgorithmError(format!(
            "{}; {}",
            problem.message, problem.help
        ))),
    }
}

impl fmt::Display for AlgorithmConfig {
    /// Writes the header's form: required fields first, then what differs from its default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut pairs = Pairs { f };
        match self {
            Self::TokenBucket(config) => write_token_bucket(config, &mut pairs),
            Self::Gcra(config) => {
                pairs.put("rate", config.rate.0)?;
                pairs.put("burst", config.burst.0)
            }
            Self::LeakyBucket(config) => write_leaky_bucket(config, &mut pairs),
            Self::FixedWindow(config) => write_fixed_window(config, &mut pairs),
            Self::Quota(config) => write_quota(config, &mut pairs),
            Self::SlidingLog(config) => pairs.put("limit", config.limit.0),
            Self::SlidingWindow(config) => write_sliding_window(config, &mut pairs),
            Self::Concurrency(config) => write_concurrency(config, &mut pairs),
            Self::Lockout(config) => write_lockout(config, &mut pairs),
        }
    }
}

struct Pairs<'f, 'b> {
    f: &'f mut fmt::Formatter<'b>,
}

impl Pairs<'_, '_> {
    fn put(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.f, " {name} {value}")
    }

    fn put_if(&mut self, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.put(name, value))
    }
}

fn write_token_bucket(config: &TokenBucketConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("rate", config.rate.0)?;
    pairs.put("capacity", config.capacity.0)?;
    pairs.put_if(
        "refill",
        (config.refill == Refill::Interval).then_some("interval"),
    )?;
    pairs.put_if("initial", config.initial.map(|initial| initial.0))
}

fn write_leaky_bucket(config: &LeakyBucketConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("rate", config.rate.0)?;
    pairs.put_if("queue", Some(config.queue.0).filter(|queue| *queue != 0))?;
    pairs.put_if("burst", Some(config.burst.0).filter(|burst| *burst != 1))?;
    pairs.put_if("max_wait", config.max_wait.map(|wait| wait.0))
}

fn write_fixed_window(config: &FixedWindowConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("limit", config.limit.0)?;
    pairs.put_if(
        "align",
        match config.align {
            Align::Epoch => None,
            Align::FirstUse => Some("first_use"),
            Align::Calendar => Some("calendar"),
        },
    )?;
    pairs.put_if("time_zone", config.time_zone.as_ref())
}

fn write_quota(config: &QuotaConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("limit", config.limit.0)?;
    pairs.put("per", config.per)?;
    pairs.put_if(
        "time_zone",
        Some(&config.time_zone).filter(|zone| **zone != Zone::default()),
    )?;
    pairs.put_if("starts_on", config.starts_on)
}

fn write_sliding_window(config: &SlidingWindowConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("limit", config.limit.0)?;
    pairs.put_if("cells", config.cells.map(|cells| cells.0))?;
    pairs.put_if(
        "mode",
        (config.mode == WindowMode::Interpolated).then_some("interpolated"),
    )
}

fn write_concurrency(config: &ConcurrencyConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("limit", config.limit.0)?;
    pairs.put("lease", config.lease.0)?;
    pairs.put_if("max_hold", config.max_hold.map(|hold| hold.0))?;
    pairs.put_if("queue", Some(config.queue.0).filter(|queue| *queue != 0))?;
    pairs.put_if("max_wait", config.max_wait.map(|wait| wait.0))
}

fn write_lockout(config: &LockoutConfig, pairs: &mut Pairs<'_, '_>) -> fmt::Result {
    pairs.put("failures", config.failures.0)?;
    pairs.put("ban", config.ban.0)?;
    pairs.put_if(
        "factor",
        Some(config.factor.0).filter(|factor| *factor != 1),
    )?;
    pairs.put_if("max_ban", config.max_ban.map(|ban| ban.0))?;
    pairs.put_if(
        "jitter",
        Some(config.jitter.0).filter(|jitter| jitter.0 != 0),
    )?;
    pairs.put_if("forget_after", config.forget_after.map(|length| length.0))?;
    pairs.put_if("long_cap", config.long_cap.map(|cap| cap.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_line(line: &str) -> Result<AlgorithmConfig, AlgorithmError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs: Vec<(&str, &str)> = words[1..]
            .chunks(2)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        algorithm_from_pairs(words[0], &pairs)
    }

    #[test]
    fn every_algorithm_prints_as_the_header_that_it_was_read_from() {
        for line in [
            "token_bucket rate 1/2s capacity 5",
            "token_bucket rate 1/2s capacity 5 refill interval initial 0",
            "gcra rate 3/10m burst 1",
            "leaky_bucket rate 10/s",
            "leaky_bucket rate 10/s queue 20 burst 5 max_wait 2s",
            "fixed_window limit 100/m",
            "fixed_window limit 100/m align first_use",
            "fixed_window limit 100/d align calendar time_zone Asia/Shanghai",
            "quota limit 1000 per day",
            "quota limit 1000 per week time_zone America/New_York starts_on sunday",
            "quota limit 1000 per month starts_on 15",
            "quota limit 1000 per year starts_on 04-01",
            "sliding_log limit 100/m",
            "sliding_window limit 100/m cells 10",
            "sliding_window limit 100/m mode interpolated",
            "concurrency limit 32 lease 30s",
            "concurrency limit 32 lease 30s max_hold 5m queue 10 max_wait 5s",
            "lockout failures 5/15m ban 15m",
            "lockout failures 5/15m ban 15m factor 2 max_ban 1d jitter 1m forget_after 2d long_cap 100/30d",
            "token_bucket rate 0/s capacity 0",
        ] {
            assert_eq!(from_line(line).unwrap().to_string(), line);
        }
    }

    #[test]
    fn a_header_that_is_none_says_why_and_what_to_write() {
        for (line, expected) in [
            (
                "tokenbucket rate 1/s capacity 1",
                "did you mean `token_bucket`?",
            ),
            ("token_bucket rate 1/s", "`capacity` is missing"),
            (
                "token_bucket rate 1/s capacity 5 reffil interval",
                "did you mean `refill`?",
            ),
            (
                "token_bucket rate 1/s capacity 5 refill hourly",
                "`continuous`, `interval`",
            ),
            ("token_bucket rate 5 capacity 5", "such as 5/s"),
            (
                "token_bucket rate 1/s rate 2/s capacity 5",
                "`rate` is there twice",
            ),
            (
                "token_bucket rate 1/s capacity 5 initial 6",
                "above the capacity 5",
            ),
            ("sliding_log limit 100001/day", "sliding_window"),
            (
                "sliding_window limit 5/s cells 9 mode interpolated",
                "has no cells",
            ),
            ("concurrency limit 5 lease 10s max_hold 5s", "max_hold"),
            (
                "quota limit 5 per day time_zone Asia/Shangai",
                "did you mean `Asia/Shanghai`?",
            ),
            (
                "quota limit 5 per day starts_on monday",
                "starts at local midnight",
            ),
            ("fixed_window limit 5/1h align calendar", "1d or 7d"),
            ("lockout failures 5/15m ban 15m factor 0", "factor"),
        ] {
            let error = from_line(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn json_and_header_give_the_same_algorithm() {
        let json = serde_json::json!({
            "lockout": { "failures": "5/15m", "ban": "15m", "factor": 2, "max_ban": "1d" }
        });
        assert_eq!(
            algorithm_from_json(&json).unwrap(),
            from_line("lockout failures 5/15m ban 15m factor 2 max_ban 1d").unwrap()
        );
        for json in [
            serde_json::json!(null),
            serde_json::json!([]),
            serde_json::json!({}),
            serde_json::json!("token_bucket"),
            serde_json::json!({ "gcra": 5, "quota": 6 }),
            serde_json::json!({ "gcra": { "rate": -1, "burst": [] } }),
        ] {
            assert!(algorithm_from_json(&json).is_err(), "{json}");
        }
    }
}

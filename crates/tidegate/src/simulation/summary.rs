//! Totals of a simulation, per limit and per key.
//!
//! Numbers count calls, only `peak` counts units of cost: the most that one key asked for within
//! one period of its limit, in periods that begin at whole multiples of it since the epoch (in a
//! calendar window for a quota; for a concurrency limit the most at work at once). A limit that
//! never denied would need to be no larger than its peak.

use std::cmp::Reverse;
use std::fmt::Write as _;

use serde::Serialize;
use tidegate_core::{Align, Decision, FixedWindow, Micros, Policy, Timestamp};

use super::call::{Action, Call, LimitNumber, Target};
use super::keys::{KeyNumber, KeyText};
use super::output::JsonKey;
use super::replay::{Answer, Simulation};

/// How many keys the table of the most denied holds.
const MOST_DENIED: usize = 10;

/// What came of the calls of a key, or of all keys of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Calls made; a peek is none.
    pub asked: u64,
    /// Calls that passed.
    pub allowed: u64,
    /// Calls that this limit denied, or would have denied were it not in shadow.
    pub denied: u64,
    /// Calls that this limit would have let pass and another denied.
    pub denied_elsewhere: u64,
    /// The most denials of this limit without a call that passed between them.
    pub longest_denial_streak: u64,
    /// The most units that were asked for within one period.
    pub peak: u64,
}

/// Totals per limit and key, gathered call by call.
#[derive(Debug, Default)]
pub struct Summary {
    limits: Vec<LimitTotals>,
}

#[derive(Debug, Default)]
struct LimitTotals {
    period: Option<Period>,
    keys: Vec<KeyTotals>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyTotals {
    totals: Totals,
    streak: u64,
    /// The beginning of the period that `in_period` counts in.
    period: u64,
    in_period: u64,
}

/// Over which time the peak of a limit is measured.
#[derive(Clone, Debug)]
enum Period {
    Every(Micros),
    Calendar(FixedWindow),
    AtOnce,
}

impl Period {
    fn of(policy: &Policy) -> Self {
        match policy {
            Policy::TokenBucket(bucket) => Self::Every(bucket.rate().period()),
            Policy::IntervalBucket(bucket) => Self::Every(bucket.rate().period()),
            Policy::LeakyBucket(bucket) => Self::Every(bucket.rate().period()),
            Policy::FixedWindow(window) => match window.align() {
                Align::Calendar(_) => Self::Calendar(window.clone()),
                _ => Self::Every(window.period()),
            },
            Policy::SlidingLog(log) => Self::Every(log.period()),
            Policy::StrictWindow(window) => Self::Every(window.period()),
            Policy::InterpolatedWindow(window) => Self::Every(window.period()),
            Policy::Concurrency(_) => Self::AtOnce,
            Policy::Lockout(lockout) => Self::Every(lockout.settings().period),
        }
    }

    /// When the period began that `at` is in.
    fn start(&self, at: Timestamp) -> u64 {
        let micros = at.as_micros();
        match self {
            Self::Every(Micros(length)) => micros - micros % length,
            Self::Calendar(window) => match window.align() {
                Align::Calendar(calendar) => calendar.window(at).start.as_micros(),
                _ => 0,
            },
            Self::AtOnce => 0,
        }
    }

    const fn length(&self) -> Option<Micros> {
        match self {
            Self::Every(length) => Some(*length),
            Self::Calendar(window) => Some(window.period()),
            Self::AtOnce => None,
        }
    }
}

impl Summary {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a call and its answer.
    pub fn add(&mut self, simulation: &Simulation, call: &Call, answer: &Answer) {
        if let Action::SetPolicy(change) = &call.action {
            if let Some(limit) = self.limits.get_mut(change.limit.index()) {
                limit.period = None;
            }
            return;
        }
        let Some(decision) = answer.reply.decision() else {
            return;
        };
        let passed = decision.is_allowed() || decision.shadow;
        for (position, target) in call.targets.iter().enumerate() {
            let Some(units) = units(simulation, call, *target) else {
                return;
            };
            let own = answer.members.get(position).unwrap_or(decision);
            self.count(simulation, *target, call.at, units, passed, own);
        }
    }

    fn count(
        &mut self,
        simulation: &Simulation,
        target: Target,
        at: Timestamp,
        units: u32,
        passed: bool,
        own: &Decision,
    ) {
        let index = target.limit.index();
        if self.limits.len() <= index {
            self.limits.resize_with(index + 1, LimitTotals::default);
        }
        let limit = &mut self.limits[index];
        let period = limit
            .period
            .get_or_insert_with(|| Period::of(&simulation.limiter(target.limit).policy()));
        if limit.keys.len() <= target.key.index() {
            limit
                .keys
                .resize(target.key.index() + 1, KeyTotals::default());
        }
        let key = &mut limit.keys[target.key.index()];
        key.totals.asked += 1;
        if !own.is_within_limit() {
            key.totals.denied += 1;
            key.streak += 1;
            key.totals.longest_denial_streak = key.totals.longest_denial_streak.max(key.streak);
        } else if passed {
            key.totals.allowed += 1;
            key.streak = 0;
        } else {
            key.totals.denied_elsewhere += 1;
        }
        match period {
            Period::AtOnce => {
                key.totals.peak = key
                    .totals
                    .peak
                    .max(u64::from(own.limit.saturating_sub(own.remaining)));
            }
            period => {
                let start = period.start(at);
                if key.period != start {
                    key.period = start;
                    key.in_period = 0;
                }
                key.in_period += u64::from(units);
                key.totals.peak = key.totals.peak.max(key.in_period);
            }
        }
    }

    /// The totals of a limit over all its keys; streak and peak are the largest of any key.
    #[must_use]
    pub fn limit(&self, limit: LimitNumber) -> Totals {
        let mut sum = Totals::default();
        for key in self.keys(limit) {
            let Totals {
                asked,
                allowed,
                denied,
                denied_elsewhere,
                longest_denial_streak,
                peak,
            } = key.totals;
            sum.asked += asked;
            sum.allowed += allowed;
            sum.denied += denied;
            sum.denied_elsewhere += denied_elsewhere;
            sum.longest_denial_streak = sum.longest_denial_streak.max(longest_denial_streak);
            sum.peak = sum.peak.max(peak);
        }
        sum
    }

    fn keys(&self, limit: LimitNumber) -> &[KeyTotals] {
        self.limits
            .get(limit.index())
            .map_or(&[], |limit| &limit.keys)
    }

    /// The keys of a limit that asked at all, those that were denied most first.
    fn ranked(
        &self,
        simulation: &Simulation,
        limit: LimitNumber,
        most: usize,
    ) -> Vec<(Target, Totals)> {
        let mut keys: Vec<(Target, Totals)> = self
            .keys(limit)
            .iter()
            .zip(0..)
            .filter(|(key, _)| key.totals.asked > 0)
            .map(|(key, number)| {
                (
                    Target {
                        limit,
                        key: KeyNumber::new(number),
                    },
                    key.totals,
                )
            })
            .collect();
        let rank = |(target, totals): &(Target, Totals)| {
            (
                Reverse(totals.denied),
                Reverse(totals.asked),
                simulation.key(*target).as_bytes(),
            )
        };
        if most < keys.len() {
            keys.select_nth_unstable_by(most, |a, b| rank(a).cmp(&rank(b)));
            keys.truncate(most);
        }
        keys.sort_unstable_by(|a, b| rank(a).cmp(&rank(b)));
        keys
    }

    /// Over which time the peak of a limit is measured; none for what is at work at once.
    fn period(simulation: &Simulation, limit: LimitNumber) -> Option<Micros> {
        Period::of(&simulation.limiter(limit).policy()).length()
    }

    /// The totals as tables for people.
    #[must_use]
    pub fn table(&self, simulation: &Simulation) -> String {
        let limits: Vec<(LimitNumber, Totals)> = simulation
            .limits()
            .map(|limit| (limit, self.limit(limit)))
            .collect();
        let elsewhere = limits.iter().any(|(_, totals)| totals.denied_elsewhere > 0);
        let mut head = vec!["limit", "asked", "allowed", "denied"];
        if elsewhere {
            head.push("elsewhere");
        }
        head.extend(["denied %", "keys", "streak", "peak", "in"]);
        let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
        for (limit, totals) in &limits {
            let mut row = vec![simulation.name(*limit).to_owned()];
            row.extend([totals.asked, totals.allowed, totals.denied].map(|n| n.to_string()));
            if elsewhere {
                row.push(totals.denied_elsewhere.to_string());
            }
            let asking = self
                .keys(*limit)
                .iter()
                .filter(|key| key.totals.asked > 0)
                .count();
            row.push(share(totals.denied, totals.asked));
            row.push(asking.to_string());
            row.push(totals.longest_denial_streak.to_string());
            row.push(totals.peak.to_string());
            row.push(
                Self::period(simulation, *limit)
                    .map_or("at once".to_owned(), |period| period.to_string()),
            );
            rows.push(row);
        }
        let mut out = aligned(&rows);
        for (limit, totals) in limits {
            let name = simulation.name(limit);
            let _ = writeln!(out, "\n{name}: {}", simulation.header(limit));
            if totals.denied == 0 {
                let _ = writeln!(out, "nobody was denied");
                continue;
            }
            let mut rows = vec![
                [
                    "most denied",
                    "asked",
                    "allowed",
                    "denied",
                    "streak",
                    "peak",
                ]
                .map(ToOwned::to_owned)
                .to_vec(),
            ];
            for (target, totals) in self.ranked(simulation, limit, MOST_DENIED) {
                if totals.denied == 0 {
                    break;
                }
                let mut row = vec![KeyText(simulation.key(target)).to_string()];
                row.extend(
                    [
                        totals.asked,
                        totals.allowed,
                        totals.denied,
                        totals.longest_denial_streak,
                        totals.peak,
                    ]
                    .map(|n| n.to_string()),
                );
                rows.push(row);
            }
            out.push_str(&aligned(&rows));
        }
        out
    }

    /// The totals for machines: for each limit one JSON object with `"kind": "limit"`, then one
    /// with `"kind": "key"` for each of its keys, the most denied first.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn write_json(
        &self,
        simulation: &Simulation,
        out: &mut dyn std::io::Write,
    ) -> std::io::Result<()> {
        for limit in simulation.limits() {
            let keys = self.ranked(simulation, limit, usize::MAX);
            let most_denied = keys
                .iter()
                .take(MOST_DENIED)
                .filter(|(_, totals)| totals.denied > 0)
                .map(|(target, _)| JsonKey(simulation.key(*target)))
                .collect();
            let name = simulation.name(limit);
            let line = LimitLine {
                kind: "limit",
                limit: name,
                algorithm: simulation.header(limit),
                totals: self.limit(limit),
                peak_period_us: Self::period(simulation, limit).map(|period| period.0),
                keys: keys.len(),
                most_denied,
            };
            json_line(out, &line)?;
            for (target, totals) in &keys {
                let key = JsonKey(simulation.key(*target));
                json_line(
                    out,
                    &KeyLine {
                        kind: "key",
                        limit: name,
                        key,
                        totals: *totals,
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// What a call asks of a target; none where it only looks.
fn units(simulation: &Simulation, call: &Call, target: Target) -> Option<u32> {
    Some(match &call.action {
        Action::Request(_) => simulation.cost(target.limit),
        Action::Take(cost) | Action::TakeUpTo(cost) | Action::Force(cost) => *cost,
        Action::Acquire { weight, .. } => *weight,
        Action::Reserve(reserve) => reserve.cost,
        Action::Attempt => 1,
        _ => return None,
    })
}

fn json_line(out: &mut dyn std::io::Write, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct LimitLine<'a> {
    kind: &'static str,
    limit: &'a str,
    algorithm: &'a str,
    #[serde(flatten)]
    totals: Totals,
    peak_period_us: Option<u64>,
    keys: usize,
    most_denied: Vec<JsonKey<'a>>,
}

#[derive(Serialize)]
struct KeyLine<'a> {
    kind: &'static str,
    limit: &'a str,
    key: JsonKey<'a>,
    #[serde(flatten)]
    totals: Totals,
}

/// A share in percent with one decimal, rounded down.
fn share(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1_000 / u128::from(whole.max(1));
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Rows as text, a line each: the first column to the left, the others to the right.
#[must_use]
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

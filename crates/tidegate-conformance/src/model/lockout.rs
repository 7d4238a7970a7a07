//! Failures, then bans that grow.

use tidegate_core::{ChangeMode, Demand, Operation};

use super::answer::{Answer, Refusal};
use super::numbers::{Int, Moment, first};
use super::units::converted;
use super::{Algorithm, Judgement, Rule, Special};

/// The numbers of a lockout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// Failures that begin a ban.
    pub failures: Int,
    /// The window in which they count.
    pub period: Int,
    /// The first ban.
    pub ban: Int,
    /// How many times longer each further ban is.
    pub factor: Int,
    /// The longest ban.
    pub max_ban: Int,
    /// Up to how much is added.
    pub jitter: Int,
    /// After how much quiet the number of bans is forgotten.
    pub forget_after: Int,
    /// The most attempts in a long window, and its length.
    pub long_cap: Option<(Int, Int)>,
}

/// What is known of a guesser.
#[derive(Clone, Debug)]
pub struct Record {
    /// When the failures were charged that still count.
    failures: Vec<Int>,
    /// When the attempts were made that still count for the long window.
    attempts: Vec<Int>,
    bans: u32,
    banned_until: Int,
    last_failure: Int,
}

impl Bans {
    fn ban(&self, bans: u32, seed: u64) -> Int {
        let mut length = self.ban;
        for _ in 0..bans {
            length = (length * self.factor).min(self.max_ban);
        }
        length.min(self.max_ban) + Int::from(seed) % (self.jitter + 1)
    }

    fn long_used(&self, record: &Record, t: Int) -> Int {
        let Some((_, period)) = self.long_cap else {
            return 0;
        };
        let live = record.attempts.iter().filter(|at| **at > t - period);
        live.count() as Int
    }

    /// Attempts that the long cap still lets through.
    fn long_left(&self, record: &Record, t: Int) -> Int {
        match self.long_cap {
            Some((cap, _)) => (cap - self.long_used(record, t)).max(0),
            None => Int::MAX,
        }
    }

    fn left(&self, record: &Record, n: Int) -> Int {
        if record.banned_until > n {
            return 0;
        }
        let failures = record.failures.len() as Int;
        (self.failures - failures)
            .max(0)
            .min(self.long_left(record, n))
    }

    fn full(&self, record: &Record, n: Int) -> Moment {
        first(n, |t| {
            record.banned_until <= t && record.failures.iter().all(|at| *at <= t - self.period)
        })
    }
}

impl Algorithm for Bans {
    type State = Record;

    fn of(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Bans(rule) => Some(rule.clone()),
            _ => None,
        }
    }

    fn limit(&self) -> Int {
        self.failures
    }

    fn fresh(&self, _: Int) -> Record {
        Record {
            failures: Vec::new(),
            attempts: Vec::new(),
            bans: 0,
            banned_until: 0,
            last_failure: 0,
        }
    }

    fn age(&self, record: &mut Record, _: Int, to: Int) {
        record.failures.retain(|at| *at > to - self.period);
        match self.long_cap {
            Some((_, period)) => record.attempts.retain(|at| *at > to - period),
            None => record.attempts.clear(),
        }
        if to >= record.last_failure.max(record.banned_until) + self.forget_after {
            record.bans = 0;
        }
    }

    fn rebase(&self, record: &mut Record, from: Int, to: Int) {
        let back = from - to;
        let logs = record.failures.iter_mut().chain(&mut record.attempts);
        let points = [&mut record.banned_until, &mut record.last_failure];
        for at in logs.chain(points) {
            *at -= back;
        }
    }

    fn change(&self, new: &Self, record: &mut Record, n: Int, mode: ChangeMode) {
        if mode == ChangeMode::Reset {
            *record = new.fresh(n);
            return;
        }
        let failures = record.failures.len() as Int;
        let target = converted(mode, failures, self.failures, new.failures);
        for _ in target..failures {
            record.failures.remove(0);
        }
        for _ in failures..target {
            record.failures.push(n);
        }
        new.age(record, n, n);
    }

    fn judge(&self, record: &Record, n: Int, demand: &Demand) -> Option<Judgement<Record>> {
        let Demand::Attempt { seed } = demand else {
            return None;
        };
        let mut judged = Judgement {
            cost: 1,
            refusal: None,
            remaining: self.left(record, n),
            goes: Some(n),
            passes: Some(n),
            full: self.full(record, n),
            after: None,
            grant: None,
        };
        if self.failures == 0 || self.long_cap.is_some_and(|(cap, _)| cap == 0) {
            judged.refusal = Some(Refusal::Impossible);
            judged.passes = None;
            return Some(judged);
        }
        judged.passes = first(n, |t| {
            record.banned_until <= t && self.long_left(record, t) > 0
        });
        if judged.passes != Some(n) {
            let banned = record.banned_until > n;
            judged.refusal = Some(if banned {
                Refusal::Blocked
            } else {
                Refusal::Limited
            });
            return Some(judged);
        }
        let mut after = record.clone();
        after.last_failure = n;
        if self.long_cap.is_some() {
            after.attempts.push(n);
        }
        after.failures.push(n);
        if after.failures.len() as Int >= self.failures {
            after.failures.clear();
            after.banned_until = n + self.ban(after.bans, *seed);
            after.bans += 1;
        }
        judged.remaining = self.left(&after, n);
        judged.full = self.full(&after, n);
        judged.after = Some(after);
        Some(judged)
    }

    fn is_fresh(&self, record: &Record, n: Int) -> bool {
        let nothing = record.failures.is_empty() && record.attempts.is_empty();
        nothing && record.bans == 0 && record.banned_until <= n
    }

    fn standing(&self, record: &Record, n: Int) -> (Int, Int, Moment) {
        let used = record.failures.len() as Int;
        (used, self.left(record, n), self.full(record, n))
    }

    fn special(&self, record: &Record, n: Int, operation: &Operation) -> Option<Special<Record>> {
        let Operation::Success = operation else {
            return None;
        };
        if self.is_fresh(record, n) {
            return Some(Special::Plain(Answer::Done, None));
        }
        let mut after = record.clone();
        after.attempts.pop();
        after.failures.clear();
        after.bans = 0;
        after.banned_until = 0;
        Some(Special::Plain(Answer::Done, Some(after)))
    }
}

//! Makes up limits, calls and clocks: the ordinary, the extreme, and what lies on a border.
//!
//! Everything follows from one seed and from the answers so far: many calls come exactly when, or
//! one microsecond before, an earlier answer said that something would change.

mod clock;
mod rules;

use fastrand::Rng;
use tidegate_core::{ChangeMode, Demand, LeaseId, MAX_PERIOD, Micros, Operation, Reservation};

use crate::model::{Answer, Int, ModelMember, Rule, Ruling, timestamp};
use clock::TestClock;
pub use rules::{Family, capacity, scales};

/// The largest count.
const MAX_COUNT: u32 = i32::MAX as u32;

/// One step of a test.
#[derive(Clone, Debug)]
pub enum Step {
    /// An operation on a key.
    Call {
        /// The number of the limit.
        limit: usize,
        /// The key.
        key: u64,
        /// What is asked.
        operation: Operation,
    },
    /// New numbers for a limit.
    Change {
        /// The number of the limit.
        limit: usize,
        /// The numbers.
        rule: Rule,
        /// What happens to the keys.
        mode: ChangeMode,
    },
    /// A call over several limits.
    AllOf(Vec<ModelMember>),
    /// Lets the store forget what it may.
    Forget,
}

/// What a scenario may contain.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many keys there are.
    pub keys: u64,
    /// What the clock may do.
    pub clock: ClockKind,
    /// How many of 200 steps change a limit.
    pub changes: u32,
    /// Whether the store is asked to forget what it may.
    pub forgets: bool,
    /// Whether calls may span several limits.
    pub all_of: bool,
}

/// What a clock may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// Never step back.
    Steady,
    /// Be up to a second behind the latest time it showed.
    Jittery,
    /// Step back as far as it likes.
    Corrected,
}

impl Options {
    /// One key under a clock that is corrected at times.
    ///
    /// One only: where a clock is corrected, a store that has forgotten a key need not answer as
    /// one that has not, and a store may forget a key whenever another comes.
    pub const CORRECTED: Self = Self {
        keys: 1,
        clock: ClockKind::Corrected,
        changes: 3,
        forgets: false,
        all_of: false,
    };

    /// Some keys that are forgotten when they may be, under a clock that jitters.
    pub const JITTERY: Self = Self {
        keys: 4,
        clock: ClockKind::Jittery,
        changes: 3,
        forgets: true,
        all_of: false,
    };
}

/// Draws the steps of one scenario.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    options: Options,
    families: Vec<Family>,
    rules: Vec<Rule>,
    clock: TestClock,
    /// Reservations that may be settled.
    reservations: Vec<Reservation>,
    /// What the latest answer left.
    remaining: u32,
}

impl Generator {
    /// Begins a scenario with one limit of each family.
    #[must_use]
    pub fn new(seed: u64, families: &[Family], options: Options) -> Self {
        let mut rng = Rng::with_seed(seed);
        // The last window of a calendar ends after the end of time: it cannot be told.
        let calendar = families
            .iter()
            .any(|family| matches!(family, Family::Calendar | Family::AnyWindow));
        let last = if calendar { 1 << 51 } else { 1 << 52 };
        let clock = TestClock::new(&mut rng, options.clock, last);
        let now = (clock.now(), options.clock == ClockKind::Corrected);
        let draw = |family: &Family| rules::draw(&mut rng, *family, now);
        let rules: Vec<Rule> = families.iter().map(draw).collect();
        Self {
            rng,
            options,
            families: families.to_vec(),
            rules,
            clock,
            reservations: Vec::new(),
            remaining: 1,
        }
    }

    /// The current numbers of all limits.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The next step and its time.
    pub fn step(&mut self) -> (Int, Step) {
        let limit = self.rng.usize(..self.rules.len());
        let scales = rules::scales(&self.rules[limit]);
        let now = self.clock.advance(&mut self.rng, &scales);
        if self.rng.u32(..200) < self.options.changes {
            return (self.clock.catch_up(), self.change(limit));
        }
        let step = match self.rng.u32(..200) {
            0..2 if self.options.forgets => Step::Forget,
            2..110 if self.options.all_of => Step::AllOf(self.members()),
            _ => Step::Call {
                limit,
                key: self.key(),
                operation: self.operation(limit),
            },
        };
        (now, step)
    }

    /// Goes to a time at which the test has made a call of its own.
    pub fn jump(&mut self, to: Int) {
        self.clock.jump(to);
    }

    /// Learns from an answer when something will happen.
    pub fn learn(&mut self, answer: &Answer) {
        if let Some(ruling) = answer.ruling() {
            self.learn_ruling(ruling);
        }
        match answer {
            Answer::Reserved(_, Some((cost, at))) => {
                if self.reservations.len() > 4 {
                    self.reservations.swap_remove(self.rng.usize(..4));
                }
                self.reservations.push(Reservation {
                    cost: u32::try_from(*cost).expect("a cost in range was reserved"),
                    at: timestamp(*at),
                });
            }
            Answer::Leased(_, Some(grant)) | Answer::Renewed(Some(grant)) => {
                self.clock.expect(grant.expires);
            }
            _ => {}
        }
    }

    /// Learns from a ruling when something will happen.
    pub fn learn_ruling(&mut self, ruling: &Ruling) {
        self.remaining = u32::try_from(ruling.remaining).unwrap_or(MAX_COUNT);
        for wait in [ruling.retry_after, ruling.reset_after, ruling.delay] {
            if let Some(wait @ 1..) = wait {
                self.clock.expect(self.clock.now() + wait);
            }
        }
    }

    fn key(&mut self) -> u64 {
        self.rng.u64(..self.options.keys)
    }

    fn change(&mut self, limit: usize) -> Step {
        let family = self.families[limit];
        // A bucket that starts later is no different from one that nobody has seen; but one that
        // was forgotten meanwhile is.
        let now = (self.clock.now(), self.options.clock == ClockKind::Corrected);
        let rule = rules::vary(&mut self.rng, family, &self.rules[limit], now);
        self.rules[limit] = rule.clone();
        let modes = [
            ChangeMode::KeepUsed,
            ChangeMode::Proportional,
            ChangeMode::KeepAvailable,
            ChangeMode::Reset,
        ];
        Step::Change {
            limit,
            rule,
            mode: self.rng.choice(modes).expect("there are modes"),
        }
    }

    fn members(&mut self) -> Vec<ModelMember> {
        let count = self.rng.usize(..6);
        let draw = |_| {
            let limit = self.rng.usize(..self.rules.len());
            // A watched limit has keys of its own.
            let shadow = self.rng.u32(..6) == 0;
            let key = self.key() + if shadow { 1000 } else { 0 };
            ModelMember {
                limit,
                key,
                demand: self.demand(limit),
                shadow,
            }
        };
        let mut members: Vec<ModelMember> = (0..count).map(draw).collect();
        // Two leases on one key in one call have no sum.
        let leases = |m: &ModelMember| matches!(m.demand, Demand::Acquire { .. });
        let mut seen = Vec::new();
        members.retain(|member| {
            let place = (member.limit, member.key);
            let twice = leases(member) && seen.contains(&place);
            seen.push(place);
            !twice
        });
        members
    }

    fn cost(&mut self, limit: usize) -> u32 {
        let capacity = rules::capacity(&self.rules[limit]);
        match self.rng.u32(..24) {
            0 => 0,
            1..11 => 1,
            11..13 => self.rng.u32(..4),
            13 => self.remaining,
            14 => self.remaining.saturating_add(1),
            15 => capacity,
            16 => capacity.saturating_add(1),
            17 => capacity.saturating_mul(2),
            18 => MAX_COUNT,
            19 if self.rng.u32(..8) == 0 => u32::MAX,
            20 => capacity / 2,
            _ => self.rng.u32(..=capacity / 4),
        }
    }

    fn demand(&mut self, limit: usize) -> Demand {
        match self.rules[limit] {
            Rule::Leases(_) => Demand::Acquire {
                lease: self.lease(),
                weight: self.cost(limit),
            },
            Rule::Bans(_) => Demand::Attempt {
                seed: match self.rng.u32(..3) {
                    0 => 0,
                    1 => u64::MAX,
                    _ => self.rng.u64(..),
                },
            },
            _ => Demand::Take {
                cost: self.cost(limit),
            },
        }
    }

    fn lease(&mut self) -> LeaseId {
        LeaseId(match self.rng.u32(..20) {
            0 => u128::MAX,
            other => u128::from(other % 6),
        })
    }

    fn reservation(&mut self) -> Reservation {
        match self.rng.choice(&self.reservations) {
            Some(made) => *made,
            None => Reservation {
                cost: 1,
                at: timestamp(self.clock.now()),
            },
        }
    }

    fn length(&mut self, limit: usize) -> Micros {
        let scales = rules::scales(&self.rules[limit]);
        let scale = *self.rng.choice(&scales).expect("there is a scale");
        Micros(match self.rng.u32(..10) {
            0 => 0,
            1 => 1,
            2 if self.rng.bool() => MAX_PERIOD.0,
            3 => 1_000_000,
            4 => scale,
            _ => self.rng.u64(..=scale.saturating_mul(3)),
        })
    }

    fn operation(&mut self, limit: usize) -> Operation {
        match self.rng.u32(..200) {
            0..3 => return Operation::Reset,
            3..6 => {
                let period = self.length(limit);
                return Operation::Block { period };
            }
            6 => {
                let period = Micros(MAX_PERIOD.0 + 1);
                return Operation::Block { period };
            }
            7..10 => return Operation::Unblock,
            10..25 => return Operation::State,
            25..27 => return self.unit_operation(limit),
            27 => return Operation::Success,
            28 => {
                let lease = self.lease();
                return Operation::Release { lease };
            }
            29..50 => return Operation::Peek(self.demand(limit)),
            50..120 => return Operation::Take(self.demand(limit)),
            _ => {}
        }
        match self.rules[limit] {
            Rule::Leases(_) => {
                let lease = self.lease();
                match self.rng.u32(..3) {
                    0 => Operation::Renew { lease },
                    1 => Operation::Release { lease },
                    _ => Operation::Take(self.demand(limit)),
                }
            }
            Rule::Bans(_) => match self.rng.u32(..6) {
                0 => Operation::Success,
                _ => Operation::Take(self.demand(limit)),
            },
            _ => self.unit_operation(limit),
        }
    }

    fn unit_operation(&mut self, limit: usize) -> Operation {
        let cost = self.cost(limit);
        match self.rng.u32(..20) {
            0..3 => Operation::TakeUpTo { cost },
            3 => Operation::Reserve {
                cost,
                max_wait: Micros(u64::MAX),
            },
            4..7 => Operation::Reserve {
                cost,
                max_wait: self.length(limit),
            },
            7..10 => Operation::Settle {
                reservation: self.reservation(),
                actual: cost,
            },
            10..12 => Operation::Cancel {
                reservation: self.reservation(),
            },
            12..15 => Operation::Refund { cost },
            15..17 => Operation::Force { cost },
            _ => Operation::take(cost),
        }
    }
}

//! Several processes that hold batches of one key, in simulated time: what they are charged and what
//! they spend, whatever happens to them and in whatever order answers arrive.

use std::collections::VecDeque;

use fastrand::Rng;
use tidegate_core::{
    Algorithm, Align, Decision, Entry, FixedWindow, InterpolatedWindow, IntervalBucket, Micros,
    Operation, Policy, Rate, Reply, Reservation, SlidingLog, StrictWindow, Timestamp, TokenBucket,
    engine, with_algorithm,
};

use super::purse::{Purse, Taken};
use super::{LeaseTokens, Lot, returnable};

const START: u64 = 1_700_000_000_000_000;

/// What has been sent to the store and has not arrived, or has not been answered.
enum Message {
    Ask {
        process: usize,
        sent: u64,
        want: u32,
        needs: u32,
    },
    Answer {
        process: usize,
        sent: u64,
        needs: u32,
        decision: Decision,
    },
    Back {
        cost: u32,
        at: Timestamp,
    },
}

/// A process: its clock began at another moment than the others'.
struct Process {
    purse: Purse,
    asks: bool,
    began: u64,
}

struct World<A: Algorithm> {
    algorithm: A,
    policy: Policy,
    terms: LeaseTokens,
    entry: Entry<A::State>,
    now: u64,
    processes: Vec<Process>,
    messages: VecDeque<(u64, Message)>,
    longest: u64,
    spent: Vec<(u64, u32)>,
    rng: Rng,
}

impl<A: Algorithm> World<A> {
    fn apply(&mut self, operation: &Operation) -> Reply {
        let at = Timestamp::from_micros(START + self.now).unwrap();
        engine::apply(&self.algorithm, &mut self.entry, at, operation).unwrap()
    }

    fn send(&mut self, message: Message) {
        let arrives = self.now + self.rng.u64(0..=self.longest);
        self.messages.push_back((arrives, message));
    }

    /// Lets time pass; whatever is due happens on the way, in order.
    fn pass(&mut self, until: u64) {
        while let Some(next) = (0..self.messages.len())
            .filter(|index| self.messages[*index].0 <= until)
            .min_by_key(|index| self.messages[*index].0)
        {
            let (at, message) = self.messages.remove(next).unwrap();
            self.now = self.now.max(at);
            match message {
                Message::Ask {
                    process,
                    sent,
                    want,
                    needs,
                } => {
                    let reply = self.apply(&Operation::TakeUpTo { cost: want });
                    let decision = *reply.decision().unwrap();
                    self.send(Message::Answer {
                        process,
                        sent,
                        needs,
                        decision,
                    });
                }
                Message::Answer {
                    process,
                    sent,
                    needs,
                    decision,
                } => {
                    self.receive(process, sent, needs, &decision);
                }
                Message::Back { cost, at } => {
                    let reservation = Reservation { cost, at };
                    self.apply(&Operation::Cancel { reservation });
                }
            }
        }
        self.now = until;
    }

    fn receive(&mut self, process: usize, sent: u64, needs: u32, decision: &Decision) {
        let now = self.now;
        let own = &mut self.processes[process];
        if !own.asks || sent < own.began {
            // It was sent before the process was killed, and nobody waits for it any more.
            return;
        }
        own.asks = false;
        let local = sent - own.began;
        own.purse.receive(&self.terms, local, decision);
        self.spend(process, needs);
        let own = &mut self.processes[process];
        let old = own.purse.expired(now - own.began);
        self.give_back(process, old);
    }

    fn spend(&mut self, process: usize, cost: u32) -> Taken {
        let own = &mut self.processes[process];
        let taken = own.purse.take(&self.terms, self.now - own.began, cost);
        if let Taken::Spent(..) = taken {
            self.spent.push((self.now, cost));
        }
        taken
    }

    fn give_back(&mut self, process: usize, lots: impl IntoIterator<Item = Lot>) {
        let began = self.processes[process].began;
        for lot in lots {
            // It arrives within the longest time that a message takes.
            let age = lot.age(&self.terms, self.now - began + self.longest);
            let cost = returnable(&self.policy, lot.left, age);
            if cost > 0 {
                self.send(Message::Back { cost, at: lot.at });
            }
        }
    }

    fn call(&mut self, process: usize, cost: u32) {
        match self.spend(process, cost) {
            Taken::Spent(_, false) => {}
            Taken::Spent(_, true) => self.ask(process, 1, 0),
            Taken::Short(missing) => self.ask(process, missing, cost),
        }
    }

    fn ask(&mut self, process: usize, missing: u32, needs: u32) {
        let now = self.now;
        let own = &mut self.processes[process];
        if own.asks {
            return;
        }
        own.asks = true;
        let want = own.purse.ask(&self.terms, now - own.began, missing, 0);
        self.send(Message::Ask {
            process,
            sent: now,
            want,
            needs: needs.max(1),
        });
    }

    fn step(&mut self) {
        let step = match self.rng.u32(..100) {
            0 => self.rng.u64(..3_000_000),
            1..10 => self.rng.u64(..300_000),
            _ => self.rng.u64(..3_000),
        };
        self.pass(self.now + step);
        let process = self.rng.usize(..self.processes.len());
        let began = self.processes[process].began;
        match self.rng.u32(..1000) {
            // Killed, and started anew.
            0..3 => {
                self.processes[process] = Process {
                    purse: Purse::new(),
                    asks: false,
                    began: self.now,
                };
            }
            // Ended as it should be.
            3..6 => {
                let left = self.processes[process].purse.empty();
                self.give_back(process, left);
            }
            6..40 => {
                let old = self.processes[process].purse.expired(self.now - began);
                self.give_back(process, old);
            }
            40..50 => {
                // A call that holds what is there, and does not need it in the end.
                let cost = self.rng.u32(1..10);
                let own = &mut self.processes[process];
                let held = own.purse.hold(self.now - began, cost);
                for lot in held {
                    own.purse.put(lot);
                }
            }
            _ => {
                let cost = if self.rng.u32(..10) == 0 {
                    self.rng.u32(1..4)
                } else {
                    1
                };
                self.call(process, cost);
            }
        }
    }
}

/// The most that lies within any half-open window of that length.
fn most_within(events: &[(u64, u32)], length: u64) -> u64 {
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for (at, cost) in events {
        sum += u64::from(*cost);
        while events[first].0 + length <= *at {
            sum -= u64::from(events[first].1);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Runs a limit and returns how much was spent, and how near to the bound it came.
fn run<A: Algorithm>(algorithm: &A, policy: &Policy, terms: LeaseTokens, seed: u64) -> (u64, f64) {
    let mut rng = Rng::with_seed(seed);
    let processes = rng.usize(1..5);
    let at = Timestamp::from_micros(START).unwrap();
    let mut world = World {
        algorithm: algorithm.clone(),
        policy: policy.clone(),
        terms,
        entry: Entry::fresh(algorithm, at),
        now: 0,
        processes: (0..processes)
            .map(|_| Process {
                purse: Purse::new(),
                asks: false,
                began: 0,
            })
            .collect(),
        messages: VecDeque::new(),
        longest: [0, 2_000, 50_000, 2_000_000][rng.usize(..4)],
        spent: Vec::new(),
        rng,
    };
    for _ in 0..6_000 {
        world.step();
    }
    let lengths = [
        1, 1_000, 30_000, 100_000, 250_000, 1_000_000, 2_000_000, 7_000_000,
    ];
    let mut nearest: f64 = 0.0;
    for length in lengths {
        let spent = most_within(&world.spent, length);
        let bound = terms.spent(policy, Micros(length)).unwrap();
        assert!(
            spent <= bound,
            "seed {seed}: {spent} spent within {length} us, {bound} are allowed: {policy:?} {terms:?}"
        );
        nearest = nearest.max(spent as f64 / bound as f64);
    }
    (
        world.spent.iter().map(|(_, cost)| u64::from(*cost)).sum(),
        nearest,
    )
}

fn policies(rng: &mut Rng) -> [Policy; 9] {
    let n = rng.u32(1..40);
    let period = Micros(rng.u64(1_000..3_000_000));
    let rate = Rate::new(rng.u32(1..30), rng.u64(1_000..3_000_000)).unwrap();
    [
        TokenBucket::new(rate, n).unwrap().into(),
        // Slow enough for what is held not to drain.
        TokenBucket::new(Rate::new(1, 2_000_000).unwrap(), n)
            .unwrap()
            .into(),
        IntervalBucket::new(rate, n).unwrap().into(),
        FixedWindow::new(n, period, Align::Epoch).unwrap().into(),
        FixedWindow::new(n, period, Align::FirstUse).unwrap().into(),
        SlidingLog::new(n, period).unwrap().into(),
        SlidingLog::new(n, Micros(3_000_000)).unwrap().into(),
        StrictWindow::new(n, period, 20).unwrap().into(),
        InterpolatedWindow::new(n, period).unwrap().into(),
    ]
}

#[test]
fn whatever_happens_no_more_is_spent_than_the_limit_admits_in_a_window_longer_by_max_age() {
    let first: u64 = std::env::var("TIDEGATE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let rounds: u64 = std::env::var("TIDEGATE_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap());
    let mut nearest: f64 = 0.0;
    for seed in first..first + rounds {
        let mut rng = Rng::with_seed(seed);
        let terms = LeaseTokens::new(
            rng.u32(1..30),
            Micros([1_000, 40_000, 500_000, 2_000_000][rng.usize(..4)]),
        )
        .unwrap();
        for policy in &policies(&mut rng) {
            let (spent, near) =
                with_algorithm!(policy, algorithm => run(algorithm, policy, terms, seed));
            assert!(spent > 0, "seed {seed}: nothing passed: {policy:?}");
            nearest = nearest.max(near);
        }
    }
    // Else the bound would be no test.
    assert!(nearest > 0.95, "{nearest}");
}

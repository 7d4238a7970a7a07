//! How many calls there were over time, in steps that grow with the span of the trace.

use tidegate::Timestamp;
use tidegate::simulation::{Answer, Call, Simulation};

/// How many steps are kept at most.
const MOST: usize = 320;

/// What happened within one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Calls made.
    pub offered: u64,
    /// Calls that passed.
    pub admitted: u64,
    /// Calls that the limit itself denied.
    pub denied: u64,
}

/// Steps of one length, one after the other.
#[derive(Clone, Debug)]
struct Track {
    steps: Vec<Step>,
}

/// Calls over time: of all together, and of each limit.
#[derive(Clone, Debug)]
pub struct Series {
    /// Microseconds of a step.
    step: u64,
    /// The number of the first step, counted from the epoch.
    first: u64,
    begun: bool,
    all: Track,
    limits: Vec<Track>,
    span: (u64, u64),
}

impl Default for Series {
    fn default() -> Self {
        Self {
            step: 100_000,
            first: 0,
            begun: false,
            all: Track { steps: Vec::new() },
            limits: Vec::new(),
            span: (u64::MAX, 0),
        }
    }
}

impl Series {
    /// Counts a call and its answer.
    pub fn add(&mut self, simulation: &Simulation, call: &Call, answer: &Answer) {
        let Some(decision) = answer.reply.decision() else {
            return;
        };
        let at = call.at.as_micros();
        self.span = (self.span.0.min(at), self.span.1.max(at));
        let index = self.index(call.at);
        let passed = decision.is_allowed();
        let denied = !decision.is_within_limit();
        self.all.add(index, passed, denied);
        let limits = simulation.limits().count();
        if self.limits.len() < limits {
            self.limits.resize(limits, Track { steps: Vec::new() });
        }
        for (position, target) in call.targets.iter().enumerate() {
            let own = answer.members.get(position).unwrap_or(decision);
            self.limits[target.limit.index()].add(index, passed, !own.is_within_limit());
        }
    }

    /// The step of a time; steps become longer until it is within reach.
    fn index(&mut self, at: Timestamp) -> usize {
        loop {
            let number = at.as_micros() / self.step;
            if !std::mem::replace(&mut self.begun, true) {
                self.first = number;
            }
            if number >= self.first && number - self.first < MOST as u64 {
                return usize::try_from(number - self.first).unwrap_or(MOST);
            }
            let behind = self.first.saturating_sub(number);
            let last = self.all.steps.len() as u64;
            if behind > 0 && behind + last <= MOST as u64 {
                self.first = number;
                for track in self.tracks() {
                    let missing = usize::try_from(behind).unwrap_or(MOST);
                    track.steps.splice(0..0, vec![Step::default(); missing]);
                }
                continue;
            }
            let odd = self.first % 2 == 1;
            for track in self.tracks() {
                track.halve(odd);
            }
            self.step *= 2;
            self.first /= 2;
        }
    }

    fn tracks(&mut self) -> impl Iterator<Item = &mut Track> {
        std::iter::once(&mut self.all).chain(&mut self.limits)
    }

    /// The length of a step in seconds.
    pub fn step_seconds(&self) -> f64 {
        self.step as f64 / 1e6
    }

    /// The first and the last call, in microseconds since the epoch; none without calls.
    pub fn span(&self) -> Option<(u64, u64)> {
        (self.span.0 <= self.span.1).then_some(self.span)
    }

    /// All calls, each step with its begin in microseconds since the epoch.
    pub fn all(&self) -> Vec<(u64, Step)> {
        self.timed(&self.all)
    }

    /// The calls that met a limit.
    pub fn limit(&self, limit: usize) -> Vec<(u64, Step)> {
        self.limits
            .get(limit)
            .map_or_else(Vec::new, |track| self.timed(track))
    }

    fn timed(&self, track: &Track) -> Vec<(u64, Step)> {
        let mut steps = track.steps.clone();
        steps.resize(self.all.steps.len(), Step::default());
        // A step after the last one ends it.
        steps.push(Step::default());
        let begins = (self.first..).map(|number| number * self.step);
        begins.zip(steps).collect()
    }
}

impl Track {
    fn add(&mut self, index: usize, passed: bool, denied: bool) {
        if self.steps.len() <= index {
            self.steps.resize(index + 1, Step::default());
        }
        let step = &mut self.steps[index];
        step.offered += 1;
        step.admitted += u64::from(passed);
        step.denied += u64::from(denied);
    }

    /// Joins steps in pairs that begin at even numbers.
    fn halve(&mut self, odd: bool) {
        if odd {
            self.steps.insert(0, Step::default());
        }
        let pairs = self.steps.chunks(2);
        self.steps = pairs
            .map(|pair| {
                pair.iter().fold(Step::default(), |sum, step| Step {
                    offered: sum.offered + step.offered,
                    admitted: sum.admitted + step.admitted,
                    denied: sum.denied + step.denied,
                })
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_lost_or_moved_to_another_time_as_steps_grow() {
        let mut series = Series::default();
        let times: Vec<u64> = (0..5_000_u64)
            .map(|n| 1_700_000_000_000_000 + n * n % 7_919 * 1_000_003)
            .collect();
        for at in &times {
            let index = series.index(Timestamp::from_micros(*at).unwrap());
            assert!(index < MOST);
            series.all.add(index, true, false);
        }
        let steps = series.all();
        assert_eq!(
            steps.iter().map(|(_, step)| step.offered).sum::<u64>(),
            5_000
        );
        for (begin, step) in steps {
            let inside = times
                .iter()
                .filter(|at| **at / series.step == begin / series.step);
            assert_eq!(step.offered, inside.count() as u64);
        }
    }
}

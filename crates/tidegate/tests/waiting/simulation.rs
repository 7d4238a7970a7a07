//! Runs futures in simulated time, without a runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use fastrand::Rng;
use tidegate::{Clock as _, ManualClock, Timestamp};

pub fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

struct Task<'a, T> {
    flag: Arc<Flag>,
    state: State<'a, T>,
    polls: usize,
}

enum State<'a, T> {
    Waiting(Work<'a, T>),
    Done(T, u64),
    Dropped,
}

/// Tasks and the clock that they live by.
pub struct Simulation<'a, T> {
    pub clock: Arc<ManualClock>,
    tasks: Vec<Task<'a, T>>,
    /// Chooses which of several woken tasks is polled first.
    rng: Rng,
}

impl<'a, T> Simulation<'a, T> {
    pub fn new(start: u64, seed: u64) -> Self {
        Self {
            clock: Arc::new(ManualClock::new(at(start))),
            tasks: Vec::new(),
            rng: Rng::with_seed(seed),
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Starts a task and lets it run as far as it comes.
    pub fn spawn(&mut self, work: impl Future<Output = T> + 'a) -> usize {
        let task = self.spawn_idle(work);
        self.run();
        task
    }

    /// Starts a task that is polled once, and then only by [`Self::poll`].
    pub fn spawn_idle(&mut self, work: impl Future<Output = T> + 'a) -> usize {
        self.tasks.push(Task {
            flag: Arc::default(),
            state: State::Waiting(Box::pin(work)),
            polls: 0,
        });
        let task = self.tasks.len() - 1;
        self.poll(task);
        task
    }

    pub fn poll(&mut self, task: usize) {
        let now = self.now();
        let task = &mut self.tasks[task];
        let State::Waiting(work) = &mut task.state else {
            return;
        };
        task.flag.0.store(false, Ordering::SeqCst);
        task.polls += 1;
        let waker = Waker::from(Arc::clone(&task.flag));
        if let Poll::Ready(value) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            task.state = State::Done(value, now);
        }
    }

    /// Polls all that were woken, in any order, until none is.
    pub fn run(&mut self) {
        self.run_but(usize::MAX);
    }

    /// [`Self::run`], but one task does not get to run.
    pub fn run_but(&mut self, left_out: usize) {
        loop {
            let woken: Vec<usize> = (0..self.tasks.len())
                .filter(|task| *task != left_out && self.is_woken(*task))
                .collect();
            if woken.is_empty() {
                return;
            }
            let chosen = self.rng.usize(..woken.len());
            self.poll(woken[chosen]);
        }
    }

    pub fn is_woken(&self, task: usize) -> bool {
        let task = &self.tasks[task];
        task.flag.0.load(Ordering::SeqCst) && matches!(task.state, State::Waiting(_))
    }

    /// Lets time pass up to `time`; every task that wants to wakes at its own moment.
    pub fn pass_to(&mut self, time: u64) {
        self.pass_to_but(time, usize::MAX);
    }

    pub fn pass_to_but(&mut self, time: u64, left_out: usize) {
        self.run_but(left_out);
        while let Some(next) = self
            .clock
            .next_alarm()
            .filter(|next| next.as_micros() <= time)
        {
            self.clock.set(next);
            self.run_but(left_out);
        }
        self.clock.set(at(time));
        self.run_but(left_out);
    }

    /// Lets time pass until no task waits any more, or none has anything to wait for.
    pub fn finish(&mut self) {
        self.run();
        while (0..self.tasks.len()).any(|task| self.is_waiting(task)) {
            let Some(next) = self.clock.next_alarm() else {
                return;
            };
            self.clock.set(next);
            self.run();
        }
    }

    pub fn give_up(&mut self, task: usize) {
        if matches!(self.tasks[task].state, State::Waiting(_)) {
            self.tasks[task].state = State::Dropped;
        }
        self.run();
    }

    pub fn is_waiting(&self, task: usize) -> bool {
        matches!(self.tasks[task].state, State::Waiting(_))
    }

    /// What a task came to, and when.
    pub fn done(&self, task: usize) -> Option<(&T, u64)> {
        match &self.tasks[task].state {
            State::Done(value, when) => Some((value, *when)),
            _ => None,
        }
    }

    /// What a task came to, taken out.
    pub fn take(&mut self, task: usize) -> T {
        match std::mem::replace(&mut self.tasks[task].state, State::Dropped) {
            State::Done(value, _) => value,
            _ => panic!("task {task} is not done"),
        }
    }

    pub fn polls(&self, task: usize) -> usize {
        self.tasks[task].polls
    }
}

//! Consumers in simulated time, over a queue that may fail in every way.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{
    Clock, Concurrency, Limiter, ManualClock, Micros, Rate, Timestamp, ToKey, TokenBucket,
};
use tidegate_consumer::memory::{Faults, MemoryQueue, Settings};
use tidegate_consumer::{
    Consumer, ConsumerError, Leases, Limit, Message, Options, Outcome, Permit, Queue, Rates,
};

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = Result<(), ConsumerError>> + 'a>>;
type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What happened in a world of one queue and one limit.
struct World {
    clock: Arc<ManualClock>,
    limiter: Limiter,
    queue: MemoryQueue,
    dead: MemoryQueue,
    running: AtomicUsize,
    most: AtomicUsize,
    done: Mutex<BTreeMap<Arc<str>, u32>>,
}

impl World {
    fn new(permits: u32, seed: u64) -> Arc<Self> {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let policy = Concurrency::new(permits, Micros::from_secs(30), None).unwrap();
        let limiter = Limiter::builder(policy).clock(clock.clone()).build();
        let dead = MemoryQueue::new(clock.clone(), Settings::default(), seed);
        let settings = Settings {
            redrive: Some((5, dead.clone())),
            ..Settings::default()
        };
        Arc::new(Self {
            queue: MemoryQueue::new(clock.clone(), settings, seed),
            clock,
            limiter,
            dead,
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            done: Mutex::default(),
        })
    }

    fn consumer(
        self: &Arc<Self>,
        work_micros: u64,
    ) -> Consumer<MemoryQueue, Leases, impl Fn(Message) -> Work + Send + Sync + use<>> {
        let world = Arc::clone(self);
        let handler = move |message| -> Work { Box::pin(world.clone().work(message, work_micros)) };
        let leases = Leases::new(self.limiter.clone(), "all".to_key());
        let (queue, clock) = (self.queue.clone(), self.clock.clone());
        Consumer::new(queue, leases, handler, clock, Options::default())
    }

    async fn work(self: Arc<Self>, message: Message, micros: u64) -> Outcome {
        struct Running<'a>(&'a World);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.running.fetch_sub(1, SeqCst);
            }
        }
        self.most
            .fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        let running = Running(&self);
        let end = Timestamp::from_micros(self.clock.now().as_micros() + micros).unwrap();
        let mut alarm = None;
        std::future::poll_fn(|context| {
            if self.clock.now() >= end {
                return Poll::Ready(());
            }
            alarm = Some(self.clock.wake_at(end, context.waker().clone()));
            Poll::Pending
        })
        .await;
        drop(running);
        *self.done.lock().unwrap().entry(message.body).or_default() += 1;
        Outcome::Done
    }

    /// Runs all until `until` says so; returns the simulated microseconds since the epoch.
    fn run(&self, tasks: &mut [Task<'_>], until: impl Fn() -> bool) -> u64 {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        let mut ended = vec![false; tasks.len()];
        loop {
            while woken.0.swap(false, SeqCst) {
                for (task, ended) in tasks.iter_mut().zip(&mut ended) {
                    if *ended {
                        continue;
                    }
                    if let Poll::Ready(result) =
                        task.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        result.expect("the consumer can work");
                        *ended = true;
                    }
                }
            }
            if until() || ended.iter().all(|ended| *ended) {
                return self.clock.now().as_micros();
            }
            assert!(
                self.clock.now().as_micros() < 3_600_000_000,
                "an hour is not enough"
            );
            self.clock
                .set(self.clock.next_alarm().expect("somebody waits for a time"));
            woken.0.store(true, SeqCst);
        }
    }

    /// Messages that somebody holds.
    fn in_flight(&self) -> u64 {
        let mut asked = Box::pin(self.queue.attributes());
        match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(attributes)) => attributes.in_flight,
            _ => panic!("the queue answers at once"),
        }
    }

    fn done(&self) -> usize {
        self.done.lock().unwrap().len()
    }
}

#[test]
fn three_consumers_under_one_limit_receive_each_message_once_and_waste_no_time() {
    let world = World::new(10, 1);
    (0..200).for_each(|number| drop(world.queue.send(&number.to_string(), None)));
    let consumers = [(); 3].map(|()| world.consumer(500_000));
    let mut tasks: Vec<Task<'_>> = Vec::new();
    consumers
        .iter()
        .for_each(|consumer| tasks.push(Box::pin(consumer.run())));
    let micros = world.run(&mut tasks, || world.queue.bodies().is_empty());
    assert_eq!((world.done(), world.queue.receives()), (200, 200));
    assert!(world.dead.bodies().is_empty());
    assert_eq!(world.most.load(SeqCst), 10);
    assert!(micros <= 10_500_000, "{micros} us, ideal 10 s");
}

#[test]
fn long_work_is_done_once_since_its_message_stays_invisible() {
    let world = World::new(1, 1);
    world.queue.send("long", None);
    let consumers = [(); 2].map(|()| world.consumer(300_000_000));
    let mut tasks: Vec<Task<'_>> = Vec::new();
    consumers
        .iter()
        .for_each(|consumer| tasks.push(Box::pin(consumer.run())));
    world.run(&mut tasks, || world.queue.bodies().is_empty());
    assert_eq!((world.done(), world.queue.receives()), (1, 1));
}

#[test]
fn a_drained_consumer_finishes_its_work_and_leaves_the_rest_to_be_seen() {
    let world = World::new(3, 1);
    (0..20).for_each(|number| drop(world.queue.send(&number.to_string(), None)));
    let consumer = world.consumer(2_000_000);
    let mut tasks: Vec<Task<'_>> = vec![Box::pin(consumer.run())];
    world.run(&mut tasks, || world.done() == 3);
    consumer.drain();
    world.run(&mut tasks, || false);
    assert_eq!(world.in_flight(), 0);
    assert_eq!(world.queue.bodies().len() + world.done(), 20);
}

#[test]
fn nothing_is_received_while_every_permit_is_elsewhere() {
    let world = World::new(2, 1);
    (0..20).for_each(|number| drop(world.queue.send(&number.to_string(), None)));
    let consumers = [(); 3].map(|()| world.consumer(500_000));
    let mut tasks: Vec<Task<'_>> = Vec::new();
    consumers
        .iter()
        .for_each(|consumer| tasks.push(Box::pin(consumer.run())));
    world.run(&mut tasks, || {
        assert!(world.in_flight() <= 2, "one was received without a permit");
        world.queue.bodies().is_empty()
    });
    assert_eq!((world.done(), world.queue.receives()), (20, 20));
}

#[test]
fn a_message_that_came_to_an_idle_consumer_is_held_for_its_permit_or_returned_on_drain() {
    for drained in [false, true] {
        let world = World::new(1, 1);
        let consumer = world.consumer(1);
        let mut tasks: Vec<Task<'_>> = vec![Box::pin(consumer.run())];
        let seconds =
            |secs: u64| move |world: &World| world.clock.now().as_micros() >= secs * 1_000_000;
        world.run(&mut tasks, || seconds(5)(&world));
        let elsewhere = world.limiter.try_acquire("all", 1).unwrap();
        world.queue.send("work", None);
        world.run(&mut tasks, || world.in_flight() == 1);
        // Longer than it would be invisible by itself.
        let end = world.clock.now().as_micros() / 1_000_000 + 100;
        world.run(&mut tasks, || {
            assert_eq!(world.in_flight(), 1);
            seconds(end)(&world)
        });
        assert_eq!((world.done(), world.queue.receives()), (0, 1));
        if drained {
            consumer.drain();
            world.run(&mut tasks, || false);
            assert_eq!((world.in_flight(), world.queue.bodies().len()), (0, 1));
        } else {
            drop(elsewhere);
            world.run(&mut tasks, || world.queue.bodies().is_empty());
            assert_eq!((world.done(), world.queue.receives()), (1, 1));
        }
    }
}

#[test]
fn no_message_is_lost_whatever_fails_and_whoever_is_killed() {
    for seed in 0..10_000 {
        // The harness shows this only where the test fails.
        println!("seed {seed}");
        let mut dice = fastrand::Rng::with_seed(seed);
        let permits = dice.u32(1..6);
        let world = World::new(permits, seed);
        (0..30).for_each(|number| drop(world.queue.send(&number.to_string(), None)));
        world.queue.set_faults(Faults {
            throttled: 0.1,
            failed: 0.05,
            lost_reply: 0.05,
            failed_entry: 0.1,
            duplicate: 0.01,
        });
        let killed_at = dice.u64(..5_000_000);
        {
            let victim = world.consumer(700_000);
            let mut tasks: Vec<Task<'_>> = vec![Box::pin(victim.run())];
            world.run(&mut tasks, || world.clock.now().as_micros() >= killed_at);
        }
        let consumers = [(); 2].map(|()| world.consumer(700_000));
        let mut tasks: Vec<Task<'_>> = Vec::new();
        consumers
            .iter()
            .for_each(|consumer| tasks.push(Box::pin(consumer.run())));
        world.run(&mut tasks, || world.queue.bodies().is_empty());
        let dead = world.dead.bodies();
        let done = world.done.lock().unwrap();
        for number in 0..30 {
            let body: Arc<str> = number.to_string().into();
            assert!(
                done.contains_key(&body) || dead.contains(&body),
                "{body} is lost"
            );
        }
        assert!(
            world.most.load(SeqCst) <= permits as usize,
            "too many at once"
        );
    }
}

#[test]
fn a_queue_with_an_order_to_keep_and_a_limit_of_none_are_refused() {
    let world = World::new(0, 1);
    world.queue.send("work", None);
    let never = world.consumer(1);
    let mut context = Context::from_waker(Waker::noop());
    let mut run = Box::pin(never.run());
    let Poll::Ready(Err(error)) = run.as_mut().poll(&mut context) else {
        panic!("it cannot ever work");
    };
    assert!(matches!(error, ConsumerError::Limit(_)), "{error:?}");
    assert_eq!(world.queue.receives(), 0);
    drop(run);

    let settings = Settings {
        fifo: true,
        ..Settings::default()
    };
    let queue = MemoryQueue::new(world.clock.clone(), settings, 1);
    let leases = Leases::new(world.limiter.clone(), "all".to_key());
    let handler = |_| std::future::ready(Outcome::Done);
    let ordered = Consumer::new(
        queue,
        leases,
        handler,
        world.clock.clone(),
        Options::default(),
    );
    let mut run = Box::pin(ordered.run());
    let Poll::Ready(Err(ConsumerError::Fifo)) = run.as_mut().poll(&mut context) else {
        panic!("the order could not be kept");
    };
}

#[test]
fn starts_keep_to_the_rate_and_tokens_without_a_message_go_back() {
    let world = World::new(1, 1);
    let policy = TokenBucket::new(Rate::per_second(2).unwrap(), 10).unwrap();
    let limiter = Limiter::builder(policy).clock(world.clock.clone()).build();
    let starts = Mutex::new(Vec::new());
    let consumers = [(); 3].map(|()| {
        let (clock, starts) = (&world.clock, &starts);
        let handler = move |_| {
            starts.lock().unwrap().push(clock.now().as_micros());
            std::future::ready(Outcome::Done)
        };
        let rates = Rates::new(limiter.clone(), "all".to_key());
        Consumer::new(
            world.queue.clone(),
            rates,
            handler,
            world.clock.clone(),
            Options::default(),
        )
    });
    let mut tasks: Vec<Task<'_>> = Vec::new();
    consumers
        .iter()
        .for_each(|consumer| tasks.push(Box::pin(consumer.run())));
    // By then all are idle, and what they had taken for nothing would not have come back by itself.
    let soon = Timestamp::from_micros(4_000_000).unwrap();
    let _alarm = world.clock.wake_at(soon, Waker::noop().clone());
    world.run(&mut tasks, || world.clock.now().as_micros() >= 4_000_000);
    assert!(limiter.peek("all", 10).is_allowed(), "all are there");
    (0..50).for_each(|number| drop(world.queue.send(&number.to_string(), None)));
    let sent_at = world.clock.now().as_micros();
    let end = world.run(&mut tasks, || world.queue.bodies().is_empty());
    assert!(
        end - sent_at <= 21_000_000,
        "{} us, ideal 20 s",
        end - sent_at
    );
    assert_eq!(world.queue.receives(), 50);
    let starts = starts.lock().unwrap();
    for (first, from) in starts.iter().enumerate() {
        for (last, to) in starts.iter().enumerate().skip(first) {
            let most = 10 + 2 * (to - from + 2_000_000) / 1_000_000;
            assert!(
                (last - first) as u64 <= most,
                "too many starts from {from} to {to}"
            );
        }
    }
}

#[test]
fn a_token_pays_for_a_start_within_two_seconds_and_goes_back_unless_it_did() {
    let world = World::new(1, 1);
    for (waits, is_spent) in [(2_000_000, true), (2_000_001, false)] {
        let policy = TokenBucket::new(Rate::per_minute(1).unwrap(), 3).unwrap();
        let limiter = Limiter::builder(policy).clock(world.clock.clone()).build();
        let rates = Rates::new(limiter.clone(), "all".to_key());
        let mut acquire = Box::pin(rates.acquire(2));
        let Poll::Ready(Ok(tokens)) = acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("there are tokens");
        };
        assert_eq!(tokens.len(), 2);
        world.clock.advance(Duration::from_micros(waits));
        assert_eq!(tokens[0].start(), is_spent);
        drop(tokens);
        assert_eq!(limiter.peek("all", 3).is_allowed(), !is_spent);
        assert!(limiter.peek("all", 2).is_allowed());
    }
}

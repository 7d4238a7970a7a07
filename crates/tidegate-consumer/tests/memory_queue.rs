//! The queue in the process: the rules that every queue has, and those that no test server keeps.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{ManualClock, Timestamp};
use tidegate_consumer::conformance::{self, Bed};
use tidegate_consumer::memory::{Faults, MemoryQueue, Settings};
use tidegate_consumer::{EntryResult, Message, Queue, QueueError, Receive, VisibilityChange};

const ASK: Receive = Receive {
    max: 10,
    wait_secs: 0,
    visibility_secs: 30,
};

struct InProcess(Arc<ManualClock>);

impl InProcess {
    fn new() -> Self {
        Self(Arc::new(ManualClock::new(Timestamp::EPOCH)))
    }

    fn empty(&self, settings: Settings) -> MemoryQueue {
        MemoryQueue::new(self.0.clone(), settings, 7)
    }

    /// Runs to the end, and lets time pass where only time can help.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            let alarm = self.0.next_alarm().expect("somebody waits for a time");
            self.0.set(alarm);
        }
    }

    fn seconds(&self) -> u64 {
        use tidegate::Clock;
        self.0.now().as_micros() / 1_000_000
    }
}

impl Bed for InProcess {
    type Queue = MemoryQueue;

    async fn queue(&self, fifo: bool, most: Option<u32>) -> (MemoryQueue, Option<MemoryQueue>) {
        let plain = Settings {
            fifo,
            ..Settings::default()
        };
        let dead = most.map(|_| self.empty(plain.clone()));
        let redrive = most.zip(dead.clone());
        (self.empty(Settings { redrive, ..plain }), dead)
    }

    async fn send(&self, queue: &MemoryQueue, body: &str, group: Option<&str>) {
        queue.send(body, group);
    }

    async fn pass(&self, secs: u32) {
        self.0.advance(Duration::from_secs(secs.into()));
    }
}

macro_rules! conforms {
    ($($rule:ident)*) => {$(
        #[test]
        fn $rule() {
            let bed = InProcess::new();
            bed.run(conformance::$rule(&bed));
        }
    )*};
}

conforms! {
    a_message_comes_again_when_its_visibility_ends
    a_deleted_message_is_gone_and_a_second_delete_succeeds
    a_batch_fails_by_entry
    a_message_may_be_twice_in_one_batch
    visibility_counts_from_the_call
    a_message_is_dead_after_exactly_so_many_receives
    a_group_keeps_its_order_and_holds_up_no_other
    a_receive_gives_no_more_than_was_asked_for
}

fn changed(bed: &InProcess, queue: &MemoryQueue, of: &Message, secs: u32) -> EntryResult {
    let change = VisibilityChange {
        receipt: of.receipt.clone(),
        visibility_secs: secs,
    };
    bed.run(queue.change_visibility(&[change])).unwrap()[0].clone()
}

#[test]
fn a_long_poll_ends_with_a_message_at_its_very_moment_or_empty_in_time() {
    let bed = InProcess::new();
    let queue = bed.empty(Settings {
        delay_secs: 7,
        ..Settings::default()
    });
    let ask = Receive {
        wait_secs: 20,
        ..ASK
    };
    assert!(bed.run(queue.receive(ask)).unwrap().is_empty());
    assert_eq!(bed.seconds(), 20);
    queue.send("work", None);
    assert_eq!(bed.run(queue.attributes()).unwrap().delayed, 1);
    assert_eq!(bed.run(queue.receive(ask)).unwrap().len(), 1);
    assert_eq!(bed.seconds(), 27);
}

#[test]
fn invisibility_ends_twelve_hours_after_the_receive() {
    let bed = InProcess::new();
    let queue = bed.empty(Settings::default());
    queue.send("work", None);
    let message = bed.run(queue.receive(ASK)).unwrap().remove(0);
    changed(&bed, &queue, &message, 43_200).unwrap();
    bed.run(bed.pass(60));
    let refused = changed(&bed, &queue, &message, 43_141).unwrap_err();
    assert_eq!(refused.code, "InvalidParameterValue");
    changed(&bed, &queue, &message, 43_140).unwrap();
    bed.run(bed.pass(43_140));
    let late = changed(&bed, &queue, &message, 10).unwrap_err();
    assert_eq!(late.code, "MessageNotInflight");
}

#[test]
fn a_stale_receipt_deletes_nothing() {
    for fifo in [false, true] {
        let bed = InProcess::new();
        let queue = bed.empty(Settings {
            fifo,
            ..Settings::default()
        });
        queue.send("work", fifo.then_some("a"));
        let first = bed.run(queue.receive(ASK)).unwrap().remove(0);
        bed.run(bed.pass(30));
        let second = bed.run(queue.receive(ASK)).unwrap().remove(0);
        let stale = bed.run(queue.delete(&[first.receipt])).unwrap();
        assert_eq!(stale[0].is_err(), fifo);
        assert_eq!(queue.bodies().len(), 1);
        bed.run(queue.delete(&[second.receipt])).unwrap();
        assert!(queue.bodies().is_empty());
    }
}

#[test]
fn a_receipt_outlives_its_visibility_on_a_standard_queue_alone() {
    for fifo in [false, true] {
        let bed = InProcess::new();
        let queue = bed.empty(Settings {
            fifo,
            ..Settings::default()
        });
        queue.send("work", fifo.then_some("a"));
        let message = bed.run(queue.receive(ASK)).unwrap().remove(0);
        bed.run(bed.pass(30));
        let late = bed.run(queue.delete(&[message.receipt])).unwrap();
        assert_eq!(late[0].is_err(), fifo);
        assert_eq!(queue.bodies().is_empty(), !fifo);
    }
}

#[test]
fn too_many_in_flight_is_an_error_of_a_standard_queue_and_silence_of_a_fifo_queue() {
    for fifo in [false, true] {
        let bed = InProcess::new();
        let queue = bed.empty(Settings {
            fifo,
            max_in_flight: 2,
            ..Settings::default()
        });
        for group in ["a", "b", "c"] {
            queue.send("work", fifo.then_some(group));
        }
        assert_eq!(bed.run(queue.receive(ASK)).unwrap().len(), 2);
        match bed.run(queue.receive(ASK)) {
            Ok(none) => assert!(fifo && none.is_empty()),
            Err(error) => assert!(!fifo && error == QueueError::OverLimit),
        }
    }
}

#[test]
fn calls_out_of_range_are_refused() {
    let bed = InProcess::new();
    let queue = bed.empty(Settings::default());
    let asks = [
        Receive { max: 0, ..ASK },
        Receive { max: 11, ..ASK },
        Receive {
            wait_secs: 21,
            ..ASK
        },
        Receive {
            visibility_secs: 43_201,
            ..ASK
        },
    ];
    for ask in asks {
        let error = bed.run(queue.receive(ask)).unwrap_err();
        assert!(!error.is_transient(), "{ask:?}");
    }
    assert!(bed.run(queue.delete(&[])).is_err());
}

/// A reckless consumer over a queue that fails in every way.
fn reckless(seed: u64) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let bed = InProcess::new();
    let fifo = dice.bool();
    let most = dice.u32(1..=4);
    let dead = MemoryQueue::new(
        bed.0.clone(),
        Settings {
            fifo,
            ..Settings::default()
        },
        seed,
    );
    let settings = Settings {
        fifo,
        delay_secs: dice.u32(0..3),
        redrive: Some((most, dead.clone())),
        max_in_flight: dice.usize(1..20),
    };
    let queue = MemoryQueue::new(bed.0.clone(), settings, seed);
    queue.set_faults(Faults {
        throttled: 0.1,
        failed: 0.1,
        lost_reply: 0.1,
        failed_entry: 0.1,
        duplicate: if fifo { 0.0 } else { 0.1 },
    });
    let (mut sent, mut maybe_deleted) = (0_u32, Vec::new());
    let mut held: Vec<Message> = Vec::new();
    let mut receives = BTreeMap::new();
    for _ in 0..200 {
        match dice.u8(..5) {
            0 => {
                let group = fifo.then(|| ["a", "b", "c"][dice.usize(..3)]);
                queue.send(&sent.to_string(), group);
                sent += 1;
            }
            1 => bed.run(bed.pass(dice.u32(..5))),
            2 if !held.is_empty() => {
                let message = held.swap_remove(dice.usize(..held.len()));
                maybe_deleted.push(Arc::clone(&message.body));
                let _ = bed.run(queue.delete(&[message.receipt]));
            }
            3 if !held.is_empty() => {
                let message = &held[dice.usize(..held.len())];
                let change = VisibilityChange {
                    receipt: message.receipt.clone(),
                    visibility_secs: dice.u32(..10),
                };
                let _ = bed.run(queue.change_visibility(&[change]));
            }
            _ => {
                let ask = Receive {
                    max: dice.usize(1..=10),
                    wait_secs: dice.u32(..3),
                    visibility_secs: dice.u32(..10),
                };
                for message in bed.run(queue.receive(ask)).unwrap_or_default() {
                    assert!(message.receives <= most, "one receive too many");
                    let before = receives.insert(Arc::clone(&message.id), message.receives);
                    assert!(before < Some(message.receives), "a receive was taken back");
                    held.push(message);
                }
            }
        }
        let mut kept = queue.bodies();
        kept.extend(dead.bodies());
        for number in 0..sent {
            let body: Arc<str> = number.to_string().into();
            let copies = kept.iter().filter(|kept| **kept == body).count();
            assert!(
                copies == 1 || (copies == 0 && maybe_deleted.contains(&body)),
                "{body}"
            );
        }
    }
}

#[test]
fn no_message_is_lost_or_made_and_none_is_received_too_often_whatever_fails() {
    for seed in 0..300 {
        // The harness shows this only where the test fails.
        println!("seed {seed}");
        reckless(seed);
    }
}

//! The loop of a consumer: permits first, then as many messages.
//!
//! It runs as one future without a runtime of its own, in the time of a clock. Dropped, it is as if
//! its process had been killed: what it held comes again when its visibility ends, and its
//! permits are given back.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tidegate::{Clock, WaitError};

use crate::limit::{Limit, Permit};
use crate::queue::{
    MAX_BATCH, MAX_WAIT_SECS, Message, Queue, QueueError, Receive, VisibilityChange,
};
use crate::wait::{Stop, after, sleep_until, unless};

const SECOND: u64 = 1_000_000;

/// What the work on a message came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Done: the message is deleted.
    Done,
    /// It failed: the message comes again after so many seconds, and has spent a receive.
    Retry {
        /// From now on.
        after_secs: u32,
    },
}

/// How a consumer works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Options {
    /// Most messages at work at once in this consumer, whatever the limit allows. Default: 10.
    pub concurrency: usize,
    /// For how long a message is invisible unless that is renewed, every third of it, in seconds:
    /// 3 or more. Default: 30.
    pub visibility_secs: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 10,
            visibility_secs: 30,
        }
    }
}

/// Why a consumer cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The messages of one group would be worked on at the same time, out of order.
    #[error(
        "the queue is FIFO, and the order within its groups cannot be kept yet: use a standard queue"
    )]
    Fifo,
    /// The limit can give no permit, however long one waits.
    #[error("the limit can give no permit for a message")]
    Limit(#[source] WaitError),
    /// The queue refuses what every consumer has to ask for.
    #[error("the queue refuses to be read")]
    Queue(#[source] QueueError),
}

/// Works off a standard queue, and never receives a message that it has no permit for: but for one, while
/// the queue was empty before, which is held until there is a permit.
#[derive(Debug)]
pub struct Consumer<Q, L, H> {
    queue: Q,
    limit: L,
    handler: H,
    clock: ClockRef,
    options: Options,
    stop: Stop,
}

struct ClockRef(Arc<dyn Clock>);

impl std::fmt::Debug for ClockRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

type Task<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Messages, each with its permit or, after an idle time, none yet.
type Fetched<P> = Vec<(Message, Option<P>)>;

impl<Q, L, H, F> Consumer<Q, L, H>
where
    Q: Queue,
    L: Limit,
    H: Fn(Message) -> F + Send + Sync,
    F: Future<Output = Outcome> + Send,
{
    /// A consumer of `queue` that calls `handler` with each message while it holds a permit.
    pub fn new(queue: Q, limit: L, handler: H, clock: Arc<dyn Clock>, options: Options) -> Self {
        let options = Options {
            concurrency: options.concurrency.max(1),
            visibility_secs: options.visibility_secs.max(3),
        };
        Self {
            queue,
            limit,
            handler,
            clock: ClockRef(clock),
            options,
            stop: Stop::default(),
        }
    }

    /// Lets [`Self::run`] come to its end: nothing more is received, what is at work is finished,
    /// and what waits is made visible again.
    pub fn drain(&self) {
        self.stop.give();
    }

    /// Runs until it is drained.
    ///
    /// # Errors
    /// When it cannot work at all. What is at work then is dropped, as when it is killed: its
    /// messages come again when their visibility ends.
    pub async fn run(&self) -> Result<(), ConsumerError> {
        self.check_order().await?;
        let mut workers: Vec<Task<'_, ()>> = Vec::new();
        let mut fetching: Option<Task<'_, Result<Fetched<L::Permit>, ConsumerError>>> = None;
        let mut empty = 0_u32;
        let mut stopped = Box::pin(self.stop.given());
        let mut stopping = false;
        poll_fn(|context| {
            stopping = stopping || stopped.as_mut().poll(context).is_ready();
            loop {
                workers.retain_mut(|worker| worker.as_mut().poll(context).is_pending());
                let room = self.options.concurrency - workers.len().min(self.options.concurrency);
                if fetching.is_none() && room > 0 && !stopping {
                    fetching = Some(Box::pin(self.fetch(room.min(MAX_BATCH), empty >= 2)));
                }
                let Some(fetch) = &mut fetching else {
                    if stopping && workers.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    return Poll::Pending;
                };
                let Poll::Ready(fetched) = fetch.as_mut().poll(context) else {
                    return Poll::Pending;
                };
                fetching = None;
                let fetched = match fetched {
                    Ok(fetched) => fetched,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                empty = if fetched.is_empty() { empty + 1 } else { 0 };
                for (message, permit) in fetched {
                    workers.push(Box::pin(self.work(message, permit)));
                }
            }
        })
        .await
    }

    /// Asks until it is known that the queue has no order to keep.
    async fn check_order(&self) -> Result<(), ConsumerError> {
        while !self.stop.is_given() {
            match self.queue.attributes().await {
                Ok(attributes) if attributes.fifo => return Err(ConsumerError::Fifo),
                Ok(_) => return Ok(()),
                Err(error) if error.is_transient() => self.pause(SECOND / 5).await,
                Err(error) => return Err(ConsumerError::Queue(error)),
            }
        }
        Ok(())
    }

    /// Permits, and then at most as many messages. None where there are none, after a second.
    async fn fetch(&self, room: usize, idle: bool) -> Result<Fetched<L::Permit>, ConsumerError> {
        let mut permits = Vec::new();
        if !idle {
            match unless(self.limit.acquire(room), self.stop.given()).await {
                Some(Ok(acquired)) => permits = acquired,
                Some(Err(error)) => return Err(ConsumerError::Limit(error)),
                None => return Ok(Vec::new()),
            }
        }
        if self.stop.is_given() {
            return Ok(Vec::new());
        }
        let ask = Receive {
            max: permits.len().max(1),
            wait_secs: if idle { MAX_WAIT_SECS } else { 1 },
            visibility_secs: self.options.visibility_secs,
        };
        // Not given up halfway, not even to drain: it could take messages along.
        match self.queue.receive(ask).await {
            Ok(messages) => {
                let mut permits = permits.into_iter();
                let fetched = messages
                    .into_iter()
                    .map(|message| (message, permits.next()));
                Ok(fetched.collect())
            }
            Err(error) if error.is_transient() => {
                drop(permits);
                self.pause(SECOND).await;
                Ok(Vec::new())
            }
            Err(error) => Err(ConsumerError::Queue(error)),
        }
    }

    async fn work(&self, message: Message, permit: Option<L::Permit>) {
        let ended = self.hold(&message, self.handle(&message, permit)).await;
        // What was lost on the way is another's by now.
        let Some(Some(outcome)) = ended else { return };
        match outcome {
            Outcome::Done => {
                self.hold(&message, self.delete(&message)).await;
            }
            Outcome::Retry { after_secs } => self.hide(&message, after_secs).await,
        }
    }

    /// What the handler says, or none if the permit was lost before that.
    async fn handle(&self, message: &Message, permit: Option<L::Permit>) -> Option<Outcome> {
        let mut had = permit;
        loop {
            let permit = match had.take() {
                Some(permit) => permit,
                None => match unless(self.limit.acquire(1), self.stop.given()).await {
                    Some(Ok(mut permits)) => permits.pop()?,
                    _ => return Some(Outcome::Retry { after_secs: 0 }),
                },
            };
            if self.stop.is_given() {
                return Some(Outcome::Retry { after_secs: 0 });
            }
            if permit.start() {
                return unless((self.handler)(message.clone()), permit.lost()).await;
            }
        }
    }

    /// Works, and keeps the message invisible meanwhile. None if that failed: then the work was
    /// dropped before anybody else could receive the message.
    async fn hold<T>(&self, message: &Message, work: impl Future<Output = T>) -> Option<T> {
        unless(work, self.keep_invisible(message)).await
    }

    /// Ends when the message may soon be visible.
    async fn keep_invisible(&self, message: &Message) {
        let length = u64::from(self.options.visibility_secs) * SECOND;
        let clock = &*self.clock.0;
        let mut last = clock.now();
        let mut wait = length / 3;
        loop {
            sleep_until(clock, after(clock.now(), wait)).await;
            let asked_at = clock.now();
            let change = [change(message, self.options.visibility_secs)];
            let deadline = sleep_until(clock, after(last, length - length / 10));
            let Some(answer) = unless(self.queue.change_visibility(&change), deadline).await else {
                return;
            };
            match answer.map(|results| results.into_iter().next()) {
                Ok(Some(Ok(()))) => (last, wait) = (asked_at, length / 3),
                Ok(Some(Err(error))) if error.sender_fault => return,
                _ => wait = length / 30,
            }
            if clock.now() >= after(last, length - length / 10) {
                return;
            }
        }
    }

    async fn delete(&self, message: &Message) {
        loop {
            let answer = self
                .queue
                .delete(std::slice::from_ref(&message.receipt))
                .await;
            match answer.map(|results| results.into_iter().next()) {
                Ok(Some(Ok(()))) => return,
                Ok(Some(Err(error))) if error.sender_fault => return,
                Err(error) if !error.is_transient() => return,
                _ => self.pause(SECOND / 5).await,
            }
        }
    }

    /// Makes a message visible again after so many seconds; a failure leaves it to its time.
    async fn hide(&self, message: &Message, secs: u32) {
        for _ in 0..3 {
            let changed = self.queue.change_visibility(&[change(message, secs)]).await;
            match changed.map(|results| results.into_iter().next()) {
                Ok(Some(Ok(()))) => return,
                _ => self.pause(SECOND / 5).await,
            }
        }
    }

    async fn pause(&self, micros: u64) {
        let clock = &*self.clock.0;
        sleep_until(clock, after(clock.now(), micros)).await;
    }
}

fn change(message: &Message, visibility_secs: u32) -> VisibilityChange {
    VisibilityChange {
        receipt: message.receipt.clone(),
        visibility_secs,
    }
}

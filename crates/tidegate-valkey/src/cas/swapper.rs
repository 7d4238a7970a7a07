//! Decisions over values that are read and written on a condition.
//!
//! The callers of one key in one process do not compete with each other: those who come while a write
//! is under way are decided together by the next one, in the order in which they came. So only
//! processes compete, and each at most once at a time for a key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Pipeline;
use tidegate_core::{Operation, OperationError, Reply};
use tidegate_store::Outcome;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use super::attempt::{Failure, Write, apply, decide_joint};
use crate::client::{Read, jitter, set};
use crate::{Certainty, Client, JointCall, LimitSpec, SharedMember, StoreError};

/// How often a write is tried before its callers are told that others were quicker each time.
const ATTEMPTS: u32 = 64;

/// The first tries follow each other at once: the way to the server and back is pause enough.
const AT_ONCE: u32 = 3;

/// How many callers are decided by one write.
const TOGETHER: usize = 256;

/// What one caller wants.
struct Job {
    limit: LimitSpec,
    operation: Operation,
    shadow: bool,
    deadline: Instant,
    answer: oneshot::Sender<Result<(Reply, bool), StoreError>>,
}

/// Decides without scripts.
#[derive(Debug)]
pub(crate) struct Swapper {
    client: Client,
    /// Callers by key; a key is here while somebody decides about it.
    queues: Mutex<HashMap<Vec<u8>, Vec<Job>>>,
    /// The server knows no `IFEQ`.
    watches: AtomicBool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

impl Swapper {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            queues: Mutex::default(),
            watches: AtomicBool::new(false),
        })
    }

    /// Applies one operation. Also says whether the key's times were moved back.
    pub(crate) async fn apply(
        self: &Arc<Self>,
        key: Vec<u8>,
        limit: &LimitSpec,
        operation: &Operation,
        shadow: bool,
        deadline: Instant,
    ) -> Result<(Reply, bool), StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            limit: limit.clone(),
            operation: *operation,
            shadow,
            deadline,
            answer,
        };
        if self.join(&key, job) {
            tokio::spawn(Arc::clone(self).serve(key));
        }
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The task that decides has ended with its runtime, or is not done in time.
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout {
                server: self.client.name(),
                deadline: self.client.patience(),
            }),
        }
    }

    /// Lines a caller up; whether somebody has to begin to serve the key.
    fn join(&self, key: &[u8], job: Job) -> bool {
        let mut queues = self.queues();
        match queues.get_mut(key) {
            Some(queue) => {
                queue.push(job);
                false
            }
            None => {
                queues.insert(key.to_vec(), vec![job]);
                true
            }
        }
    }

    /// Decides about a key until nobody asks any more.
    async fn serve(self: Arc<Self>, key: Vec<u8>) {
        let leaving = Leaving(&self, &key);
        loop {
            let jobs: Vec<Job> = {
                let mut queues = self.queues();
                let Some(queue) = queues.get_mut(&key).filter(|queue| !queue.is_empty()) else {
                    queues.remove(&key);
                    std::mem::forget(leaving);
                    return;
                };
                let count = queue.len().min(TOGETHER);
                queue.drain(..count).collect()
            };
            self.decide(&key, jobs).await;
        }
    }

    async fn decide(&self, key: &[u8], mut jobs: Vec<Job>) {
        let mut attempt = 0;
        loop {
            // Who has given up is not counted.
            jobs.retain(|job| !job.answer.is_closed());
            let Some(deadline) = jobs.iter().map(|job| job.deadline).max() else {
                return;
            };
            let started = Instant::now();
            match self.attempt(key, &jobs, deadline).await {
                Ok(Some(answers)) => {
                    let is_freed = answers
                        .iter()
                        .any(|answer| matches!(answer, Ok((Reply::Released(true), _))));
                    for (job, answer) in jobs.into_iter().zip(answers) {
                        // It may have given up just now: then it does not know what was counted.
                        let _ = job.answer.send(answer);
                    }
                    if is_freed {
                        let channel = [key, b":free"].concat();
                        self.client.announce(channel, deadline).await;
                    }
                    return;
                }
                Ok(None) => attempt += 1,
                // The deadline came while it was read again.
                Err(error) if attempt > 0 && is_over(&error, deadline) => {
                    fail(jobs, self.contended(attempt), || self.contended(attempt));
                    return;
                }
                Err(error) => {
                    let certainty = error.was_counted();
                    let message = error.to_string();
                    fail(jobs, error, || self.likewise(certainty, &message));
                    return;
                }
            }
            let Some(pause) = pause(attempt, started, deadline) else {
                fail(jobs, self.contended(attempt), || self.contended(attempt));
                return;
            };
            rest(pause).await;
        }
    }

    /// Reads, decides, writes; none if others have written in between.
    async fn attempt(
        &self,
        key: &[u8],
        jobs: &[Job],
        deadline: Instant,
    ) -> Result<Option<Vec<Answer>>, StoreError> {
        if self.watches.load(Relaxed) {
            let keys = [key.to_vec()];
            let (watched, read) = self.client.watch(&keys, deadline).await?;
            let (answers, write) = self.decide_all(jobs, &read);
            if write == Write::None {
                watched.keep();
                return Ok(Some(answers));
            }
            let writes = transaction(&keys, &[write], &read);
            let is_done = watched.commit(&writes, deadline).await?;
            return Ok(is_done.then_some(answers));
        }
        let read = self.client.read(key, deadline).await?;
        let (answers, write) = self.decide_all(jobs, &read);
        if write == Write::None {
            return Ok(Some(answers));
        }
        let old = read.values[0].as_deref();
        match self.client.swap(key, old, &write, read.now, deadline).await {
            Ok(is_done) => Ok(is_done.then_some(answers)),
            Err(StoreError::Server { message, .. }) if message.contains("syntax") => {
                self.watches.store(true, Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Decides for all callers, one after the other at one moment.
    fn decide_all(&self, jobs: &[Job], read: &Read) -> (Vec<Answer>, Write) {
        let mut value = read.values.first().cloned().flatten();
        let mut write = Write::None;
        let mut answers = Vec::new();
        for job in jobs {
            let applied = apply(
                &job.limit,
                value.as_deref(),
                read.now,
                &job.operation,
                job.shadow,
            );
            answers.push(match applied {
                Ok((reply, is_rebased, own)) => {
                    match &own {
                        Write::None => {}
                        Write::Set(new, _) => value = Some(new.clone()),
                        Write::Forget => value = None,
                    }
                    if own != Write::None {
                        write = own;
                    }
                    Ok((reply, is_rebased))
                }
                Err(failure) => Err(self.error(failure)),
            });
        }
        (answers, write)
    }

    /// Decides over keys that lie together. Also says how many had their times moved back.
    pub(crate) async fn all_of(
        &self,
        members: &[SharedMember<'_>],
        joint: &JointCall,
        deadline: Instant,
    ) -> Result<(Outcome, u32), StoreError> {
        let keys = &joint.call.keys;
        let mut attempt = 0;
        loop {
            let started = Instant::now();
            let (watched, read) = match self.client.watch(keys, deadline).await {
                Err(error) if attempt > 0 && is_over(&error, deadline) => {
                    return Err(self.contended(attempt));
                }
                read => read?,
            };
            let (answer, writes) = decide_joint(members, joint, &read.values, read.now)
                .map_err(|failure| self.error(failure))?;
            if writes.iter().all(|write| *write == Write::None) {
                watched.keep();
                return Ok(answer);
            }
            if watched
                .commit(&transaction(keys, &writes, &read), deadline)
                .await?
            {
                return Ok(answer);
            }
            attempt += 1;
            let pause = pause(attempt, started, deadline);
            rest(pause.ok_or_else(|| self.contended(attempt))?).await;
        }
    }

    fn contended(&self, attempts: u32) -> StoreError {
        StoreError::Contended {
            server: self.client.name(),
            attempts,
        }
    }

    /// What a failure means for another caller that would have been decided by it.
    fn likewise(&self, certainty: Certainty, message: &str) -> StoreError {
        let server = self.client.name();
        match certainty {
            Certainty::NotCounted => StoreError::Unavailable {
                server,
                message: message.into(),
            },
            Certainty::Unknown => StoreError::Timeout {
                server,
                deadline: self.client.patience(),
            },
        }
    }

    fn error(&self, failure: Failure) -> StoreError {
        let server = || self.client.name();
        match failure {
            Failure::Operation(error) => OperationError::into(error),
            Failure::Unreadable => StoreError::Unreadable { server: server() },
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<Job>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a try ended with the deadline before it wrote anything.
fn is_over(error: &StoreError, deadline: Instant) -> bool {
    error.was_counted() == Certainty::NotCounted && Instant::now() >= deadline
}

/// How long to wait before the next try; none where there is no time for one.
fn pause(attempt: u32, started: Instant, deadline: Instant) -> Option<Duration> {
    let pause = match attempt.checked_sub(AT_ONCE) {
        Some(more) => jitter(more),
        None => Duration::ZERO,
    };
    let now = Instant::now();
    (attempt < ATTEMPTS && now + pause + (now - started) < deadline).then_some(pause)
}

/// Timers tick in milliseconds, so no pause is none.
async fn rest(pause: Duration) {
    if !pause.is_zero() {
        sleep(pause).await;
    }
}

type Answer = Result<(Reply, bool), StoreError>;

/// Lets nobody wait for a task that has ended before its time.
struct Leaving<'a>(&'a Swapper, &'a [u8]);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.queues().remove(self.1);
    }
}

/// Tells all callers of a failure: the first the error itself, the others what it means for them.
fn fail(jobs: Vec<Job>, error: StoreError, other: impl Fn() -> StoreError) {
    let mut error = Some(error);
    for job in jobs {
        let error = error.take().unwrap_or_else(&other);
        let _ = job.answer.send(Err(error));
    }
}

fn transaction(keys: &[Vec<u8>], writes: &[Write], read: &Read) -> Pipeline {
    let mut commands = Pipeline::with_capacity(keys.len() + 2);
    commands.cmd("MULTI");
    for (key, write) in keys.iter().zip(writes) {
        if *write != Write::None {
            commands.add_command(set(key, write, read.now));
        }
    }
    commands.cmd("EXEC");
    commands
}

//! Reading values with the server's time, and writing them if nobody has written since.

use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tidegate_core::Timestamp;
use tokio::time::{Instant, sleep};

use super::backoff::Backoff;
use super::dial::bytes;
use super::node::{Failure, Request, Watched};
use super::{Client, TRY_AGAIN, given_up};
use crate::StoreError;
use crate::cas::Write;

/// The server's time, and what was kept under each key at that moment.
pub(crate) struct Read {
    pub(crate) now: Timestamp,
    pub(crate) values: Vec<Option<Vec<u8>>>,
}

impl Client {
    /// Reads one key.
    pub(crate) async fn read(&self, key: &[u8], deadline: Instant) -> Result<Read, StoreError> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let request = Request {
            name: "read",
            script: None,
            lead: Some(redis::cmd("TIME")),
            command: get,
            deadline,
        };
        let reply = self.request(&request, key).await?;
        match reply {
            Value::Array(replies) => self.read_from(&replies[..1], &replies[1..]),
            _ => Err(self.strange()),
        }
    }

    /// Writes one key if it still has `old`: `IFEQ` is known to Valkey since 8.1. False if it has not.
    ///
    /// # Errors
    /// [`StoreError::Server`] where the server does not know `IFEQ`.
    pub(crate) async fn swap(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        write: &Write,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let mut command = set(key, write, now);
        match old {
            Some(old) => command.arg("IFEQ").arg(old),
            None => command.arg("NX"),
        };
        let request = Request {
            name: "set",
            script: None,
            lead: None,
            command,
            deadline,
        };
        let reply = self.request(&request, key).await?;
        Ok(bytes(&reply) == Some(b"OK") || matches!(reply, Value::Okay))
    }

    /// Reads keys that lie together and watches them.
    pub(crate) async fn watch(
        &self,
        keys: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<(Watched, Read), StoreError> {
        let key = keys.first().map_or(&[][..], Vec::as_slice);
        let mut backoff = Backoff::new(TRY_AGAIN.0, TRY_AGAIN.1);
        loop {
            let topology = &self.inner.topology;
            let owner = topology.owner(key, deadline).await?;
            let (node, refusal) = match owner {
                Some(node) => {
                    let mut commands = Pipeline::with_capacity(4);
                    commands.cmd("UNWATCH");
                    commands.cmd("WATCH").arg(keys);
                    commands.cmd("TIME");
                    commands.cmd("MGET").arg(keys);
                    match node.watch(commands, deadline).await {
                        Ok((watched, replies)) => {
                            let Some(Value::Array(values)) = replies.get(3) else {
                                return Err(self.strange());
                            };
                            let read = self.read_from(&replies[2..3], values)?;
                            return Ok((watched, read));
                        }
                        Err(Failure::Final(error)) => {
                            if error.blames_server() {
                                topology.suspect();
                            }
                            return Err(error);
                        }
                        Err(Failure::Refused(refusal)) => (Some(node), refusal),
                    }
                }
                None => {
                    let refusal = super::Refusal::Later("no server has the key's slot".into());
                    (None, refusal)
                }
            };
            topology.suspect();
            let wait = backoff.next();
            if Instant::now() + wait >= deadline {
                return Err(given_up(node.as_deref(), &refusal));
            }
            sleep(wait).await;
        }
    }

    /// Tells whoever waits for a permit that one is free. Nobody depends on it.
    pub(crate) async fn announce(&self, channel: Vec<u8>, deadline: Instant) {
        let mut command = redis::cmd("PUBLISH");
        command.arg(&channel).arg("");
        let key = channel.strip_suffix(b":free").unwrap_or(&channel);
        let request = Request {
            name: "publish",
            script: None,
            lead: None,
            command,
            deadline,
        };
        let _ = self.request(&request, key).await;
    }

    fn read_from(&self, time: &[Value], values: &[Value]) -> Result<Read, StoreError> {
        let number = |value: &Value| -> Option<u64> {
            std::str::from_utf8(bytes(value)?).ok()?.parse().ok()
        };
        let now = match time {
            [Value::Array(time)] => match time.as_slice() {
                [seconds, micros] => number(seconds)
                    .zip(number(micros))
                    .and_then(|(s, us)| Timestamp::from_micros(s * 1_000_000 + us).ok()),
                _ => None,
            },
            _ => None,
        };
        let now = now.ok_or_else(|| self.strange())?;
        let values = values.iter().map(|value| bytes(value).map(<[u8]>::to_vec));
        Ok(Read {
            now,
            values: values.collect(),
        })
    }

    fn strange(&self) -> StoreError {
        StoreError::Unsupported {
            server: self.name(),
            message: "it answers TIME and GET as no server does that keeps states".into(),
        }
    }
}

/// The command that writes: a key that goes is emptied for the last millisecond of its life, since
/// no server deletes on a condition before Valkey 9.
pub(crate) fn set(key: &[u8], write: &Write, now: Timestamp) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key);
    match write {
        Write::Set(value, lives) => {
            command.arg(value.as_slice());
            if let Some(lives) = lives {
                let millis = (now.as_micros() % 1000 + lives).div_ceil(1000).max(1);
                command.arg("PX").arg(millis);
            }
        }
        Write::Forget | Write::None => {
            command.arg("").arg("PX").arg(1);
        }
    }
    command
}

/// Waits between tries of one that others were quicker than.
pub(crate) fn jitter(attempt: u32) -> Duration {
    let most = 1_u64 << attempt.min(4);
    Duration::from_millis(fastrand::u64(1..=most))
}

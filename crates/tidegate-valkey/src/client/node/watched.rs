//! Connections that serve one call at a time: what a connection watches is its own, so nobody else may
//! speak on it meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::{Failure, Node, Refusal};
use crate::StoreError;

/// How many calls of one server may watch keys at once.
const AT_ONCE: usize = 64;

/// Connections that nobody uses at the moment.
#[derive(Debug)]
pub(super) struct OwnConnections {
    idle: Mutex<Vec<MultiplexedConnection>>,
    places: Arc<Semaphore>,
}

impl Default for OwnConnections {
    fn default() -> Self {
        Self {
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl OwnConnections {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that watches keys for one call. Dropped half-way, it is closed.
pub(crate) struct Watched {
    node: Arc<Node>,
    connection: MultiplexedConnection,
    _place: OwnedSemaphorePermit,
}

impl Node {
    /// Sends commands on a connection of their own, of which `UNWATCH` comes first: it may have
    /// watched for a call before. Returns the replies after that.
    pub(crate) async fn watch(
        self: &Arc<Self>,
        mut commands: Pipeline,
        deadline: Instant,
    ) -> Result<(Watched, Vec<Value>), Failure> {
        let Some(admission) = self.breaker.admit() else {
            let server = self.dialer.to_string();
            return Err(Failure::Final(StoreError::BreakerOpen { server }));
        };
        let result = self.try_to_watch(&mut commands, deadline).await;
        self.note(match &result {
            Err(Failure::Refused(refusal)) if refusal.blames_server() => admission.refuse(),
            Err(Failure::Final(error)) if error.blames_server() => admission.fail(),
            _ => admission.succeed(),
        });
        result
    }

    async fn try_to_watch(
        self: &Arc<Self>,
        commands: &mut Pipeline,
        deadline: Instant,
    ) -> Result<(Watched, Vec<Value>), Failure> {
        let late = || {
            Failure::Final(StoreError::Unreachable {
                server: self.dialer.to_string(),
                source: Box::new(std::io::Error::from(std::io::ErrorKind::TimedOut)),
            })
        };
        let places = Arc::clone(&self.own.places);
        let place = timeout_at(deadline, places.acquire_owned());
        let Ok(Ok(place)) = place.await else {
            return Err(late());
        };
        loop {
            let idle = self.own.idle().pop();
            let was_idle = idle.is_some();
            let connection = match idle {
                Some(connection) => connection,
                None => match timeout_at(deadline, self.dialer.dial(|_| Ok(()))).await {
                    Ok(Ok(connection)) => connection,
                    Ok(Err(error)) => {
                        let error = error.to_store_error(self.dialer.to_string());
                        return Err(Failure::Final(error));
                    }
                    Err(_) => return Err(late()),
                },
            };
            let mut connection = connection;
            let sent = connection.send_packed_commands(commands, 0, commands.len());
            match timeout_at(deadline, sent).await {
                Ok(Ok(replies)) => {
                    for reply in &replies {
                        if let Value::ServerError(error) = reply {
                            self.own.idle().push(connection);
                            return Err(self.failure(error));
                        }
                    }
                    let watched = Watched {
                        node: Arc::clone(self),
                        connection,
                        _place: place,
                    };
                    return Ok((watched, replies));
                }
                // It may have been closed while nobody used it; nothing was written.
                Ok(Err(_)) if was_idle => {}
                Ok(Err(source)) => {
                    return Err(Failure::Final(StoreError::Unreachable {
                        server: self.dialer.to_string(),
                        source: Box::new(source),
                    }));
                }
                Err(_) => return Err(late()),
            }
        }
    }

    fn failure(&self, error: &redis::ServerError) -> Failure {
        match Refusal::of(error) {
            Some(refusal) => Failure::Refused(refusal),
            None => {
                let server = self.dialer.to_string();
                Failure::Final(super::super::refusal::final_error(server, "watch", error))
            }
        }
    }
}

impl Watched {
    /// Writes, if nothing that is watched has changed: false if something has.
    pub(crate) async fn commit(
        mut self,
        writes: &Pipeline,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let server = || self.node.dialer.to_string();
        let sent = self
            .connection
            .send_packed_commands(writes, 0, writes.len());
        let replies = match timeout_at(deadline, sent).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(source)) => {
                return Err(StoreError::Broken {
                    server: server(),
                    source: Box::new(source),
                });
            }
            Err(_) => {
                return Err(StoreError::Timeout {
                    server: server(),
                    deadline: self.node.shared.options.deadline,
                });
            }
        };
        match replies.last() {
            Some(Value::Nil) => {
                self.keep();
                Ok(false)
            }
            Some(Value::Array(done)) => {
                // Where a command fails within, the others were done all the same.
                let failed = done.iter().find_map(|reply| match reply {
                    Value::ServerError(error) => Some(error),
                    _ => None,
                });
                let failed = failed.map(|error| self.node.failure(error));
                self.keep();
                match failed {
                    Some(Failure::Final(error)) => Err(error),
                    Some(Failure::Refused(_)) => Ok(false),
                    None => Ok(true),
                }
            }
            // Nothing was written: a command was refused before.
            Some(Value::ServerError(last)) => {
                let first = replies.iter().find_map(|reply| match reply {
                    Value::ServerError(error) => Some(error),
                    _ => None,
                });
                match self.node.failure(first.unwrap_or(last)) {
                    Failure::Final(error) => Err(error),
                    Failure::Refused(_) => Ok(false),
                }
            }
            _ => Ok(false),
        }
    }

    /// Leaves the connection to the next call.
    pub(crate) fn keep(self) {
        let Self {
            node, connection, ..
        } = self;
        node.own.idle().push(connection);
    }
}

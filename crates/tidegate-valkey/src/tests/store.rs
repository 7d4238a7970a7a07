//! A server whose scripts run at times that the test brings.

use std::collections::HashSet;

use redis::Value;
use tidegate_core::Timestamp;
use tidegate_testkit::{Flavor, Server};

use crate::cas::Write;
use crate::scripts::injected;
use crate::{Script, ScriptCall};

/// A real server, and one connection to it.
pub(super) struct Store {
    _server: Server,
    connection: redis::Connection,
    loaded: HashSet<&'static str>,
}

/// A call and its time.
pub(super) struct Timed {
    pub call: ScriptCall,
    pub now: Timestamp,
    /// Whether keys are forgotten when they may be.
    pub forgets: bool,
}

impl Store {
    pub(super) fn start(flavor: Flavor) -> Self {
        let server = Server::start(flavor);
        let connection = server.connection();
        // A busy machine may stop this process or the server for longer than a second.
        connection.set_read_timeout(None).unwrap();
        Self {
            _server: server,
            connection,
            loaded: HashSet::new(),
        }
    }

    /// Makes all calls, in order and in one round trip.
    pub(super) fn ask(&mut self, calls: &[Timed]) -> Vec<Value> {
        if calls.is_empty() {
            return Vec::new();
        }
        let mut pipe = redis::pipe();
        for Timed { call, now, forgets } in calls {
            let script = injected::twin(call.script);
            self.load(script);
            pipe.cmd("EVALSHA").arg(script.sha1()).arg(call.keys.len());
            for key in &call.keys {
                pipe.arg(key.as_slice());
            }
            for argument in &call.arguments {
                pipe.arg(argument.as_slice());
            }
            let mark = if *forgets { "" } else { "!" };
            pipe.arg(format!("{}{mark}", now.as_micros()));
        }
        let answers: Vec<Value> = pipe.query(&mut self.connection).unwrap();
        assert_eq!(answers.len(), calls.len());
        answers
    }

    /// Makes one call, with keys that are forgotten when they may be.
    pub(super) fn ask_one(&mut self, call: ScriptCall, now: Timestamp) -> Value {
        let forgets = true;
        let mut answers = self.ask(&[Timed { call, now, forgets }]);
        answers.remove(0)
    }

    /// Does without scripts what one call of them does: reads values, has `decide` make others of
    /// them, and writes those, on the injected time's lifetimes.
    pub(super) fn compare_and_swap<T>(
        &mut self,
        keys: &[Vec<u8>],
        now: Timestamp,
        forgets: bool,
        decide: impl FnOnce(&[Option<Vec<u8>>]) -> (T, Vec<Write>),
    ) -> T {
        let lifetime = |key: &[u8]| [key, b"#"].concat();
        let micros = now.as_micros();
        let mut values = Vec::new();
        for key in keys {
            let ends: Option<u64> = self.command(&[b"GET", &lifetime(key)]);
            if forgets && ends.is_some_and(|ends| micros >= ends) {
                self.command::<()>(&[b"DEL", key, &lifetime(key)]);
            }
            values.push(self.command(&[b"GET", key]));
        }
        let (answer, writes) = decide(&values);
        for (key, write) in keys.iter().zip(writes) {
            match write {
                Write::None => {}
                Write::Forget => self.command(&[b"DEL", key, &lifetime(key)]),
                Write::Set(value, lives) => {
                    self.command::<()>(&[b"SET", key, &value]);
                    match lives {
                        None => self.command::<()>(&[b"DEL", &lifetime(key)]),
                        Some(lives) => {
                            let ends = (micros + lives).div_ceil(1000) * 1000;
                            let ends = ends.to_string();
                            self.command::<()>(&[b"SET", &lifetime(key), ends.as_bytes()]);
                        }
                    }
                }
            }
        }
        answer
    }

    /// Runs any command.
    pub(super) fn command<T: redis::FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut self.connection).unwrap()
    }

    fn load(&mut self, script: &'static Script) {
        if self.loaded.insert(script.name) {
            let sha1: String = self.command(&[b"SCRIPT", b"LOAD", script.source.as_bytes()]);
            assert_eq!(sha1, script.sha1());
        }
    }
}

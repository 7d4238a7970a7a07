//! The primary that sentinels name, followed when they name another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::address::Address;
use super::dial::{DialError, Dialer, Expect, bytes};
use super::found::{Finder, Found, unknown};
use super::metrics::Event;
use super::node::Node;

/// How often sentinels are asked though nothing is wrong: a primary that was cut off and still
/// takes writes is left as soon as they have chosen another.
const ROUND: Duration = Duration::from_secs(1);

/// The shortest time between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    primary: Found<Arc<Node>>,
    wanted: Arc<Notify>,
    task: AbortHandle,
}

impl Sentinels {
    /// Begins to ask. Needs a tokio runtime.
    pub(crate) fn start(
        sentinels: &[Address],
        name: &str,
        shared: &Arc<Shared>,
    ) -> Result<Self, redis::RedisError> {
        let (finder, primary) = unknown();
        let wanted = Arc::new(Notify::new());
        let sentinels = sentinels
            .iter()
            .map(|address| {
                let dialer = Dialer::new(address.clone(), Expect::Sentinel, &shared.options)?;
                Ok((Arc::new(dialer), None))
            })
            .collect::<Result<_, redis::RedisError>>()?;
        let task = Task {
            sentinels,
            name: name.to_owned(),
            finder,
            current: None,
            shared: Arc::clone(shared),
        };
        Ok(Self {
            primary,
            task: tokio::spawn(task.run(Arc::clone(&wanted))).abort_handle(),
            wanted,
        })
    }

    pub(crate) const fn primary(&self) -> &Found<Arc<Node>> {
        &self.primary
    }

    /// Has the sentinels asked soon: the primary does not do what one does.
    pub(crate) fn suspect(&self) {
        self.wanted.notify_one();
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    sentinels: Vec<(Arc<Dialer>, Option<MultiplexedConnection>)>,
    name: String,
    finder: Finder<Arc<Node>>,
    current: Option<Arc<Node>>,
    shared: Arc<Shared>,
}

impl Task {
    async fn run(mut self, wanted: Arc<Notify>) {
        loop {
            match self.ask_all().await {
                Ok(address) => self.follow(address),
                Err((server, error)) => self.finder.fail(server, error),
            }
            sleep(PAUSE).await;
            let _ = timeout(ROUND, wanted.notified()).await;
        }
    }

    /// Asks all at once and takes what most of those that answer say.
    async fn ask_all(&mut self) -> Result<Address, (String, DialError)> {
        let mut questions = tokio::task::JoinSet::new();
        for (index, (dialer, connection)) in self.sentinels.iter_mut().enumerate() {
            let (dialer, connection) = (Arc::clone(dialer), connection.take());
            let name = self.name.clone();
            let patience = self.shared.options.connect_timeout;
            questions
                .spawn(async move { (index, ask(&dialer, connection, &name, patience).await) });
        }
        let mut votes: HashMap<Address, usize> = HashMap::new();
        let mut failure = None;
        while let Some(answer) = questions.join_next().await {
            let Ok((index, answer)) = answer else {
                continue;
            };
            match answer {
                Ok((address, connection)) => {
                    *votes.entry(address).or_default() += 1;
                    self.sentinels[index].1 = Some(connection);
                }
                Err(error) => failure = Some((self.sentinels[index].0.to_string(), error)),
            }
        }
        let most = votes.into_iter().max_by_key(|(_, votes)| *votes);
        match (most, failure) {
            (Some((address, _)), _) => Ok(address),
            (None, Some(failure)) => Err(failure),
            (None, None) => unreachable!("there is at least one sentinel"),
        }
    }

    fn follow(&mut self, address: Address) {
        if self
            .current
            .as_ref()
            .is_some_and(|node| *node.address() == address)
        {
            return;
        }
        match Dialer::new(address, Expect::Primary, &self.shared.options) {
            Ok(dialer) => {
                self.shared.tell(|| Event::PrimaryChanged {
                    server: dialer.to_string(),
                });
                let node = Node::start(dialer, &self.shared);
                self.current = Some(Arc::clone(&node));
                self.finder.know(node);
            }
            Err(error) => self
                .finder
                .fail(self.name.clone(), DialError::Connect(error)),
        }
    }
}

async fn ask(
    dialer: &Dialer,
    connection: Option<MultiplexedConnection>,
    name: &str,
    patience: Duration,
) -> Result<(Address, MultiplexedConnection), DialError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => dialer.dial(|_| Ok(())).await?,
    };
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = timeout(patience, connection.send_packed_command(&question))
        .await
        .map_err(|_| DialError::timed_out())?
        .and_then(Value::extract_error)
        .map_err(DialError::Connect)?;
    let address = match &reply {
        Value::Array(parts) => match parts.as_slice() {
            [host, port] => read_address(host, port),
            _ => None,
        },
        _ => None,
    };
    let address = address.ok_or_else(|| {
        DialError::Unsupported(format!(
            "it knows no primary named `{name}`; name one of `SENTINEL MASTERS`"
        ))
    })?;
    Ok((address, connection))
}

fn read_address(host: &Value, port: &Value) -> Option<Address> {
    let host = std::str::from_utf8(bytes(host)?).ok()?;
    let port = std::str::from_utf8(bytes(port)?).ok()?.parse().ok()?;
    Some(Address::Tcp(host.to_owned(), port))
}

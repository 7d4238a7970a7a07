//! Requests to upstreams over pooled connections.
//!
//! A request is sent a second time in two cases only: a pooled connection turned out to be closed
//! before any byte of it was sent (the pool does that by itself), or the connection broke before
//! any answer, the method is idempotent and there is no body that could have been used up.

use std::error::Error as _;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use tidegate_config::model::Proxy;
use tokio::time::{Instant, sleep_until};

use crate::body::{BodyError, Progress, RequestBody};
use crate::pools::Pool;

/// An upstream server, and the part of the path that comes before the request's.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client,
    scheme: Scheme,
    authority: Authority,
    prefix: String,
    host: HeaderValue,
    timeout: Duration,
}

impl Upstream {
    /// Takes what the configuration says of it.
    #[must_use]
    pub(crate) fn new(proxy: &Proxy, pool: Pool) -> Self {
        let host = HeaderValue::from_str(proxy.authority.as_str());
        Self {
            client: Client { inner: pool },
            scheme: if proxy.tls {
                Scheme::HTTPS
            } else {
                Scheme::HTTP
            },
            authority: proxy.authority.clone(),
            prefix: proxy.prefix.clone(),
            host: host.expect("an authority is visible ASCII"),
            timeout: proxy.timeout,
        }
    }

    /// What sends requests to it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The host and port, as written: also the upstream's name in metrics.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The `Host` field of its requests.
    #[must_use]
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// For the upstream to begin its answer.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The target of a request with a canonical path. `original` is used as it is where nothing
    /// about it changes.
    #[must_use]
    pub fn target(&self, path: &str, query: Option<&str>, original: &Uri) -> Uri {
        let unchanged = original
            .path_and_query()
            .filter(|_| self.prefix.is_empty() && original.path() == path)
            .cloned();
        let path_and_query = unchanged.unwrap_or_else(|| {
            let (mark, query) = query.map_or(("", ""), |query| ("?", query));
            let text = [&self.prefix, path, mark, query].concat();
            PathAndQuery::try_from(text).expect("a canonical path and a query that was parsed")
        });
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path_and_query);
        Uri::from_parts(parts).expect("all three parts are there")
    }
}

/// Sends requests.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Pool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Nobody listens there.
    #[error("cannot connect to the upstream")]
    Connect(#[source] legacy::Error),
    /// Connecting took too long.
    #[error("connecting to the upstream took too long")]
    ConnectTimeout(#[source] legacy::Error),
    /// The connection ended before an answer.
    #[error("the upstream closed the connection without an answer")]
    Closed(#[source] legacy::Error),
    /// What came is no HTTP, or the connection failed in another way.
    #[error("the upstream gave no proper answer")]
    Broken(#[source] legacy::Error),
    /// The upstream answered with something that is no answer to this request.
    #[error("the upstream answered with status {0} to a request that did not ask for it")]
    Unexpected(StatusCode),
    /// The answer took too long.
    #[error("the upstream gave no answer within {0:?}")]
    Timeout(Duration),
    /// The client stopped sending its body.
    #[error("the client stopped sending its body")]
    ClientIdle,
    /// The client's body is none, or the client left.
    #[error("the client's body broke off")]
    ClientBroke,
}

impl Client {
    /// Sends a request and waits for the head of its answer.
    ///
    /// `timeout` counts from the moment that the body last moved: a slow upload is not a slow
    /// upstream.
    ///
    /// # Errors
    /// What [`Fault`] lists.
    pub async fn send(
        &self,
        request: Request<()>,
        body: Option<Incoming>,
        body_idle: Duration,
        timeout: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let (head, ()) = request.into_parts();
        let spare = (body.is_none() && is_idempotent(&head.method)).then(|| head.clone());
        let progress = body.as_ref().map(|_| Arc::new(Progress::new()));
        let body = match (body, &progress) {
            (Some(body), Some(progress)) => {
                RequestBody::streaming(body, body_idle, Arc::clone(progress))
            }
            _ => RequestBody::empty(),
        };
        let started = Instant::now();
        let sent = self.inner.request(Request::from_parts(head, body));
        let mut answer = within(timeout, started, progress.as_deref(), sent).await;
        if let (Err(Fault::Closed(_)), Some(head)) = (&answer, spare) {
            let again = self
                .inner
                .request(Request::from_parts(head, RequestBody::empty()));
            answer = within(timeout, started, None, again).await;
        }
        let answer = answer?;
        if answer.status().is_informational() {
            // 101 without an upgrade that was asked for.
            return Err(Fault::Unexpected(answer.status()));
        }
        Ok(answer)
    }
}

/// Waits for an answer, with a time-out that moves on while the body does.
async fn within(
    timeout: Duration,
    started: Instant,
    progress: Option<&Progress>,
    sent: legacy::ResponseFuture,
) -> Result<Response<Incoming>, Fault> {
    let mut sent = pin!(sent);
    let mut timer = pin!(sleep_until(started + timeout));
    loop {
        tokio::select! {
            biased;
            answer = &mut sent => return answer.map_err(fault),
            () = &mut timer => {
                let later = progress.map(|progress| progress.moved_at() + timeout);
                match later {
                    Some(later) if later > Instant::now() => timer.as_mut().reset(later),
                    _ => return Err(Fault::Timeout(timeout)),
                }
            }
        }
    }
}

fn fault(error: legacy::Error) -> Fault {
    let mut cause = error.source();
    let (mut timed_out, mut closed) = (false, false);
    while let Some(inner) = cause {
        match inner.downcast_ref::<BodyError>() {
            Some(BodyError::ClientIdle(_)) => return Fault::ClientIdle,
            Some(_) => return Fault::ClientBroke,
            None => {}
        }
        if let Some(error) = inner.downcast_ref::<io::Error>() {
            timed_out |= error.kind() == io::ErrorKind::TimedOut;
            closed |= matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            );
        }
        closed |= inner.downcast_ref::<hyper::Error>().is_some_and(|error| {
            error.is_incomplete_message() || error.is_canceled() || error.is_closed()
        });
        cause = inner.source();
    }
    match (error.is_connect(), timed_out, closed) {
        (true, true, _) => Fault::ConnectTimeout(error),
        (true, false, _) => Fault::Connect(error),
        (false, _, true) => Fault::Closed(error),
        (false, _, false) => Fault::Broken(error),
    }
}

/// Source: RFC 9110, section 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::Pools;

    fn upstream(scheme: &str, prefix: &str) -> Upstream {
        let proxy = Proxy {
            url: String::new(),
            tls: scheme == "https",
            ca: None,
            http2: false,
            authority: Authority::from_static("shop.example:81"),
            prefix: prefix.to_owned(),
            timeout: Duration::ZERO,
        };
        let plain = Proxy {
            tls: false,
            ..proxy.clone()
        };
        let pool = Pools::default().pool(&plain, Duration::ZERO, None);
        Upstream::new(&proxy, pool.unwrap())
    }

    #[test]
    fn the_prefix_comes_before_the_canonical_path() {
        let original = Uri::from_static("/x//y?q=%7E");
        let target = upstream("https", "/base").target("/x/y", Some("q=%7E"), &original);
        assert_eq!(target, "https://shop.example:81/base/x/y?q=%7E");
        assert_eq!(upstream("http", "").host(), "shop.example:81");
    }

    #[test]
    fn a_canonical_target_goes_on_as_it_came() {
        let original = Uri::from_static("/x?q=%7E");
        let target = upstream("http", "").target("/x", Some("q=%7E"), &original);
        assert_eq!(target, "http://shop.example:81/x?q=%7E");
    }
}

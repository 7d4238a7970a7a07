//! What the socket tests share: a gateway, upstreams that do as they are told, raw clients.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_config::model::{
    Action, Compat, Gateway, GrpcDenial, HeaderDialect, Identity, KeyPart, Limit, Mock, Mode,
    OnStoreFailure, Proxy, Route, Store, Timeouts, Tls, WhenFull,
};
use tidegate_config::{Config, RoutePattern, algorithm_from_pairs};
use tidegate_gateway::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Longer than anything here takes, short enough to notice.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a test wants of a gateway; the rest is as usual, on a free port.
pub struct Setup {
    pub listen: SocketAddr,
    pub admin: Option<SocketAddr>,
    pub tls: Option<Tls>,
    pub identity: Identity,
    pub stores: Vec<Store>,
    pub limits: Vec<Limit>,
    pub routes: Vec<Route>,
    pub limit_headers: HeaderDialect,
    pub compat: Compat,
    pub grpc_denial: GrpcDenial,
    pub timeouts: Timeouts,
    pub max_connections: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".parse().unwrap(),
            admin: None,
            tls: None,
            identity: Identity::default(),
            stores: Vec::new(),
            limits: Vec::new(),
            routes: Vec::new(),
            limit_headers: HeaderDialect::Ietf,
            compat: Compat::Native,
            grpc_denial: GrpcDenial::default(),
            timeouts: Timeouts::default(),
            max_connections: 1000,
        }
    }
}

impl Setup {
    pub fn config(self) -> Config {
        Config {
            limits: self.limits,
            identity: self.identity,
            stores: self.stores,
            plans: Vec::new(),
            api_keys: Vec::new(),
            gateway: Some(Gateway {
                listen: self.listen,
                tls: self.tls,
                routes: self.routes,
                limit_headers: self.limit_headers,
                compat: self.compat,
                grpc_denial: self.grpc_denial,
                timeouts: self.timeouts,
                max_connections: self.max_connections,
                access_log: false,
            }),
            service: None,
            admin: self.admin,
        }
    }
}

/// A limit: `limit("stage", "token_bucket rate 100/s capacity 200", &["method_and_route"])`.
pub fn limit(name: &str, algorithm: &str, key: &[&str]) -> Limit {
    let words: Vec<&str> = algorithm.split(' ').collect();
    let (algorithm, pairs) = words.split_first().unwrap();
    let pairs: Vec<(&str, &str)> = pairs.chunks(2).map(|pair| (pair[0], pair[1])).collect();
    Limit {
        name: name.to_owned(),
        description: None,
        algorithm: algorithm_from_pairs(algorithm, &pairs).unwrap(),
        key: key
            .iter()
            .map(|part| KeyPart::parse(part).unwrap())
            .collect(),
        cost: 1,
        charge_denied: false,
        lease_tokens: None,
        mode: Mode::Enforce,
        store: None,
        on_store_failure: OnStoreFailure::Deny,
        count_when: None,
        reset_when: None,
        max_keys: 100_000,
        when_full: WhenFull::Overflow,
    }
}

/// `capacity` at once and then next to nothing.
pub fn at_most(name: &str, capacity: u32, key: &[&str]) -> Limit {
    limit(
        name,
        &format!("token_bucket rate 1/h capacity {capacity}"),
        key,
    )
}

fn route(pattern: &str, limits: &[usize], action: Action) -> Route {
    Route {
        pattern: RoutePattern::parse(pattern).unwrap(),
        limits: limits.to_vec(),
        action,
        api_key_required: false,
        cache: None,
    }
}

pub fn mock(pattern: &str, limits: &[usize], body: &str) -> Route {
    let mock = Mock {
        status: StatusCode::OK,
        headers: Vec::new(),
        body: body.to_owned(),
    };
    route(pattern, limits, Action::Mock(mock))
}

pub fn proxy(pattern: &str, limits: &[usize], upstream: SocketAddr) -> Route {
    proxy_under("", pattern, limits, upstream)
}

pub fn proxy_under(prefix: &str, pattern: &str, limits: &[usize], upstream: SocketAddr) -> Route {
    let proxy = Proxy {
        url: format!("http://{upstream}{prefix}"),
        tls: false,
        ca: None,
        http2: false,
        authority: upstream.to_string().parse().unwrap(),
        prefix: prefix.to_owned(),
        timeout: Duration::from_secs(10),
    };
    route(pattern, limits, Action::Proxy(proxy))
}

/// The same route with another time-out for its upstream.
pub fn within(timeout: Duration, mut route: Route) -> Route {
    let Action::Proxy(proxy) = &mut route.action else {
        panic!("not a proxy: {route:?}")
    };
    proxy.timeout = timeout;
    route
}

pub async fn start(setup: Setup) -> Running {
    Running::start(&setup.config()).await.unwrap()
}

/// Runs an upstream until the test ends.
pub async fn upstream<F, A>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answer = answer(request);
                async { Ok::<_, Infallible>(answer.await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .timer(hyper_util::rt::TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    address
}

/// An upstream that answers with the head of the request as it arrived, one field a line.
pub async fn mirror() -> SocketAddr {
    upstream(async |request: Request<Incoming>| {
        let mut text = format!("{} {}\n", request.method(), request.uri());
        for (name, value) in request.headers() {
            text.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
        }
        Response::new(Full::from(text))
    })
    .await
}

/// An upstream that does with each connection what it is told, byte by byte.
pub async fn raw_upstream<F, A>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> A + Send + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Reads from a socket until an empty line has come.
pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Sends bytes and returns all that comes back until the other side closes.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    read_all(&mut stream).await
}

pub async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the gateway closes the connection")
        .ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The status of each answer in a piece of a connection.
pub fn statuses(text: &str) -> Vec<u16> {
    text.match_indices("HTTP/1.1 ")
        .map(|(at, found)| text[at + found.len()..][..3].parse().unwrap())
        .collect()
}

/// One answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub fn field(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
            .to_str()
            .unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A client with pooled connections.
#[derive(Clone)]
pub struct Client {
    inner: legacy::Client<HttpConnector, Full<Bytes>>,
    pub to: SocketAddr,
}

impl Client {
    pub fn new(to: SocketAddr) -> Self {
        let inner = legacy::Client::builder(TokioExecutor::new()).build_http();
        Self { inner, to }
    }

    /// Speaks HTTP/2 without TLS.
    pub fn h2c(to: SocketAddr) -> Self {
        let inner = legacy::Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http();
        Self { inner, to }
    }

    pub async fn get(&self, target: &str) -> Answer {
        self.send(Request::get(target)).await
    }

    pub async fn send(&self, request: http::request::Builder) -> Answer {
        self.send_body(request, Bytes::new()).await
    }

    pub async fn send_body(&self, request: http::request::Builder, body: Bytes) -> Answer {
        let mut request = request.body(Full::from(body)).unwrap();
        let target = request.uri().path_and_query().unwrap().clone();
        *request.uri_mut() = format!("http://{}{target}", self.to).parse().unwrap();
        let answer = tokio::time::timeout(PATIENCE, async {
            let answer = self.inner.request(request).await.unwrap();
            let (head, body) = answer.into_parts();
            (head, body.collect().await.unwrap().to_bytes())
        });
        let (head, body) = answer.await.expect("an answer in time");
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    }
}

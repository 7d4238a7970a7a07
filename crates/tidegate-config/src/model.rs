//! The document as a door works with it: every name resolved, every address parsed.
//!
//! Made by [`parse`](crate::parse) and [`load`](crate::load) only from documents without errors.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;
use tidegate_core::{Micros, Policy, Timestamp};

use crate::algorithm::AlgorithmConfig;
use crate::pattern::RoutePattern;
use crate::policy::AlgorithmProblem;
use crate::report::Span;
use crate::scalar::Share;
pub use crate::shape::{Atomicity, Compat, GrpcDenial, HeaderDialect, TlsVersion, WhenFull};
pub use crate::store_url::{StoreKind, StoreUrl};

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The limits, in the order of the file; routes and plans refer to them by position.
    pub limits: Vec<Limit>,
    /// How callers are told apart.
    pub identity: Identity,
    /// The stores besides memory.
    pub stores: Vec<Store>,
    /// The plans, in the order of the file; API keys refer to them by position.
    pub plans: Vec<Plan>,
    /// The API keys.
    pub api_keys: Vec<ApiKey>,
    /// The reverse proxy, if it is to be opened.
    pub gateway: Option<Gateway>,
    /// The decision service, if it is to be opened.
    pub service: Option<Service>,
    /// Where operators connect, if they do.
    pub admin: Option<SocketAddr>,
}

impl Config {
    /// The limit of this name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.name == name)
    }
}

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name in fields, metrics, logs and traces.
    pub name: String,
    /// What it is for, in words.
    pub description: Option<String>,
    /// How it counts.
    pub algorithm: AlgorithmConfig,
    /// What tells callers apart; empty where all calls count together.
    pub key: Vec<KeyPart>,
    /// What a call costs.
    pub cost: u32,
    /// Whether a call that it denies is charged all the same.
    pub charge_denied: bool,
    /// Whether it is enforced.
    pub mode: Mode,
    /// The position of its store; none for memory.
    pub store: Option<usize>,
    /// What happens when its store gives no answer.
    pub on_store_failure: OnStoreFailure,
    /// How units are taken from its store in advance; none where every call asks.
    pub lease_tokens: Option<LeaseTokens>,
    /// A condition on the response under which a call stays charged.
    pub count_when: Option<String>,
    /// A condition on the response under which the key starts afresh.
    pub reset_when: Option<String>,
    /// How many keys are kept in memory at most, at least 1.
    pub max_keys: u32,
    /// What happens to a new key when the table is full.
    pub when_full: WhenFull,
}

/// Units that a process takes from a store in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTokens {
    /// The most units of a key that one call takes, at least 1.
    pub batch: u32,
    /// How long they may be spent after they were asked for, at least a millisecond.
    pub max_age: Micros,
}

impl Limit {
    /// The numbers for the engine; `since` as in [`AlgorithmConfig::policy`].
    ///
    /// # Errors
    /// None for a limit that came from a document and was not changed since.
    pub fn policy(&self, since: Timestamp) -> Result<Policy, AlgorithmProblem> {
        self.algorithm.policy(since)
    }
}

/// Whether a limit is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A denial refuses the call.
    Enforce,
    /// A denial is noted and the call passes.
    Shadow,
    /// The limit is not asked.
    Off,
    /// Enforced for this stable percentage of keys, 1 to 99, shadow for the rest.
    Percent(u8),
}

/// What happens when a store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The call passes.
    Allow,
    /// The call is refused.
    Deny,
    /// A limit of this share in memory decides.
    LocalShare(Share),
}

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address, cut to its prefix.
    ClientIp,
    /// Who the caller has proved to be.
    Principal,
    /// The id of the API key.
    ApiKey,
    /// The route that matched.
    MethodAndRoute,
    /// A parameter of the route's path.
    Path(String),
    /// A query parameter.
    Query(String),
    /// A header field.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A field of a form in the body.
    Form(String),
    /// A claim of a verified JSON web token.
    Jwt(String),
    /// The same for every call.
    Constant(String),
}

/// How the client's address is found and how much of it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Peers whose forwarding headers are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// The forwarding headers, the best first.
    pub headers: Vec<HeaderName>,
    /// Leading bits of an IPv4 address that make the key, up to 32.
    pub ipv4_prefix: u8,
    /// Leading bits of an IPv6 address that make the key, up to 128.
    pub ipv6_prefix: u8,
}

impl Default for Identity {
    /// No trusted proxy, `X-Forwarded-For`, single IPv4 addresses and IPv6 networks of 64 bits.
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            headers: vec![HeaderName::from_static("x-forwarded-for")],
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        }
    }
}

/// A Valkey or Redis server, the primary that sentinels know, or a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The name that limits refer to.
    pub name: String,
    /// Where it is.
    pub url: StoreUrl,
    /// How long a decision may take, waiting included.
    pub deadline: Duration,
    /// The user; none for the server's default user, or the URL's.
    pub user: Option<String>,
    /// The password; none for the URL's, if it has one.
    pub password: Option<Secret>,
    /// The user for sentinels.
    pub sentinel_user: Option<String>,
    /// The password for sentinels.
    pub sentinel_password: Option<Secret>,
    /// The certificates.
    pub tls: StoreTls,
    /// What all keys on the server begin with.
    pub key_prefix: String,
    /// A secret that the hashes in keys are made with.
    pub key_secret: Option<Secret>,
    /// How decisions are made.
    pub atomicity: Atomicity,
    /// How many connections to each server share the calls, 1 to 64.
    pub connections: u32,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// After how many failed calls in succession a server is not asked any more, at least 1.
    pub breaker_failures: u32,
}

impl Store {
    /// A store of this name at a URL, with every default.
    #[must_use]
    pub fn at(name: &str, url: StoreUrl) -> Self {
        Self {
            name: name.to_owned(),
            url,
            deadline: Duration::from_millis(20),
            user: None,
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            tls: StoreTls::default(),
            key_prefix: "tg1".to_owned(),
            key_secret: None,
            atomicity: Atomicity::Scripts,
            connections: 2,
            connect_timeout: Duration::from_millis(500),
            breaker_failures: 5,
        }
    }
}

/// Where a secret stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// In a file; a line end behind it does not count.
    File(PathBuf),
    /// In a variable of the environment.
    Env(String),
}

/// The certificates of connections to a store: files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// The authorities that sign the servers' certificates; none for those that the system trusts.
    pub ca: Option<PathBuf>,
    /// A certificate that the servers want to see, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A bundle of limits.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name that API keys refer to.
    pub name: String,
    /// The positions of the limits on all calls of a key.
    pub limits: Vec<usize>,
    /// Further limits by method and route.
    pub methods: Vec<(RoutePattern, Vec<usize>)>,
}

/// An API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// What stands in logs instead of the key.
    pub id: String,
    /// The SHA-256 hash of the key.
    pub sha256: [u8; 32],
    /// The position of its plan.
    pub plan: Option<usize>,
}

/// The decision service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Envoy's rate limit service over gRPC.
    pub grpc: Option<SocketAddr>,
    /// HTTP with JSON.
    pub http: Option<SocketAddr>,
    /// The protocol of Redis clients.
    pub resp: Option<SocketAddr>,
    /// The SHA-256 hash of the secret that clients show, if they must.
    pub secret_sha256: Option<[u8; 32]>,
    /// How many connections are open at most, per protocol, at least 1.
    pub max_connections: u32,
    /// How many keys whose numbers come with each call are kept at most, at least 1.
    pub max_throttle_keys: u32,
    /// For clients that are at work to be answered after a request to stop; may be zero.
    pub drain: Duration,
}

/// The reverse proxy.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where clients connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// What the listener needs to speak TLS, if it does.
    pub tls: Option<Tls>,
    /// The routes, in the order of the file; no two match the same requests.
    pub routes: Vec<Route>,
    /// Which fields tell a client about its limits.
    pub limit_headers: HeaderDialect,
    /// Whose bodies the gateway's own answers have.
    pub compat: Compat,
    /// The status that a limited gRPC call ends with.
    pub grpc_denial: GrpcDenial,
    /// How long is waited for what.
    pub timeouts: Timeouts,
    /// How many connections are open at most, at least 1.
    pub max_connections: u32,
    /// Whether each request is logged.
    pub access_log: bool,
}

/// What a listener needs to speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// At least one; the first is for clients that name no host, or one that no certificate has.
    pub certificates: Vec<CertificateFiles>,
    /// The lowest version that is spoken.
    pub min_version: TlsVersion,
}

/// The files of a certificate, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, the server's own certificate first, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// Where the document names the certificate.
    pub certificate_at: Option<Span>,
    /// Where the document names the key.
    pub key_at: Option<Span>,
}

/// How long the gateway waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a request's header to be complete.
    pub header: Duration,
    /// For the next part of a body.
    pub body: Duration,
    /// For the next request on an open connection.
    pub idle: Duration,
    /// For a connection to an upstream.
    pub connect: Duration,
    /// For the header of an upstream's answer, where the route says nothing else.
    pub upstream: Duration,
    /// For running requests to end after a request to stop; may be zero.
    pub drain: Duration,
}

impl Default for Timeouts {
    /// 10 s for a header, 30 s for a body to move, 75 s for an idle connection, 5 s to connect,
    /// 29 s for an upstream to answer, 30 s to drain.
    fn default() -> Self {
        Self {
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            connect: Duration::from_secs(5),
            upstream: Duration::from_secs(29),
            drain: Duration::from_secs(30),
        }
    }
}

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which requests it serves.
    pub pattern: RoutePattern,
    /// The positions of its limits.
    pub limits: Vec<usize>,
    /// What it does with a request that passes.
    pub action: Action,
    /// Whether callers must show an API key.
    pub api_key_required: bool,
    /// How answers are kept, if they are.
    pub cache: Option<Cache>,
}

/// What a route does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Answers by itself.
    Mock(Mock),
    /// Asks an upstream.
    Proxy(Proxy),
}

/// A fixed answer.
#[derive(Clone, Debug)]
pub struct Mock {
    /// Its status.
    pub status: StatusCode,
    /// Its fields; a `content-type` is among them where there is a body.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: String,
}

/// An upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The URL as written: `https://host:port/prefix`.
    pub url: String,
    /// Whether it is `https`.
    pub tls: bool,
    /// Who may vouch for it; none for the authorities that the system knows.
    pub ca: Option<AuthorityFile>,
    /// Whether it is spoken to over HTTP/2.
    pub http2: bool,
    /// Host and port.
    pub authority: Authority,
    /// What is put before the path of a request; without a slash at its end.
    pub prefix: String,
    /// How long the header of its answer may take.
    pub timeout: Duration,
}

/// A file of authorities, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityFile {
    /// Their certificates, as PEM.
    pub path: PathBuf,
    /// Where the document names it.
    pub at: Option<Span>,
}

/// Keeping answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// How long an answer is kept.
    pub ttl: Duration,
    /// What tells answers apart besides method and path; none for the whole query and the caller.
    pub key: Option<Vec<KeyPart>>,
}

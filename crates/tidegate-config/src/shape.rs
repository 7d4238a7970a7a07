//! The document as it is written: serde structs that are also the JSON Schema.
//!
//! Nothing here is checked against anything else; names are still text. What a door works with is
//! in [`model`](crate::model). Values under [`Tried`] may be broken without hiding the mistakes
//! beside them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::algorithm::AlgorithmConfig;
use crate::decode::{HELP, SHORTHAND, Tried};
use crate::scalar::{Count, Length, Period, Share};

/// A configuration of tidegate: limits, and the doors that apply them.
///
/// Every section may be left out. A file with nothing but `limits` is enough to simulate and
/// explain them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "tidegate configuration")]
pub struct Document {
    /// Where states are kept, by name, besides `memory`, which is always there. Default: none.
    #[serde(default)]
    pub stores: Named<Tried<StoreShape>>,
    /// Who a caller is. Default: the address of the socket's peer.
    #[serde(default)]
    pub identity: Tried<IdentityShape>,
    /// The limits by name. Default: none.
    #[serde(default)]
    pub limits: Named<Tried<LimitShape>>,
    /// Bundles of limits that API keys subscribe to, by name. Default: none.
    #[serde(default)]
    pub plans: Named<Tried<PlanShape>>,
    /// The API keys that are let in where a route asks for one. Default: none.
    #[serde(default)]
    pub api_keys: Vec<Tried<ApiKeyShape>>,
    /// The reverse proxy. Default: not opened.
    #[serde(default)]
    pub gateway: Option<Tried<GatewayShape>>,
    /// The decision service. Default: not opened.
    #[serde(default)]
    pub service: Option<Tried<ServiceShape>>,
    /// Health, readiness and metrics for operators. Default: not opened.
    #[serde(default)]
    pub admin: Option<Tried<AdminShape>>,
}

/// A store of states that several processes share.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreShape {
    /// A Valkey or Redis server.
    Valkey(ValkeyShape),
}

/// A Valkey or Redis server, the primary that sentinels know, or a cluster.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValkeyShape {
    /// Where it is: `redis://127.0.0.1:6379`, `redis+sentinel://HOST:PORT,HOST:PORT/NAME`,
    /// `redis+cluster://HOST:PORT,HOST:PORT` or `redis+unix:///PATH`; `rediss` instead of `redis`
    /// uses TLS, `/2` at the end of a single server or a sentinel's names a database.
    #[schemars(regex(
        pattern = r"^(?i)(redis|rediss|valkey|valkeys)(\+(unix|cluster|sentinel))?://.+$"
    ))]
    pub url: String,
    /// How long a decision may take, waiting included, before the limit's `on_store_failure`
    /// decides. Default: `20ms`.
    #[serde(default)]
    pub deadline: Option<Period>,
    /// The user, where it is not the server's default user. Default: none.
    #[serde(default)]
    pub user: Option<String>,
    /// The password, by where it stands. Default: none.
    #[serde(default)]
    pub password: Option<SecretShape>,
    /// The user for sentinels, which have their own. Default: none.
    #[serde(default)]
    pub sentinel_user: Option<String>,
    /// The password for sentinels. Default: none.
    #[serde(default)]
    pub sentinel_password: Option<SecretShape>,
    /// The certificates, where the URL says TLS. Default: the authorities that the system trusts,
    /// and none of our own.
    #[serde(default)]
    pub tls: Option<StoreTlsShape>,
    /// What all keys on the server begin with; all processes that share limits must have the same.
    /// Default: `tg1`.
    #[serde(default)]
    pub key_prefix: Option<String>,
    /// A secret that the hashes in keys are made with, so that no stranger can choose keys that all
    /// lie on one node of a cluster. All processes that share limits must have the same. Default:
    /// none.
    #[serde(default)]
    pub key_secret: Option<SecretShape>,
    /// How decisions are made: by `scripts`, or by `cas`, compare and swap, where a server allows no
    /// scripts: slower for a key that many ask at once. Processes of both kinds may share limits.
    /// Default: `scripts`.
    #[serde(default)]
    pub atomicity: Atomicity,
    /// How many connections to each server share the calls, 1 to 64. Default: 2.
    #[serde(default)]
    pub connections: Option<Count>,
    /// How long one attempt to connect may take, with TLS and the password. Default: `500ms`.
    #[serde(default)]
    pub connect_timeout: Option<Period>,
    /// When a server is not asked any more. Default: each its own.
    #[serde(default)]
    pub breaker: BreakerShape,
}

/// Where a secret stands; it is read when the store is opened, and shown nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretShape {
    /// In a file.
    File(String),
    /// In a variable of the environment.
    Env(String),
}

/// The certificates of connections to a store, as files in PEM.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreTlsShape {
    /// The authorities that sign the servers' certificates. Default: those that the system trusts.
    #[serde(default)]
    pub ca: Option<String>,
    /// A certificate that the servers want to see. Default: none.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The key of that certificate. Default: none.
    #[serde(default)]
    pub key: Option<String>,
}

/// How a store's decisions are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Atomicity {
    /// One script is one decision.
    #[default]
    Scripts,
    /// The state is read, and written if nobody else wrote it.
    #[serde(rename = "cas")]
    CompareAndSwap,
}

/// When a server is not asked any more, until it answers again.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakerShape {
    /// After how many failed calls in succession, at least 1. Default: 5.
    #[serde(default)]
    pub failures: Option<Count>,
}

/// Units that a process takes in advance.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseTokensShape {
    /// The most units of a key that one call takes, at least 1. Busy keys take up to that, quiet
    /// ones take none in advance.
    pub batch: Count,
    /// How long units may be spent after they were asked for, at least `1ms`. Default: `1s`.
    #[serde(default)]
    pub max_age: Option<Period>,
}

/// Who a caller is.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityShape {
    /// How the client's address is found. Default: the address of the socket's peer.
    #[serde(default)]
    pub client_ip: ClientIpShape,
}

/// How the client's address is found behind proxies, and which part of it counts.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientIpShape {
    /// Networks of the proxies whose forwarding headers are believed: `10.0.0.0/8`. Default: none,
    /// so that nobody can choose an address.
    #[serde(default)]
    pub trusted_proxies: Vec<String>,
    /// The headers that trusted proxies write, first match wins. Default: `[x-forwarded-for]`.
    #[serde(default)]
    pub headers: Option<Vec<String>>,
    /// How many leading bits of an IPv4 address make one client, 0 to 32. Default: 32.
    #[serde(default)]
    pub ipv4_prefix: Option<Count>,
    /// How many leading bits of an IPv6 address make one client, 0 to 128. Default: 64, as one
    /// customer usually holds a whole /64.
    #[serde(default)]
    pub ipv6_prefix: Option<Count>,
}

/// One limit: how it counts, and whose calls it counts together.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitShape {
    /// How the limit counts.
    pub algorithm: Tried<AlgorithmConfig>,
    /// What tells callers apart: `client_ip`, `principal`, `api_key`, `method_and_route`,
    /// `path.NAME`, `query.NAME`, `header.NAME`, `cookie.NAME`, `form.NAME`, `jwt.CLAIM`, or any
    /// other word as a constant. Default: `[]`, all calls count together.
    #[serde(default)]
    pub key: Vec<String>,
    /// What a call costs. Default: 1.
    #[serde(default)]
    pub cost: Option<Count>,
    /// Whether a call that the limit denies is charged all the same, into debt down to one
    /// capacity: who does not wait, waits longer. Default: false, a denial costs nothing.
    #[serde(default)]
    pub charge_denied: bool,
    /// Whether the limit is enforced: `enforce`, `shadow` (decide and count, but let pass), `off`,
    /// or a share such as `10%`: enforced for that stable share of keys, shadow for the rest.
    /// Default: `enforce`.
    #[serde(default)]
    #[schemars(regex(pattern = r"^(enforce|shadow|off|[0-9]{1,3}\s*%)$"))]
    pub mode: Option<String>,
    /// Where the states are kept: `memory` or the name of a store. Default: `memory`.
    #[serde(default)]
    pub store: Option<String>,
    /// What happens when the store gives no answer. Default: `{ local_share: 0.5 }` for rates and
    /// windows, `deny` for lockouts and concurrency.
    #[serde(default)]
    pub on_store_failure: Option<StoreFailureShape>,
    /// Takes units from the store in batches and spends them in this process, for keys that are
    /// asked thousands of times a second. Default: every call asks the store.
    #[serde(default)]
    pub lease_tokens: Option<LeaseTokensShape>,
    /// A condition on the response under which a call stays charged. Default: always.
    #[serde(default)]
    pub count_when: Option<String>,
    /// A condition on the response under which the key starts afresh. Default: never.
    #[serde(default)]
    pub reset_when: Option<String>,
    /// How many keys are kept in memory at most. Default: 1000000.
    #[serde(default)]
    pub max_keys: Option<Count>,
    /// What happens to a new key when `max_keys` are kept and none is like new. Default:
    /// `overflow`.
    #[serde(default)]
    pub when_full: WhenFull,
    /// What the limit is for, in words. Default: none.
    #[serde(default)]
    pub description: Option<String>,
}

/// What happens when the store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreFailureShape {
    /// Let the call pass.
    Allow,
    /// Refuse the call.
    Deny,
    /// Go on in memory with this share of the limit, from 0 to 1.
    LocalShare(Share),
}

/// What happens to a new key when the table is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// New keys share a fixed set of states: may deny too much, never too little.
    #[default]
    Overflow,
    /// New keys are denied.
    DenyNew,
    /// An old key is forgotten, and with it what it had used: may allow too much.
    Evict,
}

/// A bundle of limits that API keys subscribe to.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanShape {
    /// The limits on all calls of a key. Default: none.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Further limits by method and route: `GET /orders/{id}`. Default: none.
    #[serde(default)]
    pub methods: Named<Vec<String>>,
}

/// An API key; the file holds only its hash.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyShape {
    /// The name that stands in logs and metrics instead of the key.
    pub id: String,
    /// The SHA-256 hash of the key, as 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{64}$"))]
    pub sha256: String,
    /// The plan that the key subscribes to. Default: none.
    #[serde(default)]
    pub plan: Option<String>,
}

/// The reverse proxy.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayShape {
    /// The address to listen on: `127.0.0.1:8080`.
    pub listen: String,
    /// Speaks TLS on that address, HTTP/2 and HTTP/1.1 by what the client offers. Default: no TLS.
    #[serde(default)]
    pub tls: Option<Tried<TlsShape>>,
    /// The routes. The most exact one wins, wherever it stands: literal before parameter before
    /// greedy parameter, a method before `ANY`. Default: none, so that every call gets a 404.
    #[serde(default)]
    pub routes: Vec<Tried<RouteShape>>,
    /// How a caller is told where it stands. Default: `ietf`.
    #[serde(default)]
    pub limit_headers: HeaderDialect,
    /// How long is waited for what. Default: each its own.
    #[serde(default)]
    pub timeouts: TimeoutsShape,
    /// How many connections are open at most; further ones wait. Default: 10000.
    #[serde(default)]
    pub max_connections: Option<Count>,
    /// Whose bodies the gateway's own answers have. Default: `native`.
    #[serde(default)]
    pub compat: Compat,
    /// The status that a limited gRPC call ends with. Default: `resource_exhausted`.
    #[serde(default)]
    pub grpc_denial: GrpcDenial,
    /// Whether each request is logged. Default: true.
    #[serde(default = "yes")]
    pub access_log: bool,
}

fn yes() -> bool {
    true
}

/// The gateway's certificates. A changed file is taken over without a restart; one that cannot be
/// used leaves the last good ones in force.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsShape {
    /// A PEM file with the certificate and those that lead to its authority. It also serves
    /// clients that name no host, or one that no certificate has.
    pub certificate: String,
    /// A PEM file with the private key of the certificate.
    pub key: String,
    /// Further certificates, chosen by the host that a client names. Default: none.
    #[serde(default)]
    pub others: Vec<CertificateShape>,
    /// The lowest version that is spoken. Default: `"1.2"`.
    #[serde(default)]
    pub min_version: TlsVersion,
}

/// A certificate and its key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateShape {
    /// A PEM file with the certificate and those that lead to its authority.
    pub certificate: String,
    /// A PEM file with the private key of the certificate.
    pub key: String,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

/// Whose bodies the gateway's own answers have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compat {
    /// Problem details of RFC 9457.
    #[default]
    Native,
    /// Those of AWS API Gateway: `{"message":"Too Many Requests"}`.
    Aws,
}

/// The status that a limited gRPC call ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrpcDenial {
    /// 8: clients back off.
    #[default]
    ResourceExhausted,
    /// 14: many clients retry at once.
    Unavailable,
}

/// The header fields that tell a caller where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum HeaderDialect {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10.
    #[default]
    #[serde(rename = "ietf")]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` with seconds to wait.
    #[serde(rename = "draft-03")]
    Draft03,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` with seconds since the Unix epoch.
    #[serde(rename = "github")]
    Github,
    /// None but `Retry-After` on a refusal.
    #[serde(rename = "none")]
    None,
}

/// How long the gateway waits for what.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeoutsShape {
    /// For a request's header to be complete. Default: `10s`.
    #[serde(default)]
    pub header: Option<Period>,
    /// For the next part of a request's body. Default: `30s`.
    #[serde(default)]
    pub body: Option<Period>,
    /// For the next request on an open connection. Default: `75s`.
    #[serde(default)]
    pub idle: Option<Period>,
    /// For a connection to an upstream. Default: `5s`.
    #[serde(default)]
    pub connect: Option<Period>,
    /// For the header of an upstream's answer, where the route says nothing else. Default: `29s`.
    #[serde(default)]
    pub upstream: Option<Period>,
    /// For running requests to end after a request to stop. Default: `30s`.
    #[serde(default)]
    pub drain: Option<Length>,
}

/// One route: what it matches, what limits it, where it leads.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteShape {
    /// A method or `ANY`, and a path: `GET /orders/{id}`, `ANY /files/{path+}`.
    #[serde(rename = "match")]
    #[schemars(regex(pattern = r"^\s*[A-Z-]+\s+/\S*\s*$"))]
    pub matches: String,
    /// The limits on the route, all of which must allow a call. Default: none.
    #[serde(default)]
    pub limits: Vec<String>,
    /// A fixed answer. Each route has either `mock` or `proxy`.
    #[serde(default)]
    pub mock: Option<Tried<MockShape>>,
    /// The upstream that calls are handed to. Each route has either `mock` or `proxy`.
    #[serde(default)]
    pub proxy: Option<Tried<ProxyShape>>,
    /// Keeps answers for a while. Default: nothing is kept.
    #[serde(default)]
    pub cache: Option<Tried<CacheShape>>,
    /// Whether callers must show an API key. Default: `none`.
    #[serde(default)]
    pub api_key: ApiKeyNeed,
}

/// Whether callers must show an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApiKeyNeed {
    /// A key is not looked at.
    #[default]
    None,
    /// A call without a known key is refused.
    Required,
}

/// A fixed answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MockShape {
    /// The status, 200 to 599. Default: 200.
    #[serde(default)]
    pub status: Option<Count>,
    /// The body. Default: empty.
    #[serde(default)]
    pub body: String,
    /// Header fields. Default: a `content-type` of `application/json` where the body is JSON, else
    /// of `text/plain; charset=utf-8`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// The upstream of a route: its URL alone, or with settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxyShape {
    /// The URL that calls are handed to.
    pub to: String,
    /// How long its answer's header may take.
    pub timeout: Option<Period>,
    /// A file of the authorities that may vouch for it.
    pub ca: Option<String>,
    /// Whether it is spoken to over HTTP/2.
    pub http2: bool,
}

/// Keeping answers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheShape {
    /// How long an answer is kept.
    pub ttl: Length,
    /// What tells answers apart besides method and path: key parts as in a limit's `key`.
    /// Default: the whole query, and the caller where one is known.
    #[serde(default)]
    pub key: Option<Vec<String>>,
}

/// The decision service: one address per protocol.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceShape {
    /// Envoy's rate limit service over gRPC. Default: not opened.
    #[serde(default)]
    pub grpc: Option<String>,
    /// HTTP with JSON. Default: not opened.
    #[serde(default)]
    pub http: Option<String>,
    /// The protocol of Redis clients. Default: not opened.
    #[serde(default)]
    pub resp: Option<String>,
    /// The SHA-256 hash, in hexadecimal digits, of the secret that clients show: by `AUTH` over
    /// RESP, by `authorization: Bearer` over HTTP. Default: none is asked for, so let only those reach
    /// the address who may decide.
    #[serde(default)]
    pub secret_sha256: Option<String>,
    /// How many connections are open at most, per protocol. Default: 10000.
    #[serde(default)]
    pub max_connections: Option<Count>,
    /// How many keys of `CL.THROTTLE`, whose numbers come with each call, are kept at most. Default:
    /// 1000000.
    #[serde(default)]
    pub max_throttle_keys: Option<Count>,
    /// How long clients that are at work are still answered after a request to stop. Default: `30s`.
    #[serde(default)]
    pub drain: Option<Length>,
}

/// Health, readiness and metrics.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminShape {
    /// The address to listen on: `127.0.0.1:9090`. Whoever reaches it sees metrics.
    pub listen: String,
}

/// A map whose order is that of the file.
#[derive(Clone, Debug)]
pub struct Named<T>(pub Vec<(String, T)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamedVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from names")
            }

            // `limits:` with nothing behind it.
            fn visit_unit<E>(self) -> Result<Named<T>, E> {
                Ok(Named::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Named(entries))
            }
        }
        deserializer.deserialize_any(NamedVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Named_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<T>();
        json_schema!({ "type": ["object", "null"], "additionalProperties": values })
    }
}

impl<T: JsonSchema> JsonSchema for Tried<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// The form of [`ProxyShape`] with settings.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProxySettings {
    /// The URL that calls are handed to: `http://127.0.0.1:9000`, `https://shop.example`. Its path, if any, is put before
    /// that of the call.
    to: String,
    /// How long its answer's header may take, up to which it is a 504. Default: the gateway's
    /// `timeouts.upstream`.
    #[serde(default)]
    timeout: Option<Period>,
    /// A PEM file of the authorities that may vouch for an `https` upstream; read again by a
    /// reload. Default: those that the system knows.
    #[serde(default)]
    ca: Option<String>,
    /// Whether it is spoken to over HTTP/2: over TLS if it offers that, without TLS in any case,
    /// as gRPC needs it. Default: false.
    #[serde(default)]
    http2: bool,
}

impl<'de> Deserialize<'de> for ProxyShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ProxyVisitor;
        impl<'de> Visitor<'de> for ProxyVisitor {
            type Value = ProxyShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL, or a map with `to`")
            }

            fn visit_str<E: de::Error>(self, url: &str) -> Result<ProxyShape, E> {
                Ok(ProxyShape {
                    to: url.to_owned(),
                    timeout: None,
                    ca: None,
                    http2: false,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ProxyShape, A::Error> {
                let settings = de::value::MapAccessDeserializer::new(map);
                let settings = ProxySettings::deserialize(settings)?;
                Ok(ProxyShape {
                    to: settings.to,
                    timeout: settings.timeout,
                    ca: settings.ca,
                    http2: settings.http2,
                })
            }
        }
        deserializer.deserialize_struct(SHORTHAND, &["to", "timeout", "ca", "http2"], ProxyVisitor)
    }
}

impl JsonSchema for ProxyShape {
    fn schema_name() -> Cow<'static, str> {
        "Proxy".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let settings = generator.subschema_for::<ProxySettings>();
        json_schema!({
            "description": "The upstream of a route: its URL alone, or with settings.",
            "anyOf": [{ "type": "string", "pattern": "^https?://" }, settings],
        })
    }
}

/// The form in which [`SecretShape`] is written: one of the two.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SecretPlace {
    /// A file, whose line end does not count: `/run/secrets/valkey`. A path that is not absolute
    /// begins at the working directory.
    #[serde(default)]
    file: Option<String>,
    /// A variable of the environment: `VALKEY_PASSWORD`.
    #[serde(default)]
    env: Option<String>,
}

impl<'de> Deserialize<'de> for SecretShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SecretVisitor;
        impl<'de> Visitor<'de> for SecretVisitor {
            type Value = SecretShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map with `file` or `env`")
            }

            // The message must not repeat what was written.
            fn visit_str<E: de::Error>(self, _: &str) -> Result<SecretShape, E> {
                Err(E::custom(format_args!(
                    "a secret does not stand in this file{HELP}write `{{ env: VARIABLE }}` or \
                     `{{ file: PATH }}`"
                )))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretShape, A::Error> {
                let place = de::value::MapAccessDeserializer::new(map);
                let place = SecretPlace::deserialize(place)?;
                match (place.file, place.env) {
                    (Some(path), None) => Ok(SecretShape::File(path)),
                    (None, Some(name)) => Ok(SecretShape::Env(name)),
                    _ => Err(de::Error::custom(format_args!(
                        "a secret stands in one place{HELP}write either `file` or `env`"
                    ))),
                }
            }
        }
        deserializer.deserialize_struct(SHORTHAND, &["file", "env"], SecretVisitor)
    }
}

impl JsonSchema for SecretShape {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = SecretPlace::json_schema(generator);
        schema.insert(
            "description".to_owned(),
            "Where a secret stands: a file or a variable of the environment.".into(),
        );
        schema.insert("minProperties".to_owned(), 1.into());
        schema.insert("maxProperties".to_owned(), 1.into());
        schema
    }
}

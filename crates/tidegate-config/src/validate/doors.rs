//! Checks who callers are and where doors listen.

use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;

use super::Checker;
use super::plans::read_sha256;
use crate::cursor::Cursor;
use crate::model::{CertificateFiles, Gateway, Identity, Service, Timeouts, Tls};
use crate::scalar::{Count, Period};
use crate::shape::{GatewayShape, IdentityShape, ServiceShape, TimeoutsShape, TlsShape};
use crate::support::Feature;
use crate::text::TextError;

const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
const DEFAULT_MAX_THROTTLE_KEYS: u32 = 1_000_000;
const DEFAULT_SERVICE_DRAIN: Duration = Duration::from_secs(30);

impl Checker<'_> {
    pub(super) fn identity(&mut self, shape: Option<&IdentityShape>) -> Identity {
        let mut identity = Identity::default();
        let Some(shape) = shape.map(|shape| &shape.client_ip) else {
            return identity;
        };
        let at = self.root.get("identity").get("client_ip");
        let proxies = at.get("trusted_proxies");
        for (index, text) in shape.trusted_proxies.iter().enumerate() {
            let network = self.take(read_network(text), proxies.at(index));
            identity.trusted_proxies.extend(network);
        }
        if let Some(headers) = &shape.headers {
            identity.headers.clear();
            for (index, name) in headers.iter().enumerate() {
                let name = self.take(read_header_name(name), at.get("headers").at(index));
                identity.headers.extend(name);
            }
        }
        for (field, prefix, value, most) in [
            (
                "ipv4_prefix",
                shape.ipv4_prefix,
                &mut identity.ipv4_prefix,
                32,
            ),
            (
                "ipv6_prefix",
                shape.ipv6_prefix,
                &mut identity.ipv6_prefix,
                128,
            ),
        ] {
            let Some(Count(prefix)) = prefix else {
                continue;
            };
            match u8::try_from(prefix) {
                Ok(prefix) if prefix <= most => *value = prefix,
                _ => self.wrong(
                    TextError::new(
                        format!("an address has no {prefix} bits"),
                        format!("write a prefix from 0 to {most}"),
                    ),
                    at.get(field),
                ),
            }
        }
        identity
    }

    pub(super) fn service(&mut self, shape: &ServiceShape) -> Service {
        let at = self.root.get("service");
        if shape.grpc.is_some() {
            let span = at.get("grpc").key_span();
            let missing = Feature::ServiceProtocol("grpc");
            self.needs(missing, "the decision service over gRPC", span);
        }
        let limits = self.root.get("limits");
        let shared: Vec<(usize, String)> = self
            .limits
            .iter()
            .enumerate()
            .filter_map(|(position, limit)| Some((position, limit.as_ref()?)))
            .filter(|(_, limit)| limit.store.is_some())
            .map(|(position, limit)| (position, limit.name.clone()))
            .collect();
        for (position, name) in shared {
            let what = format!("a shared store at the decision service, for limit `{name}`");
            let span = limits.at(position).get("store").span();
            self.needs(Feature::SharedService, &what, span);
        }
        let secret = shape.secret_sha256.as_ref();
        let secret_sha256 =
            secret.and_then(|hash| self.take(read_sha256(hash), at.get("secret_sha256")));
        let mut at_least_one = |name: &str, count: Option<Count>, default| {
            let Count(count) = count.unwrap_or(Count(default));
            if count == 0 {
                let error = TextError::new(
                    format!(
                        "a service with no {} decides nothing",
                        name.replace('_', " ")
                    ),
                    format!("write at least 1, or leave `{name}` out"),
                );
                self.wrong(error, at.get(name));
            }
            count
        };
        let max_connections = at_least_one(
            "max_connections",
            shape.max_connections,
            DEFAULT_MAX_CONNECTIONS,
        );
        let max_throttle_keys = at_least_one(
            "max_throttle_keys",
            shape.max_throttle_keys,
            DEFAULT_MAX_THROTTLE_KEYS,
        );
        let mut address = |name: &str, text: &Option<String>| {
            text.as_ref()
                .and_then(|text| self.address(text, at.get(name)))
        };
        let service = Service {
            grpc: address("grpc", &shape.grpc),
            http: address("http", &shape.http),
            resp: address("resp", &shape.resp),
            secret_sha256,
            max_connections,
            max_throttle_keys,
            drain: shape
                .drain
                .map_or(DEFAULT_SERVICE_DRAIN, |length| length.0.as_duration()),
        };
        if shape.grpc.is_none() && shape.http.is_none() && shape.resp.is_none() {
            let error = TextError::new(
                "the decision service listens nowhere",
                "give at least one of `grpc`, `http` and `resp` an address",
            );
            self.wrong(error, at);
        }
        service
    }

    pub(super) fn gateway(&mut self, shape: &GatewayShape) -> Option<Gateway> {
        let at = self.root.get("gateway");
        let listen = self.address(&shape.listen, at.get("listen"));
        let timeouts = timeouts(&shape.timeouts);
        let max_connections = shape
            .max_connections
            .map_or(DEFAULT_MAX_CONNECTIONS, |count| count.0);
        if max_connections == 0 {
            let error = TextError::new(
                "a gateway without connections answers nobody",
                "write at least 1, or leave `max_connections` out",
            );
            self.wrong(error, at.get("max_connections"));
        }
        let tls = shape.tls.as_ref().and_then(|tls| tls.0.as_ref());
        let tls = tls.map(|tls| tls_files(tls, at.get("tls")));
        let routes = self.routes(&shape.routes, at.get("routes"), &timeouts);
        Some(Gateway {
            listen: listen?,
            tls,
            routes,
            limit_headers: shape.limit_headers,
            compat: shape.compat,
            grpc_denial: shape.grpc_denial,
            timeouts,
            max_connections,
            access_log: shape.access_log,
        })
    }
}

/// The files of the certificates; whoever opens them checks them.
fn tls_files(shape: &TlsShape, at: Cursor<'_>) -> Tls {
    let files = |certificate: &str, key: &str, at: Cursor<'_>| CertificateFiles {
        certificate: certificate.into(),
        key: key.into(),
        certificate_at: at.get("certificate").span(),
        key_at: at.get("key").span(),
    };
    let first = files(&shape.certificate, &shape.key, at);
    let others = shape.others.iter().enumerate();
    let others = others
        .map(|(index, other)| files(&other.certificate, &other.key, at.get("others").at(index)));
    Tls {
        certificates: std::iter::once(first).chain(others).collect(),
        min_version: shape.min_version,
    }
}

fn timeouts(shape: &TimeoutsShape) -> Timeouts {
    let default = Timeouts::default();
    let or =
        |period: Option<Period>, default| period.map_or(default, |period| period.0.as_duration());
    Timeouts {
        header: or(shape.header, default.header),
        body: or(shape.body, default.body),
        idle: or(shape.idle, default.idle),
        connect: or(shape.connect, default.connect),
        upstream: or(shape.upstream, default.upstream),
        drain: shape
            .drain
            .map_or(default.drain, |length| length.0.as_duration()),
    }
}

fn read_network(text: &str) -> Result<IpNet, TextError> {
    let text = text.trim();
    if let Ok(address) = text.parse::<std::net::IpAddr>() {
        return Ok(IpNet::from(address));
    }
    match IpNet::from_str(text) {
        Ok(network) if network.addr() == network.network() => Ok(network),
        Ok(network) => Err(TextError::new(
            format!("`{text}` is an address inside a network"),
            format!(
                "write `{}`, or the single address without its prefix",
                network.trunc()
            ),
        )),
        Err(_) => Err(TextError::new(
            format!("`{text}` is no network"),
            "write addresses such as `10.0.0.0/8` or `2001:db8::/32`; names are not looked up",
        )),
    }
}

/// Reads the name of a header field.
pub(super) fn read_header_name(name: &str) -> Result<HeaderName, TextError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        TextError::new(
            format!("`{name}` is no name of a header field"),
            "write letters, digits and hyphens, as in `x-forwarded-for`",
        )
    })
}

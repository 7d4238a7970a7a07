//! Checks the routes of the gateway, and that it can apply their limits.

use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, Uri, header};

use super::Checker;
use super::doors::read_header_name;
use crate::cursor::Cursor;
use crate::decode::Tried;
use crate::model::{Action, AuthorityFile, Cache, KeyPart, Limit, Mock, Proxy, Route, Timeouts};
use crate::pattern::RoutePattern;
use crate::report::{Problem, Span};
use crate::shape::{ApiKeyNeed, MockShape, ProxyShape, RouteShape};
use crate::support::Feature;
use crate::text::TextError;

/// The fields that belong to one connection or frame the body: no mock may set them.
const FRAMING: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

impl Checker<'_> {
    pub(super) fn routes(
        &mut self,
        shapes: &[Tried<RouteShape>],
        at: Cursor<'_>,
        timeouts: &Timeouts,
    ) -> Vec<Route> {
        let mut routes = Vec::with_capacity(shapes.len());
        let mut places: HashMap<String, Option<Span>> = HashMap::new();
        for (index, shape) in shapes.iter().enumerate() {
            let at = at.at(index);
            let Some(shape) = &shape.0 else { continue };
            let pattern = self.take(RoutePattern::parse(&shape.matches), at.get("match"));
            if let Some(pattern) = &pattern {
                let identity = format!("{:?}", pattern.identity());
                let here = at.get("match").span();
                if let Some(first) = places.get(&identity) {
                    let problem = Problem::error(format!("`{pattern}` is never reached"))
                        .at(here)
                        .label("matches the same requests")
                        .see(*first, "this route comes first")
                        .help("leave one of the two out, or change its method or path");
                    self.problems.push(problem);
                } else {
                    places.insert(identity, here);
                }
            }
            let limits = self.limit_positions(&shape.limits, at.get("limits"));
            if let Some(pattern) = &pattern {
                self.applicable(&limits, pattern, at.get("match").span());
            }
            let action = self.action(shape, at, timeouts);
            let api_key_required = shape.api_key == ApiKeyNeed::Required;
            if api_key_required {
                self.needs(Feature::ApiKeys, "API keys", at.get("api_key").span());
            }
            let cache = shape.cache.as_ref().and_then(|cache| {
                let at = at.get("cache");
                self.needs(Feature::Cache, "the response cache", at.key_span());
                let cache = cache.0.as_ref()?;
                let key = cache
                    .key
                    .as_ref()
                    .map(|key| self.key_parts(key, at.get("key")));
                Some(Cache {
                    ttl: cache.ttl.0.as_duration(),
                    key,
                })
            });
            if let (Some(pattern), Some(action)) = (pattern, action) {
                routes.push(Route {
                    pattern,
                    limits,
                    action,
                    api_key_required,
                    cache,
                });
            }
        }
        routes
    }

    /// Notes what keeps the gateway from applying limits on a route.
    fn applicable(&mut self, positions: &[usize], pattern: &RoutePattern, route: Option<Span>) {
        for position in positions {
            let at = self.root.get("limits").at(*position);
            let Some(Some(limit)) = self.limits.get(*position) else {
                continue;
            };
            let mut found = path_problems(limit, pattern, at, route);
            let missing = missing_features(limit, at);
            self.problems.append(&mut found);
            for (feature, what, span) in missing {
                self.needs(feature, &what, span);
            }
        }
    }

    fn action(
        &mut self,
        shape: &RouteShape,
        at: Cursor<'_>,
        timeouts: &Timeouts,
    ) -> Option<Action> {
        match (&shape.mock, &shape.proxy) {
            (Some(mock), None) => Some(Action::Mock(self.mock(mock.0.as_ref()?, at.get("mock")))),
            (None, Some(proxy)) => Some(Action::Proxy(self.proxy(
                proxy.0.as_ref()?,
                at.get("proxy"),
                timeouts.upstream,
            )?)),
            (None, None) => {
                let error = TextError::new(
                    format!("`{}` leads nowhere", shape.matches),
                    "give the route a `proxy` with the upstream's URL, or a `mock`",
                );
                self.wrong(error, at.get("match"));
                None
            }
            (Some(_), Some(_)) => {
                let problem = Problem::error("a route has either `mock` or `proxy`")
                    .at(at.get("mock").key_span())
                    .see(at.get("proxy").key_span(), "and this")
                    .help("leave one of the two out");
                self.problems.push(problem);
                None
            }
        }
    }

    fn mock(&mut self, shape: &MockShape, at: Cursor<'_>) -> Mock {
        let status = shape.status.map_or(200, |status| status.0);
        let read = u16::try_from(status)
            .ok()
            .filter(|status| (200..=599).contains(status));
        let status = match read.and_then(|status| StatusCode::from_u16(status).ok()) {
            Some(status) => status,
            None => {
                let error = TextError::new(
                    format!("{status} is no status of an answer"),
                    "write a status from 200 to 599",
                );
                self.wrong(error, at.get("status"));
                StatusCode::OK
            }
        };
        if !shape.body.is_empty() && matches!(status.as_u16(), 204 | 205 | 304) {
            let error = TextError::new(
                format!("an answer with status {} has no body", status.as_u16()),
                "leave `body` out, or choose another status",
            );
            self.wrong(error, at.get("body"));
        }
        let mut headers = Vec::new();
        for (name, value) in &shape.headers {
            let at = at.get("headers").get(name);
            let read = read_header_name(name).and_then(|name| {
                if FRAMING.contains(&name) {
                    return Err(TextError::new(
                        format!("`{name}` belongs to the connection"),
                        "leave it out: the gateway sets it",
                    ));
                }
                Ok(name)
            });
            let read_name = match read {
                Ok(name) => Some(name),
                Err(error) => {
                    let problem = Problem::error(error.message)
                        .at(at.key_span())
                        .help(error.help);
                    self.problems.push(problem);
                    None
                }
            };
            let value = HeaderValue::from_str(value).map_err(|_| {
                TextError::new(
                    format!("the value of `{name}` cannot stand in a header"),
                    "write it in one line, without control characters",
                )
            });
            let value = self.take(value, at);
            headers.extend(read_name.zip(value));
        }
        let has_type = headers
            .iter()
            .any(|(name, _)| *name == header::CONTENT_TYPE);
        if !has_type && !shape.body.is_empty() {
            let json = serde_json::from_str::<serde::de::IgnoredAny>(&shape.body).is_ok();
            let media = if json {
                "application/json"
            } else {
                "text/plain; charset=utf-8"
            };
            headers.push((header::CONTENT_TYPE, HeaderValue::from_static(media)));
        }
        Mock {
            status,
            headers,
            body: shape.body.clone(),
        }
    }

    fn proxy(&mut self, shape: &ProxyShape, at: Cursor<'_>, timeout: Duration) -> Option<Proxy> {
        let at_url = at.get("to");
        let mut proxy = self.take(read_upstream(&shape.to), at_url)?;
        proxy.http2 = shape.http2;
        proxy.ca = shape.ca.as_ref().map(|path| AuthorityFile {
            path: path.into(),
            at: at.get("ca").span(),
        });
        if proxy.ca.is_some() && !proxy.tls {
            let error = TextError::new(
                format!("`{}` is not behind TLS: nobody vouches for it", proxy.url),
                "write `https`, or leave `ca` out",
            );
            self.wrong(error, at.get("ca"));
        }
        proxy.timeout = shape
            .timeout
            .map_or(timeout, |timeout| timeout.0.as_duration());
        Some(proxy)
    }
}

/// Path parameters that the route does not have.
fn path_problems(
    limit: &Limit,
    pattern: &RoutePattern,
    at: Cursor<'_>,
    route: Option<Span>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, part) in limit.key.iter().enumerate() {
        let KeyPart::Path(name) = part else { continue };
        if pattern.parameters().any(|parameter| parameter == name) {
            continue;
        }
        let known: Vec<&str> = pattern.parameters().collect();
        let help = match known.as_slice() {
            [] => format!("the route has no parameters; write the segment as `{{{name}}}`"),
            _ => crate::suggest::instead(name, known),
        };
        problems.push(
            Problem::error(format!(
                "`{pattern}` has no parameter `{name}`, which limit `{}` counts by",
                limit.name
            ))
            .at(route)
            .see(at.get("key").at(index).span(), "counted by here")
            .help(help),
        );
    }
    problems
}

/// What the gateway would need to apply a limit.
fn missing_features(limit: &Limit, at: Cursor<'_>) -> Vec<(Feature, String, Option<Span>)> {
    let name = &limit.name;
    let mut needed = Vec::new();
    for (field, condition) in [
        ("count_when", &limit.count_when),
        ("reset_when", &limit.reset_when),
    ] {
        if condition.is_some() {
            let what = format!("`{field}` of limit `{name}`");
            needed.push((Feature::Conditions, what, at.get(field).span()));
        }
    }
    for (index, part) in limit.key.iter().enumerate() {
        let what = format!("the key part `{part}` of limit `{name}`");
        needed.push((
            Feature::KeyPart(part.kind()),
            what,
            at.get("key").at(index).span(),
        ));
    }
    let algorithm = limit.algorithm.name();
    let what = format!("{algorithm} at the gateway, for limit `{name}`");
    let place = at.get("algorithm").get(algorithm).key_span();
    needed.push((Feature::GatewayAlgorithm(algorithm), what, place));
    needed
}

fn read_upstream(text: &str) -> Result<Proxy, TextError> {
    let wrong = |help: String| {
        Err(TextError::new(
            format!("`{text}` is no URL of an upstream"),
            help,
        ))
    };
    let example = "write one such as `http://127.0.0.1:9000`";
    if !text.contains("://") && !text.is_empty() {
        return wrong(format!("write the scheme too: `http://{text}`"));
    }
    let Ok(uri) = text.parse::<Uri>() else {
        return wrong(example.to_owned());
    };
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return wrong("an upstream speaks http or https".to_owned()),
    };
    let Some(authority) = uri
        .authority()
        .filter(|authority| !authority.host().is_empty())
    else {
        return wrong(example.to_owned());
    };
    if authority.as_str().contains('@') {
        return wrong("leave user and password out".to_owned());
    }
    let port = authority
        .as_str()
        .strip_prefix(authority.host())
        .unwrap_or("");
    if !port.is_empty() && !matches!(port[1..].parse::<u16>(), Ok(1..)) {
        return wrong("a port is a number from 1 to 65535".to_owned());
    }
    if uri.query().is_some() || text.contains('#') {
        return wrong(
            "leave the query and the fragment out: those of the call are kept".to_owned(),
        );
    }
    Ok(Proxy {
        url: text.to_owned(),
        tls,
        ca: None,
        http2: false,
        authority: authority.clone(),
        prefix: uri.path().trim_end_matches('/').to_owned(),
        timeout: Duration::ZERO,
    })
}

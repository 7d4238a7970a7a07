//! Which route serves a request.
//!
//! Of the routes that match both method and path, the most specific path wins, segment by
//! segment: a literal beats `{name}`, which beats `{name+}`. At the same path the method itself
//! beats `ANY`. A `GET` route serves `HEAD` where no route names `HEAD`.
//!
//! Literals are compared on what they stand for: `/a:b` and `/a%3Ab` are the same path here, as
//! they are to most upstreams, so an escape never leads past a route and its limits.

use std::collections::BTreeMap;

use http::Method;
use tidegate_config::{RoutePattern, Segment};

use crate::canonical;

/// The position of a route in its configuration.
pub type RouteId = usize;

/// What a request's method and path lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The route that serves it.
    Route(RouteId),
    /// The path is known, but not with this method; the methods that it has, sorted.
    OtherMethod(Vec<Method>),
    /// No route has this path.
    Nothing,
}

/// All routes, ready to match.
#[derive(Debug, Default)]
pub struct Router {
    root: Node,
}

#[derive(Debug, Default)]
struct Node {
    literals: BTreeMap<Vec<u8>, Node>,
    one: Option<Box<Node>>,
    here: Methods,
    rest: Methods,
}

/// The routes of one path: by method, and `ANY`.
#[derive(Debug, Default)]
struct Methods {
    named: Vec<(Method, RouteId)>,
    any: Option<RouteId>,
}

impl Router {
    /// Takes the patterns in the order of their ids. Of two that match the same requests the first
    /// wins; the configuration refuses such a pair.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a RoutePattern>) -> Self {
        let mut root = Node::default();
        for (id, pattern) in patterns.into_iter().enumerate() {
            root.insert(pattern.segments(), pattern.method(), id);
        }
        Self { root }
    }

    /// Finds the route for a canonical path.
    #[must_use]
    pub fn find(&self, method: &Method, path: &str) -> Match {
        let rest = canonical::tail(path, 0);
        if let Some(route) = self.root.find(method, rest) {
            return Match::Route(route);
        }
        let mut methods = Vec::new();
        self.root.methods(rest, &mut methods);
        if methods.is_empty() {
            return Match::Nothing;
        }
        if methods.contains(&Method::GET) {
            methods.push(Method::HEAD);
        }
        methods.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        methods.dedup();
        Match::OtherMethod(methods)
    }
}

impl Node {
    fn insert(&mut self, path: &[Segment], method: Option<&Method>, id: RouteId) {
        match path {
            [] => self.here.insert(method, id),
            [Segment::Rest(_), ..] => self.rest.insert(method, id),
            [Segment::One(_), rest @ ..] => {
                self.one.get_or_insert_default().insert(rest, method, id);
            }
            [Segment::Literal(literal), rest @ ..] => {
                self.literals
                    .entry(literal.clone())
                    .or_default()
                    .insert(rest, method, id);
            }
        }
    }

    /// Walks the tree with backtracking. A node is visited once at most, so the work is bounded
    /// by the number of configured segments, whatever the path.
    fn find(&self, method: &Method, path: &str) -> Option<RouteId> {
        if path.is_empty() {
            return self.here.find(method);
        }
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        self.literals
            .get(canonical::decoded(first).as_ref())
            .and_then(|node| node.find(method, rest))
            .or_else(|| self.one.as_ref().and_then(|node| node.find(method, rest)))
            .or_else(|| self.rest.find(method))
    }

    /// Collects the methods of every route whose path matches.
    fn methods(&self, path: &str, found: &mut Vec<Method>) {
        if path.is_empty() {
            return self.here.collect(found);
        }
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        if let Some(node) = self.literals.get(canonical::decoded(first).as_ref()) {
            node.methods(rest, found);
        }
        if let Some(node) = &self.one {
            node.methods(rest, found);
        }
        self.rest.collect(found);
    }
}

impl Methods {
    fn insert(&mut self, method: Option<&Method>, id: RouteId) {
        match method {
            None => {
                self.any.get_or_insert(id);
            }
            Some(method) => self.named.push((method.clone(), id)),
        }
    }

    fn find(&self, method: &Method) -> Option<RouteId> {
        let named = |wanted: &Method| {
            self.named
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, id)| *id)
        };
        named(method)
            .or_else(|| {
                (method == Method::HEAD)
                    .then(|| named(&Method::GET))
                    .flatten()
            })
            .or(self.any)
    }

    fn collect(&self, found: &mut Vec<Method>) {
        found.extend(self.named.iter().map(|(method, _)| method.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(patterns: &[&str]) -> Router {
        let patterns: Vec<RoutePattern> = patterns
            .iter()
            .map(|text| RoutePattern::parse(text).unwrap())
            .collect();
        Router::new(&patterns)
    }

    #[track_caller]
    fn finds(patterns: &[&str], requests: &[(&str, &str, Option<usize>)]) {
        let router = router(patterns);
        for (method, path, route) in requests {
            let path = canonical::canonical(path).unwrap();
            let found = match router.find(&Method::from_bytes(method.as_bytes()).unwrap(), &path) {
                Match::Route(id) => Some(id),
                _ => None,
            };
            assert_eq!(found, *route, "{method} {path}");
        }
    }

    #[test]
    fn a_literal_beats_a_parameter_which_beats_the_rest() {
        finds(
            &[
                "ANY /{proxy+}",
                "GET /orders/{id}",
                "GET /orders/mine",
                "GET /",
            ],
            &[
                ("GET", "/orders/mine", Some(2)),
                ("GET", "/orders/7", Some(1)),
                ("POST", "/orders/7", Some(0)),
                ("GET", "/orders/7/lines", Some(0)),
                ("GET", "/orders", Some(0)),
                ("GET", "/", Some(3)),
                ("POST", "/", None),
            ],
        );
    }

    #[test]
    fn a_literal_that_leads_nowhere_does_not_hide_a_parameter() {
        finds(
            &["GET /a/{x}/c", "GET /a/b/d"],
            &[
                ("GET", "/a/b/c", Some(0)),
                ("GET", "/a/b/d", Some(1)),
                ("GET", "/a/b", None),
            ],
        );
    }

    #[test]
    fn a_get_route_serves_head_unless_a_route_names_head() {
        finds(
            &["GET /a", "GET /b", "HEAD /b", "ANY /a"],
            &[
                ("HEAD", "/a", Some(0)),
                ("HEAD", "/b", Some(2)),
                ("PUT", "/a", Some(3)),
            ],
        );
    }

    #[test]
    fn an_escape_or_a_trailing_slash_leads_to_the_same_route() {
        finds(
            &["ANY /{proxy+}", "GET /a:b"],
            &[
                ("GET", "/a:b", Some(1)),
                ("GET", "/a%3Ab", Some(1)),
                ("GET", "/a:b/", Some(1)),
            ],
        );
    }

    #[test]
    fn a_known_path_with_another_method_tells_the_methods() {
        let router = router(&["GET /a", "PUT /a", "DELETE /{x}"]);
        assert_eq!(
            router.find(&Method::POST, "/a"),
            Match::OtherMethod(vec![Method::DELETE, Method::GET, Method::HEAD, Method::PUT])
        );
        assert_eq!(router.find(&Method::POST, "/a/b"), Match::Nothing);
    }

    #[test]
    fn the_first_of_two_equal_routes_wins() {
        finds(
            &["GET /a", "GET /a/", "ANY /{x}", "ANY /{y}"],
            &[("GET", "/a", Some(0)), ("GET", "/b", Some(2))],
        );
    }
}

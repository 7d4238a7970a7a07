//! Which route serves a request.
//!
//! Of the routes that match both method and path, the most specific path wins, segment by
//! segment: a literal beats `{name}`, which beats `{name+}`. At the same path the method itself
//! beats `ANY`. A `GET` route serves `HEAD` where no route names `HEAD`.
//!
//! Literals are compared on what they stand for: `/a:b` and `/a%3Ab` are the same path here, as
//! they are to most upstreams, so an escape never leads past a route and its limits.

use std::collections::BTreeMap;
use std::fmt;

use http::Method;

use crate::canonical::{self, PathFault};

/// The position of a route in its configuration.
pub type RouteId = usize;

/// A method and a path with its parameters, as written: `GET /orders/{id}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    method: Option<Method>,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Vec<u8>),
    One(String),
    Rest(String),
}

/// Where a path parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Segments before it.
    pub segment: usize,
    /// Whether it takes all the segments that are left.
    pub rest: bool,
}

/// Why a pattern is none, or does not go together with the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// There are not exactly a method and a path.
    #[error(
        "{0:?} is not a method and a path; write \"GET /orders/{{id}}\" or \"ANY /{{proxy+}}\""
    )]
    Shape(String),
    /// Not a token.
    #[error("{0:?} is no HTTP method; write GET, POST, … or ANY, in capital letters")]
    Method(String),
    /// The path itself is wrong.
    #[error("the path of {0:?} cannot be matched: {1}")]
    Path(String, PathFault),
    /// Braces that are neither `{name}` nor `{name+}`.
    #[error("{0:?} has braces that are neither {{name}} nor {{name+}} as a whole segment")]
    Braces(String),
    /// `{name+}` before the end.
    #[error("{0:?} goes on after {{name+}}, which takes the whole rest of the path")]
    RestNotLast(String),
    /// One name twice.
    #[error("{0:?} has two parameters with the name {1:?}")]
    NameTwice(String, String),
    /// Two routes for the same requests.
    #[error("{0:?} and {1:?} match the same requests; leave one out")]
    Duplicate(String, String),
}

impl Pattern {
    /// Reads `METHOD PATH`.
    ///
    /// # Errors
    /// What [`PatternError`] lists.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let mut words = text.split_ascii_whitespace();
        let (Some(method), Some(path), None) = (words.next(), words.next(), words.next()) else {
            return Err(PatternError::Shape(text.to_owned()));
        };
        if method.chars().any(|letter| letter.is_ascii_lowercase()) {
            return Err(PatternError::Method(method.to_owned()));
        }
        let method = match method {
            "ANY" => None,
            name => Some(
                Method::from_bytes(name.as_bytes())
                    .map_err(|_| PatternError::Method(name.to_owned()))?,
            ),
        };
        let mut segments = Vec::new();
        let Some(rest) = path.strip_prefix('/') else {
            return Err(PatternError::Path(text.to_owned(), PathFault::NotAbsolute));
        };
        for word in rest.split('/').filter(|word| !word.is_empty()) {
            if matches!(segments.last(), Some(Segment::Rest(_))) {
                return Err(PatternError::RestNotLast(text.to_owned()));
            }
            segments.push(segment(text, word)?);
        }
        let mut names: Vec<&str> = segments.iter().filter_map(Segment::name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PatternError::NameTwice(text.to_owned(), pair[0].to_owned()));
        }
        let method_text = method.as_ref().map_or("ANY", Method::as_str);
        Ok(Self {
            text: format!("{method_text} {path}"),
            method,
            segments,
        })
    }

    /// The pattern with one space between its words.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Where the parameter `name` stands, if the pattern has it.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<Parameter> {
        let segment = self
            .segments
            .iter()
            .position(|segment| segment.name() == Some(name))?;
        Some(Parameter {
            segment,
            rest: matches!(self.segments[segment], Segment::Rest(_)),
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Segment {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::One(name) | Self::Rest(name) => Some(name),
        }
    }
}

fn segment(text: &str, word: &str) -> Result<Segment, PatternError> {
    if !word.contains(['{', '}']) {
        let path = format!("/{word}");
        let spelling = canonical::canonical(&path)
            .map_err(|fault| PatternError::Path(text.to_owned(), fault))?;
        return Ok(Segment::Literal(
            canonical::decoded(&spelling[1..]).into_owned(),
        ));
    }
    let braces = || PatternError::Braces(text.to_owned());
    let inner = word
        .strip_prefix('{')
        .and_then(|word| word.strip_suffix('}'))
        .ok_or_else(braces)?;
    let (name, rest) = match inner.strip_suffix('+') {
        Some(name) => (name, true),
        None => (inner, false),
    };
    let is_name =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(braces());
    }
    Ok(if rest {
        Segment::Rest(name.to_owned())
    } else {
        Segment::One(name.to_owned())
    })
}

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
    /// Takes the patterns in the order of their ids.
    ///
    /// # Errors
    /// Two patterns that match the same requests.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a Pattern>) -> Result<Self, PatternError> {
        let patterns: Vec<&Pattern> = patterns.into_iter().collect();
        let mut root = Node::default();
        for (id, pattern) in patterns.iter().enumerate() {
            if let Some(other) = root.insert(&pattern.segments, pattern.method.as_ref(), id) {
                return Err(PatternError::Duplicate(
                    patterns[other].text.clone(),
                    pattern.text.clone(),
                ));
            }
        }
        Ok(Self { root })
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
    /// Puts a route in; the id of the route that is already there, if there is one.
    fn insert(
        &mut self,
        path: &[Segment],
        method: Option<&Method>,
        id: RouteId,
    ) -> Option<RouteId> {
        match path {
            [] => self.here.insert(method, id),
            [Segment::Rest(_), ..] => self.rest.insert(method, id),
            [Segment::One(_), rest @ ..] => {
                self.one.get_or_insert_default().insert(rest, method, id)
            }
            [Segment::Literal(literal), rest @ ..] => self
                .literals
                .entry(literal.clone())
                .or_default()
                .insert(rest, method, id),
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
    fn insert(&mut self, method: Option<&Method>, id: RouteId) -> Option<RouteId> {
        let Some(method) = method else {
            let other = self.any;
            self.any = other.or(Some(id));
            return other;
        };
        let other = self
            .named
            .iter()
            .find(|(name, _)| name == method)
            .map(|(_, id)| *id);
        if other.is_none() {
            self.named.push((method.clone(), id));
        }
        other
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
    use proptest::prelude::*;

    fn router(patterns: &[&str]) -> Result<Router, PatternError> {
        let patterns: Vec<Pattern> = patterns
            .iter()
            .map(|text| Pattern::parse(text))
            .collect::<Result<_, _>>()?;
        Router::new(&patterns)
    }

    #[track_caller]
    fn finds(patterns: &[&str], requests: &[(&str, &str, Option<usize>)]) {
        let router = router(patterns).unwrap();
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
        let router = router(&["GET /a", "PUT /a", "DELETE /{x}"]).unwrap();
        assert_eq!(
            router.find(&Method::POST, "/a"),
            Match::OtherMethod(vec![Method::DELETE, Method::GET, Method::HEAD, Method::PUT])
        );
        assert_eq!(router.find(&Method::POST, "/a/b"), Match::Nothing);
    }

    #[test]
    fn a_parameter_says_where_it_stands() {
        let pattern = Pattern::parse("GET /a/{id}/{proxy+}").unwrap();
        assert_eq!(
            pattern.parameter("id"),
            Some(Parameter {
                segment: 1,
                rest: false
            })
        );
        assert_eq!(
            pattern.parameter("proxy"),
            Some(Parameter {
                segment: 2,
                rest: true
            })
        );
        assert_eq!(pattern.parameter("a"), None);
    }

    #[test]
    fn patterns_that_cannot_be_meant_are_refused() {
        for text in [
            "",
            "GET",
            "/a",
            "GET a",
            "get /a",
            "GET /a /b",
            "GET /{",
            "GET /{}",
            "GET /a{b}",
            "GET /{a+}/b",
            "GET /{a}/{a}",
            "GET /%2F",
            "G(T /a",
            "GET /{a b}",
        ] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
        for pair in [
            ["GET /a", "GET /a/"],
            ["GET /{a}", "GET /{b}"],
            ["ANY /{a+}", "ANY /{b+}"],
        ] {
            assert!(
                matches!(router(&pair), Err(PatternError::Duplicate(..))),
                "{pair:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_pattern_reader_panic(text in "\\PC{0,40}") {
            drop(Pattern::parse(&text));
        }
    }
}

//! Whose state a limit counts, on a route of the gateway.
//!
//! Paths are read in their canonical spelling, by the places of the route that matched.

use tidegate::http::KeySource;
use tidegate_config::model::KeyPart;
use tidegate_config::{RoutePattern, Segment};

use crate::canonical;

/// Makes a key part ready for a route. None where requests to it never have such a part: the
/// route's path lacks the parameter, or this version cannot read the part.
#[must_use]
pub fn source(part: &KeyPart, route: &RoutePattern) -> Option<KeySource> {
    Some(match part {
        KeyPart::ClientIp => KeySource::client_address(),
        KeyPart::MethodAndRoute => KeySource::fixed(route.as_str()),
        KeyPart::Path(name) => {
            let is_it = |segment: &Segment| segment.parameter() == Some(name);
            let place = route.segments().iter().position(is_it)?;
            let label = part.to_string();
            match route.segments()[place] {
                Segment::Rest(_) => KeySource::from_fn(label, move |head| {
                    Some(canonical::decoded(canonical::tail(head.path(), place)))
                }),
                _ => KeySource::from_fn(label, move |head| {
                    let segment = canonical::segments(head.path()).nth(place)?;
                    Some(canonical::decoded(segment))
                }),
            }
        }
        KeyPart::Query(name) => KeySource::query(name.as_str()),
        KeyPart::Header(name) => KeySource::header(name.clone()),
        KeyPart::Cookie(name) => KeySource::cookie(name.as_str()),
        KeyPart::Constant(text) => KeySource::fixed(text.as_str()),
        KeyPart::Principal | KeyPart::ApiKey | KeyPart::Form(_) | KeyPart::Jwt(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tidegate::http::RequestHead;

    use super::*;

    fn read(part: &KeyPart, route: &str, target: &str) -> Option<String> {
        let route = RoutePattern::parse(route).unwrap();
        let source = source(part, &route)?;
        let (parts, ()) = Request::get(target).body(()).unwrap().into_parts();
        let path = canonical::canonical(parts.uri.path()).unwrap();
        let bytes = source
            .read(RequestHead::new(&parts).at_path(&path))
            .unwrap();
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn path_parameters_are_read_where_the_route_has_them() {
        let id = KeyPart::Path("id".into());
        for (route, target, expected) in [
            ("GET /a/{id}", "/a/7", Some("7")),
            ("GET /a/{id}", "/a/%3A%3a/", Some("::")),
            ("GET /a/{id+}", "/a/b/c/", Some("b/c")),
            ("GET /a", "/a", None),
        ] {
            assert_eq!(read(&id, route, target).as_deref(), expected, "{target}");
        }
    }

    #[test]
    fn every_spelling_of_a_route_is_one_key() {
        for target in [
            "/api/login",
            "//api/login",
            "/api/%6Cogin/",
            "/api/login?x=1",
        ] {
            let key = read(&KeyPart::MethodAndRoute, "ANY /api/login", target);
            assert_eq!(key.as_deref(), Some("ANY /api/login"), "{target}");
        }
    }
}

//! Which limits a request of a log meets: those of the route that serves it.
//!
//! How a route is found is the gateway's business and given as a function; without routes every
//! limit applies to every request.

use std::fmt;

use super::call::LimitNumber;
use super::request::KeySource;

/// The route of a request, and the one spelling of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The position of the route.
    pub route: usize,
    /// The path without query, as routing sees it: dot segments and needless escapes are gone.
    pub path: String,
}

/// Finds the route of a method and a path; none where no route serves it.
pub type FindRoute = Box<dyn Fn(&str, &str) -> Option<Found> + Send>;

/// A limit of a route, with what makes its key there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    /// The limit.
    pub limit: LimitNumber,
    /// The parts of the key, in order.
    pub keyed_by: Vec<KeySource>,
}

/// The routes of a gateway, as far as limits go.
pub struct Routes {
    find: FindRoute,
    limits: Vec<Vec<RouteLimit>>,
}

impl Routes {
    /// Takes how routes are found, and the limits of each by its position.
    #[must_use]
    pub fn new(find: FindRoute, limits: Vec<Vec<RouteLimit>>) -> Self {
        Self { find, limits }
    }

    /// The limits that a request meets, and the path that its key is made of; none where no route
    /// serves it.
    pub(crate) fn of(&self, method: &[u8], path: &[u8]) -> Option<(&[RouteLimit], String)> {
        let method = std::str::from_utf8(method).ok()?;
        let path = std::str::from_utf8(path).ok()?;
        let Found { route, path } = (self.find)(method, path)?;
        Some((self.limits.get(route)?, path))
    }

    /// All limits of all routes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RouteLimit> {
        self.limits.iter().flatten()
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

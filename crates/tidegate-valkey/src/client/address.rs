//! Where servers are: addresses and the URLs that name them.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Address {
    /// Reads `host:port`, as servers write it in redirections: the host may be an IPv6 address
    /// without brackets.
    pub(crate) fn from_redirection(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self::Tcp(host.to_owned(), port.parse().ok()?))
    }

    /// The address with the host of the server that wrote it, where it wrote none: its own.
    pub(crate) fn seen_from(self, server: &Self) -> Self {
        match (self, server) {
            (Self::Tcp(host, port), Self::Tcp(own, _)) if host.is_empty() => {
                Self::Tcp(own.clone(), port)
            }
            (address, _) => address,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How the servers stand to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One server.
    Single(Address),
    /// A primary that sentinels know.
    Sentinel {
        sentinels: Vec<Address>,
        primary: String,
    },
    /// A cluster, and nodes of it that are asked for the others.
    Cluster(Vec<Address>),
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(address) => address.fmt(f),
            Self::Sentinel { primary, .. } => write!(f, "the primary {primary}"),
            Self::Cluster(_) => f.write_str("the cluster"),
        }
    }
}

/// A name and a password. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// None is the server's default user.
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

/// A URL that names no store. Messages never repeat the part with the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// No `://`.
    #[error("no scheme; write redis://HOST:PORT")]
    NoScheme,
    /// The part before `://`.
    #[error(
        "unknown scheme `{0}`; use redis, rediss, redis+unix, redis+cluster, rediss+cluster, redis+sentinel or rediss+sentinel"
    )]
    Scheme(String),
    /// No server is named.
    #[error("no host; write redis://HOST:PORT")]
    NoHost,
    /// A host or port that is none. Only the part before the colon is shown: where the `@` was
    /// forgotten, a password follows.
    #[error("`{0}` is no host or has no valid port; write HOST:PORT, an IPv6 address in brackets")]
    Host(String),
    /// Several servers where there can be one only.
    #[error(
        "several hosts; use redis+cluster:// for the nodes of a cluster, redis+sentinel:// for sentinels"
    )]
    SeveralHosts,
    /// What stands after the hosts is no database.
    #[error("`{0}` is no database number; write redis://HOST:PORT/0")]
    Database(String),
    /// A cluster has one database.
    #[error("a cluster has database 0 only; leave the number out")]
    ClusterDatabase,
    /// Sentinels know primaries by name.
    #[error("no name of a primary; write redis+sentinel://HOST:PORT,HOST:PORT/NAME")]
    NoPrimary,
    /// A name or password that is no text.
    #[error("the user name or the password is not UTF-8 after decoding %XX")]
    NotText,
    /// A user name alone gives no access.
    #[error("a user name without a password; write redis://USER:PASSWORD@HOST:PORT")]
    NoPassword,
    /// Something after `?` that means nothing here.
    #[error("unknown parameter `{0}`; there are db, user, password of a unix socket only")]
    Parameter(String),
    /// No path to a socket.
    #[error("no path; write redis+unix:///PATH")]
    NoPath,
}

/// What a URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) layout: Layout,
    pub(crate) tls: bool,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) database: u32,
}

impl Place {
    /// Reads a URL.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(UrlError::NoScheme)?;
        // Valkey's own names for the same things.
        let name = scheme.to_ascii_lowercase().replace("valkey", "redis");
        let (transport, kind) = name.split_once('+').unwrap_or((&name, ""));
        let tls = match transport {
            "redis" => false,
            "rediss" => true,
            _ => return Err(UrlError::Scheme(scheme.into())),
        };
        match (kind, tls) {
            ("unix", false) => unix(rest),
            ("" | "cluster" | "sentinel", _) => tcp(kind, tls, rest),
            _ => Err(UrlError::Scheme(scheme.into())),
        }
    }
}

fn tcp(kind: &str, tls: bool, rest: &str) -> Result<Place, UrlError> {
    // A password may hold any sign, a slash or another `@`, if the last `@` is the border.
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(read_credentials(credentials)?), rest),
        None => (None, rest),
    };
    let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if let Some(parameter) = parameters.split(['&', '=']).find(|name| !name.is_empty()) {
        return Err(UrlError::Parameter(parameter.into()));
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let port = if kind == "sentinel" {
        DEFAULT_SENTINEL_PORT
    } else {
        DEFAULT_PORT
    };
    let mut addresses = hosts
        .split(',')
        .filter(|host| !host.is_empty())
        .map(|host| read_host(host, port))
        .collect::<Result<Vec<_>, _>>()?;
    let (layout, database) = match kind {
        "sentinel" => {
            let (primary, database) = path.split_once('/').unwrap_or((path, ""));
            if primary.is_empty() {
                return Err(UrlError::NoPrimary);
            }
            let layout = Layout::Sentinel {
                sentinels: addresses,
                primary: primary.to_owned(),
            };
            (layout, database)
        }
        "cluster" if !matches!(path, "" | "0") => return Err(UrlError::ClusterDatabase),
        "cluster" => (Layout::Cluster(addresses), ""),
        _ if addresses.len() > 1 => return Err(UrlError::SeveralHosts),
        _ => (
            Layout::Single(addresses.pop().ok_or(UrlError::NoHost)?),
            path,
        ),
    };
    match &layout {
        Layout::Sentinel {
            sentinels: found, ..
        }
        | Layout::Cluster(found)
            if found.is_empty() =>
        {
            Err(UrlError::NoHost)
        }
        _ => Ok(Place {
            layout,
            tls,
            credentials,
            database: read_database(database)?,
        }),
    }
}

fn unix(rest: &str) -> Result<Place, UrlError> {
    let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(UrlError::NoPath);
    }
    let (mut database, mut user, mut password) = (0, None, None);
    for parameter in parameters.split('&').filter(|text| !text.is_empty()) {
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("db", value) => database = read_database(value)?,
            ("user", value) => user = Some(decode(value)?),
            ("password", value) => password = Some(decode(value)?),
            (name, _) => return Err(UrlError::Parameter(name.into())),
        }
    }
    let credentials = match (user, password) {
        (None, None) => None,
        (Some(_), None) => return Err(UrlError::NoPassword),
        (user, Some(password)) => Some(Credentials { user, password }),
    };
    Ok(Place {
        layout: Layout::Single(Address::Unix(decode(path)?.into())),
        tls: false,
        credentials,
        database,
    })
}

fn read_credentials(text: &str) -> Result<Credentials, UrlError> {
    let (user, password) = text.split_once(':').ok_or(UrlError::NoPassword)?;
    Ok(Credentials {
        user: Some(decode(user)?).filter(|user| !user.is_empty()),
        password: decode(password)?,
    })
}

fn read_host(text: &str, default_port: u16) -> Result<Address, UrlError> {
    let wrong = || UrlError::Host(text.split(':').next().unwrap_or("").to_owned());
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (
                host,
                port.strip_prefix(':').or((port.is_empty()).then_some("")),
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
            None => (text, Some("")),
        },
    };
    let port = match port.ok_or_else(wrong)? {
        "" => default_port,
        port => port.parse().map_err(|_| wrong())?,
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/?#[]".contains(c)) {
        return Err(wrong());
    }
    Ok(Address::Tcp(host.to_owned(), port))
}

fn read_database(text: &str) -> Result<u32, UrlError> {
    match text {
        "" => Ok(0),
        _ => text.parse().map_err(|_| UrlError::Database(text.into())),
    }
}

fn decode(text: &str) -> Result<String, UrlError> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| UrlError::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Place {
        Place::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn one_server_is_read_with_all_its_parts() {
        let read = place("rediss://bob:p%40ss@cache.example:7000/3");
        assert_eq!(read.layout, Layout::Single(tcp("cache.example", 7000)));
        assert!(read.tls);
        assert_eq!(read.database, 3);
        let credentials = read.credentials.unwrap();
        assert_eq!(credentials.user.as_deref(), Some("bob"));
        assert_eq!(credentials.password, "p@ss");
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let read = place("valkey://localhost");
        assert_eq!(read.layout, Layout::Single(tcp("localhost", 6379)));
        assert_eq!(
            (read.tls, read.database, read.credentials),
            (false, 0, None)
        );
        let read = place("redis://:secret@[::1]");
        assert_eq!(read.layout, Layout::Single(tcp("::1", 6379)));
        assert_eq!(read.credentials.unwrap().user, None);
    }

    #[test]
    fn a_password_may_hold_any_sign() {
        let credentials = place("redis://u:a@b/c:d@host").credentials.unwrap();
        assert_eq!(credentials.password, "a@b/c:d");
    }

    #[test]
    fn clusters_sentinels_and_sockets_are_read() {
        let nodes = vec![tcp("a", 7000), tcp("b", 6379), tcp("::1", 7001)];
        assert_eq!(
            place("redis+cluster://a:7000,b,[::1]:7001").layout,
            Layout::Cluster(nodes)
        );
        let read = place("valkeys+sentinel://u:p@a,b:5000/main/2");
        assert_eq!((read.tls, read.database), (true, 2));
        assert_eq!(
            read.layout,
            Layout::Sentinel {
                sentinels: vec![tcp("a", 26379), tcp("b", 5000)],
                primary: "main".into()
            }
        );
        let read = place("redis+unix:///run/valkey.sock?db=1&password=x");
        let path = Address::Unix("/run/valkey.sock".into());
        assert_eq!((read.layout, read.database), (Layout::Single(path), 1));
    }

    #[test]
    fn a_url_that_names_no_store_is_refused_with_the_remedy() {
        use UrlError as E;
        for (url, error) in [
            ("http://host", E::Scheme("http".into())),
            ("host:6379", E::NoScheme),
            ("rediss+unix:///x", E::Scheme("rediss+unix".into())),
            ("redis://", E::NoHost),
            ("redis://a,b", E::SeveralHosts),
            ("redis://a:port", E::Host("a".into())),
            ("redis://a:", E::Host("a".into())),
            ("redis://[::1", E::Host("[".into())),
            ("redis://[::1]6379", E::Host("[".into())),
            ("redis://::1", E::Host(String::new())),
            ("redis://a:65536", E::Host("a".into())),
            ("redis://a/first", E::Database("first".into())),
            ("redis://bob@a", E::NoPassword),
            ("redis://bob:%ff@a", E::NotText),
            ("redis://a?db=1", E::Parameter("db".into())),
            ("redis+cluster://a/1", E::ClusterDatabase),
            ("redis+cluster://", E::NoHost),
            ("redis+sentinel://a", E::NoPrimary),
            ("redis+sentinel:///main", E::NoHost),
            ("redis+unix://", E::NoPath),
            ("redis+unix:///s?user=bob", E::NoPassword),
            ("redis+unix:///s?pass=x", E::Parameter("pass".into())),
        ] {
            assert_eq!(Place::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        for url in [
            "redis://bob:hunter2@a:1/x",
            "redis://bob:hunter2@a:x",
            "redis://bob:hunter2",
            "redis://bob:hunt?hunter2@a:x",
            "bob:hunter2@a",
        ] {
            let error = Place::parse(url).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{url}: {shown}");
        }
        let shown = format!("{:?}", place("redis://bob:hunter2@a"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn redirections_are_addresses_of_either_family() {
        assert_eq!(
            Address::from_redirection("10.0.0.1:7"),
            Some(tcp("10.0.0.1", 7))
        );
        assert_eq!(
            Address::from_redirection("fd00::1:7"),
            Some(tcp("fd00::1", 7))
        );
        assert_eq!(Address::from_redirection("nonsense"), None);
        let nameless = Address::from_redirection(":7").unwrap();
        assert_eq!(nameless.seen_from(&tcp("own", 1)), tcp("own", 7));
    }
}

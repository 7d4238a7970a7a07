//! The URL of a store: read here far enough to show a mistake at its place and to know what kind of
//! store it is; the client reads it again when it connects.

use std::fmt;
use std::net::IpAddr;

use crate::text::TextError;

/// The URL of a Valkey or Redis server, of sentinels or of a cluster.
///
/// `Debug` and `Display` show no password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    text: String,
    kind: StoreKind,
    tls: bool,
    has_password: bool,
    is_local: bool,
}

/// How the servers behind a URL stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// One server.
    Single,
    /// One server on a socket of this machine.
    Unix,
    /// The primary that sentinels know.
    Sentinel,
    /// A cluster.
    Cluster,
}

const EXAMPLE: &str = "write `redis://HOST:PORT`, or `rediss://HOST:PORT` for TLS";

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// It names no store. The message never repeats a password.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let wrong = |help: &str| {
            let shown = hidden(text);
            TextError::new(
                format!("`{shown}` is no address of a Valkey or Redis server"),
                help,
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(EXAMPLE))?;
        let scheme = scheme.to_ascii_lowercase().replace("valkey", "redis");
        let (transport, kind) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let tls = match transport {
            "redis" => false,
            "rediss" => true,
            _ => return Err(wrong(EXAMPLE)),
        };
        let kind = match (kind, tls) {
            ("", _) => StoreKind::Single,
            ("sentinel", _) => StoreKind::Sentinel,
            ("cluster", _) => StoreKind::Cluster,
            ("unix", false) => StoreKind::Unix,
            ("unix", true) => {
                return Err(wrong(
                    "a socket of this machine needs no TLS: write `redis+unix:///PATH`",
                ));
            }
            _ => {
                return Err(wrong(
                    "write `redis://`, `redis+sentinel://`, `redis+cluster://` or `redis+unix://`",
                ));
            }
        };
        let read = if kind == StoreKind::Unix {
            read_unix(rest)
        } else {
            read_hosts(kind, rest)
        };
        let (has_password, is_local) = read.map_err(wrong)?;
        Ok(Self {
            text: text.to_owned(),
            kind,
            tls,
            has_password,
            is_local,
        })
    }

    /// The URL as it is written, with the password if there is one: for the client alone.
    #[must_use]
    pub fn as_written(&self) -> &str {
        &self.text
    }

    /// How the servers stand to each other.
    #[must_use]
    pub const fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub const fn tls(&self) -> bool {
        self.tls
    }

    /// Whether a password stands in the URL.
    #[must_use]
    pub const fn has_password(&self) -> bool {
        self.has_password
    }

    /// Whether all that it names is on this machine.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.is_local
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hidden(&self.text))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

type Read = Result<(bool, bool), &'static str>;

/// Whether there is a password, and whether all hosts are this machine.
fn read_hosts(kind: StoreKind, rest: &str) -> Read {
    // A password may hold any sign: the last `@` is the border.
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    if credentials.is_some_and(|credentials| !credentials.contains(':')) {
        return Err(
            "a user needs a password: `redis://USER:PASSWORD@HOST:PORT`; better, leave both out of the URL and write `user` and `password`",
        );
    }
    let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if parameters.split(['&', '=']).any(|name| !name.is_empty()) {
        return Err("leave out what stands behind `?`: settings have fields of their own");
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut count = 0;
    let mut is_local = true;
    for host in hosts.split(',').filter(|host| !host.is_empty()) {
        count += 1;
        is_local &= is_this_machine(read_host(host)?);
    }
    let database = match kind {
        StoreKind::Sentinel => {
            let (primary, database) = path.split_once('/').unwrap_or((path, ""));
            if primary.is_empty() {
                return Err(
                    "name the primary that the sentinels know: `redis+sentinel://HOST:PORT,HOST:PORT/NAME`",
                );
            }
            database
        }
        StoreKind::Cluster if !matches!(path, "" | "0") => {
            return Err("a cluster has database 0 only: leave the number out");
        }
        StoreKind::Cluster => "",
        _ => path,
    };
    if count == 0 {
        return Err(EXAMPLE);
    }
    if count > 1 && kind == StoreKind::Single {
        return Err(
            "write `redis+cluster://` for the nodes of a cluster, `redis+sentinel://HOST,HOST/NAME` for sentinels",
        );
    }
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Err("a database is a number: `redis://HOST:PORT/0`");
    }
    Ok((credentials.is_some(), is_local))
}

fn read_unix(rest: &str) -> Read {
    let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err("name the socket: `redis+unix:///PATH`");
    }
    let (mut user, mut password) = (false, false);
    for parameter in parameters.split('&').filter(|text| !text.is_empty()) {
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("db", "") => {}
            ("db", number) if number.parse::<u32>().is_ok() => {}
            ("user", _) => user = true,
            ("password", _) => password = true,
            _ => return Err("behind `?` there is `db=NUMBER` only"),
        }
    }
    if user && !password {
        return Err("a user needs a password; better, write `user` and `password` as fields");
    }
    Ok((password, true))
}

/// The host of `host:port`.
fn read_host(text: &str) -> Result<&str, &'static str> {
    const WRONG: &str =
        "write each host as `HOST:PORT`, an IPv6 address in brackets: `redis://[::1]:6379`";
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(WRONG)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| WRONG)?;
            if !port.is_empty() && !port.starts_with(':') {
                return Err(WRONG);
            }
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(WRONG);
    }
    let strange = |c: char| c.is_whitespace() || "/?#[]".contains(c);
    if host.is_empty() || host.contains(strange) {
        return Err(WRONG);
    }
    Ok(host)
}

fn is_this_machine(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// A text with stars for what may be a password of a store: from a store's `://` up to the last `@`
/// of the line, the value of a parameter `password`, and a word that somebody wrote where a password's
/// place belongs. As many bytes as before, so that places stay.
pub(crate) fn hidden(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        hide_line(&without_words(line), &mut shown);
    }
    shown
}

/// A line with stars for words behind the fields of secrets.
fn without_words(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((at, field)) = ["password:", "key_secret:"]
        .iter()
        .filter_map(|field| Some((rest.find(field)?, field)))
        .min()
    {
        let (before, behind) = rest.split_at(at + field.len());
        shown.push_str(before);
        let blanks = behind.len() - behind.trim_start_matches([' ', '\t']).len();
        let (blanks, value) = behind.split_at(blanks);
        shown.push_str(blanks);
        let end = match value.chars().next() {
            Some('{' | '\r' | '\n') | None => 0,
            // What a quoted word may hold ends with the line.
            Some('"' | '\'') => value.trim_end().len(),
            Some(_) => {
                let end = value.find([',', '}', '\r', '\n']).unwrap_or(value.len());
                value[..end].trim_end().len()
            }
        };
        push_stars(end, &mut shown);
        rest = &value[end..];
    }
    shown.push_str(rest);
    shown
}

fn hide_line(line: &str, shown: &mut String) {
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        rest = behind;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '+';
        let scheme = before.rsplit(|c| !is_word(c)).next().unwrap_or("");
        let scheme = scheme.to_ascii_lowercase();
        if !scheme.starts_with("redis") && !scheme.starts_with("valkey") {
            let end = rest.find(['/', '"', '\'', ' ', '\r', '\n']);
            let authority = &rest[..end.unwrap_or(rest.len())];
            let user = authority.rfind('@').filter(|at| rest[..*at].contains(':'));
            push_stars(user.unwrap_or(0), shown);
            rest = &rest[user.unwrap_or(0)..];
            continue;
        }
        let end = rest.rfind('@').unwrap_or(0);
        push_stars(end, shown);
        rest = &rest[end..];
        if let Some(at) = rest.find("password=") {
            let (before, value) = rest.split_at(at + "password=".len());
            let end = value
                .find(['&', '"', '\'', ' ', '\r', '\n'])
                .unwrap_or(value.len());
            shown.push_str(before);
            push_stars(end, shown);
            rest = &value[end..];
        }
    }
    shown.push_str(rest);
}

fn push_stars(count: usize, shown: &mut String) {
    shown.extend(std::iter::repeat_n('*', count));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_what_kind_of_store_it_is_and_whether_it_is_safe() {
        use StoreKind::{Cluster, Sentinel, Single, Unix};
        for (url, kind, tls, password, local) in [
            ("redis://127.0.0.1:6379", Single, false, false, true),
            ("valkeys://u:p@cache.example/3", Single, true, true, false),
            ("redis://[::1]", Single, false, false, true),
            ("redis://localhost", Single, false, false, true),
            (
                "redis+cluster://a:1,127.0.0.1",
                Cluster,
                false,
                false,
                false,
            ),
            (
                "REDISS+sentinel://a,b:5/main/2",
                Sentinel,
                true,
                false,
                false,
            ),
            (
                "redis+unix:///run/v?db=1&password=x",
                Unix,
                false,
                true,
                true,
            ),
        ] {
            let read = StoreUrl::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            let said = (
                read.kind(),
                read.tls(),
                read.has_password(),
                read.is_local(),
            );
            assert_eq!(said, (kind, tls, password, local), "{url}");
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        for text in [
            "redis://bob:hunter2@a:1/x",
            "redis://bob:hunter2@a:x",
            "redis://:hunter2@a@b",
            "redis+unix:///s?user=bob&password=hunter2",
            "valkeys+cluster://bob:hunter2@a,b",
            "stores: { a: { valkey: { url: \"redis://u:hunter2@h\" } }, b: { valkey: { url: 'redis://u:hunter2@h' } } }",
        ] {
            let shown = match StoreUrl::parse(text) {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter2"), "{text}: {shown}");
            assert_eq!(hidden(text).len(), text.len(), "places stay");
        }
        for text in [
            "password: hunter2\n",
            "{ password: \"hunter2\" }",
            "a: {key_secret: hunter2}",
        ] {
            assert!(!hidden(text).contains("hunter2"), "{text}");
            assert_eq!(hidden(text).len(), text.len(), "places stay");
        }
        let place = "password: { env: VALKEY_PASSWORD }\n";
        assert_eq!(hidden(place), place);
        let harmless = "proxy: http://user@host # redis\n";
        assert_eq!(hidden(harmless), harmless);
    }
}

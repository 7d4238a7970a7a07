//! Access logs in the common and combined formats of Apache httpd and nginx.
//!
//! `HOST IDENT USER [02/Aug/1995:09:30:03 -0400] "GET /path HTTP/1.0" STATUS BYTES`, then for the
//! combined format `"REFERER" "USER-AGENT"`, then whatever a server adds. Works on bytes and
//! allocates nothing unless a field holds escapes. The zone of a line's time is the one that
//! stands in it; the zone of the machine does not matter.
//!
//! A request line that is none is no fault of the log: servers write down whatever came in. Such
//! a call has a client and a time, and no method and path.

use std::borrow::Cow;
use std::net::IpAddr;

use super::keys::hex;
use super::problem::Fault;
use super::time::{days_since_epoch, digits};

/// One line, split; escapes are still in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogLine<'a> {
    /// Microseconds since the epoch.
    pub at: u64,
    pub client: &'a [u8],
    pub user: Option<&'a [u8]>,
    pub method: Option<&'a [u8]>,
    pub target: Option<&'a [u8]>,
    pub status: Option<u16>,
    /// What follows the number of bytes.
    rest: &'a [u8],
}

impl<'a> LogLine<'a> {
    /// Referer and user agent, where the line has them.
    pub fn referer_and_agent(&self) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        let Some((referer, rest)) = quoted_field(self.rest) else {
            return (None, None);
        };
        let agent = quoted_field(rest).map(|(agent, _)| agent);
        (present(referer), agent.and_then(present))
    }

    /// The chain of addresses that proxies wrote, where nginx's usual format has one: the third
    /// field in quotes, if it begins with an address.
    pub fn forwarded_for(&self) -> Option<&'a [u8]> {
        let (_, rest) = quoted_field(self.rest)?;
        let (_, rest) = quoted_field(rest)?;
        let (chain, _) = quoted_field(rest)?;
        let first = chain.split(|c| *c == b',').next()?.trim_ascii();
        let first = std::str::from_utf8(first).ok()?;
        first.parse::<IpAddr>().is_ok().then_some(chain)
    }

    /// How long the request took in microseconds, where the line says so by name: `rt=0.123` or
    /// `request_time=0.123`, in seconds as nginx writes them. Nothing else tells its unit.
    pub fn took(&self) -> Option<u64> {
        const NAMES: [&[u8]; 2] = [b"rt=", b"request_time="];
        let mut words = self.rest.split(|c| *c == b' ');
        let seconds = words.find_map(|word| {
            NAMES
                .iter()
                .find_map(|name| word.trim_ascii().strip_prefix(*name))
        })?;
        micros_of_seconds(seconds)
    }
}

/// Whether a line looks like one of an access log: it has a time in brackets.
pub(crate) fn looks_like(line: &[u8]) -> bool {
    read(line).is_ok()
}

/// Reads one line.
///
/// # Errors
/// A line without client, time, request or status.
pub(crate) fn read(line: &[u8]) -> Result<LogLine<'_>, Fault> {
    let host = memchr::memchr(b' ', line).unwrap_or(0);
    if host == 0 {
        return Err(Fault::new(
            0,
            line.len().min(1),
            "a line of an access log begins with a client",
        ));
    }
    let (opened, at) = time_in(line, host)?;
    // `[`, 26 characters, `]`: longer by what a fraction of a second takes.
    let after_time = opened.end;
    let request = match line.get(after_time..) {
        Some([b' ', b'"', ..]) => after_time + 2,
        _ => {
            return Err(Fault::new(
                after_time,
                1,
                "a request in quotes is missing after the time",
            ));
        }
    };
    let closed = closing_quote(line, request)?;
    let rest = fields_after(line, closed + 1)?;
    let status = line.get(closed + 2..closed + 5).and_then(digits);
    let (method, target) = split_request(&line[request..closed]);
    Ok(LogLine {
        at,
        client: &line[..host],
        user: user(&line[host..opened.start]),
        method,
        target,
        status: status.and_then(|status| status.try_into().ok()),
        rest,
    })
}

/// Where the time stands, and what it says.
fn time_in(line: &[u8], from: usize) -> Result<(std::ops::Range<usize>, u64), Fault> {
    let mut fault = None;
    let mut search = from;
    // A user name may hold a bracket: the time is in the first one that reads as a time.
    while let Some(found) = memchr::memchr(b'[', &line[search..]) {
        let start = search + found;
        match time(&line[start + 1..]) {
            Ok((at, length)) => return Ok((start..start + 1 + length, at)),
            Err(message) => {
                fault.get_or_insert_with(|| {
                    let end = memchr::memchr(b']', &line[start..]).unwrap_or(27);
                    Fault::new(start, end + 1, message).help("as in [01/Aug/1995:09:30:03 -0400]")
                });
            }
        }
        search = start + 1;
    }
    Err(fault.unwrap_or_else(|| {
        Fault::line("no time in brackets").help("as in [01/Aug/1995:09:30:03 -0400]")
    }))
}

/// Reads `01/Aug/1995:09:30:03 -0400]`, with or without a fraction; returns what it took.
fn time(text: &[u8]) -> Result<(u64, usize), &'static str> {
    const MALFORMED: &str = "this is not the time of an access log";
    let (fixed, tail) = text.split_first_chunk::<20>().ok_or(MALFORMED)?;
    let separators = [fixed[2], fixed[6], fixed[11], fixed[14], fixed[17]];
    if separators != *b"//:::" {
        return Err(MALFORMED);
    }
    let two = |at: usize| number2(fixed[at], fixed[at + 1]);
    let parts = (
        two(0),
        month(&fixed[3..6]),
        two(7),
        two(9),
        two(12),
        two(15),
        two(18),
    );
    let (Some(day), Some(month), Some(century), Some(year), Some(hour), Some(minute), Some(second)) =
        parts
    else {
        return Err(MALFORMED);
    };
    let (fraction, tail) = fraction(tail).ok_or(MALFORMED)?;
    let (offset, length) = match tail {
        [b' ', sign @ (b'+' | b'-'), h1, h2, m1, m2, b']', ..] => {
            let (Some(hours), Some(minutes)) = (number2(*h1, *h2), number2(*m1, *m2)) else {
                return Err(MALFORMED);
            };
            let seconds = i64::from(hours * 3_600 + minutes * 60);
            (
                if *sign == b'-' { -seconds } else { seconds },
                text.len() - tail.len() + 7,
            )
        }
        [b']', ..] => return Err("this time has no offset from UTC"),
        _ => return Err(MALFORMED),
    };
    if hour > 23 || minute > 59 || second > 60 {
        return Err("there is no such time of day");
    }
    let days = days_since_epoch(century * 100 + year, month, day).ok_or("there is no such day")?;
    let local = days * 86_400 + i64::from(hour * 3_600 + minute * 60 + second);
    let seconds = u64::try_from(local - offset).map_err(|_| "this time is before 1970")?;
    Ok((seconds * 1_000_000 + fraction, length))
}

/// A fraction of a second in microseconds, if one begins here.
fn fraction(tail: &[u8]) -> Option<(u64, &[u8])> {
    let Some(rest) = tail.strip_prefix(b".") else {
        return Some((0, tail));
    };
    let length = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    if length == 0 {
        return None;
    }
    let kept = length.min(6);
    let scale = 10_u64.pow(u32::try_from(6 - kept).ok()?);
    Some((digits(&rest[..kept])? * scale, &rest[length..]))
}

/// A decimal number of seconds, in quotes or not, in microseconds.
pub(crate) fn micros_of_seconds(text: &[u8]) -> Option<u64> {
    let text = text.strip_prefix(b"\"").unwrap_or(text);
    let text = text.strip_suffix(b"\"").unwrap_or(text);
    let whole = text.iter().position(|c| *c == b'.').unwrap_or(text.len());
    if whole == 0 || whole > 10 {
        return None;
    }
    let (micros, rest) = fraction(&text[whole..])?;
    let seconds = digits(&text[..whole])?;
    rest.is_empty().then_some(seconds * 1_000_000 + micros)
}

const fn number2(tens: u8, ones: u8) -> Option<u32> {
    if tens.is_ascii_digit() && ones.is_ascii_digit() {
        Some((tens - b'0') as u32 * 10 + (ones - b'0') as u32)
    } else {
        None
    }
}

const fn month(name: &[u8]) -> Option<u32> {
    Some(match name {
        b"Jan" => 1,
        b"Feb" => 2,
        b"Mar" => 3,
        b"Apr" => 4,
        b"May" => 5,
        b"Jun" => 6,
        b"Jul" => 7,
        b"Aug" => 8,
        b"Sep" => 9,
        b"Oct" => 10,
        b"Nov" => 11,
        b"Dec" => 12,
        _ => return None,
    })
}

/// The user in ` IDENT USER `; none where nobody logged in.
fn user(between: &[u8]) -> Option<&[u8]> {
    let between = between.trim_ascii();
    let at = between.iter().position(|c| *c == b' ')?;
    present(between[at + 1..].trim_ascii())
}

pub(crate) const fn present(field: &[u8]) -> Option<&[u8]> {
    match field {
        b"-" | b"" => None,
        _ => Some(field),
    }
}

/// The quote that ends the request: old servers wrote the quotes inside one as they came.
fn closing_quote(line: &[u8], from: usize) -> Result<usize, Fault> {
    let mut escaped = None;
    for at in memchr::memchr2_iter(b'"', b'\\', &line[from..]).map(|at| at + from) {
        if escaped == Some(at) {
            continue;
        }
        if line[at] == b'\\' {
            escaped = Some(at + 1);
        } else if begins_with_status(&line[at + 1..]) {
            return Ok(at);
        }
    }
    Err(Fault::new(
        from - 1,
        1,
        "this request has no end: a quote, a space and a status",
    ))
}

/// Whether a space and a status stand here.
const fn begins_with_status(text: &[u8]) -> bool {
    match text {
        [b' ', b'-'] | [b' ', b'-', b' ', ..] => true,
        [b' ', a, b, c] | [b' ', a, b, c, b' ', ..] => {
            a.is_ascii_digit() && b.is_ascii_digit() && c.is_ascii_digit()
        }
        _ => false,
    }
}

/// Checks ` STATUS BYTES` and returns what follows.
fn fields_after(line: &[u8], from: usize) -> Result<&[u8], Fault> {
    let mut at = from;
    for what in ["status", "number of bytes"] {
        let Some(b' ') = line.get(at) else {
            return Err(Fault::new(at, 1, format!("the {what} is missing here")));
        };
        at += 1;
        let length = line[at..].iter().take_while(|c| c.is_ascii_digit()).count();
        at += match (length, line.get(at)) {
            (0, Some(b'-')) => 1,
            (0, _) => return Err(Fault::new(at, 1, format!("the {what} is missing here"))),
            (length, _) => length,
        };
    }
    match line.get(at) {
        None | Some(b' ') => Ok(&line[at..]),
        Some(_) => Err(Fault::new(at, 1, "a space is missing here")),
    }
}

/// Method and target of a request line; neither where the line is no request.
pub(crate) fn split_request(request: &[u8]) -> (Option<&[u8]>, Option<&[u8]>) {
    let Some(at) = memchr::memchr(b' ', request) else {
        return (None, None);
    };
    let (method, target) = (&request[..at], &request[at + 1..]);
    let token = |c: &u8| c.is_ascii_alphanumeric() || b"-_!#$%&'*+.^`|~".contains(c);
    if method.is_empty() || !method.iter().all(token) {
        return (None, None);
    }
    // A request of HTTP/0.9 has no version.
    let target = match memchr::memrchr(b' ', target) {
        Some(at) if target[at + 1..].starts_with(b"HTTP/") => &target[..at],
        _ => target,
    };
    let target = target.trim_ascii();
    if target.is_empty() {
        (None, None)
    } else {
        (Some(method), Some(target))
    }
}

/// The field in quotes that begins after a space, and what follows it.
fn quoted_field(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let field = rest.strip_prefix(b" \"")?;
    let mut escaped = None;
    for at in memchr::memchr2_iter(b'"', b'\\', field) {
        if escaped == Some(at) {
            continue;
        }
        if field[at] == b'\\' {
            escaped = Some(at + 1);
        } else {
            return Some((&field[..at], &field[at + 1..]));
        }
    }
    None
}

/// A field without the escapes of Apache httpd and nginx: `\"`, `\\`, `\n`, `\t`, `\xNN`.
pub(crate) fn unescaped(field: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', field) else {
        return Cow::Borrowed(field);
    };
    let mut out = field[..first].to_vec();
    let mut at = first;
    while let Some(byte) = field.get(at) {
        let escape = (byte == &b'\\').then(|| field.get(at + 1..)).flatten();
        let (byte, length) = match escape {
            Some([c @ (b'"' | b'\\'), ..]) => (*c, 2),
            Some([b'n', ..]) => (b'\n', 2),
            Some([b'r', ..]) => (b'\r', 2),
            Some([b't', ..]) => (b'\t', 2),
            Some([b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (*byte, 1),
            },
            _ => (*byte, 1),
        };
        out.push(byte);
        at += length;
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMBINED: &str = r#"2001:db8::7 - john doe [01/May/2026:10:00:00 +0200] "GET /a?b=\"c\" HTTP/1.1" 200 12 "http://x/\"y\"" "curl/8 \\ \x22""#;

    #[test]
    fn a_combined_line_yields_every_field() {
        let line = read(COMBINED.as_bytes()).unwrap();
        assert_eq!(line.at, 1_777_622_400_000_000);
        assert_eq!(line.client, b"2001:db8::7");
        assert_eq!(line.user, Some(b"john doe".as_slice()));
        assert_eq!(line.method, Some(b"GET".as_slice()));
        assert_eq!(&*unescaped(line.target.unwrap()), b"/a?b=\"c\"");
        let (referer, agent) = line.referer_and_agent();
        assert_eq!(&*unescaped(referer.unwrap()), b"http://x/\"y\"");
        assert_eq!(&*unescaped(agent.unwrap()), b"curl/8 \\ \"");
    }

    #[test]
    fn what_servers_add_to_a_line_is_read_where_it_says_what_it_is() {
        let line = |added: &str| {
            format!(
                "10.0.0.1 - - [01/May/2026:10:00:00 +0200] \"GET / HTTP/1.1\" 401 12 \"-\" \"curl\"{added}"
            )
        };
        for (added, chain, took) in [
            ("", None, None),
            (" \"-\"", None, None),
            (
                " \"192.0.2.7, 10.0.0.9\" rt=0.250",
                Some("192.0.2.7, 10.0.0.9"),
                Some(250_000),
            ),
            (
                " \"2001:db8::1\" request_time=\"12.000001\"",
                Some("2001:db8::1"),
                Some(12_000_001),
            ),
            (" \"app-7\" rt=", None, None),
            (" 0.250 rt=-1 rt=x", None, None),
        ] {
            let text = line(added);
            let read = read(text.as_bytes()).unwrap();
            assert_eq!(read.forwarded_for(), chain.map(str::as_bytes), "{added}");
            assert_eq!(read.took(), took, "{added}");
            assert_eq!(read.status, Some(401));
        }
    }

    #[test]
    fn the_offset_of_the_line_counts_and_not_the_zone_of_the_machine() {
        let at = |time: &str| {
            read(format!("h - - [{time}] \"GET / HTTP/1.0\" 200 -").as_bytes())
                .unwrap()
                .at
        };
        assert_eq!(
            at("01/May/2026:10:00:00 +0200"),
            at("01/May/2026:08:00:00 +0000")
        );
        assert_eq!(
            at("01/Jan/2026:00:30:00 +0100"),
            at("31/Dec/2025:18:30:00 -0500")
        );
        assert_eq!(
            at("01/May/2026:08:00:00.250 +0000") - at("01/May/2026:08:00:00 +0000"),
            250_000
        );
    }

    #[test]
    fn requests_that_are_none_keep_their_client_and_time() {
        for request in [
            "",
            "-",
            "\\x16\\x03\\x01",
            "quit",
            "GET",
            " / HTTP/1.0",
            "G(T / HTTP/1.0",
        ] {
            let text = format!("198.18.0.1 - - [01/Aug/1995:09:30:03 -0400] \"{request}\" 400 -");
            let line = read(text.as_bytes()).unwrap();
            assert_eq!((line.method, line.target), (None, None), "{request}");
            assert_eq!(line.client, b"198.18.0.1");
        }
    }

    #[test]
    fn quotes_that_a_server_did_not_escape_and_targets_with_spaces_are_read() {
        let text = br#"h - - [01/Aug/1995:09:30:03 -0400] "GET /a "b" -c" HTTP/1.0" 404 - extra"#;
        assert_eq!(
            read(text).unwrap().target,
            Some(b"/a \"b\" -c\"".as_slice())
        );
        let text = br#"h - [x] [01/Aug/1995:09:30:03 -0400] "GET /only" 200 5"#;
        let line = read(text).unwrap();
        assert_eq!(
            (line.target, line.user),
            (Some(b"/only".as_slice()), Some(b"[x]".as_slice()))
        );
    }

    #[test]
    fn a_line_that_lacks_something_says_what_and_where() {
        for (text, column, message) in [
            ("", 0, "begins with a client"),
            ("h - - no time", 0, "no time in brackets"),
            (
                "h - - [32/Aug/1995:09:30:03 -0400] \"GET / HTTP/1.0\" 200 -",
                6,
                "no such day",
            ),
            (
                "h - - [01/Aug/1995:24:30:03 -0400] \"GET / HTTP/1.0\" 200 -",
                6,
                "no such time",
            ),
            (
                "h - - [01/Aug/1995:09:30:03] \"GET / HTTP/1.0\" 200 -",
                6,
                "no offset",
            ),
            (
                "h - - [01/Aug/1969:09:30:03 -0400] \"GET / HTTP/1.0\" 200 -",
                6,
                "before 1970",
            ),
            (
                "h - - [01/Aug/1995:09:30:03 -0400] GET / 200 -",
                34,
                "request in quotes",
            ),
            (
                "h - - [01/Aug/1995:09:30:03 -0400] \"GET / HTTP/1.0",
                35,
                "has no end",
            ),
            (
                "h - - [01/Aug/1995:09:30:03 -0400] \"GET / HTTP/1.0\" 200",
                55,
                "bytes is missing",
            ),
            (
                "h - - [01/Aug/1995:09:30:03 -0400] \"GET / HTTP/1.0\" 200 1x",
                57,
                "a space",
            ),
        ] {
            let fault = read(text.as_bytes()).unwrap_err();
            assert!(fault.message.contains(message), "{text}: {}", fault.message);
            assert_eq!(fault.start, column, "{text}: {}", fault.message);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(line) = read(&bytes) {
                line.referer_and_agent();
            }
            let _ = unescaped(&bytes);
        }

        #[test]
        fn no_mutation_of_a_good_line_makes_the_reader_panic(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..6),
        ) {
            let mut bytes = COMBINED.as_bytes().to_vec();
            for (index, byte, kind) in edits {
                if bytes.is_empty() {
                    break;
                }
                let at = index.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes.truncate(at),
                    _ => bytes.insert(at, byte),
                }
            }
            if let Ok(line) = read(&bytes) {
                line.referer_and_agent();
                let _ = line.target.map(unescaped);
            }
        }
    }
}

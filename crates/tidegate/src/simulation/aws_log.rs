//! Logs of AWS: Application Load Balancers, and CloudFront's standard log.
//!
//! A load balancer's line stands for a request that began at its `request_creation_time`, and
//! CloudFront's for one that was over at its date and time. Both tell how long a request took.
//!
//! Source: "Access logs for your Application Load Balancer" and "Standard logging reference" in
//! the vendor's user guides.

use super::access_log::{micros_of_seconds, present, split_request};
use super::problem::Fault;
use super::time::parse_instant;

/// One line, split; escapes are still in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AwsLine<'a> {
    /// When the request began, in microseconds since the epoch.
    pub at: u64,
    pub client: &'a [u8],
    pub method: Option<&'a [u8]>,
    pub target: Option<&'a [u8]>,
    /// The query, where it is a field of its own.
    pub query: Option<&'a [u8]>,
    pub status: Option<u16>,
    pub took: Option<u64>,
    pub referer: Option<&'a [u8]>,
    pub agent: Option<&'a [u8]>,
    pub host: Option<&'a [u8]>,
    pub cookies: Option<&'a [u8]>,
    pub forwarded_for: Option<&'a [u8]>,
}

/// What the first field of a load balancer's line can be.
const BALANCED: [&[u8]; 6] = [b"http", b"https", b"h2", b"grpcs", b"ws", b"wss"];

/// Whether a line looks like one of a load balancer.
pub(crate) fn looks_like_balancer(line: &[u8]) -> bool {
    let mut fields = Spaced(line);
    fields.next().is_some_and(|field| BALANCED.contains(&field))
        && fields.next().and_then(parse_instant).is_some()
}

/// Reads one line of a load balancer.
///
/// # Errors
/// A field that is missing or of the wrong kind, by its name in the vendor's guide.
pub(crate) fn read_balancer(line: &[u8]) -> Result<AwsLine<'_>, Fault> {
    let mut fields = Spaced(line);
    let mut field = |name: &str| {
        fields
            .next()
            .ok_or_else(|| Fault::line(format!("the field {name} is missing")))
    };
    let kind = field("type")?;
    if !BALANCED.contains(&kind) {
        return Err(Fault::new(0, kind.len(), "this is no type of request"));
    }
    let ended = field("time")?;
    field("elb")?;
    let client = field("client:port")?;
    field("target:port")?;
    let mut took = Some(0_u64);
    for name in [
        "request_processing_time",
        "target_processing_time",
        "response_processing_time",
    ] {
        // -1 where the request did not come that far.
        let part = micros_of_seconds(field(name)?);
        took = took.zip(part).map(|(sum, part)| sum.saturating_add(part));
    }
    let status = field("elb_status_code")?;
    for name in ["target_status_code", "received_bytes", "sent_bytes"] {
        field(name)?;
    }
    let (method, target) = split_request(field("request")?);
    let agent = present(field("user_agent")?);
    for name in ["ssl_cipher", "ssl_protocol", "target_group_arn", "trace_id"] {
        field(name)?;
    }
    let host = present(field("domain_name")?);
    // Old lines end before the last fields.
    let _ = (fields.next(), fields.next());
    let began = fields.next().and_then(parse_instant);
    let ended = parse_instant(ended)
        .ok_or_else(|| Fault::line("the field time holds no instant of RFC 3339"))?;
    Ok(AwsLine {
        at: began.unwrap_or_else(|| ended.saturating_sub(took.unwrap_or(0))),
        client: without_port(client),
        method,
        target,
        query: None,
        status: status_of(status),
        took: took.or_else(|| began.and_then(|began| ended.checked_sub(began))),
        referer: None,
        agent,
        host,
        cookies: None,
        forwarded_for: None,
    })
}

/// The address of `ADDRESS:PORT`.
fn without_port(client: &[u8]) -> &[u8] {
    match memchr::memrchr(b':', client) {
        Some(at) if at > 0 => &client[..at],
        _ => client,
    }
}

fn status_of(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Fields with spaces between them, some of them in quotes.
struct Spaced<'a>(&'a [u8]);

impl<'a> Iterator for Spaced<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.0.trim_ascii_start();
        if text.is_empty() {
            return None;
        }
        let (field, rest) = match text.strip_prefix(b"\"") {
            None => text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len())),
            Some(quoted) => {
                let mut end = quoted.len();
                let mut escaped = None;
                for at in memchr::memchr2_iter(b'"', b'\\', quoted) {
                    if escaped == Some(at) {
                        continue;
                    }
                    if quoted[at] == b'"' {
                        end = at;
                        break;
                    }
                    escaped = Some(at + 1);
                }
                (&quoted[..end], quoted.get(end + 1..).unwrap_or_default())
            }
        };
        self.0 = rest;
        Some(field)
    }
}

/// The columns of a CloudFront log, as its `#Fields:` line names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EdgeColumns {
    date: usize,
    time: usize,
    client: usize,
    method: Option<usize>,
    path: Option<usize>,
    query: Option<usize>,
    status: Option<usize>,
    took: Option<usize>,
    referer: Option<usize>,
    agent: Option<usize>,
    host: Option<usize>,
    cookies: Option<usize>,
    forwarded_for: Option<usize>,
}

/// Whether a line is the `#Fields:` line of a CloudFront log.
pub(crate) fn looks_like_edge(line: &[u8]) -> bool {
    EdgeColumns::read(line).is_ok()
}

impl EdgeColumns {
    /// Reads the `#Fields:` line.
    ///
    /// # Errors
    /// The line is another, or names no date, time and client.
    pub fn read(line: &[u8]) -> Result<Self, Fault> {
        let names = line
            .strip_prefix(b"#Fields:")
            .ok_or_else(|| Fault::line("a line with #Fields: has to come first"))?;
        let names: Vec<&[u8]> = names
            .split(u8::is_ascii_whitespace)
            .filter(|name| !name.is_empty())
            .collect();
        let of = |name: &str| names.iter().position(|known| *known == name.as_bytes());
        let needed =
            |name: &str| of(name).ok_or_else(|| Fault::line(format!("no field is called {name}")));
        Ok(Self {
            date: needed("date")?,
            time: needed("time")?,
            client: needed("c-ip")?,
            method: of("cs-method"),
            path: of("cs-uri-stem"),
            query: of("cs-uri-query"),
            status: of("sc-status"),
            took: of("time-taken"),
            referer: of("cs(Referer)"),
            agent: of("cs(User-Agent)"),
            host: of("x-host-header").or_else(|| of("cs(Host)")),
            cookies: of("cs(Cookie)"),
            forwarded_for: of("x-forwarded-for"),
        })
    }

    /// Reads one line.
    ///
    /// # Errors
    /// A field that is missing or of the wrong kind.
    pub fn read_line<'a>(&self, line: &'a [u8]) -> Result<AwsLine<'a>, Fault> {
        let fields: smallvec::SmallVec<[&[u8]; 64]> = line.split(|c| *c == b'\t').collect();
        let field = |at: Option<usize>| at.and_then(|at| fields.get(at).copied());
        let optional = |at: Option<usize>| field(at).and_then(present);
        let (Some(date), Some(time), Some(client)) = (
            field(Some(self.date)),
            field(Some(self.time)),
            field(Some(self.client)),
        ) else {
            return Err(Fault::line(format!(
                "{} fields stand here, too few for date, time and client",
                fields.len()
            )));
        };
        let instant = [date, b"T", time, b"Z"].concat();
        let ended = parse_instant(&instant)
            .ok_or_else(|| Fault::line("date and time are no point in time"))?;
        let took = field(self.took).and_then(micros_of_seconds);
        Ok(AwsLine {
            at: ended.saturating_sub(took.unwrap_or(0)),
            client,
            method: optional(self.method),
            target: optional(self.path),
            query: optional(self.query),
            status: field(self.status).and_then(status_of),
            took,
            referer: optional(self.referer),
            agent: optional(self.agent),
            host: optional(self.host),
            cookies: optional(self.cookies),
            forwarded_for: optional(self.forwarded_for),
        })
    }

    /// Whether lines tell how long their requests took.
    pub const fn have_durations(&self) -> bool {
        self.took.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BALANCER: &str = "https 2026-05-01T10:00:00.900000Z app/front/50dc6c495c0c9188 192.0.2.7:41234 10.0.0.1:80 0.001 0.700 0.000 200 200 34 366 \"GET https://shop.example:443/a?user_id=7 HTTP/1.1\" \"curl/8 \\\"x\\\"\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:x \"Root=1-58337262-36d228ad5d99923122bbe354\" \"shop.example\" \"arn:aws:acm:x\" 0 2026-05-01T10:00:00.199000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"200\" \"-\" \"-\"";

    #[test]
    fn a_line_of_a_load_balancer_begins_when_its_request_was_made() {
        let line = read_balancer(BALANCER.as_bytes()).unwrap();
        assert_eq!(line.at, 1_777_629_600_199_000);
        assert_eq!(line.client, b"192.0.2.7");
        assert_eq!(line.took, Some(701_000));
        assert_eq!(line.status, Some(200));
        assert_eq!(line.method, Some(b"GET".as_slice()));
        assert_eq!(
            line.target,
            Some(b"https://shop.example:443/a?user_id=7".as_slice())
        );
        assert_eq!(line.agent, Some(b"curl/8 \\\"x\\\"".as_slice()));
        assert_eq!(line.host, Some(b"shop.example".as_slice()));
    }

    #[test]
    fn a_request_that_reached_no_target_took_until_it_was_answered() {
        let text = BALANCER.replace("0.001 0.700 0.000", "-1 -1 -1");
        let line = read_balancer(text.as_bytes()).unwrap();
        assert_eq!(line.took, Some(701_000));
        let text = BALANCER.replace("192.0.2.7:41234", "2001:db8::7:41234");
        assert_eq!(
            read_balancer(text.as_bytes()).unwrap().client,
            b"2001:db8::7"
        );
    }

    #[test]
    fn a_line_of_the_edge_is_read_by_the_names_of_its_fields() {
        let columns = EdgeColumns::read(
            b"#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) time-taken x-forwarded-for x-host-header",
        )
        .unwrap();
        let line = columns
            .read_line(b"2026-05-01\t10:00:01\tFRA2\t12\t192.0.2.9\tGET\td1.cloudfront.net\t/a\t401\t-\tcurl/8\tuser_id=7\t-\t0.250\t-\tshop.example")
            .unwrap();
        assert_eq!(line.at % 1_000_000, 750_000);
        assert_eq!(line.took, Some(250_000));
        assert_eq!(line.query, Some(b"user_id=7".as_slice()));
        assert_eq!((line.status, line.cookies), (Some(401), None));
        assert_eq!(line.host, Some(b"shop.example".as_slice()));
        let fault = columns.read_line(b"2026-05-01\t10:00:01").unwrap_err();
        assert!(fault.message.contains("too few"), "{}", fault.message);
    }

    #[test]
    fn a_line_that_lacks_something_says_what() {
        for (text, message) in [
            ("http", "time is missing"),
            ("ftp x", "no type"),
            (&BALANCER[..120], "is missing"),
            (
                &BALANCER.replace("2026-05-01T10:00:00.9", "x"),
                "no instant",
            ),
        ] {
            let fault = read_balancer(text.as_bytes()).unwrap_err();
            assert!(fault.message.contains(message), "{text}: {}", fault.message);
        }
    }

    proptest! {
        #[test]
        fn no_mutation_of_a_good_line_makes_a_reader_panic(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..6),
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut line = BALANCER.as_bytes().to_vec();
            for (index, byte, kind) in edits {
                if line.is_empty() {
                    break;
                }
                let at = index.index(line.len());
                match kind {
                    0 => line[at] = byte,
                    1 => line.truncate(at),
                    _ => line.insert(at, byte),
                }
            }
            let _ = read_balancer(&line);
            let _ = read_balancer(&bytes);
            let columns = EdgeColumns::read(b"#Fields: date time c-ip time-taken").unwrap();
            let _ = columns.read_line(&bytes);
            let _ = EdgeColumns::read(&bytes);
        }
    }
}

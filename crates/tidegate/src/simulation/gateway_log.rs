//! The gateway's own access log, as JSON: what was served can be replayed without anything else.
//!
//! A line is written when its answer ends, so the request began by `micros` earlier. Other lines of
//! the same log hold no call.

use std::borrow::Cow;

use serde::Deserialize;

use super::problem::Fault;
use super::time::parse_instant;

/// What the lines of requests are marked with.
const TARGET: &str = "tidegate::access";

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayLine<'a> {
    /// When it began, in microseconds since the epoch.
    pub at: u64,
    pub client: Cow<'a, str>,
    pub method: String,
    pub target: String,
    pub status: u16,
    pub took: u64,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
    #[serde(borrow)]
    target: Cow<'a, str>,
    #[serde(borrow, default)]
    fields: Option<Fields<'a>>,
    #[serde(flatten, borrow)]
    flat: Fields<'a>,
}

#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    client: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    request: Option<Cow<'a, str>>,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    micros: Option<u64>,
}

/// Whether a line is one of the gateway's log.
pub(crate) fn looks_like(line: &[u8]) -> bool {
    serde_json::from_slice::<Line<'_>>(line).is_ok_and(|line| line.target.starts_with("tidegate"))
}

/// Reads one line; none where it tells of no request.
///
/// # Errors
/// The line is no JSON, or lacks what a request has.
pub(crate) fn read(line: &[u8]) -> Result<Option<GatewayLine<'_>>, Fault> {
    let line: Line<'_> = serde_json::from_slice(line)
        .map_err(|error| Fault::new(error.column().saturating_sub(1), 1, error.to_string()))?;
    if line.target != TARGET {
        return Ok(None);
    }
    let fields = line.fields.unwrap_or(line.flat);
    let (Some(client), Some(request), Some(status), Some(took)) =
        (fields.client, fields.request, fields.status, fields.micros)
    else {
        return Err(Fault::line("client, request, status or micros is missing"));
    };
    let ended = parse_instant(line.timestamp.as_bytes())
        .ok_or_else(|| Fault::line("timestamp is no instant of RFC 3339"))?;
    let (method, target) = request.split_once(' ').unwrap_or((&request, "/"));
    Ok(Some(GatewayLine {
        at: ended.saturating_sub(took),
        method: method.to_owned(),
        target: target.to_owned(),
        client,
        status,
        took,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = r#"{"timestamp":"2026-05-01T10:00:00.250000Z","level":"INFO","fields":{"client":"192.0.2.7","request":"GET /a?x=\"1\"","route":"GET /a","status":200,"micros":250000},"target":"tidegate::access"}"#;

    #[test]
    fn a_request_began_before_its_line_was_written() {
        let line = read(LINE.as_bytes()).unwrap().unwrap();
        assert_eq!(line.at, 1_777_629_600_000_000);
        assert_eq!((line.status, line.took), (200, 250_000));
        assert_eq!(
            (line.method.as_str(), line.target.as_str()),
            ("GET", "/a?x=\"1\"")
        );
        assert_eq!(line.client, "192.0.2.7");
    }

    #[test]
    fn what_is_no_request_is_no_call_and_what_lacks_something_is_a_fault() {
        let other = LINE.replace("tidegate::access", "tidegate_gateway::server");
        assert_eq!(read(other.as_bytes()).unwrap(), None);
        assert!(looks_like(other.as_bytes()));
        assert!(read(LINE.replace("\"client\"", "\"x\"").as_bytes()).is_err());
        assert!(read(LINE.replace("2026-", "").as_bytes()).is_err());
        assert!(!looks_like(br#"{"at_ms":1,"key":"a"}"#));
    }

    proptest! {
        #[test]
        fn no_mutation_of_a_good_line_makes_the_reader_panic(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        ) {
            let mut bytes = LINE.as_bytes().to_vec();
            for (index, byte) in edits {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = read(&bytes);
        }
    }
}

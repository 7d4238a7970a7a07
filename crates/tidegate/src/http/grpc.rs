//! Refusals as gRPC clients read them.
//!
//! HTTP 200 and no body: the head carries the status, as gRPC's *Trailers-Only* answers do. The
//! wait goes out twice, because clients differ in what they read: as `RetryInfo` in the status
//! details, and as `grpc-retry-pushback-ms`, which a client's own retry policy obeys.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message as _;
use tidegate_core::Wait;

use super::answers::{GrpcCode, Refusal};
use super::problem::Problem;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// What a status message may not hold as it is.
///
/// Source: the gRPC protocol over HTTP/2, "Percent-Byte-Unencoded".
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

const INVALID_ARGUMENT: u16 = 3;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;

/// Whether a request is a gRPC call. gRPC-Web is not: its clients read statuses from the body.
pub(super) fn is_call(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = media.and_then(|media| media.split_at_checked("application/grpc".len()));
    rest.is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(b"application/grpc") && matches!(rest, [] | [b'+' | b';', ..])
    })
}

/// The answer to a call that does not pass.
pub(super) fn refuse(
    problem: &Problem,
    refusal: Refusal<'_>,
    limited: GrpcCode,
) -> Response<Bytes> {
    let code = match (refusal, problem.status(), limited) {
        (_, StatusCode::BAD_REQUEST, _) => INVALID_ARGUMENT,
        (Refusal::Undecided(_), ..) | (.., GrpcCode::Unavailable) => UNAVAILABLE,
        // No limit was reached: another server may know.
        (Refusal::Denied(ruling), ..) if ruling.lacks_store() => UNAVAILABLE,
        (.., GrpcCode::ResourceExhausted) => RESOURCE_EXHAUSTED,
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    let message = utf8_percent_encode(problem.detail(), ESCAPED).to_string();
    headers.extend(
        HeaderValue::try_from(message)
            .ok()
            .map(|message| (GRPC_MESSAGE, message)),
    );
    if let Some(decision) = refusal.decision() {
        write_wait(headers, decision.retry_after, code, problem.detail());
    }
    response
}

/// Says how long to wait, or that waiting cannot help.
///
/// Source: gRPC A6, "Pushback": a value that is no number forbids to retry; `google.rpc.RetryInfo`.
fn write_wait(headers: &mut HeaderMap, wait: Wait, code: u16, message: &str) {
    let Some(wait) = wait.as_duration() else {
        headers.insert(GRPC_PUSHBACK, HeaderValue::from_static("-1"));
        return;
    };
    let millis = wait.as_nanos().div_ceil(1_000_000);
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    headers.insert(GRPC_PUSHBACK, HeaderValue::from(millis));
    let status = Status {
        code: i32::from(code),
        message: message.to_owned(),
        details: vec![Any {
            type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
            value: RetryInfo::after(wait).encode_to_vec(),
        }],
    };
    let encoded = STANDARD_NO_PAD.encode(status.encode_to_vec());
    let details = HeaderValue::try_from(encoded).expect("base64 is visible ASCII");
    headers.insert(GRPC_DETAILS, details);
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Span>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl RetryInfo {
    fn after(wait: Duration) -> Self {
        Self {
            retry_delay: Some(Span {
                seconds: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                nanos: i32::try_from(wait.subsec_nanos()).unwrap_or(0),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_by_its_content_type() {
        for (media, is_one) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
            ("application/grp", false),
        ] {
            let media = HeaderValue::from_static(media);
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, media.clone())]);
            assert_eq!(is_call(&headers), is_one, "{media:?}");
        }
        assert!(!is_call(&HeaderMap::new()));
    }

    #[test]
    fn the_pushback_rounds_up_and_forbids_to_retry_where_waiting_cannot_help() {
        for (wait, text) in [
            (Wait::micros(1), "1"),
            (Wait::micros(1_000), "1"),
            (Wait::micros(1_001), "2"),
            (Wait::NEVER, "-1"),
        ] {
            let mut headers = HeaderMap::new();
            write_wait(&mut headers, wait, RESOURCE_EXHAUSTED, "");
            assert_eq!(headers[GRPC_PUSHBACK], text);
            assert_eq!(headers.contains_key(GRPC_DETAILS), text != "-1");
        }
    }
}

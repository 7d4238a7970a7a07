//! Answers that say what is wrong, in the form that the client accepts.
//!
//! `application/problem+json` (RFC 9457) unless the client's `Accept` prefers plain JSON or text.
//! With [`BodyStyle::Aws`] the bodies of API Gateway are sent instead, whatever is accepted.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

/// Whose bodies answers have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyStyle {
    /// Problem details, in the form that the client accepts.
    #[default]
    Problem,
    /// `{"message": "…"}`, as AWS API Gateway answers.
    Aws,
}

/// What the client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Problem,
    Json,
    Text,
}

/// One answer that says what is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    kind: Option<&'static str>,
    title: &'static str,
    detail: String,
    aws: &'static str,
    violated: Vec<String>,
    never: bool,
}

/// The members of problem details, in the order that they are read in.
#[derive(Serialize)]
struct Details<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[_]>::is_empty")]
    violated: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a str>,
}

impl Problem {
    /// A problem that its status explains, with a sentence on this very request.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self {
            status,
            kind: None,
            title,
            detail: detail.into(),
            aws: title,
            violated: Vec::new(),
            never: false,
        }
    }

    /// Names the problem's type and title.
    #[must_use]
    pub const fn typed(mut self, kind: &'static str, title: &'static str) -> Self {
        self.kind = Some(kind);
        self.title = title;
        self
    }

    /// The message that API Gateway sends in this case.
    #[must_use]
    pub const fn aws(mut self, message: &'static str) -> Self {
        self.aws = message;
        self
    }

    /// Names the limits that refused.
    #[must_use]
    pub fn violated(mut self, limits: Vec<String>) -> Self {
        self.violated = limits;
        self
    }

    /// Says that waiting does not help: the member `retry` is `never`.
    #[must_use]
    pub const fn never(mut self) -> Self {
        self.never = true;
        self
    }

    /// The status of the answer.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The sentence on this very request.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Writes the body for a client with these request fields, and its `Content-Type`.
    #[must_use]
    pub fn body(&self, request: &HeaderMap, style: BodyStyle) -> (HeaderValue, Bytes) {
        if style == BodyStyle::Aws {
            let body = serde_json::json!({ "message": self.aws });
            return (
                HeaderValue::from_static("application/json"),
                body.to_string().into(),
            );
        }
        let (media, body) = match accepted(request) {
            Form::Problem => ("application/problem+json", self.details()),
            Form::Json => ("application/json", self.details()),
            Form::Text => (
                "text/plain; charset=utf-8",
                format!("{}: {}\n", self.title, self.detail),
            ),
        };
        (HeaderValue::from_static(media), body.into())
    }

    fn details(&self) -> String {
        let details = Details {
            kind: self.kind.unwrap_or("about:blank"),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            violated: &self.violated,
            retry: self.never.then_some("never"),
        };
        serde_json::to_string(&details).expect("texts and a number are always JSON")
    }

    /// The answer as a response with a body of the caller's kind.
    pub fn respond<B>(
        &self,
        request: &HeaderMap,
        style: BodyStyle,
        make_body: impl FnOnce(Bytes) -> B,
    ) -> http::Response<B> {
        let (content_type, body) = self.body(request, style);
        let mut response = http::Response::new(make_body(body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }
}

/// The form that the client likes best; problem details where it does not say.
///
/// Source: RFC 9110, section 12.5.1.
fn accepted(request: &HeaderMap) -> Form {
    // Quality in thousandths, by how exactly the media range is meant.
    let mut best = [
        (Form::Problem, None),
        (Form::Json, None),
        (Form::Text, None),
    ];
    let mut said = false;
    for value in request.get_all(ACCEPT) {
        let Ok(value) = value.to_str() else { continue };
        for range in value.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(quality).unwrap_or(1000);
            said |= !media.is_empty();
            for (form, known) in &mut best {
                let Some(exactness) = exactness(*form, &media) else {
                    continue;
                };
                if known.is_none_or(|(exact, _)| exactness > exact) {
                    *known = Some((exactness, quality));
                }
            }
        }
    }
    if !said {
        return Form::Problem;
    }
    let mut winner = (Form::Problem, 0);
    for (form, known) in best {
        let quality = known.map_or(0, |(_, quality)| quality);
        if quality > winner.1 {
            winner = (form, quality);
        }
    }
    winner.0
}

/// How exactly a media range means a form: 3 by name, 2 by type, 1 by anything.
fn exactness(form: Form, media: &str) -> Option<u8> {
    match (form, media) {
        (Form::Problem, "application/problem+json")
        | (Form::Json, "application/json")
        | (Form::Text, "text/plain") => Some(3),
        (Form::Problem | Form::Json, "application/*") | (Form::Text, "text/*" | "text/html") => {
            Some(2)
        }
        (_, "*/*") => Some(1),
        _ => None,
    }
}

fn quality(parameter: &str) -> Option<u32> {
    let value = parameter
        .strip_prefix("q=")
        .or_else(|| parameter.strip_prefix("Q="))?;
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
    let quality = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    quality.checked_add(thousandths.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn gets(accept: Option<&str>, media: &str) {
        let mut request = HeaderMap::new();
        if let Some(accept) = accept {
            request.insert(ACCEPT, accept.parse().unwrap());
        }
        let problem = Problem::new(StatusCode::NOT_FOUND, "no route for GET /x");
        let (found, _) = problem.body(&request, BodyStyle::Problem);
        assert_eq!(found, media, "{accept:?}");
    }

    #[test]
    fn the_client_gets_the_form_that_it_likes_best() {
        for accept in [
            None,
            Some("*/*"),
            Some("application/*"),
            Some("application/problem+json"),
            Some(""),
            Some("image/png"),
            Some("text/plain;q=0.5, */*"),
            Some("application/json;q=0.5, application/problem+json"),
        ] {
            gets(accept, "application/problem+json");
        }
        gets(Some("application/json"), "application/json");
        gets(
            Some("application/problem+json;q=0, application/*"),
            "application/json",
        );
        gets(Some("text/plain"), "text/plain; charset=utf-8");
        gets(
            Some("text/html, application/xml;q=0.9, */*;q=0.8"),
            "text/plain; charset=utf-8",
        );
        gets(
            Some("text/html;q=0.2, application/json;q=0.25"),
            "application/json",
        );
    }

    #[test]
    fn details_have_the_members_of_the_standard_and_those_added() {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "limit \"x\"")
            .typed(
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Quota",
            )
            .violated(vec!["x".to_owned()]);
        let (_, body) = problem.body(&HeaderMap::new(), BodyStyle::Problem);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["status"], 429);
        assert_eq!(body["title"], "Quota");
        assert_eq!(body["detail"], "limit \"x\"");
        assert_eq!(body["violated-policies"][0], "x");
    }

    #[test]
    fn aws_gets_its_own_body() {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "…").aws("Too Many Requests");
        let (media, body) = problem.body(&HeaderMap::new(), BodyStyle::Aws);
        assert_eq!(media, "application/json");
        assert_eq!(body, "{\"message\":\"Too Many Requests\"}");
    }

    proptest! {
        #[test]
        fn no_accept_field_makes_the_choice_panic(accept in "[ -~]{0,60}|(text/plain|\\*/\\*|;q=[0-9.]{0,12}|,){0,9}") {
            let mut request = HeaderMap::new();
            request.insert(ACCEPT, accept.parse().unwrap());
            let _ = accepted(&request);
        }
    }
}

//! What an answer says of its limits, and what a refused client reads.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{Decision, Denial, Source, Verdict, Wait};

use super::fields::{
    FieldDialect, Standing, nearest_of, retry_after_seconds, window_seconds, write_ietf,
    write_retry_after, write_standings,
};
use super::head::RequestHead;
use super::problem::{BodyStyle, Problem};
use super::rule::Rule;
use super::rules::{NO_STORE, Rules, Ruling, Undecided};
use crate::Mode;

/// How answers tell of limits.
#[derive(Clone, Default)]
pub struct Answers {
    dialect: FieldDialect,
    style: BodyStyle,
    tells_shadow: bool,
    grpc_code: GrpcCode,
    custom: Option<Arc<Custom>>,
}

type Custom =
    dyn Fn(RequestHead<'_>, Refusal<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync;

/// Why a request does not pass.
#[derive(Clone, Copy, Debug)]
pub enum Refusal<'a> {
    /// A limit is reached.
    Denied(&'a Ruling),
    /// The limits gave no decision: the request is malformed, or a limit is.
    Undecided(&'a Undecided),
}

/// The status that a limited gRPC call ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrpcCode {
    /// 8, `RESOURCE_EXHAUSTED`: back off.
    #[default]
    ResourceExhausted,
    /// 14, `UNAVAILABLE`: many clients retry at once.
    Unavailable,
}

impl Answers {
    /// Which fields tell of limits. Default: [`FieldDialect::Ietf`].
    #[must_use]
    pub const fn fields(mut self, dialect: FieldDialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Whose bodies refusals have. Default: [`BodyStyle::Problem`].
    #[must_use]
    pub const fn bodies(mut self, style: BodyStyle) -> Self {
        self.style = style;
        self
    }

    /// Whether the fields tell of limits in shadow too. Default: no, since a well-behaved client
    /// would obey what is not in force.
    #[must_use]
    pub const fn tell_shadow(mut self, tells: bool) -> Self {
        self.tells_shadow = tells;
        self
    }

    /// How a limited gRPC call ends, under the feature `grpc`. Default: `RESOURCE_EXHAUSTED`.
    #[must_use]
    pub const fn grpc_code(mut self, code: GrpcCode) -> Self {
        self.grpc_code = code;
        self
    }

    /// Lets `change` have the last word on every refusal: it gets the usual answer, fields
    /// included, and returns the one that is sent.
    #[must_use]
    pub fn refuse_with(
        mut self,
        change: impl Fn(RequestHead<'_>, Refusal<'_>, Response<Bytes>) -> Response<Bytes>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.custom = Some(Arc::new(change));
        self
    }

    /// Adds the fields that tell the client about its limits, nearest first.
    pub fn write_fields(&self, rules: &Rules, ruling: &Ruling, headers: &mut HeaderMap) {
        if self.dialect == FieldDialect::None {
            return;
        }
        let mut shown: SmallVec<[(&Rule, &Decision); 4]> = ruling
            .members()
            .map(|(place, member)| (&rules[place], member))
            .filter(|(rule, member)| {
                !member.shadow || (self.tells_shadow && rule.limiter.mode() != Mode::Off)
            })
            .filter(|(_, member)| !is_blind(member))
            .collect();
        // Those that refused come first, the longest wait before the others.
        shown.sort_by_key(|(_, member)| {
            (
                member.is_within_limit(),
                std::cmp::Reverse(member.retry_after),
                member.remaining,
            )
        });
        let standings: SmallVec<[Standing<'_>; 4]> = shown
            .iter()
            .map(|(rule, member)| Standing {
                name: &rule.quoted,
                quota: member.limit,
                window: window_seconds(&rule.limiter.policy()),
                remaining: member.remaining,
                reset_after: member.reset_after,
            })
            .collect();
        if self.dialect == FieldDialect::Ietf {
            let kept = |standings: &[Standing<'_>]| rules.policy_field().of(standings);
            write_ietf(headers, nearest_of(&standings), kept);
        } else {
            write_standings(headers, self.dialect, &standings, ruling.at());
        }
    }

    /// The answer to a request that does not pass.
    ///
    /// 429 with `Retry-After` where a limit is reached, or 503 where it has no room for another
    /// key or its store gives no answer; 400 for a request that has a part of a key twice, or lacks one that it must have; 503
    /// for want of a decision. Under the feature `grpc` a gRPC call gets its status in the head
    /// of an answer without a body, as gRPC clients expect it.
    #[must_use]
    pub fn refuse(
        &self,
        rules: &Rules,
        refusal: Refusal<'_>,
        head: RequestHead<'_>,
    ) -> Response<Bytes> {
        let problem = problem_of(rules, refusal);
        let mut response = self.respond(&problem, refusal, head);
        if let Refusal::Denied(ruling) = refusal {
            self.write_fields(rules, ruling, response.headers_mut());
        }
        match &self.custom {
            Some(change) => change(head, refusal, response),
            None => response,
        }
    }

    fn respond(
        &self,
        problem: &Problem,
        refusal: Refusal<'_>,
        head: RequestHead<'_>,
    ) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if super::grpc::is_call(head.headers()) {
            return super::grpc::refuse(problem, refusal, self.grpc_code);
        }
        let mut response = problem.respond(head.headers(), self.style, |body| body);
        if let Some(decision) = refusal.decision() {
            write_retry_after(response.headers_mut(), decision.retry_after);
        }
        response
    }
}

impl Refusal<'_> {
    /// The decision, where there was one.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Denied(ruling) => ruling.decision(),
            Self::Undecided(_) => None,
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers")
            .field("dialect", &self.dialect)
            .field("style", &self.style)
            .field("tells_shadow", &self.tells_shadow)
            .field("grpc_code", &self.grpc_code)
            .finish_non_exhaustive()
    }
}

/// Whether a member decided without knowing anything: then there is nothing to tell.
fn is_blind(member: &Decision) -> bool {
    member.source == Source::Fallback
        && (member.verdict == NO_STORE || (member.is_allowed() && member.reset_after == Wait::ZERO))
}

fn problem_of(rules: &Rules, refusal: Refusal<'_>) -> Problem {
    match refusal {
        Refusal::Denied(ruling) => denial(rules, ruling),
        Refusal::Undecided(Undecided::Part(fault)) => {
            Problem::new(StatusCode::BAD_REQUEST, fault.to_string())
        }
        Refusal::Undecided(Undecided::Operation(_) | Undecided::Shared(_)) => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the limits of this route gave no decision",
        ),
    }
}

/// What a refused client reads.
///
/// Source: draft-ietf-httpapi-ratelimit-headers-10, section 5.
fn denial(rules: &Rules, ruling: &Ruling) -> Problem {
    let violated: Vec<String> = ruling
        .members()
        .filter(|(_, member)| !member.is_allowed())
        .map(|(place, _)| rules[place].limiter.name().to_owned())
        .collect();
    let retry_after = ruling
        .decision()
        .map_or(Wait::NEVER, |decision| decision.retry_after);
    let wait = match retry_after_seconds(retry_after) {
        None => "waiting does not help".to_owned(),
        Some(1) => "try again in 1 second".to_owned(),
        Some(seconds) => format!("try again in {seconds} seconds"),
    };
    let names = violated.join(", ");
    if ruling.lacks_store() {
        let detail = format!("{names}: the store of the limit gives no answer; {wait}");
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .typed(
                TEMPORARY,
                "Request cannot be satisfied due to temporary server capacity constraints",
            )
            .violated(violated);
    }
    let full = Verdict::Deny(Denial::TableFull);
    let is_full = ruling
        .decision()
        .is_some_and(|decision| decision.verdict == full);
    if is_full || ruling.sheds() {
        let detail = format!("{names}: too many clients at once; {wait}");
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .typed(
                TEMPORARY,
                "Request cannot be satisfied due to temporary server capacity constraints",
            )
            .violated(violated);
    }
    let problem = Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        format!("over the limit {names}; {wait}"),
    )
    .typed(
        QUOTA,
        "Request cannot be satisfied as assigned quota has been exceeded",
    )
    .aws("Too Many Requests")
    .violated(violated);
    if retry_after.is_never() {
        problem.never()
    } else {
        problem
    }
}

const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const TEMPORARY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

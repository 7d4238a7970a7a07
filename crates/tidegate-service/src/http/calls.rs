//! Calls on limits: what was asked in JSON, decided, and answered.

use http::StatusCode;
use http::header::HeaderMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate::http::{
    FieldDialect, Problem, Standing, quoted_name, window_seconds, write_retry_after,
    write_standings,
};
use tidegate::{
    Decision, Demand, Key, LeaseId, Micros, Operation, OperationError, Policy, Reply, Timestamp,
};

use super::shapes::{
    Acquire, Acquired, Attempt, Batch, Cancel, Decided, DecisionShape, Forgotten, Holder, KeyShape,
    LeaseShape, MAX_UNITS, MAX_WAIT, Released, ReservationShape, Reserve, Reserved, Returned,
    Settle, Take,
};
use crate::served::{Served, ServedLimit};

/// The most calls of a batch.
const MAX_CALLS: usize = 100;

/// An answer: status, fields beside the media type, JSON.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub json: Vec<u8>,
}

/// An answer, or what is wrong with the call.
pub(crate) type Answered = Result<Answer, Problem>;

impl Answer {
    fn new(status: StatusCode, body: &impl Serialize) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            json: serde_json::to_vec(body).expect("texts and numbers are always JSON"),
        }
    }

    /// Adds what the fields of an answer tell of a decision.
    fn telling(mut self, limit: &ServedLimit, decision: &Decision) -> Self {
        let name = quoted_name(limit.named().name());
        let standing = Standing {
            name: &name,
            quota: decision.limit,
            window: window_seconds(&limit.named().limiter().policy()),
            remaining: decision.remaining,
            reset_after: decision.reset_after,
        };
        write_standings(
            &mut self.headers,
            FieldDialect::Ietf,
            &[standing],
            decision.at,
        );
        if !decision.is_allowed() {
            write_retry_after(&mut self.headers, decision.retry_after);
        }
        self
    }
}

fn status_of(allowed: bool) -> StatusCode {
    if allowed {
        StatusCode::OK
    } else {
        StatusCode::TOO_MANY_REQUESTS
    }
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// A body as what it should be.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| bad(format!("the body is not as it should be: {error}")))
}

fn no_time() -> Problem {
    bad("`at_us` is at most 4503599627370496")
}

fn units(what: &str, units: u32) -> Result<u32, Problem> {
    if units > MAX_UNITS {
        return Err(bad(format!("`{what}` is at most {MAX_UNITS}")));
    }
    Ok(units)
}

fn limit<'s>(served: &'s Served, name: &str) -> Result<&'s ServedLimit, Problem> {
    served.get(name.as_bytes()).ok_or_else(|| {
        let known = served.names().join(", ");
        let detail = format!("there is no limit `{name}`; there are: {known}");
        Problem::new(StatusCode::NOT_FOUND, detail)
    })
}

fn key(shape: Option<&KeyShape>) -> Result<Key, Problem> {
    KeyShape::key(shape).ok_or_else(|| bad("a key has at most 16 parts"))
}

/// The operation has no meaning on the limit.
fn unfit(limit: &ServedLimit) -> impl Fn(OperationError) -> Problem {
    let name = limit.named().name().to_owned();
    move |error| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("limit `{name}`: {error}"),
        )
    }
}

fn decided(limit: &ServedLimit, decision: &Decision) -> Answer {
    let body = DecisionShape::new(limit.named().name(), decision);
    Answer::new(status_of(decision.is_allowed()), &body).telling(limit, decision)
}

pub(crate) fn take(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Take = read(body)?;
    let limit = limit(served, &call.limit)?;
    let key = key(call.key.as_ref())?;
    let cost = call.cost.map(|cost| units("cost", cost)).transpose()?;
    let decision = limit.take(&key, cost, now).map_err(unfit(limit))?;
    Ok(decided(limit, &decision))
}

pub(crate) fn peek(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Take = read(body)?;
    let limit = limit(served, &call.limit)?;
    let key = key(call.key.as_ref())?;
    let cost = units("cost", call.cost.unwrap_or(limit.named().config().cost))?;
    let demand = match limit.named().limiter().policy() {
        Policy::Concurrency(_) => Demand::Acquire {
            lease: LeaseId(0),
            weight: cost,
        },
        Policy::Lockout(_) => Demand::Attempt { seed: 0 },
        _ => Demand::Take { cost },
    };
    let reply = limit.apply(&key, &Operation::Peek(demand), now);
    let reply = reply.map_err(unfit(limit))?;
    let decision = reply.decision().expect("a peek is answered by a decision");
    Ok(decided(limit, decision))
}

pub(crate) fn reserve(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Reserve = read(body)?;
    let limit = limit(served, &call.limit)?;
    let key = key(call.key.as_ref())?;
    let cost = units("cost", call.cost.unwrap_or(limit.named().config().cost))?;
    if call.max_wait_ms > MAX_WAIT {
        return Err(bad(format!(
            "`max_wait_ms` is at most {MAX_WAIT}, ten years"
        )));
    }
    let max_wait = Micros(call.max_wait_ms * 1_000);
    let reply = limit.apply(&key, &Operation::Reserve { cost, max_wait }, now);
    let Reply::Reserved(decision, reservation) = reply.map_err(unfit(limit))? else {
        unreachable!("a reservation is answered as such");
    };
    let body = Reserved {
        decision: DecisionShape::new(limit.named().name(), &decision),
        reservation: reservation.map(ReservationShape::from),
    };
    Ok(Answer::new(status_of(decision.is_allowed()), &body).telling(limit, &decision))
}

pub(crate) fn settle(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Settle = read(body)?;
    let limit = limit(served, &call.limit)?;
    let settle = Operation::Settle {
        reservation: call.reservation.read().ok_or_else(no_time)?,
        actual: units("actual", call.actual)?,
    };
    returned(limit, &key(call.key.as_ref())?, &settle, now)
}

pub(crate) fn cancel(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Cancel = read(body)?;
    let limit = limit(served, &call.limit)?;
    let reservation = call.reservation.read().ok_or_else(no_time)?;
    let cancel = Operation::Cancel { reservation };
    returned(limit, &key(call.key.as_ref())?, &cancel, now)
}

pub(crate) fn refund(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Take = read(body)?;
    let limit = limit(served, &call.limit)?;
    let cost = units("cost", call.cost.unwrap_or(limit.named().config().cost))?;
    returned(
        limit,
        &key(call.key.as_ref())?,
        &Operation::Refund { cost },
        now,
    )
}

fn returned(limit: &ServedLimit, key: &Key, operation: &Operation, now: Timestamp) -> Answered {
    let reply = limit.apply(key, operation, now).map_err(unfit(limit))?;
    let Reply::Refunded(returned) = reply else {
        unreachable!("what gives units back is answered by how many");
    };
    Ok(Answer::new(StatusCode::OK, &Returned { returned }))
}

pub(crate) fn acquire(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Acquire = read(body)?;
    let limit = limit(served, &call.limit)?;
    let weight = units("weight", call.weight.unwrap_or(1))?;
    let acquired = limit.acquire(&key(call.key.as_ref())?, weight, now);
    let (decision, grant) = acquired.map_err(unfit(limit))?;
    let body = Acquired {
        decision: DecisionShape::new(limit.named().name(), &decision),
        lease: grant.as_ref().map(|grant| LeaseShape::new(grant, now)),
    };
    let status = match grant {
        Some(_) => StatusCode::CREATED,
        None => StatusCode::TOO_MANY_REQUESTS,
    };
    Ok(Answer::new(status, &body).telling(limit, &decision))
}

pub(crate) fn renew(served: &Served, lease: &str, body: &[u8], now: Timestamp) -> Answered {
    let call: Holder = read(body)?;
    let limit = limit(served, &call.limit)?;
    let (lease, key) = (lease_id(lease)?, key(call.key.as_ref())?);
    let renewed = limit
        .named()
        .renew(&key, lease, now)
        .map_err(unfit(limit))?;
    let grant = renewed.ok_or_else(|| {
        let detail = "the lease is lost: it has expired, or was given back";
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    Ok(Answer::new(StatusCode::OK, &LeaseShape::new(&grant, now)))
}

pub(crate) fn release(served: &Served, lease: &str, call: &Holder, now: Timestamp) -> Answered {
    let limit = limit(served, &call.limit)?;
    let (lease, key) = (lease_id(lease)?, key(call.key.as_ref())?);
    let released = limit.named().release(&key, lease, now);
    let was_live = released.map_err(unfit(limit))?;
    Ok(Answer::new(StatusCode::OK, &Released { was_live }))
}

/// A lease's name in a path.
fn lease_id(text: &str) -> Result<LeaseId, Problem> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let read = u128::from_str_radix(text, 16).ok().filter(|_| digits);
    read.map(LeaseId)
        .ok_or_else(|| bad("a lease is named by the 32 hexadecimal digits of its `id`"))
}

pub(crate) fn attempt(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let call: Attempt = read(body)?;
    let limit = limit(served, &call.limit)?;
    let key = key(call.key.as_ref())?;
    if call.succeeded {
        limit
            .apply(&key, &Operation::Success, now)
            .map_err(unfit(limit))?;
        return Ok(Answer::new(StatusCode::OK, &Forgotten { forgotten: true }));
    }
    let decision = limit.attempt(&key, now).map_err(unfit(limit))?;
    Ok(decided(limit, &decision))
}

pub(crate) fn batch(served: &Served, body: &[u8], now: Timestamp) -> Answered {
    let batch: Batch = read(body)?;
    if !(1..=MAX_CALLS).contains(&batch.calls.len()) {
        return Err(bad(format!("a batch has 1 to {MAX_CALLS} calls")));
    }
    // Everything is looked at before anything is charged.
    let mut calls = Vec::with_capacity(batch.calls.len());
    for call in &batch.calls {
        let limit = limit(served, &call.limit)?;
        let cost = units("cost", call.cost.unwrap_or(limit.named().config().cost))?;
        limit.named().check_takes().map_err(unfit(limit))?;
        calls.push((limit, key(call.key.as_ref())?, cost));
    }
    let decisions = if batch.all_or_nothing {
        let asked: Vec<_> = calls
            .iter()
            .map(|(limit, key, cost)| (*limit, key, *cost))
            .collect();
        let decided = served.all_of(&asked, now);
        decided
            .map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?
    } else {
        let each = calls
            .iter()
            .map(|(limit, key, cost)| limit.take(key, Some(*cost), now).map_err(unfit(limit)));
        each.collect::<Result<Vec<_>, _>>()?
    };
    let allowed = decisions.iter().all(Decision::is_allowed);
    let told = calls.iter().zip(&decisions);
    let told =
        told.map(|((limit, _, _), decision)| DecisionShape::new(limit.named().name(), decision));
    let body = Decided {
        allowed,
        decisions: told.collect(),
    };
    let status = status_of(allowed || !batch.all_or_nothing);
    let mut answer = Answer::new(status, &body);
    if let Some(worst) = decisions
        .iter()
        .filter(|decision| status != StatusCode::OK && !decision.is_allowed())
        .map(|decision| decision.retry_after)
        .max()
    {
        write_retry_after(&mut answer.headers, worst);
    }
    Ok(answer)
}

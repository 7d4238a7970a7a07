//! What clients read of their limits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tidegate::http::{Answers, BodyStyle, FieldDialect, KeySource, Refusal, Rule};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Micros, Mode, Rate, TokenBucket, WhenFull};
use tower::Layer as _;

use crate::support::{at_most, clock, from, get, ok, per_minute, rule, send};

#[tokio::test]
async fn an_answer_tells_of_its_limits_nearest_first() {
    let clock = clock();
    let rules = [
        Rule::new(per_minute("stage", 200, &clock)).unwrap(),
        Rule::new(per_minute("user", 100, &clock)).unwrap(),
    ];
    let service = RateLimitLayer::new(rules).layer(ok());
    let answer = send(&service, get("/")).await;
    assert_eq!(
        answer.field("ratelimit-policy"),
        "\"user\";q=100;w=60, \"stage\";q=200;w=60"
    );
    assert_eq!(
        answer.field("ratelimit"),
        "\"user\";r=99;t=60, \"stage\";r=199;t=60"
    );
    assert!(!answer.headers.contains_key("retry-after"));
    assert_eq!(answer.body, "ok");
}

#[tokio::test]
async fn the_reset_of_a_window_is_its_end_refused_or_not() {
    let clock = clock();
    let rule = Rule::new(per_minute("user", 2, &clock)).unwrap();
    let answers = Answers::default().fields(FieldDialect::Draft03);
    let service = RateLimitLayer::new([rule]).answers(answers).layer(ok());
    for (status, remaining, reset) in [(200, "1", "60"), (200, "0", "55"), (429, "0", "50")] {
        let answer = send(&service, get("/")).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.field("x-ratelimit-limit"), "2");
        assert_eq!(answer.field("x-ratelimit-remaining"), remaining);
        assert_eq!(answer.field("x-ratelimit-reset"), reset);
        clock.advance(Duration::from_secs(5));
    }
}

#[tokio::test]
async fn retry_after_is_a_whole_number_that_is_enough() {
    for (interval, seconds) in [(1, 1), (106, 1), (999, 1), (1_000, 1), (1_001, 2)] {
        let clock = clock();
        let bucket = TokenBucket::new(Rate::new(1, Micros::from_millis(interval).0).unwrap(), 1);
        let limiter = Limiter::builder(bucket.unwrap()).clock(clock.clone());
        let service = RateLimitLayer::new([rule(limiter)]).layer(ok());
        assert_eq!(send(&service, get("/")).await.status, StatusCode::OK);
        let answer = send(&service, get("/")).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(
            answer.field("retry-after"),
            seconds.to_string(),
            "{interval} ms"
        );
        clock.advance(Duration::from_secs(seconds));
        assert_eq!(send(&service, get("/")).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_refused_client_reads_which_limits_refused_it() {
    let rules = [
        rule(at_most("wide", 9)),
        rule(at_most("narrow", 0)),
        rule(at_most("small", 0)),
    ];
    let service = RateLimitLayer::new(rules).layer(ok());
    let answer = send(&service, get("/")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.field("content-type"), "application/problem+json");
    let problem = answer.json();
    assert_eq!(
        problem["violated-policies"],
        serde_json::json!(["narrow", "small"])
    );
    assert_eq!(problem["retry"], "never");
}

#[tokio::test]
async fn a_full_table_that_takes_no_new_keys_sheds() {
    let limiter = at_most("client", 9)
        .max_keys(1)
        .when_full(WhenFull::DenyNew);
    let rule = rule(limiter).key([KeySource::client_address()]);
    let service = RateLimitLayer::new([rule]).layer(ok());
    let mut last = None;
    for host in 0..50 {
        let answer = send(&service, from(&format!("192.0.2.{host}"), &[])).await;
        last = Some(answer.status);
        if answer.status == StatusCode::SERVICE_UNAVAILABLE {
            assert!(
                answer.json()["detail"]
                    .as_str()
                    .unwrap()
                    .contains("too many clients")
            );
            return;
        }
    }
    panic!("a table of one key took 50: {last:?}");
}

#[tokio::test]
async fn a_limit_in_shadow_decides_and_lets_pass_and_is_told_only_on_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let layer = |tells| {
        let seen = Arc::clone(&seen);
        RateLimitLayer::new([rule(at_most("watched", 1).mode(Mode::Shadow))])
            .answers(Answers::default().tell_shadow(tells))
            .observe(move |_, rules, decided| {
                for (place, member) in decided.unwrap().members() {
                    let name = rules[place].limiter().name().to_owned();
                    seen.lock().unwrap().push((name, member.is_within_limit()));
                }
            })
            .layer(ok())
    };
    let quiet = layer(false);
    for _ in 0..2 {
        let answer = send(&quiet, get("/")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(!answer.headers.contains_key("ratelimit"));
    }
    let watched = || "watched".to_owned();
    assert_eq!(
        *seen.lock().unwrap(),
        [(watched(), true), (watched(), false)]
    );
    let telling = layer(true);
    let answer = send(&telling, get("/")).await;
    assert!(answer.field("ratelimit").starts_with("\"watched\";r=0;t="));
}

#[tokio::test]
async fn a_limit_that_is_off_does_and_says_nothing() {
    let off = || rule(at_most("off", 0).mode(Mode::Off));
    let answers = Answers::default().tell_shadow(true);
    let service = RateLimitLayer::new([off()]).answers(answers).layer(ok());
    let answer = send(&service, get("/")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.headers.contains_key("ratelimit"));
}

#[tokio::test]
async fn a_refusal_may_have_another_body_and_a_program_the_last_word() {
    let aws = Answers::default()
        .bodies(BodyStyle::Aws)
        .fields(FieldDialect::None);
    let closed = || rule(at_most("closed", 0));
    let service = RateLimitLayer::new([closed()]).answers(aws).layer(ok());
    let answer = send(&service, get("/")).await;
    assert_eq!(answer.body, "{\"message\":\"Too Many Requests\"}");
    assert!(!answer.headers.contains_key("ratelimit"));
    let own = Answers::default().refuse_with(|head, refusal, usual| {
        assert!(matches!(refusal, Refusal::Denied(_)));
        let mut response = Response::new(Bytes::from(format!("not {}", head.path())));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        *response.headers_mut() = usual.headers().clone();
        response
    });
    let service = RateLimitLayer::new([closed()]).answers(own).layer(ok());
    let answer = send(&service, get("/tea")).await;
    assert_eq!(answer.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(answer.body, "not /tea");
    assert_eq!(answer.field("ratelimit-policy"), "\"closed\";q=0;w=1");
}

#[test]
fn a_limit_that_counts_no_requests_makes_no_rule() {
    let error = Rule::new(crate::support::at_once("jobs", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limit `jobs` is a concurrency limit, which counts no requests; \
         put it into a `ConcurrencyLayer`"
    );
}

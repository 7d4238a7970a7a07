//! Rules over requests of which some are shared: limits in memory first, then one step at a real
//! server, and all are charged or none.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use proptest::prelude::*;
use tidegate::http::{After, Answers, KeySource, Refusal, RequestHead, Rule, Rules, Undecided};
use tidegate::shared::FailureMode;
use tidegate::tower::RateLimitLayer;
use tidegate::valkey::{Client, ClientOptions, KeySpace, ValkeyStore};
use tidegate::{
    Align, Clock as _, FixedWindow, Limiter, ManualClock, Micros, Mode, Policy, Rate,
    SharedLimiter, SlidingLog, Timestamp, TokenBucket,
};
use tidegate_core::{InterpolatedWindow, IntervalBucket, LeakyBucket, StrictWindow};
use tidegate_testkit::{Flavor, Server};
use tower::{Layer as _, ServiceExt as _};

const LONG: Duration = Duration::from_secs(20);

async fn store(server: &Server) -> ValkeyStore {
    let options = ClientOptions::from_url(&server.url()).unwrap();
    let client = Client::connect(options.deadline(LONG)).unwrap();
    client.ready(LONG).await.unwrap();
    ValkeyStore::new(client, KeySpace::default())
}

/// A store where nobody listens.
fn nowhere() -> ValkeyStore {
    let options = ClientOptions::from_url("redis://127.0.0.1:1").unwrap();
    ValkeyStore::new(Client::connect(options).unwrap(), KeySpace::default())
}

fn hourly(limit: u32) -> Policy {
    SlidingLog::new(limit, Micros::from_secs(3600))
        .unwrap()
        .into()
}

fn local(name: &str, policy: Policy) -> Limiter {
    Limiter::builder(policy).name(name).build()
}

fn rule(limiter: impl Into<tidegate::http::RuleLimiter>) -> Rule {
    Rule::new(limiter).unwrap().key([KeySource::query("user")])
}

fn parts(target: &str) -> http::request::Parts {
    Request::get(target).body(()).unwrap().into_parts().0
}

#[tokio::test]
async fn what_is_shared_is_asked_in_one_step_after_what_is_in_memory() {
    let server = Server::start(Flavor::Valkey9);
    let store = store(&server).await;
    let (stage, other) = (local("stage", hourly(10)), local("other", hourly(7)));
    let shared = |name: &str, limit| SharedLimiter::new(store.clone(), name, hourly(limit));
    let (user, plan) = (shared("user", 3), shared("plan", 5));
    // The order of the rules is mixed on purpose: answers go by their positions.
    let rules = Rules::from_iter([
        rule(user.clone()),
        rule(stage.clone()),
        rule(plan.clone()),
        rule(other.clone()),
    ]);
    let head = parts("/?user=7");
    let head = RequestHead::new(&head);
    let mut steps = store.client().stats().calls;
    for n in 1..=5 {
        let ruling = rules.decide_shared(head, stage.now()).await.unwrap();
        assert_eq!(ruling.is_allowed(), n <= 3, "{n}");
        let places: Vec<usize> = ruling.members().map(|(place, _)| place).collect();
        assert_eq!(places, [0, 1, 2, 3]);
        let calls = store.client().stats().calls;
        // A remembered denial takes no step at all.
        assert!(calls - steps <= 1, "{n}: {} steps", calls - steps);
        steps = calls;
        let said: Vec<bool> = ruling
            .members()
            .map(|(_, said)| said.is_allowed())
            .collect();
        assert_eq!(said, [n <= 3, true, true, true]);
    }
    let used = |limiter: &Limiter| limiter.key("7").state().used;
    assert_eq!(
        (used(&stage), used(&other)),
        (3, 3),
        "denied calls cost nothing"
    );
    assert_eq!(plan.key("7").state().await.unwrap().used, 3);

    // What memory refuses never reaches the store.
    let steps = store.client().stats().calls;
    let closed = Rules::from_iter([rule(local("closed", hourly(0))), rule(plan.clone())]);
    let ruling = closed.decide_shared(head, stage.now()).await.unwrap();
    assert!(!ruling.is_allowed());
    assert_eq!(ruling.members().len(), 1);
    assert_eq!(store.client().stats().calls, steps);

    // Asked in a way that cannot wait, nothing is decided and nothing charged.
    let undecided = rules.decide(head, stage.now()).unwrap_err();
    assert_eq!(undecided, Undecided::Shared("user".into()));
    assert_eq!(used(&stage), 3);
}

/// Everything that a limit in memory can count by, but for the bucket below.
fn policies() -> Vec<Policy> {
    let second = Micros::from_secs(1);
    let rate = Rate::new(3, 1_000_003).unwrap();
    vec![
        TokenBucket::new(rate, 7).unwrap().into(),
        LeakyBucket::new(rate, 5, 2, None).unwrap().into(),
        FixedWindow::new(7, second, Align::Epoch).unwrap().into(),
        FixedWindow::new(7, second, Align::FirstUse).unwrap().into(),
        SlidingLog::new(7, second).unwrap().into(),
        StrictWindow::new(7, second, 10).unwrap().into(),
        InterpolatedWindow::new(7, second).unwrap().into(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A twin of each limit sees only the calls that pass; those that a store refuses leave no trace
    /// that any later call could tell.
    #[test]
    fn what_a_store_refuses_leaves_no_trace_in_memory(
        steps in prop::collection::vec((0_u64..900_000, 1_u32..4, any::<bool>()), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let refusing = SharedLimiter::builder(nowhere(), "refuses", hourly(1))
                .failure_mode(FailureMode::Deny)
                .build();
            for policy in policies() {
                for mode in [Mode::Enforce, Mode::Shadow, Mode::Percent(50), Mode::Off] {
                    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(9_000_000_000).unwrap()));
                    let limiter = || {
                        let clock = Arc::clone(&clock) as Arc<dyn tidegate::Clock>;
                        Limiter::builder(policy.clone()).hash_seed((1, 2)).mode(mode).clock(clock).build()
                    };
                    let (seen, twin) = (limiter(), limiter());
                    for (pause, cost, passes) in &steps {
                        clock.advance(Duration::from_micros(*pause));
                        let now = clock.now();
                        let refuses = Rule::new(refusing.clone()).unwrap();
                        let rules = |limiter: &Limiter, with: Option<Rule>| {
                            let rule = rule(limiter.clone()).cost(*cost);
                            Rules::from_iter(std::iter::once(rule).chain(with))
                        };
                        let parts = parts("/?user=7");
                        let head = RequestHead::new(&parts);
                        if *passes {
                            let here = rules(&seen, None).decide(head, now).unwrap();
                            let there = rules(&twin, None).decide(head, now).unwrap();
                            let said = |ruling: &tidegate::http::Ruling| ruling.decision().copied();
                            assert_eq!(said(&here), said(&there), "{policy:?} {mode:?}");
                        } else {
                            let refused = rules(&seen, Some(refuses));
                            let ruling = refused.decide_shared(head, now).await.unwrap();
                            assert!(!ruling.is_allowed());
                        }
                    }
                }
            }
        });
    }
}

#[tokio::test]
async fn an_interval_bucket_gets_its_tokens_back_and_keeps_the_grid_that_began() {
    let rate = Rate::new(3, 1_000_003).unwrap();
    let bucket = local("bucket", IntervalBucket::new(rate, 7).unwrap().into());
    let refusing = SharedLimiter::builder(nowhere(), "refuses", hourly(1))
        .failure_mode(FailureMode::Deny)
        .build();
    let rules = Rules::from_iter([rule(bucket.clone()).cost(5), rule(refusing)]);
    let parts = parts("/?user=7");
    for _ in 0..5 {
        let decided = rules.decide_shared(RequestHead::new(&parts), bucket.now());
        assert!(!decided.await.unwrap().is_allowed());
        let state = bucket.key("7").state();
        assert_eq!((state.used, state.remaining), (0, 7));
    }
}

#[tokio::test]
async fn a_layer_over_shared_and_local_limits_lets_exactly_the_limit_through() {
    let server = Server::start(Flavor::Valkey9);
    // Two processes, each with a layer of its own and a stage that would allow more.
    let mut tasks = tokio::task::JoinSet::new();
    let mut stages = Vec::new();
    for _ in 0..2 {
        let stage = local("stage", hourly(1_000));
        let user = SharedLimiter::new(store(&server).await, "user", hourly(50));
        let layer = RateLimitLayer::new([rule(stage.clone()), rule(user)]);
        stages.push(stage);
        for _ in 0..200 {
            let service = layer.layer(tower::service_fn(|_: Request<Empty<Bytes>>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            }));
            tasks.spawn(async move {
                let request = Request::get("/?user=7").body(Empty::new()).unwrap();
                service.oneshot(request).await.unwrap().status()
            });
        }
    }
    let statuses = tasks.join_all().await;
    let count = |status| statuses.iter().filter(|seen| **seen == status).count();
    assert_eq!(count(StatusCode::OK), 50);
    assert_eq!(count(StatusCode::TOO_MANY_REQUESTS), 350);
    let used = |stage: &Limiter| stage.key("7").state().used;
    assert_eq!(stages.iter().map(used).sum::<u32>(), 50);
}

#[tokio::test]
async fn without_an_answer_each_failure_mode_does_as_it_says_and_says_so() {
    for (mode, passing, status) in [
        (FailureMode::Allow, 10, None),
        (FailureMode::Deny, 0, Some(StatusCode::SERVICE_UNAVAILABLE)),
        (FailureMode::HALF, 3, Some(StatusCode::TOO_MANY_REQUESTS)),
    ] {
        let limiter = SharedLimiter::builder(nowhere(), "user", hourly(6))
            .failure_mode(mode)
            .build();
        let rules = Rules::from_iter([rule(limiter)]);
        let parts = parts("/?user=7");
        let head = RequestHead::new(&parts);
        let now = Timestamp::from_micros(1).unwrap();
        let mut passed = 0;
        for _ in 0..10 {
            let ruling = rules.decide_shared(head, now).await.unwrap();
            assert!(ruling.is_fallback());
            let mut fields = http::HeaderMap::new();
            Answers::default().write_fields(&rules, &ruling, &mut fields);
            // Who knows nothing tells nothing.
            assert_eq!(
                fields.contains_key("ratelimit"),
                mode == FailureMode::HALF,
                "{mode:?}"
            );
            if ruling.is_allowed() {
                passed += 1;
                continue;
            }
            let answer = Answers::default().refuse(&rules, Refusal::Denied(&ruling), head);
            assert_eq!(Some(answer.status()), status, "{mode:?}");
            assert!(answer.headers().contains_key("retry-after"));
            let body = String::from_utf8_lossy(answer.body());
            let speaks_of_store = body.contains("store of the limit gives no answer");
            assert_eq!(speaks_of_store, mode == FailureMode::Deny, "{body}");
        }
        assert_eq!(passed, passing, "{mode:?}");
    }
}

#[tokio::test]
async fn a_refund_reaches_the_store() {
    let server = Server::start(Flavor::Valkey9);
    let user = SharedLimiter::new(store(&server).await, "user", hourly(5));
    let layer = RateLimitLayer::new([rule(user.clone()).after(|answer| {
        if answer.status.is_server_error() {
            After::Refund
        } else {
            After::Keep
        }
    })]);
    for (status, used) in [(200, 1), (500, 1), (503, 1), (200, 2)] {
        let service = layer.layer(tower::service_fn(
            move |_: Request<Empty<Bytes>>| async move {
                let response = Response::builder().status(status);
                Ok::<_, Infallible>(response.body(Full::new(Bytes::new())).unwrap())
            },
        ));
        let request = Request::get("/?user=7").body(Empty::new()).unwrap();
        let answer = service.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status);
        drop(answer.into_body().collect().await);
        let begun = Instant::now();
        while user.key("7").state().await.unwrap().used != used {
            assert!(begun.elapsed() < LONG, "{status}: not {used} used");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

//! Units that a process takes in advance, through the library's own face.

use std::time::Duration;

use tidegate::shared::{LeaseTokens, LeaseTokensError, SharedLimiter};
use tidegate::valkey::{Client, ClientOptions, KeySpace, ValkeyStore};
use tidegate::{LeakyBucket, Micros, Mode, Rate, SlidingLog, Source};
use tidegate_testkit::{Flavor, Server};

const LONG: Duration = Duration::from_secs(20);

async fn store(server: &Server) -> ValkeyStore {
    let options = ClientOptions::from_url(&server.url()).unwrap();
    let client = Client::connect(options.deadline(LONG)).unwrap();
    client.ready(LONG).await.unwrap();
    ValkeyStore::new(client, KeySpace::default())
}

fn limiter(store: ValkeyStore, limit: u32) -> SharedLimiter {
    let policy = SlidingLog::new(limit, Micros::from_secs(3600)).unwrap();
    let leases = LeaseTokens::new(200, Micros::from_secs(60)).unwrap();
    SharedLimiter::builder(store, "stage", policy)
        .build_with_leased_tokens(leases)
        .unwrap()
}

#[tokio::test]
async fn a_hot_key_is_spent_at_hand_and_what_is_left_goes_back() {
    let server = Server::start(Flavor::Valkey9);
    let limiter = limiter(store(&server).await, 1_000);
    let (mut passed, mut at_hand) = (0, 0);
    assert!(limiter.try_spend("bob", 1).is_none());
    for _ in 0..700 {
        let decision = limiter.try_take("bob", 1).await.unwrap();
        passed += u32::from(decision.is_allowed());
        at_hand += u32::from(decision.source == Source::Leased);
    }
    assert_eq!(passed, 700);
    assert!(at_hand > 600, "{at_hand}");
    assert_eq!(u64::from(at_hand), limiter.stats().spent);
    limiter.return_tokens().await;
    assert_eq!(limiter.key("bob").state().await.unwrap().used, 700);
}

#[tokio::test]
async fn who_waits_spends_what_is_at_hand_and_a_limit_that_is_off_or_watched_spends_nothing() {
    let server = Server::start(Flavor::Valkey9);
    let limiter = limiter(store(&server).await, 1_000);
    for _ in 0..50 {
        limiter.try_take("bob", 1).await.unwrap();
    }
    let decision = limiter.until_ready("bob", 1).await.unwrap();
    assert_eq!(decision.source, Source::Leased);
    for mode in [Mode::Off, Mode::Shadow] {
        limiter.set_mode(mode);
        assert_eq!(limiter.try_spend("bob", 1), None);
        assert!(limiter.try_take("bob", 1).await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn a_paced_queue_is_refused() {
    let server = Server::start(Flavor::Valkey9);
    let queue = LeakyBucket::new(Rate::per_second(1).unwrap(), 5, 1, None).unwrap();
    let leases = LeaseTokens::new(10, LeaseTokens::MAX_AGE).unwrap();
    let built = SharedLimiter::builder(store(&server).await, "queue", queue)
        .build_with_leased_tokens(leases);
    assert!(matches!(
        built.unwrap_err(),
        LeaseTokensError::Unsupported { .. }
    ));
}

//! `examples/quickstart.yaml` as a reader runs it, under `wrk`.
//!
//! Calls are counted at the back end and by the load generator, never by our own metrics.
//! `cargo xtask test` installs `wrk`.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::{Running, counting_upstream, wrk};

/// The example, with its fixed addresses replaced.
fn quickstart(upstream: SocketAddr) -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/quickstart.yaml"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let changed = text
        .replace("listen: 127.0.0.1:8080", "listen: 127.0.0.1:0")
        .replace("listen: 127.0.0.1:9090", "listen: 127.0.0.1:0")
        .replace("http://127.0.0.1:9000", &format!("http://{upstream}"));
    assert_eq!(
        changed.matches("127.0.0.1:0").count(),
        2,
        "the example has other addresses now"
    );
    changed
}

#[test]
fn one_user_under_wrk_gets_a_hundred_in_a_minute_and_not_one_more() {
    let (upstream, _) = counting_upstream();
    let running = Running::start(&quickstart(upstream));
    let url = format!("http://{}/vips?user_id=7", running.gateway);
    let (allowed, refused, bare) = wrk(&url, 2, "");
    assert_eq!(allowed, 100);
    assert!(
        refused > 1_000,
        "only {refused} were refused: that was no load"
    );
    assert_eq!(bare, 0, "refusals without a usable Retry-After");
    // Another user is not concerned.
    assert_eq!(running.get("/vips?user_id=8").0, 200);
}

#[test]
fn many_users_under_wrk_get_the_burst_and_the_rate_of_the_route_counted_at_the_back_end() {
    let (upstream, reached) = counting_upstream();
    let running = Running::start(&quickstart(upstream));
    let url = format!("http://{}", running.gateway);
    let request = r#"
local user = 0
function request()
  user = user + 1
  return wrk.format("GET", "/orders/1?user_id=" .. user)
end
"#;
    let start = Instant::now();
    let (allowed, refused, bare) = wrk(&url, 3, request);
    let most = 200 + 100 * (start.elapsed().as_millis() as u64) / 1_000;
    let reached = reached.load(Ordering::SeqCst);
    assert!(
        reached <= most,
        "{reached} calls reached the back end, {most} may"
    );
    // wrk does not count the answers that are under way when it stops.
    assert!(
        allowed <= reached && reached <= allowed + 50,
        "{allowed} of {reached}"
    );
    assert!(reached >= 400, "only {reached} calls were let through");
    assert!(
        refused > 1_000,
        "only {refused} were refused: that was no load"
    );
    assert_eq!(bare, 0, "refusals without a usable Retry-After");
}

#[test]
fn who_waits_as_long_as_it_was_told_passes() {
    let (upstream, _) = counting_upstream();
    let running = Running::start(&quickstart(upstream));
    let refusal =
        (0..2_000).find_map(
            |user| match running.get(&format!("/orders/1?user_id={user}")) {
                (429, wait) => Some((user, wait)),
                _ => None,
            },
        );
    let (user, wait) = refusal.expect("two thousand calls are more than the burst");
    let wait = wait.expect("a refusal says when to come back");
    std::thread::sleep(Duration::from_secs(wait));
    assert_eq!(running.get(&format!("/orders/1?user_id={user}")).0, 200);
}

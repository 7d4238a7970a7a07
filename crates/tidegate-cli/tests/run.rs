//! `tidegate run` from outside: what it prints, how it takes signals and files, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Longer than anything here takes, short enough to notice.
const PATIENCE: Duration = Duration::from_secs(20);

/// The two layers of the quickstart, on free ports.
const TWO_LAYERS: &str = "
limits:
  stage:    { algorithm: { token_bucket: { rate: 100/s, capacity: 200 } }, key: [method_and_route] }
  per-user: { algorithm: { sliding_log: { limit: 100/1m } }, key: [query.user_id] }
gateway:
  listen: 127.0.0.1:0
  routes:
    - { match: GET /vips, limits: [stage, per-user], mock: { body: '{\"message\":\"Welcome to the club\"}' } }
admin: { listen: 127.0.0.1:0 }
";

/// One mock route with one limit.
fn one_route(capacity: u32, body: &str) -> String {
    format!(
        "
limits:
  some: {{ algorithm: {{ token_bucket: {{ rate: 1/h, capacity: {capacity} }} }} }}
gateway:
  listen: 127.0.0.1:0
  routes:
    - {{ match: GET /, limits: [some], mock: {{ body: '{body}' }} }}
"
    )
}

/// A running `tidegate run`, ended with the test.
struct Gateway {
    child: Child,
    file: PathBuf,
    _folder: tempfile::TempDir,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    log: Receiver<String>,
}

impl Gateway {
    fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    fn start_with(config: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.yaml");
        std::fs::write(&file, config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("run")
            .arg(&file)
            .args(arguments)
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, log) = std::sync::mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut next = |name: &str| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            let address = line
                .trim()
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(": http://"));
            address
                .unwrap_or_else(|| panic!("{line:?}"))
                .parse()
                .unwrap()
        };
        let address = next("gateway");
        let admin = config.contains("admin:").then(|| next("admin"));
        Self {
            child,
            file,
            _folder: folder,
            address,
            admin,
            log,
        }
    }

    fn get(&self, target: &str) -> Answer {
        get(self.address, target)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Waits for a line of the log that contains a text.
    #[track_caller]
    fn logs(&self, text: &str) -> String {
        let mut seen = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while let Ok(line) = self.log.recv_timeout(deadline - Instant::now()) {
            if line.contains(text) {
                return line;
            }
            seen.push(line);
        }
        panic!("no {text:?} in {seen:#?}");
    }

    /// Waits for the end and returns the exit code.
    fn ends(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().expect("an exit, not a signal");
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn get(address: SocketAddr, target: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// An upstream that answers each connection after a while, and tells of each request at once.
fn slow_upstream(pause: Duration) -> (SocketAddr, Receiver<()>) {
    let (asked, requests) = std::sync::mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let asked = asked.clone();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = asked.send(());
                std::thread::sleep(pause);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate");
            });
        }
    });
    (address, requests)
}

fn proxied(upstream: SocketAddr, drain: &str) -> String {
    format!(
        "
gateway:
  listen: 127.0.0.1:0
  timeouts: {{ drain: {drain} }}
  routes:
    - {{ match: 'ANY /{{path+}}', proxy: 'http://{upstream}' }}
"
    )
}

#[test]
fn a_store_that_gives_no_answer_is_no_reason_not_to_start_and_is_told_of() {
    // Nobody listens there.
    let shared = "
stores: { shared: { valkey: { url: \"redis://127.0.0.1:1\" } } }
limits:
  per-user: { algorithm: { sliding_log: { limit: 2/1m } }, store: shared, on_store_failure: deny }
gateway:
  listen: 127.0.0.1:0
  routes: [ { match: GET /, limits: [per-user], mock: { body: hello } } ]
admin: { listen: 127.0.0.1:0 }
";
    let gateway = Gateway::start(shared);
    gateway.logs("the store gives no answer");
    let refused = gateway.get("/");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("per-user"), "{}", refused.body);
    gateway.logs("source=\"fallback\"");
    let admin = gateway.admin.unwrap();
    let ready = get(admin, "/readyz");
    assert_eq!(ready.status, 503);
    assert!(
        ready.body.contains("`per-user` refuses all"),
        "{}",
        ready.body
    );
    assert_eq!(get(admin, "/readyz?stores=ignore").status, 200);
    let metrics = get(admin, "/metrics").body;
    for line in [
        "tidegate_decisions_total{door=\"gateway\",limit=\"per-user\",outcome=\"fallback_denied\"} 1",
        "tidegate_store_breaker_state{store=\"shared\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[test]
fn the_two_layers_of_the_quickstart_hold() {
    let mut gateway = Gateway::start(TWO_LAYERS);
    let answer = gateway.get("/vips?user_id=bob");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "{\"message\":\"Welcome to the club\"}")
    );
    assert_eq!(answer.field("content-type"), Some("application/json"));
    assert_eq!(
        answer.field("ratelimit-policy"),
        Some("\"per-user\";q=100;w=60, \"stage\";q=200;w=2")
    );
    for _ in 0..99 {
        assert_eq!(gateway.get("/vips?user_id=bob").status, 200);
    }
    let refused = gateway.get("/vips?user_id=bob");
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert!(
        refused
            .body
            .contains("\"violated-policies\":[\"per-user\"]"),
        "{}",
        refused.body
    );
    assert_eq!(gateway.get("/vips?user_id=eve").status, 200);
    let admin = gateway.admin.unwrap();
    assert_eq!(get(admin, "/readyz").status, 200);
    let metrics = get(admin, "/metrics").body;
    assert!(
        metrics.contains("limit=\"per-user\",outcome=\"denied\"} 1"),
        "{metrics}"
    );
    gateway.signal("-TERM");
    assert_eq!(gateway.ends(), 0);
}

#[test]
fn five_thousand_requests_at_once_get_no_more_than_burst_and_refill() {
    let gateway = Gateway::start(TWO_LAYERS);
    let address = gateway.address;
    let begun = Instant::now();
    let threads: Vec<_> = (0..20)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut allowed = 0;
                // All requests of a thread go out in one piece.
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut requests = String::new();
                for number in 0..250 {
                    let close = if number == 249 {
                        "Connection: close\r\n"
                    } else {
                        ""
                    };
                    // Users of their own, so that only the stage refuses.
                    let user = thread * 5 + number % 5;
                    requests +=
                        &format!("GET /vips?user_id={user} HTTP/1.1\r\nHost: a\r\n{close}\r\n");
                }
                stream.write_all(requests.as_bytes()).unwrap();
                let mut answers = String::new();
                stream.read_to_string(&mut answers).unwrap();
                allowed += answers.matches("HTTP/1.1 200 OK").count();
                assert_eq!(allowed + answers.matches("HTTP/1.1 429 ").count(), 250);
                allowed
            })
        })
        .collect();
    let allowed: usize = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    let most = 200 + usize::try_from(begun.elapsed().as_millis()).unwrap() / 10;
    assert!(
        (200..=most).contains(&allowed),
        "{allowed} of 5000, at most {most}"
    );
}

#[test]
fn a_hang_up_takes_over_the_file_and_keeps_the_counters() {
    let gateway = Gateway::start(&one_route(2, "old"));
    assert_eq!(gateway.get("/").body, "old");
    std::fs::write(&gateway.file, one_route(2, "new")).unwrap();
    gateway.signal("-HUP");
    gateway.logs("configuration reloaded");
    assert_eq!(gateway.get("/").body, "new");
    assert_eq!(gateway.get("/").status, 429);
}

#[test]
fn a_changed_file_is_taken_over_without_a_signal() {
    let gateway = Gateway::start(&one_route(2, "old"));
    assert_eq!(gateway.get("/").body, "old");
    // As editors do it: written beside and renamed over.
    let beside = gateway.file.with_extension("new");
    std::fs::write(&beside, one_route(5, "new")).unwrap();
    std::fs::rename(&beside, &gateway.file).unwrap();
    gateway.logs("configuration reloaded");
    let answer = gateway.get("/");
    assert_eq!(answer.body, "new");
    assert!(
        answer
            .field("ratelimit")
            .unwrap()
            .starts_with("\"some\";r=3;"),
        "{}",
        answer.head
    );
}

#[test]
fn a_wrong_file_leaves_the_last_good_one_in_force_and_says_where_it_is_wrong() {
    let gateway = Gateway::start(&format!(
        "{}admin: {{ listen: 127.0.0.1:0 }}\n",
        one_route(9, "good")
    ));
    std::fs::write(
        &gateway.file,
        one_route(9, "bad").replace("capacity", "capcity"),
    )
    .unwrap();
    gateway.signal("-HUP");
    gateway.logs("stays in force");
    gateway.logs("capcity");
    gateway.logs("^^^^^^^");
    assert_eq!(gateway.get("/").body, "good");
    let metrics = get(gateway.admin.unwrap(), "/metrics").body;
    assert!(
        metrics.contains("tidegate_config_reloads_total{result=\"refused\"} 1"),
        "{metrics}"
    );
}

#[test]
fn a_terminated_gateway_answers_what_it_has_begun() {
    let (upstream, requests) = slow_upstream(Duration::from_millis(700));
    let mut gateway = Gateway::start(&proxied(upstream, "10s"));
    let address = gateway.address;
    let request = std::thread::spawn(move || get(address, "/x").body);
    requests.recv_timeout(PATIENCE).unwrap();
    gateway.signal("-TERM");
    gateway.logs("in_flight=1");
    // The listener is closed a moment later.
    let deadline = Instant::now() + Duration::from_millis(500);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "it still listens");
    }
    assert_eq!(request.join().unwrap(), "late");
    assert_eq!(gateway.ends(), 0);
}

/// A gateway with one request that will not be answered in time.
fn hanging(drain: &str) -> (Gateway, TcpStream) {
    let (upstream, requests) = slow_upstream(PATIENCE);
    let gateway = Gateway::start(&proxied(upstream, drain));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream
        .write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    requests.recv_timeout(PATIENCE).unwrap();
    (gateway, stream)
}

#[test]
fn a_drain_that_lasts_too_long_ends_with_code_3() {
    let (mut gateway, _request) = hanging("300ms");
    gateway.signal("-INT");
    assert_eq!(gateway.ends(), 3);
}

#[test]
fn a_second_signal_ends_at_once() {
    let (mut gateway, _request) = hanging("1h");
    gateway.signal("-TERM");
    gateway.logs("in_flight=1");
    gateway.signal("-TERM");
    assert_eq!(gateway.ends(), 3);
}

#[test]
fn logs_can_be_json() {
    let mut gateway = Gateway::start_with(&one_route(1, "ok"), &["--log", "json"]);
    gateway.signal("-TERM");
    let line = gateway.logs("draining");
    assert!(
        line.starts_with('{') && line.contains("\"level\":\"INFO\""),
        "{line}"
    );
    assert_eq!(gateway.ends(), 0);
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.yaml");
    std::fs::write(&file, TWO_LAYERS).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("run")
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .trim()
        .strip_prefix("gateway: http://")
        .unwrap()
        .parse()
        .unwrap();
    // A pipe takes 64 KiB: far more than that is logged.
    let long = "x".repeat(1000);
    for _ in 0..300 {
        assert!(get(address, &format!("/vips?user_id={long}")).status != 0);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn fails(file: &Path) -> (i32, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("run")
        .arg(file)
        .output()
        .unwrap();
    assert!(ended.stdout.is_empty());
    (
        ended.status.code().unwrap(),
        String::from_utf8(ended.stderr).unwrap(),
    )
}

#[test]
fn what_cannot_be_opened_is_said_with_a_remedy_and_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.yaml");
    let (code, message) = fails(&file);
    assert_eq!(code, 1);
    assert!(
        message.contains("cannot read") && message.contains("tidegate.yaml"),
        "{message}"
    );
    std::fs::write(&file, "limits: {}\n").unwrap();
    let (code, message) = fails(&file);
    assert_eq!(code, 1);
    assert!(message.contains("no `gateway`"), "{message}");
    std::fs::write(
        &file,
        one_route(1, "x").replace("limits: [some]", "limits: [sum]"),
    )
    .unwrap();
    let (code, message) = fails(&file);
    assert_eq!(code, 1);
    assert!(
        message.contains('^') && message.contains("some"),
        "{message}"
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    std::fs::write(&file, one_route(1, "x").replace("127.0.0.1:0", &address)).unwrap();
    let (code, message) = fails(&file);
    assert_eq!(code, 1);
    assert!(
        message.contains(&address) && message.contains("choose another"),
        "{message}"
    );
}

#[test]
fn what_the_gateway_refused_is_what_the_replay_of_its_log_refuses() {
    let config = "
limits:
  per-item: { algorithm: { token_bucket: { rate: 1/h, capacity: 2 } }, key: [path.id, query.user] }
  per-client: { algorithm: { token_bucket: { rate: 1/h, capacity: 14 } }, key: [client_ip, method_and_route] }
gateway:
  listen: 127.0.0.1:0
  routes:
    - { match: 'GET /items/{id}', limits: [per-client, per-item], mock: { body: ok } }
    - { match: 'ANY /all/{rest+}', limits: [per-client], mock: { body: ok } }
";
    let gateway = Gateway::start_with(config, &["--log", "json"]);
    let targets = [
        "/items/7?user=a",
        "//items/%37/?user=a",
        "/items/./7?user=%61",
        "/items/7?user=a+b",
        "/items/7?user=a%20b",
        "/items/7?x=1&user=a%20b",
        "/items/8?user=",
        "/items/8?user",
        "/items/8",
        "/items/8?user=&user=x",
        "/items/x/../8?user=",
        "/nowhere",
        "/all/a/b?user=a",
    ];
    let mut served = Vec::new();
    for target in targets.iter().chain(&targets).chain(&targets) {
        served.push((*target, gateway.get(target).status));
    }
    let mut log = String::new();
    for _ in &served {
        log += &gateway.logs("tidegate::access");
        log.push('\n');
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.log");
    std::fs::write(&file, log).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["simulate", "--json"])
        .args([&gateway.file, &file])
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let replayed: Vec<bool> = out
        .lines()
        .map(|line| line.contains("\"decision\":\"allow\""))
        .collect();
    let limited: Vec<(&str, bool)> = served
        .iter()
        .filter(|(_, status)| *status != 404)
        .map(|(target, status)| (*target, *status == 200))
        .collect();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(replayed.len(), limited.len(), "{err}");
    for ((target, passed), replayed) in limited.iter().zip(&replayed) {
        assert_eq!(passed, replayed, "{target}");
    }
    assert!(replayed.contains(&true) && replayed.contains(&false));
}

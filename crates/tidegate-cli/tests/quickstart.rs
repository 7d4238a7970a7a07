//! `examples/quickstart.yaml` as a reader runs it, under `wrk`.
//!
//! Calls are counted at the back end and by the load generator, never by our own metrics.
//! `cargo xtask test` installs `wrk`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// A running gateway, ended with the test.
struct Running {
    child: Child,
    gateway: SocketAddr,
    /// Held open: the gateway says there what it has opened.
    _out: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("quickstart.yaml");
        std::fs::write(&file, config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("run")
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let gateway = line
            .trim()
            .strip_prefix("gateway: http://")
            .expect(&line)
            .parse()
            .unwrap();
        Self {
            child,
            gateway,
            _out: out,
            _folder: folder,
        }
    }

    /// A request on a connection of its own: its status and its `Retry-After`.
    fn get(&self, target: &str) -> (u16, Option<u64>) {
        let mut stream = TcpStream::connect(self.gateway).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let retry = answer
            .lines()
            .find_map(|line| line.strip_prefix("retry-after: "));
        (status, retry.map(|seconds| seconds.trim().parse().unwrap()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A back end that counts what reaches it.
fn counting_upstream() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let mut out = stream.try_clone().unwrap();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line.is_empty() {
                        counted.fetch_add(1, Ordering::SeqCst);
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        if out.write_all(answer).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (address, count)
}

/// Runs `wrk` with one thread and a script that looks at every answer; returns how many were
/// allowed, refused, and refused without a usable `Retry-After`.
fn wrk(url: &str, seconds: u32, request: &str) -> (u64, u64, u64) {
    const SCRIPT: &str = r#"
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() allowed, refused, bare = 0, 0, 0 end
function response(status, headers)
  if status == 200 then allowed = allowed + 1 else refused = refused + 1 end
  if status == 429 then
    local wait
    for name, value in pairs(headers) do
      if name:lower() == "retry-after" then wait = tonumber(value) end
    end
    if wait == nil or wait < 1 or wait ~= math.floor(wait) then bare = bare + 1 end
  end
end
function done()
  for _, thread in ipairs(threads) do
    print("COUNTED", thread:get("allowed"), thread:get("refused"), thread:get("bare"))
  end
end
"#;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("count.lua");
    std::fs::write(&script, format!("{SCRIPT}{request}")).unwrap();
    let output = Command::new("wrk")
        .args([
            "--threads",
            "1",
            "--connections",
            "50",
            "--duration",
            &format!("{seconds}s"),
        ])
        .arg("--script")
        .arg(&script)
        .arg(url)
        .output()
        .expect("`wrk` is there: `cargo xtask test` installs it");
    let text = String::from_utf8(output.stdout).unwrap();
    let counted = text
        .lines()
        .find_map(|line| line.strip_prefix("COUNTED"))
        .unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    let mut numbers = counted
        .split_whitespace()
        .map(|number| number.parse().unwrap());
    let mut next = || numbers.next().unwrap();
    (next(), next(), next())
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

//! What the tests of the quickstarts share: the binary as a process, a back end that counts, and load.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A running gateway, ended with the test.
pub struct Running {
    pub child: Child,
    pub gateway: SocketAddr,
    /// Held open: the gateway says there what it has opened.
    _out: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Running {
    pub fn start(config: &str) -> Self {
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
    pub fn get(&self, target: &str) -> (u16, Option<u64>) {
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
pub fn counting_upstream() -> (SocketAddr, Arc<AtomicU64>) {
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
pub fn wrk(url: &str, seconds: u32, request: &str) -> (u64, u64, u64) {
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

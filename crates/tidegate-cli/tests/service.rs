//! `tidegate run` with the decision service: opened, asked, reloaded and drained from outside.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes, short enough to notice.
const PATIENCE: Duration = Duration::from_secs(20);

const SERVICE: &str = "
limits:
  logins: { algorithm: { token_bucket: { rate: 1/h, capacity: 5 } } }
service: { resp: 127.0.0.1:0, drain: 5s }
admin: { listen: 127.0.0.1:0 }
";

/// A running command, ended with the test.
struct Running {
    child: Child,
    file: tempfile::NamedTempFile,
    addresses: Vec<(String, String)>,
}

impl Running {
    /// Starts it and reads so many lines of what it has opened.
    fn start(config: &str, lines: usize) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("run")
            .arg(file.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let addresses = out.lines().take(lines).map(|line| {
            let line = line.unwrap();
            let (name, url) = line.split_once(": ").unwrap();
            let (_, address) = url.split_once("://").unwrap();
            (name.to_owned(), address.to_owned())
        });
        Self {
            addresses: addresses.collect(),
            child,
            file,
        }
    }

    fn connect(&self, name: &str) -> TcpStream {
        let named = self.addresses.iter().find(|(known, _)| known == name);
        let stream = TcpStream::connect(&named.unwrap().1).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn get(&self, name: &str, path: &str) -> String {
        let mut stream = self.connect(name);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes of a limit until it denies; how many passed.
fn take_all(stream: &mut TcpStream) -> usize {
    stream
        .write_all("TG.TAKE logins asha\r\n".repeat(12).as_bytes())
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut passed = 0;
    for _ in 0..12 {
        for place in 0..8 {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            passed += usize::from(place == 1 && line == ":1\r\n");
        }
    }
    passed
}

#[test]
fn a_service_alone_is_opened_asked_reloaded_and_drained() {
    let mut running = Running::start(SERVICE, 2);
    let mut client = running.connect("resp");
    assert_eq!(take_all(&mut client), 5);
    let page = running.get("admin", "/metrics");
    for line in [
        r#"tidegate_decisions_total{door="resp",limit="logins",outcome="allowed"} 5"#,
        r#"tidegate_decisions_total{door="resp",limit="logins",outcome="denied"} 7"#,
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    assert!(running.get("admin", "/healthz").starts_with("HTTP/1.1 200"));
    assert!(running.get("admin", "/readyz").starts_with("HTTP/1.1 200"));

    std::fs::write(
        running.file.path(),
        SERVICE.replace("capacity: 5", "capacity: 8"),
    )
    .unwrap();
    running.signal("-HUP");
    let deadline = Instant::now() + PATIENCE;
    let mut more = 0;
    while more < 3 && Instant::now() < deadline {
        more += take_all(&mut client);
    }
    assert_eq!(more, 3, "the five that were used stay used");

    running.signal("-TERM");
    assert_eq!(running.ends(), 0);
    let mut rest = Vec::new();
    assert_eq!(client.read_to_end(&mut rest).unwrap(), 0, "{rest:?}");
}

#[test]
fn a_gateway_and_a_service_spend_the_same_limits_and_are_drained_together() {
    let by_user = SERVICE.replace("capacity: 5 } }", "capacity: 5 } }, key: [query.user]");
    let config = format!(
        "{by_user}
gateway:
  listen: 127.0.0.1:0
  routes:
    - {{ match: GET /, limits: [logins], mock: {{ body: hello }} }}
"
    );
    let mut running = Running::start(&config, 3);
    assert!(
        running
            .get("gateway", "/?user=asha")
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(
        take_all(&mut running.connect("resp")),
        4,
        "the gateway has taken one"
    );
    assert!(
        running
            .get("gateway", "/?user=asha")
            .starts_with("HTTP/1.1 429")
    );
    let page = running.get("admin", "/metrics");
    for line in [
        r#"tidegate_decisions_total{door="gateway",limit="logins",outcome="allowed"} 1"#,
        r#"tidegate_decisions_total{door="resp",limit="logins",outcome="allowed"} 4"#,
        r#"tidegate_keys{limit="logins"} 1"#,
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    assert_eq!(page.matches("# TYPE tidegate_decisions ").count(), 1);
    assert_eq!(page.matches("# EOF").count(), 1);
    running.signal("-TERM");
    assert_eq!(running.ends(), 0);
}

//! Broken and hostile clients over real sockets: each is answered or ended, others are served, and
//! memory stays bounded.

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use support::{PATIENCE, Wire, serve};
use tidegate_testkit::wait_until;

/// The memory of this process, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[test]
fn what_is_no_command_is_told_so_and_ended() {
    let served = serve("");
    let mut other = served.connect();
    for (bytes, error) in [
        (
            "*1\r\n$536870912\r\n",
            "a command takes at most 65536 bytes",
        ),
        ("*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
        ("*1\r\n$-5\r\n", "invalid bulk length"),
        ("*1073741824\r\n", "a command has at most 64 arguments"),
        ("*1\r\n*1\r\n", "expected \\'$\\', got \\'*\\'"),
        (
            "*1\r\n$4\r\nPINGPONG",
            "a bulk string does not end where it said",
        ),
        (
            "POST / HTTP/1.1\r\nHost: x\r\n\r\nFLUSHALL\r\n",
            "this port speaks RESP, not HTTP",
        ),
        ("\u{16}\u{3}\u{1}\r\n", ""),
    ] {
        let mut wire = served.connect();
        wire.send("PING\r\n");
        wire.expect("+PONG\r\n");
        wire.send(bytes);
        if error.is_empty() {
            // What a TLS client says first is a word on a line: no such command.
            wire.expect("-ERR unknown command");
        } else {
            let expected = format!("-ERR Protocol error: {error}\\r\\n");
            assert_eq!(wire.rest(), expected, "{bytes:?}");
        }
        other.ask("PING", "+PONG\r\n");
    }
    let text = served.service.metrics_page()();
    let counted = r#"tidegate_service_connections_refused_total{door="resp",reason="malformed"} 7"#;
    assert!(text.contains(counted), "{text}");
}

#[test]
fn a_million_nested_arrays_are_refused_at_the_second() {
    let served = serve("");
    let mut wire = served.connect();
    let nested = "*1\r\n".repeat(1_000_000);
    // The rest may find the connection gone.
    let _ = wire.0.write_all(nested.as_bytes());
    let mut start = [0; 19];
    let read = wire.0.read_exact(&mut start);
    assert!(
        read.is_err() || start == *b"-ERR Protocol error",
        "{start:?}"
    );
    served.connect().ask("PING", "+PONG\r\n");
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let served = serve("");
    let mut wire = served.connect();
    for byte in b"*3\r\n$7\r\nTG.TAKE\r\n$4\r\nrate\r\n$5\r\nbytes\r\nPING\r\n" {
        wire.send([*byte]);
    }
    wire.expect("*7\r\n:1\r\n:5\r\n:4\r\n:0\r\n:3600000\r\n:0\r\n+allowed\r\n+PONG\r\n");
}

#[test]
fn the_largest_key_is_a_key_and_the_next_one_is_not() {
    let served = serve("");
    let head = "*3\r\n$7\r\nTG.TAKE\r\n$4\r\nrate\r\n";
    let room = 65_536 - head.len() - "$65536\r\n".len() - 2;
    let mut wire = served.connect();
    wire.send(format!("{head}${room}\r\n{}\r\n", "k".repeat(room)));
    wire.expect("*7\r\n:1\r\n:5\r\n:4\r\n");
    let mut wire = served.connect();
    wire.send(format!("{head}${}\r\n", room + 1));
    assert!(wire.rest().contains("at most 65536 bytes"));
}

#[test]
fn half_a_command_is_waited_for_so_long_and_no_longer() {
    let served = serve("");
    let mut halves: Vec<Wire> = (0..50).map(|_| served.connect()).collect();
    for half in &mut halves {
        half.send("*2\r\n$4\r\nECHO\r\n$100\r\nhello");
    }
    // Other pieces of the same command win no time.
    let mut slow = served.connect();
    slow.send("*2\r\n$4\r\nECHO\r\n$100\r\n");
    let begun = std::time::Instant::now();
    let mut idle = served.connect();
    while slow.0.write_all(b"x").is_ok() && begun.elapsed() < PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(300));
        idle.ask("PING", "+PONG\r\n");
    }
    assert!(begun.elapsed() < PATIENCE, "it is waited for, for ever");
    for half in &mut halves {
        assert_eq!(half.rest(), "");
    }
    // Who says nothing at all may stay.
    idle.ask("PING", "+PONG\r\n");
}

#[test]
fn a_client_that_never_reads_is_not_read_from_either() {
    let served = serve("");
    let before = memory();
    let mut deaf: Vec<Wire> = (0..20).map(|_| served.connect()).collect();
    let questions = "COMMAND\r\n".repeat(3000);
    for wire in &mut deaf {
        wire.0.set_nonblocking(true).unwrap();
        // Until nothing more goes out: the answers fill every buffer on the way.
        let mut stuck = 0;
        while stuck < 20 {
            match wire.0.write(questions.as_bytes()) {
                Ok(sent) if sent > 0 => stuck = 0,
                _ => {
                    stuck += 1;
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
        served.connect().ask("PING", "+PONG\r\n");
    }
    let grown = memory().saturating_sub(before);
    assert!(grown < 60 << 20, "{grown} bytes for twenty clients");
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_stop_nobody() {
    // Both ends are in this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    let raised = rustix::process::Rlimit {
        current: Some(most),
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let count = usize::try_from((most.saturating_sub(500)) / 2)
        .unwrap()
        .min(10_000);
    let served = serve(", max_connections: 20000");
    let mut busy = served.connect();
    busy.ask("PING", "+PONG\r\n");
    let before = memory();
    let mut idle = Vec::with_capacity(count);
    for _ in 0..count {
        idle.push(TcpStream::connect(served.resp).unwrap());
    }
    let page = served.service.metrics_page();
    let all = format!(
        "tidegate_service_connections{{door=\"resp\"}} {}",
        count + 1
    );
    wait_until("all are accepted", PATIENCE, || page().contains(&all));
    let each = memory().saturating_sub(before) / count as u64;
    assert!(each < 8 * 1024, "{each} bytes for an idle connection");
    busy.ask("TG.PEEK rate k 0", "*7\r\n:1\r\n");
    for stream in idle.iter_mut().step_by(997) {
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }
    drop(idle);
    let none = "tidegate_service_connections{door=\"resp\"} 1\n";
    wait_until("all are gone", PATIENCE, || page().contains(none));
}

#[test]
fn who_comes_when_all_places_are_taken_waits_for_one() {
    let served = serve(", max_connections: 1");
    let mut first = served.connect();
    first.ask("PING", "+PONG\r\n");
    let mut second = served.connect();
    second.send("PING\r\n");
    first.ask("PING", "+PONG\r\n");
    drop(first);
    second.expect("+PONG\r\n");
}

#[test]
fn a_drain_answers_those_at_work_and_ends_the_idle() {
    let served = serve("");
    let mut idle = served.connect();
    idle.ask("PING", "+PONG\r\n");
    let address = served.resp;
    let working = std::thread::spawn(move || {
        let mut wire = Wire::to(address);
        let mut answered = 0;
        loop {
            if wire.0.write_all(b"TG.PEEK rate k 0\r\n").is_err() {
                return (answered, false);
            }
            let mut answer = [0; 38];
            match wire.0.read_exact(&mut answer) {
                Ok(()) => answered += 1,
                Err(_) => return (answered, true),
            }
            if answered == 200 {
                return (answered, false);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    let cut_off = served.runtime.block_on(served.service.drain());
    assert_eq!(cut_off, 0);
    assert_eq!(idle.rest(), "");
    // Two seconds of calls, and a drain of up to five: every one was answered.
    assert_eq!(working.join().unwrap(), (200, false));
    assert!(TcpStream::connect(address).is_err());
}

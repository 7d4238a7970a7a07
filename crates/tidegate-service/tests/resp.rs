//! What clients say over RESP, and what they are answered, byte for byte.

mod support;

use support::{Wire, checked, serve};

#[test]
fn cl_throttle_answers_as_redis_cell_documents_it() {
    let served = serve("");
    let mut wire = served.connect();
    // A burst of 15 + 1, and 30 a minute: a call is repaid in 2 s.
    let call = "CL.THROTTLE user123 15 30 60 1".to_owned();
    let mut calls = Vec::new();
    for left in (0..16).rev() {
        let reset = (16 - left) * 2;
        calls.push((
            call.clone(),
            format!("*5\r\n:0\r\n:16\r\n:{left}\r\n:-1\r\n:{reset}\r\n"),
        ));
    }
    let denied = "*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:32\r\n";
    calls.push(("cl.throttle user123 15 30 60".to_owned(), denied.to_owned()));
    let calls: Vec<(&str, &str)> = calls
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    wire.ask_all(&calls);
    // Another key has a bucket of its own.
    wire.ask(
        "CL.THROTTLE user124 15 30 60 16",
        "*5\r\n:0\r\n:16\r\n:0\r\n:-1\r\n:32\r\n",
    );
    // A burst of 0 lets one through.
    wire.ask_all(&[
        (
            "CL.THROTTLE one 0 1 10",
            "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:10\r\n",
        ),
        (
            "CL.THROTTLE one 0 1 10",
            "*5\r\n:1\r\n:1\r\n:0\r\n:10\r\n:10\r\n",
        ),
    ]);
}

#[test]
fn cl_throttle_rounds_up_and_knows_never() {
    let served = serve("");
    let mut wire = served.connect();
    wire.ask_all(&[
        // More than the bucket holds can never pass, and costs nothing.
        (
            "CL.THROTTLE k 4 1 10 6",
            "*5\r\n:1\r\n:5\r\n:5\r\n:-1\r\n:0\r\n",
        ),
        // All of it can.
        (
            "CL.THROTTLE k 4 1 10 5",
            "*5\r\n:0\r\n:5\r\n:0\r\n:-1\r\n:50\r\n",
        ),
        // Asking costs nothing.
        (
            "CL.THROTTLE k 4 1 10 0",
            "*5\r\n:0\r\n:5\r\n:0\r\n:-1\r\n:50\r\n",
        ),
        // A tenth of a second is a second, not none: 10 a second.
        (
            "CL.THROTTLE fast 0 10 1",
            "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:1\r\n",
        ),
        // 2000 a second is a legal rate.
        (
            "CL.THROTTLE faster 0 2000 1",
            "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:1\r\n",
        ),
        // A rate of nothing never refills.
        (
            "CL.THROTTLE still 1 0 1 2",
            "*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:-1\r\n",
        ),
        (
            "CL.THROTTLE still 1 0 1 1",
            "*5\r\n:1\r\n:2\r\n:0\r\n:-1\r\n:-1\r\n",
        ),
        // Once a month, and a hundred at once: no number is too small for the time.
        (
            "CL.THROTTLE slow 99 1 2592000 100",
            "*5\r\n:0\r\n:100\r\n:0\r\n:-1\r\n:259200000\r\n",
        ),
    ]);
}

#[test]
fn a_wrong_number_is_named_with_its_range() {
    let served = serve("");
    let mut wire = served.connect();
    for (line, error) in [
        (
            "CL.THROTTLE k",
            "ERR wrong number of arguments for 'cl.throttle' command",
        ),
        (
            "CL.THROTTLE k -1 1 1",
            "ERR max_burst must be a whole number from 0 to 2147483646, not '-1'",
        ),
        (
            "CL.THROTTLE k 2147483647 1 1",
            "ERR max_burst must be a whole number from 0 to 2147483646, not '2147483647'",
        ),
        (
            "CL.THROTTLE k 1 1 0",
            "ERR period must be a whole number from 1 to 315576000, not '0'",
        ),
        (
            "CL.THROTTLE k 1 one 1",
            "ERR count must be a whole number from 0 to 2147483647, not 'one'",
        ),
        (
            "CL.THROTTLE k 1 1 1 1.5",
            "ERR quantity must be a whole number from 0 to 2147483647, not '1.5'",
        ),
        (
            "TG.TAKE rate",
            "ERR wrong number of arguments for 'tg.take' command",
        ),
        (
            "TG.TAKE rate k -1",
            "ERR cost must be a whole number from 0 to 2147483647, not '-1'",
        ),
        (
            "TG.TAKE rats k",
            "TGNOLIMIT there is no limit 'rats'; there are: closed, dear, jobs, logins, paced, rate, trial, tried",
        ),
        (
            "TG.TAKE jobs k",
            "ERR limit 'jobs': concurrency has no operation take; use acquire, renew and release",
        ),
        (
            "TG.TAKE logins k",
            "ERR limit 'logins': lockout has no operation take; use attempt, and success when it was right",
        ),
        (
            "TG.REFUND jobs k",
            "ERR limit 'jobs': concurrency has no operation refund; use acquire, renew and release",
        ),
        (
            "TG.ACQUIRE rate k 1",
            "ERR limit 'rate': token_bucket has no operation acquire; use take, peek, take_up_to, reserve, refund or force",
        ),
        (
            "TG.ACQUIRE jobs k 60001",
            "ERR limit 'jobs' grants leases of 60000 ms: ask for no more, and renew",
        ),
        (
            "TG.RENEW jobs k 7",
            "ERR a lease is named by the 32 hexadecimal digits of its grant, not by '7'",
        ),
        ("SELECT 1", "ERR DB index is out of range: there is only 0"),
        (
            "AUTH secret",
            "ERR AUTH called without any secret configured: set `secret_sha256`, or do not authenticate",
        ),
        (
            "HELLO 4",
            "NOPROTO unsupported protocol version: 2 and 3 are",
        ),
        (
            "GET k",
            "ERR unknown command 'GET': this is tidegate, which has CL.THROTTLE, TG.TAKE, TG.PEEK, TG.REFUND, TG.ACQUIRE, TG.RENEW, TG.RELEASE and TG.EXPLAIN",
        ),
    ] {
        // A GET on a line looks like a browser; as an array it is a command like any other.
        let words: Vec<&str> = line.split(' ').collect();
        let mut frame = format!("*{}\r\n", words.len());
        for word in words {
            frame.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        wire.send(frame);
        wire.expect(&format!("-{error}\r\n"));
    }
}

#[test]
fn takes_peeks_and_refunds_agree() {
    let served = serve("");
    let mut wire = served.connect();
    wire.ask_all(&[
        (
            "TG.PEEK rate k",
            "*7\r\n:1\r\n:5\r\n:4\r\n:0\r\n:3600000\r\n:0\r\n+allowed\r\n",
        ),
        (
            "TG.TAKE rate k 5",
            "*7\r\n:1\r\n:5\r\n:0\r\n:0\r\n:18000000\r\n:0\r\n+allowed\r\n",
        ),
        ("TG.REFUND rate k 5", ":5\r\n"),
        ("TG.REFUND rate k", ":0\r\n"),
        (
            "TG.TAKE rate k 6",
            "*7\r\n:0\r\n:5\r\n:5\r\n:-1\r\n:0\r\n:0\r\n+impossible\r\n",
        ),
        // The cost of the configuration, where none is given.
        (
            "TG.TAKE dear k",
            "*7\r\n:1\r\n:10\r\n:6\r\n:0\r\n:3600000\r\n:0\r\n+allowed\r\n",
        ),
        (
            "TG.PEEK closed k",
            "*7\r\n:0\r\n:0\r\n:0\r\n:-1\r\n:0\r\n:0\r\n+impossible\r\n",
        ),
        // A paced queue says how long to wait before going on.
        (
            "TG.TAKE paced k",
            "*7\r\n:1\r\n:3\r\n:2\r\n:0\r\n:3600000\r\n:0\r\n+allowed\r\n",
        ),
        // A limit in shadow denies nobody, and says so.
        (
            "TG.TAKE tried k",
            "*7\r\n:1\r\n:1\r\n:0\r\n:0\r\n:3600000\r\n:0\r\n+allowed\r\n",
        ),
        (
            "TG.TAKE tried k",
            "*7\r\n:1\r\n:1\r\n:0\r\n:3600000\r\n:3600000\r\n:0\r\n+shadow\r\n",
        ),
    ]);
}

/// The parts of an answer of short lines.
fn lines(wire: &mut Wire, count: usize) -> Vec<String> {
    let read = |wire: &mut Wire| {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            let mut byte = [0];
            std::io::Read::read_exact(&mut wire.0, &mut byte).unwrap();
            line.push(char::from(byte[0]));
        }
        line.trim_end().to_owned()
    };
    (0..count).map(|_| read(wire)).collect()
}

#[test]
fn leases_are_granted_renewed_and_given_back() {
    let served = serve("");
    let mut wire = served.connect();
    let acquire = |wire: &mut Wire| {
        wire.send("TG.ACQUIRE jobs k 60000\r\n");
        let answer = lines(wire, 9);
        assert_eq!(answer[..3], ["*7", ":1", "$32"], "{answer:?}");
        assert_eq!(answer[5], ":60000");
        let token: u64 = answer[4][1..].parse().unwrap();
        (answer[3].clone(), token)
    };
    let (first, first_token) = acquire(&mut wire);
    let (_, second_token) = acquire(&mut wire);
    assert!(second_token > first_token);
    wire.send("TG.ACQUIRE jobs k 1\r\n");
    let denied = lines(&mut wire, 8);
    assert_eq!(denied[..7], ["*7", ":0", "$-1", ":0", ":0", ":2", ":0"]);
    wire.send(format!("TG.RENEW jobs k {first}\r\n"));
    let renewed = lines(&mut wire, 4);
    assert_eq!(renewed, ["*3", ":1", &format!(":{first_token}"), ":60000"]);
    wire.ask(&format!("TG.RELEASE jobs k {first}"), ":1\r\n");
    wire.ask(&format!("TG.RELEASE jobs k {first}"), ":0\r\n");
    wire.ask(
        &format!("TG.RENEW jobs k {first}"),
        "*3\r\n:0\r\n:0\r\n:0\r\n",
    );
    acquire(&mut wire);
    // Where a limit is not enforced, whoever asks gets a lease that is not lost.
    wire.send("TG.ACQUIRE trial k 1000\r\n");
    let granted = lines(&mut wire, 9);
    assert_eq!(granted[1], ":1");
    wire.send(format!("TG.RENEW trial k {}\r\n", granted[3]));
    assert_eq!(lines(&mut wire, 4)[1], ":1");
}

#[test]
fn explain_is_a_map_in_the_third_version_and_a_row_in_the_second() {
    let served = serve("");
    let mut wire = served.connect();
    wire.send("TG.EXPLAIN rate\r\n");
    assert_eq!(lines(&mut wire, 1), ["*14"]);
    let mut wire = served.connect();
    wire.send("HELLO 3\r\nTG.TAKE rate k 2\r\nTG.EXPLAIN rate k\r\n");
    let answer = lines(&mut wire, 26 + 8 + 42);
    let answer = answer.join(" ");
    assert!(
        answer.contains("%12 $5 limit $4 rate $9 algorithm"),
        "{answer}"
    );
    assert!(answer.contains("$10 worst_case :9"), "{answer}");
    assert!(answer.contains("$4 used :2 $9 remaining :3"), "{answer}");
}

#[test]
fn a_secret_is_asked_for_where_one_is_set() {
    // The hash of `test`.
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let served = serve(&format!(", secret_sha256: {hash}"));
    let mut wire = served.connect();
    let refused = "-NOAUTH Authentication required.\r\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    wire.ask("PING", refused);
    wire.ask("CL.THROTTLE k 1 1 1", refused);
    wire.ask("AUTH guess", wrong);
    wire.ask("AUTH root test", wrong);
    wire.ask("HELLO 3 AUTH default guess", wrong);
    wire.ask(
        "HELLO 3",
        "-NOAUTH HELLO must be called with the client already authenticated, or with AUTH\r\n",
    );
    wire.ask("PING", refused);
    wire.ask("AUTH test", "+OK\r\n");
    wire.ask("PING", "+PONG\r\n");
    wire.ask("RESET", "+RESET\r\n");
    wire.ask("PING", refused);
    wire.ask(
        "HELLO 2 AUTH default test SETNAME me",
        "*14\r\n$6\r\nserver\r\n$8\r\ntidegate\r\n",
    );
}

#[test]
fn a_batch_is_answered_in_order_whatever_goes_wrong_in_it() {
    let served = serve("");
    let mut wire = served.connect();
    wire.send("PING\r\nTG.TAKE nothing k\r\nPING a\r\n*1\r\n$4\r\nECHO\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\nCLIENT GETNAME\r\nCLIENT SETNAME me\r\nCLIENT GETNAME\r\nSELECT 0\r\nQUIT\r\nPING\r\n");
    let answer = wire.rest();
    let expected = "+PONG\\r\\n-TGNOLIMIT there is no limit \\'nothing\\'; there are: closed, dear, jobs, logins, paced, rate, trial, tried\\r\\n$1\\r\\na\\r\\n-ERR wrong number of arguments for \\'echo\\' command\\r\\n$0\\r\\n\\r\\n$-1\\r\\n+OK\\r\\n$2\\r\\nme\\r\\n+OK\\r\\n+OK\\r\\n";
    assert_eq!(answer, expected);
}

#[test]
fn two_connections_spend_one_limit() {
    let served = serve("");
    let (mut a, mut b) = (served.connect(), served.connect());
    a.ask(
        "TG.TAKE rate shared 3",
        "*7\r\n:1\r\n:5\r\n:2\r\n:0\r\n:10800000\r\n:0\r\n+allowed\r\n",
    );
    b.send("TG.TAKE rate shared 3\r\n");
    b.expect("*7\r\n:0\r\n:5\r\n:2\r\n:");
}

#[test]
fn a_reload_keeps_connections_and_counters() {
    let mut served = serve("");
    let mut wire = served.connect();
    wire.send("TG.TAKE rate k 4\r\nCL.THROTTLE k 1 1 3600\r\n");
    lines(&mut wire, 8 + 6);
    let larger = support::LIMITS.replace("capacity: 5 } }", "capacity: 10 } }");
    let text = format!("{larger}\nservice: {{ resp: 127.0.0.1:1, max_connections: 7 }}");
    let fixed = served.service.reload(&checked(&text), &[]).unwrap();
    assert_eq!(fixed, ["service.resp", "service.max_connections"]);
    wire.ask("TG.TAKE rate k 6", "*7\r\n:1\r\n:10\r\n:0\r\n:0\r\n");
    lines(&mut wire, 3);
    wire.send("CL.THROTTLE k 1 1 3600\r\n");
    assert_eq!(lines(&mut wire, 4)[3], ":0");
    let none = served
        .service
        .reload(&checked("limits: {}"), &[])
        .unwrap_err();
    assert!(none.to_string().contains("no `service`"), "{none}");
}

#[test]
fn decisions_are_counted_by_limit_and_outcome() {
    let served = serve("");
    let mut wire = served.connect();
    let page = served.service.metrics_page();
    wire.send("TG.TAKE rate k 5\r\nTG.TAKE rate k\r\nTG.PEEK rate k\r\nTG.TAKE tried k\r\nTG.TAKE tried k\r\nCL.THROTTLE a 0 1 60\r\nCL.THROTTLE a 0 1 60\r\nCL.THROTTLE a 0 1 60 0\r\nPING\r\n");
    lines(&mut wire, 5 * 8 + 3 * 6 + 1);
    let text = page();
    for line in [
        r#"tidegate_decisions_total{door="resp",limit="rate",outcome="allowed"} 1"#,
        r#"tidegate_decisions_total{door="resp",limit="rate",outcome="denied"} 1"#,
        r#"tidegate_decisions_total{door="resp",limit="tried",outcome="shadow_denied"} 1"#,
        r#"tidegate_decisions_total{door="resp",limit="(cl.throttle)",outcome="denied"} 1"#,
        r#"tidegate_near_limit_total{limit="rate"} 1"#,
        r#"tidegate_keys{limit="rate"} 1"#,
        r#"tidegate_keys{limit="(cl.throttle)"} 1"#,
        r#"tidegate_service_connections{door="resp"} 1"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

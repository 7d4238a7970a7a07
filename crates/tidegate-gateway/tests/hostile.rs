//! Requests that no honest client sends, byte by byte.

mod support;

use std::time::{Duration, Instant};

use support::{Client, Setup, exchange, mirror, mock, proxy, read_all, start, statuses};
use tidegate_config::model::Timeouts;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

async fn gateway() -> tidegate_gateway::Running {
    let upstream = mirror().await;
    start(Setup {
        routes: vec![
            proxy("ANY /{path+}", &[], upstream),
            mock("GET /", &[], "root"),
        ],
        ..Setup::default()
    })
    .await
}

/// What comes back to one request that is followed by an innocent one on the same connection.
async fn answers(request: &str) -> Vec<u16> {
    let gateway = gateway().await;
    let both = format!("{request}GET /innocent HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    statuses(&exchange(gateway.address(), both.as_bytes()).await)
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_nothing_after_it_is_read() {
    for head in [
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\nabcd",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nX-A: b\r\n folded\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\n X-A: b\r\n\r\n",
        "GET /x HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET /x HTTP/1.1\nHost: a\n\n",
        "GET /x HTTP/1.1\r\nHost: a\nX-A: b\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nX-A: b\rc\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nX-A: b\x00c\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nX A: b\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\n: no name\r\n\r\n",
        "GET /x HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /x y HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /x\r\nHost: a\r\n\r\n",
        "\rGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "G@T /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
    ] {
        assert_eq!(answers(head).await, [400], "{head:?}");
    }
}

#[tokio::test]
async fn a_broken_chunk_ends_the_connection_and_the_request_is_never_completed() {
    for body in [
        "5\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "-5\r\n\r\n",
        "fffffffffffffffff\r\n",
    ] {
        let request =
            format!("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let found = answers(&request).await;
        assert!(
            found.len() <= 1 && found.iter().all(|status| *status == 400),
            "{body:?}: {found:?}"
        );
    }
}

#[tokio::test]
async fn a_request_with_a_doubtful_host_or_target_is_refused() {
    for head in [
        "GET /x HTTP/1.1\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: user@a\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a:99999\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost:\r\n\r\n",
        "GET /a%2fb HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a%2Fb HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let found = answers(head).await;
        // The framing is fine, so the connection lives on.
        assert_eq!(found, [400, 200], "{head:?}");
    }
}

#[tokio::test]
async fn an_absolute_target_is_taken_for_its_path_and_host() {
    let gateway = gateway().await;
    let request = "GET http://Shop.Example:81/x?q HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(gateway.address(), request.as_bytes()).await;
    assert_eq!(statuses(&answer), [200]);
    assert!(answer.contains("GET /x?q\n"), "{answer}");
    assert!(
        answer.contains("x-forwarded-host: shop.example:81\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn tunnels_and_traces_are_not_served() {
    assert_eq!(
        answers("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n").await[0],
        400
    );
    assert_eq!(
        answers("TRACE /x HTTP/1.1\r\nHost: a\r\n\r\n").await,
        [501, 200]
    );
}

#[tokio::test]
async fn a_head_above_16_kib_or_100_fields_is_refused() {
    let gateway = gateway().await;
    let long = format!(
        "GET /x HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(17 * 1024)
    );
    assert_eq!(
        statuses(&exchange(gateway.address(), long.as_bytes()).await),
        [431]
    );
    let endless = format!(
        "GET /x HTTP/1.1\r\nHost: a\r\nX: {}",
        "x".repeat(200 * 1024)
    );
    assert_eq!(
        statuses(&exchange(gateway.address(), endless.as_bytes()).await),
        [431]
    );
    let many = format!(
        "GET /x HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "x: y\r\n".repeat(101)
    );
    assert_eq!(
        statuses(&exchange(gateway.address(), many.as_bytes()).await),
        [431]
    );
    let fits = format!(
        "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: {}\r\n\r\n",
        "x".repeat(15 * 1024)
    );
    assert_eq!(
        statuses(&exchange(gateway.address(), fits.as_bytes()).await),
        [200]
    );
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let gateway = gateway().await;
    let mut requests = String::new();
    for number in 0..20 {
        requests.push_str(&format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    requests.push_str("GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = exchange(gateway.address(), requests.as_bytes()).await;
    let order: Vec<&str> = answer
        .lines()
        .filter_map(|line| line.split("GET /").nth(1))
        .collect();
    let expected: Vec<String> = (0..20)
        .map(|number| number.to_string())
        .chain(["end".into()])
        .collect();
    assert_eq!(order, expected);
}

fn impatient() -> Timeouts {
    Timeouts {
        header: Duration::from_millis(400),
        idle: Duration::from_millis(1500),
        ..Timeouts::default()
    }
}

async fn closes_after(bytes: &[&[u8]], pause: Duration) -> (String, Duration) {
    let gateway = start(Setup {
        routes: vec![mock("GET /", &[], "root")],
        timeouts: impatient(),
        ..Setup::default()
    })
    .await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    let begun = Instant::now();
    for piece in bytes {
        if stream.write_all(piece).await.is_err() {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    let answer = read_all(&mut stream).await;
    (answer, begun.elapsed())
}

#[tokio::test]
async fn a_client_that_says_nothing_or_trickles_its_head_is_cut_off() {
    let (answer, took) = closes_after(&[], Duration::ZERO).await;
    assert_eq!(answer, "");
    assert!((350..8000).contains(&took.as_millis()), "{took:?}");
    let (answer, took) = closes_after(&[b"PRI * HTTP/2.0\r\n"], Duration::ZERO).await;
    assert_eq!(answer, "");
    assert!((350..8000).contains(&took.as_millis()), "{took:?}");
    // Each byte comes well in time, the head does not.
    let pieces: Vec<&[u8]> = b"GET / HTTP/1.1\r\nHost: a\r\nX: yyyyyyy"
        .chunks(2)
        .collect();
    let (answer, took) = closes_after(&pieces, Duration::from_millis(60)).await;
    assert_eq!(statuses(&answer), [408], "{answer}");
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_without_a_word() {
    let request: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (answer, took) = closes_after(&[request], Duration::ZERO).await;
    assert_eq!(statuses(&answer), [200]);
    assert!((1400..8000).contains(&took.as_millis()), "{took:?}");
    // Used again in time, it is not idle.
    let (answer, took) = closes_after(
        &[request, request, request, request],
        Duration::from_millis(500),
    )
    .await;
    assert_eq!(statuses(&answer), [200; 4]);
    assert!(took > Duration::from_millis(2000), "{took:?}");
}

#[tokio::test]
async fn a_second_head_that_trickles_is_cut_off_too() {
    let request: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT";
    let (answer, took) = closes_after(&[request], Duration::ZERO).await;
    assert_eq!(statuses(&answer), [200, 408], "{answer}");
    assert!((350..8000).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test]
async fn a_slow_answer_is_no_idle_connection() {
    let upstream = support::upstream(async |_request| {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        http::Response::new(http_body_util::Full::from("late"))
    })
    .await;
    let gateway = start(Setup {
        routes: vec![proxy("GET /{path+}", &[], upstream)],
        timeouts: impatient(),
        ..Setup::default()
    })
    .await;
    assert_eq!(
        Client::new(gateway.address()).get("/x").await.text(),
        "late"
    );
    assert_eq!(
        Client::h2c(gateway.address()).get("/x").await.text(),
        "late"
    );
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let upstream = support::upstream(async |_request| {
        http::Response::new(http_body_util::Full::from(vec![b'x'; 50_000_000]))
    })
    .await;
    let gateway = start(Setup {
        routes: vec![proxy("GET /{path+}", &[], upstream)],
        timeouts: Timeouts {
            body: Duration::from_millis(400),
            ..Timeouts::default()
        },
        ..Setup::default()
    })
    .await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gateway.in_flight(), 1);
    tokio::time::timeout(support::PATIENCE, async {
        while gateway.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the request is given up");
}

#[tokio::test]
async fn more_connections_than_allowed_wait_for_their_turn() {
    let gateway = start(Setup {
        routes: vec![mock("GET /", &[], "root")],
        max_connections: 2,
        timeouts: impatient(),
        ..Setup::default()
    })
    .await;
    let holders = [
        TcpStream::connect(gateway.address()).await.unwrap(),
        TcpStream::connect(gateway.address()).await.unwrap(),
    ];
    let begun = Instant::now();
    let answer = Client::new(gateway.address()).get("/").await;
    assert_eq!(answer.text(), "root");
    // The two that say nothing had to go first.
    assert!(begun.elapsed() > Duration::from_millis(300));
    drop(holders);
}

//! Requests on their way to an upstream and back, over real sockets.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use support::{
    Client, Setup, at_most, exchange, mirror, proxy, proxy_under, raw_upstream, read_head, start,
    statuses, upstream,
};
use tidegate_config::model::{Route, Timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

async fn in_front_of(upstream: std::net::SocketAddr) -> tidegate_gateway::Running {
    start(Setup {
        routes: vec![proxy("ANY /{path+}", &[], upstream)],
        ..Setup::default()
    })
    .await
}

/// Bytes that no compression or repetition could hide a fault in.
fn noise(length: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes: Vec<u8> = (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect();
    bytes.into()
}

async fn echo() -> std::net::SocketAddr {
    upstream(async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Full::new(body))
    })
    .await
}

#[tokio::test]
async fn bodies_of_megabytes_arrive_as_they_were_sent_both_ways() {
    let gateway = in_front_of(echo().await).await;
    let body = noise(7_000_001);
    for client in [
        Client::new(gateway.address()),
        Client::h2c(gateway.address()),
    ] {
        let answer = client.send_body(Request::post("/echo"), body.clone()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(
            answer.body == body,
            "{} of {} bytes",
            answer.body.len(),
            body.len()
        );
    }
}

#[tokio::test]
async fn a_chunked_body_arrives_whole() {
    let gateway = in_front_of(echo().await).await;
    let request = "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\n\r\n";
    let answer = exchange(gateway.address(), request.as_bytes()).await;
    assert_eq!(statuses(&answer), [200]);
    assert!(answer.ends_with("\r\n\r\nhello, world"), "{answer}");
}

#[tokio::test]
async fn a_body_is_passed_on_while_it_comes_in() {
    let upstream = raw_upstream(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let mut first = [0; 8];
        stream.read_exact(&mut first).await.unwrap();
        // The answer begins before the request ends, and its first part before its last.
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n")
            .await
            .unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.ok();
    })
    .await;
    let gateway = in_front_of(upstream).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        .await
        .unwrap();
    let head = tokio::time::timeout(support::PATIENCE, read_head(&mut stream))
        .await
        .unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut early = [0; 10];
    tokio::time::timeout(support::PATIENCE, stream.read_exact(&mut early))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&early, b"5\r\nearly\r\n");
}

#[tokio::test]
async fn an_upstream_that_does_not_read_holds_the_client_back() {
    let upstream = raw_upstream(async |stream: TcpStream| {
        tokio::time::sleep(support::PATIENCE).await;
        drop(stream);
    })
    .await;
    let gateway = in_front_of(upstream).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 900000000\r\n\r\n")
        .await
        .unwrap();
    let chunk = vec![b'x'; 64 * 1024];
    let mut sent = 0;
    while let Ok(result) =
        tokio::time::timeout(Duration::from_millis(500), stream.write_all(&chunk)).await
    {
        result.unwrap();
        sent += chunk.len();
        assert!(sent < 200_000_000, "the body is piled up somewhere");
    }
}

#[tokio::test]
async fn fields_of_one_connection_do_not_go_on() {
    let gateway = in_front_of(mirror().await).await;
    let request = Request::get("/x")
        .header("connection", "keep-alive, x-secret")
        .header("x-secret", "1")
        .header("keep-alive", "timeout=5")
        .header("proxy-authorization", "Basic x")
        .header("te", "trailers")
        .header("upgrade", "websocket")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-stays", "1");
    let answer = Client::new(gateway.address()).send(request).await;
    let text = answer.text();
    for gone in [
        "connection:",
        "x-secret",
        "keep-alive",
        "proxy-",
        "te:",
        "upgrade:",
        "6.6.6.6",
    ] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    let host = gateway.address().to_string();
    for there in [
        "x-stays: 1",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
        &format!("x-forwarded-host: {host}"),
        &format!("forwarded: for=127.0.0.1;host=\"{host}\";proto=http"),
        "via: 1.1 tidegate",
    ] {
        assert!(text.contains(there), "{there} in {text}");
    }
}

#[tokio::test]
async fn fields_of_the_upstream_s_connection_do_not_come_back() {
    let upstream = raw_upstream(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let answer = "HTTP/1.1 203 Fine\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: x\r\n\
                      Upgrade: h2c\r\nX-End: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let gateway = in_front_of(upstream).await;
    for client in [
        Client::new(gateway.address()),
        Client::h2c(gateway.address()),
    ] {
        let answer = client.get("/x").await;
        assert_eq!(answer.status.as_u16(), 203);
        for gone in ["connection", "x-hop", "keep-alive", "upgrade"] {
            assert!(!answer.headers.contains_key(gone), "{gone}");
        }
        assert_eq!(answer.field("x-end"), "1");
        assert_eq!(answer.headers.get_all("set-cookie").iter().count(), 2);
        assert_eq!(answer.text(), "ok");
    }
}

#[tokio::test]
async fn connections_to_an_upstream_are_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let upstream = raw_upstream(move |mut stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            while !read_head(&mut stream).await.is_empty() {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    .await
                    .unwrap();
            }
        }
    })
    .await;
    let gateway = in_front_of(upstream).await;
    let client = Client::new(gateway.address());
    for _ in 0..20 {
        assert_eq!(client.get("/x").await.text(), "ok");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// An upstream that answers the first request of each connection and closes it on the second.
async fn closes_on_the_second() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let address = raw_upstream(move |mut stream| {
        let counter = Arc::clone(&counter);
        async move {
            read_head(&mut stream).await;
            counter.fetch_add(1, Ordering::SeqCst);
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await
                .unwrap();
            if !read_head(&mut stream).await.is_empty() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    (address, seen)
}

#[tokio::test]
async fn an_idempotent_request_is_sent_again_when_a_pooled_connection_breaks() {
    let (upstream, seen) = closes_on_the_second().await;
    let gateway = in_front_of(upstream).await;
    let client = Client::new(gateway.address());
    for _ in 0..3 {
        assert_eq!(client.get("/x").await.status, StatusCode::OK);
    }
    assert_eq!(seen.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_post_is_never_sent_twice() {
    let (upstream, seen) = closes_on_the_second().await;
    let gateway = in_front_of(upstream).await;
    let client = Client::new(gateway.address());
    assert_eq!(
        client.send(Request::post("/x")).await.status,
        StatusCode::OK
    );
    assert_eq!(
        client.send(Request::post("/x")).await.status,
        StatusCode::BAD_GATEWAY
    );
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_upstream_that_is_down_is_a_bad_gateway() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let gateway = in_front_of(address).await;
    let client = Client::new(gateway.address());
    let answer = client.get("/x").await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert_eq!(answer.field("content-type"), "application/problem+json");
    let wants_text = Request::get("/x").header("accept", "text/plain");
    assert_eq!(
        client.send(wants_text).await.field("content-type"),
        "text/plain; charset=utf-8"
    );
}

#[tokio::test]
async fn an_upstream_that_says_nothing_times_out_and_one_that_talks_nonsense_does_not() {
    let silent = raw_upstream(async |stream: TcpStream| {
        tokio::time::sleep(support::PATIENCE).await;
        drop(stream);
    })
    .await;
    let nonsense = raw_upstream(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        stream.write_all(b"220 smtp ready\r\n\r\n").await.unwrap();
    })
    .await;
    let quick = support::within(
        Duration::from_millis(300),
        proxy("GET /silent", &[], silent),
    );
    let gateway = start(Setup {
        routes: vec![quick, proxy("GET /nonsense", &[], nonsense)],
        ..Setup::default()
    })
    .await;
    let client = Client::new(gateway.address());
    let begun = Instant::now();
    assert_eq!(
        client.get("/silent").await.status,
        StatusCode::GATEWAY_TIMEOUT
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(
        client.get("/nonsense").await.status,
        StatusCode::BAD_GATEWAY
    );
}

#[tokio::test]
async fn a_slow_upload_is_not_a_slow_upstream() {
    let upstream = echo().await;
    let quick = support::within(Duration::from_secs(1), proxy("POST /x", &[], upstream));
    let gateway = start(Setup {
        routes: vec![quick],
        ..Setup::default()
    })
    .await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 8\r\n\r\n")
        .await
        .unwrap();
    for byte in b"slowbody" {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stream.write_all(&[*byte]).await.unwrap();
    }
    let answer = support::read_all(&mut stream).await;
    assert_eq!(statuses(&answer), [200], "{answer}");
    assert!(answer.ends_with("slowbody"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_passed_off_as_whole() {
    for head in [
        "Content-Length: 100\r\n\r\nhalf",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let upstream = raw_upstream(move |mut stream| async move {
            read_head(&mut stream).await;
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes())
                .await
                .unwrap();
        })
        .await;
        let gateway = in_front_of(upstream).await;
        let answer = exchange(gateway.address(), b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(statuses(&answer), [200]);
        assert!(
            !answer.ends_with("0\r\n\r\n") && !answer.contains("content-length: 4\r\n"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_work_of_the_upstream() {
    let gone = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&gone);
    let upstream = raw_upstream(move |mut stream| {
        let notify = Arc::clone(&notify);
        async move {
            read_head(&mut stream).await;
            // The gateway closes the connection: the read ends.
            stream.read_u8().await.ok();
            notify.notify_one();
        }
    })
    .await;
    let gateway = in_front_of(upstream).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gateway.in_flight(), 1);
    drop(stream);
    tokio::time::timeout(support::PATIENCE, gone.notified())
        .await
        .unwrap();
    while gateway.in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(gateway.metrics().text().contains("status=\"499\""));
}

#[tokio::test]
async fn head_and_bodiless_answers_keep_their_fields_and_have_no_body() {
    let upstream = raw_upstream(async |mut stream: TcpStream| {
        loop {
            let head = read_head(&mut stream).await;
            let answer = match head.split(' ').nth(1) {
                Some("/same") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
                Some("/none") => "HTTP/1.1 204 No Content\r\n\r\n",
                Some(_) if head.starts_with("HEAD") => {
                    "HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n"
                }
                _ => return,
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let gateway = in_front_of(upstream).await;
    let request = "HEAD /x HTTP/1.1\r\nHost: a\r\n\r\nGET /same HTTP/1.1\r\nHost: a\r\n\r\n\
                   GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(gateway.address(), request.as_bytes()).await;
    assert_eq!(statuses(&answer), [200, 304, 204], "{answer}");
    assert!(answer.contains("content-length: 123\r\n"), "{answer}");
    assert!(answer.contains("etag: \"x\"\r\n"), "{answer}");
}

#[tokio::test]
async fn a_prefix_comes_before_the_path() {
    let upstream = mirror().await;
    let gateway = start(Setup {
        routes: vec![proxy_under("/base", "GET /a/{path+}", &[], upstream)],
        ..Setup::default()
    })
    .await;
    let answer = Client::new(gateway.address()).get("/a/b/?q=1").await;
    assert_eq!(answer.text().lines().next(), Some("GET /base/a/b/?q=1"));
    assert!(answer.text().contains(&format!("host: {upstream}\n")));
}

#[tokio::test]
async fn a_client_that_stops_in_its_body_is_told_so() {
    let gateway = start(Setup {
        routes: vec![proxy("ANY /{path+}", &[], echo().await)],
        timeouts: Timeouts {
            body: Duration::from_millis(300),
            ..Timeouts::default()
        },
        ..Setup::default()
    })
    .await;
    let request = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf";
    let answer = exchange(gateway.address(), request.as_bytes()).await;
    assert_eq!(statuses(&answer), [408], "{answer}");
}

#[tokio::test]
async fn an_upstream_that_stops_in_its_body_is_cut_off() {
    let upstream = raw_upstream(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            .await
            .unwrap();
        tokio::time::sleep(support::PATIENCE).await;
    })
    .await;
    let gateway = start(Setup {
        routes: vec![proxy("ANY /{path+}", &[], upstream)],
        timeouts: Timeouts {
            body: Duration::from_millis(300),
            ..Timeouts::default()
        },
        ..Setup::default()
    })
    .await;
    let answer = exchange(gateway.address(), b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.ends_with("half"), "{answer}");
}

#[tokio::test]
async fn expect_continue_is_answered_only_where_the_body_is_wanted() {
    let gateway = start(Setup {
        limits: vec![at_most("once", 1, &[])],
        routes: vec![Route {
            limits: vec![0],
            ..proxy("POST /x", &[], echo().await)
        }],
        ..Setup::default()
    })
    .await;
    let head = "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(
        read_head(&mut stream).await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    stream.write_all(b"hello").await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 429"));
}

#[tokio::test]
async fn an_upstream_may_refuse_a_body_before_it_has_read_it() {
    let upstream = raw_upstream(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let answer =
            "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig";
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        // It reads on for a moment, as servers do that want their answer to arrive.
        let mut rest = vec![0; 64 * 1024];
        let _ = tokio::time::timeout(Duration::from_millis(300), async {
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        })
        .await;
    })
    .await;
    let gateway = in_front_of(upstream).await;
    for _ in 0..10 {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        let head = "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = vec![b'x'; 100_000];
        for _ in 0..80 {
            if stream.write_all(&chunk).await.is_err() {
                break;
            }
        }
        let answer = support::read_all(&mut stream).await;
        assert_eq!(statuses(&answer), [413], "{answer}");
        assert!(answer.ends_with("big"), "{answer}");
    }
}

#[tokio::test]
async fn nonsense_from_an_upstream_is_not_asked_for_twice() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let upstream = raw_upstream(move |mut stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"what do you want?\r\n\r\n")
                .await
                .unwrap();
        }
    })
    .await;
    let gateway = in_front_of(upstream).await;
    let answer = Client::new(gateway.address()).get("/x").await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

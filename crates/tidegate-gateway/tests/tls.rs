//! TLS on the side of the clients, with real handshakes.

#[path = "support/certificates.rs"]
mod certificates;
mod support;

use std::time::Duration;

use certificates::{Folder, client_config, connect, shown};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ALL_VERSIONS;
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use support::{PATIENCE, Setup, mirror, mock, proxy, start};
use tidegate_config::Severity;
use tidegate_config::model::{Timeouts, Tls, TlsVersion};
use tidegate_gateway::{ReloadError, StartError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn serving(tls: Tls) -> Setup {
    Setup {
        tls: Some(tls),
        routes: vec![mock("GET /", &[], "ok")],
        ..Setup::default()
    }
}

#[tokio::test]
async fn a_client_gets_the_version_of_http_that_it_prefers_and_the_upstream_is_told_of_tls() {
    let folder = Folder::default();
    let own = folder.issue("a", &["shop.example"]);
    let upstream = mirror().await;
    let gateway = start(Setup {
        routes: vec![proxy("GET /", &[], upstream)],
        ..serving(folder.tls(&["a"]))
    })
    .await;
    assert!(gateway.is_secure());
    let trusted = [own];
    let config = client_config(&trusted, ALL_VERSIONS, &["http/1.1"]);
    let mut stream = connect(gateway.address(), "shop.example", config)
        .await
        .unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-forwarded-proto: https"), "{answer}");

    let config = client_config(&trusted, ALL_VERSIONS, &["h2", "http/1.1"]);
    let stream = connect(gateway.address(), "shop.example", config)
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let serving = tokio::spawn(connection);
    let request = Request::get("https://shop.example/").body(Empty::<&[u8]>::new());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("via: 2.0 tidegate"), "{text}");
    assert!(text.contains("proto=https"), "{text}");
    serving.abort();
}

#[tokio::test]
async fn the_certificate_is_that_of_the_host_which_the_client_names() {
    let folder = Folder::default();
    let first = folder.issue("first", &["first.example"]);
    let shop = folder.issue("shop", &["shop.example", "*.shop.example"]);
    let gateway = start(serving(folder.tls(&["first", "shop"]))).await;
    let trusted = [first.clone(), shop.clone()];
    for (host, wanted) in [
        ("first.example", &first),
        ("shop.example", &shop),
        ("www.Shop.Example", &shop),
    ] {
        let config = client_config(&trusted, ALL_VERSIONS, &[]);
        let stream = connect(gateway.address(), host, config).await.unwrap();
        assert_eq!(&shown(&stream), wanted, "{host}");
    }
    // Others are shown the first, which is not theirs: a client refuses.
    for host in ["other.example", "a.b.shop.example"] {
        let config = client_config(&trusted, ALL_VERSIONS, &[]);
        let error = connect(gateway.address(), host, config).await.unwrap_err();
        assert!(error.to_string().contains("not valid for name"), "{error}");
    }
}

#[tokio::test]
async fn a_version_below_the_lowest_is_not_spoken() {
    let folder = Folder::default();
    let own = folder.issue("a", &["a.example"]);
    let strict = Tls {
        min_version: TlsVersion::V1_3,
        ..folder.tls(&["a"])
    };
    let (usual, strict) = (
        start(serving(folder.tls(&["a"]))).await,
        start(serving(strict)).await,
    );
    for (gateway, version, is_served) in [
        (&usual, &TLS12, true),
        (&usual, &TLS13, true),
        (&strict, &TLS12, false),
        (&strict, &TLS13, true),
    ] {
        let config = client_config(std::slice::from_ref(&own), &[version], &[]);
        let connected = connect(gateway.address(), "a.example", config).await;
        assert_eq!(connected.is_ok(), is_served, "{version:?}");
    }
}

/// Connects until the gateway shows this certificate.
async fn until_shown(
    address: std::net::SocketAddr,
    trusted: &[CertificateDer<'static>],
    wanted: &CertificateDer<'static>,
) {
    let shows = async {
        loop {
            let config = client_config(trusted, ALL_VERSIONS, &[]);
            let stream = connect(address, "a.example", config).await.unwrap();
            if &shown(&stream) == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shows)
        .await
        .expect("the new certificate is taken over");
}

#[tokio::test]
async fn changed_files_are_taken_over_and_open_connections_live_on() {
    let folder = Folder::default();
    let old = folder.issue("a", &["a.example"]);
    let gateway = start(serving(folder.tls(&["a"]))).await;
    let config = client_config(std::slice::from_ref(&old), ALL_VERSIONS, &["http/1.1"]);
    let mut open = connect(gateway.address(), "a.example", config)
        .await
        .unwrap();
    let new = folder.issue("a", &["a.example"]);
    let trusted = [old, new.clone()];
    until_shown(gateway.address(), &trusted, &new).await;
    open.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("ok"), "{answer}");
}

#[tokio::test]
async fn files_that_do_not_fit_together_leave_the_last_good_ones_in_force() {
    let folder = Folder::default();
    let good = folder.issue("a", &["a.example"]);
    let other = folder.issue("b", &["a.example"]);
    let mut gateway = start(serving(folder.tls(&["a"]))).await;
    let trusted = [good.clone(), other.clone()];
    // A reload that names a pair which is none.
    let mut bad = folder.tls(&["a"]);
    bad.certificates[0].key = folder.path("b.key");
    let error = gateway.reload(&serving(bad).config()).unwrap_err();
    assert!(matches!(error, ReloadError::Tls(_)), "{error:?}");
    until_shown(gateway.address(), &trusted, &good).await;
    // A file that breaks while the gateway runs.
    std::fs::write(folder.path("a.pem"), "no certificate").unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    until_shown(gateway.address(), &trusted, &good).await;
    // It is mended by another pair.
    std::fs::copy(folder.path("b.pem"), folder.path("a.pem")).unwrap();
    std::fs::copy(folder.path("b.key"), folder.path("a.key")).unwrap();
    until_shown(gateway.address(), &trusted, &other).await;
    // A reload names other files.
    let third = folder.issue("c", &["a.example"]);
    let trusted = [third.clone(), other];
    let fixed = gateway.reload(&serving(folder.tls(&["c"])).config());
    assert!(fixed.unwrap().is_empty());
    until_shown(gateway.address(), &trusted, &third).await;
    // Only a restart turns TLS off.
    let mut plain = serving(folder.tls(&["c"]));
    plain.tls = None;
    assert_eq!(gateway.reload(&plain.config()).unwrap(), ["gateway.tls"]);
    until_shown(gateway.address(), &trusted, &third).await;
}

#[tokio::test]
async fn who_does_not_shake_hands_is_let_go() {
    let folder = Folder::default();
    folder.issue("a", &["a.example"]);
    let gateway = start(Setup {
        timeouts: Timeouts {
            header: Duration::from_millis(200),
            ..Timeouts::default()
        },
        ..serving(folder.tls(&["a"]))
    })
    .await;
    for bytes in [
        &b""[..],
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "{bytes:?}");
        assert!(!answer.starts_with(b"HTTP"), "{bytes:?}");
    }
    let drained = gateway.drain().await;
    assert_eq!(drained.cancelled, 0);
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_told_before_anything_is_opened() {
    let folder = Folder::default();
    folder.issue("good", &["a.example"]);
    folder.issue_until("old", &["a.example"], 2001);
    std::fs::write(folder.path("empty"), "").unwrap();
    let tls = |certificate: &str, key: &str| {
        let mut tls = folder.tls(&["good"]);
        tls.certificates[0] = folder.files(certificate, key);
        tls
    };
    for (certificate, key, severity, words) in [
        ("none.pem", "good.key", Severity::Error, "cannot read"),
        ("good.pem", "none.key", Severity::Error, "none.key"),
        ("empty", "good.key", Severity::Error, "holds no certificate"),
        ("good.pem", "empty", Severity::Error, "holds no private key"),
        (
            "good.key",
            "good.key",
            Severity::Error,
            "holds no certificate",
        ),
        ("good.pem", "old.key", Severity::Error, "does not belong"),
        ("old.pem", "old.key", Severity::Warning, "has expired"),
    ] {
        let config = serving(tls(certificate, key)).config();
        let problems = tidegate_gateway::tls::inspect(&config);
        let [problem] = problems.as_slice() else {
            panic!("{certificate} {key}: {problems:?}");
        };
        assert_eq!(problem.severity, severity, "{problem:?}");
        assert!(problem.message.contains(words), "{problem:?}");
        assert!(!problem.help.is_empty(), "{problem:?}");
        let started = tidegate_gateway::Running::start(&config).await;
        match severity {
            Severity::Error => assert!(matches!(started, Err(StartError::Tls(_)))),
            Severity::Warning => assert!(started.is_ok()),
        }
    }
    let fine = serving(tls("good.pem", "good.key")).config();
    assert!(tidegate_gateway::tls::inspect(&fine).is_empty());
}

//! Upstreams behind TLS and over HTTP/2, with real handshakes.

#[path = "support/certificates.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod certificates;
mod support;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use certificates::Folder;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use support::{Client, Setup, proxy, start};
use tidegate_config::Severity;
use tidegate_config::model::{Action, AuthorityFile, Route};
use tidegate_gateway::StartError;
use tidegate_gateway::generation::BuildError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Answers one connection's requests with what it sees of them.
async fn answer(io: impl AsyncRead + AsyncWrite + Unpin, name: Option<String>, is_http2: bool) {
    let service = service_fn(move |request: Request<Incoming>| {
        let text = format!(
            "{:?} to {} for {}",
            request.version(),
            name.as_deref().unwrap_or("-"),
            request.headers()["host"].to_str().unwrap()
        );
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(text))) }
    });
    let io = TokioIo::new(io);
    // Who does not trust the upstream leaves in the middle.
    if is_http2 {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(io, service).await.ok();
    } else {
        let server = hyper::server::conn::http1::Builder::new();
        server.serve_connection(io, service).await.ok();
    }
}

/// An upstream with the certificate `upstream` of a folder.
async fn tls_upstream(folder: &Folder, alpn: &[&str]) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_file(folder.path("upstream.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(folder.path("upstream.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let session = stream.get_ref().1;
                let name = session.server_name().map(str::to_owned);
                let is_http2 = session.alpn_protocol() == Some(b"h2");
                answer(stream, name, is_http2).await;
            });
        }
    });
    address
}

/// A route to `https://localhost` at this port.
fn secure(upstream: SocketAddr, ca: Option<PathBuf>, http2: bool) -> Route {
    let mut route = proxy("GET /", &[], upstream);
    let Action::Proxy(proxy) = &mut route.action else {
        panic!("not a proxy")
    };
    proxy.url = format!("https://localhost:{}", upstream.port());
    proxy.authority = format!("localhost:{}", upstream.port()).parse().unwrap();
    proxy.tls = true;
    proxy.ca = ca.map(|path| AuthorityFile { path, at: None });
    proxy.http2 = http2;
    route
}

fn to(route: Route) -> Setup {
    Setup {
        routes: vec![route],
        ..Setup::default()
    }
}

#[tokio::test]
async fn an_upstream_is_reached_by_tls_under_its_name_over_the_version_that_was_chosen() {
    let folder = Folder::default();
    folder.issue("upstream", &["localhost"]);
    let both = tls_upstream(&folder, &["h2", "http/1.1"]).await;
    let old = tls_upstream(&folder, &["http/1.1"]).await;
    for (upstream, http2, version) in [
        (both, false, "HTTP/1.1"),
        (both, true, "HTTP/2.0"),
        (old, true, "HTTP/1.1"),
    ] {
        let route = secure(upstream, Some(folder.path("upstream.pem")), http2);
        let gateway = start(to(route)).await;
        let client = Client::new(gateway.address());
        for _ in 0..3 {
            let port = upstream.port();
            assert_eq!(
                client.get("/").await.text(),
                format!("{version} to localhost for localhost:{port}")
            );
        }
    }
}

#[tokio::test]
async fn http2_without_tls_is_spoken_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, None, true));
        }
    });
    let mut route = proxy("GET /", &[], upstream);
    let Action::Proxy(proxy) = &mut route.action else {
        panic!("not a proxy")
    };
    proxy.http2 = true;
    let gateway = start(to(route)).await;
    let answer = Client::new(gateway.address()).get("/").await;
    assert_eq!(answer.text(), format!("HTTP/2.0 to - for {upstream}"));
}

#[tokio::test]
async fn an_upstream_that_nobody_vouches_for_is_not_spoken_to() {
    let folder = Folder::default();
    folder.issue("upstream", &["localhost"]);
    folder.issue("stranger", &["localhost"]);
    let upstream = tls_upstream(&folder, &[]).await;
    let stranger = secure(upstream, Some(folder.path("stranger.pem")), false);
    let mut gateway = start(to(stranger)).await;
    let client = Client::new(gateway.address());
    assert_eq!(client.get("/").await.status, StatusCode::BAD_GATEWAY);
    // The file is read again by a reload.
    std::fs::copy(folder.path("upstream.pem"), folder.path("stranger.pem")).unwrap();
    let known = secure(upstream, Some(folder.path("stranger.pem")), false);
    gateway.reload(&to(known).config()).unwrap();
    assert_eq!(client.get("/").await.status, StatusCode::OK);

    folder.issue("upstream", &["other.example"]);
    let upstream = tls_upstream(&folder, &[]).await;
    let other = secure(upstream, Some(folder.path("upstream.pem")), false);
    gateway.reload(&to(other).config()).unwrap();
    assert_eq!(client.get("/").await.status, StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn authorities_that_cannot_be_read_are_told_before_anything_is_opened() {
    let folder = Folder::default();
    std::fs::write(folder.path("empty"), "").unwrap();
    let upstream = "127.0.0.1:9".parse().unwrap();
    for (file, words) in [("none", "cannot read"), ("empty", "holds no certificate")] {
        let config = to(secure(upstream, Some(folder.path(file)), false)).config();
        let problems = tidegate_gateway::tls::inspect(&config);
        let [problem] = problems.as_slice() else {
            panic!("{problems:?}");
        };
        assert_eq!(problem.severity, Severity::Error);
        assert!(problem.message.contains(words), "{problem:?}");
        let started = tidegate_gateway::Running::start(&config).await;
        let Err(StartError::Build(BuildError::Upstream(..))) = started else {
            panic!("{started:?}");
        };
    }
}

//! Certificates in files, and clients that say which they were shown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tidegate_config::model::{CertificateFiles, Tls, TlsVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A folder of certificates that sign themselves.
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Folder {
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Writes `FILE.pem` and `FILE.key`; returns the certificate.
    pub fn issue(&self, file: &str, names: &[&str]) -> CertificateDer<'static> {
        self.issue_until(file, names, 2999)
    }

    /// The same, valid until the end of a year.
    pub fn issue_until(&self, file: &str, names: &[&str], year: i32) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
        CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()
    }

    pub fn files(&self, certificate: &str, key: &str) -> CertificateFiles {
        CertificateFiles {
            certificate: self.path(certificate),
            key: self.path(key),
            certificate_at: None,
            key_at: None,
        }
    }

    /// The pairs of these names.
    pub fn tls(&self, files: &[&str]) -> Tls {
        let pair = |file: &&str| self.files(&format!("{file}.pem"), &format!("{file}.key"));
        Tls {
            certificates: files.iter().map(pair).collect(),
            min_version: TlsVersion::V1_2,
        }
    }
}

/// What a client offers and whom it trusts.
pub fn client_config(
    trusted: &[CertificateDer<'static>],
    versions: &[&'static SupportedProtocolVersion],
    alpn: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.clone()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Shakes hands as a client that wants to reach `host`.
pub async fn connect(
    address: SocketAddr,
    host: &str,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(config).connect(name, stream).await
}

/// The certificate that the other side has shown.
pub fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let (_, session) = stream.get_ref();
    session.peer_certificates().unwrap()[0].clone().into_owned()
}

//! TLS on the side of the upstreams: whom the gateway believes.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::tls::TlsError;

/// The authorities that may vouch for an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those that this system knows.
    System,
    /// Those of a file, and no others.
    Authorities(Vec<CertificateDer<'static>>),
}

impl Trust {
    /// Reads the authorities of a PEM file.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no certificate.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let bytes = std::fs::read(path).map_err(|error| TlsError::Read(path.to_owned(), error))?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let certificates = read.ok().filter(|certificates| !certificates.is_empty());
        let certificates = certificates.ok_or_else(|| TlsError::NoCertificate(path.to_owned()))?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots
                .add(certificate.clone())
                .map_err(|error| TlsError::BadAuthority(path.to_owned(), error))?;
        }
        Ok(Self::Authorities(certificates))
    }

    /// What a client needs that believes these.
    ///
    /// # Errors
    /// [`TlsError::NoAuthorities`] on a system that knows none.
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let certificates = match self {
            Self::System => rustls_native_certs::load_native_certs().certs,
            Self::Authorities(certificates) => certificates.clone(),
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(TlsError::NoAuthorities);
        }
        believing(roots)
    }

    /// What a client needs that never shakes hands.
    ///
    /// # Errors
    /// None that a file could cause.
    pub fn nobody() -> Result<ClientConfig, TlsError> {
        believing(RootCertStore::empty())
    }
}

fn believing(roots: RootCertStore) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Settings)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

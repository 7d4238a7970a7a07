//! TLS on the side of the clients: certificates from files, chosen by name, taken over as they
//! change.
//!
//! A certificate and its key are two files that nobody can replace at once. Whatever does not fit
//! together is refused as a whole and the last good set stays, so the moment between the two is
//! only a line in the log.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, ServerConfig};
use tidegate_config::model::{Action, CertificateFiles, Config, Tls, TlsVersion};
use tidegate_config::{Problem, Span};
use webpki::EndEntityCert;

use crate::trust::Trust;
use crate::watch::Watch;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that is not there, or cannot be read.
    #[error("cannot read {}; give the path of a PEM file", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A file without a certificate.
    #[error("{} holds no certificate; it should be PEM, from `-----BEGIN CERTIFICATE-----` on", .0.display())]
    NoCertificate(PathBuf),
    /// What stands between the lines of a certificate is none.
    #[error("the certificate in {} cannot be read; issue it again", .0.display())]
    BadCertificate(PathBuf, #[source] webpki::Error),
    /// A file without a private key.
    #[error("{} holds no private key; it should be PEM, without a password", .0.display())]
    NoKey(PathBuf),
    /// A key of a kind that is not supported.
    #[error("the key in {} cannot be used; issue an ECDSA, Ed25519 or RSA key", .0.display())]
    BadKey(PathBuf, #[source] rustls::Error),
    /// A key that belongs to another certificate.
    #[error("the key in {} does not belong to the certificate in {}; give the two that were issued together", .key.display(), .certificate.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// A certificate that cannot stand for an authority.
    #[error("{} holds what is no certificate of an authority; give the one that signed the upstream's", .0.display())]
    BadAuthority(PathBuf, #[source] rustls::Error),
    /// An upstream behind TLS, and nobody who could vouch for it.
    #[error(
        "this system knows no authorities; install its package `ca-certificates`, or name a file in `ca`"
    )]
    NoAuthorities,
    /// A combination of settings that the TLS library refuses.
    #[error("TLS cannot be set up like this")]
    Settings(#[source] rustls::Error),
}

impl TlsError {
    /// Whether the file of the key is to blame.
    fn is_of_the_key(&self) -> bool {
        matches!(
            self,
            Self::NoKey(_) | Self::BadKey(..) | Self::Mismatch { .. }
        )
    }
}

/// Opens the files that a configuration names, and tells what is wrong with them: errors for what
/// the gateway could not start with, warnings for certificates that clients will refuse.
#[must_use]
pub fn inspect(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    let tls = config
        .gateway
        .as_ref()
        .and_then(|gateway| gateway.tls.as_ref());
    for files in tls.into_iter().flat_map(|tls| &tls.certificates) {
        match Content::read(files).and_then(|content| content.certified(files)) {
            Ok(key) => problems.extend(doubt(&key).map(|doubt| {
                let file = files.certificate.display();
                Problem::warning("TG-LINT-070", format!("the certificate in {file} {doubt}"))
                    .at(files.certificate_at)
                    .help("clients will refuse it; renew it")
            })),
            Err((at, error)) => problems.push(told(&error, at)),
        }
    }
    let routes = config.gateway.iter().flat_map(|gateway| &gateway.routes);
    for route in routes {
        let Action::Proxy(proxy) = &route.action else {
            continue;
        };
        let Some(file) = &proxy.ca else { continue };
        let trust = Trust::read(&file.path).and_then(|trust| trust.client_config());
        problems.extend(trust.err().map(|error| told(&error, file.at)));
    }
    problems
}

fn told(error: &TlsError, at: Option<Span>) -> Problem {
    let text = error.to_string();
    let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
    let mut message = message.to_owned();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        message = format!("{message}: {inner}");
        cause = inner.source();
    }
    let problem = Problem::error(message).at(at);
    if help.is_empty() {
        problem
    } else {
        problem.help(help)
    }
}

/// Why clients will refuse a certificate now.
fn doubt(key: &CertifiedKey) -> Option<&'static str> {
    let certificate = EndEntityCert::try_from(key.cert.first()?).ok()?;
    // Without any authority this always fails: at the dates first, if they are wrong.
    let verified = certificate.verify_for_usage(
        &[],
        &[],
        &[],
        UnixTime::now(),
        webpki::KeyUsage::server_auth(),
        None,
        None,
    );
    match verified.err()? {
        webpki::Error::CertExpired { .. } => Some("has expired"),
        webpki::Error::CertNotValidYet { .. } => Some("is not valid yet"),
        _ => None,
    }
}

/// The two files of a certificate, read.
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

type Placed<T> = Result<T, (Option<Span>, TlsError)>;

impl Content {
    fn read(files: &CertificateFiles) -> Placed<Self> {
        let read = |path: &PathBuf, at| {
            std::fs::read(path).map_err(|error| (at, TlsError::Read(path.clone(), error)))
        };
        Ok(Self {
            certificate: read(&files.certificate, files.certificate_at)?,
            key: read(&files.key, files.key_at)?,
        })
    }

    fn certified(&self, files: &CertificateFiles) -> Placed<CertifiedKey> {
        let certified = self.certified_key(files);
        certified.map_err(|error| {
            let at = if error.is_of_the_key() {
                files.key_at
            } else {
                files.certificate_at
            };
            (at, error)
        })
    }

    fn certified_key(&self, files: &CertificateFiles) -> Result<CertifiedKey, TlsError> {
        let no_certificate = || TlsError::NoCertificate(files.certificate.clone());
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|_| no_certificate())?;
        let own = chain.first().ok_or_else(no_certificate)?;
        EndEntityCert::try_from(own)
            .map_err(|error| TlsError::BadCertificate(files.certificate.clone(), error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError::NoKey(files.key.clone()))?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| TlsError::BadKey(files.key.clone(), error))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(certified)
            }
            Err(_) => Err(TlsError::Mismatch {
                key: files.key.clone(),
                certificate: files.certificate.clone(),
            }),
        }
    }
}

/// A set of certificates that fits together, and the files that it came from.
pub(crate) struct Loaded {
    tls: Tls,
    server: Arc<ServerConfig>,
    watches: Vec<Watch>,
}

/// Reads all files.
///
/// # Errors
/// What [`TlsError`] lists; the first that is found.
pub(crate) fn load(tls: &Tls) -> Result<Loaded, TlsError> {
    let mut watches = Vec::new();
    let mut keys = Vec::new();
    for files in &tls.certificates {
        let content = Content::read(files).map_err(|(_, error)| error)?;
        let certified = content.certified_key(files)?;
        if let Some(doubt) = doubt(&certified) {
            let file = files.certificate.display();
            tracing::warn!(%file, "the certificate {doubt}; clients will refuse it");
        }
        keys.push(Arc::new(certified));
        watches.push(Watch::new(&files.certificate, content.certificate));
        watches.push(Watch::new(&files.key, content.key));
    }
    let versions: &[_] = match tls.min_version {
        TlsVersion::V1_2 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersion::V1_3 => &[&rustls::version::TLS13],
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(TlsError::Settings)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ByName::new(keys)));
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Loaded {
        tls: tls.clone(),
        server: Arc::new(server),
        watches,
    })
}

/// The certificates in force.
pub(crate) struct Certificates {
    current: ArcSwap<ServerConfig>,
    files: Mutex<(Tls, Vec<Watch>)>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    pub(crate) fn new(loaded: Loaded) -> Self {
        Self {
            current: ArcSwap::new(loaded.server),
            files: Mutex::new((loaded.tls, loaded.watches)),
        }
    }

    /// What the next connection is served with.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Puts others in force; connections that are open keep what they have.
    pub(crate) fn replace(&self, loaded: Loaded) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        self.current.store(loaded.server);
        *files = (loaded.tls, loaded.watches);
    }

    /// Looks whether a file has changed, and takes the change over. Reads files.
    pub(crate) fn look(&self) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let (tls, watches) = &mut *files;
        let mut changed = false;
        for watch in watches.iter_mut() {
            changed |= watch.look().is_some();
        }
        if !changed {
            return;
        }
        match load(tls) {
            Ok(loaded) => {
                self.current.store(loaded.server);
                *watches = loaded.watches;
                tracing::info!("certificates reloaded");
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(cause, "{error}; the last good certificates stay in force");
            }
        }
    }
}

/// Chooses by the host that a client names.
#[derive(Debug)]
struct ByName {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// By what follows the star and its dot.
    wild: HashMap<String, Arc<CertifiedKey>>,
    first: Option<Arc<CertifiedKey>>,
}

impl ByName {
    /// Where two have the same name, the one before wins.
    fn new(keys: Vec<Arc<CertifiedKey>>) -> Self {
        let (mut exact, mut wild) = (HashMap::new(), HashMap::new());
        for key in &keys {
            let Some(Ok(certificate)) = key.cert.first().map(EndEntityCert::try_from) else {
                continue;
            };
            for name in certificate.valid_dns_names() {
                let name = name.to_ascii_lowercase();
                match name.strip_prefix("*.") {
                    Some(rest) => wild.entry(rest.to_owned()),
                    None => exact.entry(name),
                }
                .or_insert_with(|| Arc::clone(key));
            }
        }
        let first = keys.into_iter().next();
        Self { exact, wild, first }
    }

    fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        self.exact.get(&name).or_else(|| {
            let (_, rest) = name.split_once('.')?;
            self.wild.get(rest)
        })
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| self.find(name));
        named.or(self.first.as_ref()).cloned()
    }
}

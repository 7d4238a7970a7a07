//! Certificates of an authority that nobody else trusts.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

/// An authority, a server's certificate for `localhost` and `127.0.0.1`, and a client's; all PEM.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// What signs the other two.
    pub authority: String,
    /// What a server shows.
    pub server: String,
    /// The server's key.
    pub server_key: String,
    /// What a client shows.
    pub client: String,
    /// The client's key.
    pub client_key: String,
}

impl Certificates {
    /// Makes new ones.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        // A certificate of its issuer's name would look as if it had signed itself.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let signed = |names: &[&str]| {
            let key = KeyPair::generate().expect("a key");
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let params = CertificateParams::new(names).expect("names of hosts");
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            (certificate.pem(), key.serialize_pem())
        };
        let (server, server_key) = signed(&["localhost", "127.0.0.1"]);
        let (client, client_key) = signed(&["client"]);
        Self {
            authority: authority.pem(),
            server,
            server_key,
            client,
            client_key,
        }
    }

    /// Writes what a server reads into a directory.
    pub(crate) fn write(&self, directory: &Path) {
        for (name, text) in [
            ("authority.pem", &self.authority),
            ("server.pem", &self.server),
            ("server.key", &self.server_key),
        ] {
            std::fs::write(directory.join(name), text).expect("a certificate's file");
        }
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

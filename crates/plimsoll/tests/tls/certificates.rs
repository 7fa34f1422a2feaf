//! Certificates made for a test.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use std::path::{Path, PathBuf};

/// Who signs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: rustls::pki_types::CertificateDer<'static>,
}

/// A certificate and its key, as files.
pub(crate) struct Signed {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Signed {
    pub(crate) fn certificate(&self) -> &str {
        self.certificate.to_str().unwrap()
    }

    pub(crate) fn key(&self) -> &str {
        self.key.to_str().unwrap()
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Authority { issuer: Issuer::new(params, key), pem, der }
    }

    /// Its own certificate in a file.
    pub(crate) fn file(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, &self.pem).unwrap();
        path
    }

    /// The certificates that a client trusts which trusts this one.
    pub(crate) fn roots(&self) -> rustls::RootCertStore {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        roots
    }

    /// Signs a certificate for this machine's loopback address, for servers and clients.
    pub(crate) fn sign(&self, directory: &Path, name: &str) -> Signed {
        self.sign_until(directory, name, 2999)
    }

    /// As [`Authority::sign`], until the beginning of a year.
    pub(crate) fn sign_until(&self, directory: &Path, name: &str, year: i32) -> Signed {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let signed = Signed {
            certificate: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
        };
        std::fs::write(&signed.certificate, certificate.pem()).unwrap();
        std::fs::write(&signed.key, key.serialize_pem()).unwrap();
        signed
    }
}

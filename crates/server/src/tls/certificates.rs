//! Certificates and keys: from files to what handshakes use.
//!
//! Place on the path: before the start, and at SIGHUP. Invariants: an error names the setting, the file and
//! what is wrong with it; what cannot be used never replaces what is in use; a handshake takes what was in
//! force when it began.
//!
//! Never: it tells anything of a key.

use crate::config::ConfigError;
use crate::limits::PEM_BYTES_MAX;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{Error, RootCertStore, ServerConfig};
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use x509_cert::der::Decode;

/// The files that TLS needs, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// The key of the first one.
    pub key: PathBuf,
    /// Who signs the certificates that clients have to show; without it they need none.
    pub client_authorities: Option<PathBuf>,
}

/// The certificates in force. The lock is taken once for each connection, by no request.
#[derive(Debug)]
pub struct Tls {
    /// Where they come from.
    pub files: TlsFiles,
    config: Mutex<Arc<ServerConfig>>,
    expires_s: AtomicU64,
}

/// What was read from the files.
struct Loaded {
    config: ServerConfig,
    expires_s: u64,
}

fn refused(setting: &str, path: &Path, what: impl Display) -> ConfigError {
    ConfigError(format!("{setting}: {}: {what}", path.display()))
}

/// The text of a file, which is small if it is what it should be.
fn read(setting: &str, path: &Path) -> Result<Vec<u8>, ConfigError> {
    let mut text = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(PEM_BYTES_MAX as u64 + 1).read_to_end(&mut text));
    read.map_err(|error| refused(setting, path, format!("cannot be read: {error}")))?;
    if text.len() > PEM_BYTES_MAX {
        return Err(refused(setting, path, format!("has more than {PEM_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Why a PEM text cannot be read, in words.
fn broken_pem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "is no PEM: a section has no end".to_owned(),
        pem::Error::IllegalSectionStart { .. } => {
            "is no PEM: the beginning of a section is broken".to_owned()
        }
        pem::Error::Base64Decode(_) => "is no PEM: a section is no base64".to_owned(),
        other => format!("is no PEM: {other}"),
    }
}

fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let text = read(setting, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| refused(setting, path, broken_pem(&error)))?;
    if all.is_empty() {
        return Err(refused(setting, path, "holds no certificate (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(all)
}

fn key(setting: &str, path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    let text = read(setting, path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let is_encrypted =
            text.windows(9).any(|word| word == b"ENCRYPTED") && matches!(error, pem::Error::NoItemsFound);
        match error {
            _ if is_encrypted => refused(setting, path, "the key is encrypted; give it without a passphrase"),
            pem::Error::NoItemsFound => refused(setting, path, "holds no private key in PEM"),
            error => refused(setting, path, broken_pem(&error)),
        }
    })
}

/// Until when a certificate is valid, in seconds since 1970.
fn expires_s(path: &Path, certificate: &CertificateDer<'_>) -> Result<u64, ConfigError> {
    let parsed = x509_cert::Certificate::from_der(certificate)
        .map_err(|error| refused("tls-cert", path, format!("is no X.509 certificate: {error}")))?;
    Ok(parsed.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
}

/// Who checks the certificates of clients.
fn client_verifier(files: &TlsFiles) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let Some(path) = &files.client_authorities else { return Ok(WebPkiClientVerifier::no_client_auth()) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls-client-ca", path)? {
        let added = roots.add(certificate);
        added.map_err(|error| refused("tls-client-ca", path, format!("cannot be used: {error}")))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|error| refused("tls-client-ca", path, format!("cannot be used: {error}")))
}

fn load(files: &TlsFiles) -> Result<Loaded, ConfigError> {
    let chain = certificates("tls-cert", &files.certificate)?;
    let expires_s = expires_s(&files.certificate, &chain[0])?;
    let key = key("tls-key", &files.key)?;
    let verifier = client_verifier(files)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| ConfigError(format!("tls-resp: {error}")))?;
    let built = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key);
    let mut config = built.map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            let certificate = files.certificate.display();
            refused("tls-key", &files.key, format!("does not belong to the certificate in {certificate}"))
        }
        Error::InvalidCertificate(error) => {
            refused("tls-cert", &files.certificate, format!("cannot be used: {error}"))
        }
        error => refused("tls-key", &files.key, format!("cannot be used: {error}")),
    })?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded { config, expires_s })
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file it is, and what is wrong with it.
    pub fn load(files: TlsFiles) -> Result<Tls, ConfigError> {
        let loaded = load(&files)?;
        Ok(Tls {
            files,
            config: Mutex::new(Arc::new(loaded.config)),
            expires_s: AtomicU64::new(loaded.expires_s),
        })
    }

    /// Reads the files again, for the handshakes that begin from now on.
    ///
    /// # Errors
    /// As [`Tls::load`]; what is in force stays.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let loaded = load(&self.files)?;
        *self.config.lock().expect("nobody panics while holding it") = Arc::new(loaded.config);
        self.expires_s.store(loaded.expires_s, Relaxed);
        Ok(())
    }

    /// Until when the server's certificate is valid, in seconds since 1970.
    #[must_use]
    pub fn expires_s(&self) -> u64 {
        self.expires_s.load(Relaxed)
    }

    /// Whether the server's certificate has ended: clients will refuse it.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        UnixTime::now().as_secs() >= self.expires_s()
    }

    /// For a handshake that begins.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.lock().expect("nobody panics while holding it").clone()
    }
}

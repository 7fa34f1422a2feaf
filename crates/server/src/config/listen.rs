//! Where RESP is served: plain, over TLS, or both.
//!
//! Invariants: there is one address at least; TLS has its files, and files of TLS have an address; what
//! others can reach asks for a password.

use super::{ConfigError, Layer};
use crate::core::Addresses;
use crate::tls::TlsFiles;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen on, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen(pub Option<SocketAddr>);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if text == "none" {
            return Ok(Listen(None));
        }
        let address = text.parse().map_err(|_| {
            format!("'{text}' is no address; say it like \"127.0.0.1:6379\" or \"[::1]:6379\", or \"none\"")
        })?;
        Ok(Listen(Some(address)))
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Listen, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where RESP is served, and with which files. Part of the configuration, under the names of the flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Network {
    /// For clients without TLS.
    pub resp: Listen,
    /// For clients with TLS.
    pub tls_resp: Listen,
    /// The certificate of the server, and those that lead to its authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// Its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Who signs the certificates that clients have to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_client_ca: Option<PathBuf>,
}

/// Whether a connection may come to both. Port 0 is another one each time.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    // An IPv6 socket for all addresses takes connections of IPv4, too.
    let takes =
        |one: SocketAddr, other: SocketAddr| one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    let is_shared = one.ip().to_canonical() == other.ip().to_canonical();
    one.port() != 0 && one.port() == other.port() && (is_shared || takes(one, other) || takes(other, one))
}

impl Network {
    /// What a layer says of it, or the defaults.
    pub(super) fn new(layer: &Layer) -> Result<Network, ConfigError> {
        let network = Network {
            resp: layer.resp.unwrap_or(Listen(Some(SocketAddr::from(([127, 0, 0, 1], 6379))))),
            tls_resp: layer.tls_resp.unwrap_or(Listen(None)),
            tls_cert: layer.tls_cert.clone(),
            tls_key: layer.tls_key.clone(),
            tls_client_ca: layer.tls_client_ca.clone(),
        };
        let refused = |words: &str| Err(ConfigError(words.to_owned()));
        let files = [
            ("tls-cert", &network.tls_cert),
            ("tls-key", &network.tls_key),
            ("tls-client-ca", &network.tls_client_ca),
        ];
        if (network.resp.0, network.tls_resp.0) == (None, None) {
            return refused("resp: none, and there is no tls-resp: no client could connect; give one");
        }
        if network.tls_resp.0.is_some() {
            if let Some((name, _)) = files.iter().take(2).find(|(_, file)| file.is_none()) {
                return refused(&format!("tls-resp: needs {name}, a file in PEM"));
            }
        } else if layer.tls_resp.is_none() {
            // Who says `none` switches TLS off, and may leave the rest as it is.
            if let Some((name, _)) = files.iter().find(|(_, file)| file.is_some()) {
                return refused(&format!("{name}: given, but TLS is not served; say where with tls-resp"));
            }
        }
        Ok(network)
    }

    /// Refuses one address for two of them, of which the admin port is one.
    pub(super) fn check_apart(&self, admin: SocketAddr) -> Result<(), ConfigError> {
        let all = [("resp", self.resp.0), ("tls-resp", self.tls_resp.0), ("admin", Some(admin))];
        for (number, (name, address)) in all.iter().enumerate() {
            let meets = |(_, other): &&(_, Option<SocketAddr>)| {
                address.zip(*other).is_some_and(|(one, other)| meet(one, other))
            };
            if let Some((other, _)) = all[..number].iter().find(meets) {
                return Err(ConfigError(format!(
                    "{name}: the same address as {other}; give it another port"
                )));
            }
        }
        Ok(())
    }

    /// Refuses an address that others can reach, unless there is a password.
    pub(super) fn check_protected(&self, is_protected: bool) -> Result<(), ConfigError> {
        for (name, listen) in [("resp", self.resp), ("tls-resp", self.tls_resp)] {
            if let Some(address) = listen.0.filter(|address| !address.ip().is_loopback() && !is_protected) {
                return Err(ConfigError(format!(
                    "{name}: others can reach {address}, and there is no password: give one \
                     (--password-file), or say --unprotected"
                )));
            }
        }
        Ok(())
    }

    /// The addresses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses { plain: self.resp.0, tls: self.tls_resp.0 }
    }

    /// The files of TLS, if it is served.
    #[must_use]
    pub fn tls_files(&self) -> Option<TlsFiles> {
        self.tls_resp.0?;
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_authorities: self.tls_client_ca.clone(),
        })
    }
}

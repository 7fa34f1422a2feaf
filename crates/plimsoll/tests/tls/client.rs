//! A client over TLS that blocks.

use plimsoll_resp::request;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use std::io::{Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct TlsClient {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
}

/// A connection of TLS that has not begun.
pub(crate) fn connection(
    roots: RootCertStore,
    version: &'static SupportedProtocolVersion,
) -> ClientConnection {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_webpki_verifier(verifier.build().unwrap())
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), ServerName::try_from("127.0.0.1").unwrap()).unwrap()
}

impl TlsClient {
    pub(crate) fn connect(
        address: &str,
        roots: RootCertStore,
        version: &'static SupportedProtocolVersion,
    ) -> TlsClient {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        TlsClient { stream: StreamOwned::new(connection(roots, version), socket) }
    }

    pub(crate) fn send(&mut self, args: &[&[u8]]) -> Result<()> {
        let mut bytes = Vec::new();
        request::encode(args, &mut bytes);
        self.stream.write_all(&bytes)?;
        self.stream.flush()
    }

    /// Sends a command and expects these bytes.
    pub(crate) fn expect(&mut self, args: &[&[u8]], reply: &[u8]) {
        self.send(args).unwrap();
        self.receive(reply);
    }

    /// Expects these bytes.
    pub(crate) fn receive(&mut self, reply: &[u8]) {
        let mut bytes = vec![0; reply.len()];
        self.stream.read_exact(&mut bytes).unwrap();
        assert!(bytes == reply, "another reply: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)]));
    }
}

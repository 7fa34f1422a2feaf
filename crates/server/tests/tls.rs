//! TLS over the simulated network: bytes that come one by one, and handshakes that come to no end, in
//! virtual time.

use crate::common::{Bench, Setup, encoded, run, show, tls_address};
use plimsoll_reactor::Socket;
use plimsoll_server::tls::{Tls, TlsFiles};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

/// A server's certificate that signs itself, and what knows it.
fn made(name: &str) -> (&'static Arc<Tls>, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let (certificate, key) = (directory.join("crt"), directory.join("key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Tls::load(TlsFiles { certificate, key, client_authorities: None }).unwrap();
    (Box::leak(Box::new(Arc::new(tls))), made.cert.der().clone())
}

/// A client over TLS that sends pieces of so many bytes.
struct Client {
    socket: Socket,
    connection: ClientConnection,
    piece_bytes: usize,
    plain: Vec<u8>,
}

impl Client {
    async fn connect(bench: &Bench, root: &CertificateDer<'static>, piece_bytes: usize) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_webpki_verifier(verifier.build().unwrap())
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = bench.reactor.connect(tls_address()).unwrap();
        bench.pause_ms(1).await;
        let mut client = Client { socket, connection, piece_bytes, plain: Vec::new() };
        client.flush(bench).await;
        while client.connection.is_handshaking() {
            assert!(client.receive().await, "the server has closed the connection");
            client.flush(bench).await;
        }
        client
    }

    async fn flush(&mut self, bench: &Bench) {
        let mut sealed = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut sealed).unwrap();
        }
        for piece in sealed.chunks(self.piece_bytes) {
            self.socket.send(piece.to_vec()).await.0.unwrap();
            bench.reactor.sleep_ns(50_000).await;
        }
    }

    /// Receives and opens more; false at the end of the stream.
    async fn receive(&mut self) -> bool {
        let (received, sealed) = self.socket.receive(Vec::new(), 1 << 20).await;
        let mut rest = sealed.as_slice();
        while !rest.is_empty() {
            self.connection.read_tls(&mut rest).unwrap();
            let state = self.connection.process_new_packets().unwrap();
            let before = self.plain.len();
            self.plain.resize(before + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut self.plain[before..]).unwrap();
        }
        matches!(received, Ok(count) if count > 0)
    }

    /// Sends a command and expects these bytes.
    async fn expect(&mut self, bench: &Bench, args: &[&str], reply: &[u8]) {
        let bytes = encoded(args);
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let taken = self.connection.writer().write(left).unwrap();
            left = &left[taken..];
            self.flush(bench).await;
        }
        while self.plain.len() < reply.len() {
            assert!(self.receive().await, "the server has closed the connection");
        }
        assert!(self.plain == reply, "another reply: {}", String::from_utf8_lossy(&self.plain));
        self.plain.clear();
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    let (tls, root) = made("tls-pieces");
    run(Setup { tls: Some(tls), ..Setup::default() }, move |bench| {
        let root = root.clone();
        async move {
            for piece_bytes in [1, 7, 1000, usize::MAX] {
                let mut client = Client::connect(&bench, &root, piece_bytes).await;
                client.expect(&bench, &["PING"], b"+PONG\r\n").await;
                let value = "v".repeat(if piece_bytes == 1 { 100 } else { 40_000 });
                client.expect(&bench, &["SET", "k", &value], b"+OK\r\n").await;
                let reply = format!("${}\r\n{value}\r\n", value.len());
                client.expect(&bench, &["GET", "k"], reply.as_bytes()).await;
                client.expect(&bench, &["QUIT"], b"+OK\r\n").await;
                while client.receive().await {}
                // The server said that it ended.
                assert_eq!(client.connection.reader().read(&mut [0]).unwrap(), 0);
            }
            assert_eq!(bench.shared.connections(), 0);
        }
    });
}

#[test]
fn a_handshake_has_ten_seconds_and_a_place_among_the_clients() {
    let (tls, root) = made("tls-late");
    run(Setup { tls: Some(tls), clients_max: 3, cores: 1, ..Setup::default() }, move |bench| {
        let root = root.clone();
        async move {
            let mut plain = bench.client().await;
            let silent = bench.reactor.connect(tls_address()).unwrap();
            let begun = bench.reactor.connect(tls_address()).unwrap();
            begun.send(vec![22, 3, 1, 2]).await.0.unwrap();
            bench.pause_ms(9_900).await;
            assert_eq!(bench.shared.connections(), 3);
            // There is no room, and nothing can be said before a handshake.
            let refused = bench.reactor.connect(tls_address()).unwrap();
            assert_eq!(refused.receive(Vec::new(), 1).await.0.unwrap(), 0);
            bench.pause_ms(200).await;
            for late in [silent, begun] {
                assert_eq!(late.receive(Vec::new(), 1).await.0.unwrap(), 0);
            }
            assert_eq!(bench.shared.connections(), 1);
            let failed = bench.shared.sum(|counters| counters.handshakes_failed.get());
            assert_eq!(failed, 2);
            let mut client = Client::connect(&bench, &root, usize::MAX).await;
            client.expect(&bench, &["PING"], b"+PONG\r\n").await;
            let list = show(&plain.call(&["CLIENT", "LIST"]).await);
            assert!(list.contains("laddr=127.0.0.1:6379") && list.contains("laddr=127.0.0.1:6380"), "{list}");
            plain.expect("CLIENT KILL LADDR 127.0.0.1:6380", ":1").await;
            assert!(!client.receive().await);
        }
    });
}

#[test]
fn a_stop_does_not_wait_for_handshakes() {
    let (tls, root) = made("tls-stop");
    run(Setup { tls: Some(tls), cores: 1, ..Setup::default() }, move |bench| {
        let root = root.clone();
        async move {
            let _half = bench.reactor.connect(tls_address()).unwrap();
            let mut client = Client::connect(&bench, &root, usize::MAX).await;
            client.expect(&bench, &["PING"], b"+PONG\r\n").await;
            let core = bench.cores.borrow()[0].clone();
            let before_ns = bench.reactor.now_ns();
            core.stop().await;
            bench.pause_ms(10).await;
            assert!(bench.reactor.now_ns() - before_ns < 1_000_000_000);
            assert_eq!(bench.shared.connections(), 0);
            while client.receive().await {}
        }
    });
}

//! TLS on a real kernel: redis-cli, redis-py and rustls against the binary; clients that have no business
//! there; files that cannot be used.

mod certificates;
mod client;
#[path = "../process/mod.rs"]
mod process;
mod refused;

use certificates::{Authority, Signed};
use client::TlsClient;
use process::{Directory, Server, ask, cores, directory, told};
use rustix::process::Signal;
use rustls::version::{TLS12, TLS13};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A server with TLS, and who signed its certificate.
struct Bench {
    server: Server,
    directory: Directory,
    authority: Authority,
    authority_file: PathBuf,
    signed: Signed,
}

impl Bench {
    fn start(name: &str, further: &[&str]) -> Bench {
        let directory = directory(name);
        let authority = Authority::new("an authority");
        let authority_file = authority.file(&directory, "authority.crt");
        let signed = authority.sign(&directory, "server");
        let data = directory.join("data");
        let args = ["--data", data.to_str().unwrap(), "--size", "128MiB", "--tls-resp", "127.0.0.1:0"];
        let files = ["--tls-cert", signed.certificate(), "--tls-key", signed.key()];
        let cores = cores(2);
        let defaults: &[&str] = if further.contains(&"--cores") { &[] } else { &["--cores", &cores] };
        let server = Server::start(&[&args[..], &files[..], defaults, further].concat());
        Bench { server, directory, authority, authority_file, signed }
    }

    fn client(&self) -> TlsClient {
        TlsClient::connect(&self.server.tls, self.authority.roots(), &TLS13)
    }

    /// What redis-cli says to a command, over TLS.
    fn redis_cli(&self, authority: &Path, further: &[&str], words: &[&str]) -> Output {
        let port = self.server.tls.rsplit(':').next().unwrap();
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", port, "--tls", "--cacert", authority.to_str().unwrap()]);
        let output = command.args(further).args(words).stdin(Stdio::null()).output();
        output.expect("redis-cli runs; `make prepare` installs what the tests need")
    }

    fn failed_handshakes(&self) -> u64 {
        let metrics = ask(&self.server.admin, "GET /metrics HTTP/1.0\r\n\r\n");
        let samples = metrics.lines().filter_map(|l| l.strip_prefix("plimsoll_tls_handshakes_failed_total{"));
        samples.map(|sample| sample.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

#[test]
fn redis_cli_speaks_tls() {
    let bench = Bench::start("tls-redis-cli", &[]);
    let says = |words: &[&str]| told(&bench.redis_cli(&bench.authority_file, &[], words));
    assert_eq!(says(&["set", "k", "v"]), "OK\n");
    assert_eq!(says(&["get", "k"]), "v\n");
    let port = bench.server.tls.rsplit(':').next().unwrap();
    assert_eq!(says(&["config", "get", "tls-port"]), format!("tls-port\n{port}\n"));
    assert_eq!(says(&["config", "get", "tls-auth-clients"]), "tls-auth-clients\nno\n");
    assert_eq!(
        says(&["config", "get", "tls-cert-file"]),
        format!("tls-cert-file\n{}\n", bench.signed.certificate())
    );
    let info = says(&["info", "server"]);
    let plain = bench.server.resp.rsplit(':').next().unwrap();
    assert!(info.contains(&format!("tcp_port:{plain}\r\n")), "{info}");
    assert!(info.contains(&format!("listener1:name=tls,bind=127.0.0.1,port={port}\r\n")), "{info}");
    let line = says(&["client", "list"]);
    assert!(line.contains(&format!("laddr={} ", bench.server.tls)), "{line}");
    // What was written over one is read over the other.
    assert_eq!(bench.server.client().ask("get k"), plimsoll_resp::Reply::Bulk(b"v".to_vec()));
    let metrics = ask(&bench.server.admin, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(metrics.contains("plimsoll_tls_certificate_expires_seconds 32472144000\n"), "{metrics}");
    bench.server.stop();
}

#[test]
fn redis_py_speaks_tls_with_large_values() {
    let bench = Bench::start("tls-redis-py", &[]);
    let made = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("../venv/bin/python");
    let python = std::env::var_os("PLIMSOLL_PYTHON").map_or_else(made, PathBuf::from);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/redis_py.py");
    let port = bench.server.tls.rsplit(':').next().unwrap();
    let output = Command::new(python).arg(script).arg(port).arg(&bench.authority_file).output();
    let output = output.expect("python runs; `make prepare` installs what the tests need");
    assert!(output.status.success(), "{}", told(&output));
    bench.server.stop();
}

#[test]
fn both_versions_pipelines_new_keys_and_a_clean_end() {
    let bench = Bench::start("tls-versions", &[]);
    for version in [&TLS12, &TLS13] {
        let mut client = TlsClient::connect(&bench.server.tls, bench.authority.roots(), version);
        let value: Vec<u8> = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
        client.expect(&[b"SET", b"large", &value], b"+OK\r\n");
        if version.version == TLS13.version {
            client.stream.conn.refresh_traffic_keys().unwrap();
        }
        // Replies of more than any buffer on the way, asked for at once.
        for _ in 0..3 {
            client.send(&[b"GET", b"large"]).unwrap();
        }
        let reply = [b"$8388608\r\n", value.as_slice(), b"\r\n"].concat();
        for _ in 0..3 {
            client.receive(&reply);
        }
        client.expect(&[b"QUIT"], b"+OK\r\n");
        // An end without TLS' own word for it would be an error.
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(bench.failed_handshakes(), 0);
    bench.server.stop();
}

#[test]
fn tls_alone_can_be_served() {
    let bench = Bench::start("tls-alone", &["--resp", "none"]);
    assert_eq!(bench.server.resp, "none");
    let says = |words: &[&str]| told(&bench.redis_cli(&bench.authority_file, &[], words));
    assert_eq!(says(&["config", "get", "port"]), "port\n0\n");
    let port = bench.server.tls.rsplit(':').next().unwrap();
    assert!(says(&["info"]).contains(&format!("tcp_port:{port}\r\n")));
    bench.server.stop();
}

#[test]
fn hangup_reads_the_certificates_again() {
    let bench = Bench::start("tls-reload", &[]);
    let mut old = bench.client();
    old.expect(&[b"PING"], b"+PONG\r\n");
    let other = Authority::new("another authority");
    let signed = other.sign(&bench.directory, "other");
    std::fs::copy(&signed.certificate, &bench.signed.certificate).unwrap();
    bench.server.signal(Signal::HUP);
    bench.server.hear("does not belong to the certificate in");
    // What is in use stays.
    bench.client().expect(&[b"PING"], b"+PONG\r\n");
    std::fs::copy(&signed.key, &bench.signed.key).unwrap();
    bench.server.signal(Signal::HUP);
    bench.server.hear("the certificates were read again");
    let mut new = TlsClient::connect(&bench.server.tls, other.roots(), &TLS13);
    new.expect(&[b"PING"], b"+PONG\r\n");
    old.expect(&[b"PING"], b"+PONG\r\n");
    assert!(bench.client().send(&[b"PING"]).is_err());
    bench.server.stop();
}

#[test]
fn hangup_does_not_end_a_server_without_tls() {
    let data = directory("tls-none");
    let server = Server::start(&["--data", data.to_str().unwrap(), "--size", "64MiB", "--cores", &cores(1)]);
    assert_eq!(server.tls, "none");
    server.signal(Signal::HUP);
    server.hear("there is nothing to read again");
    assert_eq!(server.client().ask("ping"), plimsoll_resp::Reply::Simple(b"PONG".to_vec()));
    server.stop();
}

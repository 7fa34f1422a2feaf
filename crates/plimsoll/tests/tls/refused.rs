//! Who and what is refused: clients without the certificate asked for, clients that do not speak TLS or
//! do not go on, files that cannot be used.

use super::Bench;
use super::certificates::Authority;
use super::client::connection;
use super::process::{directory, plimsoll, told};
use rustls::version::{TLS12, TLS13};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn socket(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

#[test]
fn clients_show_the_certificate_that_is_asked_for() {
    let path = directory("tls-clients-authority");
    let clients = Authority::new("an authority of clients");
    let clients_file = clients.file(&path, "clients.crt");
    let bench = Bench::start("tls-clients", &["--tls-client-ca", clients_file.to_str().unwrap()]);
    let ping = |further: &[&str]| told(&bench.redis_cli(&bench.authority_file, further, &["ping"]));
    let with = |signed: &super::Signed| ping(&["--cert", signed.certificate(), "--key", signed.key()]);
    assert_eq!(with(&clients.sign(&path, "right")), "PONG\n");
    assert_eq!(bench.failed_handshakes(), 0);
    let expired = with(&clients.sign_until(&path, "expired", 2020));
    assert!(!expired.contains("PONG"), "{expired}");
    bench.server.hear("invalid peer certificate: certificate expired");
    let stranger = with(&bench.authority.sign(&path, "stranger"));
    assert!(!stranger.contains("PONG"), "{stranger}");
    let nothing = ping(&[]);
    assert!(!nothing.contains("PONG"), "{nothing}");
    assert!(bench.failed_handshakes() >= 3);
    let says = with(&clients.sign(&path, "again"));
    assert_eq!(says, "PONG\n");
    bench.server.stop();
}

#[test]
fn clients_refuse_a_server_that_they_do_not_know() {
    let bench = Bench::start("tls-unknown", &[]);
    let other = Authority::new("another").file(&bench.directory, "other.crt");
    let refused = told(&bench.redis_cli(&other, &[], &["ping"]));
    assert!(refused.contains("certificate verify failed"), "{refused}");
    bench.server.hear("received fatal alert");
    // Versions of redis-cli differ in how often they try.
    assert!(bench.failed_handshakes() >= 1);
    bench.server.stop();
}

#[test]
fn an_expired_certificate_is_told_of() {
    let path = directory("tls-expired");
    let authority = Authority::new("an authority");
    let (authority_file, signed) =
        (authority.file(&path, "ca.crt"), authority.sign_until(&path, "old", 2020));
    let bench = Bench::start("tls-expired-server", &[]);
    std::fs::copy(&signed.certificate, &bench.signed.certificate).unwrap();
    std::fs::copy(&signed.key, &bench.signed.key).unwrap();
    bench.server.signal(rustix::process::Signal::HUP);
    bench.server.hear("the certificate has expired: clients will refuse it");
    let refused = told(&bench.redis_cli(&authority_file, &[], &["ping"]));
    assert!(refused.contains("certificate has expired") || refused.contains("verify failed"), "{refused}");
    // Without TLS all is as it was.
    assert!(bench.server.client().call(&[b"PING"]).is_ok());
    bench.server.stop();
}

#[test]
fn a_plain_client_is_closed_in_order() {
    let bench = Bench::start("tls-plain", &[]);
    for words in ["PING\r\n", "*1\r\n$4\r\nPING\r\n", "GET / HTTP/1.0\r\n\r\n"] {
        let mut stream = socket(&bench.server.tls);
        stream.write_all(words.as_bytes()).unwrap();
        let mut answer = Vec::new();
        assert_eq!(stream.read_to_end(&mut answer).unwrap(), 0, "{answer:?}");
    }
    bench.server.hear("does not speak TLS");
    assert_eq!(bench.failed_handshakes(), 3);
    // Who looks whether the port is open, as balancers do, is no failure.
    drop(socket(&bench.server.tls));
    bench.client().expect(&[b"PING"], b"+PONG\r\n");
    assert_eq!(bench.failed_handshakes(), 3);
    bench.server.stop();
}

#[test]
fn broken_records_end_a_connection_and_nothing_else() {
    let bench = Bench::start("tls-broken", &[]);
    let mut bystander = bench.client();
    bystander.expect(&[b"PING"], b"+PONG\r\n");
    // In a handshake: its last word first, and a word longer than any.
    for (word, record) in [([20, 0, 0, 0], Some(&21)), ([1, 255, 255, 255], None)] {
        let mut stream = socket(&bench.server.tls);
        stream.write_all(&[22, 3, 1, 0, 4]).unwrap();
        stream.write_all(&word).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first(), record, "an alert, if any: {answer:?}");
    }
    assert_eq!(bench.failed_handshakes(), 2);
    // One that says good-bye in the middle, and goes on talking.
    let mut stream = socket(&bench.server.tls);
    let mut words = Vec::new();
    connection(bench.authority.roots(), &TLS12).write_tls(&mut words).unwrap();
    words.extend([21, 3, 3, 0, 2, 1, 0, 22, 3, 3, 0, 4, 20, 0, 0, 0]);
    stream.write_all(&words).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(bench.failed_handshakes(), 3);
    // After one: a record that is none of this connection's.
    let mut broken = bench.client();
    broken.expect(&[b"PING"], b"+PONG\r\n");
    broken.stream.sock.write_all(&[23, 3, 3, 0, 32]).unwrap();
    broken.stream.sock.write_all(&[7; 32]).unwrap();
    let told = broken.stream.read(&mut [0]).unwrap_err().to_string();
    assert!(told.contains("BadRecordMac"), "{told}");
    bystander.expect(&[b"PING"], b"+PONG\r\n");
    bench.server.stop();
}

/// Some that say nothing, some that say half of their first word.
fn half_open(address: &str, count: usize) -> Vec<TcpStream> {
    let mut hello = Vec::new();
    let roots = Authority::new("nobody").roots();
    connection(roots, &TLS13).write_tls(&mut hello).unwrap();
    let begin = |number: usize| {
        let mut stream = socket(address);
        stream.write_all(&hello[..number % 2 * hello.len() / 2]).unwrap();
        stream
    };
    (0..count).map(begin).collect()
}

#[test]
fn half_open_handshakes_do_not_keep_others_out() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let bench = Bench::start("tls-half-open", &["--cores", "0"]);
    let mut before = bench.client();
    before.expect(&[b"SET", b"k", b"v"], b"+OK\r\n");
    let mut stalled = half_open(&bench.server.tls, 1000);
    before.expect(&[b"GET", b"k"], b"$1\r\nv\r\n");
    bench.client().expect(&[b"GET", b"k"], b"$1\r\nv\r\n");
    assert_eq!(bench.failed_handshakes(), 0);
    // More than there is room for: the oldest go, and those that mean it still come in.
    stalled.extend(half_open(&bench.server.tls, 100));
    bench.client().expect(&[b"GET", b"k"], b"$1\r\nv\r\n");
    let mut rest = Vec::new();
    stalled[0].read_to_end(&mut rest).unwrap();
    bench.server.hear("too many handshakes are under way");
    assert!((76..=77).contains(&bench.failed_handshakes()), "{}", bench.failed_handshakes());
    // The others have ten seconds.
    for stream in &mut stalled {
        stream.read_to_end(&mut rest).unwrap();
    }
    assert!(rest.is_empty());
    bench.server.hear("not over in time");
    before.expect(&[b"GET", b"k"], b"$1\r\nv\r\n");
    bench.server.stop();
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_listens() {
    let path = directory("tls-files");
    let authority = Authority::new("an authority");
    let (signed, other) = (authority.sign(&path, "server"), authority.sign(&path, "other"));
    let garbage = path.join("garbage");
    std::fs::write(&garbage, [0, 159, 146, 150]).unwrap();
    let broken = path.join("broken");
    std::fs::write(&broken, "-----BEGIN PRIVATE KEY-----\nno base64!\n-----END PRIVATE KEY-----\n").unwrap();
    let locked = path.join("locked");
    let text = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(&locked, text).unwrap();
    let absent = path.join("absent");
    let (right, key) = (&signed.certificate, &signed.key);
    let data = path.join("data");
    let refuses =
        |certificate: &std::path::Path, key: &std::path::Path, ca: &std::path::Path, words: &str| {
            let [certificate, key, ca] = [certificate, key, ca].map(|path| path.to_str().unwrap());
            let files = ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", ca];
            let addresses = ["--tls-resp", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
            let output =
                plimsoll(&[&["serve", "--data", data.to_str().unwrap()], &addresses[..], &files].concat());
            let said = told(&output);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(words), "'{words}' is not in: {said}");
            assert!(!data.exists(), "nothing is made before the files are known to be right");
        };
    let in_path = |name: &str| path.join(name).display().to_string();
    refuses(&absent, key, right, &format!("tls-cert: {}: cannot be read: No such file", in_path("absent")));
    refuses(&garbage, key, right, &format!("tls-cert: {}: holds no certificate", in_path("garbage")));
    refuses(key, key, right, "holds no certificate");
    refuses(right, &garbage, right, &format!("tls-key: {}: holds no private key", in_path("garbage")));
    refuses(right, &broken, right, &format!("tls-key: {}: is no PEM", in_path("broken")));
    refuses(right, &locked, right, "the key is encrypted");
    refuses(right, &other.key, right, "does not belong to the certificate in");
    refuses(right, key, &absent, &format!("tls-client-ca: {}: cannot be read", in_path("absent")));
    refuses(right, key, &garbage, "tls-client-ca: ");
}

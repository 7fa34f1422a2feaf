//! The binary itself, on a file and on io_uring: start, answer, die, come back, stop, describe.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

struct Server {
    child: Child,
    stderr: Option<BufReader<ChildStderr>>,
    resp: String,
    admin: String,
}

impl Server {
    fn start(data: &Path, further: &[&str]) -> Server {
        let child = Command::new(BINARY)
            .args(["serve", "--size", "64MiB", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(further)
            .stderr(Stdio::piped())
            .spawn();
        // Guarded at once: a test that fails leaves no server behind.
        let mut server =
            Server { child: child.unwrap(), stderr: None, resp: String::new(), admin: String::new() };
        let mut stderr = BufReader::new(server.child.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains(" ready ") {
            let before = told.len();
            assert!(stderr.read_line(&mut told).unwrap() > 0, "the server ended: {told}");
            let line = &told[before..];
            let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
            server.resp = field("resp=").unwrap_or_default().to_owned();
            server.admin = field("admin=").unwrap_or_default().to_owned();
        }
        server.stderr = Some(stderr);
        server
    }

    /// Sends lines and gives everything that comes until the connection ends.
    fn ask(address: &str, text: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn stop(mut self) -> String {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let mut told = String::new();
        self.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(status.code(), Some(0), "{told}");
        told
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn plimsoll(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_a_stop_whatever_the_cores() {
    let data = directory("survives");
    let mut server = Server::start(&data, &["--cores", "0"]);
    assert_eq!(
        Server::ask(&server.resp, "SET k v\r\nSET gone v\r\nDEL gone\r\nQUIT\r\n"),
        "+OK\r\n+OK\r\n:1\r\n+OK\r\n"
    );
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = Server::start(&data, &["--durability", "group"]);
    assert_eq!(
        Server::ask(&server.resp, "GET k\r\nGET gone\r\nSET l w\r\nQUIT\r\n"),
        "$1\r\nv\r\n$-1\r\n+OK\r\n+OK\r\n"
    );
    let stopped = server.stop();
    assert!(stopped.contains("SIGTERM: stopping") && stopped.contains("stopped: "), "{stopped}");
    let server = Server::start(&data, &["--cores", "0"]);
    assert_eq!(
        Server::ask(&server.resp, "MGET k l\r\nDBSIZE\r\nQUIT\r\n"),
        "*2\r\n$1\r\nv\r\n$1\r\nw\r\n:2\r\n+OK\r\n"
    );
    server.stop();
}

#[test]
fn metrics_health_and_the_page_are_served() {
    let server = Server::start(&directory("admin"), &[]);
    Server::ask(&server.resp, "SET k v\r\nGET k\r\nGET\r\nQUIT\r\n");
    let get = |path: &str| {
        Server::ask(&server.admin, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    };
    let metrics = get("/metrics");
    for line in [
        "plimsoll_commands_total{command=\"set\"} 1",
        "plimsoll_commands_rejected_total{command=\"get\"} 1",
        "plimsoll_command_seconds_count{command=\"get\"} 1",
        "plimsoll_core_busy_seconds_total{core=\"0\",work=\"network\"} ",
        "plimsoll_partition_free_segments{partition=\"0\"} ",
        "plimsoll_device_writes_total{core=\"0\"} ",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(get("/healthz").ends_with("ok\n"));
    assert!(get("/").contains("<h1>Plimsoll "));
    server.stop();
}

#[test]
fn a_device_is_made_described_and_verified() {
    let path = directory("device").join("file");
    let path = path.to_str().unwrap();
    let missing = plimsoll(&["device", "info", path]);
    assert_eq!(missing.status.code(), Some(1), "{}", told(&missing));
    std::fs::write(path, vec![7; 1 << 20]).unwrap();
    let foreign = plimsoll(&["device", "format", path]);
    assert_eq!(foreign.status.code(), Some(1));
    assert!(told(&foreign).contains("not Plimsoll's"), "{}", told(&foreign));
    assert!(told(&plimsoll(&["device", "info", path])).contains("not Plimsoll's"));
    std::fs::remove_file(path).unwrap();
    let made =
        plimsoll(&["device", "format", path, "--size", "32MiB", "--partitions", "3", "--segment", "64KiB"]);
    assert_eq!(made.status.code(), Some(0), "{}", told(&made));
    let again = plimsoll(&["device", "format", path]);
    assert!(told(&again).contains("--force"), "{}", told(&again));
    let info = told(&plimsoll(&["device", "info", path]));
    assert!(info.contains("partitions      3") && info.contains("segment size    64KiB"), "{info}");
    let server = Server::start(Path::new("unused"), &["--device", path]);
    let pipeline: String = (0..100).map(|n| format!("SET k{n} v\r\n")).collect();
    Server::ask(&server.resp, &(pipeline + "QUIT\r\n"));
    let in_use = plimsoll(&["device", "verify", path]);
    assert!(told(&in_use).contains("in use"), "{}", told(&in_use));
    server.stop();
    let verified = plimsoll(&["device", "verify", path]);
    assert_eq!(verified.status.code(), Some(0), "{}", told(&verified));
    assert!(told(&verified).contains("100 records"), "{}", told(&verified));
}

#[test]
fn wrong_usage_is_told_with_two_and_failure_with_one() {
    for args in [
        &["serve", "--bogus"][..],
        &["serve", "--size", "much"],
        &["serve", "--nvme", "127.0.0.1:4420"],
        &["serve", "--cache", "1GiB"],
        &["serve", "--cores", "1-0"],
        &["serve", "--config", "/nonexistent"],
        &["device"],
        &["fly"],
    ] {
        let output = plimsoll(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", told(&output));
    }
    let config = directory("config").join("plimsoll.toml");
    std::fs::write(&config, "size = '1GiB'\nresq = 1\n").unwrap();
    let output = plimsoll(&["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("resq") && told(&output).contains("plimsoll.toml"), "{}", told(&output));
    std::fs::write(&config, "size = '1GiB'\n").unwrap();
    let output =
        plimsoll(&["serve", "--print-config", "--config", config.to_str().unwrap(), "--durability", "async"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(told(&output).contains("size = \"1GiB\"") && told(&output).contains("durability = \"async\""));
    let data = directory("address");
    let output = Command::new(BINARY)
        .args(["serve", "--size", "64MiB", "--admin", "127.0.0.1:0", "--resp", "203.0.113.1:1", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("203.0.113.1:1"), "{}", told(&output));
}

//! The binary itself, on a file and on io_uring: start, answer, die, come back, stop, describe.

mod process;

use process::{Server, ask, directory, fails, plimsoll, succeeds, told};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Duration;

fn start(data: &Path, further: &[&str]) -> Server {
    Server::start(&[&["--size", "64MiB", "--data", data.to_str().unwrap()], further].concat())
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_a_stop_whatever_the_cores() {
    let data = directory("survives");
    let server = start(&data, &["--cores", "0"]);
    assert_eq!(
        ask(&server.resp, "SET k v\r\nSET gone v\r\nDEL gone\r\nQUIT\r\n"),
        "+OK\r\n+OK\r\n:1\r\n+OK\r\n"
    );
    server.kill();
    let server = start(&data, &["--durability", "group"]);
    assert_eq!(
        ask(&server.resp, "GET k\r\nGET gone\r\nSET l w\r\nQUIT\r\n"),
        "$1\r\nv\r\n$-1\r\n+OK\r\n+OK\r\n"
    );
    let stopped = server.stop();
    assert!(stopped.contains("SIGTERM: stopping") && stopped.contains("stopped: "), "{stopped}");
    let server = start(&data, &["--cores", "0"]);
    assert_eq!(
        ask(&server.resp, "MGET k l\r\nDBSIZE\r\nQUIT\r\n"),
        "*2\r\n$1\r\nv\r\n$1\r\nw\r\n:2\r\n+OK\r\n"
    );
    server.stop();
}

/// As `nc -N` does: the end came a minute later where the reply had been posted (found in review).
#[test]
fn who_sends_no_more_is_answered_and_sees_the_end_at_once() {
    let server = start(&directory("half-closed"), &["--cores", "0"]);
    for (sent, wanted) in [
        ("SET k v\r\n", "+OK\r\n"),
        ("GET k\r\n", "$1\r\nv\r\n"),
        ("SET k w\r\nGET k\r\n", "+OK\r\n$1\r\nw\r\n"),
        ("CLIENT REPLY OFF\r\nSET k x\r\n", ""),
    ] {
        let mut stream = TcpStream::connect(&server.resp).unwrap();
        // Far less than the minute, and far more than a busy machine takes.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut found = String::new();
        stream.read_to_string(&mut found).expect("the end of the stream comes");
        assert_eq!(found, wanted, "{sent}");
    }
    server.stop();
}

#[test]
fn two_servers_do_not_share_an_address() {
    let (first, second) = (directory("address-1"), directory("address-2"));
    let server = start(&first, &[]);
    let resp = server.resp.clone();
    let refused =
        || Server::refusal(&["--size", "64MiB", "--data", second.to_str().unwrap(), "--resp", &resp]);
    let told = refused();
    assert!(told.contains(&format!("another process listens on {resp}")), "{told}");
    assert!(told.contains(&format!("{resp} is in use; waiting")), "{told}");
    assert!(!second.join("device.plimsoll").exists(), "a start that has no address has touched no device");
    server.kill();
    let server = Server::start(&["--data", first.to_str().unwrap(), "--resp", &resp]);
    let told = refused();
    assert!(told.contains(&format!("another server has {resp}")), "{told}");
    assert_eq!(ask(&resp, "SET k v\r\nQUIT\r\n"), "+OK\r\n+OK\r\n");
    server.stop();
}

/// It formatted the device first, and waited five seconds for an address to become free that nobody had.
#[test]
fn an_address_that_cannot_be_had_is_told_before_a_device_is_touched() {
    let data = directory("address-nobody");
    let server = ["--size", "64MiB", "--data", data.to_str().unwrap()];
    let refused = |flags: &[&str]| Server::refusal(&[&server[..], flags].concat());
    // Of TEST-NET-1, which no machine has.
    let told = refused(&["--resp", "192.0.2.1:0", "--unprotected"]);
    assert!(told.contains("192.0.2.1:0: no interface of this machine has that address"), "{told}");
    let told = refused(&["--resp", "127.0.0.1:0", "--admin", "192.0.2.1:7"]);
    assert!(told.contains("admin: cannot listen on 192.0.2.1:7: no interface"), "{told}");
    assert!(!data.join("device.plimsoll").exists(), "no device was touched");
}

#[test]
fn a_server_that_others_can_reach_has_a_password_or_says_that_it_has_none() {
    let data = directory("password");
    let output = plimsoll(&["serve", "--resp", "0.0.0.0:0", "--data", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("--password-file") && told(&output).contains("--unprotected"));
    let file = data.join("password");
    let file = file.to_str().unwrap();
    std::fs::write(file, "\n").unwrap();
    let output = plimsoll(&["serve", "--password-file", file]);
    assert!(output.status.code() == Some(2) && told(&output).contains("must not be empty"));
    std::fs::write(file, "secret of mine\nmore\n").unwrap();
    let printed = succeeds(&["serve", "--print-config", "--resp", "0.0.0.0:7", "--password-file", file]);
    assert!(!printed.contains("secret"), "{printed}");
    let server = start(&data, &["--resp", "0.0.0.0:0", "--password-file", file]);
    let port = server.resp.rsplit(':').next().unwrap();
    let lines = "GET k\r\nAUTH \"secret of mine\"\r\nGET k\r\nQUIT\r\n";
    let answer = ask(&format!("127.0.0.1:{port}"), lines);
    assert_eq!(answer, "-NOAUTH Authentication required.\r\n+OK\r\n$-1\r\n+OK\r\n");
    server.stop();
}

/// Nobody gives a password to the admin port, and it took orders to replace devices from everywhere.
#[test]
fn an_admin_port_that_others_can_reach_tells_and_changes_nothing() {
    let data = directory("admin-reached");
    for (further, answer) in [
        (&["--admin", "0.0.0.0:0"][..], "HTTP/1.1 403 Forbidden"),
        (&["--admin", "0.0.0.0:0", "--unprotected"], "HTTP/1.1 404 Not Found"),
        (&[], "HTTP/1.1 404 Not Found"),
    ] {
        let server = start(&data, further);
        let admin = format!("127.0.0.1:{}", server.admin.rsplit(':').next().unwrap());
        let http = |request: &str| ask(&admin, &format!("{request}Host: x\r\nConnection: close\r\n\r\n"));
        assert!(http("GET /metrics HTTP/1.1\r\n").contains("plimsoll_info"));
        assert!(http("GET /healthz HTTP/1.1\r\n").contains("\r\n\r\nok"));
        for change in ["replace", "rebuild", "scrub"] {
            let request = format!("POST /api/array/{change} HTTP/1.1\r\nContent-Type: application/json\r\n");
            let told = http(&request);
            assert!(told.starts_with(answer), "{further:?} {change}: {told}");
            assert_eq!(told.contains("--unprotected"), answer.contains("403"), "{told}");
        }
        server.stop();
    }
}

#[test]
fn metrics_health_and_the_page_are_served() {
    let data = directory("admin");
    let server = start(&data, &[]);
    ask(&server.resp, "SET k v\r\nGET k\r\nGET\r\nQUIT\r\n");
    let get = |path: &str| {
        ask(&server.admin, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
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
    let place = directory("device");
    let path = place.join("file");
    let path = path.to_str().unwrap();
    fails(&["device", "info", path]);
    std::fs::write(path, vec![7; 1 << 20]).unwrap();
    for action in ["format", "info"] {
        assert!(fails(&["device", action, path]).contains("not Plimsoll's"), "{action}");
    }
    std::fs::remove_file(path).unwrap();
    succeeds(&["device", "format", path, "--size", "32MiB", "--partitions", "3", "--segment", "64KiB"]);
    assert!(fails(&["device", "format", path]).contains("--force"));
    assert!(fails(&["device", "format", path, "--force", "--size", "64MiB"]).contains("keeps its size"));
    let info = succeeds(&["device", "info", path]);
    assert!(info.contains("partitions      3") && info.contains("segment size    64KiB"), "{info}");
    let server = start(Path::new("unused"), &["--device", path]);
    let pipeline: String = (0..100).map(|n| format!("SET k{n} v\r\n")).collect();
    ask(&server.resp, &(pipeline + "QUIT\r\n"));
    assert!(fails(&["device", "verify", path]).contains("in use"));
    server.stop();
    assert!(succeeds(&["device", "verify", path]).contains("100 records"));
}

#[test]
fn wrong_usage_is_told_with_two_and_failure_with_one() {
    let place = directory("usage");
    let file = place.join("file");
    let file = file.to_str().unwrap();
    for args in [
        &["serve", "--bogus"][..],
        &["serve", "--cores", "4711", "--data", file],
        &["device", "format", file, "--size", "64MiB", "--partitions", "0"],
        &["device", "format", file, "--size", "64MiB", "--segment", "100"],
        &["serve", "--size", "much"],
        &["serve", "--nvme", "127.0.0.1:4420"],
        &["serve", "--cache", "64"],
        &["serve", "--cores", "1-0"],
        &["serve", "--config", "/nonexistent"],
        &["device"],
        &["fly"],
    ] {
        let output = plimsoll(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", told(&output));
    }
    assert!(fails(&["device", "format", file, "--size", "1MiB"]).contains("need at least"));
    assert!(fails(&["serve", "--data", file, "--size", "1MiB"]).contains("need at least"));
    assert!(!Path::new(file).join("device.plimsoll").exists(), "nothing is left behind");
    let config = place.join("plimsoll.toml");
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
    let elsewhere = ["--size", "64MiB", "--resp", "203.0.113.1:1", "--data", data.to_str().unwrap()];
    let told = Server::refusal(&[&elsewhere[..], &["--unprotected"]].concat());
    assert!(told.contains("203.0.113.1:1"), "{told}");
}

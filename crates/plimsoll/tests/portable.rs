//! Where io_uring is forbidden, or finds no memory: the binary under filters of system calls such as
//! containers and sandboxes have, and under limits. It serves all the same, says why it is slower, and what
//! was acknowledged survives.

mod process;

use plimsoll_resp::Reply;
use process::{Server, cores, directory, forbidding, starving, told};
use std::path::Path;
use std::process::Command;

/// What default profiles of container engines do.
const CONTAINER: &[&str] = &["io_uring_setup=EPERM"];
/// A filter that has forgotten a part.
const HALF: &[&str] = &["io_uring_enter=EACCES"];
/// What stands in for a kernel and has none of what is new in it.
const SANDBOX: &[&str] = &["io_uring_setup=ENOSYS", "epoll_pwait2=ENOSYS", "pwritev2=EOPNOTSUPP"];
/// A filter older than the calls, which answers EPERM to all that it does not know.
const OLD_FILTER: &[&str] = &["io_uring_setup=EPERM", "epoll_pwait2=EPERM"];

/// The words of the warning that no other line has.
const WARNING: &str = "io_uring cannot be used: the portable driver";

fn start(rules: &[&str], data: &Path, further: &[&str]) -> Server {
    let driver: &[&str] = if further.contains(&"--driver") { &[] } else { &["--driver", "auto"] };
    let args = ["--size", "128MiB", "--data", data.to_str().unwrap()];
    Server::start_by(forbidding(rules), &[&args, driver, further].concat())
}

fn ok() -> Reply {
    Reply::Simple(b"OK".to_vec())
}

/// Stores, kills, starts again and reads, twice; what the server said in each life.
fn lives(name: &str, rules: &[&str]) -> Vec<String> {
    let data = directory(name);
    let long: Vec<u8> = (0..9_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut said = Vec::new();
    for life in 0..3 {
        let server = start(rules, &data, &[]);
        let mut client = server.client();
        let Reply::Bulk(info) = client.ask("INFO server") else { panic!("no INFO") };
        assert!(String::from_utf8(info).unwrap().contains("multiplexing_api:epoll\r\n"));
        if life > 0 {
            assert_eq!(client.ask("DBSIZE"), Reply::Integer(1001));
            for number in 0..1000 {
                assert_eq!(client.ask(&format!("GET key:{number}")), Reply::Bulk(b"value".to_vec()));
            }
            assert!(client.call(&[b"GET", b"long"]).unwrap() == Reply::Bulk(long.clone()));
        }
        assert_eq!(client.call(&[b"SET", b"long", &long]).unwrap(), ok());
        let sets: Vec<_> = (0..1000)
            .map(|number| vec![b"SET".to_vec(), format!("key:{number}").into_bytes(), b"value".to_vec()])
            .collect();
        assert!(client.pipeline(&sets).iter().all(|reply| *reply == ok()));
        said.push(server.kill());
    }
    // The device is as good on io_uring, which says nothing of the kind.
    let server = start(&[], &data, &["--driver", "uring"]);
    assert_eq!(server.client().ask("GET key:7"), Reply::Bulk(b"value".to_vec()));
    let last = server.stop();
    assert!(last.contains("driver=\"uring\"") && !last.contains(WARNING), "{last}");
    said
}

#[test]
fn a_container_gets_one_warning_and_every_promise() {
    for said in lives("portable-container", CONTAINER) {
        assert_eq!(said.matches(WARNING).count(), 1, "one warning: {said}");
        let line = said.lines().find(|line| line.contains(WARNING)).unwrap();
        assert!(
            line.contains("WARN") && line.contains("seccomp profile") && line.contains("up to"),
            "{line}"
        );
        assert!(said.contains("driver=\"portable\""), "the line that says ready names it: {said}");
    }
}

#[test]
fn a_sandbox_that_lacks_more_is_served_as_well() {
    for said in lives("portable-sandbox", SANDBOX) {
        assert_eq!(said.matches(WARNING).count(), 1, "{said}");
        assert!(said.contains("this kernel has no io_uring"), "{said}");
    }
}

#[test]
fn a_filter_that_forgot_a_part_or_is_old_is_found_out() {
    for (name, rules) in [("portable-half", HALF), ("portable-old", OLD_FILTER)] {
        let server = start(rules, &directory(name), &[]);
        assert_eq!(server.client().ask("SET k v"), ok());
        let said = server.stop();
        assert_eq!(said.matches(WARNING).count(), 1, "{said}");
    }
}

#[test]
fn what_was_asked_for_by_name_is_served_or_refused() {
    let data = directory("portable-by-name");
    let data = data.to_str().unwrap();
    // By choice: nothing is wrong, and nothing is warned of.
    let server = Server::start(&["--size", "64MiB", "--data", data, "--driver", "portable"]);
    assert_eq!(server.client().ask("SET k v"), ok());
    let metrics =
        process::ask(&server.admin, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(metrics.contains("driver=\"portable\"} 1"), "{metrics}");
    let said = server.stop();
    assert!(said.contains("driver=\"portable\"") && !said.contains("WARN"), "{said}");
    let output = forbidding(CONTAINER).args(["serve", "--data", data, "--driver", "uring"]).output().unwrap();
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--driver uring was asked for") && said.contains("seccomp profile"), "{said}");
}

#[test]
fn doctor_says_worse_unless_io_uring_was_asked_for() {
    let data = directory("portable-doctor");
    let doctor = |driver: &str| {
        let args = ["doctor", "--data", data.to_str().unwrap(), "--driver", driver];
        let output = forbidding(CONTAINER).args(args).output().unwrap();
        let line = told(&output).lines().find(|line| line.contains(" io_uring ")).unwrap().to_owned();
        (output.status.code(), line)
    };
    let (code, line) = doctor("auto");
    assert!(code == Some(0) && line.starts_with("worse") && line.contains("portable driver"), "{line}");
    let (code, line) = doctor("uring");
    assert!(code == Some(1) && line.starts_with("BAD"), "{line}");
    let (code, line) = doctor("portable");
    assert!(code == Some(0) && line.starts_with("good"), "{line}");
}

/// Serves with one warning that names the mend, unless io_uring was asked for by name; and `doctor` agrees.
fn is_served_without_memory(plimsoll: &dyn Fn() -> Command, data: &str) {
    let cores = cores(2);
    let size = ["--size", "128MiB", "--driver", "auto"];
    let server = Server::start_by(plimsoll(), &[&size[..], &["--data", data, "--cores", &cores]].concat());
    assert_eq!(server.client().ask("SET k v"), ok());
    let Reply::Bulk(info) = server.client().ask("INFO server") else { panic!("no INFO") };
    assert!(String::from_utf8(info).unwrap().contains("multiplexing_api:epoll\r\n"));
    let said = server.stop();
    assert_eq!(said.matches(WARNING).count(), 1, "one warning: {said}");
    let line = said.lines().find(|line| line.contains(WARNING)).unwrap();
    assert!(line.contains("ulimit -l") && line.contains("LimitMEMLOCK=infinity"), "the mend: {line}");
    assert!(said.contains("driver=\"portable\""), "{said}");
    let asked =
        |words: &[&str]| plimsoll().args(words).args(["--data", data, "--cores", &cores]).output().unwrap();
    let refused = asked(&["serve", "--driver", "uring"]);
    let said = told(&refused);
    assert!(refused.status.code() == Some(1) && said.contains("no memory for io_uring"), "{said}");
    assert!(said.contains("ulimit -l"), "{said}");
    for (driver, code, state) in [("auto", 0, "worse"), ("uring", 1, "BAD")] {
        let output = asked(&["doctor", "--driver", driver]);
        let said = told(&output);
        let line = said.lines().find(|line| line.contains(" io_uring ")).unwrap();
        assert!(line.starts_with(state) && line.contains("LimitMEMLOCK=infinity"), "{line}");
        assert_eq!(driver == "auto", line.contains("the portable driver serves"), "{line}");
        assert_eq!(output.status.code(), Some(code), "{said}");
    }
}

/// Too little for a ring, and enough for one but not for one of each of two cores.
#[test]
fn who_may_not_lock_the_memory_of_a_ring_is_served() {
    let data = directory("portable-locked");
    let data = data.to_str().unwrap();
    is_served_without_memory(&|| forbidding(&["io_uring_setup=ENOMEM"]), data);
    // Not every kernel counts the memory of rings as locked.
    let doctor = starving(64).args(["doctor", "--data", data, "--driver", "uring"]).output().unwrap();
    if told(&doctor).contains("no memory for io_uring") {
        is_served_without_memory(&|| starving(64), data);
        is_served_without_memory(&|| starving(300), data);
    }
}

//! The clients that people have, against the binary: programs for each of them, redis-py's own tests,
//! redis-cli and redis-benchmark, and replies beside those of redis-server.
//!
//! `make prepare` installs what they need; `PLIMSOLL_PYTHON` names a Python that has the packages of
//! `python/requirements.txt` already.

mod like_redis;
mod matrix;
mod peer;
mod pins;
#[path = "../process/mod.rs"]
mod process;
mod program;
mod redis_py_tests;
mod redis_server;

use process::{Server, cores, directory, told};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn start(name: &str, size: &str) -> Server {
    let data = directory(name);
    let args = ["--data", data.to_str().unwrap(), "--size", size, "--cores", &cores(2)];
    let mut server = Server::start(&args);
    server.place = Some(data);
    server
}

fn port(server: &Server) -> &str {
    server.resp.rsplit(':').next().unwrap()
}

/// Runs it to its end, which may be a failure.
fn run_any(command: &mut Command) -> Output {
    let name = command.get_program().to_owned();
    let words = "cannot be run; `make prepare` installs what the tests need";
    let output = command.stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{}: {words} ({error})", name.display()))
}

fn run(command: &mut Command) -> Output {
    let output = run_any(command);
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    output
}

fn python() -> PathBuf {
    let made = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("../venv/bin/python");
    std::env::var_os("PLIMSOLL_PYTHON").map_or_else(made, PathBuf::from)
}

fn redis_cli(server: &Server, words: &[&str]) -> String {
    let output = run(Command::new("redis-cli").args(["-p", port(server)]).args(words));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_py_users_can_catch_a_full_device() {
    let server = start("redis-py-full", "32MiB");
    run(matrix::python_program("redis_py.py").args(["127.0.0.1", port(&server), "full"]));
    server.stop();
}

#[test]
fn redis_cli_is_answered() {
    let server = start("redis-cli", "64MiB");
    assert_eq!(redis_cli(&server, &["set", "k", "v"]), "OK\n");
    assert_eq!(redis_cli(&server, &["get", "k"]), "v\n");
    assert_eq!(redis_cli(&server, &["-3", "mget", "k", "absent"]), "v\n\n");
    assert_eq!(redis_cli(&server, &["set", "longest", &"x".repeat(10_000)]), "OK\n");
    let keys = redis_cli(&server, &["--bigkeys"]);
    // Versions differ in how they quote the key.
    assert!(keys.contains("longest") && keys.contains("has 10000 bytes"), "{keys}");
    assert!(keys.contains("Sampled 2 keys in the keyspace"), "{keys}");
    let keys = redis_cli(&server, &["--memkeys"]);
    assert!(keys.contains("longest") && keys.contains("Sampled 2 keys in the keyspace"), "{keys}");
    assert!(redis_cli(&server, &["--scan"]).lines().count() == 2);
    // It prints for ever: the second line is the first of figures.
    let mut stat = Command::new("redis-cli")
        .args(["-p", port(&server), "--stat", "-i", "0.05"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(stat.stdout.take().unwrap()).lines();
    let figures = lines.map(Result::unwrap).find(|line| line.trim_start().starts_with('2'));
    stat.kill().unwrap();
    stat.wait().unwrap();
    assert!(figures.is_some(), "no line says that there are two keys");
    server.stop();
}

#[test]
fn redis_benchmark_runs_to_its_end() {
    let server = start("redis-benchmark", "256MiB");
    for pipeline in ["1", "16"] {
        let args = ["-p", port(&server), "-t", "get,set", "-q", "-n", "20000", "-r", "1000", "-P", pipeline];
        let output = run(Command::new("redis-benchmark").args(args));
        let said = told(&output);
        assert!(said.contains("SET: ") && said.contains("GET: "), "{said}");
        let lower = said.to_lowercase();
        assert!(!lower.contains("error") && !lower.contains("warning"), "{said}");
        let last = |line: &str| line.rsplit('\r').next().unwrap_or_default().trim().to_owned();
        println!(
            "{}",
            said.lines().map(last).filter(|line| line.contains("per second")).collect::<Vec<_>>().join("\n")
        );
    }
    server.stop();
}

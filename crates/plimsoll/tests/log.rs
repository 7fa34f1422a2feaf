//! Who reads what the server says goes away, or reads no more: it serves on, and stops in order.

mod process;

use process::{ask, directory, field};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

/// A pipe that some tens of lines fill.
const PIPE_BYTES: usize = 4096;
const LINES: usize = 200;

fn short_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&writer, PIPE_BYTES).unwrap();
    (reader, writer)
}

/// Whoever writes into it stands still.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = short_pipe();
    writer.write_all(&[b'\n'; PIPE_BYTES]).unwrap();
    (reader, writer)
}

/// A server whose log goes into a pipe: it, the other end, and where it serves RESP and its admin port.
fn start(data: &str) -> (Child, BufReader<PipeReader>, [String; 2]) {
    let (reader, writer) = short_pipe();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["serve", "--size", "64MiB", "--cores", "0", "--data", data]);
    command.args(["--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).stderr(writer);
    let child = command.spawn().unwrap();
    let mut reader = BufReader::new(reader);
    let mut lines = reader.by_ref().lines().map(Result::unwrap);
    let ready = lines.find(|line| line.contains(" ready ")).expect("it ended before it was ready");
    (child, reader, ["resp=", "admin="].map(|name| field(&ready, name).to_owned()))
}

/// Has the server log, and sees each time that it serves.
fn is_served_while_it_logs(child: &Child, [resp, admin]: &[String; 2]) {
    assert_eq!(ask(resp, "Host: x\r\n"), "");
    for _ in 0..LINES {
        kill_process(Pid::from_child(child), Signal::HUP).unwrap();
        assert!(
            ask(admin, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ends_with("ok\n")
        );
    }
    assert_eq!(ask(resp, "SET k v\r\nQUIT\r\n"), "+OK\r\n+OK\r\n");
}

fn stops_in_order(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The first line after that ended the process (a browser's request, which needs no password, was enough).
#[test]
fn a_server_whose_log_has_no_reader_any_more_serves_on() {
    let data = directory("log-gone");
    let (child, reader, addresses) = start(data.to_str().unwrap());
    drop(reader);
    is_served_while_it_logs(&child, &addresses);
    stops_in_order(child);
}

/// The core that logged stood still for ever.
#[test]
fn a_server_whose_log_is_not_read_serves_on() {
    let data = directory("log-stuck");
    let (child, reader, addresses) = start(data.to_str().unwrap());
    is_served_while_it_logs(&child, &addresses);
    stops_in_order(child);
    drop(reader);
}

/// Its last words stood in front of the same pipe for ever.
#[test]
fn a_server_that_fails_while_its_log_is_not_read_ends() {
    let data = directory("log-full");
    let (reader, writer) = full_pipe();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["serve", "--size", "64MiB", "--cores", "0", "--data", data.to_str().unwrap()]);
    // Of TEST-NET-1, which no machine has.
    command.args(["--resp", "127.0.0.1:0", "--admin", "192.0.2.1:7"]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert_eq!(command.spawn().unwrap().wait().unwrap().code(), Some(1));
    drop(reader);
}

/// Set for a process that logs and panics.
const PANICS: &str = "PLIMSOLL_TEST_PANICS";
const WORDS: &str = "the last words";

fn panics() {
    panic!("{WORDS}");
}

/// This very test, in a process of its own.
fn panicking(stderr: PipeWriter) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_panic_is_told_behind_what_waits_and_ends_where_nobody_reads"]);
    command.arg("--nocapture").env(PANICS, "").env("RUST_BACKTRACE", "0");
    command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap()
}

/// The panic's own words stood in front of a full pipe for ever, and what waited was lost. A thread that
/// nobody waits for ends the process, too: it would go on without a log.
#[test]
fn a_panic_is_told_behind_what_waits_and_ends_where_nobody_reads() {
    if std::env::var_os(PANICS).is_some() {
        let log = plimsoll_server::log::to_stderr("info");
        (0..LINES).for_each(|_| log.say("waits"));
        let _ = std::thread::spawn(panics).join();
        return;
    }
    let has_aborted = |mut child: Child| child.wait().unwrap().signal() == Some(Signal::ABORT.as_raw());
    let (mut reader, writer) = short_pipe();
    let child = panicking(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().filter(|line| *line == "waits").count(), LINES);
    assert!(said.trim_end().ends_with(WORDS), "{said}");
    assert!(has_aborted(child));

    let (reader, writer) = full_pipe();
    assert!(has_aborted(panicking(writer)));
    drop(reader);
}

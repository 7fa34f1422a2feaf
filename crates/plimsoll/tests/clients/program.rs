//! Runs a program of the matrix: a client of the world as its users use it, which checks what it reads.
//!
//! A program gets HOST and PORT. It prints `restart` when the server is to be killed and started again, and
//! waits for `restarted`. It prints `NAME VERSION: ok` for what it has used when all was as expected, and
//! ends with status 0. Programs share nothing: each has a server of its own.

use super::peer::Peer;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A program that says nothing for so long hangs.
const HANG: Duration = Duration::from_secs(180);

/// A child with its output, read to its end. Dropping it kills it.
struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let name = command.get_program().to_owned();
        let words = "cannot be run; `make prepare` installs what the tests need";
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{}: {words} ({error})", name.display()));
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            // Nobody listens any more if the test has failed.
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).map_err(drop))
        });
        let mut stderr = child.stderr.take().expect("it is piped");
        let errors = std::thread::spawn(move || {
            let mut told = Vec::new();
            stderr.read_to_end(&mut told).expect("a pipe can be read");
            String::from_utf8_lossy(&told).into_owned()
        });
        Running { child, lines, errors: Some(errors) }
    }

    /// The next line, or none at its end.
    fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.child.kill().expect("it runs");
                panic!("it says nothing for {HANG:?}: {}", self.errors());
            }
        }
    }

    fn errors(&mut self) -> String {
        self.errors.take().map_or_else(String::new, |errors| errors.join().expect("it does not panic"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs it against a server of its own, and expects it to have used just these names and versions, and to
/// have asked for one restart.
pub(crate) fn succeeds(name: &str, command: &mut Command, used: &[String]) {
    let mut peer = Peer::start(name);
    let (host, port) = peer.host_and_port();
    let mut running = Running::start(command.args([host, port]));
    let (mut said, mut restarts) = (Vec::new(), 0);
    while let Some(line) = running.line() {
        if line == "restart" {
            peer.restart();
            restarts += 1;
            let stdin = running.child.stdin.as_mut().expect("it is piped");
            stdin.write_all(b"restarted\n").expect("the program waits for it");
        } else {
            said.push(line);
        }
    }
    let status = running.child.wait().expect("it ends");
    let errors = running.errors();
    assert!(status.success(), "{name}: {status}\n{}\n{errors}", said.join("\n"));
    let wanted: Vec<String> = used.iter().map(|used| format!("{used}: ok")).collect();
    assert_eq!(said, wanted, "{name}: what it used is not what is pinned\n{errors}");
    assert_eq!(restarts, 1, "{name}: each program sees a restart");
    peer.stop();
}

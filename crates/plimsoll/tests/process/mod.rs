//! The server's binary as a process, and a client that blocks: what the tests on a real kernel share.
//!
//! `PLIMSOLL_TEST_DRIVER=portable` lets every server that names no driver run on that one.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part.

use plimsoll_resp::{Decoded, Reply, ReplyDecoder, ReplyLimits, request};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The program.
pub const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

/// A reply that takes longer never comes.
const HANG: Duration = Duration::from_secs(60);

/// So many commands travel together in a pipeline.
pub const PIPELINE_DEPTH: usize = 32;

/// A directory of a test's own. It goes with the test, unless the test fails: then it is there to look at.
pub struct Directory(PathBuf);

impl std::ops::Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// An empty directory of this test's own.
pub fn directory(name: &str) -> Directory {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    Directory(path)
}

/// The words of `--cores` for so many; a machine that has fewer processors serves with those.
pub fn cores(count: usize) -> String {
    let there = std::thread::available_parallelism().map_or(1, usize::from);
    format!("0-{}", count.min(there) - 1)
}

/// What a server printed when it was ready.
struct Ready {
    resp: String,
    tls: String,
    admin: String,
}

/// What a server has said so far.
#[derive(Default)]
struct Said {
    text: Mutex<String>,
    more: Condvar,
}

/// A server that runs. Dropping it kills it: a test that fails leaves none behind.
pub struct Server {
    pub child: Child,
    pub resp: String,
    /// Where it serves TLS, or `none`.
    pub tls: String,
    pub admin: String,
    ready: Receiver<Ready>,
    said: Arc<Said>,
    /// Reads what the server says to its end, so that it never waits for a reader.
    listener: Option<JoinHandle<()>>,
    /// Where its data are, if that is nobody else's: it goes after the process.
    pub place: Option<Directory>,
}

impl Server {
    /// Starts `plimsoll serve` on ports of its own and does not wait until it serves.
    pub fn spawn(args: &[&str]) -> Server {
        Server::spawn_by(Command::new(BINARY), args)
    }

    fn spawn_by(mut command: Command, args: &[&str]) -> Server {
        command.arg("serve").args(args);
        if !args.contains(&"--admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        if !args.contains(&"--resp") {
            command.args(["--resp", "127.0.0.1:0"]);
        }
        if let Ok(driver) = std::env::var("PLIMSOLL_TEST_DRIVER")
            && !args.contains(&"--driver")
        {
            command.args(["--driver", &driver]);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().expect("it is piped");
        let (sender, ready) = channel();
        let said = Arc::<Said>::default();
        let heard = said.clone();
        let listener = Some(std::thread::spawn(move || listen(stderr, &sender, &heard)));
        let (resp, tls, admin) = Default::default();
        Server { child, resp, tls, admin, ready, said, listener, place: None }
    }

    /// Starts `plimsoll serve` and waits until it serves.
    pub fn start(args: &[&str]) -> Server {
        Server::spawn(args).until_ready()
    }

    /// As [`Server::start`], under another program: see [`forbidding`] and [`starving`].
    pub fn start_by(command: Command, args: &[&str]) -> Server {
        Server::spawn_by(command, args).until_ready()
    }

    fn until_ready(self) -> Server {
        let mut server = self;
        // The sender ends with the server's standard error.
        let Ok(ready) = server.ready.recv() else {
            panic!("the server ended: {}", server.told());
        };
        (server.resp, server.tls, server.admin) = (ready.resp, ready.tls, ready.admin);
        server
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.resp).expect("a server that is ready accepts")
    }

    fn told(&mut self) -> String {
        if let Some(listener) = self.listener.take() {
            listener.join().unwrap();
        }
        self.said.text.lock().unwrap().clone()
    }

    /// Waits until the server has said these words: the line with them.
    pub fn hear(&self, words: &str) -> String {
        let silent = |text: &mut String| !text.contains(words);
        let said = self.said.text.lock().unwrap();
        let (said, wait) = self.said.more.wait_timeout_while(said, HANG, silent).unwrap();
        assert!(!wait.timed_out(), "the server did not say '{words}': {said}");
        said.lines().find(|line| line.contains(words)).expect("just heard").to_owned()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// SIGKILL; what it had said.
    pub fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.told()
    }

    /// SIGTERM; what it had said, to its orderly end.
    pub fn stop(mut self) -> String {
        self.signal(rustix::process::Signal::TERM);
        let status = self.child.wait().unwrap();
        let told = self.told();
        assert_eq!(status.code(), Some(0), "{told}");
        told
    }

    /// What a server says that is expected to refuse to start.
    pub fn refusal(args: &[&str]) -> String {
        let mut server = Server::spawn(args);
        let Err(_) = server.ready.recv() else { panic!("the server started, and should not have") };
        let status = server.child.wait().unwrap();
        let told = server.told();
        assert_eq!(status.code(), Some(1), "{told}");
        told
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stderr: ChildStderr, ready: &Sender<Ready>, said: &Said) {
    let mut stderr = BufReader::new(stderr);
    loop {
        let mut line = String::new();
        match stderr.read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        said.text.lock().unwrap().push_str(&line);
        said.more.notify_all();
        if line.contains(" ready ") {
            let told = |name| field(&line, name).to_owned();
            // Nobody listens any more if the test has failed.
            let _ = ready.send(Ready { resp: told("resp="), tls: told("tls_resp="), admin: told("admin=") });
        }
    }
}

/// What a line of the log says of something: the word behind `name=`.
pub fn field<'a>(line: &'a str, name: &str) -> &'a str {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap_or_default()
}

/// Sends lines and gives everything that comes until the connection ends.
pub fn ask(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// `plimsoll` without some system calls, as `io_uring_setup=EPERM`; arguments are to be added.
pub fn forbidding(rules: &[&str]) -> Command {
    under("forbid.py", rules)
}

/// `plimsoll` with so little memory that it may lock; arguments are to be added.
pub fn starving(locked_kib: u32) -> Command {
    under("starve.py", &[&locked_kib.to_string()])
}

fn under(script: &str, words: &[&str]) -> Command {
    let mut command = Command::new("python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process").join(script);
    command.arg(script).args(words).args(["--", BINARY]);
    command
}

/// Runs `plimsoll` with these arguments.
pub fn plimsoll(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().unwrap()
}

/// What a command said.
pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs `plimsoll` and expects success; what it said.
pub fn succeeds(args: &[&str]) -> String {
    let output = plimsoll(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", told(&output));
    told(&output)
}

/// Runs `plimsoll` and expects failure; what it said.
pub fn fails(args: &[&str]) -> String {
    let output = plimsoll(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", told(&output));
    told(&output)
}

/// A connection of a client that waits for its replies.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    decoder: ReplyDecoder,
}

impl Client {
    pub fn connect(address: &str) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANG))?;
        Ok(Client { stream, buffer: Vec::new(), decoder: ReplyDecoder::new(ReplyLimits::DEFAULT) })
    }

    /// Sends bytes as they are: commands made with [`command`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends commands, some at a time, and gives their replies.
    pub fn pipeline(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Reply> {
        let mut replies = Vec::new();
        for some in commands.chunks(PIPELINE_DEPTH) {
            let mut bytes = Vec::new();
            some.iter().for_each(|args| request::encode(args, &mut bytes));
            self.send(&bytes).unwrap();
            replies.extend(some.iter().map(|_| self.receive().unwrap()));
        }
        replies
    }

    /// The next reply.
    pub fn receive(&mut self) -> Result<Reply> {
        let invalid = |error| Error::new(ErrorKind::InvalidData, format!("{error}"));
        loop {
            let wanted = match self.decoder.decode(&self.buffer).map_err(invalid)? {
                Decoded::Reply { consumed, reply } => {
                    self.buffer.drain(..consumed);
                    return Ok(reply);
                }
                Decoded::Incomplete { consumed, wanted } => {
                    self.buffer.drain(..consumed);
                    wanted
                }
            };
            let before = self.buffer.len();
            self.buffer.resize(before + wanted.max(16 << 10), 0);
            let count = self.stream.read(&mut self.buffer[before..]);
            self.buffer.truncate(before + count.as_ref().map_or(0, |count| *count));
            if count? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// One command and its reply.
    pub fn call(&mut self, args: &[&[u8]]) -> Result<Reply> {
        let mut bytes = Vec::new();
        request::encode(args, &mut bytes);
        self.send(&bytes)?;
        self.receive()
    }

    /// One command of plain words, whose connection is expected to stand.
    pub fn ask(&mut self, words: &str) -> Reply {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        self.call(&args).unwrap()
    }
}

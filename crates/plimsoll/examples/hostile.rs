//! Latency of short GETs at a fixed rate, alone and beside hostile clients.
//!
//! `hostile ADDRESS PID RATE SECONDS ROUNDS [KIND ...]`: stores 100 000 keys of 1 KiB, then in turns reads
//! them at RATE a second over 32 connections alone, for a fifth of SECONDS, and beside hostile clients:
//! 9 800 connections that send half a command and rest, some that send a byte now and then, some that send
//! huge commands and never end them, some that send garbage, some that ask for long values and never read,
//! some that come and go; or only those KINDs of them. Prints percentiles of each round, what memory the
//! process PID holds, and the ratio of the medians.
//!
//! Role: a measurement beside a running server. Never: it starts one. The hostile clients are a process of
//! their own, which runs when nobody else wants its processor (`chrt --idle`): clients of other machines
//! would not keep the honest ones from theirs.
#![allow(clippy::disallowed_methods, reason = "an example measures real time")]
#![allow(clippy::print_stdout, reason = "an example prints its result")]

mod load;

use load::{Client, Latencies, at, gets, median, told};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Connections that send half a command and rest.
const HALF_OPEN: usize = 9_800;
/// Clients of each other kind.
const CLIENTS: usize = 4;
/// The honest clients are alone for such a part of the time: an attack is long.
const ALONE_PART: u64 = 5;
/// Bytes of one write: a kernel that does not interrupt a system call lets the honest clients, which run on
/// the same processor, wait for its end.
const WRITE_BYTES: usize = 64 << 10;
/// The first word of the process of the hostile clients.
const ATTACK: &str = "--attack";
/// A value that takes many sends.
const LONG_BYTES: usize = 10 << 20;

/// A kind of hostile client: its name, how many threads there are of it, what each does.
type Kind = (&'static str, usize, fn(&Attack));

const KINDS: [Kind; 6] = [
    ("half-open", 1, half_open),
    ("slow", CLIENTS, slow),
    ("huge", CLIENTS, huge),
    ("garbage", CLIENTS, garbage),
    ("deaf", CLIENTS, deaf),
    ("come-and-go", CLIENTS, come_and_go),
];

/// What all hostile clients share.
struct Attack {
    address: String,
    stop: AtomicBool,
    /// Connections that the server cut or refused.
    cut: AtomicU64,
    /// Connections made.
    made: AtomicU64,
}

impl Attack {
    fn connect(&self) -> Option<TcpStream> {
        self.made.fetch_add(1, Relaxed);
        let stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(1))).ok()?;
        stream.set_write_timeout(Some(Duration::from_millis(20))).ok()?;
        Some(stream)
    }

    /// Connects again and again and does `work` with each connection until that says that it is over.
    fn repeat(&self, pause: Duration, mut work: impl FnMut(&mut TcpStream) -> bool) {
        while !self.stop.load(Relaxed) {
            let Some(mut stream) = self.connect() else { continue };
            while !self.stop.load(Relaxed) && work(&mut stream) {
                thread::sleep(pause);
            }
            self.cut.fetch_add(1, Relaxed);
            thread::sleep(pause);
        }
    }
}

/// True unless the connection is gone: a peer that takes nothing just now is still there.
fn goes_on(done: std::io::Result<usize>) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match done {
        Ok(count) => count > 0,
        Err(error) => matches!(error.kind(), TimedOut | WouldBlock),
    }
}

fn half_open(attack: &Attack) {
    let mut resting: Vec<TcpStream> = Vec::new();
    while !attack.stop.load(Relaxed) {
        if resting.len() < HALF_OPEN {
            let Some(mut stream) = attack.connect() else { continue };
            if stream.write_all(b"*2\r\n$3\r\nGET\r\n$100\r\nhalf of a key").is_ok() {
                resting.push(stream);
            }
            thread::sleep(Duration::from_micros(200));
        } else {
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn slow(attack: &Attack) {
    let command = b"*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$5\r\nvalue\r\n";
    let mut sent = 0;
    attack.repeat(Duration::from_millis(5), |stream| {
        sent += 1;
        goes_on(stream.write(&command[sent % command.len()..][..1]))
    });
}

fn huge(attack: &Attack) {
    let argument = [b"$1048576\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    let mut begun = false;
    attack.repeat(Duration::from_millis(200), |stream| {
        if !begun {
            begun = true;
            return goes_on(stream.write(b"*1000000\r\n$4\r\nMSET\r\n"));
        }
        begun = argument.chunks(WRITE_BYTES).all(|bytes| goes_on(stream.write(bytes)));
        begun
    });
}

fn garbage(attack: &Attack) {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = [0_u8; 4096];
    attack.repeat(Duration::from_millis(5), |stream| {
        for chunk in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        let starts =
            [b"*3\r\n$-5\r\n".as_slice(), b"*9999999999\r\n", b"$5\r\n", b"", b"*1\r\n$999999999999\r\n"];
        let start = starts[(state % 5) as usize];
        bytes[..start.len()].copy_from_slice(start);
        let sent = goes_on(stream.write(&bytes));
        sent && goes_on(stream.read(&mut [0; 4096]))
    });
}

fn deaf(attack: &Attack) {
    attack.repeat(Duration::from_millis(100), |stream| {
        goes_on(stream.write(&b"*2\r\n$3\r\nGET\r\n$4\r\nlong\r\n".repeat(100)))
    });
}

fn come_and_go(attack: &Attack) {
    attack.repeat(Duration::from_millis(2), |stream| {
        let _ = stream.write(b"PING\r\n");
        false
    });
}

/// What a process holds in memory, in MiB: now, and the most so far.
fn memory_mib(process: &str) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the server runs");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel tells");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// All hostile clients, or those of these kinds, until the standard input ends; connections made, and ended.
fn attack(address: &str, only: &[String]) {
    let (stop, cut, made) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let attack = Arc::new(Attack { address: address.to_owned(), stop, cut, made });
    let chosen = KINDS.iter().filter(|(name, _, _)| only.is_empty() || only.iter().any(|one| one == name));
    let kinds: Vec<fn(&Attack)> = chosen.flat_map(|(_, clients, kind)| vec![*kind; *clients]).collect();
    let spawn = |work: fn(&Attack)| {
        let attack = attack.clone();
        thread::spawn(move || work(&attack))
    };
    let threads: Vec<_> = kinds.into_iter().map(spawn).collect();
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the input ends");
    attack.stop.store(true, Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no hostile client fails"));
    println!("{} {}", attack.made.load(Relaxed), attack.cut.load(Relaxed));
}

/// Honest load beside hostile clients; connections that those made, and that ended.
fn attacked(address: &str, rate: u64, seconds: u64, only: &[String]) -> (Latencies, u64, u64) {
    let itself = std::env::current_exe().expect("it was started");
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(itself).args([ATTACK, address]).args(only);
    let hostile = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut hostile = hostile.expect("chrt (util-linux) is there");
    let latencies = gets(address, rate, seconds);
    drop(hostile.stdin.take());
    let ended = hostile.wait_with_output().expect("the hostile clients end");
    assert!(ended.status.success(), "a hostile client failed");
    let told = String::from_utf8(ended.stdout).expect("numbers");
    let mut counts = told.split_whitespace().map(|count| count.parse().expect("a number"));
    let mut next = || counts.next().expect("two numbers");
    (latencies, next(), next())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, address, only @ ..] = args.as_slice()
        && word == ATTACK
    {
        return attack(address, only);
    }
    let [address, process, rate, seconds, rounds, only @ ..] = args.as_slice() else {
        panic!("hostile ADDRESS PID RATE SECONDS ROUNDS [KIND ...]")
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (rate, seconds, rounds) = (number(rate), number(seconds), number(rounds));
    load::store(address);
    Client::connect(address).call(&[b"SET", b"long", &vec![b'l'; LONG_BYTES]]);
    let mut measured: Vec<(Latencies, Latencies)> = Vec::new();
    for round in 0..rounds {
        let quiet = gets(address, rate, seconds.div_ceil(ALONE_PART));
        let (before_mib, _) = memory_mib(process);
        let (loud, made, cut) = attacked(address, rate, seconds, only);
        let (_, most_mib) = memory_mib(process);
        println!("round {round}: alone {}; beside {}", told(&quiet), told(&loud));
        println!(
            "    {made} hostile connections, {cut} ended; {before_mib} MiB before, {most_mib} MiB at most so far"
        );
        measured.push((quiet, loud));
    }
    let p99_at = |latencies_us: fn(&Latencies) -> &[u64]| {
        let p99_us = |of: &Latencies| at(latencies_us(of), 990);
        let alone_us = median(measured.iter().map(|(quiet, _)| p99_us(quiet)).collect());
        let beside_us = median(measured.iter().map(|(_, loud)| p99_us(loud)).collect());
        let ratio = beside_us as f64 / alone_us as f64;
        format!("{alone_us} us alone, {beside_us} us beside; ratio {ratio:.2}")
    };
    println!("p99 at {rate} GETs a second, seen by the client: {}", p99_at(|of| &of.seen_us));
    println!("p99 at {rate} GETs a second, in the client's socket: {}", p99_at(|of| &of.arrived_us));
}

//! Latency of short GETs at a fixed rate, alone and beside hostile clients.
//!
//! `hostile ADDRESS PID RATE SECONDS ROUNDS [KIND ...]`: stores 100 000 keys of 1 KiB, then in turns reads
//! them at RATE a second over 32 connections alone, for a fifth of SECONDS, and beside hostile clients:
//! 9 800 connections that send half a command and rest, some that send a byte now and then, some that send
//! huge commands and never end them, some that send garbage, some that ask for long values and never read,
//! some that come and go; or only those KINDs of them. Before and after these the same is read, for a fifth
//! of SECONDS each time, beside a process that keeps all processors busy and sends nothing. Prints
//! percentiles of each round, what memory the process PID holds, and ratios of the medians.
//!
//! Role: a measurement beside a running server. Never: it starts one. The hostile clients are a process of
//! their own, which runs when nobody else wants its processor (`chrt --idle`): clients of other machines
//! would not keep the honest ones from theirs. Nor would they keep a processor of this machine busy; and the
//! host of a virtual machine may let it stand when all its processors are, whatever they do: the process that
//! sends nothing, and runs only where nobody else does, tells what that costs.
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
/// What is compared with an attack lasts such a part of its time: an attack is long.
const CALM_PART: u64 = 5;
/// Bytes of one write: a kernel that does not interrupt a system call lets the honest clients, which run on
/// the same processor, wait for its end.
const WRITE_BYTES: usize = 64 << 10;
/// The first word of the process of the hostile clients.
const ATTACK: &str = "--attack";
/// The first word of the process that keeps all processors busy in their place.
const BUSY: &str = "--busy";
/// The mask of `taskset` for as many as there may be.
const ALL_PROCESSORS: &str = "ffffffffffffffff";
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

/// Keeps all processors busy until the standard input ends.
fn busy() {
    let told = std::fs::read_to_string("/proc/cpuinfo").expect("the kernel tells");
    let processors = told.lines().filter(|line| line.starts_with("processor")).count();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        std::io::stdin().read_to_end(&mut Vec::new()).expect("the input ends");
        stop.store(true, Relaxed);
    });
}

/// The honest load.
struct Load<'a> {
    address: &'a str,
    rate: u64,
}

impl Load<'_> {
    fn alone(&self, seconds: u64) -> Latencies {
        gets(self.address, self.rate, seconds)
    }

    /// Beside this program with other arguments, when nobody else wants its processor, which is one of
    /// this program's or any; and what that prints.
    fn beside(&self, is_anywhere: bool, args: &[&str], seconds: u64) -> (Latencies, String) {
        let itself = std::env::current_exe().expect("it was started");
        let anywhere: &[&str] = if is_anywhere { &["taskset", ALL_PROCESSORS] } else { &[] };
        let words = [anywhere, &["chrt", "--idle", "0"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(itself).args(args);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut other = started.expect("taskset and chrt (util-linux) are there");
        let latencies = self.alone(seconds);
        drop(other.stdin.take());
        let ended = other.wait_with_output().expect("the process ends");
        assert!(ended.status.success(), "what ran beside failed");
        (latencies, String::from_utf8(ended.stdout).expect("numbers"))
    }

    /// Beside a process that sends nothing.
    fn beside_busy(&self, seconds: u64) -> Latencies {
        self.beside(true, &[BUSY], seconds).0
    }

    /// Beside hostile clients; connections that those made, and that ended.
    fn beside_hostile(&self, seconds: u64, only: &[String]) -> (Latencies, u64, u64) {
        let only = only.iter().map(String::as_str);
        let args: Vec<&str> = [ATTACK, self.address].into_iter().chain(only).collect();
        let (latencies, told) = self.beside(false, &args, seconds);
        let mut counts = told.split_whitespace().map(|count| count.parse().expect("a number"));
        let mut next = || counts.next().expect("two numbers");
        (latencies, next(), next())
    }
}

/// Latencies of one round.
struct Round {
    alone: Latencies,
    busy: Latencies,
    hostile: Latencies,
}

impl Round {
    /// Measures and prints.
    fn measure(load: &Load<'_>, process: &str, seconds: u64, only: &[String]) -> Round {
        let calm_seconds = seconds.div_ceil(CALM_PART);
        let alone = load.alone(calm_seconds);
        let before = load.beside_busy(calm_seconds);
        let (before_mib, _) = memory_mib(process);
        let (hostile, made, ended) = load.beside_hostile(seconds, only);
        let (_, most_mib) = memory_mib(process);
        let busy = before.and(load.beside_busy(calm_seconds));
        println!("    alone {}", told(&alone));
        println!("    beside busy processors {}", told(&busy));
        println!("    beside hostile clients {}", told(&hostile));
        println!("    {made} hostile connections, {ended} ended");
        println!("    {before_mib} MiB before, {most_mib} MiB at most so far");
        Round { alone, busy, hostile }
    }
}

/// What hostile clients make of a p99: medians of all rounds, and their ratios.
fn p99_told(rounds: &[Round], latencies_us: fn(&Latencies) -> &[u64]) -> String {
    let p99_us = |of: fn(&Round) -> &Latencies| {
        median(rounds.iter().map(|round| at(latencies_us(of(round)), 990)).collect())
    };
    let hostile_us = p99_us(|round| &round.hostile);
    let compared = |name: &str, with_us: u64| {
        format!("{with_us} us {name}, ratio {:.2}", hostile_us as f64 / with_us as f64)
    };
    let alone = compared("alone", p99_us(|round| &round.alone));
    let busy = compared("beside busy processors", p99_us(|round| &round.busy));
    format!("{hostile_us} us beside hostile clients; {alone}; {busy}")
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [BUSY] => return busy(),
        [ATTACK, address, ..] => return attack(address, &args[2..]),
        _ => {}
    }
    let [address, process, rate, seconds, rounds, only @ ..] = args.as_slice() else {
        panic!("hostile ADDRESS PID RATE SECONDS ROUNDS [KIND ...]")
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (rate, seconds, rounds) = (number(rate), number(seconds), number(rounds));
    load::store(address);
    Client::connect(address).call(&[b"SET", b"long", &vec![b'l'; LONG_BYTES]]);
    let load = Load { address, rate };
    let measure = |round| {
        println!("round {round}, p50, p99, p99.9 in us:");
        Round::measure(&load, process, seconds, only)
    };
    let measured: Vec<Round> = (0..rounds).map(measure).collect();
    let told = |latencies_us| p99_told(&measured, latencies_us);
    println!("p99 at {rate} GETs a second, seen by the client: {}", told(|of| &of.seen_us));
    println!("p99 at {rate} GETs a second, in the client's socket: {}", told(|of| &of.arrived_us));
}

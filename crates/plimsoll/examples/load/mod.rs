//! Honest load for measurements of what stands beside it: GETs of 1 KiB at a fixed rate.
//!
//! A latency is counted from the instant at which its GET was due, so that one that is held up counts for
//! those behind it (no coordinated omission). It is told twice: until this process has seen the reply, and
//! until the kernel put the reply into this process' socket (`SO_TIMESTAMPNS`). The second has nothing of
//! what this process waits for a processor, which it does where its neighbours are hostile.
#![allow(clippy::disallowed_methods, reason = "an example measures real time")]

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};

const CONNECTIONS: u64 = 32;
const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 1024;
const REPLY_BYTES: usize = "$1024\r\n".len() + VALUE_BYTES + "\r\n".len();

/// A connection that sends a command and waits for its reply.
pub(crate) struct Client {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket takes the option");
        let replies = BufReader::with_capacity(1 << 20, stream.try_clone().expect("a socket can be shared"));
        Client { stream, replies }
    }

    /// Sends a command and reads its reply: one line, or a bulk string.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> usize {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&bytes).expect("the server takes commands");
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the server answers");
        assert!(!line.starts_with('-'), "{line}");
        let Some(length) = line.strip_prefix('$') else { return 0 };
        let length: usize = length.trim().parse().expect("the key is there");
        let mut left = length + 2;
        let mut piece = vec![0; 1 << 16];
        while left > 0 {
            let take = left.min(piece.len());
            self.replies.read_exact(&mut piece[..take]).expect("the value comes whole");
            left -= take;
        }
        length
    }
}

/// A number that looks random and depends on nothing else.
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

fn key(number: u64) -> Vec<u8> {
    format!("short:{:010}", scatter(number) % KEYS).into_bytes()
}

/// One of the connections that GETs go over, one at a time.
struct Line {
    stream: TcpStream,
    due: SystemTime,
    /// What the server is held to: since when this GET could be with it.
    asked: SystemTime,
    /// When the kernel had what came last.
    arrived: SystemTime,
    got_bytes: usize,
}

impl Line {
    fn connect(address: &str) -> Line {
        let stream = Client::connect(address).stream;
        stream.set_nonblocking(true).expect("a socket takes the option");
        setsockopt(&stream, sockopt::ReceiveTimestampns, &true).expect("the kernel stamps what comes");
        let now = SystemTime::now();
        Line { stream, due: now, asked: now, arrived: now, got_bytes: 0 }
    }

    fn send(&mut self, number: u64, due: SystemTime) {
        let key = key(number);
        let mut bytes = format!("*2\r\n$3\r\nGET\r\n${}\r\n", key.len()).into_bytes();
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(b"\r\n");
        // If the reply before came later than this GET was due, the server held it up; if not, this process.
        let held_up = self.arrived > due;
        (self.due, self.asked) = (due, if held_up { due } else { SystemTime::now() });
        self.got_bytes = 0;
        self.stream.write_all(&bytes).expect("a socket takes a short command");
    }

    /// Reads what is there; true if that ends the reply.
    fn receive(&mut self) -> bool {
        let mut bytes = [0; 2 * VALUE_BYTES];
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let mut stamps = nix::cmsg_space!(TimeSpec);
        let fd = self.stream.as_raw_fd();
        let count = match recvmsg::<()>(fd, &mut pieces, Some(&mut stamps), MsgFlags::MSG_DONTWAIT) {
            Ok(message) => {
                let stamp = message.cmsgs().expect("there is room for a stamp").find_map(|one| match one {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                    _ => None,
                });
                // A kernel begins to stamp a moment after the first socket asks. Until then what counts is
                // when this sees it, which is later.
                self.arrived = stamp.map_or_else(SystemTime::now, |stamp| SystemTime::UNIX_EPOCH + stamp);
                message.bytes
            }
            Err(nix::errno::Errno::EAGAIN) => return false,
            Err(error) => panic!("the server is gone: {error}"),
        };
        assert!(count > 0, "the server closed a connection");
        let starts_well = self.got_bytes > 0 || bytes[0] == b'$';
        assert!(starts_well, "{}", String::from_utf8_lossy(&bytes[..count]));
        self.got_bytes += count;
        assert!(self.got_bytes <= REPLY_BYTES, "one reply for each command");
        self.got_bytes == REPLY_BYTES
    }
}

/// Latencies of GETs in microseconds, sorted.
pub(crate) struct Latencies {
    /// From when they were due until this process saw their replies.
    pub seen_us: Vec<u64>,
    /// From when they were with the server, or could have been, until their replies were in the socket.
    pub arrived_us: Vec<u64>,
}

impl Latencies {
    /// These and others, as of one run.
    pub(crate) fn and(mut self, mut others: Latencies) -> Latencies {
        self.seen_us.append(&mut others.seen_us);
        self.arrived_us.append(&mut others.arrived_us);
        self.sorted()
    }

    fn sorted(mut self) -> Latencies {
        self.seen_us.sort_unstable();
        self.arrived_us.sort_unstable();
        self
    }
}

fn since_us(start: SystemTime, end: SystemTime) -> u64 {
    end.duration_since(start).unwrap_or_default().as_micros() as u64
}

/// GETs at a fixed rate for so long, from one thread.
pub(crate) fn gets(address: &str, rate: u64, seconds: u64) -> Latencies {
    let mut lines: Vec<Line> = (0..CONNECTIONS).map(|_| Line::connect(address)).collect();
    let start = SystemTime::now();
    let due_at = |number: u64| start + Duration::from_nanos(number * 1_000_000_000 / rate);
    let (mut idle, mut busy): (Vec<usize>, Vec<usize>) = ((0..lines.len()).collect(), Vec::new());
    let (mut next, total) = (0, rate * seconds);
    let mut latencies = Latencies { seen_us: Vec::new(), arrived_us: Vec::new() };
    while latencies.seen_us.len() < total as usize {
        while next < total && due_at(next) <= SystemTime::now() {
            let Some(line) = idle.pop() else { break };
            lines[line].send(next, due_at(next));
            busy.push(line);
            next += 1;
        }
        let ready = wait(&lines, &busy, (next < total && !idle.is_empty()).then(|| due_at(next)));
        let mut ready = ready.into_iter();
        busy.retain(|index| {
            let line = &mut lines[*index];
            let done = ready.next().expect("one for each") && line.receive();
            if done {
                latencies.seen_us.push(since_us(line.due, SystemTime::now()));
                latencies.arrived_us.push(since_us(line.asked, line.arrived));
                idle.push(*index);
            }
            !done
        });
    }
    latencies.sorted()
}

/// Waits until a reply comes, or until then; which of the lines have something.
fn wait(lines: &[Line], busy: &[usize], until: Option<SystemTime>) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        busy.iter().map(|line| PollFd::new(&lines[*line].stream, PollFlags::IN)).collect();
    let left = until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
    let left = left.map(|left| Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) });
    poll(&mut polled, left.as_ref()).expect("sockets can be waited for");
    polled.iter().map(|polled| !polled.revents().is_empty()).collect()
}

/// Stores the keys that are read.
pub(crate) fn store(address: &str) {
    let mut client = Client::connect(address);
    for number in 0..KEYS {
        client.call(&[b"SET", format!("short:{number:010}").as_bytes(), &[b'v'; VALUE_BYTES]]);
    }
}

/// p50, p99 and p99.9 in microseconds.
pub(crate) fn told(latencies: &Latencies) -> String {
    let three = |sorted: &[u64]| [500, 990, 999].map(|per_mille| at(sorted, per_mille));
    let (seen, arrived) = (three(&latencies.seen_us), three(&latencies.arrived_us));
    format!("{seen:?}, in the socket {arrived:?}")
}

/// A percentile, in thousandths.
pub(crate) fn at(sorted: &[u64], per_mille: usize) -> u64 {
    sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)]
}

/// The middle one.
pub(crate) fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

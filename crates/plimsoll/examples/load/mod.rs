//! Honest load for measurements of what stands beside it: GETs of 1 KiB at a fixed rate.
//!
//! A latency is counted from the instant at which its GET was due, so that one that is held up counts for
//! those behind it (no coordinated omission).
#![allow(clippy::disallowed_methods, reason = "an example measures real time")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: u64 = 32;
const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 1024;

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

/// GETs at a fixed rate for so long; latencies in microseconds.
pub(crate) fn gets(address: &str, rate: u64, seconds: u64) -> Vec<u64> {
    let start = Instant::now();
    let each = |connection: u64| {
        let address = address.to_owned();
        thread::spawn(move || {
            let mut client = Client::connect(&address);
            let mut latencies_us = Vec::new();
            for number in (connection..rate * seconds).step_by(CONNECTIONS as usize) {
                let due = start + Duration::from_nanos(number * 1_000_000_000 / rate);
                if let Some(early) = due.checked_duration_since(Instant::now()) {
                    thread::sleep(early);
                }
                assert_eq!(client.call(&[b"GET", &key(number)]), VALUE_BYTES);
                latencies_us.push(due.elapsed().as_micros() as u64);
            }
            latencies_us
        })
    };
    let threads: Vec<_> = (0..CONNECTIONS).map(each).collect();
    let mut all: Vec<u64> =
        threads.into_iter().flat_map(|thread| thread.join().expect("no client fails")).collect();
    all.sort_unstable();
    all
}

/// Stores the keys that are read.
pub(crate) fn store(address: &str) {
    let mut client = Client::connect(address);
    for number in 0..KEYS {
        client.call(&[b"SET", format!("short:{number:010}").as_bytes(), &[b'v'; VALUE_BYTES]]);
    }
}

/// A few percentiles in words.
pub(crate) fn told(sorted: &[u64]) -> String {
    format!("p50 {} p99 {} p99.9 {} us", at(sorted, 500), at(sorted, 990), at(sorted, 999))
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

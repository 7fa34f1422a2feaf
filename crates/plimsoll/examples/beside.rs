//! Latency of short GETs at a fixed rate, alone and beside clients that move long values without pause.
//!
//! `beside ADDRESS RATE SECONDS ROUNDS [MOVERS]`: stores 100 000 keys of 1 KiB, then in turns reads them at
//! RATE a second over 32 connections alone, and beside MOVERS connections (1) that store and read values of
//! 10 MiB one after the other. A latency is counted from the instant at which its GET was due, so that one
//! that is held up counts for those behind it (no coordinated omission). Prints percentiles of each round,
//! medians of the rounds, and the ratio that the bar is about.
//!
//! Role: a measurement beside a running server. Never: it starts one.
#![allow(clippy::disallowed_methods, reason = "an example measures real time")]
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: u64 = 32;
const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 1024;
const LONG_BYTES: usize = 10 << 20;

struct Client {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket takes the option");
        let replies = BufReader::with_capacity(1 << 20, stream.try_clone().expect("a socket can be shared"));
        Client { stream, replies }
    }

    /// Sends a command and reads its reply: one line, or a bulk string.
    fn call(&mut self, words: &[&[u8]]) -> usize {
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
fn gets(address: &str, rate: u64, seconds: u64) -> Vec<u64> {
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

fn at(sorted: &[u64], per_mille: usize) -> u64 {
    sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)]
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, rate, seconds, rounds, rest @ ..] = args.as_slice() else {
        panic!("beside ADDRESS RATE SECONDS ROUNDS [MOVERS]")
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (rate, seconds, rounds) = (number(rate), number(seconds), number(rounds));
    let movers = rest.first().map_or(1, number);
    let mut client = Client::connect(address);
    for number in 0..KEYS {
        client.call(&[b"SET", format!("short:{number:010}").as_bytes(), &[b'v'; VALUE_BYTES]]);
    }
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let quiet = gets(address, rate, seconds);
        let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        let loud = thread::scope(|scope| {
            for mover in 0..movers {
                let (stop, moved) = (&stop, &moved);
                scope.spawn(move || {
                    let (mut client, value) = (Client::connect(address), vec![b'l'; LONG_BYTES]);
                    let key = format!("long:{mover}").into_bytes();
                    while !stop.load(Relaxed) {
                        client.call(&[b"SET", &key, &value]);
                        assert_eq!(client.call(&[b"GET", &key]), LONG_BYTES);
                        moved.fetch_add(2 * LONG_BYTES as u64, Relaxed);
                    }
                });
            }
            let loud = gets(address, rate, seconds);
            stop.store(true, Relaxed);
            loud
        });
        let told = |latencies: &[u64]| {
            format!("p50 {} p99 {} p99.9 {} us", at(latencies, 500), at(latencies, 990), at(latencies, 999))
        };
        println!(
            "round {round}: alone {}; beside {}; {} MB/s moved",
            told(&quiet),
            told(&loud),
            moved.load(Relaxed) / seconds / 1_000_000
        );
        alone.push(at(&quiet, 999));
        beside.push(at(&loud, 999));
    }
    let (alone, beside) = (median(alone), median(beside));
    println!(
        "p99.9 at {rate} GETs a second: {alone} us alone, {beside} us beside; ratio {:.2}",
        beside as f64 / alone as f64
    );
}

//! Latency of short GETs at a fixed rate, alone and beside clients that move long values without pause.
//!
//! `beside ADDRESS RATE SECONDS ROUNDS [MOVERS]`: stores 100 000 keys of 1 KiB, then in turns reads them at
//! RATE a second over 32 connections alone, and beside MOVERS connections (1) that store and read values of
//! 10 MiB one after the other. A latency is counted from the instant at which its GET was due, so that one
//! that is held up counts for those behind it (no coordinated omission). Prints percentiles of each round,
//! medians of the rounds, and the ratio that the bar is about.
//!
//! Role: a measurement beside a running server. Never: it starts one.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

mod load;

use load::{Client, at, gets, median, told};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

const LONG_BYTES: usize = 10 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, rate, seconds, rounds, rest @ ..] = args.as_slice() else {
        panic!("beside ADDRESS RATE SECONDS ROUNDS [MOVERS]")
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (rate, seconds, rounds) = (number(rate), number(seconds), number(rounds));
    let movers = rest.first().map_or(1, number);
    load::store(address);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let quiet = gets(address, rate, seconds);
        let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        let loud = thread::scope(|scope| {
            for mover in 0..movers {
                let (stop, moved) = (&stop, &moved);
                scope.spawn(move || {
                    // The short requests are measured, so this thread waits for them where both run.
                    rustix::process::nice(19).expect("a thread may become less urgent");
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

//! Nanoseconds per command to parse a 64-command pipeline, and to write and decode its replies.
//!
//! Role: keeps the codec's cost on the record: the target is 30 ns for a command. Place: outside the product.
//! Invariants: the best of many rounds is reported, as other load on the machine only ever adds.
//! Never: fails on a slow machine.
//!
//! `cargo bench -p plimsoll-resp`
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use plimsoll_resp::{
    Decoded, Limits, Parser, ReplyDecoder, ReplyLimits, ReplyWriter, Step, Version, request,
};
use std::hint::black_box;
use std::time::Instant;

const COMMANDS: usize = 64;
const ROUNDS: usize = 200;
const PASSES_PER_ROUND: usize = 500;

/// Best time of one pass, in nanoseconds per command.
fn measure(mut pass: impl FnMut()) -> f64 {
    let mut best_ns = f64::INFINITY;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for _ in 0..PASSES_PER_ROUND {
            pass();
        }
        best_ns = best_ns.min(started.elapsed().as_nanos() as f64 / (PASSES_PER_ROUND * COMMANDS) as f64);
    }
    best_ns
}

fn pipeline(command: impl Fn(usize) -> Vec<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..COMMANDS {
        request::encode(&command(index), &mut bytes);
    }
    bytes
}

fn key(index: usize) -> Vec<u8> {
    format!("key:{index:012}").into_bytes()
}

/// Parse the whole pipeline and touch every argument, as a server would.
fn parse_all(parser: &mut Parser, stream: &[u8]) {
    let (mut position, mut commands) = (0, 0);
    while position < stream.len() {
        match parser.parse(&stream[position..]) {
            Step::Command(command) => {
                for arg in command.args.iter() {
                    black_box(arg);
                }
                position += command.consumed;
                commands += 1;
            }
            step => panic!("a whole pipeline gave {step:?}"),
        }
    }
    assert_eq!(commands, COMMANDS);
}

fn parse_report(name: &str, stream: &[u8]) {
    let mut parser = Parser::new(Limits::DEFAULT);
    let ns = measure(|| parse_all(&mut parser, black_box(stream)));
    println!("parse  {name:<16} {ns:6.1} ns/command");
}

fn reply_report(name: &str, write: impl Fn(&mut ReplyWriter<'_>)) {
    let mut out = Vec::new();
    let ns = measure(|| {
        out.clear();
        for _ in 0..COMMANDS {
            write(&mut ReplyWriter::new(black_box(&mut out), Version::Resp2));
        }
        black_box(&out);
    });
    println!("write  {name:<16} {ns:6.1} ns/reply");
    let mut decoder = ReplyDecoder::new(ReplyLimits::DEFAULT);
    let ns = measure(|| {
        let mut position = 0;
        while position < out.len() {
            match decoder.decode(black_box(&out[position..])) {
                Ok(Decoded::Reply { consumed, reply }) => {
                    black_box(reply);
                    position += consumed;
                }
                other => panic!("whole replies gave {other:?}"),
            }
        }
    });
    println!("decode {name:<16} {ns:6.1} ns/reply");
}

fn main() {
    parse_report("GET 16 B key", &pipeline(|index| vec![b"GET".to_vec(), key(index)]));
    parse_report("SET 100 B", &pipeline(|index| vec![b"SET".to_vec(), key(index), vec![b'v'; 100]]));
    parse_report("SET 1 KiB", &pipeline(|index| vec![b"SET".to_vec(), key(index), vec![b'v'; 1024]]));
    reply_report("OK", |reply| reply.simple("OK"));
    reply_report("bulk 100 B", |reply| reply.bulk(&[b'v'; 100]));
    reply_report("integer", |reply| reply.integer(1_234_567));
}

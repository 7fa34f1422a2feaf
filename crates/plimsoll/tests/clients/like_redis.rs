//! Replies compared with those of redis-server, command line by command line.
//!
//! `like_redis.txt` holds the lines. What differs on purpose stands in `docs/`, not here.

use super::process::{Client, directory};
use super::start;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// A redis-server of Debian's, without persistence, on a port of its own.
struct Redis {
    child: std::process::Child,
    address: String,
}

impl Redis {
    fn start() -> Redis {
        // The port is free between this and its use by nobody else but by bad luck.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut child = Command::new("redis-server")
            .args(["--port", &free.port().to_string(), "--save", "", "--bind", "127.0.0.1"])
            .current_dir(directory("redis-server"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server cannot be run; `make prepare` installs what the tests need");
        let mut log = BufReader::new(child.stdout.take().expect("it is piped")).lines().map(Result::unwrap);
        assert!(log.any(|line| line.contains("Ready to accept connections")), "redis-server does not start");
        // What it says is read to its end, so that it never waits for a reader.
        std::thread::spawn(move || log.for_each(drop));
        Redis { child, address: free.to_string() }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words of a line: blanks part them, quotes hold them together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words
}

#[test]
fn replies_are_those_of_redis_server() {
    let (redis, server) = (Redis::start(), start("like-redis", "64MiB"));
    let mut theirs = Client::connect(&redis.address).unwrap();
    let mut ours = server.client();
    let lines = include_str!("like_redis.txt").lines().filter(|line| !line.starts_with('#'));
    let mut differing = Vec::new();
    for line in lines {
        let words = words(line);
        let args: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        let (expected, given) = (theirs.call(&args).unwrap(), ours.call(&args).unwrap());
        if expected != given {
            differing.push(format!("{line}\n  redis-server: {expected:?}\n  plimsoll:     {given:?}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    server.stop();
}

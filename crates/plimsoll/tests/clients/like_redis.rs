//! Replies compared with those of redis-server, command line by command line.
//!
//! `like_redis.txt` holds the lines. What differs on purpose stands in `docs/`, not here.

use super::process::{Client, directory};
use super::redis_server::Redis;
use super::start;

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
    let data = directory("redis-server");
    let (redis, server) = (Redis::start(&data), start("like-redis", "64MiB"));
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

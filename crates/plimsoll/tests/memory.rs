//! `--memory`: what the server holds stays within it, and what it cannot hold it refuses in words; and what
//! clients held is given back.

#![allow(clippy::disallowed_methods)] // What a process gives back takes real time.

mod process;

use plimsoll_resp::Reply;
use process::{Client, PIPELINE_DEPTH, Server, cores, directory, plimsoll, told};
use std::time::{Duration, Instant};

/// Enough for some hundred thousand keys and a hundred clients of one core.
const MEMORY: &str = "124MiB";
const MEMORY_BYTES: u64 = 124 << 20;
/// More than that is for.
const KEYS_MAX: usize = 1_000_000;

fn key(number: usize) -> Vec<u8> {
    format!("key:{number:012}").into_bytes()
}

fn info(client: &mut Client, section: &str, field: &str) -> u64 {
    let Reply::Bulk(text) = client.ask(&format!("INFO {section}")) else { panic!("INFO is a text") };
    let text = String::from_utf8(text).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{field} is not in {text}")).parse().unwrap()
}

/// Stores keys until they are refused; how many there are.
fn fill(client: &mut Client) -> usize {
    for first in (0..KEYS_MAX).step_by(PIPELINE_DEPTH) {
        let set = |number| vec![b"SET".to_vec(), key(number), b"v".to_vec()];
        let replies = client.pipeline(&(first..first + PIPELINE_DEPTH).map(set).collect::<Vec<_>>());
        let taken = replies.iter().take_while(|reply| **reply == Reply::Simple(b"OK".to_vec())).count();
        if taken < replies.len() {
            let Reply::Error(words) = &replies[taken] else { panic!("{:?}", replies[taken]) };
            let words = String::from_utf8_lossy(words);
            assert!(words.starts_with("OOM ") && words.contains("--memory"), "{words}");
            return first + taken;
        }
    }
    panic!("{KEYS_MAX} keys fit in {MEMORY}");
}

#[test]
fn keys_end_where_the_memory_does() {
    let place = directory("memory");
    let path = place.join("device");
    let (device, cores) = (path.to_str().unwrap(), cores(1));
    let common = ["--device", device, "--size", "256MiB", "--cores", &cores, "--cache", "0"];
    let args = |more: &[&'static str]| [&common[..], more].concat();
    let server = Server::start(&args(&["--memory", MEMORY, "--clients-max", "100"]));
    let mut client = server.client();
    assert_eq!(info(&mut client, "memory", "maxmemory"), MEMORY_BYTES);
    let keys = fill(&mut client);
    println!("{keys} keys in {MEMORY}");
    assert!(keys > 200_000);
    // A long value goes to flash while it comes, and then there is no room for its key.
    let long = vec![b'x'; 60_000_000];
    let Reply::Error(words) = client.call(&[b"SET", b"long", &long]).unwrap() else { panic!("it was taken") };
    assert!(words.starts_with(b"OOM "), "{}", String::from_utf8_lossy(&words));
    // One that would be held in memory is refused, and halves of commands are held to their share.
    let Reply::Error(words) = client.call(&[b"MSET", b"long", &long]).unwrap() else {
        panic!("it was taken")
    };
    assert_eq!(words, b"ERR argument is too long");
    let name = [b"$1000000\r\n", &long[..1_000_000], b"\r\n"].concat();
    let mut greedy: Vec<Client> = (0..8).map(|_| server.client()).collect();
    for client in &mut greedy {
        let _ = client.send(b"*1000\r\n$3\r\nDEL\r\n");
        let _ = (0..5).try_for_each(|_| client.send(&name));
    }
    server.hear("clients hold too much memory: one of them is cut");
    assert!(info(&mut client, "stats", "evicted_clients") >= 1, "they send 40 MB");
    drop(greedy);
    let peak = info(&mut client, "memory", "used_memory_peak");
    println!("{} MiB at most", peak >> 20);
    assert!(peak <= MEMORY_BYTES, "{peak} bytes");

    // Clients above the number that memory was divided for are not let in by a change.
    let Reply::Error(words) = client.ask("CONFIG SET maxclients 200") else { panic!("it was taken") };
    assert!(String::from_utf8_lossy(&words).contains("for 100 at most"));
    assert_eq!(client.ask("CONFIG SET maxclients 90"), Reply::Simple(b"OK".to_vec()));

    assert_eq!(client.call(&[b"DEL", &key(0)]).unwrap(), Reply::Integer(1));
    assert_eq!(client.ask("SET another v"), Reply::Simple(b"OK".to_vec()));
    server.kill();

    let server = Server::start(&args(&["--memory", MEMORY, "--clients-max", "100"]));
    assert_eq!(server.client().ask("DBSIZE"), Reply::Integer(keys as i64));
    assert_eq!(server.client().ask("GET another"), Reply::Bulk(b"v".to_vec()));
    server.stop();

    let words = Server::refusal(&args(&["--memory", "121MiB", "--clients-max", "100"]));
    assert!(words.contains(&format!("the device holds {keys} objects")), "{words}");
    let refused = plimsoll(&[&["serve"], &args(&["--memory", MEMORY])[..]].concat());
    let words = told(&refused);
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains(&format!("{MEMORY} are too few")) && words.contains("10000 clients"), "{words}");
}

/// A line of what the system tells of a process, in MiB.
fn status_mib(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Without `--memory` clients hold 256 MiB on a core: what was freed stayed with the allocator beside that,
/// and all of it until the next client came.
#[test]
fn what_clients_held_is_given_back_when_they_have_gone() {
    let place = directory("given-back");
    let path = place.join("device");
    let (device, cores) = (path.to_str().unwrap(), cores(1));
    let server = Server::start(&["--device", device, "--size", "256MiB", "--cores", &cores, "--cache", "0"]);
    let process = server.child.id();
    let half = [b"*2\r\n$4\r\nECHO\r\n$50000000\r\n", &vec![b'x'; 49_000_000][..]].concat();
    let mut greedy: Vec<Client> = (0..16).map(|_| server.client()).collect();
    for client in &mut greedy {
        let _ = client.send(&half);
    }
    server.hear("clients hold too much memory: one of them is cut");
    let peak = status_mib(process, "VmHWM");
    println!("{peak} MiB at most");
    assert!((256..400).contains(&peak), "{peak} MiB");
    drop(greedy);
    let patience = Instant::now() + Duration::from_secs(20);
    while status_mib(process, "VmRSS") > 100 {
        assert!(Instant::now() < patience, "{} MiB are kept", status_mib(process, "VmRSS"));
        std::thread::sleep(Duration::from_millis(100));
    }
    server.stop();
}

/// A device was made before it was said that the memory does not do.
#[test]
fn memory_that_is_too_little_makes_no_device() {
    let device = directory("memory-too-little").join("device");
    let path = device.to_str().unwrap();
    let refused = plimsoll(&["serve", "--device", path, "--size", "64MiB", "--memory", "8MiB"]);
    let words = told(&refused);
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains("memory: 8MiB are too few") && !device.exists(), "{words}");
}

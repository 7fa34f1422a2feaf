//! A full device that makes room: a cache three times too small, a kill, and what is there afterwards.

mod process;

use plimsoll_resp::Reply;
use process::{Client, PIPELINE_DEPTH, Server, cores, directory, succeeds};
use std::collections::BTreeSet;

const VALUE_BYTES: usize = 8000;
/// Three times what the device has room for.
const KEYS: usize = 3 * (64 << 20) / VALUE_BYTES;
/// Keys that are read all the while, one in so many of those that are written at first.
const HOT: usize = 400;
const HOT_EVERY: usize = 4;
/// Looks at what has to come in a moment.
const ATTEMPTS_MAX: usize = 200;

fn key(number: usize) -> String {
    format!("key:{number}")
}

fn value(number: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(VALUE_BYTES / 8)
}

fn is_hot(number: usize) -> bool {
    number.is_multiple_of(HOT_EVERY) && number / HOT_EVERY < HOT
}

/// The keys that are there; what is there has the value that was stored.
fn there(client: &mut Client) -> BTreeSet<usize> {
    let gets: Vec<_> = (0..KEYS).map(|n| vec![b"GET".to_vec(), key(n).into_bytes()]).collect();
    let read = (0..KEYS).zip(client.pipeline(&gets)).filter_map(|(number, reply)| match reply {
        Reply::Bulk(bytes) => {
            assert!(bytes == value(number), "{} has another value", key(number));
            Some(number)
        }
        Reply::Null => None,
        other => panic!("{other:?}"),
    });
    read.collect()
}

/// The same once nothing goes between two looks: room is made ahead of need.
fn settled(client: &mut Client) -> BTreeSet<usize> {
    let settled = (0..ATTEMPTS_MAX).find_map(|_| {
        let left = there(client);
        (client.ask("DBSIZE") == Reply::Integer(left.len() as i64)).then_some(left)
    });
    settled.expect("DBSIZE is what can be read")
}

fn scanned(client: &mut Client) -> usize {
    let (mut cursor, mut keys) = ("0".to_owned(), BTreeSet::new());
    loop {
        let Reply::Array(page) = client.ask(&format!("SCAN {cursor} COUNT 1000")) else { panic!() };
        let [Reply::Bulk(next), Reply::Array(found)] = &page[..] else { panic!("{page:?}") };
        keys.extend(found.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            return keys.len();
        }
    }
}

fn info(client: &mut Client, field: &str) -> String {
    let Reply::Bulk(text) = client.ask("INFO") else { panic!("INFO gives a text") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).to_owned()
}

#[test]
fn a_cache_three_times_too_small_keeps_what_is_read() {
    let place = directory("evict");
    let path = place.join("device");
    let device = path.to_str().unwrap();
    let cores = cores(2);
    let args = ["--device", device, "--size", "64MiB", "--cores", &cores, "--on-full", "evict"];
    let server = Server::start(&args);
    let mut client = server.client();
    let policy = client.ask("CONFIG GET maxmemory-policy");
    assert_eq!(
        policy,
        Reply::Array(vec![Reply::Bulk(b"maxmemory-policy".to_vec()), Reply::Bulk(b"allkeys-lru".to_vec())])
    );
    assert_eq!(info(&mut client, "maxmemory_policy"), "allkeys-lru");
    for first in (0..KEYS).step_by(PIPELINE_DEPTH) {
        let numbers = first..(first + PIPELINE_DEPTH).min(KEYS);
        let sets: Vec<_> = numbers.map(|n| vec![b"SET".to_vec(), key(n).into_bytes(), value(n)]).collect();
        let replies = client.pipeline(&sets);
        assert!(replies.iter().all(|reply| *reply == Reply::Simple(b"OK".to_vec())), "all stores succeed");
        if first > HOT * HOT_EVERY {
            let hot = (0..PIPELINE_DEPTH).map(|at| (first + at) % HOT * HOT_EVERY);
            let gets: Vec<_> = hot.map(|n| vec![b"GET".to_vec(), key(n).into_bytes()]).collect();
            client.pipeline(&gets);
        }
    }
    let left = settled(&mut client);
    let hot = left.iter().filter(|number| is_hot(**number)).count();
    let early = (0..HOT * HOT_EVERY).filter(|number| !is_hot(*number));
    let early = early.filter(|number| left.contains(number)).count();
    println!(
        "{} of {KEYS} are left; of the first, {hot} of {HOT} that were read, {early} of the others",
        left.len()
    );
    assert!(hot * 10 > HOT * 9 && early * 10 < HOT * HOT_EVERY, "{hot} hot, {early} cold");
    assert!(left.len() * VALUE_BYTES > (64 << 20) * 6 / 10, "more went than had to: {} are left", left.len());
    // Numbers of the partitions are told as they are now.
    assert_eq!(info(&mut client, "evicted_keys"), (KEYS - left.len()).to_string());
    assert_eq!(scanned(&mut client), left.len());

    server.kill();
    let server = Server::start(&args);
    let mut client = server.client();
    let again = settled(&mut client);
    assert!(again.is_subset(&left), "what was seen gone does not come back");
    assert!(again.len() * 100 > left.len() * 95, "{} of {} are there", again.len(), left.len());
    assert_eq!(scanned(&mut client), again.len());
    server.stop();
    assert!(succeeds(&["device", "verify", device]).contains("read and proved"));
}

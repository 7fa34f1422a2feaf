//! Counts beside transactions after a kill: an array that counts looks at keys whose copies differ, which
//! transactions hold.

use super::process::{Client, Server, cores, directory};
use super::{args, paths};
use plimsoll_resp::Reply;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

const KEYS: usize = 400;
const WRITERS: usize = 12;
const PIPELINE: usize = 60;
/// So many SETs are acknowledged when the server is killed, others are under way.
const STORED: usize = 3000;
/// What each client asks after that.
const ROUNDS: usize = 60;

/// SETs in pipelines, until the server has gone.
fn write(address: &str, writer: usize, stored: &AtomicUsize) {
    let Ok(mut client) = Client::connect(address) else { return };
    for round in 0.. {
        let name = |number: usize| (writer * 37 + round * 61 + number * 7) % KEYS;
        let sets: String = (0..PIPELINE).map(|number| format!("SET k{} v\r\n", name(number))).collect();
        if client.send(sets.as_bytes()).is_err() {
            return;
        }
        for _ in 0..PIPELINE {
            match client.receive() {
                Ok(reply) => assert_eq!(reply, Reply::Simple("OK".into())),
                Err(_) => return,
            }
            stored.fetch_add(1, Relaxed);
        }
    }
}

/// Stores keys of both partitions as one.
fn store_together(mut client: Client, from: usize) {
    for round in 0..ROUNDS {
        let name = |number: usize| (from + round * 31 + number * 11) % KEYS;
        let pairs: String = (0..10).map(|number| format!(" k{} w", name(number))).collect();
        assert_eq!(client.ask(&format!("MSET{pairs}")), Reply::Simple("OK".into()));
    }
}

/// Found by an audit: counts took turns with transactions, and waited for a key that one of them held while
/// it waited for its turn. Neither ended, nor did the server.
#[test]
fn counts_and_transactions_go_on_after_a_kill() {
    let place = directory("devices-counting");
    let (paths, cores) = (paths(&place, 3), cores(2));
    let devices: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut server = Server::start(&args(&devices, &cores, &[]));
    for _ in 0..3 {
        let (address, stored) = (server.resp.clone(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (address, stored) = (&address, &stored);
                scope.spawn(move || write(address, writer, stored));
            }
            while stored.load(Relaxed) < STORED {
                thread::yield_now();
            }
            server.kill();
        });
        server = Server::start(&args(&devices, &cores, &[]));
        thread::scope(|scope| {
            for from in [0, KEYS / 2] {
                let client = server.client();
                scope.spawn(move || store_together(client, from));
            }
            let mut client = server.client();
            for _ in 0..ROUNDS {
                let Reply::Integer(keys) = client.ask("DBSIZE") else { panic!("a number") };
                assert!((1..=KEYS as i64).contains(&keys), "{keys} keys");
                assert!(matches!(client.ask("INFO keyspace"), Reply::Bulk(_)));
            }
        });
    }
    server.stop();
}

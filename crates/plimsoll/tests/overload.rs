//! Overload: a drive that is much slower than its clients. What cannot be begun in time is refused in a word
//! that clients know, and the rest is kept.

mod process;

use plimsoll_resp::Reply;
use process::{Client, Server, directory};

const CLIENTS: usize = 8;
const COMMANDS: usize = 32;
const VALUE_BYTES: usize = 16_000;

fn key(client: usize, number: usize) -> String {
    format!("key:{client}:{number}")
}

fn value(client: usize, number: usize) -> Vec<u8> {
    (client * COMMANDS + number).to_le_bytes().repeat(VALUE_BYTES / 8)
}

/// What becomes of stores that come all at once.
fn store_all(mut client: Client, number: usize) -> Vec<Reply> {
    let set = |at: usize| vec![b"SET".to_vec(), key(number, at).into_bytes(), value(number, at)];
    client.pipeline(&(0..COMMANDS).map(set).collect::<Vec<_>>())
}

#[test]
fn what_an_overloaded_drive_cannot_begin_in_time_is_refused_and_may_be_tried_again() {
    let place = directory("overload");
    let (slow, device) = (place.join("slow.toml"), place.join("device"));
    let args = |more: &[&str]| -> Vec<String> {
        let args = ["--device", device.to_str().unwrap(), "--size", "64MiB", "--cores", "0", "--cache", "0"];
        args.iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let start = |more: &[&str]| {
        let args = args(more);
        Server::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    start(&[]).stop();
    std::fs::write(&slow, "[throttle]\nbytes = \"1MiB\"\n").unwrap();
    let server = start(&["--config", slow.to_str().unwrap()]);
    let mut client = server.client();
    let ok = Reply::Simple(b"OK".to_vec());
    // What the start has to write is out of the way.
    assert_eq!(client.ask("SET first value"), ok);
    assert_eq!(client.ask("CONFIG SET tryagain-after 100"), ok);
    let storing = (0..CLIENTS).map(|number| {
        let client = server.client();
        std::thread::spawn(move || store_all(client, number))
    });
    let storing: Vec<_> = storing.collect();
    let told: Vec<Vec<Reply>> = storing.into_iter().map(|thread| thread.join().unwrap()).collect();
    let is_refused = |reply: &Reply| *reply == Reply::Error(b"TRYAGAIN overloaded, try again".to_vec());
    let refused = told.iter().flatten().filter(|reply| is_refused(reply)).count();
    println!("{refused} of {} stores are refused", CLIENTS * COMMANDS);
    assert!((1..CLIENTS * COMMANDS).contains(&refused), "{refused} are refused");
    for (number, replies) in told.iter().enumerate() {
        for (at, reply) in replies.iter().enumerate() {
            let there = client.ask(&format!("GET {}", key(number, at)));
            if is_refused(reply) {
                assert_eq!(there, Reply::Null, "{} is not there", key(number, at));
            } else {
                assert_eq!(*reply, ok);
                assert!(there == Reply::Bulk(value(number, at)), "{} is there", key(number, at));
            }
        }
    }
    let Reply::Bulk(info) = client.ask("INFO errorstats") else { panic!("INFO") };
    let counted = format!("errorstat_TRYAGAIN:count={refused}");
    assert!(String::from_utf8_lossy(&info).contains(&counted), "{}", String::from_utf8_lossy(&info));
    // Who waits as long as it takes is served.
    assert_eq!(client.ask("CONFIG SET tryagain-after 0"), ok);
    let again = store_all(server.client(), 0);
    assert!(again.iter().all(|reply| *reply == ok), "{again:?}");
}

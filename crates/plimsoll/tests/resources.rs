//! What a server takes when it does little: time to start, and time while it is idle.
#![allow(clippy::disallowed_methods)] // Real time is what is measured.

mod process;

use plimsoll_resp::Reply;
use process::{Server, directory};
use std::time::{Duration, Instant};

/// The bar, and what a slow or busy machine is given.
const FIRST_START_MAX: Duration = Duration::from_secs(2);
const SLOWNESS: u32 = 4;
const IDLE: Duration = Duration::from_secs(2);

/// Processor time of a process so far, in clock ticks, and ticks a second.
fn ticks(process: u32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name, in parentheses, may hold anything; after it, utime and stime are the 12th and 13th.
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 1..].split_whitespace().collect();
    let used = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    (used, rustix::param::clock_ticks_per_second())
}

#[test]
fn the_first_start_is_quick_and_an_idle_server_rests() {
    let data = directory("resources");
    let start = Instant::now();
    // Of the default size, on all processors.
    let server = Server::start(&["--data", data.to_str().unwrap()]);
    let mut client = server.client();
    assert_eq!(client.ask("SET k v"), Reply::Simple(b"OK".to_vec()));
    let took = start.elapsed();
    println!("first start, to the first SET acknowledged: {} ms", took.as_millis());
    assert!(took <= FIRST_START_MAX * SLOWNESS, "the first start took {took:?}");

    // A connection that is idle too; the first second is for what a start leaves to do.
    std::thread::sleep(Duration::from_secs(1));
    let process = server.child.id();
    let ((before, per_second), began) = (ticks(process), Instant::now());
    std::thread::sleep(IDLE);
    let used = (ticks(process).0 - before) as f64 / per_second as f64;
    let share = used / began.elapsed().as_secs_f64();
    println!("idle: {:.2} % of a core", share * 100.0);
    assert!(share < 0.01, "an idle server uses {:.2} % of a core", share * 100.0);
    assert_eq!(client.ask("GET k"), Reply::Bulk(b"v".to_vec()));
    server.stop();
}

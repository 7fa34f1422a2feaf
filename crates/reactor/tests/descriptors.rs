//! Running out of descriptors. Alone in its binary: it lowers the limit of the whole process.

mod common;

use common::block_on;
use plimsoll_reactor::DriverChoice;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpStream;

/// One more than the highest descriptor in use.
fn descriptors() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap());
    numbers.max().unwrap() + 1
}

/// Every number below the limit is taken: holes would be found by the next descriptor.
fn fill(below: u64) -> Vec<std::fs::File> {
    let mut kept = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        kept.push(file);
        assert!(kept.len() as u64 <= below, "the limit holds");
    }
    kept
}

fn refused_and_served(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
        let before = getrlimit(Resource::Nofile);
        let most = descriptors();
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..before }).unwrap();
        let fillers = fill(most);
        for _ in 0..3 {
            let error = listener.accept().await.err().expect("no descriptor is left");
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()), "{error}");
        }
        setrlimit(Resource::Nofile, before).unwrap();
        drop(fillers);
        // An error of the call, not of the listener, and nobody was lost.
        let mut served = Vec::new();
        for _ in &clients {
            served.push(listener.accept().await.unwrap().peer().unwrap());
        }
        let mut wanted: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        served.sort();
        wanted.sort();
        assert_eq!(served, wanted);
    });
}

#[test]
fn an_accept_without_descriptors_fails_and_loses_nobody() {
    for driver in [DriverChoice::Uring, DriverChoice::Portable] {
        refused_and_served(driver);
    }
}

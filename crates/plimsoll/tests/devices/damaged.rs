//! Blocks of several devices rot, heads of records and all: a scrub mends them where they are.

use super::process::{Server, cores, directory, succeeds};
use super::{args, array, member, paths};
use plimsoll_resp::Reply;
use std::os::unix::fs::FileExt;

const KEYS: usize = 2000;
const BLOCK_BYTES: usize = 4096;

fn value(key: usize) -> String {
    format!("{key}-").repeat(100 + key % 40)
}

fn check(server: &Server) {
    let mut client = server.client();
    for key in 0..KEYS {
        assert_eq!(client.ask(&format!("GET rot:{key}")), Reply::Bulk(value(key).into_bytes()), "{key}");
    }
}

/// Writes noise over a block of a device in which a record of a key begins.
fn rot(device: &str, nth: usize) {
    let file = std::fs::File::options().read(true).write(true).open(device).unwrap();
    let image = std::fs::read(device).unwrap();
    let has_head = |block: &usize| {
        let bytes = &image[block * BLOCK_BYTES..][..BLOCK_BYTES];
        bytes.windows(8).any(|some| some.starts_with(b"rot:") && some[4].is_ascii_digit())
    };
    let block = (16..image.len() / BLOCK_BYTES).filter(has_head).nth(nth).expect("it holds keys");
    file.write_all_at(&[0xa5; BLOCK_BYTES], (block * BLOCK_BYTES) as u64).unwrap();
}

/// Three rotten blocks on three of six devices took all three out, and then keys were lost.
#[test]
fn rotten_blocks_of_three_devices_are_mended_by_a_scrub() {
    let place = directory("devices-rotten");
    let paths = paths(&place, 6);
    let devices: Vec<&str> = paths.iter().map(String::as_str).collect();
    let cores = cores(1);
    // What is read from memory is not found out.
    let args = args(&devices, &cores, &["--cache", "0"]);
    let server = Server::start(&args);
    let mut client = server.client();
    for key in 0..KEYS {
        assert_eq!(client.ask(&format!("SET rot:{key} {}", value(key))), Reply::Simple(b"OK".to_vec()));
    }
    server.stop();
    // No two that are neighbours on the ring have the last copies of a key.
    let rotten = [devices[0], devices[2], devices[4]];
    rotten.iter().for_each(|device| rot(device, 40));
    let server = Server::start(&args);
    check(&server);
    let mended = array(&server, &["scrub", "--wait"]);
    assert!(!mended.contains(" 0 of them damaged"), "{mended}");
    let again = array(&server, &["scrub", "--wait"]);
    assert!(again.contains(" 0 of them damaged, different or unreadable"), "{again}");
    for device in &devices {
        assert_eq!(member(&server, device)["state"], "in");
    }
    let repaired = rotten.map(|device| member(&server, device)["repaired"].as_u64().unwrap());
    assert!(repaired.iter().all(|count| *count > 0), "{repaired:?}");
    check(&server);
    server.stop();
    for device in &devices {
        succeeds(&["device", "verify", device]);
    }
    let server = Server::start(&args);
    check(&server);
    server.stop();
}

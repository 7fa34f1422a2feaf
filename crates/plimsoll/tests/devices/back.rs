//! A device that was away is opened anew while the server runs, if it is the one that went.

use super::load::Load;
use super::process::{Server, cores, directory, fails, succeeds};
use super::{SIZE, args, array, paths, wait_for};
use plimsoll_resp::Reply;

#[test]
fn a_device_that_was_away_is_brought_back_while_clients_go_on() {
    let place = directory("devices-back");
    let paths = paths(&place, 4);
    let [a, b, c, away] = [0, 1, 2, 3].map(|number| paths[number].as_str());
    let cores = cores(2);
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    let load = Load::start(&server.resp);
    load.wait_for(1000);
    for device in [b, a, b] {
        std::fs::rename(device, away).unwrap();
        wait_for(&server, device, "out");
        let told = fails(&["array", "rebuild", device, "--admin", &server.admin]);
        assert!(told.contains(&format!("{device}: there is no such file; bring back what it was")), "{told}");
        load.wait_for_more(1000);
        std::fs::rename(away, device).unwrap();
        let said = array(&server, &["rebuild", device, "--wait"]);
        assert!(said.contains(&format!("{device} being rebuilt")) && said.contains("\nrebuilt\n"), "{said}");
        assert_eq!(wait_for(&server, device, "in")["reason"], "");
        load.wait_for_more(500);
    }
    let mut model = load.stop();
    model.check(&mut server.client());
    let scrubbed = array(&server, &["scrub", "--wait"]);
    assert!(scrubbed.contains(" 0 of them damaged, different or unreadable"), "{scrubbed}");
    // What came back has it all: without the others nothing is missing.
    server.kill();
    std::fs::remove_file(c).unwrap();
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    model.check(&mut server.client());
    server.stop();
}

#[test]
fn what_is_not_the_device_that_went_is_not_opened_in_its_place() {
    let place = directory("devices-not-back");
    let paths = paths(&place, 6);
    let [a, b, c, away, old, other] = [0, 1, 2, 3, 4, 5].map(|number| paths[number].as_str());
    let cores = cores(2);
    let start = || Server::start(&args(&[a, b, c], &cores, &[]));
    let server = start();
    (0..50).for_each(|key| drop(server.client().ask(&format!("SET {key} old"))));
    server.stop();
    std::fs::copy(b, old).unwrap();
    succeeds(&["device", "format", other, "--size", SIZE, "--partitions", "2"]);
    let server = start();
    (0..25).for_each(|key| drop(server.client().ask(&format!("SET {key} new"))));
    (25..50).for_each(|key| drop(server.client().ask(&format!("DEL {key}"))));
    std::fs::rename(b, away).unwrap();
    wait_for(&server, b, "out");
    let refused = || fails(&["array", "rebuild", b, "--wait", "--admin", &server.admin]);
    let length = std::fs::metadata(a).unwrap().len();
    std::fs::File::create(b).unwrap().set_len(length).unwrap();
    let told = refused();
    assert!(told.contains(&format!("{b}: it is blank")), "{told}");
    std::fs::rename(other, b).unwrap();
    let told = refused();
    assert!(told.contains(&format!("{b}: it is another device")), "{told}");
    // It is the one, as it was before: what it missed it is given, and what was deleted stays so.
    std::fs::rename(old, b).unwrap();
    array(&server, &["rebuild", b, "--wait"]);
    array(&server, &["scrub", "--wait"]);
    for key in 0..50 {
        let there = if key < 25 { Reply::Bulk(b"new".to_vec()) } else { Reply::Null };
        assert_eq!(server.client().ask(&format!("GET {key}")), there, "key {key}");
    }
    assert_eq!(server.client().ask("DBSIZE"), Reply::Integer(25), "nothing that was deleted came back");
    server.stop();
}

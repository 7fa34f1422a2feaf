//! A device that was away is opened anew while the server runs, if it is the one that went.

use super::load::Load;
use super::process::{Server, cores, directory, fails, succeeds};
use super::{PATIENCE, SIZE, args, array, get, member, paths, wait_for};
use plimsoll_resp::Reply;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

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
        // It was brought in as it was still open, and out again a second later.
        assert!(!is_open(&server, away), "nothing is asked of a device whose path leads nowhere");
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

/// Whether a server's process has a file open.
fn is_open(server: &Server, path: &str) -> bool {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    let mut files = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    files.any(|file| file == Path::new(path))
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

/// It was looked after no more when it was back, and could be formatted while it was served.
#[test]
fn the_last_device_that_went_away_is_watched_on_when_it_is_back() {
    let place = directory("devices-last-back");
    let paths = paths(&place, 4);
    let [a, b, c, alias] = [0, 1, 2, 3].map(|number| paths[number].as_str());
    let cores = cores(2);
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    let away = |device: &str| std::fs::rename(device, format!("{device}-away")).unwrap();
    let back = |device: &str| std::fs::rename(format!("{device}-away"), device).unwrap();
    for device in [a, b] {
        away(device);
        wait_for(&server, device, "out");
    }
    away(c);
    let until = Instant::now() + PATIENCE;
    while member(&server, c)["reason"] == "" {
        assert!(Instant::now() < until, "nobody sees that the last one has gone");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(member(&server, c)["state"], "in", "what it holds can still be read");
    assert!(get(&server, "/healthz").contains(&format!("{c}: the file is gone")));
    [a, b, c].into_iter().for_each(back);
    array(&server, &["rebuild", "--wait"]);
    std::fs::hard_link(c, alias).unwrap();
    for [old, new] in [[a, alias], [c, c]] {
        let told = fails(&["array", "replace", old, new, "--force", "--admin", &server.admin]);
        assert!(told.contains("is in use by this array"), "{told}");
    }
    away(c);
    wait_for(&server, c, "out");
    back(c);
    // A replacement that is refused leaves it no worse than it was.
    let told = fails(&["array", "replace", c, c, "--admin", &server.admin]);
    assert!(told.contains("is a Plimsoll device already"), "{told}");
    wait_for(&server, c, "in");
    assert!(get(&server, "/healthz").starts_with("HTTP/1.0 200"));
    server.stop();
}

/// Its sound partitions were left out as well, and nobody was told why.
#[test]
fn of_a_device_that_is_damaged_in_one_partition_the_others_come_back() {
    let place = directory("devices-half-back");
    let paths = paths(&place, 4);
    let [a, b, c, away] = [0, 1, 2, 3].map(|number| paths[number].as_str());
    let cores = cores(2);
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    (0..100).for_each(|key| drop(server.client().ask(&format!("SET {key} v"))));
    std::fs::rename(b, away).unwrap();
    wait_for(&server, b, "out");
    std::fs::write(b, "no device").unwrap();
    fails(&["array", "rebuild", b, "--admin", &server.admin]);
    // Both anchors of the second of two partitions.
    let file = std::fs::File::options().write(true).open(away).unwrap();
    file.write_all_at(&[0xff; 8192], 3 * 4096).unwrap();
    std::fs::rename(away, b).unwrap();
    let told = fails(&["array", "rebuild", b, "--wait", "--admin", &server.admin]);
    assert!(told.contains("partition 1 is damaged"), "{told}");
    let until = Instant::now() + PATIENCE;
    while member(&server, b)["copied_bytes"] == 0 {
        assert!(Instant::now() < until, "the other partition is not filled");
        std::thread::sleep(Duration::from_millis(100));
    }
    let half = member(&server, b);
    assert!(half["state"] == "out" && half["reason"].to_string().contains("damaged"), "{half}");
    server.stop();
}

/// It was left open when it was refused, and what was made in its place was destroyed by it later.
#[test]
fn what_was_served_elsewhere_since_it_went_is_refused_and_can_be_replaced_in_its_place() {
    let place = directory("devices-ahead");
    let paths = paths(&place, 6);
    let [a, b, c, away, nowhere, none] = [0, 1, 2, 3, 4, 5].map(|number| paths[number].as_str());
    let (cores, config) = (cores(1), place.join("degraded.toml"));
    std::fs::write(&config, "[array]\ndegraded = true\n").unwrap();
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    (0..50).for_each(|key| drop(server.client().ask(&format!("SET {key} v"))));
    std::fs::rename(b, away).unwrap();
    wait_for(&server, b, "out");
    std::fs::write(b, "no device").unwrap();
    fails(&["array", "rebuild", b, "--admin", &server.admin]);
    for _ in 0..3 {
        let more = ["--config", config.to_str().unwrap()];
        Server::start(&args(&[nowhere, away, none], &cores, &more)).stop();
    }
    std::fs::rename(away, b).unwrap();
    let told = fails(&["array", "rebuild", b, "--wait", "--admin", &server.admin]);
    assert!(told.contains("was served without the others since it went"), "{told}");
    array(&server, &["replace", b, b, "--force", "--wait"]);
    server.kill();
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    assert_eq!(wait_for(&server, b, "in")["reason"], "");
    (0..50)
        .for_each(|key| assert_eq!(server.client().ask(&format!("GET {key}")), Reply::Bulk(b"v".to_vec())));
    server.stop();
}

//! More is lost than is protected, or seems to be: nothing is given up unasked, and there is a way on.

use super::process::{Server, cores, directory, fails};
use super::{args, array, member, paths, wait_for};
use plimsoll_resp::Reply;
use std::os::unix::fs::FileExt;

const KEYS: usize = 60;

fn store(server: &Server) {
    let mut client = server.client();
    (0..KEYS).for_each(|key| assert_eq!(client.ask(&format!("SET {key} v{key}")), ok()));
}

fn ok() -> Reply {
    Reply::Simple(b"OK".to_vec())
}

/// Keys with their values; the others must be errors, or absent if that is right.
fn whole(server: &Server, absent_is_right: bool) -> usize {
    let mut client = server.client();
    let is_whole = |key: &usize| match client.ask(&format!("GET {key}")) {
        Reply::Bulk(value) => {
            assert_eq!(value, format!("v{key}").into_bytes());
            true
        }
        Reply::Error(_) => false,
        Reply::Null if absent_is_right => false,
        other => panic!("key {key}: {other:?}"),
    };
    (0..KEYS).filter(is_whole).count()
}

/// The start without it emptied it when it came back.
#[test]
fn a_start_without_a_device_that_holds_the_only_copies_is_refused() {
    let place = directory("devices-only-copies");
    let (paths, config, away) = (paths(&place, 4), place.join("plimsoll.toml"), place.join("away"));
    let devices: Vec<&str> = paths.iter().map(String::as_str).collect();
    std::fs::write(&config, "[array]\nmechanism = 'hashing'\n").unwrap();
    let (cores, more) = (cores(2), ["--config", config.to_str().unwrap()]);
    let args = args(&devices, &cores, &more);
    let server = Server::start(&args);
    store(&server);
    server.stop();
    std::fs::rename(devices[2], &away).unwrap();
    let told = Server::refusal(&args);
    let words =
        format!("{} is missing, and what stands on too few others cannot be read without", devices[2]);
    assert!(told.contains(&words) && told.contains("degraded = true"), "{told}");
    std::fs::rename(&away, devices[2]).unwrap();
    let server = Server::start(&args);
    assert_eq!(whole(&server, false), KEYS);
    server.stop();
}

/// New devices in the place of lost ones were being rebuilt for ever.
#[test]
fn what_is_lost_is_given_up_when_that_is_asked_for() {
    let place = directory("devices-given-up");
    let (paths, config) = (paths(&place, 4), place.join("plimsoll.toml"));
    let devices: Vec<&str> = paths.iter().map(String::as_str).collect();
    std::fs::write(&config, "[array]\ncopies = 2\n").unwrap();
    let (cores, more) = (cores(2), ["--config", config.to_str().unwrap()]);
    let server = Server::start(&args(&devices, &cores, &more));
    store(&server);
    server.stop();
    // Of some keys the values are in memory by then, and they are read from there for as long.
    let server = Server::start(&args(&devices, &cores, &more));
    let in_memory = KEYS / 2;
    let mut client = server.client();
    (0..in_memory).for_each(|key| drop(client.ask(&format!("GET {key}"))));
    for lost in [devices[1], devices[2]] {
        std::fs::remove_file(lost).unwrap();
        wait_for(&server, lost, "out");
    }
    let readable = whole(&server, false);
    assert!((in_memory + 1..KEYS).contains(&readable), "{readable}");
    for (number, lost) in [("1", devices[1]), ("2", devices[2])] {
        // Its file may have been moved away, and come back.
        let told = fails(&["array", "replace", number, lost, "--admin", &server.admin]);
        assert!(told.contains("objects may be lost with it"), "{told}");
        array(&server, &["replace", number, lost, "--accept-loss"]);
    }
    let told = fails(&["array", "rebuild", "--wait", "--admin", &server.admin]);
    assert!(told.contains("cannot be told") && told.contains("--accept-loss"), "{told}");
    assert_eq!(whole(&server, false), readable, "errors, as long as nobody has given them up");
    array(&server, &["rebuild", "--accept-loss", "--wait"]);
    let left = whole(&server, true);
    assert!((1..readable).contains(&left), "what was in memory is given up as well: {left} of {readable}");
    assert_eq!(server.client().ask("DBSIZE"), Reply::Integer(left as i64));
    store(&server);
    assert_eq!(whole(&server, false), KEYS);
    // Those that are not there are not waited for.
    for lost in [devices[1], devices[2]] {
        std::fs::remove_file(lost).unwrap();
        wait_for(&server, lost, "out");
    }
    array(&server, &["replace", "1", devices[1], "--accept-loss"]);
    let told = fails(&["array", "rebuild", "--accept-loss", "--wait", "--admin", &server.admin]);
    assert!(told.contains(&format!("not rebuilt, as they cannot be opened: {}", devices[2])), "{told}");
    assert_eq!(member(&server, devices[1])["state"], "in");
    server.stop();
}

/// It was said to be rebuilt, and nothing could take its place under its path.
#[test]
fn a_device_that_cannot_be_opened_is_replaced_in_its_place() {
    let place = directory("devices-damaged");
    let paths = paths(&place, 3);
    let devices: Vec<&str> = paths.iter().map(String::as_str).collect();
    let cores = cores(1);
    let args = args(&devices, &cores, &[]);
    let server = Server::start(&args);
    store(&server);
    server.stop();
    let file = std::fs::File::options().read(true).write(true).open(devices[1]).unwrap();
    let (mut block, noise) = ([0; 4096], [0xa5; 4096]);
    for offset in (64 << 10..file.metadata().unwrap().len() - (1 << 20)).step_by(4096) {
        file.read_exact_at(&mut block, offset).unwrap();
        if block != [0; 4096] {
            file.write_all_at(&noise, offset).unwrap();
        }
    }
    drop(file);
    let server = Server::start(&args);
    let damaged = member(&server, devices[1]);
    assert!(damaged["state"] == "out" && damaged["reason"].to_string().contains("damaged"), "{damaged}");
    let told = fails(&["array", "rebuild", "1", "--wait", "--admin", &server.admin]);
    assert!(told.contains("damaged") && told.contains("bring back what it was, or replace it"), "{told}");
    array(&server, &["replace", "1", devices[1], "--force", "--wait"]);
    assert_eq!(whole(&server, false), KEYS);
    server.stop();
    let server = Server::start(&args);
    wait_for(&server, devices[1], "in");
    assert_eq!(whole(&server, false), KEYS);
    server.stop();
}

/// Whoever was away was emptied when it came back, and what only they had had was gone.
#[test]
fn devices_that_were_away_together_have_what_they_had_when_they_are_back() {
    for (name, policy, away) in [
        ("hashing", "mechanism = 'hashing'", vec![2]),
        ("splitting", "mechanism = 'splitting'\ndata = 2\nparities = 1", vec![0, 3, 1]),
        ("packing", "mechanism = 'packing'\ndata = 2\nparities = 1", vec![0, 3]),
    ] {
        let place = directory(&format!("devices-away-{name}"));
        let (paths, config) = (paths(&place, 4), place.join("plimsoll.toml"));
        let devices: Vec<&str> = paths.iter().map(String::as_str).collect();
        std::fs::write(&config, format!("[array]\n{policy}\n")).unwrap();
        let (cores, more) = (cores(2), ["--config", config.to_str().unwrap()]);
        let args = args(&devices, &cores, &more);
        let away: Vec<&str> = away.iter().map(|at| devices[*at]).collect();
        let server = Server::start(&args);
        store(&server);
        all_go_away(&server, &away);
        refuses_changes(&server, name);
        for device in &away {
            std::fs::rename(format!("{device}-away"), device).unwrap();
            // The first ones wait for those that went after them.
            array(&server, &["rebuild", device]);
        }
        array(&server, &["rebuild", "--wait"]);
        all_are_in(&server, &devices);
        assert_eq!(whole(&server, false), KEYS, "{name}");
        all_go_away(&server, &away);
        refuses_changes(&server, name);
        server.kill();
        for device in &away {
            std::fs::rename(format!("{device}-away"), device).unwrap();
        }
        let server = Server::start(&args);
        all_are_in(&server, &devices);
        assert_eq!(whole(&server, false), KEYS, "{name}");
        assert_eq!(server.client().ask("FLUSHALL"), ok());
        server.stop();
    }
}

fn all_are_in(server: &Server, devices: &[&str]) {
    for device in devices {
        wait_for(server, device, "in");
    }
}

fn all_go_away(server: &Server, devices: &[&str]) {
    for device in devices {
        std::fs::rename(device, format!("{device}-away")).unwrap();
        wait_for(server, device, "out");
    }
}

/// Of everything, and of one key at least.
fn refuses_changes(server: &Server, name: &str) {
    let mut client = server.client();
    let Reply::Error(told) = client.ask("FLUSHALL") else { panic!("{name}: it flushed") };
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("has what no other device has"), "{told}");
    let mut change = |key| client.ask(&format!("SET {key} v{key}"));
    let refused = (0..KEYS).find_map(|key| match change(key) {
        Reply::Error(told) => Some(String::from_utf8(told).unwrap()),
        _ => None,
    });
    assert!(refused.as_ref().is_some_and(|told| told.starts_with("MISCONF")), "{name}: {refused:?}");
}

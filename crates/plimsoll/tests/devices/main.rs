//! Several devices as one, as a user serves them: one is pulled out under load, seen, replaced and rebuilt,
//! the server is killed, and every acknowledged write is there.
#![allow(clippy::disallowed_methods)] // A server in a process of its own lives in real time.

mod back;
mod counting;
mod custom;
mod damaged;
mod load;
mod losses;
mod packing;
#[path = "../process/mod.rs"]
mod process;

use load::Load;
use plimsoll_resp::Reply;
use process::{Directory, Server, ask, cores, directory, fails, plimsoll, succeeds, told};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: &str = "128MiB";
/// What takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// Paths in an empty directory of this test's own.
fn paths(place: &Directory, count: usize) -> Vec<String> {
    (0..count).map(|number| place.join(format!("device-{number}")).to_str().unwrap().to_owned()).collect()
}

/// The arguments of a server of these devices.
fn args<'a>(devices: &[&'a str], cores: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let devices = devices.iter().flat_map(|path| ["--device", path]);
    devices.chain(["--size", SIZE, "--cores", cores]).chain(more.iter().copied()).collect()
}

fn array(server: &Server, words: &[&str]) -> String {
    succeeds(&[&["array"], words, &["--admin", &server.admin]].concat())
}

/// The member with this path.
fn member(server: &Server, path: &str) -> Value {
    let status: Value = serde_json::from_str(&array(server, &["status", "--json"])).unwrap();
    let members = status["members"].as_array().unwrap();
    members
        .iter()
        .find(|member| member["device"] == path)
        .unwrap_or_else(|| panic!("{path}: {status}"))
        .clone()
}

fn wait_for(server: &Server, path: &str, state: &str) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let member = member(server, path);
        if member["state"] == state {
            return member;
        }
        assert!(Instant::now() < until, "{path} is not {state}: {member}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn get(server: &Server, path: &str) -> String {
    ask(&server.admin, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

#[test]
fn a_device_pulled_out_under_load_is_replaced_and_nothing_is_lost() {
    let place = directory("devices");
    let paths = paths(&place, 4);
    let [first, pulled, third, new] = [0, 1, 2, 3].map(|number| paths[number].as_str());
    let cores = cores(2);
    let server = Server::start(&args(&[first, pulled, third], &cores, &[]));
    let table = array(&server, &["status"]);
    assert!(table.starts_with("replication 3 over 3 devices") && table.contains(pulled), "{table}");
    assert!(get(&server, "/healthz").starts_with("HTTP/1.0 200"));
    let load = Load::start(&server.resp);
    load.wait_for(2000);

    std::fs::remove_file(pulled).unwrap();
    let out = wait_for(&server, pulled, "out");
    assert_eq!(out["reason"], "the file is gone");
    server.hear("a device of the array is out");
    let metrics = get(&server, "/metrics");
    assert!(metrics.contains(&format!("plimsoll_array_member_in{{device=\"{pulled}\"}} 0")), "{metrics}");
    let health = get(&server, "/healthz");
    assert!(health.starts_with("HTTP/1.0 503") && health.contains(pulled), "{health}");
    load.wait_for_more(2000);

    let said = array(&server, &["replace", pulled, new]);
    assert!(said.contains(&format!("{new} has taken the place of {pulled}")), "{said}");
    let whole = wait_for(&server, new, "in");
    assert!(whole["copied_bytes"].as_u64().unwrap() > 0, "{whole}");
    assert!(get(&server, "/healthz").starts_with("HTTP/1.0 200"));
    load.wait_for_more(1000);
    let mut model = load.stop();
    model.check(&mut server.client());
    let metrics = get(&server, "/metrics");
    assert!(metrics.contains(new) && !metrics.contains(pulled), "what is gone is told no more: {metrics}");
    let scrubbed = array(&server, &["scrub", "--wait"]);
    assert!(scrubbed.contains(" 0 of them damaged, different or unreadable"), "{scrubbed}");

    // Killed under load, and all of it is there.
    let load = Load::go_on(&server.resp, model);
    load.wait_for_more(1000);
    server.kill();
    let mut model = load.after_kill();
    let server = Server::start(&args(&[first, new, third], &cores, &[]));
    model.check(&mut server.client());
    assert_eq!(wait_for(&server, new, "in")["reason"], "");
    server.stop();

    // The new device has what it should: without another one nothing is missing.
    std::fs::remove_file(first).unwrap();
    let server = Server::start(&args(&[first, new, third], &cores, &[]));
    wait_for(&server, first, "out");
    assert!(!Path::new(first).exists(), "a missing device is never made by a start");
    model.check(&mut server.client());
    // Its place is taken by a new file at the same path.
    let said = array(&server, &["replace", first, first, "--wait"]);
    assert!(said.contains("is made anew") && said.contains("rebuilt"), "{said}");
    model.check(&mut server.client());
    let told = server.stop();
    assert!(!told.contains("ERROR"), "{told}");
}

/// Short values have two copies, and longer ones are split: what may be lost and replaced goes by that, and
/// another policy may be chosen at the next start.
#[test]
fn values_are_protected_by_their_size_and_the_last_pieces_are_kept() {
    const SIZES: &str = "[[array.sizes]]\nto = 100\ncopies = 2\n[[array.sizes]]\nmechanism = 'splitting'\n";
    let place = directory("devices-sizes");
    let (paths, config) = (paths(&place, 5), place.join("plimsoll.toml"));
    let config_path = config.to_str().unwrap();
    let [a, b, c, d, new] = [0, 1, 2, 3, 4].map(|number| paths[number].as_str());
    std::fs::write(&config, format!("{SIZES}data = 2\nparities = 1\n")).unwrap();
    let cores = cores(1);
    let server = Server::start(&args(&[a, b, c, d], &cores, &["--config", config_path]));
    let table = array(&server, &["status"]);
    assert!(table.starts_with("replication 2 to 100 bytes, splitting 2+1 above over 4 devices"), "{table}");
    let mut client = server.client();
    let value = |number: usize, generation: usize| {
        let length = [7, 300, 100, 2000][(number + generation) % 4];
        format!("{number}-{generation}-{}", "v".repeat(length))
    };
    for (number, generation) in (0..200).map(|number| (number, 0)).chain((0..100).map(|number| (number, 1))) {
        client.ask(&format!("SET key:{number} {}", value(number, generation)));
    }
    let check = |server: &Server| {
        let mut client = server.client();
        assert_eq!(client.ask("DBSIZE"), Reply::Integer(200));
        for number in 0..200 {
            let expected = value(number, usize::from(number < 100)).into_bytes();
            assert_eq!(client.ask(&format!("GET key:{number}")), Reply::Bulk(expected), "key:{number}");
        }
    };
    std::fs::remove_file(b).unwrap();
    wait_for(&server, b, "out");
    check(&server);
    // Of those that are in each holds the last pieces of something.
    let refused = |words: &[&str]| fails(&[&["array"], words, &["--admin", &server.admin]].concat());
    let told = refused(&["replace", "2", new]);
    assert!(told.contains(&format!("{c}: objects may be lost with it")), "{told}");
    assert!(!Path::new(new).exists(), "nothing is made for what is refused");
    array(&server, &["replace", "1", new, "--wait"]);
    check(&server);
    server.kill();
    // What is there keeps its protection under another policy.
    std::fs::write(&config, "[array]\ncopies = 3\n").unwrap();
    let server = Server::start(&args(&[a, new, c, d], &cores, &["--config", config_path]));
    check(&server);
    let table = array(&server, &["status"]);
    assert!(table.starts_with("replication 3 over 4 devices"), "{table}");
    assert_eq!(server.client().ask(&format!("SET key:150 {}", value(150, 0))), Reply::Simple(b"OK".to_vec()));
    std::fs::remove_file(d).unwrap();
    wait_for(&server, d, "out");
    check(&server);
    let told = server.stop();
    assert!(told.contains("objects are protected in another way from now on"), "{told}");
}

#[test]
fn a_device_of_an_array_is_not_served_alone() {
    let place = directory("devices-alone");
    let paths = paths(&place, 2);
    let [a, b] = [0, 1].map(|number| paths[number].as_str());
    let cores = cores(2);
    let server = Server::start(&args(&[a, b], &cores, &[]));
    assert_eq!(server.client().ask("SET k v"), Reply::Simple(b"OK".to_vec()));
    server.stop();
    let told = Server::refusal(&args(&[b], &cores, &[]));
    assert!(told.contains(b) && told.contains("belongs to an array of several devices"), "{told}");
    // In another order they are not the array that they were.
    let told = Server::refusal(&args(&[b, a], &cores, &[]));
    assert!(told.contains("array: "), "{told}");
    let server = Server::start(&args(&[a, b], &cores, &[]));
    assert_eq!(server.client().ask("GET k"), Reply::Bulk(b"v".to_vec()));
    server.stop();
}

/// As the operator does who puts an old copy of a file in its place: the array was not told that it had gone.
#[test]
fn a_device_that_is_put_back_to_an_earlier_time_is_filled_anew() {
    let place = directory("devices-put-back");
    let paths = paths(&place, 4);
    let [a, b, c, copy] = [0, 1, 2, 3].map(|number| paths[number].as_str());
    let cores = cores(2);
    let start = || Server::start(&args(&[a, b, c], &cores, &[]));
    let server = start();
    (0..50).for_each(|key| drop(server.client().ask(&format!("SET {key} old"))));
    server.stop();
    std::fs::copy(c, copy).unwrap();
    let server = start();
    (0..25).for_each(|key| drop(server.client().ask(&format!("SET {key} new"))));
    (25..50).for_each(|key| drop(server.client().ask(&format!("DEL {key}"))));
    server.stop();
    std::fs::rename(copy, c).unwrap();
    let server = start();
    for key in 0..50 {
        let there = if key < 25 { Reply::Bulk(b"new".to_vec()) } else { Reply::Null };
        assert_eq!(server.client().ask(&format!("GET {key}")), there, "key {key}");
    }
    wait_for(&server, c, "in");
    array(&server, &["scrub", "--wait"]);
    assert_eq!(server.client().ask("DBSIZE"), Reply::Integer(25), "nothing that was deleted came back");
    server.stop();
}

#[test]
fn devices_that_do_not_belong_together_are_refused() {
    let place = directory("devices-together");
    let paths = paths(&place, 3);
    let [a, b, c] = [0, 1, 2].map(|number| paths[number].as_str());
    let cores = cores(2);
    succeeds(&["device", "format", a, "--size", SIZE, "--partitions", "1"]);
    succeeds(&["device", "format", b, "--size", SIZE, "--partitions", "1"]);
    succeeds(&["device", "format", c, "--size", SIZE, "--partitions", "2"]);
    let told = Server::refusal(&args(&[a, b], &cores, &[]));
    assert!(told.contains(&format!("{b} and {a} were not formatted together")), "{told}");
    let told = Server::refusal(&args(&[a, c], &cores, &[]));
    assert!(told.contains(&format!("{c} has 2 partitions, and {a} has 1")), "{told}");
    std::fs::copy(a, b).unwrap();
    let told = Server::refusal(&args(&[a, b], &cores, &[]));
    assert!(told.contains(&format!("{b} is a copy of {a}")), "{told}");
}

/// A new array would stand where file systems are to be mounted.
#[test]
fn an_array_is_not_made_where_there_is_no_directory() {
    let place = directory("devices-nowhere");
    let paths = paths(&place, 2);
    let (here, there) = (paths[0].as_str(), place.join("not-mounted/2"));
    let there = there.to_str().unwrap();
    let told = Server::refusal(&args(&[here, there], &cores(1), &[]));
    assert!(told.contains(&format!("{there}: there is no directory")), "{told}");
    assert!(!Path::new(here).exists(), "nothing is made");
}

#[test]
fn a_device_in_use_is_not_taken_for_a_missing_one() {
    let place = directory("devices-in-use");
    let paths = paths(&place, 3);
    let [a, b, c] = [0, 1, 2].map(|number| paths[number].as_str());
    let cores = cores(2);
    let server = Server::start(&args(&[a, b, c], &cores, &[]));
    let told = Server::refusal(&args(&[b, c], &cores, &[]));
    assert!(told.contains("in use by another process"), "{told}");
    server.stop();
}

#[test]
fn what_cannot_be_replaced_is_refused_in_words() {
    let place = directory("devices-refused");
    let paths = paths(&place, 5);
    let [a, b, small, foreign, none] = [0, 1, 2, 3, 4].map(|number| paths[number].as_str());
    let cores = cores(1);
    let server = Server::start(&args(&[a, b], &cores, &[]));
    std::fs::File::create(small).unwrap().set_len(8 << 20).unwrap();
    std::fs::write(foreign, vec![7; 128 << 20]).unwrap();
    let refused = |words: &[&str]| fails(&[&["array"], words, &["--admin", &server.admin]].concat());
    assert!(refused(&["replace", none, foreign]).contains("no device of this array"));
    assert!(refused(&["replace", a, b]).contains("is in use by this array"));
    assert!(refused(&["replace", "1", b]).contains("is in use by this array"));
    assert!(refused(&["replace", "--force", "1", b]).contains("is in use by this array"));
    assert!(refused(&["replace", b, small]).contains("has 8388608 bytes"));
    assert!(refused(&["replace", b, foreign]).contains("holds data that is not Plimsoll's"));
    assert!(refused(&["rebuild", a]).contains("there is nothing to rebuild"));
    assert!(array(&server, &["rebuild"]).contains("every device is in"));
    assert!(std::fs::read(foreign).unwrap() == vec![7; 128 << 20], "it was written");
    let bare = ask(&server.admin, "POST /api/array/scrub HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    assert!(bare.starts_with("HTTP/1.0 415") && bare.contains("\"error\""), "{bare}");
    server.stop();
}

#[test]
fn without_an_array_there_is_none_to_look_at() {
    let data = directory("devices-one");
    let server = Server::start(&["--data", data.to_str().unwrap(), "--size", "64MiB", "--cores", &cores(1)]);
    let told = fails(&["array", "status", "--admin", &server.admin]);
    assert!(told.contains("this server has one device"), "{told}");
    let metrics = get(&server, "/metrics");
    assert!(metrics.contains("plimsoll_partition_objects{partition=\"0\"} 0"), "{metrics}");
    let admin = server.admin.clone();
    server.stop();
    assert!(fails(&["array", "status", "--admin", &admin]).contains("no admin port can be reached there"));
}

#[test]
fn wrong_usage_is_told_apart() {
    for (args, words) in [
        (vec!["--device", "a", "--device", "a"], "are the same device"),
        (vec!["--device", "a", "--device", "b", "--on-full", "evict"], "on-full: several devices"),
    ] {
        let output = plimsoll(&[&["serve", "--print-config"], args.as_slice()].concat());
        let text = told(&output);
        assert!(output.status.code() == Some(2) && text.contains(words), "{text}");
    }
}

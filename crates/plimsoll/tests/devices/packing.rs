//! Packing, as a user has it: values of several devices share parities, the server is killed, two devices are
//! lost and replaced one after the other, and what was written is read at any time.

use super::custom::{field, ok, text};
use super::process::{Client, Server, cores, directory};
use super::{PATIENCE, args, array, get, paths, wait_for};
use plimsoll_resp::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const CONFIG: &str = "[array]\nmechanism = 'packing'\n";
const KEYS: usize = 300;
/// Keys that find no company may be so many.
const ALONE_MAX: usize = 12;
/// Of these two partitions have one each: the names of sets are each partition's own.
const TAGS: [&str; 2] = ["{foo}", "{bar}"];

/// What keys hold, by their numbers.
type Model = BTreeMap<usize, Vec<u8>>;

fn key(number: usize) -> String {
    format!("{}:{number}", TAGS[number % TAGS.len()])
}

fn value(number: usize, round: usize) -> Vec<u8> {
    format!("{number}-{round}-{}", "v".repeat(number * 37 % 3000)).into_bytes()
}

fn store(client: &mut Client, model: &mut Model, number: usize, round: usize) {
    let value = value(number, round);
    ok(client, &format!("SET {} {}", key(number), String::from_utf8_lossy(&value)));
    model.insert(number, value);
}

fn delete(client: &mut Client, model: &mut Model, number: usize) {
    assert_eq!(client.ask(&format!("DEL {}", key(number))), Reply::Integer(1));
    model.remove(&number);
}

fn check(client: &mut Client, model: &Model) {
    for number in 0..KEYS {
        let expected = model.get(&number).map_or(Reply::Null, |value| Reply::Bulk(value.clone()));
        assert!(client.ask(&format!("GET {}", key(number))) == expected, "{}", key(number));
    }
    assert_eq!(client.ask("DBSIZE"), Reply::Integer(model.len() as i64));
}

/// The set that a key is in: its name, and the devices of its parities.
fn set_of(told: &Reply) -> Option<(String, Vec<String>)> {
    let Reply::Array(words) = told else { panic!("{told:?}") };
    words.chunks(2).find(|pair| pair[0] == Reply::Bulk(b"set".to_vec()))?;
    let set = field(told, "set");
    let Reply::Array(parities) = field(set, "parities") else { panic!("{told:?}") };
    Some((text(field(set, "name")), parities.iter().map(text).collect()))
}

/// Of each piece what it holds, its device, and its checksum.
fn pieces(told: &Reply) -> Vec<(String, String, Option<String>)> {
    let Reply::Array(devices) = field(told, "devices") else { panic!("{told:?}") };
    let piece = |piece| {
        let checksum = field(piece, "crc32c");
        let checksum = (*checksum != Reply::Null).then(|| text(checksum));
        (text(field(piece, "holds")), text(field(piece, "device")), checksum)
    };
    devices.iter().map(piece).collect()
}

/// Waits until all keys but a few are packed, and tells the devices of each set.
fn wait_until_packed(client: &mut Client, model: &Model) {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut sets: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
        let mut packed = 0;
        for number in model.keys() {
            let told = client.ask(&format!("KV.META {}", key(*number)));
            let (mechanism, code) = (text(field(&told, "mechanism")), text(field(&told, "code")));
            let (pieces, set) = (pieces(&told), set_of(&told));
            let holds: Vec<&str> = pieces.iter().map(|(holds, ..)| holds.as_str()).collect();
            assert!(pieces.iter().all(|(_, _, checksum)| checksum.is_some()), "{told:?}");
            let Some((name, parities)) = set else {
                assert_eq!((mechanism.as_str(), code.as_str()), ("packing 4+2", "none"));
                assert_eq!(holds, ["copy"; 3], "{told:?}");
                continue;
            };
            assert_eq!((mechanism.as_str(), code.as_str()), ("packing 4+2", "Reed-Solomon, Cauchy"));
            assert_eq!(holds, ["value", "stub", "stub"], "{told:?}");
            let devices = sets.entry((number % TAGS.len(), name)).or_insert_with(|| parities.clone());
            assert_eq!(devices[..2], parities, "{told:?}");
            devices.push(pieces[0].1.clone());
            packed += 1;
        }
        for (name, devices) in sets {
            let different: BTreeSet<&String> = devices.iter().collect();
            assert!(different.len() == devices.len() && devices.len() <= 6, "{name:?}: {devices:?}");
        }
        if packed + ALONE_MAX >= model.len() {
            return;
        }
        assert!(Instant::now() < until, "{packed} of {} keys are packed", model.len());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a value of a device that is out is kept behind its stub.
fn wait_until_kept(server: &Server) {
    let until = Instant::now() + PATIENCE;
    let kept = || {
        let metrics = get(server, "/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("plimsoll_array_kept_values_total "));
        line.expect("it is counted").parse::<u64>().expect("a number")
    };
    while kept() == 0 {
        assert!(Instant::now() < until, "nothing that was read is kept");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn packed_values_outlive_two_devices_and_what_is_done_meanwhile() {
    let place = directory("devices-packing");
    let (paths, config) = (paths(&place, 8), place.join("plimsoll.toml"));
    std::fs::write(&config, CONFIG).unwrap();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let (cores, more) = (cores(2), ["--config", config.to_str().unwrap()]);
    let mut devices = paths[..6].to_vec();
    let server = Server::start(&args(&devices, &cores, &more));
    let (mut client, mut model) = (server.client(), Model::new());
    (0..KEYS).for_each(|number| store(&mut client, &mut model, number, 0));
    wait_until_packed(&mut client, &model);
    let metrics = get(&server, "/metrics");
    assert!(metrics.contains("plimsoll_array_packing_waiting_keys "), "{metrics}");
    assert!(metrics.contains("plimsoll_array_loose_sets "), "{metrics}");
    // Overwritten and gone just before the end: their sets have to do without them.
    (0..KEYS).step_by(9).for_each(|number| store(&mut client, &mut model, number, 1));
    (4..KEYS).step_by(9).for_each(|number| delete(&mut client, &mut model, number));
    server.kill();

    // Two devices are not there any more.
    let lost = [devices[1], devices[4]];
    lost.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let server = Server::start(&args(&devices, &cores, &more));
    lost.iter().for_each(|path| drop(wait_for(&server, path, "out")));
    let table = array(&server, &["status"]);
    assert!(table.starts_with("packing 4+2 over 6 devices"), "{table}");
    let mut client = server.client();
    check(&mut client, &model);
    wait_until_kept(&server);
    check(&mut client, &model);
    (1..KEYS).step_by(9).for_each(|number| store(&mut client, &mut model, number, 2));
    array(&server, &["replace", lost[0], paths[6], "--wait"]);
    devices[1] = paths[6];
    check(&mut client, &model);
    (5..KEYS).step_by(9).for_each(|number| delete(&mut client, &mut model, number));
    (2..KEYS).step_by(9).for_each(|number| store(&mut client, &mut model, number, 3));
    check(&mut client, &model);
    array(&server, &["replace", lost[1], paths[7], "--wait"]);
    devices[4] = paths[7];
    check(&mut client, &model);
    // What waited to be packed when the server died is found.
    let scrub = || {
        let scrubbed = array(&server, &["scrub", "--wait"]);
        assert!(scrubbed.contains(" 0 of them damaged, different or unreadable"), "{scrubbed}");
    };
    scrub();
    wait_until_packed(&mut client, &model);
    scrub();
    let told = server.stop();
    assert_eq!(told.lines().find(|line| line.contains("ERROR")), None);

    // The new devices have what they should: others may be lost.
    [devices[0], devices[2]].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let server = Server::start(&args(&devices, &cores, &more));
    check(&mut server.client(), &model);
    let members: serde_json::Value =
        serde_json::from_str(&array(&server, &["status", "--json"])).expect("what was asked for");
    let states: Vec<&str> =
        members["members"].as_array().unwrap().iter().map(|it| it["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["out", "in", "out", "in", "in", "in"]);
    server.stop();
}

//! Mechanisms value by value: KV.STORE asks for them, KV.META tells of them, and they bear what they promise.

use super::process::{Client, Server, cores, directory};
use super::{args, paths, wait_for};
use plimsoll_resp::Reply;

const CONFIG: &str =
    "[array]\ncopies = 2\ncustom = ['hashing', 'replication 3', 'splitting 2+1', 'packing 2+1']\n";
/// Each with its pieces, and whether the loss of a device is borne.
const MECHANISMS: [(&str, usize, bool); 5] = [
    ("replication 2", 2, true),
    ("hashing", 1, false),
    ("replication 3", 3, true),
    ("splitting 2+1", 3, true),
    ("packing 2+1", 2, true),
];

pub(super) fn ok(client: &mut Client, words: &str) {
    assert_eq!(client.ask(words), Reply::Simple(b"OK".to_vec()), "{}", &words[..words.len().min(100)]);
}

fn refused(client: &mut Client, words: &str) -> String {
    match client.ask(words) {
        Reply::Error(text) => String::from_utf8(text).unwrap(),
        other => panic!("{words}: {other:?}"),
    }
}

/// A field of what KV.META tells.
pub(super) fn field<'a>(told: &'a Reply, name: &str) -> &'a Reply {
    let Reply::Array(words) = told else { panic!("{told:?}") };
    let pairs = words.as_chunks::<2>().0;
    let found = pairs.iter().find(|[field, _]| *field == Reply::Bulk(name.as_bytes().to_vec()));
    &found.unwrap_or_else(|| panic!("{name}: {told:?}"))[1]
}

pub(super) fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// What became of a key: its mechanism, and device, state and checksum of each piece.
fn meta(client: &mut Client, key: &str) -> (String, Vec<(String, String, Option<String>)>) {
    let told = client.ask(&format!("KV.META {key}"));
    let Reply::Array(devices) = field(&told, "devices") else { panic!("{told:?}") };
    let pieces = devices.iter().map(|piece| {
        let checksum = field(piece, "crc32c");
        let checksum = (*checksum != Reply::Null).then(|| text(checksum));
        (text(field(piece, "device")), text(field(piece, "state")), checksum)
    });
    (text(field(&told, "mechanism")), pieces.collect())
}

fn value(number: usize, round: usize) -> String {
    let length = if number.is_multiple_of(10) { 3 << 20 } else { 5 + 300 * (number % 4) };
    format!("{number}-{round}-{}", "v".repeat(length))
}

/// The mechanism of a key in a round: another one in the next.
fn mechanism(number: usize, round: usize) -> (&'static str, usize, bool) {
    MECHANISMS[(number + number / 10 + round) % MECHANISMS.len()]
}

#[test]
fn clients_choose_mechanisms_value_by_value() {
    let place = directory("devices-custom");
    let (paths, config) = (paths(&place, 4), place.join("plimsoll.toml"));
    std::fs::write(&config, CONFIG).unwrap();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let (cores, more) = (cores(2), ["--config", config.to_str().unwrap()]);
    let server = Server::start(&args(&paths, &cores, &more));
    let mut client = server.client();
    let there = "replication 2, hashing, replication 3, splitting 2+1, packing 2+1";
    for (asked, which) in
        [("splitting 4+2", "no"), ("packing 4+2", "no"), ("replication", "more than one"), ("raid", "no")]
    {
        let told = refused(&mut client, &format!("KV.STORE k v MECHANISM {asked}"));
        assert_eq!(told, format!("ERR {which} mechanism is '{asked}' here: {there}"));
    }
    assert_eq!(client.ask("KV.META k"), Reply::Null);
    for (number, round) in (0..40).flat_map(|number| (0..3).map(move |round| (number, round))) {
        let (mechanism, pieces, _) = mechanism(number, round);
        let wish =
            if mechanism == "replication 2" { String::new() } else { format!("MECHANISM {mechanism}") };
        ok(&mut client, format!("KV.STORE key:{number} {} EX 1000 {wish}", value(number, round)).trim_end());
        let (told, devices) = meta(&mut client, &format!("key:{number}"));
        assert_eq!((told.as_str(), devices.len()), (mechanism, pieces));
        assert!(
            devices.iter().all(|(_, state, checksum)| state == "in" && checksum.is_some()),
            "{devices:?}"
        );
        let differs = devices.iter().any(|(_, _, checksum)| *checksum != devices[0].2);
        assert_eq!(differs, mechanism == "splitting 2+1", "copies are the same");
    }
    ok(&mut client, "MULTI");
    assert_eq!(client.ask("KV.STORE a 1 MECHANISM splitting"), Reply::Simple(b"QUEUED".to_vec()));
    assert_eq!(client.ask("KV.STORE b 2 MECHANISM replication 3"), Reply::Simple(b"QUEUED".to_vec()));
    assert_eq!(client.ask("EXEC"), Reply::Array(vec![Reply::Simple(b"OK".to_vec()); 2]));
    assert_eq!(meta(&mut client, "a").0, "splitting 2+1");
    assert_eq!(meta(&mut client, "b").0, "replication 3");
    ok(&mut client, "KV.STORE c 3 MECHANISM packing");
    assert_eq!(meta(&mut client, "c").0, "packing 2+1");

    // A device is lost, and then the server dies: what bears that is there, and says where it is not whole.
    std::fs::remove_file(paths[1]).unwrap();
    wait_for(&server, paths[1], "out");
    let check = |client: &mut Client| {
        for number in 0..40 {
            let (mechanism, pieces, bears_loss) = mechanism(number, 2);
            if !bears_loss {
                continue;
            }
            let key = format!("key:{number}");
            assert_eq!(
                client.ask(&format!("GET {key}")),
                Reply::Bulk(value(number, 2).into_bytes()),
                "{key}"
            );
            let (told, devices) = meta(client, &key);
            assert_eq!((told.as_str(), devices.len()), (mechanism, pieces));
            for (device, state, checksum) in devices {
                let is_out = device == paths[1];
                assert_eq!((state == "out", checksum.is_none()), (is_out, is_out), "{key} at {device}");
            }
        }
        assert_eq!(client.ask("GET a"), Reply::Bulk(b"1".to_vec()));
        assert_eq!(client.ask("GET c"), Reply::Bulk(b"3".to_vec()));
    };
    check(&mut client);
    server.kill();
    let server = Server::start(&args(&paths, &cores, &more));
    check(&mut server.client());
    server.stop();
}

//! SIGKILL under load, at random instants of one long history: whatever the server acknowledged is
//! there after each restart, and nothing else is.

mod model;
#[path = "../process/mod.rs"]
mod process;

use model::{Change, Expiry, Holds, Stored};
use plimsoll_reactor::sim::Random;
use plimsoll_resp::{Reply, request};
use process::{Client, Server, cores, directory, succeeds};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const KILLS: u64 = 30;
const THREADS: u64 = 4;
/// Keys of a thread; the first of them hold values in parts.
const KEYS: usize = 300;
const LONG_KEYS: usize = 3;
const LONG_BYTES: (u64, u64) = (2 << 20, 4 << 20);

/// A client with the keys that only it changes.
struct Owner {
    number: u64,
    random: Random,
    keys: Vec<Holds>,
    counts: Counts,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    acknowledged: u64,
    in_flight: u64,
    long_in_flight: u64,
    no_space: u64,
    checked: u64,
}

/// What a thread sends in one pipeline, every key once.
type Batch = Vec<(usize, Option<Change>)>;

impl Owner {
    fn new(number: u64) -> Owner {
        let random = Random::stream(number, "owner");
        Owner { number, random, keys: vec![Holds::default(); KEYS], counts: Counts::default() }
    }

    fn name(&self, key: usize) -> String {
        format!("{}:{key}", self.number)
    }

    fn stored(&mut self, key: usize) -> Stored {
        let length = match self.random.below(20) {
            _ if key < LONG_KEYS => self.random.range(LONG_BYTES.0, LONG_BYTES.1),
            0 => self.random.range(5_000, 100_000),
            1 => 0,
            _ => self.random.below(5_000),
        };
        let expiry = match self.random.below(10) {
            0 => Expiry::Far,
            1 => Expiry::Soon(self.random.range(20, 300) as u32),
            _ => Expiry::Never,
        };
        Stored { seed: self.random.next_u64(), length: length as usize, expiry }
    }

    fn change(&mut self, key: usize) -> Change {
        let stored = self.stored(key);
        match self.random.below(12) {
            0 | 1 => Change::Delete,
            2 => Change::SetIfThere(stored),
            3 => Change::SetIfAbsent(stored),
            4 => Change::ExpireFar,
            5 => Change::Persist,
            _ => Change::Set(stored),
        }
    }

    fn batch(&mut self) -> Batch {
        let mut keys = BTreeSet::new();
        if self.random.below(25) == 0 {
            keys.insert(self.random.below(LONG_KEYS as u64) as usize);
        }
        for _ in 0..self.random.range(1, 9) {
            keys.insert(self.random.range(LONG_KEYS as u64, KEYS as u64) as usize);
        }
        let pick = |key| (key, (self.random.below(5) > 0).then(|| self.change(key)));
        keys.into_iter().map(pick).collect()
    }

    /// Sends a batch and takes its replies; false if the server died.
    fn exchange(&mut self, client: &mut Client, batch: &Batch) -> bool {
        let mut bytes = Vec::new();
        for (key, change) in batch {
            let name = self.name(*key);
            match change {
                Some(change) => request::encode(&change.args(&name), &mut bytes),
                None => {
                    request::encode(&["GET", &name], &mut bytes);
                    request::encode(&["TTL", &name], &mut bytes);
                }
            }
        }
        let mut alive = client.send(&bytes).is_ok();
        for (key, change) in batch {
            let outcome = match change {
                Some(change) => self.take_reply(client, *key, change, alive),
                None => self.take_value(client, *key, alive),
            };
            alive = outcome.unwrap_or_else(|what| panic!("{}: {what}", self.name(*key)));
        }
        alive
    }

    /// The reply to a change, if one comes; false if the server died.
    fn take_reply(
        &mut self,
        client: &mut Client,
        key: usize,
        change: &Change,
        alive: bool,
    ) -> Result<bool, String> {
        match client.receive() {
            Ok(reply) if alive => {
                self.counts.acknowledged += 1;
                let no_space = self.keys[key].becomes(change, &reply)?;
                self.counts.no_space += u64::from(no_space);
                Ok(true)
            }
            _ => {
                self.counts.in_flight += 1;
                self.counts.long_in_flight += u64::from(key < LONG_KEYS);
                self.keys[key].may_become(change);
                Ok(false)
            }
        }
    }

    /// The replies to GET and TTL, if they come; false if the server died.
    fn take_value(&mut self, client: &mut Client, key: usize, alive: bool) -> Result<bool, String> {
        match (client.receive(), client.receive()) {
            (Ok(value), Ok(seconds)) if alive => {
                self.counts.checked += 1;
                self.keys[key].reads(&value, &seconds).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Reads every key.
    fn check(&mut self, address: &str) {
        let mut client = Client::connect(address).unwrap();
        let (long, short): (Vec<_>, Vec<_>) = (0..KEYS).partition(|key| *key < LONG_KEYS);
        for keys in long.chunks(1).chain(short.chunks(50)) {
            let batch = keys.iter().map(|key| (*key, None)).collect();
            assert!(self.exchange(&mut client, &batch), "the server died unasked");
        }
    }

    /// Changes and reads keys until the server dies; tells of every batch that it answered.
    fn load(&mut self, address: &str, answered: &Sender<()>) {
        let Ok(mut client) = Client::connect(address) else { return };
        loop {
            let batch = self.batch();
            if !self.exchange(&mut client, &batch) {
                return;
            }
            let _ = answered.send(());
        }
    }
}

/// The keys that SCAN lists.
fn listed(client: &mut Client) -> BTreeSet<Vec<u8>> {
    let (mut keys, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let Reply::Array(page) = client.ask(&format!("SCAN {cursor} COUNT 1000")) else { panic!("no page") };
        let [Reply::Bulk(next), Reply::Array(names)] = &page[..] else { panic!("{page:?}") };
        for name in names {
            let Reply::Bulk(name) = name else { panic!("{name:?}") };
            keys.insert(name.clone());
        }
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            return keys;
        }
    }
}

/// Every key is what it may be, and the server counts and lists the keys that there are.
fn check(server: &Server, owners: &mut [Owner]) {
    std::thread::scope(|scope| {
        for owner in owners.iter_mut() {
            let address = server.resp.clone();
            scope.spawn(move || owner.check(&address));
        }
    });
    let mut client = server.client();
    let listed = listed(&mut client);
    let Reply::Integer(size) = client.ask("DBSIZE") else { panic!("no size") };
    let (mut least, mut most, mut listed_known) = (0, 0, 0);
    for owner in owners.iter() {
        for (key, holds) in owner.keys.iter().enumerate() {
            let (certain, possible, counted) = holds.bounds();
            let is_listed = listed.contains(owner.name(key).as_bytes());
            assert!(!certain || is_listed, "{}: not listed", owner.name(key));
            assert!(possible || !is_listed, "{}: listed", owner.name(key));
            (least, most) = (least + i64::from(certain), most + i64::from(counted));
            listed_known += usize::from(is_listed);
        }
    }
    assert_eq!(listed.len(), listed_known, "keys that nobody stored are listed");
    assert!((least..=most).contains(&size), "{size} keys, and not {least} to {most}");
    assert!(size >= listed.len() as i64, "{size} keys, of which {} are listed", listed.len());
}

/// Waits until so many batches were answered, and then a little, which ends anywhere in a batch.
#[allow(clippy::disallowed_methods)] // The instant of a kill is meant to be any.
fn wait(answered: &Receiver<()>, batches: u64, then: Duration) {
    for _ in 0..batches {
        answered.recv().expect("the clients go on until the server dies");
    }
    std::thread::sleep(then);
}

fn serve_args<'a>(device: &'a str, cores: &'a str, durability: &'a str, driver: &'a str) -> [&'a str; 10] {
    ["--device", device, "--size", "256MiB", "--cores", cores, "--durability", durability, "--driver", driver]
}

#[test]
fn thirty_kills_under_load_lose_nothing_and_bring_nothing_back() {
    let place = directory("kill");
    let path = place.join("device");
    let device = path.to_str().unwrap();
    let mut random = Random::stream(1, "kills");
    let mut owners: Vec<Owner> = (0..THREADS).map(Owner::new).collect();
    for kill in 0..KILLS {
        let cores = cores(if kill % 5 == 4 { 1 } else { 2 });
        let durability = if kill % 3 == 2 { "group" } else { "sync" };
        // One history of both drivers: each finds what the other left.
        let driver = if kill % 2 == 1 { "portable" } else { "uring" };
        let args = serve_args(device, &cores, durability, driver);
        if kill % 4 == 3 {
            killed_in_its_start(&args, &mut random);
        }
        let server = Server::start(&args);
        check(&server, &mut owners);
        let (batches, then) = (random.range(1, 400), random.below(5_000));
        std::thread::scope(|scope| {
            let (sender, answered) = channel();
            let address = server.resp.clone();
            for owner in &mut owners {
                let (sender, address) = (sender.clone(), address.clone());
                scope.spawn(move || owner.load(&address, &sender));
            }
            wait(&answered, batches, Duration::from_micros(then));
            server.kill();
        });
    }
    let counts: Vec<Counts> = owners.iter().map(|owner| owner.counts).collect();
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    println!(
        "{KILLS} kills: {} changes acknowledged, {} in flight ({} of values in parts), {} refused for room, \
         {} reads checked",
        sum(|c| c.acknowledged),
        sum(|c| c.in_flight),
        sum(|c| c.long_in_flight),
        sum(|c| c.no_space),
        sum(|c| c.checked)
    );
    assert!(sum(|c| c.acknowledged) > 10_000 && sum(|c| c.in_flight) > KILLS, "no load: {counts:?}");
    assert!(sum(|c| c.long_in_flight) > 0, "no kill met a value in parts");
    verified_at_last(Path::new(device), &mut owners);
}

#[allow(clippy::disallowed_methods)] // The instant of a kill is meant to be any.
fn killed_in_its_start(args: &[&str], random: &mut Random) {
    let server = Server::spawn(args);
    std::thread::sleep(Duration::from_millis(random.below(100)));
    server.kill();
}

fn verified_at_last(device: &Path, owners: &mut [Owner]) {
    let device = device.to_str().unwrap();
    let cores = cores(2);
    let server = Server::start(&serve_args(device, &cores, "sync", "auto"));
    check(&server, owners);
    server.stop();
    println!("{}", succeeds(&["device", "verify", device]).trim());
    // A stopped server's checkpoint tells the same as a killed server's log.
    let server = Server::start(&serve_args(device, &cores, "sync", "auto"));
    check(&server, owners);
    server.stop();
}

//! Rot: a thousand random corruptions of what stands on the devices of an array are all found by one scrub,
//! and all mended where they are, as each device tells by itself afterwards.
//!
//! Corrupted are live values as the engines store them: the array's header and the bytes behind it, of values
//! of one record and of every part of values in parts, and never more pieces of a key than its mechanism
//! survives. What stands before a value, its record's head and the key, is another matter: the engine cannot
//! prove whose the record is any more, and takes it to be that of the key which is written in its place.

use futures_util::future::join_all;
use plimsoll_array::{Array, ArrayOptions, ArrayStatus, Joining, Mechanism, MemberState};
use plimsoll_flash::{FormatOptions, Options, Partition, format, inspect, verify};
use plimsoll_kv::{Block, Condition, ContainerId, Device, Durability, Expiry, Op, Output, Request, Value};
use plimsoll_reactor::sim::{ProcessId, Random, World};
use plimsoll_reactor::{FileOptions, Reactor, Work};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const SERVER: ProcessId = ProcessId(1);
const MEMBERS: usize = 6;
/// Both mechanisms survive the loss of so many pieces of a key.
const LOSSES: usize = 2;
const MECHANISMS: [Mechanism; 2] =
    [Mechanism::Replication { copies: 3 }, Mechanism::Splitting { data: 4, parities: 2 }];
/// Roles of a key at most, and what the databases of each role are numbered from (the RFC of the array).
const ROLES: usize = 6;
const ARRAY_CONTAINERS: u32 = 120;
const DB: ContainerId = ContainerId(0);
const DISK_BYTES: usize = 8 << 20;
const SEGMENT_BYTES: u32 = 64 << 10;
const KEYS: usize = 3000;
/// Of so many keys one has a value in parts.
const LONG_EVERY: usize = 100;
const CORRUPTIONS: usize = 1000;
/// By so many bytes of the array's header that a piece is looked for.
const HEADER_BYTES: usize = 32;
/// Bytes before a record's key (`docs/on-flash-format.md`).
const RECORD_HEADER_BYTES: usize = 64;
/// A record's checksum of a value that is not long, after the key.
const CHECKSUM_BYTES: usize = 4;

/// A member, a role, and a key.
type Piece = (usize, usize, Vec<u8>);
/// What a device holds of a piece: its record's value, or its parts.
type Stored = BTreeMap<Piece, Vec<Vec<u8>>>;

async fn run(device: &Rc<impl Device + ?Sized>, op: Op) -> Output {
    let done = device.clone().execute(Request::new(Durability::Sync, op)).await;
    done.expect("it can be done").output
}

fn path(disk: usize) -> String {
    format!("disk{disk}")
}

fn file(reactor: &Reactor, disk: usize) -> Rc<dyn Block> {
    Rc::new(reactor.open_file(&path(disk), &FileOptions::default()).expect("there is such a disk"))
}

/// A disk, formatted and open.
async fn open(reactor: &Reactor, disk: usize) -> Rc<Partition> {
    let options = FormatOptions {
        partitions: 1,
        segment_bytes: Some(SEGMENT_BYTES),
        force: false,
        written_ahead: true,
        device_id: [disk as u8 + 1; 16],
        hash_secret: 99,
        created_ms: 1,
    };
    let block = file(reactor, disk);
    format(&*block, &options).await.expect("it is blank");
    let superblock = inspect(&*block).await.expect("it was formatted");
    // What is in memory hides nothing from a scrub.
    let options = Options { known_bytes: 4 << 20, ..Options::default() };
    Partition::open(reactor, block, &superblock, 0, options).await.expect("it opens")
}

fn joining(disk: usize, partition: &Rc<Partition>) -> Joining {
    Joining { name: path(disk), id: [disk as u8 + 1; 16], device: Ok(partition.clone()) }
}

/// An array and what is below it, with keys in it.
struct Bench {
    world: World,
    reactor: Reactor,
    random: Random,
    members: Vec<Rc<Partition>>,
    array: Rc<Array>,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Bench {
    async fn new(world: World, reactor: Reactor, mechanism: Mechanism) -> Bench {
        let members = join_all((0..MEMBERS).map(|disk| open(&reactor, disk))).await;
        let given = members.iter().enumerate().map(|(disk, partition)| joining(disk, partition)).collect();
        let options = ArrayOptions {
            policy: mechanism.into(),
            degraded: false,
            rebuild_bytes_per_s: 0,
            stateless: false,
        };
        let array = Array::open(&reactor, 0, 1, given, options).await.expect("all are there");
        let random = Random::stream(7, &mechanism.to_string());
        let values = BTreeMap::new();
        let mut bench = Bench { world, reactor, random, members, array, values };
        bench.fill().await;
        bench
    }

    async fn fill(&mut self) {
        for number in 0..KEYS {
            let is_long = number % LONG_EVERY == 0;
            let length = if is_long { self.random.range(20_000, 60_000) } else { self.random.below(1500) };
            let value: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
            self.values.insert(format!("key:{number}").into_bytes(), value);
        }
        let each: Vec<_> = self.values.iter().collect();
        for some in each.chunks(64) {
            join_all(some.iter().map(|(key, value)| store(&self.array, key, value))).await;
        }
        run(&self.array, Op::Sync).await;
    }

    /// What each device holds, read from it alone: every byte of it is proved there.
    async fn stored(&self) -> Stored {
        let mut stored = Stored::new();
        for (member, device) in self.members.iter().enumerate() {
            for role in 0..ROLES {
                let container = ContainerId(role as u32 * ARRAY_CONTAINERS + DB.0);
                for key in keys(device, container).await {
                    let bytes = read(device, container, &key).await;
                    stored.insert((member, role, key), bytes);
                }
            }
        }
        stored
    }

    /// Where the bytes of pieces stand on their disks, one place for each that its device holds of it.
    fn places(&self, stored: &Stored) -> BTreeMap<Piece, Vec<usize>> {
        let mut places: BTreeMap<Piece, Vec<usize>> = BTreeMap::new();
        for member in 0..MEMBERS {
            let mut wanted: BTreeMap<&[u8], Vec<(&Piece, usize)>> = BTreeMap::new();
            for (piece, all) in stored.iter().filter(|(piece, _)| piece.0 == member) {
                for (number, bytes) in all.iter().enumerate() {
                    wanted.entry(&bytes[..HEADER_BYTES]).or_default().push((piece, number));
                }
                places.insert(piece.clone(), vec![0; all.len()]);
            }
            let image = self.world.with_disk(&path(member), |disk| disk.durable().to_vec());
            for at in 0..image.len() - HEADER_BYTES {
                // Parts of a value have one header, and other bytes behind it.
                let same = wanted.get(&image[at..at + HEADER_BYTES]).into_iter().flatten();
                for (piece, number) in
                    same.filter(|(piece, number)| image[at..].starts_with(&stored[*piece][*number]))
                {
                    let place = &mut places.get_mut(*piece).expect("it is stored")[*number];
                    assert_eq!(*place, 0, "a record stands once");
                    *place = at;
                }
            }
        }
        assert!(places.values().flatten().all(|at| *at > 0), "every byte that is stored is on its disk");
        places
    }

    fn flip(&self, member: usize, at: usize, bits: u8) {
        let flipped = (0..8).filter(|bit| bits & (1 << bit) != 0);
        self.world.with_disk(&path(member), |disk| flipped.for_each(|bit| disk.flip_bit(at, bit)));
    }

    /// Corrupts something of so many pieces, a bit, a byte or a run of bytes of each.
    fn corrupt(&mut self, stored: &Stored, places: &BTreeMap<Piece, Vec<usize>>) -> Vec<Piece> {
        let mut pieces: Vec<&Piece> = stored.keys().collect();
        self.random.shuffle(&mut pieces);
        let mut of_key: BTreeMap<&[u8], usize> = BTreeMap::new();
        let mut corrupted = Vec::new();
        for piece in pieces {
            let lost = of_key.entry(&piece.2).or_default();
            if *lost == LOSSES || corrupted.len() == CORRUPTIONS {
                continue;
            }
            *lost += 1;
            let number = self.random.below(stored[piece].len() as u64) as usize;
            let length = stored[piece][number].len() as u64;
            let first = self.random.below(length);
            let run = self.random.range(1, 600).min(length - first);
            let count = [1, 1, run][self.random.below(3) as usize];
            let one_bit = count == 1 && self.random.chance_ppm(500_000);
            for at in first..first + count {
                let bits = if one_bit { 1 << self.random.below(8) } else { self.random.range(1, 256) as u8 };
                self.flip(piece.0, places[piece][number] + at as usize, bits);
            }
            corrupted.push(piece.clone());
        }
        assert_eq!(corrupted.len(), CORRUPTIONS);
        corrupted
    }

    async fn scrub(&self) -> ArrayStatus {
        self.array.scrub();
        while self.array.status().scrubbing {
            self.reactor.sleep_ns(1_000_000).await;
        }
        self.array.status()
    }

    /// Every value can be read, and is right.
    async fn check(&self) {
        let each: Vec<_> = self.values.iter().collect();
        for some in each.chunks(64) {
            let read = join_all(some.iter().map(|(key, _)| read(&self.array, DB, key))).await;
            for ((key, value), read) in some.iter().zip(read) {
                assert_eq!(read.concat(), **value, "{}", String::from_utf8_lossy(key));
            }
        }
    }

    /// The devices prove every live byte themselves, when nobody works.
    async fn verify(&self, disks: &[usize]) {
        self.array.close().await;
        for partition in &self.members {
            partition.close().await.expect("nothing fails");
        }
        for disk in disks {
            let report = verify(&*file(&self.reactor, *disk), |_, _| {}).await.expect("it opens");
            assert_eq!((report.damaged_bytes, report.findings), (0, Vec::new()), "disk {disk}");
            assert!(report.records > 1000);
        }
    }
}

async fn store(array: &Rc<Array>, key: &[u8], value: &[u8]) {
    let (key, length) = (key.to_vec(), value.len() as u64);
    let bytes = if value.len() <= array.value_bytes_max() {
        Value::from(value.to_vec())
    } else {
        let begin = Op::UploadBegin { container: DB, key: key.clone(), length, shared_bytes: 0, form: None };
        let Output::Upload(upload) = run(array, begin).await else { panic!("begun") };
        for part in value.chunks(array.part_bytes()) {
            run(array, Op::UploadPart { upload, key: key.clone(), bytes: part.to_vec() }).await;
        }
        Value::Upload(upload)
    };
    let store = Op::Store {
        container: DB,
        key,
        value: bytes,
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    };
    run(array, store).await;
}

async fn keys(device: &Rc<impl Device>, container: ContainerId) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        let op = Op::List { container, prefix: Vec::new(), after: keys.last().cloned(), limit: 500 };
        let Output::Listed(page) = run(device, op).await else { panic!("a page") };
        keys.extend(page.keys);
        if !page.more {
            return keys;
        }
    }
}

/// The value of a key, or its parts.
async fn read(device: &Rc<impl Device>, container: ContainerId, key: &[u8]) -> Vec<Vec<u8>> {
    let key = key.to_vec();
    let op = Op::Retrieve { container, key: key.clone(), range: None, pin: true };
    let Output::Found(item) = run(device, op).await else { panic!("found") };
    let Some(upload) = item.upload else { return vec![item.bytes] };
    let mut parts = Vec::new();
    for part in 0..item.length.div_ceil(device.part_bytes() as u64) as u32 {
        let op = Op::RetrievePart { upload, key: key.clone(), part, range: None };
        let Output::Found(item) = run(device, op).await else { panic!("found") };
        parts.push(item.bytes);
    }
    run(device, Op::Unpin { upload, key }).await;
    parts
}

/// Runs a test over an array by each mechanism.
fn over_arrays<F: Future<Output = ()> + 'static>(test: impl Fn(Bench) -> F + Copy + 'static) {
    for mechanism in MECHANISMS {
        let world = World::new(1, |_| "other");
        (0..MEMBERS).for_each(|disk| world.add_disk(&path(disk), DISK_BYTES));
        let done = Rc::new(Cell::new(false));
        world.start_process(SERVER, 1, |reactor| {
            let (world, handle, done) = (world.clone(), reactor.clone(), done.clone());
            reactor.spawn(Work::Control, async move {
                test(Bench::new(world, handle, mechanism).await).await;
                done.set(true);
            });
        });
        assert!(world.run_until(3_600_000_000_000, || done.get()), "the test does not end");
        world.kill(SERVER, false);
    }
}

fn repaired(status: &ArrayStatus) -> u64 {
    status.members.iter().map(|member| member.repaired).sum()
}

#[test]
fn a_thousand_corruptions_are_found_and_mended_by_a_scrub() {
    over_arrays(async |mut bench| {
        let stored = bench.stored().await;
        let places = bench.places(&stored);
        let corrupted = bench.corrupt(&stored, &places);
        let status = bench.scrub().await;
        assert_eq!((status.scrub_errors, repaired(&status)), (corrupted.len() as u64, CORRUPTIONS as u64));
        assert!(status.members.iter().all(|member| member.state == MemberState::In), "{status:?}");
        assert_eq!(status.unsettled, 0);
        // On each device stands what stood there.
        assert!(bench.stored().await == stored, "what was mended is as it was");
        let status = bench.scrub().await;
        assert_eq!((status.scrub_errors, repaired(&status)), (0, CORRUPTIONS as u64), "nothing is left");
        bench.check().await;
        bench.verify(&[0, 1, 2, 3, 4, 5]).await;
    });
}

/// A device whose heads had rotted was taken out whole, with the pieces that others needed of it; three of
/// them were an outage.
#[test]
fn corrupted_heads_of_records_are_mended_where_they_are() {
    const HEADS: usize = 60;
    over_arrays(async |mut bench| {
        let stored = bench.stored().await;
        let places = bench.places(&stored);
        // What was stored last stands in a log that a start would replay: nothing starts here.
        let mut pieces: Vec<&Piece> = stored.keys().filter(|piece| stored[*piece].len() == 1).collect();
        bench.random.shuffle(&mut pieces);
        let mut of_key: BTreeMap<&[u8], usize> = BTreeMap::new();
        pieces.retain(|piece| {
            let lost = of_key.entry(&piece.2).or_default();
            *lost += 1;
            *lost <= LOSSES
        });
        for piece in &pieces[..HEADS] {
            let head_bytes = (RECORD_HEADER_BYTES + piece.2.len() + CHECKSUM_BYTES) as u64;
            let before = 1 + bench.random.below(head_bytes) as usize;
            let bit = bench.random.below(8);
            bench.flip(piece.0, places[*piece][0] - before, 1 << bit);
        }
        let of_many = pieces[..HEADS].iter().map(|piece| piece.0).collect::<BTreeSet<_>>();
        assert!(of_many.len() > LOSSES, "of more devices than may be lost");
        let status = bench.scrub().await;
        assert_eq!((status.scrub_errors, repaired(&status)), (HEADS as u64, HEADS as u64));
        assert!(status.members.iter().all(|member| member.state == MemberState::In), "{status:?}");
        let status = bench.scrub().await;
        assert_eq!((status.scrub_errors, repaired(&status)), (0, HEADS as u64), "nothing is left");
        assert!(bench.stored().await == stored, "what was lost is as it was");
        bench.check().await;
        bench.verify(&[0, 1, 2, 3, 4, 5]).await;
    });
}

//! Rules of the engine that were broken once: one named test for each.

mod damaged;
mod expiry;

use crate::opening::{DISK_BYTES, SERVER, disk, format_options, live, open, open_with, run, world};
use plimsoll_flash::{Options, Partition, format};
use plimsoll_kv::{Condition, ContainerId, Device, Error, Expiry, Op, Output, Result, UploadId, Value};
use plimsoll_reactor::sim::{Random, World};
use plimsoll_reactor::{Buf, Reactor, Work};
use std::cell::Cell;
use std::rc::Rc;

/// A store, and how it may differ from a plain one.
#[derive(Clone, Copy)]
struct Store<'a> {
    key: &'a [u8],
    condition: Condition,
    expiry: Expiry,
    retain: bool,
}

impl<'a> Store<'a> {
    fn of(key: &'a [u8]) -> Store<'a> {
        Store { key, condition: Condition::None, expiry: Expiry::Never, retain: false }
    }

    fn value(self, value: Value) -> Op {
        Op::Store {
            container: ContainerId(0),
            key: self.key.to_vec(),
            value,
            condition: self.condition,
            expiry: self.expiry,
            retain: self.retain,
            want_previous: false,
            form: None,
        }
    }

    fn bytes(self, bytes: &[u8]) -> Op {
        self.value(Value::from(bytes.to_vec()))
    }
}

fn get(key: &[u8]) -> Op {
    Op::Retrieve { container: ContainerId(0), key: key.to_vec(), range: None, pin: false }
}

fn delete(key: &[u8]) -> Op {
    Op::Delete { container: ContainerId(0), key: key.to_vec(), condition: Condition::None }
}

async fn value(partition: &Rc<Partition>, key: &[u8]) -> Option<Vec<u8>> {
    match run(partition, get(key)).await {
        Ok(Output::Found(item)) => Some(item.bytes),
        Err(Error::NotFound) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_batch_may_not_name_a_key_twice() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let twice = vec![Store::of(b"k").bytes(b"1"), Store::of(b"k").bytes(b"2")];
        assert!(matches!(run(&partition, Op::Batch(twice)).await, Err(Error::Invalid(_))));
        assert_eq!(value(&partition, b"k").await, None);
    });
}

#[test]
fn a_batch_with_a_key_that_is_too_long_changes_nothing() {
    live(&world(64 << 20), |reactor| async move {
        let partition = open_with(&reactor, 1 << 20, Options::default()).await;
        let long = [b"{k}".to_vec(), vec![b'x'; 70_000]].concat();
        let batch = vec![Store::of(b"k").bytes(b"1"), Store::of(&long).bytes(b"2")];
        assert_eq!(run(&partition, Op::Batch(batch)).await, Err(Error::KeyTooLong));
        assert_eq!(value(&partition, b"k").await, None);
    });
}

#[test]
fn what_is_retained_now_takes_the_place_of_what_was_retained_before() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let retaining = Store { retain: true, ..Store::of(b"k") };
        run(&partition, Store::of(b"k").bytes(b"1")).await.unwrap();
        run(&partition, retaining.bytes(b"2")).await.unwrap();
        run(&partition, Op::Batch(vec![retaining.bytes(b"3")])).await.unwrap();
        run(&partition, retaining.bytes(b"4")).await.unwrap();
        partition.check_accounts().expect("the accounts agree");
        partition.close().await.unwrap();
        let partition = open(&reactor).await;
        assert_eq!(value(&partition, b"k").await, Some(b"4".to_vec()));
        let revert = || Op::Revert { container: ContainerId(0), key: b"k".to_vec() };
        run(&partition, revert()).await.unwrap();
        assert_eq!(value(&partition, b"k").await, Some(b"3".to_vec()));
        assert!(matches!(run(&partition, revert()).await, Err(Error::Invalid(_))), "one at most is kept");
        run(&partition, delete(b"k")).await.unwrap();
        reactor.sleep_ns(2_000_000_000).await;
        assert_eq!(partition.metrics().live_bytes, 0);
    });
}

#[test]
fn a_key_and_a_value_that_are_too_long_together_are_refused() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let key = vec![b'x'; 60_000];
        assert_eq!(run(&partition, Store::of(&key).bytes(&[1; 16_000])).await, Err(Error::ValueTooLong));
    });
}

#[test]
fn sweeping_an_emptied_container_ends() {
    live(&world(DISK_BYTES), |reactor| async move {
        let file = disk(&reactor);
        let partition = open(&reactor).await;
        for number in 0..300 {
            let key = format!("a{number}");
            run(&partition, Store::of(key.as_bytes()).bytes(&[1; 2000])).await.unwrap();
        }
        let mut other = Store::of(b"b").bytes(&[1; 10]);
        if let Op::Store { container, .. } = &mut other {
            *container = ContainerId(1);
        }
        run(&partition, other).await.unwrap();
        run(&partition, Op::Clear { container: ContainerId(1) }).await.unwrap();
        let before = file.stats().reads;
        reactor.sleep_ns(1_000_000_000).await;
        assert!(file.stats().reads - before < 1000, "the sweep goes round and round");
    });
}

#[test]
fn the_version_told_for_a_change_of_expiry_is_the_version() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        run(&partition, Store::of(b"k").bytes(b"1")).await.unwrap();
        let (container, key) = (ContainerId(0), b"k".to_vec());
        let expiry = Expiry::At(u64::MAX / 2);
        let op = Op::SetExpiry { container, key, expiry, condition: Condition::None };
        let Ok(Output::ExpirySet(told)) = run(&partition, op).await else { panic!("no answer") };
        let Ok(Output::Found(is)) = run(&partition, get(b"k")).await else { panic!("no value") };
        assert_eq!(told.version, is.version);
    });
}

/// Uploads a value in parts.
async fn upload(partition: &Rc<Partition>, key: &[u8], length: usize) -> Result<UploadId> {
    let begin = Op::UploadBegin {
        container: ContainerId(0),
        key: key.to_vec(),
        length: length as u64,
        shared_bytes: 0,
        form: None,
    };
    let Output::Upload(upload) = run(partition, begin).await? else { panic!("no upload") };
    for part in vec![3_u8; length].chunks(partition.part_bytes()) {
        let part = Op::UploadPart { upload, key: key.to_vec(), bytes: part.to_vec() };
        if let Err(error) = run(partition, part).await {
            run(partition, Op::UploadAbort { upload, key: key.to_vec() }).await.unwrap();
            return Err(error);
        }
    }
    Ok(upload)
}

/// A value in parts below or above a retained version: whatever ends that, nothing is left of it.
async fn leaves_nothing(reactor: &Reactor, parts_first: bool, end: Op) {
    let partition = open(reactor).await;
    let what = format!("parts first: {parts_first}, {end:?}");
    let parts = Value::Upload(upload(&partition, b"k", 20_000).await.unwrap());
    let (first, second) =
        if parts_first { (parts, Value::from(vec![9])) } else { (Value::from(vec![9]), parts) };
    run(&partition, Store::of(b"k").value(first)).await.unwrap();
    run(&partition, Store { retain: true, ..Store::of(b"k") }.value(second)).await.unwrap();
    run(&partition, end).await.unwrap();
    match run(&partition, delete(b"k")).await {
        Ok(_) | Err(Error::NotFound) => {}
        Err(error) => panic!("{what}: {error}"),
    }
    reactor.sleep_ns(2_000_000_000).await;
    assert_eq!(partition.metrics().live_bytes, 0, "{what}");
    partition.close().await.unwrap();
}

#[test]
fn a_retained_value_in_parts_leaves_nothing() {
    live(&world(DISK_BYTES), |reactor| async move {
        let (container, key) = (ContainerId(0), b"k".to_vec());
        for parts_first in [true, false] {
            let ends = [
                Op::Release { container, key: key.clone() },
                Op::Revert { container, key: key.clone() },
                Store::of(b"k").bytes(b"4"),
                Op::Batch(vec![Store::of(b"k").bytes(b"5")]),
                Store { retain: true, ..Store::of(b"k") }.bytes(b"6"),
                Op::Batch(vec![Store { retain: true, ..Store::of(b"k") }.bytes(b"7")]),
                delete(b"k"),
            ];
            for end in ends {
                leaves_nothing(&reactor, parts_first, end).await;
            }
        }
    });
}

#[test]
fn a_refusal_waits_until_what_it_tells_of_is_durable() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let stored = Rc::new(Cell::new(false));
        let (first, told) = (partition.clone(), stored.clone());
        reactor.spawn(Work::Kv, async move {
            run(&first, Store::of(b"k").bytes(b"1")).await.unwrap();
            told.set(true);
        });
        reactor.yield_now().await;
        let second = Store { condition: Condition::MustNotExist, ..Store::of(b"k") };
        assert_eq!(run(&partition, second.bytes(b"2")).await, Err(Error::Exists));
        assert!(stored.get(), "told of a store that a crash could take back");
    });
}

#[test]
fn what_is_behind_a_blank_head_is_not_formatted_over() {
    live(&world(DISK_BYTES), |reactor| async move {
        let file = disk(&reactor);
        let mut foreign = Buf::zeroed(4096);
        foreign.copy_from_slice(&[0xee; 4096]);
        file.write(65_536, Rc::new(foreign), true).await.unwrap();
        assert!(format(&file, &format_options(64 << 10)).await.is_err());
    });
}

/// Writers that make the device clean, and readers that scan it meanwhile.
fn scan_while_cleaning(seed: u64, fingerprint_bits: u32) {
    const WRITERS: u64 = 16;
    const SCANNERS: u64 = 4;
    let world = World::new(seed, |_| "other");
    world.add_disk("disk", DISK_BYTES);
    let ended = Rc::new(Cell::new(0_u64));
    let all = ended.clone();
    world.start_process(SERVER, 1, move |reactor| {
        let (inner, ended) = (reactor.clone(), ended.clone());
        reactor.spawn(Work::Control, async move {
            let options = Options { fingerprint_bits, checkpoint_transitions_min: 300, ..Options::default() };
            let partition = open_with(&inner, 64 << 10, options).await;
            for writer in 0..WRITERS {
                let (partition, ended) = (partition.clone(), ended.clone());
                let mut random = Random::stream(seed, &format!("writer {writer}"));
                inner.spawn(Work::Kv, async move {
                    for _ in 0..700 {
                        let key = format!("k{}", random.below(900));
                        let bytes = vec![7; random.below(4000) as usize];
                        match run(&partition, Store::of(key.as_bytes()).bytes(&bytes)).await {
                            Ok(_) | Err(Error::NoSpace) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    ended.set(ended.get() + 1);
                });
            }
            for _ in 0..SCANNERS {
                let (partition, ended, reactor) = (partition.clone(), ended.clone(), inner.clone());
                inner.spawn(Work::Kv, async move {
                    while ended.get() < WRITERS {
                        reactor.sleep_ns(1000).await;
                        scan_once(&partition).await;
                    }
                    assert_eq!(partition.metrics().unreadable, 0);
                    ended.set(ended.get() + 1);
                });
            }
        });
    });
    assert!(world.run_until(60_000_000_000, || all.get() == WRITERS + SCANNERS), "seed {seed} does not end");
}

async fn scan_once(partition: &Rc<Partition>) {
    let mut cursor = 0;
    loop {
        let scan = Op::Scan { container: ContainerId(0), cursor, limit: 256 };
        match run(partition, scan).await {
            Ok(Output::Scanned(page)) if page.cursor == 0 => return,
            Ok(Output::Scanned(page)) => cursor = page.cursor,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn scans_go_on_while_records_move() {
    for seed in 0..3 {
        scan_while_cleaning(seed, 40);
        scan_while_cleaning(seed, 10);
    }
}

#[test]
fn a_value_that_is_being_sent_survives_the_emptying_of_its_container() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        for other in [None, Some(b"other")] {
            if let Some(other) = other {
                run(&partition, Store::of(other).bytes(b"1")).await.unwrap();
            }
            let upload = upload(&partition, b"k", 20_000).await.unwrap();
            run(&partition, Op::Clear { container: ContainerId(0) }).await.unwrap();
            run(&partition, Store::of(b"k").value(Value::Upload(upload))).await.unwrap();
            assert_eq!(run(&partition, delete(b"k")).await.map(|_| ()), Ok(()));
        }
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(partition.metrics().live_bytes, 0);
    });
}

/// Stores a value of 100 000 bytes in parts: as many fill a segment as leave an eighth of it empty.
async fn store_in_parts(partition: &Rc<Partition>, key: &str) -> Result<Output> {
    let value = Value::Upload(upload(partition, key.as_bytes(), 100_000).await?);
    run(partition, Store::of(key.as_bytes()).value(value)).await
}

#[test]
fn a_device_full_of_records_that_leave_slack_says_so() {
    live(&world(16 << 20), |reactor| async move {
        let partition = open(&reactor).await;
        let mut stored = 0;
        let refused = loop {
            match store_in_parts(&partition, &format!("k{stored}")).await {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, Error::NoSpace);
        for _ in 0..10 {
            assert_eq!(store_in_parts(&partition, "more").await, Err(Error::NoSpace));
        }
        let metrics = partition.metrics();
        assert!(metrics.live_bytes * 10 > metrics.capacity_bytes * 7, "full at {metrics:?}");
        assert!(metrics.cleaned_segments < 2 * metrics.segments, "it cleans and gains nothing: {metrics:?}");
    });
}

/// A sceptic's finding: one damaged head ended every scan at its page.
#[test]
fn a_damaged_head_hides_its_own_key_from_scans_and_no_other() {
    const KEYS: usize = 60;
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        for number in 0..KEYS {
            let key = format!("scanned:{number:03}");
            run(&partition, Store::of(key.as_bytes()).bytes(b"value")).await.unwrap();
        }
        partition.close().await.unwrap();
    });
    world.with_disk("disk", |disk| {
        let sought = b"scanned:017";
        let at = disk.durable().windows(sought.len()).position(|bytes| bytes == sought);
        disk.flip_bit(at.expect("the record is on the disk"), 3);
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let (mut keys, mut cursor) = (Vec::new(), 0);
        loop {
            let op = Op::Scan { container: ContainerId(0), cursor, limit: 7 };
            let Ok(Output::Scanned(page)) = run(&partition, op).await else { panic!("the scan goes on") };
            keys.extend(page.keys);
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), KEYS - 1);
        assert!(!keys.contains(&b"scanned:017".to_vec()));
        assert!(partition.metrics().unreadable > 0, "and somebody is told");
        assert!(matches!(run(&partition, get(b"scanned:017")).await, Err(Error::Unreadable(_))));
        partition.close().await.unwrap();
    });
}

/// A sceptic's finding: who verified a device was not told which keys were damaged.
#[test]
fn verification_names_the_key_of_a_damaged_value() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        run(&partition, Store::of(b"named").bytes(b"a value that is damaged")).await.unwrap();
        partition.close().await.unwrap();
    });
    world.with_disk("disk", |disk| {
        let sought = b"a value that is damaged";
        let at = disk.durable().windows(sought.len()).position(|bytes| bytes == sought);
        disk.flip_bit(at.expect("the record is on the disk"), 3);
    });
    live(&world, |reactor| async move {
        let report = plimsoll_flash::verify(&disk(&reactor), |_, _| {}).await.unwrap();
        let found = report.findings.iter().any(|finding| finding.contains("key \"named\": "));
        assert!(found && report.damaged_bytes > 0, "{:?}", report.findings);
    });
}

/// A layer above cannot make room without its books: found by a world of arrays, which could not be opened
/// any more when their devices were full.
#[test]
fn a_full_device_takes_the_books_of_a_layer_above() {
    live(&world(16 << 20), |reactor| async move {
        let partition = open(&reactor).await;
        let book = |number: u32| Op::Store {
            container: ContainerId(plimsoll_kv::limits::BOOKS_CONTAINER_MIN),
            key: format!("book {}", number % 3).into_bytes(),
            value: Value::from(vec![number as u8; 200]),
            condition: Condition::None,
            expiry: Expiry::Never,
            retain: false,
            want_previous: false,
            form: None,
        };
        let mut stored = 0;
        let fill = |number: u32| Store::of(format!("k{number}").as_bytes()).bytes(&[7; 9000]);
        while run(&partition, fill(stored)).await.is_ok() {
            stored += 1;
        }
        assert_eq!(run(&partition, fill(stored)).await, Err(Error::NoSpace));
        for number in 0..300 {
            assert!(run(&partition, book(number)).await.is_ok(), "book {number}");
        }
        assert_eq!(run(&partition, fill(stored)).await, Err(Error::NoSpace));
        for number in 0..stored {
            let both = Op::Batch(vec![delete(format!("k{number}").as_bytes()), book(number)]);
            assert!(run(&partition, both).await.is_ok(), "a delete and book {number}");
        }
        assert!(run(&partition, fill(0)).await.is_ok());
    });
}

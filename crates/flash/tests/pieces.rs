//! Checkpoints in pieces on a full device: there is room for the next one, wherever the tables grew.

use plimsoll_flash::{FormatOptions, Options, Partition, format, inspect};
use plimsoll_kv::{
    Block, Condition, ContainerId, Device, Durability, Error, Expiry, Op, Output, Request, Value,
};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{FileOptions, Reactor, Work};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

const SERVER: ProcessId = ProcessId(1);
/// About a hundred segments. Records of 96 bytes: checkpoints take a tenth of the device.
const DISK_BYTES: usize = 7 << 20;

async fn open(reactor: &Reactor) -> Rc<Partition> {
    let block: Rc<dyn Block> = Rc::new(reactor.open_file("disk", &FileOptions::default()).unwrap());
    let format_options = FormatOptions {
        partitions: 1,
        segment_bytes: Some(64 << 10),
        force: false,
        written_ahead: true,
        device_id: [7; 16],
        hash_secret: 99,
        created_ms: 1,
    };
    let superblock = match inspect(&*block).await {
        Ok(superblock) => superblock,
        Err(_) => format(&*block, &format_options).await.unwrap(),
    };
    let options = Options { checkpoint_transitions_min: 2000, ..Options::default() };
    Partition::open(reactor, block, &superblock, 0, options).await.unwrap()
}

/// Runs one life of the server to its end, which is a power loss.
fn live<F: Future<Output = ()> + 'static>(world: &World, life: impl Fn(Reactor) -> F + 'static) {
    let life = Rc::new(life);
    let done = Rc::new(Cell::new(false));
    let ended = done.clone();
    world.start_process(SERVER, 1, move |reactor| {
        let (inner, life, ended) = (reactor.clone(), life.clone(), ended.clone());
        reactor.spawn(Work::Control, async move {
            life(inner).await;
            ended.set(true);
        });
    });
    assert!(world.run_until(world.now_ns() + 3_600_000_000_000, || done.get()), "the life does not end");
    world.kill(SERVER, true);
}

async fn run(partition: &Rc<Partition>, op: Op) -> Result<Output, Error> {
    let completion = partition.clone().execute(Request::new(Durability::Async, op)).await;
    completion.map(|completion| completion.output)
}

async fn store(partition: &Rc<Partition>, key: String, fill: u8) -> Result<(), Error> {
    let op = Op::Store {
        container: ContainerId(0),
        key: key.into_bytes(),
        value: Value::Bytes(vec![fill; 8]),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
    };
    run(partition, op).await.map(|_| ())
}

/// Stores keys until there is no space; how many.
async fn fill(partition: &Rc<Partition>, key: impl Fn(u64) -> String) -> u64 {
    let mut number = 0;
    loop {
        match store(partition, key(number), 1).await {
            Ok(()) => number += 1,
            Err(Error::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn delete(partition: &Rc<Partition>, key: String) {
    let op = Op::Delete { container: ContainerId(0), key: key.into_bytes(), condition: Condition::None };
    run(partition, op).await.expect("a delete on a full device");
}

async fn holds(partition: &Rc<Partition>, key: String, fill: u8) {
    let op = Op::Retrieve { container: ContainerId(0), key: key.into_bytes(), range: None, pin: false };
    match run(partition, op).await {
        Ok(Output::Found(item)) => assert_eq!(item.bytes, [fill; 8]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_device_goes_on_and_gives_everything_back() {
    let world = World::new(1, |_| "other");
    world.add_disk("disk", DISK_BYTES);
    let count = Rc::new(Cell::new(0));
    let filled = count.clone();
    live(&world, move |reactor| {
        let filled = filled.clone();
        async move { overwrite(&reactor, &filled).await }
    });
    let filled = count.clone();
    live(&world, move |reactor| {
        let filled = filled.get();
        async move {
            let partition = open(&reactor).await;
            partition.check_accounts().unwrap();
            for number in 0..filled {
                holds(&partition, format!("k{number}"), 2).await;
            }
            partition.close().await.unwrap();
        }
    });
    assert!(count.get() > 40_000, "only {} keys fit", count.get());
}

async fn overwrite(reactor: &Reactor, filled: &Cell<u64>) {
    let partition = open(reactor).await;
    let full = fill(&partition, |number| format!("k{number}")).await;
    // An overwrite is let in as if it were a new record.
    filled.set(full * 39 / 40);
    for number in filled.get()..full {
        delete(&partition, format!("k{number}")).await;
    }
    let before = partition.metrics().checkpoints;
    for number in 0..2 * filled.get() {
        let key = number * 7919 % filled.get();
        store(&partition, format!("k{key}"), 2).await.expect("an overwrite");
    }
    assert!(partition.metrics().checkpoints > before + 1, "checkpoints go on on a full device");
    run(&partition, Op::Sync).await.unwrap();
    partition.check_accounts().unwrap();
}

/// Keys of one slot, then of another, each time until the device is full: the tables grow in one
/// place and shrink in another.
fn moves_from_slot_to_slot(tags: [&'static str; 4]) {
    let world = World::new(1, |_| "other");
    world.add_disk("disk", DISK_BYTES);
    let count = Rc::new(Cell::new(0));
    for (place, tag) in tags.into_iter().enumerate() {
        let (before, count) = (place.checked_sub(1).map(|place| tags[place]), count.clone());
        live(&world, move |reactor| {
            let count = count.clone();
            async move { move_to_slot(&reactor, before, tag, &count).await }
        });
    }
}

async fn move_to_slot(reactor: &Reactor, before: Option<&str>, tag: &str, count: &Cell<u64>) {
    let partition = open(reactor).await;
    partition.check_accounts().unwrap();
    for (before, number) in before.into_iter().flat_map(|before| (0..count.get()).map(move |n| (before, n))) {
        holds(&partition, format!("{{{before}}}{number}"), 1).await;
        delete(&partition, format!("{{{before}}}{number}")).await;
    }
    let stored = fill(&partition, |number| format!("{{{tag}}}{number}")).await;
    assert!(stored > 20_000 && stored > count.get() * 9 / 10, "{stored} after {}", count.get());
    count.set(stored);
    run(&partition, Op::Sync).await.unwrap();
}

#[test]
fn tables_may_grow_before_or_behind_those_that_shrink() {
    // Slots 15495, 3300, 7365 and 11298 (of "a", "b", "c" and "d").
    moves_from_slot_to_slot(["a", "b", "c", "d"]);
    moves_from_slot_to_slot(["b", "d", "a", "c"]);
}

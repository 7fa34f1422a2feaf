//! A partition on a simulated disk, opened for one life after the other: what tests of single rules share.
#![allow(unreachable_pub)]

use plimsoll_flash::{FormatOptions, Options, Partition, Superblock, format, inspect};
use plimsoll_kv::{
    Block, Condition, ContainerId, Device, Durability, Expiry, Op, Output, Request, Result, UploadId, Value,
};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{FileOptions, Reactor, Work};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

pub const SERVER: ProcessId = ProcessId(1);
pub const DISK_BYTES: usize = 4 << 20;
pub const DATABASE: ContainerId = ContainerId(0);

pub fn format_options(segment_bytes: u32) -> FormatOptions {
    FormatOptions {
        partitions: 1,
        segment_bytes: Some(segment_bytes),
        force: false,
        written_ahead: true,
        device_id: [7; 16],
        hash_secret: 99,
        created_ms: 1,
    }
}

pub fn disk(reactor: &Reactor) -> plimsoll_reactor::File {
    reactor.open_file("disk", &FileOptions::default()).unwrap()
}

/// What a device is; it is formatted if it is blank.
pub async fn formatted(block: &dyn Block, segment_bytes: u32) -> Superblock {
    match inspect(block).await {
        Ok(superblock) => superblock,
        Err(_) => format(block, &format_options(segment_bytes)).await.expect("a blank disk can be formatted"),
    }
}

/// Opens the partition of a device, which is formatted if it is blank.
pub async fn open_on(
    reactor: &Reactor,
    block: Rc<dyn Block>,
    segment_bytes: u32,
    options: Options,
) -> Rc<Partition> {
    let superblock = formatted(&*block, segment_bytes).await;
    Partition::open(reactor, block, &superblock, 0, options).await.expect("the partition opens")
}

/// Opens the partition of the disk.
pub async fn open_with(reactor: &Reactor, segment_bytes: u32, options: Options) -> Rc<Partition> {
    open_on(reactor, Rc::new(disk(reactor)), segment_bytes, options).await
}

pub async fn open(reactor: &Reactor) -> Rc<Partition> {
    open_with(reactor, 64 << 10, Options::default()).await
}

pub fn world(disk_bytes: usize) -> World {
    let world = World::new(1, |_| "other");
    world.add_disk("disk", disk_bytes);
    world
}

/// Runs one life of the server to its end, which is a power loss.
pub fn live<F: Future<Output = ()> + 'static>(world: &World, life: impl Fn(Reactor) -> F + 'static) {
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

/// Stores a value, whatever is there.
pub fn store(key: impl Into<Vec<u8>>, value: Value, expiry: Expiry) -> Op {
    store_in(DATABASE, key, value, expiry)
}

/// Stores a value in a container, whatever is there.
pub fn store_in(container: ContainerId, key: impl Into<Vec<u8>>, value: Value, expiry: Expiry) -> Op {
    Op::Store {
        container,
        key: key.into(),
        value,
        condition: Condition::None,
        expiry,
        retain: false,
        want_previous: false,
        form: None,
    }
}

/// Deletes a key, whatever it holds.
pub fn delete(key: impl Into<Vec<u8>>) -> Op {
    Op::Delete { container: DATABASE, key: key.into(), condition: Condition::None }
}

/// Writes the parts of a value that is not its key's yet; gives them up if one is refused.
pub async fn upload(partition: &Rc<Partition>, key: &[u8], bytes: &[u8]) -> Result<UploadId> {
    let (key, length) = (key.to_vec(), bytes.len() as u64);
    let begin =
        Op::UploadBegin { container: DATABASE, key: key.clone(), length, shared_bytes: 0, form: None };
    let Output::Upload(upload) = run(partition, begin).await? else { panic!("an upload begins") };
    for part in bytes.chunks(partition.part_bytes()) {
        let part = Op::UploadPart { upload, key: key.clone(), bytes: part.to_vec() };
        if let Err(error) = run(partition, part).await {
            run(partition, Op::UploadAbort { upload, key }).await?;
            return Err(error);
        }
    }
    Ok(upload)
}

pub async fn run(partition: &Rc<Partition>, op: Op) -> Result<Output> {
    run_as(partition, Durability::Sync, op).await
}

/// Does something that is told before it is durable.
pub async fn run_async(partition: &Rc<Partition>, op: Op) -> Result<Output> {
    run_as(partition, Durability::Async, op).await
}

async fn run_as(partition: &Rc<Partition>, durability: Durability, op: Op) -> Result<Output> {
    let completion = partition.clone().execute(Request::new(durability, op)).await;
    completion.map(|completion| completion.output)
}

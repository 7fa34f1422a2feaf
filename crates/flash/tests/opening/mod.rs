//! A partition on a simulated disk, opened for one life after the other: what tests of single rules share.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part.

use plimsoll_flash::{FormatOptions, Options, Partition, format, inspect};
use plimsoll_kv::{Block, Device, Durability, Op, Output, Request, Result};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{FileOptions, Reactor, Work};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

pub const SERVER: ProcessId = ProcessId(1);
pub const DISK_BYTES: usize = 4 << 20;

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

/// Opens the partition of the disk, which is formatted if it is blank.
pub async fn open_with(reactor: &Reactor, segment_bytes: u32, options: Options) -> Rc<Partition> {
    let block: Rc<dyn Block> = Rc::new(disk(reactor));
    let superblock = match inspect(&*block).await {
        Ok(superblock) => superblock,
        Err(_) => format(&*block, &format_options(segment_bytes)).await.unwrap(),
    };
    Partition::open(reactor, block, &superblock, 0, options).await.unwrap()
}

pub async fn open(reactor: &Reactor) -> Rc<Partition> {
    open_with(reactor, 64 << 10, Options::default()).await
}

pub fn world(disk_bytes: usize) -> World {
    let world = World::new(1, |_| "other");
    world.add_disk("disk", disk_bytes);
    world
}

/// Runs one life of the server to its end.
pub fn live<F: Future<Output = ()> + 'static>(world: &World, life: impl Fn(Reactor) -> F + 'static + Copy) {
    let done = Rc::new(Cell::new(false));
    let ended = done.clone();
    world.start_process(SERVER, 1, move |reactor| {
        let (inner, ended) = (reactor.clone(), ended.clone());
        reactor.spawn(Work::Control, async move {
            life(inner).await;
            ended.set(true);
        });
    });
    assert!(world.run_until(world.now_ns() + 60_000_000_000, || done.get()), "the life does not end");
    world.kill(SERVER, true);
}

pub async fn run(partition: &Rc<Partition>, op: Op) -> Result<Output> {
    let completion = partition.clone().execute(Request::new(Durability::Sync, op)).await;
    completion.map(|completion| completion.output)
}

//! Write amplification of the engine under uniform random overwrite, without a server.
//!
//! `overwrite PATH GIB PERCENT ROUNDS`: fills the device with records of 1 KiB values until they
//! take PERCENT of it, then overwrites at random, durably, from 64 clients, ROUNDS times the
//! device's size in record bytes. Prints device bytes per record byte.

use plimsoll_flash::{FormatOptions, Options, Partition, format};
use plimsoll_kv::{Block, Condition, ContainerId, Device, Durability, Expiry, Op, Request, Slot, Value};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{FileOptions, Reactor, StartOptions, Work, start};
use std::cell::Cell;
use std::rc::Rc;

const PARTITIONS: u16 = 2;
const CLIENTS: u64 = 64;

fn store(number: u64) -> Request {
    let op = Op::Store {
        container: ContainerId(0),
        key: format!("{number:016}").into_bytes(),
        value: Value::from(vec![number as u8; 1024]),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    };
    Request::new(Durability::Sync, op)
}

/// Runs `count` stores of keys drawn by `number` from 64 clients.
async fn stores(
    reactor: &Reactor,
    partitions: &[Rc<Partition>],
    count: u64,
    number: impl Fn(u64) -> u64 + Copy + 'static,
) {
    let (next, done, finished) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(WaitList::default()));
    for _ in 0..CLIENTS {
        let (next, done, finished) = (next.clone(), done.clone(), finished.clone());
        let partitions = partitions.to_vec();
        reactor.spawn(Work::Kv, async move {
            while next.get() < count {
                let request = store(number(next.replace(next.get() + 1)));
                let slot = Slot::of(request.op.key().expect("stores have keys"));
                let partition = partitions[slot.partition(PARTITIONS) as usize].clone();
                partition.execute(request).await.expect("store");
            }
            done.set(done.get() + 1);
            finished.wake_all();
        });
    }
    finished.wait_for(|| (done.get() == CLIENTS).then_some(())).await;
}

async fn run(reactor: Reactor, args: Vec<String>) {
    let bytes = args[2].parse::<u64>().expect("GIB") << 30;
    let percent: u64 = args[3].parse().expect("PERCENT");
    let rounds: u64 = args[4].parse().expect("ROUNDS");
    let options = FileOptions { create_bytes: Some(bytes), ..FileOptions::default() };
    let file = reactor.open_file(&args[1], &options).expect("open");
    let block: Rc<dyn Block> = Rc::new(file.clone());
    let options = FormatOptions {
        partitions: PARTITIONS,
        segment_bytes: None,
        force: true,
        written_ahead: false,
        device_id: [3; 16],
        hash_secret: 5,
        created_ms: reactor.wall_ms(),
    };
    let superblock = format(&*block, &options).await.expect("format");
    let mut partitions = Vec::new();
    for number in 0..PARTITIONS {
        let opened = Partition::open(&reactor, block.clone(), &superblock, number, Options::default());
        partitions.push(opened.await.expect("open"));
    }
    let record_bytes = (64_u64 + 16 + 4 + 1024).next_multiple_of(16);
    let keys = bytes * percent / 100 / record_bytes;
    stores(&reactor, &partitions, keys, |at| at).await;
    let (before, start_ns) = (file.stats(), reactor.now_ns());
    let stored =
        |partitions: &[Rc<Partition>]| partitions.iter().map(|p| p.metrics().stored_bytes).sum::<u64>();
    let stored_before = stored(&partitions);
    let count = bytes * rounds / record_bytes;
    let scatter = move |at: u64| {
        let mut hash = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
        hash.wrapping_mul(0xd6e8_feb8_6659_fd93) % keys
    };
    stores(&reactor, &partitions, count, scatter).await;
    let after = file.stats();
    let record_bytes = stored(&partitions) - stored_before;
    let device_bytes = after.written_bytes - before.written_bytes;
    println!(
        "{keys} keys, {count} overwrites in {:.1} s: {:.3} device bytes a record byte ({device_bytes} / {record_bytes})",
        (reactor.now_ns() - start_ns) as f64 / 1e9,
        device_bytes as f64 / record_bytes as f64
    );
    for partition in &partitions {
        println!("{:?}", partition.metrics());
    }
    std::process::exit(0);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    assert_eq!(args.len(), 5, "overwrite PATH GIB PERCENT ROUNDS");
    let running = start(&StartOptions::on(vec![0]), move |reactor| {
        reactor.spawn(Work::Control, run(reactor.clone(), args.clone()));
    });
    running.expect("the reactor starts").join();
}

//! Listing on a larger set: device reads of a page, memory, restarts, damage, and room.

use crate::list_support::{list_all, open_on, page};
use crate::opening::SERVER;
use plimsoll_flash::Partition;
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::{Block, Condition, ContainerId, Device, Durability, Expiry, Op, Request, Value};
use plimsoll_reactor::sim::World;
use plimsoll_reactor::{Buf, FileOptions, Reactor, Work};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

/// A device that counts reads and can damage blocks of keys on their way.
struct Watched {
    inner: Rc<dyn Block>,
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
    /// So many reads that begin with a block of keys are damaged.
    damage: Cell<u64>,
}

impl Block for Watched {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        self.reads.set(self.reads.get() + 1);
        self.read_bytes.set(self.read_bytes.get() + len as u64);
        let read = self.inner.read(origin, offset, len);
        let left = self.damage.get();
        if left == 0 {
            return read;
        }
        self.damage.set(left - 1);
        Box::pin(async move {
            let mut buf = read.await?;
            if buf.starts_with(b"PKEY") {
                buf[40] ^= 1;
            }
            Ok(buf)
        })
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        self.inner.write(origin, offset, buf, durable)
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        self.inner.flush(origin)
    }
}

fn watch(reactor: &Reactor) -> Rc<Watched> {
    let file = reactor.open_file("disk", &FileOptions::default()).expect("the disk exists");
    let counter = || Cell::new(0);
    Rc::new(Watched { inner: Rc::new(file), reads: counter(), read_bytes: counter(), damage: counter() })
}

/// Runs one process of a world to its end.
fn live<F: Future<Output = ()> + 'static>(world: &World, main: impl Fn(Reactor, Rc<Watched>) -> F) {
    let done = Rc::new(Cell::new(false));
    let finished = done.clone();
    world.start_process(SERVER, 1, |reactor| {
        let (main, done) = (main(reactor.clone(), watch(reactor)), finished.clone());
        reactor.spawn(Work::Control, async move {
            main.await;
            done.set(true);
        });
    });
    assert!(world.run_until(world.now_ns() + 3_600_000_000_000, || done.get()), "it never ends");
    world.kill(SERVER, true);
}

/// The key of a number: scattered, so that tables hold keys from everywhere.
fn key(number: u64) -> Vec<u8> {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    format!("user:{scattered:013}:{number:07}").into_bytes()
}

fn store(key: Vec<u8>, value: Vec<u8>) -> Op {
    Op::Store {
        container: ContainerId(0),
        key,
        value: Value::from(value),
        condition: Condition::None,
        expiry: Expiry::Never,
        retain: false,
        want_previous: false,
        form: None,
    }
}

fn delete(key: Vec<u8>) -> Op {
    Op::Delete { container: ContainerId(0), key, condition: Condition::None }
}

async fn change(partition: &Rc<Partition>, keys: impl Iterator<Item = Vec<u8>>, deletes: bool) {
    let mut ops = keys.map(|key| if deletes { delete(key) } else { store(key, vec![1; 10]) });
    loop {
        let batch: Vec<Op> = ops.by_ref().take(100).collect();
        if batch.is_empty() {
            return;
        }
        let request = Request::new(Durability::Async, Op::Batch(batch));
        partition.clone().execute(request).await.expect("batch");
    }
}

async fn open(reactor: &Reactor, block: &Rc<Watched>) -> Rc<Partition> {
    open_on(reactor, block.clone(), 40, 256 << 10, 30_000).await
}

/// Keys of the large set; `PLIMSOLL_KEYS` says how many, for measurements.
fn keys() -> u64 {
    std::env::var("PLIMSOLL_KEYS").ok().and_then(|keys| keys.parse().ok()).unwrap_or(200_000)
}

/// The most reads that a page of 100 keys takes, over many places.
async fn most_reads(partition: &Rc<Partition>, block: &Watched) -> (u64, f64) {
    let (mut most, mut all, pages) = (0, 0, 300);
    for number in 0..pages {
        let prefix = key(number * 977)[..5 + (number % 6) as usize].to_vec();
        let after = (number % 3 > 0).then(|| key(number * 991));
        let before = block.reads.get();
        let listed = page(partition, 0, &prefix, after, 100).await;
        let reads = block.reads.get() - before;
        most = most.max(reads);
        all += reads;
        assert!(!listed.keys.is_empty() || number % 3 > 0);
    }
    (most, all as f64 / pages as f64)
}

#[test]
fn a_page_takes_few_reads_and_keys_take_little_memory() {
    let world = World::new(1, |_| "any");
    world.add_disk("disk", keys() as usize / 4096 * 2 * (1 << 20));
    live(&world, |reactor, block| async move {
        let partition = open(&reactor, &block).await;
        change(&partition, (0..keys()).map(key), false).await;
        change(&partition, (0..keys() / 10).map(|n| key(n * 10)), true).await;
        let (most, mean) = most_reads(&partition, &block).await;
        let metrics = partition.metrics();
        let runs = metrics.key_runs;
        println!("{most} reads a page at most, {mean:.1} on average, {runs} runs: {metrics:?}");
        assert!(runs > 3 && most <= 2 * runs + 2 && most <= 128, "{most} reads, {runs} runs");
        // 20 million keys in 500 tables stay in 15 runs: see the tests of merging.
        assert!(15 * most.div_ceil(runs) <= 128);
        let index = metrics.key_index_bytes as f64 / metrics.key_run_names as f64;
        assert!(index < 0.5, "{index} bytes a key in the sparse indexes");
        assert!(metrics.key_table_bytes < 2 << 20 && metrics.key_rebuilds == 0);
        let written = metrics.key_written_bytes as f64 / metrics.key_run_bytes as f64;
        assert!(metrics.key_merges > 0 && written < 8.0, "written {written:.1} times");
        let listed = list_all(&partition, 0, b"user:", || 1000, true).await;
        let mut expected: Vec<_> = (0..keys()).filter(|n| n % 10 != 0).map(key).collect();
        expected.sort();
        assert!(listed == expected, "{} of {} keys", listed.len(), expected.len());
        partition.close().await.expect("close");
        partition.check_accounts().expect("accounts");
    });
    live(&world, |reactor, block| async move {
        // After a clean end nothing but the sparse indexes is read.
        let partition = open(&reactor, &block).await;
        let before = block.read_bytes.get();
        page(&partition, 0, b"", None, 10).await;
        let metrics = partition.metrics();
        assert!(block.read_bytes.get() - before < metrics.key_run_bytes / 10 + (200 << 10));
        let (most, _) = most_reads(&partition, &block).await;
        assert!(most <= 2 * metrics.key_runs + 2);
        partition.check_accounts().expect("accounts");
    });
}

async fn expect_all(partition: &Rc<Partition>, numbers: impl Iterator<Item = u64>) {
    let listed = list_all(partition, 0, b"", || 500, true).await;
    let mut expected: Vec<_> = numbers.map(key).collect();
    expected.sort();
    assert!(listed == expected, "{} of {} keys", listed.len(), expected.len());
}

#[test]
fn damaged_runs_are_built_anew_from_the_records() {
    let world = World::new(2, |_| "any");
    world.add_disk("disk", 16 << 20);
    live(&world, |reactor, block| async move {
        let partition = open(&reactor, &block).await;
        change(&partition, (0..20_000).map(key), false).await;
        partition.close().await.expect("close");
    });
    live(&world, |reactor, block| async move {
        // The index of a run is damaged when the partition is opened; stores go on meanwhile.
        let partition = open(&reactor, &block).await;
        block.damage.set(3);
        change(&partition, (20_000..24_000).map(key), false).await;
        change(&partition, (0..2_000).map(key), true).await;
        expect_all(&partition, 2_000..24_000).await;
        assert_eq!(partition.metrics().key_rebuilds, 1);
        partition.close().await.expect("close");
        partition.check_accounts().expect("accounts");
    });
    live(&world, |reactor, block| async move {
        let partition = open(&reactor, &block).await;
        expect_all(&partition, 2_000..24_000).await;
        assert_eq!(partition.metrics().key_rebuilds, 0);
        // A block is damaged under a listing.
        block.damage.set(1);
        expect_all(&partition, 2_000..24_000).await;
        assert_eq!(partition.metrics().key_rebuilds, 1);
        change(&partition, (0..2_000).map(key), false).await;
        expect_all(&partition, 0..24_000).await;
        partition.check_accounts().expect("accounts");
    });
    live(&world, |reactor, block| async move {
        // Power was lost: what the checkpoint of the life before names is whole.
        let partition = open(&reactor, &block).await;
        expect_all(&partition, 0..24_000).await;
        partition.check_accounts().expect("accounts");
    });
}

/// Keys of 900 bytes.
fn long_key(number: u64) -> Vec<u8> {
    let mut long = key(number);
    long.resize(900, b'x');
    long
}

#[test]
fn long_keys_that_are_gone_leave_their_room_on_a_device_that_is_nearly_full() {
    let world = World::new(7, |_| "any");
    world.add_disk("disk", 24 << 20);
    live(&world, |reactor, block| async move {
        let partition = open(&reactor, &block).await;
        let one_by_one = async |ops: Vec<Op>| {
            for op in ops {
                let done = partition.clone().execute(Request::new(Durability::Async, op)).await;
                done.expect("there is room, and deletes need none");
            }
        };
        let value = |number| store(key(number), vec![1; 16 << 10]);
        one_by_one((0..250).map(value).collect()).await;
        // Their names, and that they are gone, take more than what is free: merged they take nothing.
        change(&partition, (0..4500).map(long_key), false).await;
        one_by_one((0..4500).map(long_key).map(delete).collect()).await;
        let full = partition.metrics();
        reactor.sleep_ns(60_000_000_000).await;
        let settled = partition.metrics();
        println!("{} bytes of names, then {}: {settled:?}", full.key_run_bytes, settled.key_run_bytes);
        assert!(settled.key_run_bytes < 1 << 20);
        one_by_one((250..900).map(value).collect()).await;
        partition.close().await.expect("close");
        partition.check_accounts().expect("accounts");
    });
}

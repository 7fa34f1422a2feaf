//! A full device that makes room while its start still brings the order of the keys together.

use crate::opening::{disk, live, open_on, run, store, world};
use plimsoll_flash::{OnFull, Options, Partition};
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::{Block, Class, Error, Expiry, Op, Value};
use plimsoll_reactor::{Buf, File, Reactor};
use std::cell::Cell;
use std::rc::Rc;

/// Small: what stores must leave alone is a large part of it, so they wait for what is evicted, and no
/// segment is lacking.
const DISK_BYTES: usize = 2 << 20;
/// So long the first read of the background takes: that of the keys that are brought together.
const HELD_NS: u64 = 1_000_000_000;

/// A device that holds one read back.
struct Holding {
    file: File,
    reactor: Reactor,
    holds: Cell<bool>,
}

impl Block for Holding {
    fn size_bytes(&self) -> u64 {
        Block::size_bytes(&self.file)
    }
    fn block_bytes(&self) -> u32 {
        Block::block_bytes(&self.file)
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        let read = Block::read(&self.file, origin, offset, len);
        if origin.class != Class::Background || !self.holds.replace(false) {
            return read;
        }
        let held = self.reactor.sleep_ns(HELD_NS);
        Box::pin(async move {
            held.await;
            read.await
        })
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        Block::write(&self.file, origin, offset, buf, durable)
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        Block::flush(&self.file, origin)
    }
}

async fn open(reactor: &Reactor, holds: bool) -> Rc<Partition> {
    let block = Holding { file: disk(reactor), reactor: reactor.clone(), holds: Cell::new(holds) };
    let options = Options { on_full: OnFull::Evict, ..Options::default() };
    open_on(reactor, Rc::new(block), 64 << 10, options).await
}

/// Stores keys that nobody reads; how many were refused.
async fn press(partition: &Rc<Partition>, name: &str, count: u64) -> u64 {
    let mut refused = 0;
    for number in 0..count {
        let op = store(format!("{name}{number}"), Value::from(vec![7; 2000]), Expiry::Never);
        match run(partition, op).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                refused += 1;
            }
        }
    }
    refused
}

/// What was stored since the last checkpoint can be evicted after the next one, and that waits until the
/// order of the keys is there: so do the stores (world 30201).
#[test]
fn stores_wait_for_the_checkpoint_that_waits_for_the_keys() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, false).await;
        assert_eq!(press(&partition, "k", 200).await, 0);
        run(&partition, Op::Sync).await.unwrap();
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor, true).await;
        let begun_ns = reactor.now_ns();
        assert_eq!(press(&partition, "m", 4000).await, 0);
        assert!(reactor.now_ns() - begun_ns > HELD_NS, "the keys came late");
        partition.check_accounts().unwrap();
    });
}

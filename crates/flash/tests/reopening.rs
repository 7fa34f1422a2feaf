//! Lives that end while they open: what they leave behind does not keep the next one from opening.

use crate::opening::{DISK_BYTES, disk, format_options, formatted, live, run, store, world};
use futures_util::future::join_all;
use plimsoll_flash::{FormatOptions, OpenError, Options, Partition, format, inspect};
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::{Block, ContainerId, Error, Expiry, Op, Output, Value};
use plimsoll_reactor::{Buf, File, Reactor};
use std::cell::Cell;
use std::io;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;

/// Which blocks of a write of several reach the device before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Torn {
    /// All: it does not fail.
    No,
    /// The first block.
    First,
    /// All but the first block.
    Rest,
}

/// A device that tears writes.
struct Tearing {
    file: File,
    torn: Cell<Torn>,
    /// Where the last write of two blocks went: the header of a segment, and an empty frame.
    header_at: Cell<u64>,
    /// The first block of what is written to here is lost, and nobody is told.
    lost_at: Cell<Option<u64>>,
}

impl Block for Tearing {
    fn size_bytes(&self) -> u64 {
        Block::size_bytes(&self.file)
    }
    fn block_bytes(&self) -> u32 {
        Block::block_bytes(&self.file)
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        Block::read(&self.file, origin, offset, len)
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let block = Block::block_bytes(&self.file) as usize;
        if buf.len() == 2 * block {
            self.header_at.set(offset);
        }
        if self.lost_at.get() == Some(offset) {
            if buf.len() == block {
                return Box::pin(async { Ok(()) });
            }
            let mut rest = Buf::zeroed(buf.len() - block);
            rest.copy_from_slice(&buf[block..]);
            return Block::write(&self.file, origin, offset + block as u64, Rc::new(rest), durable);
        }
        let (from, until) = match self.torn.get() {
            _ if buf.len() <= block => (0, buf.len()),
            Torn::No => (0, buf.len()),
            Torn::First => (0, block),
            Torn::Rest => (block, buf.len()),
        };
        if until - from == buf.len() {
            return Block::write(&self.file, origin, offset, buf, durable);
        }
        let mut part = Buf::zeroed(until - from);
        part.copy_from_slice(&buf[from..until]);
        let written = Block::write(&self.file, origin, offset + from as u64, Rc::new(part), true);
        Box::pin(async move {
            written.await?;
            Err(io::Error::other("torn"))
        })
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        Block::flush(&self.file, origin)
    }
}

async fn open(reactor: &Reactor, block: &Rc<Tearing>) -> Result<Rc<Partition>, OpenError> {
    let superblock = formatted(&**block, SEGMENT_BYTES).await;
    Partition::open(reactor, block.clone(), &superblock, 0, Options::default()).await
}

fn tearing(reactor: &Reactor) -> Rc<Tearing> {
    let (torn, header_at, lost_at) = (Cell::new(Torn::No), Cell::default(), Cell::default());
    Rc::new(Tearing { file: disk(reactor), torn, header_at, lost_at })
}

fn set(key: &str, bytes: usize) -> Op {
    store(key, Value::from(vec![7; bytes]), Expiry::Never)
}

async fn has(partition: &Rc<Partition>, key: &str) -> bool {
    let op = Op::Exist { container: ContainerId(0), key: key.into() };
    matches!(run(partition, op).await, Ok(Output::Found(_)))
}

/// A life opens and its first store is torn: the header of that frame states that the frame before was
/// durable. The next one begins the segment anew, and its first write is torn under the old header.
#[test]
fn a_first_frame_that_is_torn_over_those_of_an_earlier_life_is_no_damage() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, &tearing(&reactor)).await.unwrap();
        run(&partition, set("kept", 100)).await.unwrap();
    });
    for torn in [Torn::Rest, Torn::First] {
        live(&world, |reactor| async move {
            let block = tearing(&reactor);
            let partition = open(&reactor, &block).await.unwrap();
            block.torn.set(Torn::First);
            let stored = run(&partition, set("torn", 10_000)).await;
            assert!(matches!(stored, Err(Error::ReadOnly(_))), "{stored:?}");
        });
        live(&world, move |reactor| async move {
            let block = tearing(&reactor);
            block.torn.set(torn);
            assert!(open(&reactor, &block).await.is_err(), "its first frame is torn");
        });
        live(&world, |reactor| async move {
            let partition = open(&reactor, &tearing(&reactor)).await.expect("nothing is lost");
            assert!(has(&partition, "kept").await && !has(&partition, "torn").await);
        });
    }
}

/// The header of the segment that a life began anew is lost by the drive, and that of the life before, of
/// which nothing else is left, stands there still: it panicked over what is live there (seed 1540).
#[test]
fn a_header_of_an_earlier_life_where_a_later_one_stored_is_damage() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, &tearing(&reactor)).await.unwrap();
        run(&partition, set("kept", 100)).await.unwrap();
    });
    let written_at = Rc::new(Cell::new(0));
    let header_at = written_at.clone();
    live(&world, move |reactor| {
        let written_at = written_at.clone();
        async move {
            let block = tearing(&reactor);
            let partition = open(&reactor, &block).await.unwrap();
            block.torn.set(Torn::First);
            let stored = run(&partition, set("torn", 10_000)).await;
            assert!(matches!(stored, Err(Error::ReadOnly(_))), "{stored:?}");
            written_at.set(block.header_at.get());
        }
    });
    live(&world, move |reactor| {
        let header_at = header_at.get();
        async move {
            let block = tearing(&reactor);
            block.lost_at.set(Some(header_at));
            let partition = open(&reactor, &block).await.unwrap();
            run(&partition, set("lost", 10_000)).await.unwrap();
            partition.close().await.unwrap();
        }
    });
    live(&world, |reactor| async move {
        let Err(error) = open(&reactor, &tearing(&reactor)).await else { panic!("a segment was lost") };
        assert!(error.to_string().contains("has the header of another use"), "{error}");
    });
}

/// Stopped before the background had its first turn, with a log to name in a checkpoint that is longer than
/// what the opening wrote ahead.
#[test]
fn a_life_that_ends_where_it_opened_has_room_for_its_checkpoint() {
    const KEYS: u32 = 20_000;
    async fn ahead_of_nothing(reactor: &Reactor) -> Rc<Partition> {
        let block: Rc<dyn Block> = Rc::new(disk(reactor));
        let options = FormatOptions { written_ahead: false, ..format_options(SEGMENT_BYTES) };
        let superblock = match inspect(&*block).await {
            Ok(superblock) => superblock,
            Err(_) => format(&*block, &options).await.expect("a blank disk can be formatted"),
        };
        Partition::open(reactor, block, &superblock, 0, Options::default()).await.expect("it opens")
    }
    let world = world(16 << 20);
    live(&world, |reactor| async move {
        let partition = ahead_of_nothing(&reactor).await;
        let stores = (0..KEYS).map(|number| {
            let partition = partition.clone();
            async move { run(&partition, set(&format!("key:{number:012}"), 1)).await.expect("it is stored") }
        });
        join_all(stores).await;
    });
    live(&world, |reactor| async move {
        ahead_of_nothing(&reactor).await.close().await.expect("there is room");
    });
    live(&world, |reactor| async move {
        let partition = ahead_of_nothing(&reactor).await;
        assert_eq!(partition.metrics().objects, u64::from(KEYS));
        assert!(has(&partition, "key:000000019999").await);
    });
}

/// Its log waited for ever to write something more, and had the device open meanwhile.
#[test]
fn what_was_closed_has_its_device_open_no_longer() {
    live(&world(DISK_BYTES), |reactor| async move {
        let block = tearing(&reactor);
        let partition = open(&reactor, &block).await.unwrap();
        run(&partition, set("k", 100)).await.unwrap();
        partition.close().await.unwrap();
        drop(partition);
        reactor.sleep_ns(1_000_000_000).await;
        assert_eq!(Rc::strong_count(&block), 1);
    });
}

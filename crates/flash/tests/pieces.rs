//! Checkpoints in pieces on a full device: there is room for the next one, wherever the tables grew, also
//! after a start, and nobody writes over a piece that an anchor names.

use crate::opening::{self, disk, formatted, live, run_async as run, world};
use plimsoll_flash::format::Anchor;
use plimsoll_flash::layout::Layout;
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::{Block, ContainerId, Error, Expiry, Op, Output, Value};
use plimsoll_reactor::{Buf, File, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// About a hundred segments. Records of 96 bytes: checkpoints take a tenth of the device.
const DISK_BYTES: usize = 7 << 20;

/// Segments, and how far each is written.
type Written = BTreeMap<u32, u64>;

/// Looks at every write: what an anchor names is not written again, whichever of its copies a crash
/// would leave.
struct Watched {
    file: File,
    layout: Cell<Option<Layout>>,
    written: RefCell<Written>,
    /// What each copy of the anchor names; while one is written, what it named and what it will name.
    named: Rc<RefCell<[Vec<Written>; 2]>>,
    anchors: Rc<Cell<u64>>,
}

impl Watched {
    fn see_data(&self, layout: &Layout, offset: u64, length: u64) {
        let segment = ((offset - layout.offset) / layout.segment_bytes) as u32;
        let start = (offset - layout.offset) % layout.segment_bytes;
        for named in self.named.borrow().iter().flatten() {
            let end = named.get(&segment).copied().unwrap_or(0);
            assert!(start >= end, "segment {segment} is written at {start}, and an anchor names it");
        }
        self.written.borrow_mut().insert(segment, start + length);
    }

    fn see_anchor(&self, layout: &Layout, copy: usize, bytes: &[u8]) {
        let anchor = Anchor::decode(bytes, layout.identity).expect("an anchor is written");
        let written = self.written.borrow();
        // What an earlier life wrote is full.
        let end = |segment: u32| (segment, written.get(&segment).copied().unwrap_or(u64::MAX));
        self.named.borrow_mut()[copy].push(anchor.segments().into_iter().map(end).collect());
        self.anchors.set(self.anchors.get() + 1);
    }
}

impl Block for Watched {
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
        let layout = self.layout.get();
        let copy = layout.filter(|layout| offset < layout.offset).map(|_| (offset / 4096 - 1) as usize);
        match (layout, copy) {
            (Some(layout), Some(copy)) => self.see_anchor(&layout, copy, &buf),
            (Some(layout), None) => self.see_data(&layout, offset, buf.len() as u64),
            (None, _) => {}
        }
        let (write, named) = (Block::write(&self.file, origin, offset, buf, durable), self.named.clone());
        Box::pin(async move {
            write.await?;
            if let Some(copy) = copy {
                let copies = &mut named.borrow_mut()[copy];
                let before = copies.len() - 1;
                copies.drain(..before);
            }
            Ok(())
        })
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        Block::flush(&self.file, origin)
    }
}

async fn open(reactor: &Reactor) -> Rc<Partition> {
    open_counted(reactor, Rc::default()).await
}

async fn open_counted(reactor: &Reactor, anchors: Rc<Cell<u64>>) -> Rc<Partition> {
    let file = disk(reactor);
    let (layout, written, named) = (Cell::default(), RefCell::default(), Rc::default());
    let watched = Rc::new(Watched { file, layout, written, named, anchors });
    let block: Rc<dyn Block> = watched.clone();
    let superblock = formatted(&*block, 64 << 10).await;
    watched.layout.set(Some(Layout::new(&superblock, 0)));
    let options = Options { checkpoint_transitions_min: 2000, ..Options::default() };
    Partition::open(reactor, block, &superblock, 0, options).await.unwrap()
}

async fn store(partition: &Rc<Partition>, key: String, fill: u8) -> Result<(), Error> {
    let op = opening::store(key, Value::from(vec![fill; 8]), Expiry::Never);
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
    run(partition, opening::delete(key)).await.expect("a delete on a full device");
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
    let world = world(DISK_BYTES);
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
    let anchors = Rc::new(Cell::new(0));
    let partition = open_counted(reactor, anchors.clone()).await;
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
    let copies = 2 * partition.metrics().checkpoints;
    assert!(anchors.get() > 8 * copies, "{} anchors: tables are replaced on the way", anchors.get());
    run(&partition, Op::Sync).await.unwrap();
    partition.check_accounts().unwrap();
}

/// Keys of one slot, then of another, each time until the device is full: the tables grow in one
/// place and shrink in another.
fn moves_from_slot_to_slot(tags: [&'static str; 4]) {
    let world = world(DISK_BYTES);
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

#[test]
fn a_start_on_a_full_device_takes_no_segment_for_every_few_keys() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        fill(&partition, |number| format!("k{number}")).await;
        run(&partition, Op::Sync).await.unwrap();
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        let list = Op::List { container: ContainerId(0), prefix: Vec::new(), after: None, limit: 1 };
        run(&partition, list).await.unwrap(); // It waits until all that the log names is in runs.
        let metrics = partition.metrics();
        let names = metrics.key_run_names + metrics.key_table_names;
        assert!(names > 40_000, "{names}");
        assert!(metrics.key_segments < 12, "{} segments for {names} keys", metrics.key_segments);
    });
}

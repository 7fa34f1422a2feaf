//! A drive with sectors that it cannot read, or gives back damaged: what lies there stays, everything else
//! goes on.

use crate::opening::{self, DATABASE, disk, live, open_on, run, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::{Block, Error, Expiry, Op, Output, Result, Value};
use plimsoll_reactor::sim::World;
use plimsoll_reactor::{Buf, File, Reactor};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;
const DISK_BYTES: usize = 12 << 20;
const KEYS: u64 = 560;
const STORES: u64 = 20_000;
const VALUE_BYTES: usize = 12_000;
/// Bytes before a record's key, and before the first record of a frame (`docs/on-flash-format.md`).
const RECORD_HEADER_BYTES: usize = 64;
const FRAME_HEADER_BYTES: usize = 48;
const NOTHING: (u64, u64) = (0, 0);
const ROTTEN: u64 = 60;

/// A drive that cannot read some of its bytes until they are written again.
pub(crate) struct Worn {
    file: File,
    /// From, and to without.
    bad: Cell<(u64, u64)>,
}

impl Worn {
    pub(crate) fn new(file: File, bad: Range<u64>) -> Worn {
        Worn { file, bad: Cell::new((bad.start, bad.end)) }
    }
}

impl Block for Worn {
    fn size_bytes(&self) -> u64 {
        Block::size_bytes(&self.file)
    }
    fn block_bytes(&self) -> u32 {
        Block::block_bytes(&self.file)
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        let (from, to) = self.bad.get();
        if offset < to && offset + len as u64 > from {
            return Box::pin(async { Err(std::io::Error::other("a bad sector")) });
        }
        Block::read(&self.file, origin, offset, len)
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        let (from, to) = self.bad.get();
        if offset <= from && to <= offset + buf.len() as u64 {
            self.bad.set(NOTHING);
        }
        Block::write(&self.file, origin, offset, buf, durable)
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        Block::flush(&self.file, origin)
    }
}

fn key(number: u64) -> String {
    format!("k{number}")
}

async fn store(partition: &Rc<Partition>, number: u64, fill: u8) {
    let op = opening::store(key(number), Value::from(vec![fill; VALUE_BYTES]), Expiry::Never);
    run(partition, op).await.expect("the device is little more than half full");
}

async fn read(partition: &Rc<Partition>, number: u64) -> Result<Vec<u8>> {
    let (key, range) = (key(number).into_bytes(), None);
    match run(partition, Op::Retrieve { container: DATABASE, key, range, pin: false }).await? {
        Output::Found(item) => Ok(item.bytes),
        other => panic!("{other:?}"),
    }
}

async fn unreadable(partition: &Rc<Partition>, keys: Range<u64>) -> Vec<u64> {
    let mut lost = Vec::new();
    for number in keys {
        match read(partition, number).await {
            Ok(_) => {}
            Err(Error::Unreadable(_)) => lost.push(number),
            Err(error) => panic!("{error}"),
        }
    }
    lost
}

/// Cleaning chose the same segment again and again, and stores were told that there is no space.
#[test]
fn a_segment_that_cannot_be_read_is_left_as_it_is_and_others_are_cleaned() {
    live(&world(DISK_BYTES), |reactor| async move {
        let worn = Rc::new(Worn { file: disk(&reactor), bad: Cell::new(NOTHING) });
        let partition = open_on(&reactor, worn.clone(), SEGMENT_BYTES, Options::default()).await;
        for number in 0..KEYS {
            store(&partition, number, 1).await;
        }
        let middle = DISK_BYTES as u64 / 4;
        worn.bad.set((middle, middle + 4096));
        let lost = unreadable(&partition, 0..KEYS).await;
        assert!((1..4).contains(&lost.len()), "{lost:?}");
        let mut last: Vec<u8> = vec![1; KEYS as usize];
        for step in 0..STORES {
            let number = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % KEYS;
            if !lost.contains(&number) {
                last[number as usize] = step as u8;
                store(&partition, number, step as u8).await;
            }
        }
        let metrics = partition.metrics();
        assert!(metrics.cleaned_segments > 50 && metrics.damaged_bytes > 0, "{metrics:?}");
        assert_eq!(metrics.no_space, 0);
        for number in (0..KEYS).filter(|number| !lost.contains(number)) {
            assert_eq!(read(&partition, number).await, Ok(vec![last[number as usize]; VALUE_BYTES]));
        }
        assert_eq!(unreadable(&partition, 0..KEYS).await, lost, "an error stays visible");
        worn.bad.set(NOTHING);
        for number in lost {
            assert_eq!(read(&partition, number).await, Ok(vec![1; VALUE_BYTES]));
        }
    });
}

/// Cleaning took the good records out of segments that one damaged record kept, and what was left of them
/// counted as room: stores ran into a device without a free segment, which then could not be opened any more.
#[test]
fn a_device_with_many_damaged_records_stays_usable() {
    for (full, may_refuse) in [(640, false), (760, true)] {
        let world = world(DISK_BYTES);
        live(&world, move |reactor| async move {
            let partition = open_disk(&reactor).await;
            for number in 0..full {
                store(&partition, number, 1).await;
            }
            partition.close().await.expect("nothing fails");
        });
        (0..ROTTEN).for_each(|number| rot(&world, number * full / ROTTEN));
        live(&world, move |reactor| async move {
            let partition = open_disk(&reactor).await;
            let mut refused = 0;
            for step in 0..STORES / 2 {
                let number = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % full;
                let op = opening::store(key(number), Value::from(vec![2; VALUE_BYTES]), Expiry::Never);
                match run(&partition, op).await {
                    Err(Error::NoSpace) => refused += 1,
                    stored => drop(stored.expect("stored")),
                }
            }
            partition.check_accounts().expect("the accounts agree");
            let metrics = partition.metrics();
            assert!(metrics.free_segments > 2 && (may_refuse || refused == 0), "{refused}: {metrics:?}");
        });
        // Killed: it opens, deletes go on, and what is damaged gives its space back as it goes.
        live(&world, move |reactor| async move {
            let partition = open_disk(&reactor).await;
            for number in unreadable(&partition, 0..full).await {
                run(&partition, opening::delete(key(number))).await.expect("deleted");
            }
            for number in 0..full {
                store(&partition, number, 3).await;
            }
            assert_eq!(unreadable(&partition, 0..full).await, Vec::<u64>::new());
            partition.check_accounts().expect("the accounts agree");
        });
    }
}

async fn open_disk(reactor: &Reactor) -> Rc<Partition> {
    open_on(reactor, Rc::new(disk(reactor)), SEGMENT_BYTES, Options::default()).await
}

/// Flips a bit in the head of the record of a key.
fn rot(world: &World, number: u64) {
    let at = head_of(world, number);
    world.with_disk("disk", |disk| disk.flip_bit(at + 20, 3));
}

/// Where the record of a key begins on the disk.
fn head_of(world: &World, number: u64) -> usize {
    // The checksums of its value's spans follow the key, and then the value.
    let (name, value, checksum_bytes) = (key(number).into_bytes(), [1; 64], 4 * VALUE_BYTES.div_ceil(4096));
    world.with_disk("disk", |disk| {
        let is_it =
            |at: &[u8]| at.starts_with(&name) && at[name.len() + checksum_bytes..].starts_with(&value);
        let image = disk.durable().to_vec();
        let at = image.windows(name.len() + checksum_bytes + value.len()).position(is_it);
        at.expect("it is stored") - RECORD_HEADER_BYTES
    })
}

/// One rotten block in the last segment of the log kept a partition from opening after a clean stop, though
/// nothing of it was to be replayed.
#[test]
fn what_has_rotted_of_the_log_before_the_checkpoint_is_not_needed() {
    for rotten in 0..3 {
        let world = world(DISK_BYTES);
        live(&world, |reactor| async move {
            let partition = open_disk(&reactor).await;
            for number in 0..3 {
                store(&partition, number, 1).await;
            }
            partition.close().await.expect("nothing fails");
        });
        let frame = head_of(&world, rotten) - FRAME_HEADER_BYTES;
        world.with_disk("disk", |disk| disk.flip_bit(frame + 8, 3));
        // A clean stop, and then a kill with something to be replayed; each opens.
        for life in 0..3_u64 {
            live(&world, move |reactor| async move {
                let partition = open_disk(&reactor).await;
                assert_eq!(unreadable(&partition, 0..3 + life).await, Vec::<u64>::new());
                store(&partition, 3 + life, 1).await;
                partition.check_accounts().expect("the accounts agree");
                if life == 0 {
                    partition.close().await.expect("nothing fails");
                }
            });
        }
    }
}

//! Cleaning reads short pieces, whatever it reads, and records that span them stay what they are.

use crate::opening::{self, DATABASE, disk, live, open_on, run, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::{Block, Class, Expiry, Op, Output, Value};
use plimsoll_reactor::{Buf, File};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 1 << 20;
const DISK_BYTES: usize = 40 << 20;
/// What a read of the background takes at most.
const PIECE_BYTES: usize = 128 << 10;
const KEYS: u64 = 600;
const STORES: u64 = 10_000;
/// Shorter and longer than a piece; the longest that one record holds.
const LENGTHS: [usize; 7] = [0, 900, 16 << 10, 40_000, 70_001, (128 << 10) - 100, 256 << 10];

/// A device that tells apart what the background reads.
struct Watched {
    file: File,
    longest: Cell<usize>,
    /// Pieces of segments that are read whole, and others.
    whole: Cell<u64>,
    others: Cell<u64>,
}

impl Block for Watched {
    fn size_bytes(&self) -> u64 {
        Block::size_bytes(&self.file)
    }
    fn block_bytes(&self) -> u32 {
        Block::block_bytes(&self.file)
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        if origin.class == Class::Background {
            self.longest.set(self.longest.get().max(len));
            let kind = if len == PIECE_BYTES { &self.whole } else { &self.others };
            kind.set(kind.get() + 1);
        }
        Block::read(&self.file, origin, offset, len)
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        Block::write(&self.file, origin, offset, buf, durable)
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        Block::flush(&self.file, origin)
    }
}

/// Other bytes everywhere: what is a block too far is seen.
fn bytes(number: u64, step: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).flat_map(|word| {
        (number << 48 ^ step << 24 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
    });
    words.take(length).collect()
}

fn scattered(step: u64) -> u64 {
    step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

fn value(number: u64, step: u64) -> Vec<u8> {
    // Most are short, so that the device holds many.
    let length =
        if number.is_multiple_of(5) { LENGTHS[scattered(step) as usize % LENGTHS.len()] } else { 20_000 };
    bytes(number, step, length)
}

async fn store(partition: &Rc<Partition>, number: u64, step: u64) {
    let op = opening::store(format!("k{number}"), Value::from(value(number, step)), Expiry::Never);
    run(partition, op).await.expect("there is room");
}

async fn read(partition: &Rc<Partition>, number: u64) -> Vec<u8> {
    let key = format!("k{number}").into_bytes();
    let retrieve = Op::Retrieve { container: DATABASE, key, range: None, pin: false };
    match run(partition, retrieve).await {
        Ok(Output::Found(item)) => item.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_reads_short_pieces_and_records_that_span_them_stay() {
    let world = world(DISK_BYTES);
    let last = Rc::new(RefCell::new(vec![0; KEYS as usize]));
    let stored = last.clone();
    live(&world, move |reactor| {
        let last = stored.clone();
        async move {
            let (longest, whole, others) = Default::default();
            let watched = Rc::new(Watched { file: disk(&reactor), longest, whole, others });
            let partition = open_on(&reactor, watched.clone(), SEGMENT_BYTES, Options::default()).await;
            for number in 0..KEYS {
                store(&partition, number, 0).await;
            }
            for step in 1..STORES {
                let number = scattered(step) % KEYS;
                last.borrow_mut()[number as usize] = step;
                store(&partition, number, step).await;
            }
            let metrics = partition.metrics();
            assert!(metrics.cleaned_segments > 50 && metrics.damaged_bytes == 0, "{metrics:?}");
            assert!(watched.whole.get() > 100 && watched.others.get() > 100);
            assert!(watched.longest.get() <= PIECE_BYTES, "{}", watched.longest.get());
            let last = last.borrow().clone();
            for (number, step) in last.iter().enumerate() {
                assert!(read(&partition, number as u64).await == value(number as u64, *step), "{number}");
            }
        }
    });
    live(&world, move |reactor| {
        let last = last.clone();
        async move {
            let partition = opening::open_with(&reactor, SEGMENT_BYTES, Options::default()).await;
            let last = last.borrow().clone();
            for (number, step) in last.iter().enumerate() {
                assert!(read(&partition, number as u64).await == value(number as u64, *step), "{number}");
            }
        }
    });
}

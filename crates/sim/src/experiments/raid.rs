//! Block RAID over six devices of the same model: KVMD's baseline (FAST'20, its evaluation).
//!
//! Role: which requests go to which device when blocks are read and written; nothing is stored. Place:
//! `plimsoll sim run kvmd-raid`, and what rebuilding an array is compared with.
//!
//! The model. Striping lays chunks over all six. The mirror lays them over two sets of three copies; a read
//! goes to the copy with least to do. RAID 4 has its parity on the last device; of RAID 5 and 6 it goes
//! around (left symmetric). A block that lies in one stripe is written by read-modify-write (old data, old
//! parities) or reconstruct-write (data that stays), whichever reads less often; a whole stripe reads
//! nothing. What is adjacent on a device within one operation is one request. Writes of blocks that follow
//! each other meet, as in a stripe cache: four windows are under way, each of a quarter of what the clients
//! have outstanding, but whole stripes if that is enough for one, and no more than 256 KiB of a device.
//! What that gains striping gains, too: it is what these writes are compared with. Left out, in favour of
//! RAID: locks of stripes, the journal or bitmap against half-written stripes, processor time.
//!
//! Invariant: blocks and chunks are powers of two, so a block is a part of one chunk, or whole chunks.

use super::device::{Model, Queue};
use super::kvmd::{DEVICES, KIB, run};
use super::load::{CLIENTS, Measured, measure};
use super::{MODELS, Report, Table};
use futures_util::future::join_all;
use plimsoll_reactor::Reactor;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::cell::RefCell;

/// Copies of the mirror.
const COPIES: usize = 3;
/// Blocks of one measurement, and those that there are.
const COUNT: u64 = 6000;
const BLOCKS: u64 = 1 << 20;
/// Windows of the stripe cache, and bytes of one on each device.
const WINDOWS: u64 = 4;
const WINDOW_BYTES: u64 = 256 * KIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Striping,
    Mirror,
    Raid4,
    Raid5,
    Raid6,
}

const LEVELS: [(&str, Level); 5] = [
    ("raid0", Level::Striping),
    ("mirror", Level::Mirror),
    ("raid4", Level::Raid4),
    ("raid5", Level::Raid5),
    ("raid6", Level::Raid6),
];

/// A request, to be: so many bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    device: usize,
    offset: u64,
    bytes: u64,
}

/// Where blocks are.
#[derive(Clone, Copy, Debug)]
struct Layout {
    level: Level,
    chunk_bytes: u64,
}

/// What an operation asks of devices: all reads, and then all writes.
#[derive(Debug, Default)]
struct Steps {
    reads: Vec<Extent>,
    writes: Vec<Extent>,
}

impl Layout {
    fn parities(self) -> usize {
        match self.level {
            Level::Striping | Level::Mirror => 0,
            Level::Raid4 | Level::Raid5 => 1,
            Level::Raid6 => 2,
        }
    }

    /// Chunks of data of a stripe.
    fn data(self) -> usize {
        match self.level {
            Level::Mirror => DEVICES / COPIES,
            _ => DEVICES - self.parities(),
        }
    }

    fn stripe_bytes(self) -> u64 {
        self.data() as u64 * self.chunk_bytes
    }

    /// The device of a chunk of a stripe: first data, then parities; of a mirror its first copy.
    fn device(self, stripe: u64, index: usize) -> usize {
        let (data, parities) = (self.data(), self.parities());
        let around = (stripe % DEVICES as u64) as usize;
        match self.level {
            Level::Striping | Level::Raid4 => index,
            Level::Mirror => index * COPIES,
            Level::Raid5 | Level::Raid6 => {
                let first_parity = DEVICES - 1 - around;
                let after = if index < data { parities + index } else { index - data };
                (first_parity + after) % DEVICES
            }
        }
    }

    /// A part of a chunk, as it lies on its device.
    fn extent(self, stripe: u64, index: usize, start: u64, end: u64) -> Extent {
        let device = self.device(stripe, index);
        Extent { device, offset: stripe * self.chunk_bytes + start, bytes: end - start }
    }

    /// The stripes of some bytes; of each which chunks of data it concerns, and which part of all of these.
    fn stripes(self, offset: u64, bytes: u64) -> Vec<(u64, std::ops::Range<usize>, u64, u64)> {
        let (mut parts, mut at) = (Vec::new(), offset);
        while at < offset + bytes {
            let (stripe, inside) = (at / self.stripe_bytes(), at % self.stripe_bytes());
            let end = (inside + offset + bytes - at).min(self.stripe_bytes());
            let (first, start) = ((inside / self.chunk_bytes) as usize, inside % self.chunk_bytes);
            let chunks = first..end.div_ceil(self.chunk_bytes) as usize;
            let stop = if chunks.len() == 1 { start + end - inside } else { self.chunk_bytes };
            let is_whole = start == 0 && end.is_multiple_of(self.chunk_bytes);
            assert!(chunks.len() == 1 || is_whole, "a part of one chunk, or whole chunks");
            parts.push((stripe, chunks, start, stop));
            at += end - inside;
        }
        parts
    }

    fn read(self, offset: u64, bytes: u64) -> Steps {
        let each = self.stripes(offset, bytes).into_iter();
        let reads = each.flat_map(|(stripe, chunks, start, end)| {
            chunks.map(move |index| self.extent(stripe, index, start, end))
        });
        Steps { reads: merged(reads.collect()), writes: Vec::new() }
    }

    fn write(self, offset: u64, bytes: u64) -> Steps {
        let mut steps = Steps::default();
        for (stripe, chunks, start, end) in self.stripes(offset, bytes) {
            let extent = |index| self.extent(stripe, index, start, end);
            let parities = self.data()..self.data() + self.parities();
            let stays = (0..self.data()).filter(|index| !chunks.contains(index));
            if self.parities() > 0 {
                let (reconstruct, modify) = (stays.count(), chunks.len() + self.parities());
                if reconstruct <= modify {
                    let stays = (0..self.data()).filter(|index| !chunks.contains(index));
                    steps.reads.extend(stays.map(extent));
                } else {
                    steps.reads.extend(chunks.clone().chain(parities.clone()).map(extent));
                }
            }
            let written = chunks.chain(parities).map(extent);
            let copies = if self.level == Level::Mirror { COPIES } else { 1 };
            steps.writes.extend(written.flat_map(|first| {
                (0..copies).map(move |copy| Extent { device: first.device + copy, ..first })
            }));
        }
        Steps { reads: merged(steps.reads), writes: merged(steps.writes) }
    }

    /// Bytes that are written together where blocks follow each other.
    fn window_bytes(self, block_bytes: u64) -> u64 {
        let most = (CLIENTS / WINDOWS * block_bytes).min(WINDOW_BYTES * self.data() as u64);
        let whole = most / self.stripe_bytes() * self.stripe_bytes();
        if whole > 0 { whole } else { 1 << most.ilog2() }
    }
}

/// What lies side by side is one request.
fn merged(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable();
    let mut all: Vec<Extent> = Vec::with_capacity(extents.len());
    for next in extents {
        match all.last_mut() {
            Some(last) if last.device == next.device && last.offset + last.bytes == next.offset => {
                last.bytes += next.bytes;
            }
            _ => all.push(next),
        }
    }
    all
}

/// Six devices and a layout.
struct Raid {
    layout: Layout,
    queues: Vec<Queue>,
}

impl Raid {
    fn new(reactor: &Reactor, model: Model, layout: Layout) -> Raid {
        Raid { layout, queues: (0..DEVICES).map(|_| Queue::new(reactor, model)).collect() }
    }

    async fn follow(&self, steps: Steps) {
        join_all(steps.reads.iter().map(|extent| self.reader(extent.device).serve(extent.bytes))).await;
        join_all(steps.writes.iter().map(|extent| self.queues[extent.device].serve(extent.bytes))).await;
    }

    /// Who reads what is on a device: of its copies from there on, that with least to do.
    fn reader(&self, device: usize) -> &Queue {
        let copies = if self.layout.level == Level::Mirror { COPIES } else { 1 };
        let end = (device / copies + 1) * copies;
        self.queues[device..end].iter().min_by_key(|queue| queue.free_ns()).expect("one at least")
    }

    /// Writing and reading blocks that follow each other, and any: each as operations of one block.
    async fn each_operation(&self, reactor: &Reactor, block_bytes: u64, seed: u64) -> [Measured; 4] {
        let (layout, queues) = (self.layout, &self.queues);
        let any = RefCell::new(Xoshiro256PlusPlus::seed_from_u64(seed));
        let anywhere = || any.borrow_mut().next_u64() % BLOCKS * block_bytes;
        let window_bytes = layout.window_bytes(block_bytes);
        let (together, windows) = (window_bytes / block_bytes, COUNT * block_bytes / window_bytes);
        let (clients, count) =
            if together == 1 { (CLIENTS, COUNT) } else { (WINDOWS, windows.max(100 * WINDOWS)) };
        let window = async |number| self.follow(layout.write(number * window_bytes, window_bytes)).await;
        let in_order = measure(reactor, queues, (clients, count), window).await;
        let read = async |number| self.follow(layout.read(number * block_bytes, block_bytes)).await;
        let read = measure(reactor, queues, (CLIENTS, COUNT), read).await;
        let write_any = async |_| self.follow(layout.write(anywhere(), block_bytes)).await;
        let written_any = measure(reactor, queues, (CLIENTS, COUNT), write_any).await;
        let read_any = async |_| self.follow(layout.read(anywhere(), block_bytes)).await;
        let any_read = measure(reactor, queues, (CLIENTS, COUNT), read_any).await;
        [in_order.of_each(together), read, written_any, any_read]
    }
}

/// K1: what block RAID makes of the devices that the mechanisms have.
pub(super) fn raid(seed: u64) -> Report {
    let sizes = [KIB, 4 * KIB, 16 * KIB, 64 * KIB];
    let each = MODELS.into_iter().flat_map(|model| sizes.map(|bytes| (model, bytes)));
    let tables = each.map(|(model, bytes)| compared(model, bytes, seed)).collect();
    let conditions = format!(
        "simulated: which requests block RAID makes, over {DEVICES} modelled devices in virtual time, {CLIENTS} clients; \
         share: throughput as one of the same devices without redundancy, each block on any of them; \
         of sequential writes as one of striping with the same chunk, where they meet as well; the \
         mirror: two sets of {COPIES}; 4K, 256K: the chunk"
    );
    Report { seed, conditions, tables }
}

fn compared(model: Model, block_bytes: u64, seed: u64) -> Table {
    let measured = |level, chunk_bytes| {
        let layout = Layout { level, chunk_bytes };
        run(move |reactor| async move {
            Raid::new(&reactor, model, layout).each_operation(&reactor, block_bytes, seed).await
        })
    };
    // One request for each block, to any device; for those that meet, striping.
    let none = measured(Level::Striping, 256 * KIB)[3].per_s;
    let striped = |chunk_bytes| measured(Level::Striping, chunk_bytes)[0].per_s;
    let each = LEVELS.into_iter().flat_map(|level| [4 * KIB, 256 * KIB].map(|chunk| (level, chunk)));
    let row = |((name, level), chunk_bytes): ((&str, Level), u64)| {
        let measured = measured(level, chunk_bytes);
        let [in_order, others @ ..] = measured;
        let shares = others.iter().map(|it| it.per_s / none);
        let in_order = in_order.per_s / striped(chunk_bytes);
        let numbers = std::iter::once(in_order).chain(shares).chain([others[1].requests]).collect();
        (format!("{name} {}K", chunk_bytes / KIB), numbers)
    };
    let columns = [
        "level, chunk",
        "sequential write",
        "sequential read",
        "any write",
        "any read",
        "requests of any write",
    ];
    Table {
        title: format!("blocks of {} KiB; {model}; shares", block_bytes / KIB),
        columns: columns.map(str::to_owned).to_vec(),
        rows: each.map(row).collect(),
        plotted: vec![0, 1, 2, 3],
    }
}

/// What a device that is rebuilt block by block takes at once, and so many at a time.
const REBUILT_BYTES: u64 = 256 * KIB;
const REBUILT_TOGETHER: u64 = 32;

/// The time in which a device of so many bytes is rebuilt, whatever of it is used.
pub(super) fn rebuild_ns(model: Model, level: Level, device_bytes: u64) -> u64 {
    let layout = Layout { level, chunk_bytes: REBUILT_BYTES };
    run(move |reactor| async move {
        let raid = Raid::new(&reactor, model, layout);
        let (start_ns, next) = (reactor.now_ns(), std::cell::Cell::new(0));
        let each = (0..REBUILT_TOGETHER).map(async |_| {
            while next.get() * REBUILT_BYTES < device_bytes {
                let stripe = next.replace(next.get() + 1);
                raid.follow(rebuild_of(layout, stripe)).await;
            }
        });
        join_all(each).await;
        reactor.now_ns() - start_ns
    })
}

/// What is read and written to give the first device its part of a stripe: of a mirror a copy from the second
/// on, else as many others as there are data; which of them goes around.
fn rebuild_of(layout: Layout, stripe: u64) -> Steps {
    let extent = |device| Extent { device, offset: stripe * REBUILT_BYTES, bytes: REBUILT_BYTES };
    let others = match layout.level {
        Level::Striping => 0,
        Level::Mirror => 1,
        _ => layout.data(),
    };
    let among = if layout.level == Level::Mirror { 1 } else { DEVICES - 1 };
    let other = |nth: usize| extent(1 + (stripe as usize + nth) % among);
    Steps { reads: (0..others).map(other).collect(), writes: vec![extent(0)] }
}

#[cfg(test)]
mod tests;

//! The flash engine on a drive that does so many requests and so many bytes a second, as a device of
//! experiments.
//!
//! Role: what a server has for each of its drives: a disk, the ceiling of `[throttle]` on it, the gate, and a
//! partition of the engine. Place: below an array, as `device` of the modelled KV devices.
//!
//! Invariants: everything but the disk is the product's, opened as the server opens it by default; the disk's
//! blocks are of 4 KiB, as flash is written; counters are of what passed the ceiling.

use super::device::{Kind, Member};
use super::load::Counted;
use plimsoll_flash::{FormatOptions, Options, Partition, PartitionMetrics, format};
use plimsoll_gate::{Gated, Window};
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_kv::throttle::{Rates, ThrottleBlock};
use plimsoll_kv::{Block, Device};
use plimsoll_reactor::{Buf, File, FileOptions, FileStats, Reactor};
use std::rc::Rc;

/// Bytes of a drive: so many that nothing has to be cleaned, with segments as long as those of larger ones.
const DRIVE_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 4096;
/// As the server has them by default: I/Os at the drive, and memory for known keys, a sixth of 32 MiB.
const OUTSTANDING_MAX: usize = 256;
const KNOWN_BYTES: usize = (32 << 20) / 6;

/// A drive with a ceiling of requests and one of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drive {
    pub(super) requests_per_s: u64,
    pub(super) mb_per_s: u64,
}

impl Drive {
    pub(super) fn bytes_per_s(self) -> u64 {
        self.mb_per_s * 1_000_000
    }
}

impl std::fmt::Display for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests and {} MB a second", self.requests_per_s, self.mb_per_s)
    }
}

/// The engine on one.
pub(super) struct Engine {
    file: File,
    partition: Rc<Partition>,
}

impl Kind for Drive {
    type Member = Engine;

    async fn open(self, reactor: &Reactor, number: usize) -> Rc<Engine> {
        let options = FileOptions { create_bytes: Some(DRIVE_BYTES), read_only: false };
        let file = reactor.open_file(&format!("drive {number}"), &options).expect("a simulated disk");
        let rates = Rates { ops_per_s: self.requests_per_s, bytes_per_s: self.bytes_per_s(), burst_ns: 0 };
        let ceiling = ThrottleBlock::new(reactor, Rc::new(Disk(file.clone())), rates);
        let block = Rc::new(Gated::new(reactor, ceiling, Box::new(Window::new(OUTSTANDING_MAX))));
        let options = FormatOptions {
            partitions: 1,
            segment_bytes: None,
            force: false,
            written_ahead: true,
            device_id: [number as u8 + 1; 16],
            hash_secret: number as u64,
            created_ms: 0,
        };
        let superblock = format(&*block, &options).await.expect("a blank disk");
        let options = Options { known_bytes: KNOWN_BYTES, ..Options::default() };
        let partition = Partition::open(reactor, block, &superblock, 0, options).await;
        Rc::new(Engine { file, partition: partition.expect("a formatted disk") })
    }

    fn cost_ns(&self, requests: f64, bytes: f64) -> f64 {
        let of_requests = requests * 1e9 / self.requests_per_s as f64;
        of_requests.max(bytes * 1e9 / self.bytes_per_s() as f64)
    }
}

impl Engine {
    /// What its drive was asked for.
    pub(super) fn stats(&self) -> FileStats {
        self.file.stats()
    }

    /// What the engine counts.
    pub(super) fn metrics(&self) -> PartitionMetrics {
        self.partition.metrics()
    }
}

impl Counted for Engine {
    fn requests(&self) -> u64 {
        self.stats().reads + self.stats().writes
    }

    fn bytes(&self) -> u64 {
        self.stats().read_bytes + self.stats().written_bytes
    }
}

impl Member for Engine {
    fn device(self: Rc<Self>) -> Rc<dyn Device> {
        self.partition.clone()
    }
}

/// A simulated disk with longer blocks.
struct Disk(File);

impl Block for Disk {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        BLOCK_BYTES
    }
    fn read(&self, origin: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        Block::read(&self.0, origin, offset, len)
    }
    fn write(&self, origin: Origin, offset: u64, buf: Rc<Buf>, durable: bool) -> IoFuture<()> {
        Block::write(&self.0, origin, offset, buf, durable)
    }
    fn flush(&self, origin: Origin) -> IoFuture<()> {
        Block::flush(&self.0, origin)
    }
}

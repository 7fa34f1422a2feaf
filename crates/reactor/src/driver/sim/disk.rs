//! A simulated disk: what a device may do to bytes that were not flushed, and worse.
//!
//! Role: keeps two images, what a read sees (live) and what survives power loss (durable), and
//! the writes between them. Place on the path: the end of it, in the simulator.
//!
//! Fault model:
//! * power loss: each write that is not durable survives whole, not at all, or as any subset of
//!   its sectors; survivors land in any order;
//! * a misdirected write lands whole at another place, and its own place keeps the old bytes;
//! * a bit flip changes one durable bit, for good;
//! * a read, write or flush may fail; a failed write may have written any part;
//! * any operation may be slow.
//!
//! A sector (512 bytes) is atomic. What was flushed stays, unless one of the last four faults
//! hits it: an earlier write that was not flushed never comes back over a durable one.

use super::random::Random;
use std::collections::BTreeMap;

/// The atomic unit of the device in bytes.
pub const SECTOR_BYTES: usize = 512;

/// How often each fault strikes, in parts per million of the operations it can strike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Reads that fail.
    pub read_error_ppm: u32,
    /// Writes that fail, having written any part.
    pub write_error_ppm: u32,
    /// Flushes that fail; the writes before them may be lost at power loss.
    pub flush_error_ppm: u32,
    /// Writes that land elsewhere.
    pub misdirect_ppm: u32,
    /// Writes after which a bit of the device flips.
    pub bit_flip_ppm: u32,
    /// Operations that take up to 50 ms.
    pub slow_ppm: u32,
    /// A write path that rates above 0 are at least this high for, so that rare writes are struck too.
    pub aim: Option<(&'static str, u32)>,
}

impl FaultRates {
    /// How often a fault of this rate strikes a write of `path`.
    fn on(&self, rate_ppm: u32, path: &str) -> u32 {
        match self.aim {
            Some((aimed, ppm)) if aimed == path && rate_ppm > 0 => rate_ppm.max(ppm),
            _ => rate_ppm,
        }
    }
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A write lost at power loss.
    Lost,
    /// A write of which a part survived power loss.
    Torn,
    /// A write that survived power loss although an earlier one did not.
    Reordered,
    /// A write that landed elsewhere.
    Misdirected,
    /// A flipped bit.
    BitFlip,
    /// A failed read.
    ReadError,
    /// A failed write.
    WriteError,
    /// A failed flush.
    FlushError,
    /// A slow operation.
    Slow,
}

/// Names the part of the engine that a write belongs to, from its first bytes.
pub type Classify = fn(&[u8]) -> &'static str;

/// Faults injected so far, by kind and write path.
pub type FaultCounts = BTreeMap<(Fault, &'static str), u64>;

#[derive(Clone)]
struct Pending {
    id: u64,
    offset: usize,
    bytes: Vec<u8>,
}

/// One simulated disk.
pub struct Disk {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Writes given to the device and not completed.
    in_flight: Vec<Pending>,
    /// Writes completed and not flushed, oldest first.
    unflushed: Vec<Pending>,
    rates: FaultRates,
    classify: Classify,
    counts: FaultCounts,
    /// Ranges whose durable content a fault has damaged, for checkers: offset and length.
    damage: Vec<(u64, u64)>,
}

impl Disk {
    /// A disk of `bytes` zero bytes.
    #[must_use]
    pub fn new(bytes: usize, classify: Classify) -> Disk {
        assert!(bytes.is_multiple_of(4096));
        Disk {
            live: vec![0; bytes],
            durable: vec![0; bytes],
            in_flight: Vec::new(),
            unflushed: Vec::new(),
            rates: FaultRates::default(),
            classify,
            counts: FaultCounts::new(),
            damage: Vec::new(),
        }
    }

    /// Replaces all that the disk holds, as if it had been written and flushed.
    ///
    /// # Panics
    /// The image has another size than the disk.
    pub fn load(&mut self, image: &[u8]) {
        self.live.copy_from_slice(image);
        self.durable.copy_from_slice(image);
        self.unflushed.clear();
    }

    /// Sets how often faults strike from now on.
    pub fn set_rates(&mut self, rates: FaultRates) {
        self.rates = rates;
    }

    /// The size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.live.len() as u64
    }

    /// What survives power loss now.
    #[must_use]
    pub fn durable(&self) -> &[u8] {
        &self.durable
    }

    /// Faults injected so far.
    #[must_use]
    pub fn counts(&self) -> &FaultCounts {
        &self.counts
    }

    /// Ranges of flushed bytes that a bit flip or a misdirected write has damaged.
    #[must_use]
    pub fn damage(&self) -> &[(u64, u64)] {
        &self.damage
    }

    fn count(&mut self, fault: Fault, bytes: &[u8]) {
        let path = (self.classify)(bytes);
        *self.counts.entry((fault, path)).or_default() += 1;
    }

    /// Latency of the next operation in nanoseconds.
    pub(super) fn latency_ns(&mut self, random: &mut Random, bytes: usize) -> u64 {
        if random.chance_ppm(self.rates.slow_ppm) {
            self.count(Fault::Slow, &[]);
            return random.range(1_000_000, 50_000_000);
        }
        random.range(15_000, 150_000) + bytes as u64 / 2
    }

    pub(super) fn start_write(&mut self, id: u64, offset: u64, bytes: &[u8]) {
        self.in_flight.push(Pending { id, offset: offset as usize, bytes: bytes.to_vec() });
    }

    /// Completes a write; false if it failed.
    pub(super) fn finish_write(&mut self, random: &mut Random, id: u64, durable: bool) -> bool {
        let index = self.in_flight.iter().position(|w| w.id == id).expect("a write completes once");
        let write = self.in_flight.remove(index);
        let path = (self.classify)(&write.bytes);
        let failing_ppm = self.rates.write_error_ppm + if durable { self.rates.flush_error_ppm } else { 0 };
        if random.chance_ppm(self.rates.on(failing_ppm, path)) {
            self.count(Fault::WriteError, &write.bytes);
            for part in surviving_sectors(random, &write) {
                apply(&mut self.live, &part);
                self.unflushed.push(part);
            }
            return false;
        }
        if random.chance_ppm(self.rates.on(self.rates.misdirect_ppm, path)) {
            self.misdirect(random, &write);
            return true;
        }
        apply(&mut self.live, &write);
        if durable {
            self.supersede(write.offset, write.bytes.len());
            apply(&mut self.durable, &write);
        } else {
            self.unflushed.push(write.clone());
        }
        if random.chance_ppm(self.rates.on(self.rates.bit_flip_ppm, path)) {
            self.flip(random, &write);
        }
        true
    }

    /// Flips a bit: of what was just written, where it matters most, or of anything.
    fn flip(&mut self, random: &mut Random, write: &Pending) {
        let at = if random.chance_ppm(500_000) {
            self.count(Fault::BitFlip, &write.bytes);
            write.offset + random.below(write.bytes.len() as u64) as usize
        } else {
            self.count(Fault::BitFlip, &[]);
            random.below(self.live.len() as u64) as usize
        };
        self.flip_bit(at, random.below(8) as u32);
    }

    /// Bytes become durable at once: what was written there before and not flushed is no more.
    fn supersede(&mut self, offset: usize, length: usize) {
        let end = offset + length;
        let mut kept = Vec::new();
        for write in self.unflushed.drain(..) {
            let write_end = write.offset + write.bytes.len();
            if write_end <= offset || write.offset >= end {
                kept.push(write);
                continue;
            }
            let mut keep = |from: usize, to: usize| {
                if from < to {
                    let bytes = write.bytes[from - write.offset..to - write.offset].to_vec();
                    kept.push(Pending { id: write.id, offset: from, bytes });
                }
            };
            keep(write.offset, offset);
            keep(end, write_end);
        }
        self.unflushed = kept;
    }

    fn misdirect(&mut self, random: &mut Random, write: &Pending) {
        self.count(Fault::Misdirected, &write.bytes);
        let room = (self.live.len() - write.bytes.len()) / SECTOR_BYTES;
        let wrong = random.below(room as u64 + 1) as usize * SECTOR_BYTES;
        let elsewhere = Pending { offset: wrong, ..write.clone() };
        self.supersede(wrong, write.bytes.len());
        for image in [&mut self.live, &mut self.durable] {
            apply(image, &elsewhere);
        }
        self.damage.push((wrong as u64, write.bytes.len() as u64));
        self.damage.push((write.offset as u64, write.bytes.len() as u64));
    }

    /// Flips one bit for good.
    pub fn flip_bit(&mut self, at: usize, bit: u32) {
        self.live[at] ^= 1 << bit;
        self.durable[at] ^= 1 << bit;
        self.damage.push((at as u64, 1));
    }

    /// Fills `into` from what a read sees; false if the read failed.
    pub(super) fn read(&mut self, random: &mut Random, offset: u64, into: &mut [u8]) -> bool {
        if random.chance_ppm(self.rates.read_error_ppm) {
            self.count(Fault::ReadError, &[]);
            return false;
        }
        let offset = offset as usize;
        into.copy_from_slice(&self.live[offset..offset + into.len()]);
        true
    }

    /// Number of completed writes a flush that starts now covers.
    pub(super) fn start_flush(&self) -> Vec<u64> {
        self.unflushed.iter().map(|w| w.id).collect()
    }

    /// Completes a flush of the writes named; false if it failed.
    pub(super) fn finish_flush(&mut self, random: &mut Random, covered: &[u64]) -> bool {
        if random.chance_ppm(self.rates.flush_error_ppm) {
            self.count(Fault::FlushError, &[]);
            return false;
        }
        let (flushed, kept): (Vec<_>, Vec<_>) =
            self.unflushed.drain(..).partition(|write| covered.contains(&write.id));
        self.unflushed = kept;
        for write in flushed {
            apply(&mut self.durable, &write);
        }
        true
    }

    /// Power is lost: what was not durable survives in part, in any order.
    pub(super) fn power_loss(&mut self, random: &mut Random) {
        let mut pending: Vec<Pending> = self.unflushed.drain(..).chain(self.in_flight.drain(..)).collect();
        random.shuffle(&mut pending);
        let mut lost_before = false;
        for write in pending {
            let survivors = match random.below(3) {
                0 => vec![write.clone()],
                1 => Vec::new(),
                _ => surviving_sectors(random, &write),
            };
            let survived: usize = survivors.iter().map(|part| part.bytes.len()).sum();
            if survived == 0 {
                self.count(Fault::Lost, &write.bytes);
                lost_before = true;
            } else if survived < write.bytes.len() {
                self.count(Fault::Torn, &write.bytes);
                lost_before = true;
            } else if lost_before {
                self.count(Fault::Reordered, &write.bytes);
            }
            for part in survivors {
                apply(&mut self.durable, &part);
            }
        }
        self.live.copy_from_slice(&self.durable);
    }

    /// The process dies, the machine lives: completed writes stay, those in flight may or may not.
    pub(super) fn process_death(&mut self, random: &mut Random) {
        for write in std::mem::take(&mut self.in_flight) {
            if random.chance_ppm(500_000) {
                apply(&mut self.live, &write);
                self.unflushed.push(write);
            }
        }
    }
}

fn apply(image: &mut [u8], write: &Pending) {
    image[write.offset..write.offset + write.bytes.len()].copy_from_slice(&write.bytes);
}

/// A random subset of a write's sectors.
fn surviving_sectors(random: &mut Random, write: &Pending) -> Vec<Pending> {
    let mut parts = Vec::new();
    for (index, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
        if random.chance_ppm(500_000) {
            let offset = write.offset + index * SECTOR_BYTES;
            parts.push(Pending { id: write.id, offset, bytes: sector.to_vec() });
        }
    }
    parts
}

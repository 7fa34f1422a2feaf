//! The disks of a world: one, or one for each member of its arrays.
//!
//! Place: an era owns them, every life opens them; what happened to all of them is summed up here.
//!
//! Invariants: a disk keeps its ledger for as long as it is used; a disk that another took the place of still
//! counts in what is reported.
//!
//! Never: it decides what fails (`members`).

use super::ledger::{Ledger, WriteCounts};
use super::shape::Shape;
use super::values::{NAME_BYTES, named_blocks};
use plimsoll_reactor::sim::{FaultCounts, FaultRates, Random, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What stands before the partitions of a device.
const FRONT_BYTES: u64 = 64 << 10;

/// Bits that flip at a time, and one more.
const ROT_BITS_MAX: u64 = 13;

/// One disk.
pub(super) struct Disk {
    pub(super) path: String,
    pub(super) ledger: Rc<Ledger>,
    /// As a member of arrays: it has missed nothing, so that it may be the only one that is left.
    pub(super) is_whole: Cell<bool>,
    /// It is not there in this life.
    pub(super) is_missing: Cell<bool>,
    /// It fails in this life, or may.
    pub(super) may_fail: Cell<bool>,
    /// Values on it have rotted since it was formatted, or opened and scrubbed; and in which life they did
    /// last.
    pub(super) is_rotten: Cell<bool>,
    pub(super) rotted_in: Cell<u64>,
    /// In which life it answered again, after it had failed, last: what failed in it is not known to all who
    /// use it before the next one.
    pub(super) recovered_in: Cell<u64>,
    /// What it held at an earlier time, when arrays had been opened so often.
    earlier: RefCell<Option<(u64, Vec<u8>)>>,
}

impl Disk {
    /// True if what it held at an earlier time is kept, and arrays have been opened since.
    pub(super) fn has_earlier(&self, opens: u64) -> bool {
        self.earlier.borrow().as_ref().is_some_and(|(then, _)| *then < opens)
    }

    /// It was formatted: what it held before is another device's.
    pub(super) fn forget_earlier(&self) {
        self.earlier.take();
    }
}

/// All disks of an era.
pub(super) struct Disks {
    world: World,
    shape: Shape,
    era: u64,
    made: u64,
    now: Vec<Rc<Disk>>,
    replaced: Vec<Rc<Disk>>,
}

impl Disks {
    /// Blank disks of the world.
    pub(super) fn new(world: &World, shape: Shape, era: u64) -> Disks {
        let world = world.clone();
        let mut disks = Disks { world, shape, era, made: 0, now: Vec::new(), replaced: Vec::new() };
        disks.now = (0..shape.members).map(|_| disks.make()).collect();
        disks
    }

    fn make(&mut self) -> Rc<Disk> {
        let (era, made) = (self.era, self.made);
        let path = if self.shape.members == 1 { format!("disk-{era}") } else { format!("disk-{era}-{made}") };
        self.made += 1;
        self.world.add_disk(&path, self.shape.disk_bytes());
        let partition_bytes = self.shape.segments * self.shape.segment_bytes;
        let ledger = Ledger::new(&self.world, &path, (FRONT_BYTES, partition_bytes));
        let [is_whole, is_missing, may_fail, is_rotten] = [true, false, false, false].map(Cell::new);
        let (rotted_in, recovered_in, earlier) = (Cell::new(0), Cell::new(u64::MAX), RefCell::new(None));
        Rc::new(Disk {
            path,
            ledger,
            is_whole,
            is_missing,
            may_fail,
            is_rotten,
            rotted_in,
            recovered_in,
            earlier,
        })
    }

    /// Puts a blank disk in the place of another.
    pub(super) fn replace(&mut self, member: usize) {
        let blank = self.make();
        blank.is_whole.set(false);
        self.replaced.push(std::mem::replace(&mut self.now[member], blank));
    }

    pub(super) fn all(&self) -> &[Rc<Disk>] {
        &self.now
    }

    pub(super) fn ledgers(&self) -> Vec<Rc<Ledger>> {
        self.now.iter().map(|disk| disk.ledger.clone()).collect()
    }

    pub(super) fn set_rates(&self, member: usize, rates: FaultRates) {
        self.world.with_disk(&self.now[member].path, |disk| disk.set_rates(rates));
    }

    /// Keeps what a disk holds, to put it back later.
    pub(super) fn keep_earlier(&self, member: usize, opens: u64) {
        let disk = &self.now[member];
        let held = self.world.with_disk(&disk.path, |disk| disk.durable().to_vec());
        *disk.earlier.borrow_mut() = Some((opens, held));
    }

    /// Puts back what a disk held at an earlier time.
    pub(super) fn put_back(&self, member: usize) {
        let disk = &self.now[member];
        let (_, held) = disk.earlier.take().expect("it was asked for");
        self.world.with_disk(&disk.path, |disk| disk.load(&held));
    }

    /// Flips a few bits of values that stand on a disk; how many. Where the log has nothing else that says
    /// that they were written they stay: a device that loses those lies.
    pub(super) fn rot(&self, member: usize, plan: &mut Random) -> u64 {
        let disk = &self.now[member];
        let values = self.world.with_disk(&disk.path, |disk| named_blocks(disk.durable()));
        if values.is_empty() {
            return 0;
        }
        let mut flips = 0;
        for _ in 0..plan.range(1, ROT_BITS_MAX) {
            let at = values[plan.below(values.len() as u64) as usize] + plan.below(NAME_BYTES) as usize;
            let bit = plan.below(8) as u32;
            if disk.ledger.is_proved(at as u64) {
                self.world.with_disk(&disk.path, |disk| disk.flip_bit(at, bit));
                flips += 1;
            }
        }
        flips
    }

    /// Writes of a path that were begun, on all disks.
    pub(super) fn count(&self, path: &str) -> u64 {
        self.now.iter().map(|disk| disk.ledger.count(path)).sum()
    }

    pub(super) fn was_damaged(&self) -> bool {
        self.now.iter().any(|disk| disk.ledger.was_damaged())
    }

    /// The damage that is there now, for a trace.
    pub(super) fn describe(&self) -> String {
        self.now.iter().map(|disk| disk.ledger.describe()).collect::<Vec<_>>().join("; ")
    }

    /// From when on acknowledged writes may be lost, if damage excuses that.
    pub(super) fn excused_since(&self) -> Option<u64> {
        self.now.iter().filter_map(|disk| disk.ledger.excused_since()).min()
    }

    /// The partitions are open: what they recovered is proved by the new log.
    pub(super) fn opened(&self) {
        self.now.iter().for_each(|disk| disk.ledger.opened());
    }

    fn ever(&self) -> impl Iterator<Item = &Rc<Disk>> {
        self.replaced.iter().chain(&self.now)
    }

    /// Faults by kind and write path.
    pub(super) fn faults(&self) -> FaultCounts {
        let mut sum = FaultCounts::new();
        for disk in self.ever() {
            for (fault, count) in self.world.with_disk(&disk.path, |disk| disk.counts().clone()) {
                *sum.entry(fault).or_default() += count;
            }
        }
        sum
    }

    /// Writes by path.
    pub(super) fn writes(&self) -> WriteCounts {
        let mut sum = WriteCounts::new();
        for disk in self.ever() {
            for (path, count) in disk.ledger.writes.borrow().iter() {
                *sum.entry(path).or_default() += count;
            }
        }
        sum
    }
}

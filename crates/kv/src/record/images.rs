//! Images of a device at instants of a recorded run.
//!
//! What was durable at an instant stands; of each other write that had begun, all, nothing or any
//! of its sectors. Where writes meet in a sector, the one that ended later wins, and one that had
//! not ended may win over all.

use super::Event;
use plimsoll_reactor::sim::{Random, SECTOR_BYTES};
use std::collections::BTreeMap;
use std::rc::Rc;

struct Write {
    offset: usize,
    bytes: Rc<Vec<u8>>,
    durable: bool,
    /// When it ended, counted in events; `u64::MAX` while it has not, or failed.
    ended: u64,
}

/// A walk through a recorded run.
pub struct Images {
    base: Vec<u8>,
    /// For each sector of the base: when the write ended that it holds.
    newest: Vec<u64>,
    /// Begun, and not known to be durable.
    pending: BTreeMap<u64, Write>,
    /// Flushes under way, each with the writes that it covers.
    flushes: BTreeMap<u64, Vec<u64>>,
    position: u64,
}

impl Images {
    /// Before the first event, on a device of zeros.
    ///
    /// # Panics
    /// The size is no multiple of a sector.
    #[must_use]
    pub fn new(bytes: usize) -> Images {
        assert!(bytes.is_multiple_of(SECTOR_BYTES));
        Images {
            base: vec![0; bytes],
            newest: vec![0; bytes / SECTOR_BYTES],
            pending: BTreeMap::new(),
            flushes: BTreeMap::new(),
            position: 0,
        }
    }

    /// Goes over the next event.
    ///
    /// # Panics
    /// The events are not those of a run, in their order.
    pub fn step(&mut self, event: &Event) {
        self.position += 1;
        match event {
            Event::WriteBegan { write, offset, bytes, durable } => {
                let bytes = Rc::new(bytes.clone());
                let begun = Write { offset: *offset as usize, bytes, durable: *durable, ended: u64::MAX };
                assert!(self.pending.insert(*write, begun).is_none(), "a write begins once");
            }
            Event::WriteEnded { write, succeeded: true } => {
                let ended = self.pending.get_mut(write).expect("it began");
                ended.ended = self.position;
                if ended.durable {
                    self.settle(*write);
                }
            }
            Event::FlushBegan { flush } => {
                let ended = self.pending.iter().filter(|(_, write)| write.ended != u64::MAX);
                self.flushes.insert(*flush, ended.map(|(number, _)| *number).collect());
            }
            Event::FlushEnded { flush, succeeded } => {
                let covered = self.flushes.remove(flush).expect("it began");
                for write in covered.into_iter().filter(|_| *succeeded) {
                    // Another flush may have settled it.
                    if self.pending.contains_key(&write) {
                        self.settle(write);
                    }
                }
            }
            // Any part of it may stand, now or whenever the device sees fit.
            Event::WriteEnded { succeeded: false, .. } => {}
        }
    }

    /// Writes that had begun and may be lost.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn settle(&mut self, write: u64) {
        let write = self.pending.remove(&write).expect("asked of a pending write");
        for (index, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
            let at = write.offset / SECTOR_BYTES + index;
            if self.newest[at] <= write.ended {
                self.newest[at] = write.ended;
                self.base[at * SECTOR_BYTES..][..sector.len()].copy_from_slice(sector);
            }
        }
    }

    /// What power loss now might leave: one of the many images.
    #[must_use]
    pub fn cut(&self, random: &mut Random) -> Vec<u8> {
        let mut image = self.base.clone();
        let mut pending: Vec<&Write> = self.pending.values().collect();
        random.shuffle(&mut pending);
        // A stable sort: those that have not ended stay in random order, behind the others.
        pending.sort_by_key(|write| write.ended);
        for write in pending {
            let fate = random.below(3);
            for (index, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
                let at = write.offset / SECTOR_BYTES + index;
                let survives = fate == 0 || fate == 1 && random.below(2) == 0;
                if survives && self.newest[at] <= write.ended {
                    image[at * SECTOR_BYTES..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }
}

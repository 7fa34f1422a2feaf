//! Who has to go: SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi: SIEVE is Simpler than LRU, NSDI 2024).
//!
//! Role: the order of the entries of a table. Entries stand in the order in which they came; a hit only
//! marks its entry, so that it costs one byte. A hand goes from the oldest to the newest and round again:
//! it takes the mark of those who have one, and lets go of the first who has none. New entries that nobody
//! asks for again go soon; those asked for stay where they are.
//!
//! Invariants: the hand stands at an entry of the queue or nowhere; a search looks at a bounded number of
//! entries, and then takes the next whether it is marked or not.
//!
//! Never: a hit changes the order.

use super::{NONE, Slot, Table};

/// Entries that one search passes at most: a hit ratio hardly notices, and no request waits for a walk
/// through all of a large cache.
pub(super) const PASSED_MAX: usize = 256;

/// The ends of the queue, and the hand.
pub(super) struct Queue {
    newest: u32,
    oldest: u32,
    hand: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { newest: NONE, oldest: NONE, hand: NONE }
    }
}

impl Table {
    /// Puts a new entry at the end.
    pub(super) fn enqueue(&mut self, slot: u32) {
        let before = std::mem::replace(&mut self.queue.newest, slot);
        self.slot_mut(slot).older = before;
        match before {
            NONE => self.queue.oldest = slot,
            before => self.slot_mut(before).newer = slot,
        }
    }

    /// Takes an entry out.
    pub(super) fn dequeue(&mut self, slot: u32) {
        let Slot { newer, older, .. } = *self.slot(slot);
        match newer {
            NONE => self.queue.newest = older,
            newer => self.slot_mut(newer).older = older,
        }
        match older {
            NONE => self.queue.oldest = newer,
            older => self.slot_mut(older).newer = newer,
        }
        if self.queue.hand == slot {
            self.queue.hand = newer;
        }
    }

    /// Who goes next, if there is anybody.
    pub(super) fn victim(&mut self) -> Option<u32> {
        let mut passed = 0;
        loop {
            let slot = match self.queue.hand {
                NONE => self.queue.oldest,
                hand => hand,
            };
            if slot == NONE {
                return None;
            }
            self.queue.hand = slot;
            let entry = self.slot_mut(slot);
            if !entry.visited || passed == PASSED_MAX {
                return Some(slot);
            }
            entry.visited = false;
            passed += 1;
            self.queue.hand = entry.newer;
        }
    }
}

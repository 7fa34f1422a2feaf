//! Long blocks of memory that nobody needs any more, given back a slice each turn.
//!
//! Role: to give back what a client held who is cut in the middle of a long command takes the system
//! milliseconds, for which all others of the core would wait. Place on the path: beside it.
//!
//! Invariants:
//! * the more waits, the more goes each turn: no more waits than what [`TURNS`] turns discard;
//! * only what was used is given back by slices: the rest of a block is address space;
//! * while anything waits the core does not sleep.

use crate::limits::BULK_BYTES_PER_TURN;
use crate::memory;
use std::collections::VecDeque;

/// A turn gives back one part in so many of what waits.
const TURNS: usize = 128;

/// A block, and how far it was used and not given back yet.
struct Block {
    memory: Vec<u8>,
    used: usize,
}

/// Blocks, in the order in which they were discarded.
#[derive(Default)]
pub(crate) struct Remains {
    blocks: VecDeque<Block>,
    waiting_bytes: usize,
}

impl Remains {
    /// Takes a block of which so many bytes were used; a short one goes at once.
    pub(crate) fn discard(&mut self, mut memory: Vec<u8>, used: usize) {
        let used = used.min(memory.capacity());
        if used > BULK_BYTES_PER_TURN {
            memory.clear();
            self.waiting_bytes += used;
            self.blocks.push_back(Block { memory, used });
        }
    }

    /// Gives the next slice back; false if there is none.
    pub(crate) fn give_back_slice(&mut self) -> bool {
        let mut slice = BULK_BYTES_PER_TURN.max(self.waiting_bytes / TURNS);
        let has_some = !self.blocks.is_empty();
        while slice > 0
            && let Some(block) = self.blocks.front_mut()
        {
            let bytes = slice.min(block.used);
            let end = block.used;
            block.used -= bytes;
            memory::give_back_spare(&mut block.memory, block.used..end);
            (slice, self.waiting_bytes) = (slice - bytes, self.waiting_bytes - bytes);
            if block.used == 0 {
                self.blocks.pop_front();
            }
        }
        has_some
    }

    /// All of it at once.
    pub(crate) fn clear(&mut self) {
        *self = Remains::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: usize = BULK_BYTES_PER_TURN;

    /// Turns until nothing waits.
    fn turns(remains: &mut Remains) -> usize {
        std::iter::from_fn(|| remains.give_back_slice().then_some(())).count()
    }

    #[test]
    fn a_slice_of_the_oldest_each_turn_and_short_blocks_at_once() {
        let mut remains = Remains::default();
        remains.discard(vec![1; SLICE], SLICE);
        assert!(!remains.give_back_slice(), "it was short");
        remains.discard(vec![2; 3 * SLICE + 1], 3 * SLICE + 1);
        remains.discard(vec![3; SLICE + 1], SLICE + 1);
        assert_eq!((turns(&mut remains), remains.waiting_bytes), (5, 0));
    }

    /// One of 64 MiB of which 1 MiB was used took 512 turns, while others came (found by a reader).
    #[test]
    fn what_was_not_used_takes_no_turns() {
        let mut remains = Remains::default();
        remains.discard(Vec::with_capacity(512 * SLICE), 8 * SLICE);
        assert_eq!(turns(&mut remains), 8);
    }

    #[test]
    fn the_more_waits_the_more_goes() {
        let mut remains = Remains::default();
        let mut most = 0;
        for _ in 0..10 * TURNS {
            remains.discard(Vec::with_capacity(2 * SLICE), 2 * SLICE);
            remains.discard(Vec::with_capacity(2 * SLICE), 2 * SLICE);
            remains.give_back_slice();
            most = most.max(remains.waiting_bytes);
        }
        assert!(most <= TURNS * 4 * SLICE, "{most} bytes wait");
    }
}

//! Long blocks of memory that nobody needs any more, given back a slice each turn.
//!
//! Role: to give back what a client held who is cut in the middle of a long command takes the system
//! milliseconds, for which all others of the core would wait. Place on the path: beside it.
//!
//! Invariants: a turn gives back at least as much as it receives for long values
//! ([`BULK_BYTES_PER_TURN`]), so what waits here never adds to what the process holds at most; while
//! anything waits the core does not sleep.

use crate::limits::BULK_BYTES_PER_TURN;
use crate::memory;
use std::collections::VecDeque;

/// Blocks, in the order in which they were discarded.
#[derive(Default)]
pub(crate) struct Remains {
    blocks: VecDeque<Vec<u8>>,
    /// Bytes of the first that are given back.
    given_back: usize,
}

impl Remains {
    /// A short block goes at once.
    pub(crate) fn discard(&mut self, mut block: Vec<u8>) {
        if block.capacity() > BULK_BYTES_PER_TURN {
            block.clear();
            self.blocks.push_back(block);
        }
    }

    /// Gives the next slice back; false if there is none.
    pub(crate) fn give_back_slice(&mut self) -> bool {
        let Some(block) = self.blocks.front_mut() else { return false };
        let end = (self.given_back + BULK_BYTES_PER_TURN).min(block.capacity());
        memory::give_back_spare(block, self.given_back..end);
        self.given_back = end;
        if end == block.capacity() {
            self.blocks.pop_front();
            self.given_back = 0;
        }
        true
    }

    /// All of it at once.
    pub(crate) fn clear(&mut self) {
        *self = Remains::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_the_oldest_block_each_turn_and_short_ones_at_once() {
        let mut remains = Remains::default();
        remains.discard(vec![1; BULK_BYTES_PER_TURN]);
        assert!(!remains.give_back_slice(), "it was short");
        remains.discard(vec![2; 3 * BULK_BYTES_PER_TURN + 1]);
        remains.discard(vec![3; BULK_BYTES_PER_TURN + 1]);
        let slices = std::iter::from_fn(|| remains.give_back_slice().then_some(remains.blocks.len()));
        assert_eq!(slices.collect::<Vec<_>>(), [2, 2, 2, 1, 1, 0]);
    }
}

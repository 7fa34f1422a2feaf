//! The sparse index of a run: for each of its blocks a separator, in memory.
//!
//! Role: tells which block of a run may hold a name. Place on the path: the first step of a
//! listing, before the device is read.
//!
//! A separator is the shortest beginning of a block's first name that tells it from the last name
//! before, cut at [`SEPARATOR_BYTES_MAX`]. Separators share beginnings with their neighbours: only
//! what differs is kept, whole again at every [`GROUP`]th. So a block of some hundred keys costs
//! some 20 bytes.
//!
//! Invariant: a separator is not above its block's first name, and, unless it was cut, above every
//! name before that block.

use super::block::{Extent, common_bytes};

/// Bytes of a separator. Longer ones are cut: then a search may have to look at blocks.
pub(crate) const SEPARATOR_BYTES_MAX: usize = 256;
/// Separators from one that is kept whole to the next.
const GROUP: usize = 16;

/// Separators and places of the blocks of a run.
#[derive(Default)]
pub(crate) struct Sparse {
    /// Where each group begins in `separators`.
    groups: Vec<u32>,
    /// For each separator: bytes shared with the one before, bytes of the rest, the rest.
    separators: Vec<u8>,
    positions: Vec<u32>,
    lengths: Vec<u16>,
    last: Vec<u8>,
}

/// The separator of a block between the name before it and its first name.
pub(crate) fn separator<'a>(before: &[u8], first: &'a [u8]) -> &'a [u8] {
    let length = (common_bytes(before, first) + 1).min(first.len());
    &first[..length.min(SEPARATOR_BYTES_MAX)]
}

impl Sparse {
    /// Appends a block. Separators come in order; that of the first block is empty.
    pub(crate) fn push(&mut self, separator: &[u8], extent: Extent) {
        assert!(separator.len() <= SEPARATOR_BYTES_MAX);
        let whole = self.positions.len().is_multiple_of(GROUP);
        if whole {
            self.groups.push(self.separators.len() as u32);
        }
        let shared = if whole { 0 } else { common_bytes(&self.last, separator) };
        self.separators.extend_from_slice(&(shared as u16).to_le_bytes());
        self.separators.extend_from_slice(&((separator.len() - shared) as u16).to_le_bytes());
        self.separators.extend_from_slice(&separator[shared..]);
        self.positions.push(extent.position);
        self.lengths.push(extent.blocks);
        self.last.clear();
        self.last.extend_from_slice(separator);
    }

    /// Blocks.
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Where a block is.
    pub(crate) fn extent(&self, block: usize) -> Extent {
        Extent { position: self.positions[block], blocks: self.lengths[block] }
    }

    /// Gives back the memory that growing left over.
    pub(crate) fn shrink(&mut self) {
        self.groups.shrink_to_fit();
        self.separators.shrink_to_fit();
        self.positions.shrink_to_fit();
        self.lengths.shrink_to_fit();
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.groups.capacity() * 4
            + self.separators.capacity()
            + self.positions.capacity() * 4
            + self.lengths.capacity() * 2) as u64
    }

    /// The blocks in which the last name not above `name` may stand, first and last: one block,
    /// unless separators were cut.
    pub(crate) fn candidates(&self, name: &[u8]) -> (usize, usize) {
        let last = self.rank(name, true).saturating_sub(1);
        let separator = self.separator(last);
        if separator.len() < SEPARATOR_BYTES_MAX || !name.starts_with(&separator) {
            return (last, last);
        }
        (self.rank(&separator, false).saturating_sub(1), last)
    }

    /// Separators below `name`, or not above it.
    fn rank(&self, name: &[u8], equal: bool) -> usize {
        let counts = |separator: &[u8]| if equal { separator <= name } else { separator < name };
        let groups = self.groups.partition_point(|at| counts(self.step(*at as usize).1));
        if groups == 0 {
            return 0;
        }
        let first = (groups - 1) * GROUP;
        let mut count = 0;
        self.walk(first, |separator| {
            let below = counts(separator);
            count += usize::from(below);
            below
        });
        first + count
    }

    /// The separator of a block.
    pub(crate) fn separator(&self, block: usize) -> Vec<u8> {
        let mut left = block % GROUP;
        let mut found = Vec::new();
        self.walk(block - left, |separator| {
            if left == 0 {
                found = separator.to_vec();
                return false;
            }
            left -= 1;
            true
        });
        found
    }

    /// Visits the separators of the group that begins with block `first`, while asked for more.
    fn walk(&self, first: usize, mut visit: impl FnMut(&[u8]) -> bool) {
        let Some(start) = self.groups.get(first / GROUP) else { return };
        let mut at = *start as usize;
        let mut separator = Vec::new();
        for _ in first..self.len().min(first + GROUP) {
            let (shared, rest, end) = self.step(at);
            separator.truncate(shared);
            separator.extend_from_slice(rest);
            at = end;
            if !visit(&separator) {
                return;
            }
        }
    }

    /// Shared bytes, the rest, and the end of the separator that begins at `at`.
    fn step(&self, at: usize) -> (usize, &[u8], usize) {
        let word = |at: usize| u16::from_le_bytes([self.separators[at], self.separators[at + 1]]);
        let end = at + 4 + usize::from(word(at + 2));
        (usize::from(word(at)), &self.separators[at + 4..end], end)
    }
}

#[cfg(test)]
#[path = "sparse_tests.rs"]
mod tests;

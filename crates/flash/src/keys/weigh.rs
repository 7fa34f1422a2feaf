//! Weighing: what merging all runs would leave, found by reading them.
//!
//! Place on the path: in the background, where there is no room for a merge of all runs that might leave
//! everything, and many names are deletes. Long keys that come and go on a nearly full device would else
//! hold their room for good: the merge that gives it back would wait for more than there is.
//!
//! Invariants: what is said to be left is never less than the names that a merge writes: merges of some runs
//! add nothing to it, and what was flushed since counts whole; runs are read again only after a quarter of
//! what was read has been flushed.

use super::Keys;
use super::block::ENTRY_OVERHEAD_BYTES;

/// What merging all runs would leave, as it was when they were read.
#[derive(Clone, Copy)]
pub(crate) struct Weighed {
    left_bytes: u64,
    read_bytes: u64,
    /// Bytes that had been flushed when that began.
    flushed_bytes: u64,
}

impl Weighed {
    /// A name would be left.
    pub(crate) fn add(&mut self, name: &[u8]) {
        self.left_bytes += (name.len() + ENTRY_OVERHEAD_BYTES) as u64;
    }
}

impl Keys {
    /// Begins to weigh all runs, of so many bytes.
    pub(crate) fn begin_weighing(&self, read_bytes: u64) -> Weighed {
        Weighed { left_bytes: 0, read_bytes, flushed_bytes: self.flushed_bytes.get() }
    }

    /// Bytes flushed since the runs were weighed.
    fn flushed_since(&self, weighed: &Weighed) -> u64 {
        self.flushed_bytes.get() - weighed.flushed_bytes
    }

    /// Bytes that merging all runs, of so many bytes, leaves at most.
    pub(crate) fn left_bytes_max(&self, bytes: u64) -> u64 {
        let known = self.weighed.get().map(|weighed| weighed.left_bytes + self.flushed_since(&weighed));
        known.map_or(bytes, |known| known.min(bytes))
    }

    /// Whether reading all runs may tell more than is known of what they would leave.
    pub(crate) fn is_worth_weighing(&self) -> bool {
        self.weighed.get().is_none_or(|weighed| self.flushed_since(&weighed) > weighed.read_bytes / 4)
    }
}

//! Which records were read lately: the second chance of those that eviction would take.
//!
//! Role: one bit for [`UNITS_PER_MARK`] units of the partition, set by the reads of requests and taken by
//! the hand of eviction (CLOCK, Corbató 1968, over records in the order of their segments). Place on the
//! path: one load and one store of a word after a read; without eviction there are no words, and a read
//! compares a length.
//!
//! Invariants: a segment that is opened has no marks; what is moved takes its mark along.
//!
//! Never: a mark decides anything but who goes first. Records shorter than what one bit stands for share it.

use crate::format::UNIT_BYTES;
use std::cell::Cell;

/// Units that one bit stands for: 256 bytes, so that a terabyte takes half a gigabyte of memory.
const UNITS_PER_MARK: u64 = 16;

/// Bytes of memory that the marks of a device of so many bytes take.
#[must_use]
pub fn mark_bytes(device_bytes: u64) -> u64 {
    device_bytes / (UNIT_BYTES * UNITS_PER_MARK * 8)
}

/// Marks of a partition; none if the device does not evict.
#[derive(Default)]
pub(crate) struct Marks {
    words: Box<[Cell<u64>]>,
}

impl Marks {
    /// Room for the marks of so many units.
    pub(crate) fn of_units(units: u64) -> Marks {
        let words = units.div_ceil(UNITS_PER_MARK * 64) as usize;
        Marks { words: vec![Cell::new(0); words].into_boxed_slice() }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    fn word(&self, location: u64) -> Option<(&Cell<u64>, u64)> {
        let mark = location / UNITS_PER_MARK;
        Some((self.words.get((mark / 64) as usize)?, 1 << (mark % 64)))
    }

    /// What stands at a location was read.
    pub(crate) fn set(&self, location: u64) {
        if let Some((word, bit)) = self.word(location) {
            word.set(word.get() | bit);
        }
    }

    /// Whether what stands at a location was read since it was last forgotten.
    pub(crate) fn is_set(&self, location: u64) -> bool {
        self.word(location).is_some_and(|(word, bit)| word.get() & bit != 0)
    }

    /// Forgets the marks of a segment.
    pub(crate) fn forget(&self, segment: u32, units_per_segment: u64) {
        let first = (u64::from(segment) * units_per_segment / UNITS_PER_MARK / 64) as usize;
        let count = (units_per_segment / UNITS_PER_MARK / 64) as usize;
        self.words.iter().skip(first).take(count).for_each(|word| word.set(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_set_and_forgotten_by_segment() {
        let units = (64 << 10) / 16;
        let marks = Marks::of_units(3 * units);
        assert_eq!(marks.bytes(), 3 * (64 << 10) / 256 / 8);
        for location in [units - 1, units, 2 * units - 1, 2 * units] {
            assert!(!marks.is_set(location));
            marks.set(location);
            assert!(marks.is_set(location));
        }
        marks.forget(1, units);
        let left = [units - 1, units, 2 * units - 1, 2 * units].map(|location| marks.is_set(location));
        assert_eq!(left, [true, false, false, true]);
    }

    #[test]
    fn without_room_nothing_is_marked() {
        let marks = Marks::default();
        marks.set(7);
        marks.forget(1, 4096);
        assert!(!marks.is_set(7) && marks.bytes() == 0);
    }
}

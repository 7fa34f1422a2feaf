//! Short records that were written lately, as they stand on flash.
//!
//! Role: who looks at one of them reads nothing: a counter that goes up again, the few bytes that tell where
//! something else is. Place on the path: a read of a record, between the frames in memory and the flash.
//!
//! The memory is given once and does not grow. A record has a row of cells, and takes an empty one, or that
//! of the oldest; one that is replaced leaves its cell.
//!
//! Invariants:
//! * a record is known by its location and the sequence of its segment, which no two records share: what
//!   stands in a cell is right for ever, and nothing has to be forgotten;
//! * what is given is proved like what is read, by the record's own checksums.
//!
//! Never: it answers who wants to know what stands on flash (a scrub, cleaning, `verify`), nor after a
//! restart.

/// Bytes of the longest record: a counter, a flag, a short text, under a usual key.
pub(crate) const RECENT_BYTES_MAX: usize = 176;
/// Cells of a row.
const CELLS: usize = 4;

/// Where a record stands: its segment's sequence, which grows, and its location, which grows within it.
type Name = (u64, u64);

/// No record: no location is 0.
const EMPTY: Name = (0, 0);

#[derive(Clone, Copy)]
struct Cell {
    name: Name,
    bytes: [u8; RECENT_BYTES_MAX],
}

/// The records.
pub(crate) struct Recent {
    rows: Vec<[Cell; CELLS]>,
}

impl Recent {
    /// Room in so many bytes.
    pub(crate) fn of_bytes(bytes: usize) -> Recent {
        let row = [Cell { name: EMPTY, bytes: [0; RECENT_BYTES_MAX] }; CELLS];
        Recent { rows: vec![row; bytes / size_of_val(&row)] }
    }

    /// Keeps a record that was just written, if it is short. It takes the place of the oldest of its row.
    pub(crate) fn note(&mut self, sequence: u64, location: u64, record: &[u8]) {
        let Some(row) = self.row(location).filter(|_| record.len() <= RECENT_BYTES_MAX) else { return };
        let cells = &mut self.rows[row];
        let oldest = (0..CELLS).min_by_key(|cell| cells[*cell].name).expect("a row has cells");
        cells[oldest].name = (sequence, location);
        cells[oldest].bytes[..record.len()].copy_from_slice(record);
    }

    /// A record of so many bytes was replaced: nobody looks at it again.
    pub(crate) fn leave(&mut self, sequence: u64, location: u64, bytes: u64) {
        if let Some((row, cell)) = self.find(sequence, location, bytes) {
            self.rows[row][cell].name = EMPTY;
        }
    }

    /// A record of so many bytes, if it is here.
    pub(crate) fn get(&self, sequence: u64, location: u64, bytes: u64) -> Option<&[u8]> {
        let (row, cell) = self.find(sequence, location, bytes)?;
        Some(&self.rows[row][cell].bytes[..bytes as usize])
    }

    /// The row and the cell of a record. Of a long one memory is not even looked at.
    fn find(&self, sequence: u64, location: u64, bytes: u64) -> Option<(usize, usize)> {
        let row = self.row(location).filter(|_| bytes <= RECENT_BYTES_MAX as u64)?;
        let cell = self.rows[row].iter().position(|cell| cell.name == (sequence, location))?;
        Some((row, cell))
    }

    fn row(&self, location: u64) -> Option<usize> {
        let mixed = location.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let row = (u128::from(mixed) * self.rows.len() as u128) >> 64;
        (!self.rows.is_empty()).then_some(row as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(location: u64) -> Vec<u8> {
        vec![location as u8; 16 + location as usize % (RECENT_BYTES_MAX - 15)]
    }

    #[test]
    fn short_records_are_given_back_and_long_ones_are_not_kept() {
        let mut recent = Recent::of_bytes(1 << 20);
        let lengths: Vec<usize> = (1..=800).map(|location| record(location).len()).collect();
        assert!(lengths.contains(&16) && lengths.contains(&RECENT_BYTES_MAX));
        (1..=800).for_each(|location| recent.note(7, location, &record(location)));
        recent.note(7, 900, &[1; RECENT_BYTES_MAX + 1]);
        for location in 1..=800 {
            let expected = record(location);
            assert_eq!(recent.get(7, location, expected.len() as u64), Some(&expected[..]));
            assert_eq!(recent.get(8, location, 16), None, "the segment was given back and opened again");
        }
        assert_eq!(recent.get(7, 900, 177), None);
        assert_eq!(recent.get(7, 1, 177), None, "a length that no record here has");
        recent.leave(7, 5, 22);
        assert_eq!((recent.get(7, 5, 16), recent.get(7, 6, 16).is_some()), (None, true));
    }

    /// Ten times as many as there is room for: of the newest as many as half the room are there, nearly all.
    #[test]
    fn the_oldest_go_first_and_the_memory_does_not_grow() {
        let mut recent = Recent::of_bytes(1 << 20);
        let room = (recent.rows.len() * CELLS) as u64;
        assert!(recent.rows.len() * size_of::<[Cell; CELLS]>() <= 1 << 20 && room > 5_000);
        let record = |location: u64| location.to_le_bytes();
        for location in 1..=10 * room {
            recent.note(1 + location / 1000, location, &record(location));
        }
        let newest = 10 * room - room / 2 + 1..=10 * room;
        let there = newest.clone().filter(|location| recent.get(1 + location / 1000, *location, 8).is_some());
        assert!(there.count() as u64 > newest.clone().count() as u64 * 85 / 100);
        let all = (1..=10 * room).filter_map(|location| {
            recent.get(1 + location / 1000, location, 8).map(|bytes| (location, bytes.to_vec()))
        });
        all.for_each(|(location, bytes)| assert_eq!(bytes, record(location)));
    }

    #[test]
    fn without_memory_nothing_is_kept() {
        let mut recent = Recent::of_bytes(100);
        recent.note(1, 2, &[3; 16]);
        recent.leave(1, 2, 16);
        assert_eq!(recent.get(1, 2, 16), None);
    }
}

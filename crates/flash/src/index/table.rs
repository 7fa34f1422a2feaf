//! The table of one slot: entries sorted by fingerprint, with gaps.
//!
//! Role: what is done to the cells of a table, wherever they stand. An entry stands at or after its home
//! `fingerprint x homes / 2^40`; cells past the last home take what overflows at the end.
//!
//! Invariants: no empty cell stands between an entry's home and the entry. Never: it knows where a table
//! stands.

use super::pool::{Place, Placed};
use super::{FINGERPRINT_BITS, Packed};

pub(super) const EMPTY: Packed = Packed([0; 3]);
/// The first table of a slot has so many homes.
const HOMES_LEAST: u32 = 4;

/// What is known of a slot's table beside its cells.
#[derive(Clone, Copy, Default)]
pub(super) struct Table {
    pub(super) place: Place,
    pub(super) count: u32,
    /// Homes are spread over this many cells; the rest takes what overflows at the end.
    pub(super) homes: u32,
}

impl Placed for Table {
    fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }
}

impl Table {
    pub(super) fn is_full(&self) -> bool {
        u64::from(self.count) * 10 >= u64::from(self.homes) * 9
    }

    /// True if so much is empty that less memory would do, and a good many keys more would fit there.
    pub(super) fn is_sparse(&self) -> bool {
        let is_large = self.homes > HOMES_LEAST;
        self.count == 0 || is_large && u64::from(self.count) * 10 < u64::from(self.homes) * 6
    }

    /// Homes of the next larger table.
    pub(super) fn homes_grown(&self) -> usize {
        (self.homes as usize + self.homes as usize / 8).max((self.homes + HOMES_LEAST) as usize)
    }

    /// Homes of a table that is sparse no more.
    pub(super) fn homes_shrunk(&self) -> usize {
        (self.count as usize * 4 / 3).max(HOMES_LEAST as usize)
    }
}

/// Cells past the last home: more would be most of a short table.
fn overflow_cells(homes: usize) -> usize {
    (homes / 4 + 2).min(8 + homes / 64)
}

pub(super) fn home(homes: u32, fingerprint: u64) -> usize {
    ((u128::from(fingerprint) * u128::from(homes)) >> FINGERPRINT_BITS) as usize
}

/// The first cell at or after the home that is empty or has a fingerprint not below.
pub(super) fn lower_bound(cells: &[Packed], homes: u32, fingerprint: u64) -> usize {
    let mut at = home(homes, fingerprint);
    while at < cells.len() && !cells[at].is_empty() && cells[at].fingerprint() < fingerprint {
        at += 1;
    }
    at
}

pub(super) fn position(cells: &[Packed], homes: u32, fingerprint: u64, location: u64) -> Option<usize> {
    let mut at = lower_bound(cells, homes, fingerprint);
    while let Some(cell) = cells.get(at) {
        if cell.is_empty() || cell.fingerprint() != fingerprint {
            return None;
        }
        if cell.location() == location {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Puts an entry in order; false if the cells run out at the end.
pub(super) fn insert(cells: &mut [Packed], homes: u32, packed: Packed) -> bool {
    let at = lower_bound(cells, homes, packed.fingerprint());
    let Some(free) = (at..cells.len()).find(|at| cells[*at].is_empty()) else { return false };
    cells.copy_within(at..free, at + 1);
    cells[at] = packed;
    true
}

/// Takes an entry out and closes the gap, so that no probe is cut short.
pub(super) fn remove(cells: &mut [Packed], homes: u32, at: usize) {
    let mut gap = at;
    loop {
        cells[gap] = EMPTY;
        let next = gap + 1;
        if next >= cells.len() || cells[next].is_empty() || home(homes, cells[next].fingerprint()) > gap {
            break;
        }
        cells[gap] = cells[next];
        gap = next;
    }
}

/// Lays entries, given in the order of fingerprints, out as the cells of a table with so many homes, or with
/// as many more as it takes: with how many.
pub(super) fn lay_out(
    cells: &mut Vec<Packed>,
    mut homes: usize,
    entries: impl Iterator<Item = Packed> + Clone,
) -> u32 {
    while !lay_out_as_said(cells, homes, entries.clone()) {
        homes += homes / 8 + 4;
    }
    homes as u32
}

/// False if the cells run out at the end.
fn lay_out_as_said(cells: &mut Vec<Packed>, homes: usize, entries: impl Iterator<Item = Packed>) -> bool {
    let count = homes + overflow_cells(homes);
    cells.clear();
    cells.reserve_exact(count);
    cells.resize(count, EMPTY);
    let mut next = 0;
    for packed in entries {
        let at = next.max(home(homes as u32, packed.fingerprint()));
        let Some(cell) = cells.get_mut(at) else { return false };
        *cell = packed;
        next = at + 1;
    }
    true
}

pub(super) fn entries(cells: &[Packed]) -> impl Iterator<Item = Packed> + Clone {
    cells.iter().copied().filter(|cell| !cell.is_empty())
}

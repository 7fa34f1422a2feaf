//! Where the tables of an index stand: one after the other in a few chunks, closed up by moving them.
//!
//! Role: the memory of the tables; below the index, above the allocator. Tables grow all at about the same
//! time and by an eighth. Blocks of their own would be rounded up to the next of the allocator's sizes, and
//! what a table leaves when it grows is too short for any other one: with a hundred entries a slot that was
//! three fifths of the index once more. Here a table is put at the end of the open chunk, what it leaves
//! is counted, and when an eighth of all is left so, the chunk with the largest part of it is emptied: its
//! tables move, a few with each table that is put: nobody waits for more than one chunk.
//!
//! Invariants: `live`, `taken` and `room` are the sums over the chunks; a table that is moved is found by its
//! number, which stands in the cell before it. A table that is long next to a chunk has one for itself, and
//! is never moved. Never: it knows what is in a cell of a table.

use super::Packed;

/// Cells of a chunk: a power of two, from this part of all on, so that a small index is not mostly what its
/// chunks have room for.
const CHUNK_PART: usize = 32;
const CHUNK_CELLS: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 16;
/// A table that takes more than this part of a chunk has one of its own.
const ALONE_PART: usize = 4;
/// Chunks are emptied while more than this part of all is left by tables that grew,
const DEAD_PART: usize = 8;
/// and only those of which more than this part is.
const DEAD_PART_OF_CHUNK: usize = 16;
/// So many cells are moved for each that is put: more than it takes to keep to the part above. No more at a
/// time than a chunk has: some tenths of a millisecond.
const MOVED_FOR_EACH: usize = 8;

/// Where a table's cells are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    chunk: u32,
    /// 0 for a table that has the chunk for itself: no cell stands before it.
    at: u32,
    /// 0 for a table that has no place.
    cells: u32,
}

/// What has a place in the pool, by its number.
pub(super) trait Placed {
    fn place_mut(&mut self) -> &mut Place;
}

#[derive(Default)]
struct Chunk {
    cells: Vec<Packed>,
    /// Cells of tables that are here, with those before them.
    live: usize,
    /// Cells that are used up, by tables and by what they left.
    taken: usize,
    /// Cells that there is room for: too little is left for another table, but in the one that is open.
    room: usize,
}

/// The chunks, of which one is open.
#[derive(Default)]
pub(super) struct Pool {
    chunks: Vec<Chunk>,
    vacant: Vec<u32>,
    open: Option<u32>,
    /// A chunk whose tables before a cell have moved.
    emptied: Option<(u32, usize)>,
    live: usize,
    taken: usize,
    room: usize,
}

impl Pool {
    /// The cells of a table.
    #[inline]
    pub(super) fn cells(&self, place: Place) -> &[Packed] {
        if place.cells == 0 {
            return &[];
        }
        &self.chunks[place.chunk as usize].cells[place.at as usize..][..place.cells as usize]
    }

    /// The cells of a table, to change them.
    #[inline]
    pub(super) fn cells_mut(&mut self, place: Place) -> &mut [Packed] {
        if place.cells == 0 {
            return &mut [];
        }
        &mut self.chunks[place.chunk as usize].cells[place.at as usize..][..place.cells as usize]
    }

    /// Cells that it has memory for.
    pub(super) fn room_cells(&self) -> usize {
        self.room
    }

    /// Puts a table: what is in `cells` is taken out, or copied.
    pub(super) fn put(&mut self, number: u32, cells: &mut Vec<Packed>) -> Place {
        if cells.len() >= self.chunk_cells() / ALONE_PART {
            return self.put_alone(std::mem::take(cells));
        }
        self.append(number, cells)
    }

    fn put_alone(&mut self, cells: Vec<Packed>) -> Place {
        let cells = cells.into_boxed_slice().into_vec();
        let count = cells.len();
        let chunk = self.add(Chunk { cells, live: count, taken: count, room: count });
        (self.live, self.taken) = (self.live + count, self.taken + count);
        Place { chunk, at: 0, cells: count as u32 }
    }

    fn append(&mut self, number: u32, cells: &[Packed]) -> Place {
        let needed = cells.len() + 1;
        let fits = |open: &u32| {
            let chunk = &self.chunks[*open as usize];
            chunk.taken + needed <= chunk.room
        };
        let open = match self.open.filter(fits) {
            Some(open) => open,
            None => self.open_another(needed),
        };
        let chunk = &mut self.chunks[open as usize];
        chunk.cells.push(Packed([number, cells.len() as u32, 0]));
        let place = Place { chunk: open, at: chunk.cells.len() as u32, cells: cells.len() as u32 };
        chunk.cells.extend_from_slice(cells);
        (chunk.live, chunk.taken) = (chunk.live + needed, chunk.taken + needed);
        (self.live, self.taken) = (self.live + needed, self.taken + needed);
        place
    }

    fn open_another(&mut self, needed: usize) -> u32 {
        let room = self.chunk_cells().max(needed);
        let open = self.add(Chunk { cells: Vec::with_capacity(room), room, ..Chunk::default() });
        self.open = Some(open);
        open
    }

    fn chunk_cells(&self) -> usize {
        (self.taken / CHUNK_PART).next_power_of_two().clamp(*CHUNK_CELLS.start(), *CHUNK_CELLS.end())
    }

    fn add(&mut self, chunk: Chunk) -> u32 {
        self.room += chunk.room;
        if let Some(vacant) = self.vacant.pop() {
            self.chunks[vacant as usize] = chunk;
            return vacant;
        }
        self.chunks.push(chunk);
        self.chunks.len() as u32 - 1
    }

    /// Takes a table's cells out.
    pub(super) fn free(&mut self, place: Place) {
        if place.cells == 0 {
            return;
        }
        let chunk = &mut self.chunks[place.chunk as usize];
        let is_alone = place.at == 0;
        let cells = place.cells as usize + usize::from(!is_alone);
        (chunk.live, self.live) = (chunk.live - cells, self.live - cells);
        self.release_if_dead(place.chunk);
    }

    fn release_if_dead(&mut self, number: u32) {
        if self.chunks[number as usize].live > 0 {
            return;
        }
        let chunk = std::mem::take(&mut self.chunks[number as usize]);
        (self.taken, self.room) = (self.taken - chunk.taken, self.room - chunk.room);
        self.vacant.push(number);
        self.open = self.open.filter(|open| *open != number);
        self.emptied = self.emptied.filter(|(emptied, _)| *emptied != number);
    }

    /// Moves some tables, if much was left by others; `changed` cells were put or freed since.
    pub(super) fn close_up(&mut self, changed: usize, tables: &mut [impl Placed]) {
        let mut left = (changed * MOVED_FOR_EACH).min(*CHUNK_CELLS.end());
        while left > 0 {
            let Some((number, mut at)) = self.emptied.or_else(|| self.to_empty()) else { return };
            let cells = std::mem::take(&mut self.chunks[number as usize].cells);
            while at < cells.len() && left > 0 {
                let Packed([owner, count, _]) = cells[at];
                let from = at + 1;
                at = from + count as usize;
                let place = tables[owner as usize].place_mut();
                if *place == (Place { chunk: number, at: from as u32, cells: count }) {
                    *place = self.append(owner, &cells[from..at]);
                    let moved = count as usize + 1;
                    self.chunks[number as usize].live -= moved;
                    self.live -= moved;
                    left = left.saturating_sub(moved);
                }
            }
            assert!(
                at < cells.len() || self.chunks[number as usize].live == 0,
                "all that was live has moved"
            );
            self.chunks[number as usize].cells = cells;
            self.emptied = Some((number, at));
            self.release_if_dead(number);
        }
    }

    /// The chunk of which the largest part is dead, if too much of all is.
    fn to_empty(&self) -> Option<(u32, usize)> {
        if (self.taken - self.live) * DEAD_PART <= self.taken {
            return None;
        }
        let dead = |chunk: &Chunk| (chunk.taken - chunk.live) * 1024 / chunk.taken.max(1);
        let closed = (0..self.chunks.len() as u32).filter(|number| Some(*number) != self.open);
        let most = closed.max_by_key(|number| dead(&self.chunks[*number as usize]))?;
        (dead(&self.chunks[most as usize]) > 1024 / DEAD_PART_OF_CHUNK).then_some((most, 0))
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;

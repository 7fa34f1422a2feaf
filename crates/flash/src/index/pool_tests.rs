//! The pool against a list of what was put, and how much of it is left unused.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Default)]
struct Kept {
    place: Place,
    contents: u32,
    cells: usize,
}

impl Placed for Kept {
    fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }
}

/// A pool, and what should be in it.
struct Both {
    pool: Pool,
    tables: Vec<Kept>,
    puts: u32,
}

impl Both {
    fn new(tables: usize) -> Both {
        Both { pool: Pool::default(), tables: vec![Kept::default(); tables], puts: 0 }
    }

    fn put(&mut self, number: usize, cells: usize) {
        self.puts += 1;
        let contents = self.puts;
        let mut laid_out: Vec<_> = (0..cells as u32).map(|at| Packed([contents, at, 7])).collect();
        self.pool.free(self.tables[number].place);
        let place = if cells == 0 { Place::default() } else { self.pool.put(number as u32, &mut laid_out) };
        self.tables[number] = Kept { place, contents, cells };
        self.pool.close_up(cells, &mut self.tables);
    }

    fn check(&mut self) {
        for table in &self.tables {
            let cells = self.pool.cells(table.place);
            assert_eq!(cells.len(), table.cells);
            for (at, cell) in cells.iter().enumerate() {
                assert_eq!(cell.0, [table.contents, at as u32, 7]);
            }
        }
        let sum = |part: fn(&Chunk) -> usize| self.pool.chunks.iter().map(part).sum::<usize>();
        assert_eq!((self.pool.live, self.pool.taken), (sum(|chunk| chunk.live), sum(|chunk| chunk.taken)));
        assert_eq!(self.pool.room, sum(|chunk| chunk.room));
        assert!(self.pool.live <= self.pool.taken && self.pool.taken <= self.pool.room);
    }

    fn used_cells(&self) -> usize {
        self.tables.iter().map(|table| table.cells).sum()
    }
}

/// Mostly of tables that share a chunk.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0_usize..110, 1 => 110_usize..900]
}

proptest! {
    #[test]
    fn tables_are_found_wherever_they_are_moved(
        puts in prop::collection::vec((0_usize..40, length()), 0..600),
    ) {
        let mut both = Both::new(40);
        for (number, cells) in puts {
            both.put(number, cells);
            both.check();
        }
        for number in 0..40 {
            both.put(number, 0);
        }
        both.check();
        prop_assert_eq!((both.pool.taken, both.pool.room), (0, 0), "nothing is kept for nothing");
    }
}

#[test]
fn tables_that_grow_leave_no_more_than_an_eighth_and_a_chunk() {
    let mut both = Both::new(4000);
    let (mut state, mut worst) = (1_u64, 0.0_f64);
    for round in 0..60_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 33) as usize % 4000;
        let cells = both.tables[number].cells;
        both.put(number, cells + cells / 8 + 4);
        if round > 8000 {
            worst = worst.max(both.pool.taken as f64 / both.used_cells() as f64);
        }
    }
    both.check();
    // An eighth; and a chunk that is open, one that is being emptied, and the cells before tables.
    assert!(worst < 1.4, "{worst} of what is used is taken");
    let now = both.pool.taken as f64 / both.used_cells() as f64;
    assert!(now < 1.2, "{now} of what is used is taken at the end");
}

//! Tests of the sparse index against a plain list.

use super::*;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// Cuts sorted names into blocks of `step` and indexes them.
fn index(names: &[Vec<u8>], step: usize) -> Sparse {
    let mut sparse = Sparse::default();
    for (number, block) in names.chunks(step).enumerate() {
        let cut = match number {
            0 => &[][..],
            _ => separator(&names[number * step - 1], &block[0]),
        };
        sparse.push(cut, Extent { position: number as u32 * 8, blocks: 8 });
    }
    sparse
}

/// Searches as a cursor does, and looks whether the first name not below the one sought is in the
/// block found or begins the next one. Tells whether a single block was the candidate.
fn check(names: &[Vec<u8>], step: usize, sought: &[u8]) -> bool {
    let (mut first, mut last) = index(names, step).candidates(sought);
    let single = first == last;
    while first < last {
        let middle = (first + last).div_ceil(2);
        if names[middle * step].as_slice() <= sought { first = middle } else { last = middle - 1 }
    }
    let below = names.iter().filter(|name| name.as_slice() < sought).count();
    assert!(first * step <= below, "names were skipped");
    assert!(below <= (first + 1) * step, "the search began too early");
    single
}

proptest! {
    #[test]
    fn one_block_is_found(
        names in btree_set(vec(0_u8..3, 0..12), 1..200),
        sought in vec(0_u8..3, 0..12),
        step in 1_usize..9,
    ) {
        let names: Vec<Vec<u8>> = names.into_iter().collect();
        prop_assert!(check(&names, step, &sought));
    }

    #[test]
    fn cut_separators_leave_the_right_block_among_the_candidates(
        tails in btree_set(vec(0_u8..3, 1..6), 1..120),
        sought in vec(0_u8..3, 0..6),
        step in 1_usize..4,
    ) {
        let long = |tail: &[u8]| [&[7_u8; SEPARATOR_BYTES_MAX][..], tail].concat();
        let names: Vec<Vec<u8>> = tails.iter().map(|tail| long(tail)).collect();
        check(&names, step, &long(&sought));
        check(&names, step, &sought);
        check(&names, step, &[8]);
    }
}

//! Tests of the key block: what is written is read, and arbitrary bytes never panic.

use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

const PLACE: BlockPlace = BlockPlace { identity: 7, sequence: 9, offset: 4096 };

fn walk_all(bytes: &[u8], place: BlockPlace) -> Result<Vec<(Vec<u8>, bool)>, DecodeError> {
    let mut walk = BlockWalk::open(bytes, place, BlockKind::Names)?;
    let mut found = Vec::new();
    while walk.step(bytes)? {
        found.push((walk.name().to_vec(), walk.deleted()));
    }
    Ok(found)
}

proptest! {
    #[test]
    fn names_come_back_in_order(
        names in btree_map(vec(0_u8..4, 0..40), any::<bool>(), 0..80),
    ) {
        let mut builder = BlockBuilder::new(BlockKind::Names);
        let mut bound = HEADER_BYTES;
        for (name, deleted) in &names {
            bound = builder.bytes_with(name);
            builder.push(name, *deleted);
        }
        let mut bytes = Vec::new();
        prop_assert!(builder.sealed_bytes(1) <= bound as u64);
        let length = builder.seal(PLACE, 512, &mut bytes);
        prop_assert_eq!(length, bytes.len() as u64);
        let expected: Vec<_> = names.into_iter().collect();
        prop_assert_eq!(walk_all(&bytes, PLACE).unwrap(), expected);
        for other in [
            BlockPlace { identity: 8, ..PLACE },
            BlockPlace { sequence: 8, ..PLACE },
            BlockPlace { offset: 8192, ..PLACE },
        ] {
            prop_assert!(walk_all(&bytes, other).is_err());
        }
    }

    #[test]
    fn a_changed_byte_is_noticed(at in 0_usize..300, change in 1_u8..) {
        let mut builder = BlockBuilder::new(BlockKind::Names);
        for number in 0..30_u32 {
            builder.push(&name_of(0, format!("key:{number:06}").as_bytes()), number % 3 == 0);
        }
        let mut bytes = Vec::new();
        let covered = builder.sealed_bytes(1) as usize;
        builder.seal(PLACE, 512, &mut bytes);
        bytes[at % covered] ^= change;
        prop_assert!(walk_all(&bytes, PLACE).is_err());
    }

    /// Bytes under a right checksum, so that the entries are reached.
    #[test]
    fn arbitrary_entries_never_panic(payload in vec(any::<u8>(), 0..400), entries in 0_u32..50, index: bool) {
        let kind = if index { BlockKind::Index } else { BlockKind::Names };
        let mut builder = BlockBuilder::new(kind);
        builder.payload = payload;
        builder.entries = entries;
        let mut bytes = Vec::new();
        builder.seal(PLACE, 512, &mut bytes);
        let mut walk = BlockWalk::open(&bytes, PLACE, kind).unwrap();
        let mut last: Option<Vec<u8>> = None;
        while let Ok(true) = walk.step(&bytes) {
            let name = walk.name().to_vec();
            prop_assert!(name.len() <= NAME_BYTES_MAX);
            let grows = |last: &Vec<u8>| *last < name || (index && *last == name);
            prop_assert!(last.as_ref().is_none_or(grows), "names fall");
            last = Some(name);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut with_magic = b"PKEY".to_vec();
        with_magic.extend_from_slice(&bytes);
        for bytes in [bytes, with_magic] {
            prop_assert!(walk_all(&bytes, PLACE).is_err());
        }
    }
}

#[test]
fn separators_keep_their_extents() {
    let mut builder = BlockBuilder::new(BlockKind::Index);
    let extents: Vec<(Vec<u8>, Extent)> = (0..100_u32)
        .map(|n| (name_of(n / 10, b"same"), Extent { position: n * 70_000, blocks: n as u16 + 1 }))
        .collect();
    extents.iter().for_each(|(name, extent)| builder.push_extent(name, *extent));
    let mut bytes = Vec::new();
    builder.seal(PLACE, 4096, &mut bytes);
    let mut walk = BlockWalk::open(&bytes, PLACE, BlockKind::Index).unwrap();
    for (name, extent) in &extents {
        assert!(walk.step(&bytes).unwrap());
        assert_eq!((walk.name(), walk.extent()), (&name[..], *extent));
    }
    assert!(!walk.step(&bytes).unwrap());
}

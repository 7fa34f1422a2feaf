use super::*;
use std::collections::BTreeMap;

fn record(identity: u64, is_expiring: bool, is_keeper: bool) -> KnownRecord {
    KnownRecord { identity: Identity(identity & ((1 << HASH_BITS) - 1)), is_expiring, is_keeper }
}

/// Numbers that look random.
fn scatter(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
}

#[test]
fn cells_keep_every_bit() {
    let mut known = Known::of_bytes(1 << 12);
    for location in [1, 2, 0xffff_ffff, 1 << 32, (1 << crate::index::LOCATION_BITS) - 1] {
        for identity in [0, 1, u64::MAX, 0x0155_aa55_aa55_aa55] {
            for (is_expiring, is_keeper) in [(false, false), (true, false), (false, true), (true, true)] {
                let noted = record(identity, is_expiring, is_keeper);
                known.note(Slot(3), 77, location, noted);
                assert_eq!(known.find(Slot(3), 77, location), Some(noted));
                known.forget(Slot(3), 77, &[location, 7]);
                assert_eq!(known.find(Slot(3), 77, location), None);
            }
        }
    }
}

/// The table as the engine uses it: each location has one record at most, and only records that are there
/// move. Whatever is forgotten for want of room, nothing wrong is told of a record that is there.
#[test]
fn what_is_known_is_what_was_noted_last() {
    let mut known = Known::of_bytes(20 * BUCKET_BYTES);
    let mut there: BTreeMap<u64, (u16, u64, KnownRecord)> = BTreeMap::new();
    let mut right = 0;
    for step in 0..200_000u64 {
        let random = scatter(step);
        let (slot, fingerprint) = (Slot((random % 3) as u16), random >> 8 & 31);
        let (location, to) = (1 + (random >> 16 & 63), 1 + (random >> 24 & 63));
        match random >> 60 {
            0..6 => {
                // Keys of different places have different identities.
                let place_bits = u64::from(slot.0) << 5 | fingerprint;
                let noted =
                    record(scatter(random) << 7 | place_bits, random & 1 << 40 != 0, random & 1 << 41 != 0);
                known.forget(slot, fingerprint, &[location]);
                known.note(slot, fingerprint, location, noted);
                there.insert(location, (slot.0, fingerprint, noted));
            }
            6..8 => {
                if let Some((slot, fingerprint, _)) = there.remove(&location) {
                    known.forget(Slot(slot), fingerprint, &[location]);
                }
            }
            8..12 if to != location => {
                if let Some(moved) = there.remove(&location) {
                    known.forget(Slot(moved.0), moved.1, &[to]);
                    known.relocate(Slot(moved.0), moved.1, location, to);
                    there.insert(to, moved);
                }
            }
            _ => {}
        }
        for (location, (slot, fingerprint, noted)) in &there {
            let place_bits = u64::from(*slot) << 5 | fingerprint;
            let told = known.find(Slot(*slot), *fingerprint, *location);
            if let Some(told) = told.filter(|told| told.identity.0 & 0x7f == place_bits) {
                assert_eq!(told, *noted, "step {step}");
                right += 1;
            }
        }
    }
    assert!(right > 1_000_000, "{right}");
}

/// Of as many keys as nine tenths of its cells, a table remembers 97 of a hundred.
#[test]
fn tables_fill_well() {
    let buckets = 10_000;
    let mut known = Known::of_bytes(buckets * BUCKET_BYTES);
    let keys = (buckets * CELLS) as u64 * 9 / 10;
    for key in 0..keys {
        known.note(Slot((key % 16_384) as u16), scatter(key) >> 24, 1 + key, record(key, false, false));
    }
    let kept = |key: &u64| known.find(Slot((key % 16_384) as u16), scatter(*key) >> 24, 1 + key).is_some();
    let remembered = (0..keys).filter(kept).count() as u64;
    assert!(remembered * 100 >= keys * 97, "{remembered} of {keys}");
    // Overwritten in place of one another for ever, the newest are there.
    for key in keys..20 * keys {
        known.note(Slot((key % 16_384) as u16), scatter(key) >> 24, 1 + key, record(key, false, false));
    }
    let kept = |key: &u64| known.find(Slot((key % 16_384) as u16), scatter(*key) >> 24, 1 + key).is_some();
    assert!((20 * keys - keys / 4..20 * keys).filter(kept).count() as u64 * 100 >= keys / 4 * 90);
}

#[test]
fn without_memory_nothing_is_known() {
    let mut known = Known::of_bytes(BUCKET_BYTES - 1);
    known.note(Slot(1), 2, 3, record(4, true, false));
    known.relocate(Slot(1), 2, 3, 5);
    known.forget(Slot(1), 2, &[5]);
    assert_eq!(known.find(Slot(1), 2, 3), None);
}

//! The index against a sorted map.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Remove(u64, u64),
    Replace(u64, u64, u64),
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    // Few fingerprints, at both ends and in the middle of the range, so that they collide often.
    let fingerprint =
        prop_oneof![0_u64..8, (1_u64 << 40) - 8..1_u64 << 40, (0_u64..128).prop_map(|f| f << 33)];
    let location = 1_u64..64;
    prop_oneof![
        5 => (fingerprint.clone(), location.clone()).prop_map(|(f, l)| Step::Insert(f, l)),
        3 => (fingerprint.clone(), location.clone()).prop_map(|(f, l)| Step::Remove(f, l)),
        3 => (fingerprint, location.clone(), location).prop_map(|(f, a, b)| Step::Replace(f, a, b)),
        1 => Just(Step::Reload),
    ]
}

proptest! {
    #[test]
    fn behaves_as_a_sorted_set(steps in prop::collection::vec(step(), 0..400)) {
        let slot = Slot(7);
        let mut index = Index::new(7..8);
        let mut model: BTreeSet<(u64, u64)> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Insert(fingerprint, location) => {
                    if model.insert((fingerprint, location)) {
                        index.insert(slot, Entry { fingerprint, location, length: 5 });
                    }
                }
                Step::Remove(fingerprint, location) => {
                    let removed = index.remove(slot, fingerprint, location);
                    prop_assert_eq!(removed, model.remove(&(fingerprint, location)));
                }
                Step::Replace(fingerprint, from, to) => {
                    if from != to && !model.contains(&(fingerprint, to)) {
                        let entry = Entry { fingerprint, location: to, length: 6 };
                        let replaced = index.replace(slot, from, entry);
                        prop_assert_eq!(replaced, model.remove(&(fingerprint, from)));
                        if replaced {
                            model.insert((fingerprint, to));
                        }
                    }
                }
                Step::Reload => {
                    let mut bytes = Vec::new();
                    index.encode_slot(slot, 7, &mut bytes);
                    prop_assert!(bytes.len() as u64 <= index.encoded_bytes_max(7, 7));
                    index = Index::new(7..8);
                    let mut rest = &bytes[..];
                    prop_assert!(index.decode_slot(slot, 7, &mut rest) && rest.is_empty());
                }
            }
            prop_assert_eq!(index.len(), model.len() as u64);
            let all = index.from(slot, 0).map(|e| (e.fingerprint, e.location));
            let all: BTreeSet<(u64, u64)> = all.collect();
            prop_assert_eq!(&all, &model);
            index.touch([(slot, 0), (slot, (1 << 40) - 1)].into_iter());
            for (fingerprint, location) in &model {
                prop_assert!(index.contains(slot, *fingerprint, *location));
                prop_assert!(index.find(slot, *fingerprint).any(|e| e.location == *location));
            }
        }
    }
}

#[test]
fn memory_stays_below_sixteen_bytes_an_entry_while_a_slot_grows() {
    let slot = Slot(0);
    let mut index = Index::new(0..1);
    let mut state = 1_u64;
    let mut worst: f64 = 0.0;
    for location in 1..=20_000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        index.insert(slot, Entry { fingerprint: state >> 24, location, length: 12 });
        if location >= 600 {
            worst = worst.max(index.memory_bytes() as f64 / location as f64);
        }
    }
    assert!(worst < 16.0, "{worst} bytes an entry");
}

#[test]
fn memory_is_given_back_when_most_keys_go() {
    let slot = Slot(0);
    let mut index = Index::new(0..1);
    let fingerprint = |location: u64| location.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    let empty_bytes = index.memory_bytes();
    for location in 1..=20_000 {
        index.insert(slot, Entry { fingerprint: fingerprint(location), location, length: 12 });
    }
    let full_bytes = index.memory_bytes();
    for location in (1..=20_000).filter(|location| location % 20 != 0) {
        assert!(index.remove(slot, fingerprint(location), location));
    }
    let left_bytes = index.memory_bytes();
    assert!(left_bytes * 10 < full_bytes, "{left_bytes} of {full_bytes} bytes for a twentieth");
    for location in 1..=20_000 {
        assert_eq!(index.contains(slot, fingerprint(location), location), location % 20 == 0);
    }
    for location in (20..=20_000).step_by(20) {
        assert!(index.remove(slot, fingerprint(location), location));
    }
    assert!(index.is_empty() && index.memory_bytes() == empty_bytes);
}

//! The fuzz bodies on arbitrary bytes, and on bytes that were once right.

use super::*;
use crate::format::{RecordKind, SegmentKind, Transition, TransitionKind};
use plimsoll_kv::Version;
use proptest::prelude::*;

fn right_record() -> Vec<u8> {
    let header = RecordHeader {
        kind: RecordKind::Value,
        lifetime: 0,
        key_bytes: 5,
        value_bytes: 40_000,
        container: 3,
        slot: 12,
        version: Version { epoch: 1, clock: 2 },
        expiry_ms: 0,
        flags: 0,
        previous: 17,
        previous_length: 4,
    };
    let mut bytes = vec![0xff; header.record_bytes() as usize];
    record::encode(&header, b"hello", [&vec![7; 40_000], &[]], (SEQUENCE, 4099), &mut bytes);
    bytes
}

fn right_snapshot() -> Vec<u8> {
    let layout = layout();
    let mut state = State::new(0..64, SegmentTable::all_free(&layout));
    let begun = Transition { argument: 4, previous: 9, ..Transition::new(TransitionKind::UploadBegin) };
    state.apply(&begun, 1);
    state.segments.set_prepared(32);
    let segment = state.segments.allocate(SegmentKind::Log, 1, 1, 0).expect("all are free");
    let location = u64::from(segment) * layout.segment_units() + 100;
    state.apply(&part_at(location), 1);
    state.segments.close(segment);
    let mut bytes = Vec::new();
    snapshot::encode(&state, &mut bytes);
    bytes
}

fn part_at(location: u64) -> Transition {
    Transition { argument: 4, location, length: 9, ..Transition::new(TransitionKind::StorePart) }
}

/// Whoever read it, or gave it up, looked for its segment, and found none.
#[test]
fn a_snapshot_with_a_part_that_stands_nowhere_is_refused() {
    let right = right_snapshot();
    let layout = layout();
    let location = 100_u64.to_le_bytes();
    let at = right.windows(8).rposition(|bytes| bytes == location).expect("the part is in it");
    let decoded = |location: u64| {
        let mut bytes = right.clone();
        bytes[at..at + 8].copy_from_slice(&location.to_le_bytes());
        checkpoint(&bytes);
        snapshot::decode(&bytes, &mut State::new(0..64, SegmentTable::all_free(&layout)))
    };
    let end = u64::from(layout.segments) * layout.segment_units();
    assert!(decoded(100) && decoded(end - 9));
    for location in [0, layout.segment_units() - 1, end - 8, end, u64::MAX] {
        assert!(!decoded(location), "{location}");
    }
}

fn right_tables() -> Vec<u8> {
    let mut state = State::new(0..64, SegmentTable::new(32, 4096, 256));
    for number in 1..200_u64 {
        let fingerprint = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        let entry =
            crate::index::Entry { fingerprint, location: number * 70, length: 60 + number as u32 % 9 };
        state.index.insert(plimsoll_kv::Slot(number as u16 % 3), entry);
    }
    let mut bytes = [&9_u64.to_le_bytes()[..], &0_u32.to_le_bytes(), &64_u32.to_le_bytes(), &[17]].concat();
    (0..64).for_each(|slot| state.index.encode_slot(plimsoll_kv::Slot(slot), 17, &mut bytes));
    state.slot_frames = Some(vec![0; 64]);
    assert!(load::load_tables(&bytes, 9, &mut state));
    bytes
}

fn right_intent() -> Vec<u8> {
    let key = |name: &str| name.as_bytes().to_vec();
    let (container, condition) = (plimsoll_kv::ContainerId(2), plimsoll_kv::Condition::None);
    let store = plimsoll_kv::Op::Store {
        container,
        key: key("stored"),
        value: plimsoll_kv::Value::from(key("value")),
        condition,
        expiry: plimsoll_kv::Expiry::At(77),
        retain: false,
        want_previous: false,
        form: None,
    };
    let delete = plimsoll_kv::Op::Delete { container, key: key("deleted"), condition };
    let writes = vec![store, delete];
    Intent { participants: vec![0, 1], clears: vec![(container, 5)], writes }.encode()
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        superblock(&data);
        record(&data);
        segment(&data);
        checkpoint(&data);
        intent(&data);
    }

    #[test]
    fn damaged_structures_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        for right in [right_record(), right_snapshot(), right_tables(), right_intent()] {
            let mut bytes = right;
            for (at, value) in &flips {
                let at = at.index(bytes.len());
                bytes[at] ^= value;
            }
            let cut = cut.index(bytes.len() + 1);
            for data in [&bytes[..], &bytes[..cut]] {
                superblock(data);
                record(data);
                segment(data);
                checkpoint(data);
                intent(data);
            }
        }
    }
}

//! Naming runs in a checkpoint: the section of keys.
//!
//! Place on the path: written at the end of a checkpoint, read by recovery; `start` checks it
//! against the segments.
//!
//! Invariant: decoding takes nothing on trust: every count is bounded by the bytes that are there,
//! and every place by the partition.

use super::block::Extent;
use super::run::{RunName, fits};
use crate::layout::Layout;
use crate::segments::SegmentTable;
use crate::snapshot::Reader;
use std::collections::BTreeSet;

/// Appends the section: number of runs, then each, oldest first.
pub(crate) fn encode(runs: &[RunName], out: &mut Vec<u8>) {
    let put = |out: &mut Vec<u8>, value: usize| out.extend_from_slice(&(value as u32).to_le_bytes());
    put(out, runs.len());
    for run in runs {
        out.extend_from_slice(&run.bytes.to_le_bytes());
        out.extend_from_slice(&run.names.to_le_bytes());
        out.extend_from_slice(&run.deleted.to_le_bytes());
        put(out, run.segments.len());
        for (segment, sequence) in &run.segments {
            out.extend_from_slice(&segment.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
        put(out, run.index.len());
        for extent in &run.index {
            out.extend_from_slice(&extent.position.to_le_bytes());
            out.extend_from_slice(&u32::from(extent.blocks).to_le_bytes());
        }
    }
}

/// Reads the section; nothing if it is not one.
pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Option<Vec<RunName>> {
    let mut reader = Reader(bytes);
    let mut runs = Vec::new();
    for _ in 0..reader.u32()? {
        let (bytes, names, deleted) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut segments = Vec::new();
        for _ in 0..reader.u32()? {
            segments.push((reader.u32()?, reader.u64()?));
        }
        let mut index = Vec::new();
        for _ in 0..reader.u32()? {
            let extent = Extent { position: reader.u32()?, blocks: u16::try_from(reader.u32()?).ok()? };
            if !fits(layout, segments.len(), extent) {
                return None;
            }
            index.push(extent);
        }
        runs.push(RunName { segments, index, bytes, names, deleted });
    }
    reader.0.is_empty().then_some(runs)
}

/// True if the segments that runs name exist, once each, and hold nothing else.
pub(crate) fn agrees(runs: &[RunName], segments: &SegmentTable, others: &[u32]) -> bool {
    let mut seen: BTreeSet<u32> = others.iter().copied().collect();
    let mut named = runs.iter().flat_map(|run| &run.segments);
    named.all(|(segment, _)| {
        (*segment as usize) < segments.all().len()
            && segments.get(*segment).live_units == 0
            && seen.insert(*segment)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout {
        partition: 0,
        partitions: 1,
        offset: 0,
        anchor_offset: 0,
        segments: 64,
        segment_bytes: 64 << 10,
        block_bytes: 512,
        identity: 1,
        hash_secret: 2,
        keeps: false,
        fingerprint_bits: 40,
    };

    #[test]
    fn names_come_back() {
        let index = vec![Extent { position: 8, blocks: 120 }, Extent { position: 130, blocks: 1 }];
        let run =
            RunName { segments: vec![(3, 1 << 40), (9, 77)], index, bytes: 100_000, names: 1234, deleted: 5 };
        let mut bytes = Vec::new();
        encode(&[run.clone(), run.clone()], &mut bytes);
        assert_eq!(decode(&bytes, &LAYOUT), Some(vec![run.clone(), run.clone()]));
        assert_eq!(decode(&bytes[1..], &LAYOUT), None);
        let table = SegmentTable::new(64, 4096, 256);
        assert!(!agrees(&[run.clone(), run.clone()], &table, &[]));
        assert!(agrees(std::slice::from_ref(&run), &table, &[1]));
        assert!(!agrees(std::slice::from_ref(&run), &table, &[9]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(0_u8..3, 0..200)) {
            let _ = decode(&bytes, &LAYOUT);
        }
    }
}

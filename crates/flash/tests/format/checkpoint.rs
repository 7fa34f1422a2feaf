//! The checkpoint and the summaries of a real device, read by nothing but the page's tables.

use crate::reader::{Before, Read, Reader};
use crate::tables::{Table, page};
use plimsoll_flash::Superblock;
use plimsoll_flash::format::{
    Anchor, SegmentFooter, SegmentHeader, SegmentKind, checkpoint, crc32c, crc32c_of,
};
use plimsoll_flash::layout::Layout;
use std::collections::BTreeMap;

#[path = "../fixture/image.rs"]
mod image;

/// A device image taken apart.
struct Device {
    image: Vec<u8>,
    layout: Layout,
    anchor: Anchor,
}

fn device() -> Device {
    let image = image::decode(include_bytes!("../fixture/v1.image"));
    let superblock = Superblock::decode(&image).expect("the first superblock");
    let copy = Superblock::decode(&image[image.len() - 4096..]).expect("the second superblock");
    assert_eq!(superblock, copy);
    let layout = Layout::new(&superblock, 0);
    let anchors = [4096, 8192].map(|at| Anchor::decode(&image[at..at + 4096], layout.identity));
    let anchors = anchors.map(|anchor| anchor.expect("both anchors are whole"));
    let anchor = anchors.into_iter().max_by_key(|anchor| anchor.generation).expect("there are two");
    Device { image, layout, anchor }
}

impl Device {
    fn segment(&self, segment: u32) -> &[u8] {
        let start = self.layout.segment_offset(segment) as usize;
        &self.image[start..start + self.layout.segment_bytes as usize]
    }

    /// The streams of the pieces, one after the other.
    fn stream(&self) -> Vec<u8> {
        let mut stream = Vec::new();
        for piece in &self.anchor.pieces {
            let (mut chunk, mut at) = (0, piece.offset as usize);
            for segment in &piece.segments {
                let bytes = self.segment(*segment);
                let header = SegmentHeader::decode(bytes, self.layout.identity, *segment).expect("a header");
                assert_eq!(header.kind, SegmentKind::Checkpoint);
                while chunk < piece.chunks && at < bytes.len() {
                    let chunk_bytes = &bytes[at..];
                    let payload =
                        checkpoint::decode(chunk_bytes, piece.id, u64::from(chunk), self.layout.identity);
                    let Ok(payload) = payload else { break };
                    stream.extend_from_slice(payload);
                    let length = checkpoint::CHUNK_HEADER_BYTES + payload.len();
                    at += length.next_multiple_of(self.layout.block_bytes as usize);
                    chunk += 1;
                }
                at = self.layout.block_bytes as usize;
            }
            assert_eq!(chunk, piece.chunks, "every chunk was found");
        }
        stream
    }
}

impl Device {
    /// The names of a run's blocks, found through its index.
    fn names(&self, page: &[Table], segments: &[Read], index: &[Read]) -> Vec<Vec<(Vec<u8>, bool)>> {
        let block_bytes = self.layout.block_bytes as usize;
        let blocks_per_segment = self.layout.segment_bytes / self.layout.block_bytes;
        let block = |position: u64, blocks: u64| {
            let place = &segments[(position / blocks_per_segment) as usize];
            let bytes = self.segment(place.get("segment") as u32);
            let header = SegmentHeader::decode(bytes, self.layout.identity, place.get("segment") as u32);
            let header = header.expect("a header");
            assert_eq!((header.kind, header.sequence), (SegmentKind::Keys, place.get("sequence")));
            let at = (position % blocks_per_segment) as usize * block_bytes;
            let bytes = &bytes[at..at + blocks as usize * block_bytes];
            let offset = place.get("segment") * self.layout.segment_bytes + at as u64;
            self.prove_key_block(page, bytes, header.sequence, offset);
            Reader { page, rest: bytes }.key_block()
        };
        let extents = index.iter().flat_map(|extent| block(extent.get("position"), extent.get("blocks")));
        let extents = extents.map(|(_, _, extent)| extent.expect("an index has extents"));
        let names =
            |(position, blocks)| block(position, blocks).into_iter().map(|(name, gone, _)| (name, gone));
        extents.map(|extent| names(extent).collect()).collect()
    }

    /// The checksum of a key block, as the page defines it.
    fn prove_key_block(&self, page: &[Table], bytes: &[u8], sequence: u64, offset: u64) {
        let mut reader = Reader { page, rest: bytes };
        let header = reader.structure("Key block");
        let used = bytes.len() - reader.rest.len() + header.get("payload_bytes") as usize;
        let mut zeroed = bytes[..used].to_vec();
        zeroed[4..8].fill(0);
        let identity = self.layout.identity.to_le_bytes();
        let crc = crc32c_of(&[&identity, &sequence.to_le_bytes(), &offset.to_le_bytes(), &zeroed]);
        assert_eq!(u64::from(crc), header.get("crc"));
    }
}

#[test]
fn the_checkpoint_reads_as_the_page_draws_it() {
    let (page, device) = (page(), device());
    let stream = device.stream();
    let mut reader = Reader { page: &page, rest: &stream };
    assert!(device.anchor.pieces.len() > 1, "the checkpoint stands in pieces");
    let last = device.anchor.pieces.last().expect("there are several");
    assert_eq!((last.id, last.end_slot), (device.anchor.checkpoint_id, 16_384));
    let mut entries = 0_u64;
    let mut next_slot = 0;
    while next_slot < 16_384 {
        assert_eq!(reader.structure("Section").get("kind"), u64::from(b'T'));
        let tables = reader.structure("Tables section");
        assert_eq!(tables.get("first_slot"), next_slot);
        assert!(tables.get("frame") >= device.anchor.frame_number);
        for _ in 0..tables.get("slots") {
            let table = reader.slot_table(tables.get("location_bits"));
            assert!(table.iter().all(|(_, location, _)| *location != 0));
            entries += table.len() as u64;
        }
        next_slot += tables.get("slots");
    }
    let section = reader.structure("Section");
    assert_eq!(section.get("kind"), u64::from(b'S'), "the snapshot follows the tables");
    let before = reader.rest.len() as u64;
    let snapshot = reader.snapshot();
    assert_eq!(before - reader.rest.len() as u64, section.get("bytes"), "the snapshot is as long as it says");
    let part = |name: &str| &snapshot.iter().find(|(part, _)| part == name).expect("a part").1;
    assert_eq!(part("segments").len(), 28);
    assert_eq!(part("generations").len(), 1, "one container was emptied before the checkpoint");
    assert_eq!(part("generations")[0].get("container"), 1);
    assert_eq!(part("uploads").len(), 1);
    assert_eq!(part("uploads")[0].get("length"), 20_000);
    assert_eq!(part("uploads")[0].get("parts"), 3);
    assert_eq!(part("retained").len(), 1);
    assert_eq!(part("retained")[0].get("length"), 61, "64, key, checksum and 900 bytes");
    assert_eq!(part("expiry_overrides").len(), 1);
    assert_eq!(part("expiry_overrides")[0].get("expiry_ms"), 4_000_000_000_001);
    assert_eq!(part("expiry_overrides")[0].get("epoch"), 1);

    let counted: u64 = part("counters").iter().map(|counters| counters.get("keys")).sum();
    let section = reader.structure("Section");
    assert_eq!((section.get("kind"), section.get("bytes")), (u64::from(b'K'), reader.rest.len() as u64));
    let runs = reader.runs();
    assert!(reader.rest.is_empty(), "the keys stand last");
    let mut names = BTreeMap::new();
    for (run, segments, index) in &runs {
        let blocks = device.names(&page, segments, index);
        let of_run: Vec<_> = blocks.into_iter().flatten().collect();
        assert!(of_run.is_sorted(), "names grow along a run");
        assert_eq!(of_run.len() as u64, run.get("names"));
        assert_eq!(of_run.iter().filter(|(_, deleted)| *deleted).count() as u64, run.get("deleted"));
        names.extend(of_run);
    }
    let alive = names.values().filter(|deleted| !**deleted).count() as u64;
    assert!(alive > 100 && alive.abs_diff(entries) < 40, "{alive} names and {entries} entries");
    assert_eq!(names.get(b"\0\0\0\0short:expiring".as_slice()), Some(&false));
    assert!(entries > 100 && entries.abs_diff(counted) < 20, "{entries} entries and {counted} keys");
}

#[test]
fn summaries_read_as_the_page_draws_them() {
    let (page, device) = (page(), device());
    let mut found = 0;
    let mut kinds = std::collections::BTreeSet::new();
    for segment in 0..device.layout.segments {
        let bytes = device.segment(segment);
        let Ok(header) = SegmentHeader::decode(bytes, device.layout.identity, segment) else { continue };
        let footer_at = bytes.len() - device.layout.block_bytes as usize;
        let footer = SegmentFooter::decode(&bytes[footer_at..], device.layout.identity, header.sequence);
        let Ok(footer) = footer else { continue };
        let start = footer_at - footer.summary_bytes as usize;
        let summary = &bytes[start..start + footer.transitions_bytes as usize];
        assert_eq!(crc32c(summary), footer.transitions_crc);
        let mut reader = Reader { page: &page, rest: summary };
        let (mut frame, mut before) = (header.first_frame, Before::default());
        while !reader.rest.is_empty() {
            frame += reader.varint();
            let transition = reader.transition(&mut before);
            assert!((1..=20).contains(&transition.get("kind")));
            kinds.insert(transition.get("kind"));
            found += 1;
        }
        assert!(frame <= footer.last_frame, "frames stand in the segment");
    }
    assert!(kinds.contains(&1) && kinds.contains(&2), "stores and deletes: {kinds:?}");
    assert!(found > 100, "summaries hold {found} transitions");
}

#[test]
fn the_fixture_has_segments_of_every_kind() {
    let device = device();
    let kinds: std::collections::BTreeSet<SegmentKind> = (0..device.layout.segments)
        .filter_map(|segment| {
            SegmentHeader::decode(device.segment(segment), device.layout.identity, segment).ok()
        })
        .map(|header| header.kind)
        .collect();
    let every = (0..=255).filter_map(SegmentKind::from_byte).collect();
    assert_eq!(kinds, every, "write the fixture anew (crates/flash/examples/fixture.rs)");
}

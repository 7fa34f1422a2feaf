//! The checkpoint and the summaries of a real device, read by nothing but the page's tables.

use crate::reader::Reader;
use crate::tables::page;
use plimsoll_flash::Superblock;
use plimsoll_flash::format::{Anchor, SegmentFooter, SegmentHeader, SegmentKind, checkpoint, crc32c};
use plimsoll_flash::layout::Layout;

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

    /// The stream of the checkpoint.
    fn stream(&self) -> Vec<u8> {
        let (id, identity) = (self.anchor.checkpoint_id, self.layout.identity);
        let mut stream = Vec::new();
        let mut chunk = 0;
        for segment in &self.anchor.checkpoint_segments {
            let bytes = self.segment(*segment);
            let header = SegmentHeader::decode(bytes, identity, *segment).expect("a header");
            assert_eq!(header.kind, SegmentKind::Checkpoint);
            let mut at = self.layout.block_bytes as usize;
            while chunk < self.anchor.checkpoint_chunks && at < bytes.len() {
                let Ok(payload) = checkpoint::decode(&bytes[at..], id, chunk, identity) else { break };
                stream.extend_from_slice(payload);
                let length = checkpoint::CHUNK_HEADER_BYTES + payload.len();
                at += length.next_multiple_of(self.layout.block_bytes as usize);
                chunk += 1;
            }
        }
        assert_eq!(chunk, self.anchor.checkpoint_chunks, "every chunk was found");
        stream
    }
}

#[test]
fn the_checkpoint_reads_as_the_page_draws_it() {
    let (page, device) = (page(), device());
    let stream = device.stream();
    let mut reader = Reader { page: &page, rest: &stream };
    let section = reader.structure("Section");
    assert_eq!(section.get("kind"), u64::from(b'S'), "the snapshot stands first");
    let before = reader.rest.len() as u64;
    let snapshot = reader.snapshot();
    assert_eq!(before - reader.rest.len() as u64, section.get("bytes"), "the snapshot is as long as it says");
    let part = |name: &str| &snapshot.iter().find(|(part, _)| part == name).expect("a part").1;
    assert_eq!(part("segments").len(), 24);
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
    let mut entries = 0_u64;
    let mut next_slot = 0;
    while !reader.rest.is_empty() {
        assert_eq!(reader.structure("Section").get("kind"), u64::from(b'T'));
        let tables = reader.structure("Tables section");
        assert_eq!(tables.get("first_slot"), next_slot);
        assert!(tables.get("frame") >= device.anchor.frame_number);
        for _ in 0..tables.get("slots") {
            for _ in 0..reader.integer(4) {
                let entry = reader.structure("Index entry");
                assert!(entry.get("location_low") != 0 || entry.get("high") >> 26 != 0);
                entries += 1;
            }
        }
        next_slot += tables.get("slots");
    }
    assert_eq!(next_slot, 16_384, "every slot is there");
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
        let mut frame = header.first_frame;
        while !reader.rest.is_empty() {
            frame += reader.varint();
            let transition = reader.transition();
            assert!((1..=16).contains(&transition.get("kind")));
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

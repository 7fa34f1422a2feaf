//! The checkpoint and the summaries of a real device, read by nothing but the page's tables.

use crate::tables::{Table, fields, find, page, size};
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

/// Reads structures as the page draws them.
struct Reader<'a> {
    page: &'a [Table],
    rest: &'a [u8],
}

/// The fields of one structure that was read.
struct Read(Vec<(String, u64)>);

impl Read {
    fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(field, _)| field == name).unwrap_or_else(|| panic!("no field {name}")).1
    }
}

fn integer(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Reader<'_> {
    fn integer(&mut self, bytes: usize) -> u64 {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        integer(taken)
    }

    fn structure(&mut self, heading: &str) -> Read {
        let fields = fields(self.page, heading);
        let (taken, rest) = self.rest.split_at(size(&fields));
        self.rest = rest;
        let value = |field: &crate::tables::Field| integer(&taken[field.offset..field.offset + field.size]);
        Read(fields.iter().map(|field| (field.name.clone(), value(field))).collect())
    }

    fn list(&mut self, heading: &str) -> Vec<Read> {
        (0..self.integer(4)).map(|_| self.structure(heading)).collect()
    }

    /// The snapshot, in the order of the page's table of parts.
    fn snapshot(&mut self) -> Vec<(String, Vec<Read>)> {
        let parts: Vec<(String, String)> = find(self.page, "Snapshot", "order")
            .rows
            .iter()
            .map(|row| (row[1].clone(), row[2].clone()))
            .collect();
        let mut read = Vec::new();
        for (part, bytes) in parts {
            let items = match part.as_str() {
                "segments" => self.list("Snapshot: segment"),
                "generations" => self.list("Snapshot: generation"),
                "counters" => self.list("Snapshot: counters"),
                "dead" => self.list("Snapshot: dead"),
                "retained" => self.list("Snapshot: retained"),
                "expiry_overrides" => self.list("Snapshot: expiry override"),
                "uploads" => self.uploads(),
                _ => {
                    let bytes = bytes.parse().expect("a part that is no list has a size");
                    vec![Read(vec![(part.clone(), self.integer(bytes))])]
                }
            };
            read.push((part, items));
        }
        read
    }

    fn uploads(&mut self) -> Vec<Read> {
        let upload = |reader: &mut Self| {
            let upload = reader.structure("Snapshot: upload");
            for number in 0..upload.get("parts") {
                let part = reader.structure("Snapshot: upload part");
                assert_eq!(part.get("part"), number, "parts stand in order");
            }
            upload
        };
        (0..self.integer(4)).map(|_| upload(self)).collect()
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
    for segment in 0..device.layout.segments {
        let bytes = device.segment(segment);
        let Ok(header) = SegmentHeader::decode(bytes, device.layout.identity, segment) else { continue };
        let footer_at = bytes.len() - device.layout.block_bytes as usize;
        let footer = SegmentFooter::decode(&bytes[footer_at..], device.layout.identity, header.sequence);
        let Ok(footer) = footer else { continue };
        let start = footer_at - footer.summary_bytes as usize;
        let entry_bytes = size(&fields(&page, "Summary entry"));
        let summary = &bytes[start..start + footer.transitions as usize * entry_bytes];
        assert_eq!(crc32c(summary), footer.transitions_crc);
        let mut reader = Reader { page: &page, rest: summary };
        for _ in 0..footer.transitions {
            let frame = reader.integer(8);
            assert!((header.first_frame..=footer.last_frame).contains(&frame));
            let transition = reader.structure("Transition");
            assert!((1..=15).contains(&transition.get("kind")));
            found += 1;
        }
    }
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

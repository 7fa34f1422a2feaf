//! The page's tables against the code.

use crate::reader::{Before, Read, Reader};
use crate::samples;
use crate::tables::{self, fields, find, page, size};
use plimsoll_flash::format::record::RecordHeader;
use plimsoll_flash::format::transition::{self, Transition, TransitionKind};
use plimsoll_flash::format::{
    Chain, SegmentKind, anchor, chain, checkpoint, frame, note, record, segment, superblock,
};
use plimsoll_flash::{format, index};
use plimsoll_kv::limits;

/// The constants that the page names.
pub(crate) fn constants() -> Vec<(&'static str, u64)> {
    vec![
        ("FORMAT_VERSION", u64::from(superblock::FORMAT_VERSION)),
        ("UNIT_BYTES", format::UNIT_BYTES),
        ("SUPERBLOCK_BYTES", superblock::SUPERBLOCK_BYTES as u64),
        ("ANCHOR_BYTES", anchor::ANCHOR_BYTES as u64),
        ("PIECE_BYTES", anchor::PIECE_BYTES as u64),
        ("PIECES_BYTES_MAX", anchor::PIECES_BYTES_MAX as u64),
        ("SEGMENT_HEADER_BYTES", segment::SEGMENT_HEADER_BYTES as u64),
        ("SEGMENT_FOOTER_BYTES", segment::SEGMENT_FOOTER_BYTES as u64),
        ("FRAME_HEADER_BYTES", frame::FRAME_HEADER_BYTES as u64),
        ("TRANSITION_BYTES_MAX", chain::TRANSITION_BYTES_MAX as u64),
        ("NOTE_HEADER_BYTES", note::NOTE_HEADER_BYTES as u64),
        ("NOTE_KIND", u64::from(note::NOTE_KIND)),
        ("RECORD_HEADER_BYTES", record::RECORD_HEADER_BYTES as u64),
        ("CHECKSUM_SPAN_BYTES", record::CHECKSUM_SPAN_BYTES as u64),
        ("MANIFEST_BYTES", record::MANIFEST_BYTES as u64),
        ("CHUNK_HEADER_BYTES", checkpoint::CHUNK_HEADER_BYTES as u64),
        ("CHUNK_PAYLOAD_BYTES_MAX", checkpoint::CHUNK_PAYLOAD_BYTES_MAX as u64),
        ("FINGERPRINT_BITS", u64::from(index::FINGERPRINT_BITS)),
        ("LOCATION_BITS", u64::from(index::LOCATION_BITS)),
        ("LENGTH_BITS", u64::from(index::LENGTH_BITS)),
        ("KEY_BYTES_MAX", limits::KEY_BYTES_MAX as u64),
        ("RECORD_VALUE_BYTES_MAX", limits::RECORD_VALUE_BYTES_MAX as u64),
        ("VALUE_BYTES_MAX", limits::VALUE_BYTES_MAX),
    ]
}

/// What a byte names, for every byte that names something: segment, record and transition kinds.
pub(crate) fn kinds() -> [(&'static str, Vec<(u8, String)>); 3] {
    let named = |name: &dyn Fn(u8) -> Option<String>| -> Vec<(u8, String)> {
        (0..=255).filter_map(|byte| Some((byte, name(byte)?))).collect()
    };
    let segment = |byte| SegmentKind::from_byte(byte).map(|kind| format!("{kind:?}"));
    let record = |byte| {
        let mut bytes = [0; record::RECORD_HEADER_BYTES];
        bytes[4] = byte;
        RecordHeader::decode(&bytes).ok().map(|header| format!("{:?}", header.kind))
    };
    let transition = |byte| TransitionKind::from_byte(byte).map(|kind| format!("{kind:?}"));
    [
        ("segment kind", named(&segment)),
        ("record kind", named(&record)),
        ("transition kind", named(&transition)),
    ]
}

pub(crate) fn flags() -> Vec<(u8, &'static str)> {
    vec![
        (transition::FLAG_EXPIRING, "FLAG_EXPIRING"),
        (transition::FLAG_PREVIOUS_EXPIRING, "FLAG_PREVIOUS_EXPIRING"),
        (transition::FLAG_RETAIN, "FLAG_RETAIN"),
        (transition::FLAG_WHOLE, "FLAG_WHOLE"),
    ]
}

#[test]
fn the_page_names_every_constant_with_its_value() {
    let page = page();
    let table = find(&page, "Constants", "constant");
    let drawn: Vec<(String, String)> =
        table.rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let coded: Vec<(String, String)> =
        constants().iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
    assert_eq!(drawn, coded, "docs/on-flash-format.md, Constants: the page is left, the code right");
}

#[test]
fn every_field_stands_where_the_page_draws_it() {
    let page = page();
    // Tables have no fields at offsets: they are read below.
    for sample in samples::all().into_iter().filter(|sample| !sample.fields.is_empty()) {
        let heading = sample.heading;
        let drawn = fields(&page, heading);
        for field in &drawn {
            let found = &sample.bytes[field.offset..field.offset + field.size];
            if field.name.starts_with("reserved") {
                assert!(found.iter().all(|byte| *byte == 0), "{heading}: {} is not zero", field.name);
                continue;
            }
            let expected = match &sample.crc {
                Some(crc) if field.name == "crc" => crc.to_le_bytes().to_vec(),
                _ => {
                    let coded = sample.fields.iter().find(|(name, _)| *name == field.name);
                    coded
                        .unwrap_or_else(|| panic!("{heading}: the code has no field {}", field.name))
                        .1
                        .clone()
                }
            };
            assert_eq!(found, expected, "{heading}: {} is not at offset {}", field.name, field.offset);
        }
        for (name, _) in &sample.fields {
            assert!(drawn.iter().any(|field| field.name == *name), "{heading}: the page lacks {name}");
        }
    }
}

#[test]
fn drawn_structures_have_the_sizes_of_the_code() {
    let page = page();
    let sizes = [
        ("Superblock", 112),
        ("Anchor: piece", anchor::PIECE_BYTES),
        ("Segment header", segment::SEGMENT_HEADER_BYTES),
        ("Segment footer", segment::SEGMENT_FOOTER_BYTES),
        ("Frame", frame::FRAME_HEADER_BYTES),
        ("Note", note::NOTE_HEADER_BYTES),
        ("Record", record::RECORD_HEADER_BYTES),
        ("Manifest", record::MANIFEST_BYTES),
        ("Keeper", record::KEEPER_BYTES),
        ("Part key", record::part_key(0, 0).len()),
        ("Checkpoint chunk", checkpoint::CHUNK_HEADER_BYTES),
    ];
    for (heading, bytes) in sizes {
        assert_eq!(size(&fields(&page, heading)), bytes, "{heading}");
    }
}

#[test]
fn transitions_read_as_the_page_draws_them() {
    let page = page();
    let (mut chain, mut bytes) = (Chain::default(), Vec::new());
    samples::transitions().iter().for_each(|transition| chain.encode(transition, &mut bytes));
    let (mut before, mut reader) = (Before::default(), Reader { page: &page, rest: &bytes });
    for transition in samples::transitions() {
        check_transition(&reader.transition(&mut before), &transition);
    }
    assert!(reader.rest.is_empty(), "the page reads all of it");
}

#[test]
fn tables_of_slots_read_as_the_page_draws_them() {
    let page = page();
    let bytes = samples::table();
    let mut reader = Reader { page: &page, rest: &bytes };
    let drawn: Vec<(u64, u64, u64)> = reader.slot_table(samples::TABLE_LOCATION_BITS);
    let coded = samples::entries().map(|e| (e.fingerprint, e.location, u64::from(e.length)));
    assert_eq!(drawn, coded);
    assert!(reader.rest.is_empty(), "the page reads all of it");
}

fn check_transition(read: &Read, transition: &Transition) {
    let coded = [
        ("kind", transition.kind as u64),
        ("flags", u64::from(transition.flags)),
        ("slot", u64::from(transition.slot)),
        ("fingerprint", transition.fingerprint),
        ("container", u64::from(transition.container)),
        ("location", transition.location),
        ("previous", transition.previous),
        ("length", u64::from(transition.length)),
        ("previous_length", u64::from(transition.previous_length)),
        ("argument", transition.argument),
    ];
    for (name, value) in coded {
        assert_eq!(read.get(name), value, "{name}");
    }
}

#[test]
fn the_page_names_every_kind_and_flag() {
    let page = page();
    let drawn = |column: &str| -> Vec<(String, String)> {
        let table = page.iter().find(|table| table.columns.get(1).is_some_and(|name| name == column));
        let table = table.unwrap_or_else(|| panic!("docs/on-flash-format.md has no table of each {column}"));
        table.rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect()
    };
    for (column, coded) in kinds() {
        let coded: Vec<(String, String)> =
            coded.into_iter().map(|(byte, name)| (byte.to_string(), name)).collect();
        assert_eq!(drawn(column), coded, "{column}: the page is left, the code right");
    }
    let coded: Vec<(String, String)> =
        flags().into_iter().map(|(bit, name)| (bit.to_string(), name.to_owned())).collect();
    assert_eq!(drawn("flag"), coded);
}

#[test]
fn tables_are_read_as_they_are_written() {
    let tables = tables::parse("# One\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n## Two\n| c |\n|---|\n");
    assert_eq!(tables.len(), 2);
    assert_eq!((tables[0].heading.as_str(), tables[1].heading.as_str()), ("One", "Two"));
    assert_eq!(tables[0].rows, [["1", "2"]]);
}

#[test]
fn what_a_key_costs_is_what_the_page_for_redis_users_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/from-redis.md");
    let page = std::fs::read_to_string(path).expect("docs/from-redis.md can be read");
    for (value_bytes, cost) in [(100, "192 bytes"), (1024, "1120 bytes")] {
        assert_eq!(format!("{} bytes", record::record_bytes(16, value_bytes)), cost);
        let row = page.lines().find(|line| line.contains(&format!("with a value of {value_bytes} ")));
        assert!(row.is_some_and(|row| row.contains(cost)), "a value of {value_bytes} bytes");
    }
}

//! One sample of each structure, with a different value in every field, and where its checksum
//! comes from as the page says it.

use plimsoll_flash::format::anchor::{ANCHOR_BYTES, Anchor, PIECE_BYTES, Piece};
use plimsoll_flash::format::note::encode_note;
use plimsoll_flash::format::record::{self, Keeper, Manifest, RecordHeader, RecordKind, part_key};
use plimsoll_flash::format::superblock::{MAGIC, SUPERBLOCK_BYTES, Superblock};
use plimsoll_flash::format::transition::{Transition, TransitionKind};
use plimsoll_flash::format::{
    Chain, FrameHeader, SegmentFooter, SegmentHeader, SegmentKind, checkpoint, crc32c, crc32c_of,
};
use plimsoll_flash::index::{Entry, Index};
use plimsoll_kv::{Slot, Version};

/// A structure: the heading under which it is drawn, its bytes, and its fields with their bytes.
pub(crate) struct Sample {
    pub(crate) heading: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fields: Vec<(&'static str, Vec<u8>)>,
    /// The checksum as the page defines it, if the structure has one.
    pub(crate) crc: Option<u32>,
}

pub(crate) const IDENTITY: u64 = 0x1d1d_2e2e_3f3f_4040;
pub(crate) const SEQUENCE: u64 = 0x0102_0304_0506_0708;
pub(crate) const LOCATION: u64 = 0x21_2223_2425;

fn b4(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}
fn b8(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// The CRC-32C of pieces, the four bytes at `at` of the last one counted as zero.
fn crc_over(before: &[&[u8]], bytes: &[u8], at: usize) -> u32 {
    let mut zeroed = bytes.to_vec();
    zeroed[at..at + 4].fill(0);
    let mut pieces = before.to_vec();
    pieces.push(&zeroed);
    crc32c_of(&pieces)
}

pub(crate) fn all() -> Vec<Sample> {
    vec![
        superblock(),
        anchor(),
        piece(),
        segment_header(),
        segment_footer(),
        frame(),
        note(),
        transition_sample(),
        record(),
        manifest(),
        keeper(),
        key_of_part(),
        chunk(),
        table_sample(),
    ]
}

fn superblock() -> Sample {
    let value = Superblock {
        format_version: 1,
        features_compatible: 0x3132_3334_3536_3738,
        features_read_only: 0x4142_4344_4546_4748,
        features_incompatible: 0x5152_5354_5556_5758,
        device_id: *b"sixteen bytes id",
        created_ms: 0x6162_6364_6566_6768,
        device_bytes: 0x7172_7374_7576_7778,
        data_offset: 0x0001_0000,
        hash_secret: 0x8182_8384_8586_8788,
        segment_bytes: 0x0010_0000,
        block_bytes: 0x0000_0200,
        segments_per_partition: 0x9192_9394,
        placement_epoch: 0xa1a2_a3a4,
        partitions: 0x0102,
        written_ahead: true,
    };
    let bytes = value.encode().to_vec();
    assert_eq!(bytes.len(), SUPERBLOCK_BYTES);
    Sample {
        heading: "Superblock",
        fields: vec![
            ("magic", MAGIC.to_vec()),
            ("format_version", b4(1)),
            ("features_compatible", b8(value.features_compatible)),
            ("features_read_only", b8(value.features_read_only)),
            ("features_incompatible", b8(value.features_incompatible)),
            ("device_id", value.device_id.to_vec()),
            ("created_ms", b8(value.created_ms)),
            ("device_bytes", b8(value.device_bytes)),
            ("data_offset", b8(value.data_offset)),
            ("hash_secret", b8(value.hash_secret)),
            ("segment_bytes", b4(value.segment_bytes)),
            ("block_bytes", b4(value.block_bytes)),
            ("segments_per_partition", b4(value.segments_per_partition)),
            ("placement_epoch", b4(value.placement_epoch)),
            ("partitions", value.partitions.to_le_bytes().to_vec()),
            ("written_ahead", vec![1]),
        ],
        crc: Some(crc_over(&[], &bytes, 12)),
        bytes,
    }
}

fn anchor_value() -> Anchor {
    let piece = Piece {
        id: 0x8182_8384_8586_8788,
        chunks: 0x9192_9394,
        offset: 0xa1a2_a3a4,
        end_slot: 0xb1b2_b3b4,
        segments: vec![0xc1c2_c3c4, 0xd1d2_d3d4],
    };
    Anchor {
        generation: 0x1112_1314_1516_1718,
        epoch: 0x2122_2324,
        clean: true,
        log_segment: 0x3132_3334,
        log_number: 0x4142_4344_4546_4748,
        frame_number: 0x5152_5354_5556_5758,
        checkpoint_id: 0x6162_6364_6566_6768,
        pieces: vec![piece.clone(), Piece { segments: vec![0xe1e2_e3e4], ..piece }],
    }
}

fn anchor() -> Sample {
    let value = anchor_value();
    let bytes = value.encode(IDENTITY).to_vec();
    assert_eq!(bytes.len(), ANCHOR_BYTES);
    assert_eq!(Anchor::decode(&bytes, IDENTITY).as_ref(), Ok(&value));
    Sample {
        heading: "Anchor",
        fields: vec![
            ("magic", b"PANC".to_vec()),
            ("generation", b8(value.generation)),
            ("epoch", b4(value.epoch)),
            ("clean", b4(1)),
            ("log_segment", b4(value.log_segment)),
            ("pieces", b4(2)),
            ("log_number", b8(value.log_number)),
            ("frame_number", b8(value.frame_number)),
            ("checkpoint_id", b8(value.checkpoint_id)),
        ],
        crc: Some(crc_over(&[&IDENTITY.to_le_bytes()], &bytes, 4)),
        bytes,
    }
}

fn piece() -> Sample {
    let value = anchor_value();
    let bytes = value.encode(IDENTITY)[64..].to_vec();
    let lists = [b4(0xc1c2_c3c4), b4(0xd1d2_d3d4), b4(0xe1e2_e3e4)].concat();
    assert_eq!(bytes[2 * PIECE_BYTES..][..12], lists, "the segments of each piece follow the last one");
    let piece = &value.pieces[0];
    Sample {
        heading: "Anchor: piece",
        fields: vec![
            ("id", b8(piece.id)),
            ("chunks", b4(piece.chunks)),
            ("offset", b4(piece.offset)),
            ("end_slot", b4(piece.end_slot)),
            ("segments", b4(2)),
        ],
        crc: None,
        bytes: bytes[..PIECE_BYTES].to_vec(),
    }
}

fn segment_header() -> Sample {
    let value = SegmentHeader {
        kind: SegmentKind::Cold,
        segment: 0x1112_1314,
        sequence: SEQUENCE,
        epoch: 0x2122_2324,
        next_segment: 0x3132_3334,
        log_number: 0x4142_4344_4546_4748,
        first_frame: 0x5152_5354_5556_5758,
        durable_frame: 0x6162_6364_6566_6768,
        created_ms: 0x7172_7374_7576_7778,
    };
    let bytes = value.encode(IDENTITY).to_vec();
    Sample {
        heading: "Segment header",
        fields: vec![
            ("magic", b"PSEG".to_vec()),
            ("kind", vec![3]),
            ("segment", b4(value.segment)),
            ("sequence", b8(SEQUENCE)),
            ("epoch", b4(value.epoch)),
            ("next_segment", b4(value.next_segment)),
            ("log_number", b8(value.log_number)),
            ("first_frame", b8(value.first_frame)),
            ("durable_frame", b8(value.durable_frame)),
            ("created_ms", b8(value.created_ms)),
        ],
        crc: Some(crc_over(&[&IDENTITY.to_le_bytes()], &bytes, 4)),
        bytes,
    }
}

fn segment_footer() -> Sample {
    let value = SegmentFooter {
        sequence: SEQUENCE,
        last_frame: 0x1112_1314_1516_1718,
        transitions_bytes: 0x2122_2324,
        transitions_crc: 0x3132_3334,
        summary_bytes: 0x4142_4344,
    };
    let bytes = value.encode(IDENTITY).to_vec();
    Sample {
        heading: "Segment footer",
        fields: vec![
            ("magic", b"PEND".to_vec()),
            ("sequence", b8(SEQUENCE)),
            ("last_frame", b8(value.last_frame)),
            ("transitions_bytes", b4(value.transitions_bytes)),
            ("transitions_crc", b4(value.transitions_crc)),
            ("summary_bytes", b4(value.summary_bytes)),
        ],
        crc: Some(crc_over(&[&IDENTITY.to_le_bytes()], &bytes, 4)),
        bytes,
    }
}

/// One with every field, one that follows it in every respect, and one that is short.
pub(crate) fn transitions() -> [Transition; 3] {
    let widest = Transition {
        flags: 0x81,
        slot: 0x1112,
        container: 0x2122_2324,
        fingerprint: 0x31_3233_3435,
        location: 0x4142_4344_4546_4748,
        previous: 0x5152_5354_5556_5758,
        argument: 0x6162_6364_6566_6768,
        length: 0x7172_7374,
        previous_length: 0x8182_8384,
        ..Transition::new(TransitionKind::Revert)
    };
    let follows = Transition {
        kind: TransitionKind::Relocate,
        flags: 0,
        argument: 0,
        location: widest.location + u64::from(widest.length),
        previous: widest.previous + u64::from(widest.previous_length) - 3,
        previous_length: widest.length,
        ..widest
    };
    let short = Transition { location: 7, argument: 0x4344, ..Transition::new(TransitionKind::UploadDoom) };
    [widest, follows, short]
}

fn transition_sample() -> Sample {
    let mut bytes = Vec::new();
    Chain::default().encode(&transitions()[0], &mut bytes);
    Sample {
        heading: "Transition",
        fields: vec![("kind", vec![13]), ("shape", vec![0xff])],
        crc: None,
        bytes,
    }
}

fn frame() -> Sample {
    let value = FrameHeader {
        sequence: SEQUENCE,
        number: 0x1112_1314_1516_1718,
        durable: 0x0102_0304_0506_0708,
        epoch: 0x2122_2324,
        items: 0x3132_3334,
        payload_bytes: 0x4142_4344,
    };
    let offset = 0x5152_5354_5556_5758_u64;
    let bytes = value.encode(IDENTITY, offset).to_vec();
    Sample {
        heading: "Frame",
        fields: vec![
            ("magic", b"PFRM".to_vec()),
            ("sequence", b8(SEQUENCE)),
            ("number", b8(value.number)),
            ("durable", b8(value.durable)),
            ("epoch", b4(value.epoch)),
            ("items", b4(value.items)),
            ("payload_bytes", b4(value.payload_bytes)),
        ],
        crc: Some(crc_over(&[&IDENTITY.to_le_bytes(), &offset.to_le_bytes()], &bytes, 4)),
        bytes,
    }
}

fn note() -> Sample {
    let transitions = transitions();
    let (mut chain, mut encoded) = (Chain::default(), Vec::new());
    transitions.iter().for_each(|transition| chain.encode(transition, &mut encoded));
    let bytes = encode_note(&transitions, SEQUENCE, LOCATION);
    assert_eq!(bytes[16..16 + encoded.len()], encoded);
    assert_eq!(bytes.len(), (16 + encoded.len()).next_multiple_of(16));
    Sample {
        heading: "Note",
        fields: vec![
            ("kind", vec![64]),
            ("transitions", b4(transitions.len() as u32)),
            ("payload_bytes", b4(encoded.len() as u32)),
        ],
        crc: Some(crc32c_of(&[&SEQUENCE.to_le_bytes(), &LOCATION.to_le_bytes(), &bytes[4..]])),
        bytes,
    }
}

fn record() -> Sample {
    let (key, value) = (b"a key".as_slice(), b"a value of a record".as_slice());
    let header = RecordHeader {
        kind: RecordKind::Manifest,
        lifetime: 2,
        key_bytes: key.len() as u32,
        value_bytes: value.len() as u32,
        container: 0x1112_1314,
        slot: 0x2122,
        version: Version { epoch: 0x3132_3334, clock: 0x4142_4344_4546_4748 },
        expiry_ms: 0x5152_5354_5556_5758,
        flags: 0x61,
        previous: 0x7172_7374_7576_7778,
        previous_length: 0x8182_8384,
    };
    let mut bytes = vec![0xff; header.record_bytes() as usize];
    record::encode(&header, key, [value, &[]], (SEQUENCE, LOCATION), &mut bytes);
    // Header, key, padding to 4, one checksum, value, padding to 16.
    let head = 64 + 5 + 3 + 4;
    assert_eq!(&bytes[64..69], key);
    assert_eq!(bytes[72..76], b4(crc32c(value)));
    assert_eq!(&bytes[head..head + value.len()], value);
    assert_eq!(bytes.len(), (head + value.len()).next_multiple_of(16));
    Sample {
        heading: "Record",
        fields: vec![
            ("kind", vec![2]),
            ("flags", vec![0x61]),
            ("codec", vec![0]),
            ("lifetime", vec![2]),
            ("key_bytes", b4(5)),
            ("value_bytes", b4(value.len() as u32)),
            ("raw_bytes", b4(value.len() as u32)),
            ("container", b4(header.container)),
            ("epoch", b4(header.version.epoch)),
            ("placement_epoch", b4(0)),
            ("clock", b8(header.version.clock)),
            ("expiry_ms", b8(header.expiry_ms)),
            ("cipher_key", vec![0, 0]),
            ("slot", header.slot.to_le_bytes().to_vec()),
            ("previous_length", b4(header.previous_length)),
            ("previous", b8(header.previous)),
        ],
        crc: Some(crc32c_of(&[&SEQUENCE.to_le_bytes(), &LOCATION.to_le_bytes(), &bytes[4..head]])),
        bytes,
    }
}

fn manifest() -> Sample {
    let value = Manifest { length: 0x1112_1314, upload: 0x2122_2324_2526_2728, part_bytes: 0x3132_3334 };
    Sample {
        heading: "Manifest",
        fields: vec![
            ("length", b8(value.length)),
            ("upload", b8(value.upload)),
            ("part_bytes", b4(value.part_bytes)),
        ],
        crc: None,
        bytes: value.encode().to_vec(),
    }
}

fn keeper() -> Sample {
    let kept_bytes = 0x0010_1112;
    let bytes = b4(kept_bytes);
    let decoded = Keeper::decode(&bytes).expect("a keeper without a head");
    assert_eq!((decoded.head, decoded.kept_bytes), (&[][..], kept_bytes));
    Sample { heading: "Keeper", fields: vec![("kept_bytes", b4(kept_bytes))], crc: None, bytes }
}

fn key_of_part() -> Sample {
    let (upload, part) = (0x1112_1314_1516_1718, 0x2122_2324);
    Sample {
        heading: "Part key",
        fields: vec![("upload", b8(upload)), ("part", b4(part))],
        crc: None,
        bytes: part_key(upload, part).to_vec(),
    }
}

fn chunk() -> Sample {
    let (id, number, payload) = (0x1112_1314_1516_1718, 0x2122_2324_2526_2728, b"a payload".as_slice());
    let mut bytes = Vec::new();
    checkpoint::encode(id, number, payload, IDENTITY, &mut bytes);
    Sample {
        heading: "Checkpoint chunk",
        fields: vec![
            ("magic", b"PCKP".to_vec()),
            ("checkpoint", b8(id)),
            ("number", b8(number)),
            ("payload_bytes", b4(payload.len() as u32)),
        ],
        crc: Some(crc_over(&[&IDENTITY.to_le_bytes()], &bytes, 4)),
        bytes,
    }
}

/// Bits of a location in the sample of a table.
pub(crate) const TABLE_LOCATION_BITS: u64 = 37;

/// Entries of a table: two with the same fingerprint, and both ends of what there is.
pub(crate) fn entries() -> [Entry; 5] {
    let entry = |fingerprint, location, length| Entry { fingerprint, location, length };
    [
        entry(0, 1, 0x1112),
        entry(0xab_1112_1314, 0x0a_3132_3334, 0x1112),
        entry(0xab_1112_1314, 0x1a_2122_2324, 0x3_5432),
        entry(0xab_1112_1315, 0x02_4142_4344, 0x2122),
        entry(0xff_ffff_ffff, 0x1f_ffff_ffff, 0x3_ffff),
    ]
}

pub(crate) fn table() -> Vec<u8> {
    let mut index = Index::new(0..1);
    entries().into_iter().rev().for_each(|entry| index.insert(Slot(0), entry));
    let mut bytes = Vec::new();
    index.encode_slot(Slot(0), TABLE_LOCATION_BITS as u32, &mut bytes);
    bytes
}

fn table_sample() -> Sample {
    Sample { heading: "Table", fields: Vec::new(), crc: None, bytes: table() }
}

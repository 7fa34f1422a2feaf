//! Bodies of the fuzz targets of the on-flash decoders.
//!
//! Role: say in code what must hold for any bytes at all: no decoder panics or allocates out of
//! proportion, and what a decoder accepts, it gives back byte for byte. Checksums are put right
//! first, so that the bytes behind them are reached. Place: tests and `fuzz/`; nothing in the
//! engine calls this. Never: it draws no randomness.

use crate::format::note::{NOTE_HEADER_BYTES, NOTE_KIND, decode_note, encode_note};
use crate::format::record::{self, Keeper, RECORD_HEADER_BYTES, RecordHeader, verify_value};
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{
    Anchor, FrameHeader, Intent, SegmentFooter, SegmentHeader, checkpoint, crc32c, crc32c_of,
};
use crate::layout::Layout;
use crate::segments::SegmentTable;
use crate::state::State;
use crate::walk::{decode_summary, durable_stated_after, frame_at};
use crate::{load, snapshot};
use plimsoll_kv::limits::{KEPT_HEAD_BYTES_MAX, RECORD_VALUE_BYTES_MAX};

const IDENTITY: u64 = 0x1234;
const SEQUENCE: u64 = 77;

fn layout() -> Layout {
    Layout {
        partition: 0,
        partitions: 1,
        offset: 64 << 10,
        anchor_offset: 4096,
        segments: 32,
        segment_bytes: 64 << 10,
        block_bytes: 512,
        identity: IDENTITY,
        hash_secret: 9,
        keeps: true,
        fingerprint_bits: crate::index::FINGERPRINT_BITS,
    }
}

/// Any bytes as a superblock, and as an anchor.
pub fn superblock(data: &[u8]) {
    let _ = Superblock::decode(data);
    let _ = Anchor::decode(data, IDENTITY);
    let mut block = vec![0; SUPERBLOCK_BYTES];
    let length = data.len().min(SUPERBLOCK_BYTES);
    block[..length].copy_from_slice(&data[..length]);
    block[..8].copy_from_slice(b"PLIMSOLL");
    block[12..16].fill(0);
    let crc = crc32c(&block);
    block[12..16].copy_from_slice(&crc.to_le_bytes());
    if let Ok(superblock) = Superblock::decode(&block) {
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
    block[..4].copy_from_slice(b"PANC");
    block[4..8].fill(0);
    let crc = crc32c_of(&[&IDENTITY.to_le_bytes(), &block]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    if let Ok(anchor) = Anchor::decode(&block, IDENTITY) {
        assert_eq!(Anchor::decode(&anchor.encode(IDENTITY), IDENTITY), Ok(anchor));
    }
}

/// Any bytes as a record.
pub fn record(data: &[u8]) {
    let location = 4099;
    let _ = record::verify_head(data, SEQUENCE, location);
    if let Ok(keeper) = Keeper::decode(data) {
        assert!(keeper.length() <= (KEPT_HEAD_BYTES_MAX + RECORD_VALUE_BYTES_MAX) as u64);
    }
    let Ok(header) = RecordHeader::decode(data) else { return };
    let mut bytes = data.to_vec();
    if bytes.len() < header.head_bytes() {
        return;
    }
    record::relocate(&mut bytes, &header, SEQUENCE, location);
    let proved = record::verify_head(&bytes, SEQUENCE, location).expect("the checksum was put right");
    assert_eq!(proved, header);
    assert!(record::verify_head(&bytes, SEQUENCE + 1, location).is_err(), "another segment's record");
    assert!(record::verify_head(&bytes, SEQUENCE, location + 1).is_err(), "another place's record");
    let key = record::key(&bytes, &header).to_vec();
    let _ = header.transition(&key, 5, location);
    if let Ok(value) = verify_value(&bytes, &header) {
        let mut again = vec![0xff; header.record_bytes() as usize];
        record::encode(&header, &key, [value, &[]], (SEQUENCE, location), &mut again);
        let reread = record::verify_head(&again, SEQUENCE, location).expect("just encoded");
        assert_eq!((reread, record::key(&again, &reread)), (header, key.as_slice()));
        assert_eq!(verify_value(&again, &reread), Ok(value));
        assert!(header.head_bytes() >= RECORD_HEADER_BYTES + key.len());
    }
}

/// Any bytes as a log segment: header, frames with items, summary and footer.
pub fn segment(data: &[u8]) {
    let layout = layout();
    let mut bytes = data.to_vec();
    bytes.resize(layout.segment_bytes as usize, 0);
    let _ = SegmentHeader::decode(&bytes, IDENTITY, 3);
    let _ = SegmentFooter::decode(&bytes, IDENTITY, SEQUENCE);
    let _ = durable_stated_after(&bytes, &layout, 3, SEQUENCE, 512);
    walk(&mut bytes, &layout);
    note(data);
    let footer = SegmentFooter {
        sequence: SEQUENCE,
        last_frame: 9,
        transitions_bytes: data.len().min(4096) as u32,
        transitions_crc: crc32c(&data[..data.len().min(4096)]),
        summary_bytes: 4096,
    };
    assert_eq!(SegmentFooter::decode(&footer.encode(IDENTITY), IDENTITY, SEQUENCE), Ok(footer.clone()));
    let _ = decode_summary(data, &footer, 3);
}

/// Puts the checksum of each frame header right on the way through a segment.
fn walk(bytes: &mut [u8], layout: &Layout) {
    let mut offset = layout.block_bytes;
    while offset + 48 <= layout.segment_bytes {
        let at = offset as usize;
        let payload_bytes =
            u32::from_le_bytes(bytes[at + 40..at + 44].try_into().expect("four bytes")) % 4096;
        let header = FrameHeader {
            sequence: SEQUENCE,
            number: offset,
            durable: offset - 1,
            epoch: u32::from(bytes[at + 32]),
            items: u32::from(bytes[at + 36]),
            payload_bytes,
        };
        let place = 3 * layout.segment_bytes + offset;
        let encoded = header.encode(IDENTITY, place);
        assert_eq!(FrameHeader::decode(&encoded, IDENTITY, place, SEQUENCE), Ok(header));
        bytes[at..at + encoded.len()].copy_from_slice(&encoded);
        let Some(frame) = frame_at(bytes, layout, 3, SEQUENCE, offset) else { return };
        assert!(frame.end > offset, "a walk goes forward");
        offset = frame.end;
    }
}

/// Any bytes as a note.
fn note(data: &[u8]) {
    let _ = decode_note(data, SEQUENCE, 8);
    if data.len() < NOTE_HEADER_BYTES {
        return;
    }
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes[4] = NOTE_KIND;
    let payload_bytes = (bytes.len() - NOTE_HEADER_BYTES) as u32;
    bytes[12..16].copy_from_slice(&payload_bytes.to_le_bytes());
    let crc = crc32c_of(&[&SEQUENCE.to_le_bytes(), &8_u64.to_le_bytes(), &bytes[4..]]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    if let Ok((transitions, _)) = decode_note(&bytes, SEQUENCE, 8) {
        let again = encode_note(&transitions, SEQUENCE, 8);
        assert_eq!(decode_note(&again, SEQUENCE, 8).map(|(t, _)| t), Ok(transitions));
    }
}

/// Any bytes as a checkpoint: chunk, snapshot, tables.
pub fn checkpoint(data: &[u8]) {
    let _ = checkpoint::decode(data, 5, 6, IDENTITY);
    let payload = &data[..data.len().min(checkpoint::CHUNK_PAYLOAD_BYTES_MAX)];
    let mut chunk = Vec::new();
    checkpoint::encode(5, 6, payload, IDENTITY, &mut chunk);
    assert_eq!(checkpoint::decode(&chunk, 5, 6, IDENTITY), Ok(payload));
    assert!(checkpoint::decode(&chunk, 5, 7, IDENTITY).is_err(), "another chunk");
    let layout = layout();
    let fresh = || State::new(0..64, SegmentTable::all_free(&layout));
    let mut state = fresh();
    if snapshot::decode(payload, &mut state) {
        let mut again = Vec::new();
        snapshot::encode(&state, &mut again);
        assert!(snapshot::decode(&again, &mut fresh()), "what was decoded can be encoded and decoded");
        state.begin_anew();
    }
    let mut state = fresh();
    state.slot_frames = Some(vec![0; 64]);
    let _ = load::load_tables(payload, 0, &mut state);
}

#[cfg(test)]
#[path = "fuzz_tests.rs"]
mod tests;

/// Any bytes as the intent of a transaction.
pub fn intent(data: &[u8]) {
    if let Ok(intent) = Intent::decode(data) {
        assert_eq!(intent.encode(), data, "what is accepted is given back byte for byte");
    }
}
